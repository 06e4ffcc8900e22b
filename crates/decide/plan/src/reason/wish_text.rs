//! The texts of reasons that come from the pod's wishes: models, cards, and the pods on them.
//!
//! The short text states the pod's wishes, which are the same for all nodes. The full text adds
//! what the node has.

use std::fmt;

use sublet_model::{CardWishes, TagConflict};

use super::Reason;

/// Limit on the names in a text: people read it.
const NAMED: usize = 4;

impl Reason {
    /// Writes the pod's wishes.
    pub(super) fn wanted_text(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::Model { wanted, .. } => {
                let wanted = alternatives(wanted.iter());
                write!(f, "the pod accepts only GPUs of model {wanted}")
            }
            Reason::Unwanted { wishes, .. } => {
                write!(f, "the pod accepts only GPUs {}", accepted(wishes))
            }
            Reason::Tags { tag, .. } => write!(f, "no GPU with enough room {}", fits(tag)),
            _ => Ok(()),
        }
    }

    /// The same, with the node's own models and cards.
    pub(super) fn wish_text(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Reason::Tags { gpu, tag } = self {
            return write!(f, "GPU {gpu} has enough room, but {}", is_kept_from(tag));
        }
        self.wanted_text(f)?;
        match self {
            Reason::Model { node, .. } if node.is_empty() => {
                write!(f, "; the node does not say which model it has")
            }
            Reason::Model { node, .. } => write!(f, "; the node has `{node}`"),
            Reason::Unwanted {
                numa_unknown: true, ..
            } => write!(f, "; the node does not say of which NUMA node its GPUs are"),
            Reason::Unwanted { wishes, models, .. } => {
                let by_model = !(wishes.models.is_empty() && wishes.not_models.is_empty());
                let known: Vec<_> = models.iter().filter(|model| !model.is_empty()).collect();
                match &known[..] {
                    _ if !by_model => write!(f, "; the node has none of these"),
                    [] => write!(f, "; the node does not say which model its GPUs are"),
                    known => write!(f, "; the node has {}", listed(known.iter(), "and")),
                }
            }
            _ => Ok(()),
        }
    }
}

/// The cards that a pod accepts, as words after `GPUs`.
fn accepted(wishes: &CardWishes) -> String {
    let CardWishes {
        uuids,
        not_uuids,
        models,
        not_models,
        one_numa,
        tags: _,
    } = wishes;
    let parts = [
        ("of model ", alternatives(models.iter())),
        ("not of model ", alternatives(not_models.iter())),
        ("with UUID ", alternatives(uuids.iter())),
        ("without UUID ", alternatives(not_uuids.iter())),
    ];
    let parts = parts.into_iter().filter(|(_, names)| !names.is_empty());
    let parts = parts.map(|(words, names)| words.to_owned() + &names);
    let numa = one_numa.then(|| "of one NUMA node".to_owned());
    parts.chain(numa).collect::<Vec<String>>().join(", ")
}

fn alternatives<T: fmt::Display>(names: impl ExactSizeIterator<Item = T>) -> String {
    listed(names, "or")
}

/// The first few names, and how many there are beside them.
fn listed<T: fmt::Display>(names: impl ExactSizeIterator<Item = T>, last: &str) -> String {
    let more = names.len().saturating_sub(NAMED);
    let mut words: Vec<String> = names.take(NAMED).map(|name| format!("`{name}`")).collect();
    if more > 0 {
        words.push(format!("{more} more"));
    }
    match words.split_last() {
        Some((end, [])) => end.clone(),
        Some((end, rest)) => format!("{} {last} {end}", rest.join(", ")),
        None => String::new(),
    }
}

/// The property that a card would need, as words after `no GPU`.
fn fits(tag: &TagConflict) -> String {
    match tag {
        TagConflict::Affinity(tag) => format!("has a pod of the affinity `{tag}`"),
        TagConflict::VirtualGpu(name) => format!("is the virtual GPU `{name}`"),
        TagConflict::AntiAffinity(tag) => {
            format!("is without a pod of the same anti-affinity `{tag}`")
        }
        TagConflict::Exclusion(tag) => format!("has only pods of the exclusion `{tag}`"),
        TagConflict::Excluded(_) => "is without pods of an exclusion".to_owned(),
    }
}

/// The fault of a card, as words after `but`.
fn is_kept_from(tag: &TagConflict) -> String {
    match tag {
        TagConflict::Affinity(tag) => {
            format!("no pod on it has the affinity `{tag}` that the pod has")
        }
        TagConflict::VirtualGpu(name) => {
            format!("it is not the virtual GPU `{name}` that the pod wants")
        }
        TagConflict::AntiAffinity(tag) => {
            format!("a pod on it has the same anti-affinity `{tag}` as the pod")
        }
        TagConflict::Exclusion(tag) => {
            format!("a pod on it lacks the exclusion `{tag}` that the pod has")
        }
        TagConflict::Excluded(tag) => {
            format!("a pod on it has the exclusion `{tag}`, and the pod has none")
        }
    }
}
