//! Nodes and pods out of files, as `kubectl get -o yaml` or `-o json` prints them.
//!
//! Documents are cut apart first and read one by one, so that a bad one is reported with its
//! file, number, line and field while all others are still read. Kinds that a plan does not
//! need are passed over with a note. Nothing is decided here.

use std::fmt;

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use sublet_api::object::{Node, Pod};

use super::field::field_at;

/// Where in the input an object stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Origin {
    file: String,
    document: usize,
    item: Option<usize>,
    line: usize,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: document {}", self.file, self.document)?;
        match self.item {
            Some(item) => write!(f, ", item {item}"),
            None => write!(f, " (line {})", self.line),
        }
    }
}

/// An object and where it stands.
#[derive(Debug, Clone)]
pub struct Located<T> {
    /// Where.
    pub origin: Origin,
    /// What.
    pub object: T,
}

/// Everything that was read.
#[derive(Debug, Clone, Default)]
pub struct Input {
    /// Nodes, in the order of the files.
    pub nodes: Vec<Located<Node>>,
    /// Pods, in the order of the files.
    pub pods: Vec<Located<Pod>>,
    /// A line for each object that a plan has no use for.
    pub notes: Vec<String>,
    /// A line for each document or object that cannot be used.
    pub errors: Vec<String>,
}

impl Input {
    /// Reads one file's text; `file` is its name in messages.
    pub fn read(&mut self, file: &str, text: &str) {
        let mut n_documents = 0;
        for (line, document) in documents(text) {
            n_documents += 1;
            let origin = Origin {
                file: file.to_owned(),
                document: n_documents,
                item: None,
                line,
            };
            if let Err(error) = self.read_document(&origin, document) {
                self.errors.push(explained(&origin, document, &error));
            }
        }
        if n_documents == 0 {
            self.errors
                .push(format!("{file}: there is no Kubernetes object in it"));
        }
    }

    fn read_document(&mut self, origin: &Origin, text: &str) -> Result<(), serde_saphyr::Error> {
        let outline: Outline = serde_saphyr::from_str_with_options(text, parser_options())?;
        let name = outline.kind.as_deref().unwrap_or_default();
        let Some(items) = outline.items.filter(|_| name.ends_with("List")) else {
            match Kind::of(name) {
                Kind::Other if name.is_empty() => {
                    let error = format!("{origin}: field `kind` is missing");
                    self.errors.push(error);
                }
                kind => {
                    let object = parse(text, Single(kind))?;
                    self.add(origin.clone(), object, name);
                }
            }
            return Ok(());
        };
        // `kubectl get --raw` leaves the kind of a PodList's items out.
        let common = name.strip_suffix("List").unwrap_or_default();
        let names: Vec<String> = items
            .into_iter()
            .map(|item| item.kind.unwrap_or_else(|| common.to_owned()))
            .collect();
        let kinds: Vec<Kind> = names.iter().map(|name| Kind::of(name)).collect();
        let objects = parse(text, ListOf(&kinds))?;
        for (at, (object, name)) in objects.into_iter().zip(&names).enumerate() {
            let item = Some(at + 1);
            let origin = origin.clone();
            self.add(Origin { item, ..origin }, object, name);
        }
        Ok(())
    }

    fn add(&mut self, origin: Origin, object: Object, kind: &str) {
        match object {
            Object::Node(node) => {
                let object = *node;
                self.nodes.push(Located { origin, object });
            }
            Object::Pod(pod) => {
                let object = *pod;
                self.pods.push(Located { origin, object });
            }
            Object::Other => {
                let kind = if kind.is_empty() { "(none)" } else { kind };
                self.notes
                    .push(format!("note: {origin}: passed over, its kind is {kind}"));
            }
        }
    }
}

/// Limits against input that is made to grow without end, wide enough for the largest
/// cluster Kubernetes supports (150,000 pods) in one list.
pub(super) fn parser_options() -> serde_saphyr::Options {
    serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_events: 500_000_000,
            max_nodes: 250_000_000,
            max_total_scalar_bytes: 4 << 30,
        },
        with_snippet: false,
    }
}

fn parse<'de, S: DeserializeSeed<'de>>(
    text: &'de str,
    seed: S,
) -> Result<S::Value, serde_saphyr::Error> {
    serde_saphyr::with_deserializer_from_str_with_options(text, parser_options(), |de| {
        seed.deserialize(de)
    })
}

/// The documents of a YAML stream that hold anything, each from its first line that
/// says something, with that line's number.
/// A line that begins with `---` can be nothing but a separator (YAML 1.2, 9.1.2).
fn documents<'t>(text: &'t str) -> Vec<(usize, &'t str)> {
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

/// A parser's error with file, document, line and field.
fn explained(origin: &Origin, document: &str, error: &serde_saphyr::Error) -> String {
    let place = error.location();
    let field = place.and_then(|place| field_at(document, place));
    let mut text = format!("{}: document {}", origin.file, origin.document);
    if let Some(place) = place {
        let line = origin.line as u64 + place.line().saturating_sub(1);
        text.push_str(&format!(", line {line}"));
    }
    if let Some(field) = field {
        text.push_str(&format!(", field `{field}`"));
    }
    let words = error.render_with_formatter(&serde_saphyr::UserMessageFormatter);
    format!("{text}: {}", without_place(&words))
}

/// The parser counts lines from the document's start: that would contradict the file's.
fn without_place(words: &str) -> &str {
    let words = words.lines().next().unwrap_or_default();
    let Some((before, after)) = words.rsplit_once(" at line ") else {
        return words;
    };
    let is_place = after
        .chars()
        .all(|c| c.is_ascii_digit() || matches!(c, ' ' | ',') || "column".contains(c));
    if is_place { before } else { words }
}

/// Only what an object is.
#[derive(Deserialize)]
struct Outline {
    kind: Option<String>,
    items: Option<Vec<ItemOutline>>,
}

/// Only what an item is.
#[derive(Deserialize)]
struct ItemOutline {
    kind: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Node,
    Pod,
    Other,
}

impl Kind {
    fn of(name: &str) -> Kind {
        match name {
            "Node" => Kind::Node,
            "Pod" => Kind::Pod,
            _ => Kind::Other,
        }
    }
}

enum Object {
    Node(Box<Node>),
    Pod(Box<Pod>),
    Other,
}

/// Reads an object of a kind that is already known.
struct Single(Kind);

impl<'de> DeserializeSeed<'de> for Single {
    type Value = Object;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Object, D::Error> {
        match self.0 {
            Kind::Node => Box::<Node>::deserialize(deserializer).map(Object::Node),
            Kind::Pod => Box::<Pod>::deserialize(deserializer).map(Object::Pod),
            Kind::Other => IgnoredAny::deserialize(deserializer).map(|_| Object::Other),
        }
    }
}

/// Reads the `items` of a list whose items' kinds are already known.
struct ListOf<'a>(&'a [Kind]);

impl<'de> DeserializeSeed<'de> for ListOf<'_> {
    type Value = Vec<Object>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Vec<Object>, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for ListOf<'_> {
    type Value = Vec<Object>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of Kubernetes objects")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Vec<Object>, A::Error> {
        let mut objects = Vec::new();
        while let Some(key) = map.next_key::<String>()? {
            if key == "items" {
                objects = map.next_value_seed(Items(self.0))?;
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(objects)
    }
}

struct Items<'a>(&'a [Kind]);

impl<'de> DeserializeSeed<'de> for Items<'_> {
    type Value = Vec<Object>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Vec<Object>, D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for Items<'_> {
    type Value = Vec<Object>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Vec<Object>, A::Error> {
        let mut objects = Vec::with_capacity(self.0.len());
        for &kind in self.0 {
            objects.extend(list.next_element_seed(Single(kind))?);
        }
        Ok(objects)
    }
}
