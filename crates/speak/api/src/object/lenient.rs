//! Values that are read as leniently as Kubernetes reads them.

use serde::{Deserialize, Deserializer};

/// A value whose content does not matter.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Anything;

impl<'de> Deserialize<'de> for Anything {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Anything, D::Error> {
        serde::de::IgnoredAny::deserialize(deserializer).map(|_| Anything)
    }
}

/// Go writes an absent list or map as `null`, and people leave keys without a value.
pub(crate) fn or_default<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Default + Deserialize<'de>,
{
    Ok(Option::<T>::deserialize(deserializer)?.unwrap_or_default())
}
