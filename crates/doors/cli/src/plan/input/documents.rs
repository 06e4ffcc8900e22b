//! Cuts a file into its YAML documents, without reading them.

/// The documents of a YAML stream that are not empty, each from its first line with content, with
/// that line's number. A line that begins with `---` can only be a separator (YAML 1.2, 9.1.2).
pub(super) fn documents<'t>(text: &'t str) -> Vec<(usize, &'t str)> {
    let mut found = Vec::new();
    let (mut from, mut from_line, mut at) = (0, 1, 0);
    for (number, line) in text.split_inclusive('\n').enumerate() {
        let rest = line.strip_prefix("---");
        if rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(char::is_whitespace)) {
            found.push((from_line, &text[from..at]));
            from = at + "---".len();
            from_line = number + 1;
        }
        at += line.len();
    }
    found.push((from_line, &text[from..]));
    let is_blank = |line: &str| {
        let line = line.trim_start_matches('\u{feff}').trim();
        line.is_empty() || line == "..." || line.starts_with(['#', '%'])
    };
    let begins_with_content = |(line, document): (usize, &'t str)| {
        let mut skipped = 0;
        for (n_lines, text) in document.split_inclusive('\n').enumerate() {
            if !is_blank(text) {
                return Some((line + n_lines, &document[skipped..]));
            }
            skipped += text.len();
        }
        None
    };
    found.into_iter().filter_map(begins_with_content).collect()
}
