//! Words and signs of a source file, as far as `circles` reads them: without comments, strings and
//! tests. This is no parser; it only has to be right for code that compiles.

use std::collections::BTreeSet;

/// Words that begin an item or a statement, in which a comma is no end.
const ITEMS: [&str; 12] = [
    "const", "enum", "fn", "if", "impl", "let", "mod", "static", "struct", "trait", "type", "use",
];

pub(super) fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Position after the first `end` from `from` on.
fn after(text: &[char], from: usize, end: &str) -> usize {
    let end: Vec<char> = end.chars().collect();
    let rest = text.get(from..).unwrap_or_default();
    let found = rest
        .windows(end.len())
        .position(|part| part == end.as_slice());
    found.map_or(text.len(), |at| from + at + end.len())
}

fn after_quotes(text: &[char], open: usize) -> usize {
    let mut at = open + 1;
    while at < text.len() && text[at] != '"' {
        at += if text[at] == '\\' { 2 } else { 1 };
    }
    at + 1
}

/// Position after a comment, string or character that begins here. Of a lifetime only the mark is
/// passed over.
fn after_no_code(text: &[char], at: usize) -> Option<usize> {
    let next = text.get(at + 1).copied();
    match (text[at], next) {
        ('/', Some('/')) => Some(after(text, at, "\n")),
        ('/', Some('*')) => Some(after(text, at + 2, "*/")),
        ('"', _) => Some(after_quotes(text, at)),
        ('\'', Some('\\')) => Some(after(text, at + 3, "'")),
        ('\'', Some(_)) if text.get(at + 2) == Some(&'\'') => Some(at + 3),
        ('\'', _) => Some(at + 1),
        _ => None,
    }
}

/// Position after a raw string, if `word` opens one that goes on here.
fn after_raw(text: &[char], at: usize, word: &str) -> Option<usize> {
    if !matches!(word, "r" | "br" | "cr") {
        return None;
    }
    let hashes = text[at..].iter().take_while(|c| **c == '#').count();
    let end = format!("\"{}", "#".repeat(hashes));
    let is_raw = text.get(at + hashes) == Some(&'"');
    is_raw.then(|| after(text, at + hashes + 1, &end))
}

/// Words and signs of a source, without comments and strings.
pub(super) fn tokens(source: &str) -> Vec<String> {
    let text: Vec<char> = source.chars().collect();
    let mut found = Vec::new();
    let mut at = 0;
    while at < text.len() {
        if let Some(end) = after_no_code(&text, at) {
            at = end;
        } else if is_word(text[at]) {
            let length = text[at..].iter().take_while(|c| is_word(**c)).count();
            let word: String = text[at..at + length].iter().collect();
            at += length;
            match after_raw(&text, at, &word) {
                Some(end) => at = end,
                None => found.push(word),
            }
        } else if text[at..].starts_with(&[':', ':']) {
            found.push("::".to_owned());
            at += 2;
        } else {
            if !text[at].is_whitespace() {
                found.push(text[at].to_string());
            }
            at += 1;
        }
    }
    found
}

pub(super) fn token(code: &[String], at: usize) -> &str {
    code.get(at).map_or("", String::as_str)
}

fn begins_with(code: &[String], at: usize, expected: &[&str]) -> bool {
    (at..)
        .zip(expected)
        .all(|(at, word)| token(code, at) == *word)
}

/// Position after the bracket that closes the one at `open`.
pub(super) fn after_bracket(code: &[String], open: usize) -> usize {
    let mut depth = 0_usize;
    for (at, token) in code.iter().enumerate().skip(open) {
        match token.as_str() {
            "(" | "[" | "{" => depth += 1,
            ")" | "]" | "}" => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth == 0 {
            return at + 1;
        }
    }
    code.len()
}

/// Position after an item, a statement, a field or an element.
fn after_item(code: &[String], start: usize) -> usize {
    let (mut is_item, mut is_use) = (false, false);
    let mut at = start;
    while at < code.len() {
        let word = token(code, at);
        is_item |= ITEMS.contains(&word);
        is_use |= word == "use";
        match word {
            ";" => return at + 1,
            "," if !is_item => return at + 1,
            ")" | "]" | "}" => return at,
            "{" if !is_use => return after_bracket(code, at),
            "(" | "[" | "{" => at = after_bracket(code, at),
            _ => at += 1,
        }
    }
    at
}

/// Code without what stands under `#[cfg(test)]`, and the modules that are declared there.
pub(super) fn without_tests(code: &[String]) -> (Vec<String>, BTreeSet<String>) {
    let mark = ["#", "[", "cfg", "(", "test", ")", "]"];
    let (mut kept, mut modules) = (Vec::new(), BTreeSet::new());
    let mut at = 0;
    while at < code.len() {
        if !begins_with(code, at, &mark) {
            kept.push(code[at].clone());
            at += 1;
            continue;
        }
        at += mark.len();
        while begins_with(code, at, &["#", "["]) {
            at = after_bracket(code, at + 1);
        }
        let end = after_item(code, at);
        for part in code[at..end].windows(3) {
            if part[0] == "mod" && part[2] == ";" {
                modules.insert(part[1].clone());
            }
        }
        at = end;
    }
    (kept, modules)
}
