//! Rows of JSON: an array of objects, or an object on each line.
//!
//! One object at a time is in memory. In an array, text that is not JSON ends the reading, for
//! nobody knows where the next object begins; a line that is not JSON is only a bad line.

use std::fmt;
use std::io::{BufRead, Read};

use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::bad::{At, Bad, TraceError};
use super::row::{Each, Layout, Row, shortened};

/// A value, as far as a list can have a use for it.
enum Value {
    Null,
    /// A string, or a number as it is written.
    Text(String),
    /// Any other value, by a word for its type.
    Word(&'static str),
    /// An object that is no field of another.
    Object(Vec<(String, Value)>),
}

impl Value {
    /// In a few characters.
    fn shown(&self) -> &str {
        match self {
            Value::Null => "null",
            Value::Text(text) => text,
            Value::Word(word) => word,
            Value::Object(_) => "{…}",
        }
    }
}

pub(super) fn read_array(
    text: impl Read,
    layout: &'static Layout,
    each: &mut Each<'_>,
) -> Result<(), TraceError> {
    let mut reader = serde_json::Deserializer::from_reader(text);
    let mut stopped = None;
    let items = Items {
        row: Row::new(layout),
        layout,
        each,
        stopped: &mut stopped,
    };
    let read = reader.deserialize_seq(items).and_then(|()| reader.end());
    match stopped {
        Some(problem) => Err(problem),
        None => Ok(read?),
    }
}

pub(super) fn read_lines(
    mut text: impl BufRead,
    layout: &'static Layout,
    each: &mut Each<'_>,
) -> Result<(), TraceError> {
    let mut row = Row::new(layout);
    let mut line = Vec::new();
    for number in 1.. {
        line.clear();
        if text.read_until(b'\n', &mut line)? == 0 {
            break;
        }
        let line = line.trim_ascii();
        if line.is_empty() {
            continue;
        }
        let at = At::Line(number);
        let mut reader = serde_json::Deserializer::from_slice(line);
        let seed = Seed { is_field: false };
        let read = seed.deserialize(&mut reader);
        match read.and_then(|value| reader.end().map(|()| value)) {
            Ok(value) => each(fill(&mut row, layout, at, &value).map(|()| &row))?,
            Err(error) => {
                let column = error.column().clamp(1, line.len());
                each(Err(Bad {
                    at,
                    column: Some(column),
                    name: String::new(),
                    value: shortened(&String::from_utf8_lossy(&line[column - 1..])),
                    expected: "what may stand there: one JSON object on each line",
                }))?;
            }
        }
    }
    Ok(())
}

/// Puts an object's fields into the row.
fn fill(row: &mut Row, layout: &Layout, at: At, value: &Value) -> Result<(), Bad> {
    row.begin(at);
    let bad = |name: &str, value: &str, expected| Bad {
        at,
        column: None,
        name: name.to_owned(),
        value: shortened(value),
        expected,
    };
    let Value::Object(fields) = value else {
        return Err(bad("", value.shown(), "an object"));
    };
    for (name, value) in fields {
        let Some(field) = layout.find(name) else {
            continue;
        };
        match value {
            Value::Null => {}
            Value::Text(text) if row.give(field, None, text) => {}
            Value::Text(text) => return Err(bad(name, text, "given once: it is there twice")),
            other => return Err(bad(name, other.shown(), "a number or a string")),
        }
    }
    match layout.missing(|field| row.is_given(field)) {
        Some(field) => Err(row.bad(field, "a value: no such list goes without it")),
        None => Ok(()),
    }
}

/// Reads an array item by item.
struct Items<'a, 'b> {
    row: Row,
    layout: &'static Layout,
    each: &'a mut Each<'b>,
    /// Reason why the reading ended, if not because of the JSON.
    stopped: &'a mut Option<TraceError>,
}

impl<'de> Visitor<'de> for Items<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an array of objects")
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut items: A) -> Result<(), A::Error> {
        for number in 1.. {
            let Some(value) = items.next_element_seed(Seed { is_field: false })? else {
                break;
            };
            let row = fill(&mut self.row, self.layout, At::Item(number), &value);
            if let Err(problem) = (self.each)(row.map(|()| &self.row)) {
                *self.stopped = Some(problem);
                return Err(A::Error::custom("stopped"));
            }
        }
        Ok(())
    }
}

/// Reads one value.
struct Seed {
    is_field: bool,
}

impl<'de> DeserializeSeed<'de> for Seed {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, reader: D) -> Result<Value, D::Error> {
        reader.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Seed {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E: Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Word(if value { "true" } else { "false" }))
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Value, E> {
        Ok(Value::Text(value.to_string()))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Value, E> {
        Ok(Value::Text(value.to_string()))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Value, E> {
        Ok(Value::Text(value.to_string()))
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Value, E> {
        Ok(Value::Text(value.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        while items.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Value::Word("[…]"))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        if self.is_field {
            while entries.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
            return Ok(Value::Word("{…}"));
        }
        let mut fields = Vec::new();
        while let Some(name) = entries.next_key::<String>()? {
            let value = entries.next_value_seed(Seed { is_field: true })?;
            fields.push((name, value));
        }
        Ok(Value::Object(fields))
    }
}
