//! A field of an object of any kind, with its path, so that a message can name a faulty field.
//!
//! Objects of operators come as JSON that we do not own: no struct of ours lists all of their
//! fields. `null` and an absent field are the same, as Go writes them.

use serde::Deserialize;
use serde_json::Value;
use sublet_model::Time;

/// Something about a group that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("field `{field}`: {what}")]
pub struct GroupError {
    /// Path of the field.
    pub field: String,
    /// The fault, and the values that would be valid.
    pub what: String,
}

impl GroupError {
    /// The error for an annotation or a label. `list`: `annotations` or `labels`.
    pub(super) fn of_key(list: &str, key: &str, value: &str, wanted: &str) -> GroupError {
        GroupError {
            field: format!("metadata.{list}.{key}"),
            what: format!("it is `{value}`: write {wanted}"),
        }
    }
}

/// A place in an object.
#[derive(Debug, Clone)]
pub struct Field<'a> {
    value: Option<&'a Value>,
    path: String,
}

impl<'a> Field<'a> {
    /// All of an object.
    #[must_use]
    pub fn root(object: &'a Value) -> Field<'a> {
        Field {
            value: Some(object),
            path: String::new(),
        }
    }

    /// A field within this one; an absent one within an absent one.
    ///
    /// # Errors
    /// This one is there and no object.
    pub(crate) fn get(&self, key: &str) -> Result<Field<'a>, GroupError> {
        let dot = if self.path.is_empty() { "" } else { "." };
        let value = match self.value {
            None => None,
            Some(Value::Object(fields)) => fields.get(key).filter(|value| !value.is_null()),
            Some(_) => return Err(self.wrong("it is no object with fields")),
        };
        Ok(Field {
            value,
            path: format!("{}{dot}{key}", self.path),
        })
    }

    /// A field further in.
    ///
    /// # Errors
    /// One on the way is no object.
    pub(crate) fn at(&self, keys: &[&str]) -> Result<Field<'a>, GroupError> {
        let start = self.clone();
        keys.iter().try_fold(start, |field, key| field.get(key))
    }

    pub(crate) fn is_there(&self) -> bool {
        self.value.is_some()
    }

    /// A number of pods or seconds, as Kubernetes counts them: from 0 to 2³¹ - 1.
    ///
    /// # Errors
    /// Anything else.
    pub(crate) fn count(&self) -> Result<Option<u32>, GroupError> {
        let Some(value) = self.value else {
            return Ok(None);
        };
        let count = value.as_u64().filter(|&count| count <= i32::MAX as u64);
        let count = count.and_then(|count| u32::try_from(count).ok());
        match count {
            Some(count) => Ok(Some(count)),
            None => Err(self.wrong("it is no whole number from 0 to 2147483647")),
        }
    }

    /// A number that may be negative, of 32 bits.
    ///
    /// # Errors
    /// Anything else.
    pub(super) fn number(&self) -> Result<Option<i32>, GroupError> {
        let read = |value: &Value| value.as_i64().and_then(|number| i32::try_from(number).ok());
        self.read_as(read, "it is no whole number of 32 bits")
    }

    /// # Errors
    /// It is there, and neither `true` nor `false`.
    pub(super) fn flag(&self) -> Result<bool, GroupError> {
        let flag = self.read_as(Value::as_bool, "it is neither true nor false")?;
        Ok(flag.unwrap_or(false))
    }

    /// # Errors
    /// It is there and no text.
    pub(crate) fn text(&self) -> Result<Option<&'a str>, GroupError> {
        self.read_as(Value::as_str, "it is no text")
    }

    /// A moment in RFC 3339.
    ///
    /// # Errors
    /// It is there and no such text.
    pub(super) fn time(&self) -> Result<Option<Time>, GroupError> {
        let Some(text) = self.text()? else {
            return Ok(None);
        };
        let time = moment(text).ok_or_else(|| self.wrong("it is no time in RFC 3339"))?;
        Ok(Some(time))
    }

    /// The entries of a list; empty if it is absent.
    ///
    /// # Errors
    /// It is there and no list.
    pub(super) fn list(&self) -> Result<Vec<Field<'a>>, GroupError> {
        let list = self.read_as(Value::as_array, "it is no list")?;
        let list = list.into_iter().flatten().enumerate();
        let entry = |(at, value)| Field {
            value: Some(value),
            path: format!("{}[{at}]", self.path),
        };
        Ok(list.map(entry).collect())
    }

    /// The fields of a map, by key; empty if it is absent.
    ///
    /// # Errors
    /// It is there and no map.
    pub(super) fn map(&self) -> Result<Vec<(&'a str, Field<'a>)>, GroupError> {
        let map = self.read_as(Value::as_object, "it is no object with fields")?;
        let entry = |(key, value): (&'a String, &'a Value)| {
            let path = format!("{}.{key}", self.path);
            let value = Some(value).filter(|value| !value.is_null());
            (key.as_str(), Field { value, path })
        };
        Ok(map.into_iter().flatten().map(entry).collect())
    }

    /// The whole value as a type; the type's default if it is absent.
    ///
    /// # Errors
    /// A value that the type does not take.
    pub(crate) fn read<T: Default + Deserialize<'a>>(&self) -> Result<T, GroupError> {
        let Some(value) = self.value else {
            return Ok(T::default());
        };
        T::deserialize(value).map_err(|error| self.wrong(&error.to_string()))
    }

    /// Is a condition of that kind true, in a list of conditions?
    ///
    /// # Errors
    /// It is no list of conditions.
    pub(super) fn has_condition(&self, kinds: &[&str]) -> Result<bool, GroupError> {
        for condition in self.list()? {
            let is_it = |kind: &&str| kinds.contains(kind);
            let holds = condition.get("status")?.text()? == Some("True");
            if holds && condition.get("type")?.text()?.as_ref().is_some_and(is_it) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The error for this field.
    pub(crate) fn wrong(&self, what: &str) -> GroupError {
        GroupError {
            field: self.path.clone(),
            what: what.to_owned(),
        }
    }

    fn read_as<T>(
        &self,
        read: impl Fn(&'a Value) -> Option<T>,
        what: &str,
    ) -> Result<Option<T>, GroupError> {
        let Some(value) = self.value else {
            return Ok(None);
        };
        read(value).map(Some).ok_or_else(|| self.wrong(what))
    }
}

/// The moment that a text in RFC 3339 names; `None` for another text, or a moment before 1970.
#[must_use]
pub fn moment(text: &str) -> Option<Time> {
    let time: jiff::Timestamp = text.parse().ok()?;
    u64::try_from(time.as_millisecond()).ok().map(Time::from_ms)
}
