//! The functions that a preprocessed C header declares. A test needs just enough of each to write
//! C again: the name, the text before the name, and the parameters with their names.
//!
//! The result is compiled together with its header. So if a prototype was read wrongly, the C
//! compiler reports an error. A prototype that was overlooked is found by counting.

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};

/// `CUresult cuMemAlloc_v2(CUdeviceptr *dptr, size_t bytesize)`.
#[derive(Debug, PartialEq, Eq)]
pub struct Prototype {
    /// Type and attributes: `CUresult`.
    pub head: String,
    /// `cuMemAlloc_v2`.
    pub name: String,
    /// `CUdeviceptr *dptr`, `size_t bytesize`.
    pub params: Vec<String>,
}

impl Prototype {
    /// The parameters' names.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.params.iter().map(|param| last_word(param).1)
    }
}

/// All functions whose names are `prefix` plus a word with a capital letter, sorted by name.
///
/// # Errors
/// A declaration that looks like such a function cannot be parsed.
pub fn prototypes(text: &str, prefix: &str) -> Result<Vec<Prototype>> {
    let mut found = Vec::new();
    for statement in statements(text) {
        // The last parenthesis: an attribute may have others before it.
        let Some((head, list)) = statement.rsplit_once('(') else {
            continue;
        };
        let (head, name) = last_word(head);
        if is_ours(name, prefix) && !head.starts_with("typedef") {
            let params = params(list).with_context(|| format!("cannot read `{statement}`"))?;
            found.push(Prototype {
                head: head.to_owned(),
                name: name.to_owned(),
                params,
            });
        }
    }
    found.sort_by(|a, b| a.name.cmp(&b.name));
    found.dedup();
    let names: BTreeSet<&str> = found.iter().map(|one| one.name.as_str()).collect();
    ensure!(
        names.len() == found.len(),
        "a function is declared in two ways"
    );
    let overlooked: Vec<_> = called_names(text, prefix)
        .difference(&names)
        .copied()
        .collect();
    ensure!(overlooked.is_empty(), "overlooked: {overlooked:?}");
    Ok(found)
}

/// The statements that end in `;` outside of braces, with single spaces.
fn statements(text: &str) -> Vec<String> {
    let mut depth = 0;
    let mut found = Vec::new();
    let mut current = String::new();
    for letter in text.chars() {
        match letter {
            '{' => depth += 1,
            '}' => {
                depth -= 1;
                current.clear();
            }
            ';' if depth == 0 => {
                let words: Vec<&str> = current.split_whitespace().collect();
                found.push(words.join(" "));
                current.clear();
            }
            _ if depth == 0 => current.push(letter),
            _ => {}
        }
    }
    found
}

/// Splits off the last word, which is an identifier.
fn last_word(text: &str) -> (&str, &str) {
    let text = text.trim();
    let before = text.trim_end_matches(|c: char| c.is_ascii_alphanumeric() || c == '_');
    (before.trim(), &text[before.len()..])
}

fn is_ours(name: &str, prefix: &str) -> bool {
    let rest = name.strip_prefix(prefix);
    rest.is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_uppercase()))
}

/// The parameters before the closing parenthesis; `void` is none.
fn params(list: &str) -> Result<Vec<String>> {
    let list = list
        .trim()
        .strip_suffix(')')
        .context("it does not end with `)`")?;
    ensure!(!list.contains('['), "a parameter is an array");
    if matches!(list.trim(), "" | "void") {
        return Ok(Vec::new());
    }
    Ok(list.split(',').map(|one| one.trim().to_owned()).collect())
}

/// Every name with our prefix that stands before a parenthesis, anywhere in the text.
fn called_names<'a>(text: &'a str, prefix: &str) -> BTreeSet<&'a str> {
    text.split('(')
        .map(|before| last_word(before).1)
        .filter(|name| is_ours(name, prefix))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::{Prototype, prototypes};

    fn shown(found: &Prototype) -> String {
        let names: Vec<&str> = found.names().collect();
        format!("{}|{}|{}", found.head, found.name, names.join(" "))
    }

    #[test]
    fn prototypes_are_found_among_other_things() {
        let text = "typedef struct { int a; } CUs; typedef int (*CUf)(int);
            extern CUresult __attribute__((deprecated)) cuInit(unsigned int   Flags);
            const char* cuName(const void * const*p, size_t n,
                void **q);
            int atoi(const char *); int cuNothing(void);";
        let found = prototypes(text, "cu").unwrap();
        let shown: Vec<String> = found.iter().map(shown).collect();
        assert_eq!(
            shown,
            [
                "extern CUresult __attribute__((deprecated))|cuInit|Flags",
                "const char*|cuName|p n q",
                "int|cuNothing|",
            ]
        );
    }

    #[test]
    fn what_cannot_be_read_is_an_error() {
        for text in [
            "int cuF(int (*f)(int));",
            "int cuF(int a[3]);",
            "int cuF(int a); int cuF(long a);",
            "static int f(void) { return cuF(1); }",
        ] {
            assert!(prototypes(text, "cu").is_err(), "{text}");
        }
    }
}
