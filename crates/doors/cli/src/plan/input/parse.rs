//! One document into objects.
//!
//! JSON, and YAML as kubectl prints it, takes the quick way (`block`). Anything else, and anything
//! with an error, is read by a parser that knows all of YAML and reports places: first the kinds
//! of the objects, then the objects. If that fails in a list, its items are read one by one, so
//! that a bad item costs only itself.

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::Value;
use serde_json::value::RawValue;
use serde_saphyr::{Location, UserMessageFormatter};
use sublet_api::group::JOB_KINDS;
use sublet_api::object::{Node, Pod};
use sublet_api::{ElasticQuota, ResourceQuota, is_workload};

use super::block::json_of;
use super::field::field_at;
use super::items::{Item, items};
use super::limits::parser_options;

/// Kind and content of a document or of one of its items.
pub(super) enum Object {
    Node(Box<Node>),
    Pod(Box<Pod>),
    Quota(Box<ElasticQuota>),
    Limits(Box<ResourceQuota>),
    /// Makes pods, and is no job.
    Workload(Box<Value>),
    /// An object of a kind that only the queue reads.
    Queued(Box<Value>),
    /// An object of no use for any command.
    Other,
}

/// Fault in a document or in one of its items.
#[derive(Debug)]
pub(super) struct Wrong {
    /// The line, from the document's first, counted from 1.
    pub(super) line: Option<u64>,
    pub(super) field: Option<String>,
    pub(super) problem: String,
}

/// An object's kind, and the object.
pub(super) type Read = (String, Result<Object, Wrong>);

/// Content of a document: one object, or the objects of a list.
pub(super) enum Document {
    Single(Read),
    List(Vec<Read>),
}

impl Document {
    /// Reads a document.
    ///
    /// # Errors
    /// It is no YAML, or does not name its kind.
    pub(super) fn read(text: &str) -> Result<Document, Wrong> {
        if let Some(document) = quick(text) {
            return Ok(document);
        }
        let outline: Result<Outline, _> =
            serde_saphyr::from_str_with_options(text, parser_options());
        let outline = match outline {
            Ok(outline) => outline,
            Err(error) => {
                // The kind of one item may be all that is wrong.
                let list: Result<ItemOutline, _> =
                    serde_saphyr::from_str_with_options(text, parser_options());
                let kind = list.ok().and_then(|list| list.kind).unwrap_or_default();
                let common = kind.strip_suffix("List").unwrap_or_default();
                return one_by_one(text, common).ok_or_else(|| explained(text, &error));
            }
        };
        let name = outline.kind.unwrap_or_default();
        let Some(items) = outline.items.filter(|_| name.ends_with("List")) else {
            return single(text, name).map(Document::Single);
        };
        // `kubectl get --raw` leaves the kind of a PodList's items out.
        let common = name.strip_suffix("List").unwrap_or_default();
        let names = items.into_iter();
        let names: Vec<String> = names
            .map(|item| item.kind.unwrap_or_else(|| common.to_owned()))
            .collect();
        let kinds: Vec<Kind> = names.iter().map(|name| Kind::of(name)).collect();
        match parse(text, ListOf(&kinds)) {
            Ok(objects) => {
                let read = names.into_iter().zip(objects.into_iter().map(Ok));
                Ok(Document::List(read.collect()))
            }
            Err(error) => one_by_one(text, common).ok_or_else(|| explained(text, &error)),
        }
    }
}

/// The quick way; `None` if it cannot read all of the document.
fn quick(text: &str) -> Option<Document> {
    #[derive(Deserialize)]
    struct Outline<'t> {
        kind: Option<String>,
        #[serde(borrow)]
        items: Option<Vec<&'t RawValue>>,
    }
    let object = |kind: String, text: &str| {
        let object = match Kind::of(&kind) {
            _ if kind.is_empty() => return None,
            Kind::Node => Object::Node(serde_json::from_str(text).ok()?),
            Kind::Pod => Object::Pod(serde_json::from_str(text).ok()?),
            Kind::Quota => Object::Quota(serde_json::from_str(text).ok()?),
            Kind::Limits => Object::Limits(serde_json::from_str(text).ok()?),
            Kind::Workload => Object::Workload(serde_json::from_str(text).ok()?),
            Kind::Queued => Object::Queued(serde_json::from_str(text).ok()?),
            Kind::Other => Object::Other,
        };
        Some((kind, Ok(object)))
    };
    let json = match text.starts_with('{') {
        true => Cow::Borrowed(text),
        false => Cow::Owned(json_of(text)?),
    };
    let Outline { kind, items } = serde_json::from_str(&json).ok()?;
    let kind = kind.unwrap_or_default();
    let Some(items) = items.filter(|_| kind.ends_with("List")) else {
        return object(kind, &json).map(Document::Single);
    };
    let common = kind.strip_suffix("List").unwrap_or_default();
    let read = |item: &RawValue| {
        let ItemOutline { kind } = serde_json::from_str(item.get()).ok()?;
        object(kind.unwrap_or_else(|| common.to_owned()), item.get())
    };
    let all: Option<Vec<Read>> = items.into_iter().map(read).collect();
    all.map(Document::List)
}

/// One object of that kind.
fn single(text: &str, kind: String) -> Result<Read, Wrong> {
    if kind.is_empty() {
        return Err(Wrong {
            line: None,
            field: Some("kind".to_owned()),
            problem: "it is missing".to_owned(),
        });
    }
    let object = parse(text, Single(Kind::of(&kind)));
    let object = object.map_err(|error| explained(text, &error));
    Ok((kind, object))
}

/// The items of a list with a fault; `None` if they cannot be told apart. `common`: the kind of
/// items that do not name theirs.
fn one_by_one(text: &str, common: &str) -> Option<Document> {
    let read = |(at, item): (usize, Item)| {
        let kind: Result<ItemOutline, _> =
            serde_saphyr::from_str_with_options(&item.text, parser_options());
        let read = kind
            .map_err(|error| explained(&item.text, &error))
            .and_then(|outline| {
                single(
                    &item.text,
                    outline.kind.unwrap_or_else(|| common.to_owned()),
                )
            });
        let (kind, object) = match read {
            Ok((kind, object)) => (kind, object),
            Err(wrong) => (String::new(), Err(wrong)),
        };
        let object = object.map_err(|wrong| {
            let within = wrong.field.unwrap_or_default();
            let dot = if within.is_empty() { "" } else { "." };
            Wrong {
                line: Some(item.line + wrong.line.map_or(0, |line| line.saturating_sub(1))),
                field: Some(format!("items[{at}]{dot}{within}")),
                problem: wrong.problem,
            }
        });
        (kind, object)
    };
    let items = items(text)?;
    Some(Document::List(
        items.into_iter().enumerate().map(read).collect(),
    ))
}

fn parse<'de, S: DeserializeSeed<'de>>(
    text: &'de str,
    seed: S,
) -> Result<S::Value, serde_saphyr::Error> {
    serde_saphyr::with_deserializer_from_str_with_options(text, parser_options(), |de| {
        seed.deserialize(de)
    })
}

/// A parser's error with line and field.
fn explained(text: &str, error: &serde_saphyr::Error) -> Wrong {
    let place: Option<Location> = error.location();
    let words = error.render_with_formatter(&UserMessageFormatter);
    Wrong {
        line: place.map(|place| place.line()),
        field: place.and_then(|place| field_at(text, place)),
        problem: without_place(&words).to_owned(),
    }
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

/// Only the kind of an object.
#[derive(Deserialize)]
struct Outline {
    kind: Option<String>,
    items: Option<Vec<ItemOutline>>,
}

/// Only the kind of an item.
#[derive(Deserialize)]
struct ItemOutline {
    kind: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Node,
    Pod,
    Quota,
    Limits,
    Workload,
    Queued,
    Other,
}

impl Kind {
    fn of(name: &str) -> Kind {
        match name {
            "Node" => Kind::Node,
            "Pod" => Kind::Pod,
            "ElasticQuota" => Kind::Quota,
            "ResourceQuota" => Kind::Limits,
            name if is_workload(name) => Kind::Workload,
            "PodGroup" | "GangPlan" | "PriorityClass" | "Namespace" | "PodDisruptionBudget" => {
                Kind::Queued
            }
            name if is_job(name) => Kind::Queued,
            _ => Kind::Other,
        }
    }
}

fn is_job(kind: &str) -> bool {
    JOB_KINDS.iter().any(|one| one.api().kind == kind)
}

/// Is an object of that kind a pod, or does it make some?
pub(super) fn makes_pods(kind: &str) -> bool {
    kind == "Pod" || is_workload(kind) || is_job(kind)
}

/// Reads an object of a kind that is already known.
struct Single(Kind);

impl<'de> DeserializeSeed<'de> for Single {
    type Value = Object;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Object, D::Error> {
        match self.0 {
            Kind::Node => Box::<Node>::deserialize(deserializer).map(Object::Node),
            Kind::Pod => Box::<Pod>::deserialize(deserializer).map(Object::Pod),
            Kind::Quota => Box::<ElasticQuota>::deserialize(deserializer).map(Object::Quota),
            Kind::Limits => Box::<ResourceQuota>::deserialize(deserializer).map(Object::Limits),
            Kind::Workload => Box::<Value>::deserialize(deserializer).map(Object::Workload),
            Kind::Queued => Box::<Value>::deserialize(deserializer).map(Object::Queued),
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
                objects = map.next_value_seed(Each(self.0))?;
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(objects)
    }
}

struct Each<'a>(&'a [Kind]);

impl<'de> DeserializeSeed<'de> for Each<'_> {
    type Value = Vec<Object>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Vec<Object>, D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for Each<'_> {
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
