//! Reason why containers of a node are not held to their parts, from the agent's annotation.

use std::fmt;

use crate::keys;
use crate::object::Node;

/// The most that is kept of a reason, in bytes: it becomes the reason of a refusal, for each card.
const WHY_MAX: usize = 256;

/// Meaning of the annotation [`keys::NOT_ISOLATED`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NotIsolated {
    /// They are to be, and something is in the way. No part of a card is handed out meanwhile.
    Pending(String),
    /// The node cannot do it. Parts of cards are handed out, and nothing limits them.
    Unsupported(String),
}

impl NotIsolated {
    /// Reads the report of the node's agent; `None` if containers are held to their parts, or if
    /// the operator does not want them to be.
    #[must_use]
    pub fn of(node: &Node) -> Option<NotIsolated> {
        let text = node.metadata.annotations.get(keys::NOT_ISOLATED)?;
        Some(NotIsolated::from_text(text))
    }

    /// Reads the annotation. A text of another agent version counts as `Pending`, the safer of the
    /// two.
    #[must_use]
    pub fn from_text(text: &str) -> NotIsolated {
        let short = |why: &str| {
            let end = why.floor_char_boundary(WHY_MAX);
            why[..end].to_owned()
        };
        match text.split_once(": ") {
            Some((UNSUPPORTED, why)) => NotIsolated::Unsupported(short(why)),
            Some((PENDING, why)) => NotIsolated::Pending(short(why)),
            _ => NotIsolated::Pending(short(text)),
        }
    }
}

const PENDING: &str = "pending";
const UNSUPPORTED: &str = "unsupported";

/// The annotation's text.
impl fmt::Display for NotIsolated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (word, why) = match self {
            NotIsolated::Pending(why) => (PENDING, why),
            NotIsolated::Unsupported(why) => (UNSUPPORTED, why),
        };
        write!(f, "{word}: {}", &why[..why.floor_char_boundary(WHY_MAX)])
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_cannot_be_read_is_the_safer_of_the_two() {
        let read = NotIsolated::from_text;
        assert_eq!(
            read("unsupported: a: b"),
            NotIsolated::Unsupported("a: b".to_owned())
        );
        for other in ["", "broken: x", "unsupported", "UNSUPPORTED: x"] {
            assert_eq!(read(other), NotIsolated::Pending(other.to_owned()));
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_and_never_long(why in "\\PC{0,300}", unsupported: bool) {
            let said = match unsupported {
                true => NotIsolated::Unsupported(why.clone()),
                false => NotIsolated::Pending(why.clone()),
            };
            let text = said.to_string();
            prop_assert!(text.len() <= WHY_MAX + "unsupported: ".len());
            let read = NotIsolated::from_text(&text);
            prop_assert_eq!(read.to_string(), text);
            if why.len() <= WHY_MAX {
                prop_assert_eq!(read, said);
            }
        }
    }
}
