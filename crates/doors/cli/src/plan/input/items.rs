//! Cuts a list into its items, so that each can be read by itself.
//!
//! Only done if something is wrong in one of them. JSON and YAML's block style, which kubectl
//! prints, can be cut; a list in braces that is no JSON cannot.

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;
use serde_saphyr::Spanned;

use super::limits::parser_options;

/// One item.
pub(super) struct Item {
    /// Its first line, counted from the document's first, which is 1.
    pub(super) line: u64,
    pub(super) text: String,
}

/// A list's items; `None` if they cannot be cut apart.
pub(super) fn items(text: &str) -> Option<Vec<Item>> {
    json(text).or_else(|| block(text))
}

fn json(text: &str) -> Option<Vec<Item>> {
    #[derive(Deserialize)]
    struct List<'t> {
        #[serde(borrow)]
        items: Vec<&'t RawValue>,
    }
    let list: List<'_> = serde_json::from_str(text).ok()?;
    let cut = |raw: &&'_ RawValue| {
        let item = raw.get();
        let before = item.as_ptr() as usize - text.as_ptr() as usize;
        Item {
            line: 1 + text[..before].matches('\n').count() as u64,
            text: item.to_owned(),
        }
    };
    Some(list.items.iter().map(cut).collect())
}

/// Items that begin with a dash, each on lines of its own.
fn block(text: &str) -> Option<Vec<Item>> {
    #[derive(Deserialize)]
    struct List {
        items: Vec<Spanned<IgnoredAny>>,
    }
    let list: List = serde_saphyr::from_str_with_options(text, parser_options()).ok()?;
    let lines: Vec<&str> = text.split_inclusive('\n').collect();
    let begins = list.items.iter().map(|item| {
        let place = item.referenced;
        let line = usize::try_from(place.line()).ok()?.checked_sub(1)?;
        let column = usize::try_from(place.column()).ok()?.checked_sub(1)?;
        let (dash, _) = lines.get(line)?.split_at_checked(column)?;
        let indent = dash.trim_end().strip_suffix('-')?;
        (indent.trim_start().is_empty()).then_some((line, indent.len(), column))
    });
    let begins: Vec<(usize, usize, usize)> = begins.collect::<Option<_>>()?;
    let cut = |(at, &(from, indent, column)): (usize, &(usize, usize, usize))| {
        let to = match begins.get(at + 1) {
            Some((next, ..)) => *next,
            None => {
                from + 1
                    + lines[from + 1..]
                        .iter()
                        .take_while(|line| within(line, indent))
                        .count()
            }
        };
        // Blanks in place of the dash: every line and column stays where it is.
        let first = format!("{}{}", " ".repeat(column), &lines[from][column..]);
        Item {
            line: from as u64 + 1,
            text: first + &lines[from + 1..to].concat(),
        }
    };
    Some(begins.iter().enumerate().map(cut).collect())
}

/// Does a line belong to an item whose dash is indented so far?
fn within(line: &str, indent: usize) -> bool {
    let content = line.trim_start_matches(' ');
    content.trim().is_empty() || content.starts_with('#') || line.len() - content.len() > indent
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(text: &str) -> Vec<(u64, String)> {
        let items = items(text).unwrap_or_default().into_iter();
        items.map(|item| (item.line, item.text)).collect()
    }

    #[test]
    fn both_forms_that_kubectl_prints_are_cut() {
        let block =
            "apiVersion: v1\nitems:\n- kind: A\n  spec:\n  - 1\n- {kind: B}\n\nkind: List\n";
        assert_eq!(
            cut(block),
            [
                (3, "  kind: A\n  spec:\n  - 1\n".to_owned()),
                (6, "  {kind: B}\n\n".to_owned())
            ]
        );
        let indented = "items:\n  - a: 1\n    b: 2\n  -   a: 3\n# end\nkind: List\n";
        assert_eq!(
            cut(indented),
            [
                (2, "    a: 1\n    b: 2\n".to_owned()),
                (4, "      a: 3\n# end\n".to_owned())
            ]
        );
        assert_eq!(
            cut("{\"items\":\n[{\"a\":1},\n {\"a\":[2]}]}"),
            [(2, "{\"a\":1}".to_owned()), (3, "{\"a\":[2]}".to_owned())]
        );
        assert_eq!(cut("items: [{a: 1}, {a: 2}]\n"), []);
        assert_eq!(cut("items: 5\n"), []);
    }
}
