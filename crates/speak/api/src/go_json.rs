//! JSON as Go reads it: the names of a struct's fields in any case.
//!
//! Older kube-schedulers and other callers of an extender write `nodenames` or `podUID`. Only the
//! message itself is read in this way. The objects in it are not: their keys may be any text.

use std::fmt;

use serde::de::value::StrDeserializer;
use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, forward_to_deserialize_any};

/// Reads a struct, with its own fields' names in any case of ASCII letters. A field that is given
/// twice is an error, because one of the two would be ignored.
///
/// # Errors
/// The parser's words and where.
pub fn from_str<'a, T: Deserialize<'a>>(text: &'a str) -> Result<T, serde_json::Error> {
    let mut json = serde_json::Deserializer::from_str(text);
    let value = T::deserialize(AnyCase(&mut json))?;
    json.end()?;
    Ok(value)
}

struct AnyCase<D>(D);

impl<'de, D: Deserializer<'de>> Deserializer<'de> for AnyCase<D> {
    type Error = D::Error;

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        self.0.deserialize_map(Fields { fields, visitor })
    }

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        self.0.deserialize_any(visitor)
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf
        option unit unit_struct newtype_struct seq tuple tuple_struct map enum identifier
        ignored_any
    }
}

/// A visitor, or the entries that it asks for, under the names that it knows.
struct Fields<T> {
    fields: &'static [&'static str],
    visitor: T,
}

impl<'de, V: Visitor<'de>> Visitor<'de> for Fields<V> {
    type Value = V::Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.visitor.expecting(f)
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<V::Value, A::Error> {
        self.visitor.visit_map(Fields {
            fields: self.fields,
            visitor: map,
        })
    }
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for Fields<A> {
    type Error = A::Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, A::Error> {
        while let Some(field) = self.visitor.next_key_seed(Name(self.fields))? {
            let Some(field) = field else {
                let _of_nobody: IgnoredAny = self.visitor.next_value()?;
                continue;
            };
            return seed
                .deserialize(StrDeserializer::<A::Error>::new(field))
                .map(Some);
        }
        Ok(None)
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, A::Error> {
        self.visitor.next_value_seed(seed)
    }
}

/// Finds the field that a key means among these names.
struct Name(&'static [&'static str]);

impl<'de> DeserializeSeed<'de> for Name {
    type Value = Option<&'static str>;

    fn deserialize<D: Deserializer<'de>>(self, key: D) -> Result<Self::Value, D::Error> {
        key.deserialize_str(self)
    }
}

impl Visitor<'_> for Name {
    type Value = Option<&'static str>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the name of a field")
    }

    fn visit_str<E: Error>(self, key: &str) -> Result<Self::Value, E> {
        let mut fields = self.0.iter();
        Ok(fields
            .find(|field| field.eq_ignore_ascii_case(key))
            .copied())
    }
}
