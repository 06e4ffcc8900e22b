//! The kinds of device that there are, and which of them a node has: those of cards always, others
//! if the operator asks for them.

use std::fmt;
use std::sync::Arc;

use sublet_api::dialect::OfferedDevice;

use super::cards::{CardKind, Cards};
use super::{DeviceKind, files};

/// Every kind.
const KINDS: &[Kind] = &[
    Kind {
        name: "gpu-memory",
        open: Open::OfCards(|cards| CardKind::of(cards, OfferedDevice::Unit)),
    },
    Kind {
        name: "whole-gpu",
        open: Open::OfCards(|cards| CardKind::of(cards, OfferedDevice::Card)),
    },
    Kind {
        name: "files",
        open: Open::Asked(files::open),
    },
    #[cfg(test)]
    Kind {
        name: "toy",
        open: Open::Asked(super::toy::open),
    },
];

/// A kind, and how a node comes to have it.
struct Kind {
    /// In the flag, in logs and in reasons.
    name: &'static str,
    open: Open,
}

enum Open {
    /// Each node with GPUs has it.
    OfCards(fn(&Arc<Cards>) -> Arc<dyn DeviceKind>),
    /// A node has it if the operator says so, with a text that the kind understands; once for each
    /// time it is said. The error is for people.
    Asked(fn(&str) -> Result<Arc<dyn DeviceKind>, String>),
}

/// A kind that the operator asks for: `--device KIND:TEXT`.
#[derive(Clone)]
pub(crate) struct Asked {
    text: String,
    pub(super) kind: Arc<dyn DeviceKind>,
}

impl fmt::Debug for Asked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Reads the flag.
///
/// # Errors
/// No such kind, or one that does not understand the text.
pub(crate) fn asked(text: &str) -> Result<Asked, String> {
    let named = |kind: &&Kind| matches!(kind.open, Open::Asked(_));
    let names: Vec<&str> = KINDS.iter().filter(named).map(|kind| kind.name).collect();
    let (name, rest) = text.split_once(':').unwrap_or((text, ""));
    let found = KINDS.iter().find(|kind| kind.name == name);
    let Some(Kind {
        open: Open::Asked(open),
        ..
    }) = found
    else {
        let names = names.join(", ");
        return Err(format!(
            "there is no kind `{name}` to ask for; there is {names}"
        ));
    };
    Ok(Asked {
        kind: open(rest)?,
        text: text.to_owned(),
    })
}

/// All kinds of this node.
pub(crate) fn all(cards: &Arc<Cards>, asked: Vec<Asked>) -> Vec<Arc<dyn DeviceKind>> {
    let of_cards = KINDS.iter().filter_map(|kind| match kind.open {
        Open::OfCards(open) => Some(open(cards)),
        Open::Asked(_) => None,
    });
    of_cards
        .chain(asked.into_iter().map(|one| one.kind))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_is_asked_for_by_its_name() {
        let refused = |text: &str| asked(text).err().unwrap();
        assert_eq!(format!("{:?}", asked("toy:3").unwrap()), "toy:3");
        let unknown = refused("tape:/dev");
        let wanted = "there is no kind `tape` to ask for; there is files";
        assert!(unknown.starts_with(wanted), "{unknown}");
        // The node's cards are there without being asked for.
        assert!(refused("whole-gpu").contains("no kind `whole-gpu` to ask for"));
        assert_eq!(refused("toy:three"), "`three` is no number of toys");
    }
}
