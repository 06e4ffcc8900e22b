//! Names of things, each of its own type and shared cheaply.
//!
//! A name is checked when it is made: never empty, never longer than Kubernetes allows,
//! and without characters that would break a list of names on the wire.

use std::fmt;
use std::sync::Arc;

/// Reason why some text is not a name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// Nothing was given.
    #[error("a {what} must not be empty")]
    Empty {
        /// Kind of name that was wanted.
        what: &'static str,
    },
    /// Longer than Kubernetes or the device plugin protocol allows.
    #[error("a {what} of {length} characters is too long (at most {max})")]
    TooLong {
        /// Kind of name that was wanted.
        what: &'static str,
        /// Its length in bytes.
        length: usize,
        /// The most that is allowed.
        max: usize,
    },
    /// White space, a control character, or a separator used on the wire.
    #[error("a {what} must not contain {character:?}")]
    Character {
        /// Kind of name that was wanted.
        what: &'static str,
        /// The first offending character.
        character: char,
    },
}

fn check(what: &'static str, max: usize, text: &str) -> Result<Arc<str>, NameError> {
    if text.is_empty() {
        return Err(NameError::Empty { what });
    }
    if text.len() > max {
        return Err(NameError::TooLong {
            what,
            length: text.len(),
            max,
        });
    }
    let bad = |c: char| !c.is_ascii_graphic() || matches!(c, ',' | ';' | '/' | '"' | '\\');
    if let Some(character) = text.chars().find(|&c| bad(c)) {
        return Err(NameError::Character { what, character });
    }
    Ok(Arc::from(text))
}

macro_rules! name {
    ($(#[$doc:meta])* $name:ident, $what:literal, $max:literal) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(Arc<str>);

        impl $name {
            /// Checks and keeps `text`.
            ///
            /// # Errors
            /// Empty, too long, or with a character that a name cannot have.
            pub fn new(text: &str) -> Result<Self, NameError> {
                check($what, $max, text).map(Self)
            }

            /// The text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl std::borrow::Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }
    };
}

name!(
    /// A node's name (`metadata.name`; a DNS subdomain of at most 253 characters).
    NodeName, "node name", 253
);
name!(
    /// A pod's UID: what tells a pod from a later one of the same name. Kubernetes makes 36 characters;
    /// a place in a plan that no pod has yet has a longer one.
    PodUid, "pod UID", 512
);
name!(
    /// A container's name within its pod (a DNS label of at most 63 characters).
    ContainerName, "container name", 63
);
name!(
    /// A GPU's UUID as NVML prints it (`GPU-…`). At most 48 characters, because a device
    /// plugin's ID is `<uuid>-_-<number>` and kubelet allows 63.
    GpuUuid, "GPU UUID", 48
);

/// A pod's namespace and name, for people and for API paths.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PodKey {
    namespace: Arc<str>,
    name: Arc<str>,
}

impl PodKey {
    /// Checks and keeps both parts.
    ///
    /// # Errors
    /// As for the other names.
    pub fn new(namespace: &str, name: &str) -> Result<PodKey, NameError> {
        Ok(PodKey {
            namespace: check("namespace", 63, namespace)?,
            name: check("pod name", 253, name)?,
        })
    }

    /// The namespace.
    #[must_use]
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// The name within the namespace.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl fmt::Display for PodKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// A pod that is evicted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Victim {
    /// Its name.
    pub pod: PodKey,
    /// UID of the pod, among all pods that have had this name.
    pub uid: PodUid,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_refuse_what_would_break_a_list() {
        let check = |text: &str| GpuUuid::new(text).map_err(|e| e.to_string());
        assert_eq!(check("GPU-1").unwrap().as_str(), "GPU-1");
        assert_eq!(check("").unwrap_err(), "a GPU UUID must not be empty");
        assert_eq!(check("a,b").unwrap_err(), "a GPU UUID must not contain ','");
        assert_eq!(
            check(&"x".repeat(49)).unwrap_err(),
            "a GPU UUID of 49 characters is too long (at most 48)"
        );
        assert!(PodKey::new("default", "a b").is_err());
    }
}
