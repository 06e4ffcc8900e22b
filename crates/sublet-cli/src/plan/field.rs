//! The field at a place in a YAML document, such as `spec.containers[0].resources`.
//!
//! A parser's error names line and column; people look for a field. Only called after a
//! parse has failed, so that good input never pays for it. Never fails: without a field the
//! line still stands in the message.

use std::fmt;

use serde::de::{self, Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_saphyr::{Location, Spanned};

/// A document as keys and places, without values.
enum Tree {
    Map(Vec<(Spanned<String>, Spanned<Tree>)>),
    List(Vec<Spanned<Tree>>),
    Leaf,
}

/// The innermost field that begins at or before that line and column of the document.
pub(super) fn field_at(text: &str, place: Location) -> Option<String> {
    let tree: Spanned<Tree> =
        serde_saphyr::from_str_with_options(text, super::input::parser_options()).ok()?;
    let mut path = Path {
        wanted: (place.line(), place.column()),
        words: Vec::new(),
        best: None,
    };
    path.visit(&tree.value);
    path.best.filter(|best| !best.is_empty())
}

struct Path {
    wanted: (u64, u64),
    words: Vec<String>,
    best: Option<String>,
}

impl Path {
    fn visit(&mut self, tree: &Tree) {
        match tree {
            Tree::Leaf => {}
            Tree::Map(fields) => {
                for (key, value) in fields {
                    let dot = if self.words.is_empty() { "" } else { "." };
                    // A field begins with its key: some errors stand there.
                    self.step(format!("{dot}{}", key.value), key.referenced, value);
                }
            }
            Tree::List(items) => {
                for (at, item) in items.iter().enumerate() {
                    self.step(format!("[{at}]"), item.referenced, item);
                }
            }
        }
    }

    fn step(&mut self, word: String, begins: Location, node: &Spanned<Tree>) {
        self.words.push(word);
        if (begins.line(), begins.column()) <= self.wanted {
            self.best = Some(self.words.concat());
        }
        self.visit(&node.value);
        self.words.pop();
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
