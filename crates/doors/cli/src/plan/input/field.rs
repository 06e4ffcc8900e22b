//! The field at a place in a YAML document, such as `spec.containers[0].resources`.
//!
//! A parser's error names line and column; people look for a field. Only called after a
//! parse has failed, so that good input never pays for it. Never fails: without a field the
//! line still stands in the message.

use std::fmt;

use serde::de::{self, Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_saphyr::{Location, Spanned};

use super::limits::parser_options;

/// A document as keys and places, without values.
enum Tree {
    Map(Vec<(Spanned<String>, Spanned<Tree>)>),
    List(Vec<Spanned<Tree>>),
    Leaf,
}

/// The innermost field that begins at or before that line and column of the document.
pub(super) fn field_at(text: &str, place: Location) -> Option<String> {
    let read = serde_saphyr::from_str_with_options(text, parser_options());
    let tree: Spanned<Tree> = read.ok()?;
    let wanted = (place.line(), place.column());
    let mut best = None;
    walk(&tree.value, "", &mut |path, begins| {
        if (begins.line(), begins.column()) <= wanted {
            best = Some(path.to_owned());
        }
    });
    best
}

/// Reports every field below `path`, and the place where it begins.
fn walk(tree: &Tree, path: &str, tell: &mut dyn FnMut(&str, Location)) {
    match tree {
        Tree::Leaf => {}
        Tree::Map(fields) => {
            let dot = if path.is_empty() { "" } else { "." };
            for (key, value) in fields {
                let path = format!("{path}{dot}{}", key.value);
                // A field begins with its key: some errors stand there.
                tell(&path, key.referenced);
                walk(&value.value, &path, tell);
            }
        }
        Tree::List(items) => {
            for (at, item) in items.iter().enumerate() {
                let path = format!("{path}[{at}]");
                tell(&path, item.referenced);
                walk(&item.value, &path, tell);
            }
        }
    }
}

impl<'de> Deserialize<'de> for Tree {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Tree, D::Error> {
        deserializer.deserialize_any(TreeVisitor)
    }
}

struct TreeVisitor;

impl<'de> Visitor<'de> for TreeVisitor {
    type Value = Tree;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("anything")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Tree, A::Error> {
        let mut fields = Vec::new();
        while let Some(field) = map.next_entry()? {
            fields.push(field);
        }
        Ok(Tree::Map(fields))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Tree, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = list.next_element()? {
            items.push(item);
        }
        Ok(Tree::List(items))
    }

    fn visit_bool<E: de::Error>(self, _value: bool) -> Result<Tree, E> {
        Ok(Tree::Leaf)
    }

    fn visit_i64<E: de::Error>(self, _value: i64) -> Result<Tree, E> {
        Ok(Tree::Leaf)
    }

    fn visit_i128<E: de::Error>(self, _value: i128) -> Result<Tree, E> {
        Ok(Tree::Leaf)
    }

    fn visit_u64<E: de::Error>(self, _value: u64) -> Result<Tree, E> {
        Ok(Tree::Leaf)
    }

    fn visit_u128<E: de::Error>(self, _value: u128) -> Result<Tree, E> {
        Ok(Tree::Leaf)
    }

    fn visit_f64<E: de::Error>(self, _value: f64) -> Result<Tree, E> {
        Ok(Tree::Leaf)
    }

    fn visit_str<E: de::Error>(self, _value: &str) -> Result<Tree, E> {
        Ok(Tree::Leaf)
    }

    fn visit_unit<E: de::Error>(self) -> Result<Tree, E> {
        Ok(Tree::Leaf)
    }

    fn visit_none<E: de::Error>(self) -> Result<Tree, E> {
        Ok(Tree::Leaf)
    }
}
