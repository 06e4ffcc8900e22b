//! The YAML that kubectl prints, rewritten as JSON.
//!
//! Reading YAML costs a fifth of a millisecond for each pod of a cluster, many times as much as all
//! other work of a plan with it. Output of kubectl is a small part of YAML: maps and lists in
//! lines, and scalars that end with their line. That part is rewritten here. Anything else is left
//! to a parser that knows all of YAML. Nothing is guessed: the rewritten text means the same as
//! that parser reads, or the text is not rewritten (tests compare them).

use std::fmt::Write as _;

/// The same document in JSON; `None` if there is anything unusual in it.
pub(super) fn json_of(text: &str) -> Option<String> {
    let mut lines = Vec::new();
    for line in text.lines() {
        let content = line.trim_start_matches(' ');
        if content.starts_with(['\t', '\u{feff}']) || content.starts_with("...") {
            return None;
        }
        let full = content;
        let content = full.trim_end_matches([' ', '\r']);
        lines.push(Line {
            indent: line.len() - full.len(),
            content,
            trails: content.len() < full.len(),
        });
    }
    let mut block = Block {
        lines,
        at: 0,
        json: String::with_capacity(text.len() + text.len() / 4),
    };
    block.skip_blank();
    let indent = block.line()?.indent;
    block.node(indent)?;
    block.skip_blank();
    (block.at == block.lines.len()).then_some(block.json)
}

/// A line; the beginning of its content is cut off as it is read.
#[derive(Debug, Clone, Copy)]
struct Line<'t> {
    indent: usize,
    content: &'t str,
    /// Are there blanks at its end?
    trails: bool,
}

struct Block<'t> {
    lines: Vec<Line<'t>>,
    at: usize,
    json: String,
}

impl<'t> Block<'t> {
    fn line(&self) -> Option<Line<'t>> {
        self.lines.get(self.at).copied()
    }

    fn skip_blank(&mut self) {
        let blank = |line: Line<'_>| line.content.is_empty() || line.content.starts_with('#');
        while self.line().is_some_and(blank) {
            self.at += 1;
        }
    }

    /// The next line that says something, if it is indented at least so far.
    fn next_within(&mut self, indent: usize) -> Option<Line<'t>> {
        self.skip_blank();
        self.line().filter(|line| line.indent >= indent)
    }

    /// Rewrites the value that begins here. All lines of it are indented so far.
    fn node(&mut self, indent: usize) -> Option<()> {
        let line = self.line()?;
        if is_item(line.content) {
            self.list(indent)
        } else if key_of(line.content).is_some() {
            self.map(indent)
        } else {
            // A scalar by itself belongs to an item; its line is the dash's.
            self.at += 1;
            self.scalar(line.content, indent.saturating_sub(1))
        }
    }

    fn list(&mut self, indent: usize) -> Option<()> {
        self.json.push('[');
        let mut first = true;
        while let Some(line) = self.next_within(indent) {
            if line.indent != indent || !is_item(line.content) {
                break;
            }
            self.comma(&mut first);
            let rest = line.content[1..].trim_start_matches(' ');
            if rest.is_empty() {
                self.at += 1;
                self.value_below(indent + 1)?;
            } else if is_item(rest) || key_of(rest).is_some() {
                // The rest of the line is the first line of what the item is.
                let within = indent + line.content.len() - rest.len();
                self.lines[self.at] = Line {
                    indent: within,
                    content: rest,
                    ..line
                };
                self.node(within)?;
            } else {
                self.at += 1;
                self.scalar(rest, indent)?;
            }
        }
        self.end(indent)?;
        self.json.push(']');
        Some(())
    }

    fn map(&mut self, indent: usize) -> Option<()> {
        self.json.push('{');
        let mut keys: Vec<&str> = Vec::new();
        let mut first = true;
        while let Some(line) = self.next_within(indent) {
            if line.indent != indent {
                break;
            }
            let Some((key, rest)) = key_of(line.content) else {
                break;
            };
            // The same key twice is an error, which the full parser reports.
            if keys.contains(&key) {
                return None;
            }
            keys.push(key);
            self.comma(&mut first);
            self.text(key);
            self.json.push(':');
            self.at += 1;
            if rest.is_empty() {
                // A list may stand at its key's own indentation.
                let below = self.next_within(indent);
                let list = below.is_some_and(|l| l.indent == indent && is_item(l.content));
                self.value_below(if list { indent } else { indent + 1 })?;
            } else {
                self.scalar(rest, indent)?;
            }
        }
        self.end(indent)?;
        self.json.push('}');
        Some(())
    }

    /// Nothing may be indented further after a list or map: it would be part of something else.
    fn end(&mut self, indent: usize) -> Option<()> {
        self.next_within(indent + 1).is_none().then_some(())
    }

    /// Rewrites the value below a key or a dash; null if there is none.
    fn value_below(&mut self, indent: usize) -> Option<()> {
        match self.next_within(indent) {
            Some(line) => self.node(line.indent),
            None => {
                self.json.push_str("null");
                Some(())
            }
        }
    }

    fn comma(&mut self, first: &mut bool) {
        if !std::mem::take(first) {
            self.json.push(',');
        }
    }

    /// A scalar that begins in a line of that indentation, and ends with it.
    fn scalar(&mut self, text: &str, indent: usize) -> Option<()> {
        let begin = text.chars().next()?;
        match begin {
            '|' => return self.literal(text, indent),
            '"' => {
                // JSON's escapes mean the same in YAML.
                let read: String = serde_json::from_str(text).ok()?;
                self.text(&read);
            }
            '\'' => {
                let inner = text.strip_prefix('\'')?.strip_suffix('\'')?;
                let read = inner.replace("''", "\u{0}");
                if read.contains('\'') || inner.contains('\u{0}') {
                    return None;
                }
                self.text(&read.replace('\u{0}', "'"));
            }
            _ if text == "{}" || text == "[]" => self.json.push_str(text),
            _ => self.plain(text)?,
        }
        // It would go on below.
        let below = self
            .lines
            .get(self.at)
            .filter(|line| !line.content.is_empty());
        below.is_none_or(|line| line.indent <= indent).then_some(())
    }

    fn plain(&mut self, text: &str) -> Option<()> {
        let special = |c: char| "&*!%@`{}[],#>|?:\"'".contains(c);
        let odd = text.starts_with(special)
            || is_item(text)
            || text.contains(": ")
            || text.contains(" #")
            || text.ends_with(':')
            || text.contains('\t')
            || text.starts_with("---");
        if odd {
            return None;
        }
        match text {
            "null" | "true" | "false" => self.json.push_str(text),
            _ => match kind_of(text)? {
                Plain::Number => self.json.push_str(text),
                Plain::Text => self.text(text),
            },
        }
        Some(())
    }

    /// Lines as they are, indented further.
    fn literal(&mut self, head: &str, indent: usize) -> Option<()> {
        let mut text = String::new();
        let mut begins = None;
        while let Some(line) = self.line() {
            if line.content.is_empty() {
                text.push('\n');
                self.at += 1;
                // Blanks of a blank line may be content.
                if line.indent > indent {
                    return None;
                }
                continue;
            }
            if line.indent <= indent {
                break;
            }
            if line.trails {
                return None;
            }
            let from = *begins.get_or_insert(line.indent);
            text.extend(std::iter::repeat_n(' ', line.indent.checked_sub(from)?));
            text.push_str(line.content);
            text.push('\n');
            self.at += 1;
        }
        let kept = text.trim_end_matches('\n');
        match head {
            _ if kept.is_empty() => return None,
            "|" => text.truncate(kept.len() + 1),
            "|-" => text.truncate(kept.len()),
            "|+" => {}
            _ => return None,
        }
        self.text(&text);
        Some(())
    }

    /// A string, as JSON writes it.
    fn text(&mut self, text: &str) {
        self.json.push('"');
        for c in text.chars() {
            match c {
                '"' => self.json.push_str("\\\""),
                '\\' => self.json.push_str("\\\\"),
                '\u{0}'..='\u{1f}' => {
                    let _never_fails = write!(self.json, "\\u{:04x}", u32::from(c));
                }
                _ => self.json.push(c),
            }
        }
        self.json.push('"');
    }
}

/// Does a line begin an item of a list?
fn is_item(content: &str) -> bool {
    content == "-" || content.starts_with("- ")
}

/// A line's key and the text after it; `None` if there is no key, or an unusual one.
fn key_of(content: &str) -> Option<(&str, &str)> {
    let (key, rest) = match content.strip_prefix('"') {
        Some(quoted) => {
            let (key, rest) = quoted.split_once('"')?;
            (key, rest.strip_prefix(':')?)
        }
        None => {
            let usual = |c: char| c.is_ascii_alphanumeric() || "_./-".contains(c);
            let end = content.find(|c| !usual(c))?;
            (&content[..end], content[end..].strip_prefix(':')?)
        }
    };
    let fine = !key.is_empty() && !key.contains('\\') && !key.starts_with("---");
    let ends = rest.is_empty() || rest.starts_with(' ');
    (fine && ends).then_some((key, rest.trim_start_matches(' ')))
}

enum Plain {
    Number,
    Text,
}

/// Type of a plain scalar; `None` where readers of YAML differ.
fn kind_of(text: &str) -> Option<Plain> {
    let digits = text.strip_prefix('-').unwrap_or(text);
    if !digits.starts_with(|c: char| c.is_ascii_digit() || "+.~".contains(c)) {
        let word = text.to_ascii_lowercase();
        let doubtful = ["null", "true", "false", "yes", "no", "on", "off", "y", "n"];
        return (!doubtful.contains(&word.as_str())).then_some(Plain::Text);
    }
    if digits.bytes().all(|byte| byte.is_ascii_digit()) {
        let usual = digits.len() <= 18 && !digits.starts_with('0') || text == "0";
        return usual.then_some(Plain::Number);
    }
    // Amounts with a unit, addresses and identities are text to everybody. What could be a
    // fraction, a number of another base or a time is not decided here.
    let of = |set: &str| text.chars().all(|c| c.is_ascii_digit() || set.contains(c));
    let based = ["0x", "0X", "0o", "0O", "0b", "0B"];
    let number = of("._+-eE") || based.iter().any(|base| digits.starts_with(base));
    let named = text.contains(|c: char| c.is_ascii_alphabetic()) && !number;
    let dotted = text.matches('.').count() > 1 && of("./");
    let identity = text.len() == 36 && text.matches('-').count() == 4;
    let begins = digits.starts_with(|c: char| c.is_ascii_digit());
    (begins && (named || dotted || identity)).then_some(Plain::Text)
}

#[cfg(test)]
mod tests;
