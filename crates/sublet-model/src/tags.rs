//! Tags of a pod: which pods it wants beside it on a card, and which not.
//!
//! They are those of KubeShare's SharePods (Yeh, Chen, Chou: *KubeShare: A Framework to Manage
//! GPUs as First-Class and Shared Resources in Container Cloud*, HPDC 2020, section 4.3), and they
//! hold in the whole cluster, whatever the namespace. A card that nobody is on suits everybody.

use std::sync::Arc;

use crate::{Card, Claim};

/// Tags of a pod for each card that it gets.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct CardTags {
    /// It goes where a pod with the same affinity is, or else on a card that nobody is on.
    pub affinity: Option<Arc<str>>,
    /// It does not go where a pod with the same anti-affinity is.
    pub anti_affinity: Option<Arc<str>>,
    /// All pods on a card have the same exclusion, or none of them has any.
    pub exclusion: Option<Arc<str>>,
    /// A name that pods give their card, a *virtual GPU*. On a node one card has the name: the one
    /// where such a pod is, or else one that nobody is on.
    pub virtual_gpu: Option<Arc<str>>,
}

impl CardTags {
    /// A pod without tags. It stays away from pods with an exclusion all the same.
    pub const NONE: &CardTags = &CardTags {
        affinity: None,
        anti_affinity: None,
        exclusion: None,
        virtual_gpu: None,
    };

    /// Has the pod no tags?
    #[must_use]
    pub fn are_none(&self) -> bool {
        self == CardTags::NONE
    }

    /// Does it matter to the pod on which card others like it are?
    #[must_use]
    pub fn seek_friends(&self) -> bool {
        self.affinity.is_some() || self.virtual_gpu.is_some()
    }

    /// May the pod go on that card, its room aside? `there`: the tags of the pods that are or may
    /// be on it, those without tags left out.
    pub(crate) fn accept(&self, card: &Card, there: &[Neighbour]) -> bool {
        let may_be_empty = |of: fn(&CardTags) -> &Option<Arc<str>>| {
            there.iter().all(|one| of(&one.tags).is_none())
        };
        let same = |of: fn(&CardTags) -> &Option<Arc<str>>| {
            let mine = of(self);
            let like = there.iter().filter(move |one| of(&one.tags) == mine);
            like.filter(move |_| mine.is_some())
        };
        if card.tenants == 0 && card.unsure.is_zero() {
            return true;
        }
        let beside = self.affinity.is_none() || same(|tags| &tags.affinity).any(|one| one.certain);
        let so_called =
            self.virtual_gpu.is_none() || same(|tags| &tags.virtual_gpu).any(|one| one.certain);
        let apart = same(|tags| &tags.anti_affinity).next().is_none();
        let among_equals = match &self.exclusion {
            None => may_be_empty(|tags| &tags.exclusion),
            Some(_) => {
                let equals = same(|tags| &tags.exclusion).filter(|one| one.certain);
                card.unsure.is_zero() && equals.count() == card.tenants as usize
            }
        };
        beside && so_called && apart && among_equals
    }
}

impl Claim {
    /// Whom it wants beside it on a card, and whom not.
    #[must_use]
    pub fn tags(&self) -> &CardTags {
        self.wishes().map_or(CardTags::NONE, |wishes| &wishes.tags)
    }
}

/// The tags of a pod that is on a card.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Neighbour {
    pub(crate) tags: CardTags,
    /// False: the pod does not say which card it has, and may be on another.
    pub(crate) certain: bool,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{MiB, Part};

    /// `aff=x anti=y only=z as=v`, with `?` for a pod that may be on another card.
    fn neighbour(text: &str) -> Neighbour {
        let mut tags = CardTags::default();
        for word in text.split_whitespace().filter(|word| *word != "?") {
            let (kind, tag) = word.split_once('=').unwrap();
            let tag = Some(Arc::from(tag));
            match kind {
                "aff" => tags.affinity = tag,
                "anti" => tags.anti_affinity = tag,
                "as" => tags.virtual_gpu = tag,
                _ => tags.exclusion = tag,
            }
        }
        Neighbour {
            tags,
            certain: !text.contains('?'),
        }
    }

    #[test]
    fn a_card_suits_a_pod_by_the_tags_of_those_on_it() {
        // The pod; who is on the card, commas between them; is it accepted?
        for (pod, there, expected) in [
            ("aff=a", "", true),
            ("aff=a", "aff=a", true),
            ("aff=a", "aff=a,,aff=b", true),
            ("aff=a", "aff=b", false),
            ("aff=a", ",", false),
            ("aff=a", "? aff=a", false),
            ("anti=a", "anti=a", false),
            ("anti=a", "? anti=a", false),
            ("anti=a", "anti=b,,aff=a", true),
            ("only=a", "", true),
            ("only=a", "only=a,only=a", true),
            ("only=a", "only=a,", false),
            ("only=a", "only=b", false),
            ("only=a", "only=a,? only=a", false),
            ("", "only=a", false),
            ("", "? only=a", false),
            ("", "aff=a,anti=b,", true),
            ("as=a", "", true),
            ("as=a", "as=a,,", true),
            ("as=a", "as=b", false),
            ("as=a", ",", false),
            ("as=a", "? as=a", false),
            ("", "as=a", true),
            ("aff=a only=x", "aff=a", false),
            ("aff=a only=x", "aff=a only=x", true),
        ] {
            let there: Vec<Neighbour> = match there {
                "" => Vec::new(),
                there => there.split(',').map(neighbour).collect(),
            };
            let certain = there.iter().filter(|one| one.certain).count();
            let doubt = u32::from(certain < there.len());
            let card = Card {
                tenants: certain as u32,
                unsure: Part::of_memory(MiB::from(doubt)),
                ..Card::default()
            };
            let accepted = neighbour(pod).tags.accept(&card, &there);
            assert_eq!(accepted, expected, "{pod:?} beside {there:?}");
        }
    }
}
