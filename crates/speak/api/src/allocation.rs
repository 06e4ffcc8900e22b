//! `sublet.dev/allocation`: the cards of each container, as JSON on the pod.
//!
//! `[{"container":"main","index":0,"uuid":"GPU-…","memoryMiB":8138}]`, in the order in which
//! the containers start. The UUID is absent where no agent reports the node.

use serde::{Deserialize, Serialize};
use sublet_model::{Allocation, CardRef, ContainerName, GpuIndex, GpuUuid, Grant, MiB, NameError};

/// Reason why an annotation does not give a pod's allocation.
#[derive(Debug, thiserror::Error)]
pub enum AllocationError {
    /// Not the JSON that was expected.
    #[error("annotation `{key}` cannot be read")]
    Json {
        /// The annotation.
        key: &'static str,
        /// The parser's words.
        #[source]
        cause: serde_json::Error,
    },
    /// A wrong name in it.
    #[error("annotation `{key}` has a wrong name")]
    Name {
        /// The annotation.
        key: &'static str,
        /// The fault.
        #[source]
        cause: NameError,
    },
    /// A number that cannot be a card's index or an amount of memory.
    #[error("annotation `{key}` has `{value}`, which is not {wanted}")]
    Number {
        /// The annotation.
        key: &'static str,
        /// The number as written.
        value: String,
        /// The expected value.
        wanted: &'static str,
    },
    /// Readable, but it does not match the pod's request.
    #[error("annotation `{key}` does not answer what the pod's containers ask")]
    Mismatch {
        /// The annotation.
        key: &'static str,
    },
}

impl AllocationError {
    /// The annotation.
    #[must_use]
    pub fn key(&self) -> &'static str {
        match self {
            AllocationError::Json { key, .. }
            | AllocationError::Name { key, .. }
            | AllocationError::Number { key, .. }
            | AllocationError::Mismatch { key } => key,
        }
    }
}

/// One grant, as the annotation and a plan's slot have it.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct GrantJson {
    container: String,
    index: u16,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    uuid: Option<String>,
    #[serde(rename = "memoryMiB")]
    memory_mib: u64,
}

/// The annotation's text.
#[must_use]
pub fn allocation_to_json(allocation: &Allocation) -> String {
    serde_json::to_string(&grants_of(allocation)).expect("strings and numbers are always JSON")
}

/// The same as a list.
pub(crate) fn grants_of(allocation: &Allocation) -> Vec<GrantJson> {
    let grant = |grant: &Grant| GrantJson {
        container: grant.container.to_string(),
        index: grant.card.index.0,
        uuid: grant.card.uuid.as_ref().map(GpuUuid::to_string),
        memory_mib: grant.memory.get(),
    };
    allocation.grants.iter().map(grant).collect()
}

/// Reads the annotation's text.
///
/// # Errors
/// Not such JSON, a wrong name, too much memory.
pub fn allocation_from_json(text: &str) -> Result<Allocation, AllocationError> {
    let key = crate::keys::ALLOCATION;
    let grants =
        serde_json::from_str(text).map_err(|cause| AllocationError::Json { key, cause })?;
    allocation_of_grants(grants)
}

/// The same out of a list.
pub(crate) fn allocation_of_grants(grants: Vec<GrantJson>) -> Result<Allocation, AllocationError> {
    let key = crate::keys::ALLOCATION;
    let grant = |grant: GrantJson| {
        let name = |cause| AllocationError::Name { key, cause };
        Ok(Grant {
            container: ContainerName::new(&grant.container).map_err(name)?,
            card: CardRef {
                index: GpuIndex(grant.index),
                uuid: grant
                    .uuid
                    .as_deref()
                    .map(GpuUuid::new)
                    .transpose()
                    .map_err(name)?,
            },
            memory: MiB::new(grant.memory_mib).ok_or_else(|| AllocationError::Number {
                key,
                value: grant.memory_mib.to_string(),
                wanted: "an amount of memory in MiB",
            })?,
        })
    };
    Ok(Allocation {
        grants: grants.into_iter().map(grant).collect::<Result<_, _>>()?,
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_text_is_short_and_read_back() {
        let text = r#"[{"container":"main","index":3,"uuid":"GPU-1","memoryMiB":8138}]"#;
        let allocation = allocation_from_json(text).unwrap();
        assert_eq!(allocation.grants[0].memory, MiB::from(8138));
        assert_eq!(allocation_to_json(&allocation), text);
    }

    #[test]
    fn garbage_is_named() {
        let check = |text: &str| format!("{:#}", allocation_from_json(text).unwrap_err());
        assert_eq!(
            check("{"),
            "annotation `sublet.dev/allocation` cannot be read"
        );
        assert!(check(r#"[{"container":"","index":0,"memoryMiB":1}]"#).contains("wrong name"));
        assert!(
            check(&format!(
                r#"[{{"container":"a","index":0,"memoryMiB":{}}}]"#,
                u64::MAX
            ))
            .contains("not an amount of memory")
        );
    }

    proptest! {
        #[test]
        fn any_text_is_answered(text in r#"[\[\]{}":,a-zA-Z0-9 .-]{0,80}"#) {
            if let Ok(allocation) = allocation_from_json(&text) {
                prop_assert_eq!(
                    allocation_from_json(&allocation_to_json(&allocation)).unwrap(), allocation
                );
            }
        }
    }
}
