//! The values of the chart as a table for people, made of `values.yaml` and the comments in it.
//!
//! It reads only what that file has: keys, one value a line or a list below its key, and comments
//! above. YAML in general is not its business.

use anyhow::{Context, Result, ensure};

/// Between these lines the guide's page has the table.
const MARKS: [&str; 2] = [
    "<!-- made by `cargo xtask chart` -->\n",
    "<!-- end of what is made -->\n",
];

/// One value: its path, its default as it is written, and what it is for.
#[derive(Debug, PartialEq, Eq)]
pub struct ChartValue {
    /// The keys that lead to it, with dots between them.
    pub path: String,
    /// Its default, as the file has it.
    pub default: String,
    meaning: String,
}

/// All values, in their order.
///
/// # Errors
/// A value has no comment.
pub fn chart_values(yaml: &str) -> Result<Vec<ChartValue>> {
    let mut values: Vec<ChartValue> = Vec::new();
    let mut keys: Vec<&str> = Vec::new();
    let mut comment: Vec<&str> = Vec::new();
    for line in yaml.lines() {
        let text = line.trim_start();
        if text.is_empty() {
            comment.clear();
        } else if let Some(words) = text.strip_prefix("# ") {
            comment.push(words);
        } else if let Some(item) = text.strip_prefix("- ") {
            let list = values.last_mut().context("a list without a key")?;
            list.default += if list.default.is_empty() { "" } else { ", " };
            list.default += item;
        } else {
            let (key, value) = text
                .split_once(':')
                .with_context(|| format!("no key: {line}"))?;
            keys.truncate((line.len() - text.len()) / 2);
            keys.push(key);
            if value.is_empty() && comment.is_empty() {
                continue; // A group.
            }
            let path = keys.join(".");
            ensure!(!comment.is_empty(), "{path} has no comment");
            values.push(ChartValue {
                path,
                default: value.trim().to_owned(),
                meaning: comment.join(" "),
            });
            comment.clear();
        }
    }
    Ok(values)
}

/// The page of the guide with the table of these values.
///
/// # Errors
/// The page has no place for the table, or a value has no comment.
pub fn with_table_of_values(page: &str, yaml: &str) -> Result<String> {
    let [begin, end] = MARKS;
    let (before, rest) = page.split_once(begin).context("no place for the table")?;
    let (_, after) = rest.split_once(end).context("the table has no end")?;
    let mut table = "| value | default | |\n|---|---|---|\n".to_owned();
    for ChartValue {
        path,
        default,
        meaning,
    } in chart_values(yaml)?
    {
        let meaning = meaning.replace('|', "\\|");
        table += &format!("| `{path}` | `{default}` | {meaning} |\n");
    }
    Ok(format!("{before}{begin}{table}{end}{after}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_have_their_path_default_and_comment() {
        let yaml = "# Why: not a value.\n\na:\n  b:\n    # What b's c is,\n    # in two lines.\n    \
                    c: {d: 1}\n  # A list.\n  e:\n  - x\n  - y\n# Last.\nf: \"\"\n";
        let page =
            "x\n<!-- made by `cargo xtask chart` -->\nold\n<!-- end of what is made -->\ny\n";
        let made = with_table_of_values(page, yaml).unwrap();
        let rows = "| `a.b.c` | `{d: 1}` | What b's c is, in two lines. |\n| `a.e` | `x, y` | A \
                    list. |\n| `f` | `\"\"` | Last. |\n";
        assert!(made.contains(rows), "{made}");
        assert!(made.starts_with("x\n") && made.ends_with("\ny\n") && !made.contains("old"));
        assert!(
            chart_values("a: 1\n")
                .unwrap_err()
                .to_string()
                .contains("a has no comment")
        );
    }
}
