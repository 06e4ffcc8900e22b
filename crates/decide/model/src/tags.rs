//! Tags of a pod: the pods that it wants beside it on a card, and those that it does not want.
//!
//! They are those of KubeShare's SharePods (Yeh, Chen, Chou: *KubeShare: A Framework to Manage GPUs
//! as First-Class and Shared Resources in Container Cloud*, HPDC 2020, section 4.3), and they hold
//! in the whole cluster, across namespaces. A card without pods suits every pod.

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
        // Not by `==`, which compares texts: this is asked for each pod and node.
        matches!(
            self,
            CardTags {
                affinity: None,
                anti_affinity: None,
                exclusion: None,
                virtual_gpu: None,
            }
        )
    }

    /// Does it matter to the pod on which card others like it are?
    #[must_use]
    pub fn seek_friends(&self) -> bool {
        self.affinity.is_some() || self.virtual_gpu.is_some()
    }

    /// The tag that keeps the pod away from that card, its room aside; `None` where it may go there.
    /// `there`: the tags of the pods that are or may be on it, those without tags left out.
    pub(crate) fn conflict(&self, card: &Card, there: &[Neighbour]) -> Option<TagConflict> {
        let same = |of: TagOf, mine: &Arc<str>| {
            let like = there.iter();
            let like = like.filter(|one| of(&one.tags).as_ref() == Some(mine));
            let certain = like.clone().filter(|one| one.certain).count();
            (like.count(), certain)
        };
        if card.tenants == 0 && card.unsure.is_zero() {
            return None;
        }
        if let Some(mine) = &self.affinity
            && same(|tags| &tags.affinity, mine).1 == 0
        {
            return Some(TagConflict::Affinity(mine.clone()));
        }
        if let Some(mine) = &self.virtual_gpu
            && same(|tags| &tags.virtual_gpu, mine).1 == 0
        {
            return Some(TagConflict::VirtualGpu(mine.clone()));
        }
        if let Some(mine) = &self.anti_affinity
            && same(|tags| &tags.anti_affinity, mine).0 > 0
        {
            return Some(TagConflict::AntiAffinity(mine.clone()));
        }
        match &self.exclusion {
            None => {
                let other = there.iter().find_map(|one| one.tags.exclusion.clone());
                other.map(TagConflict::Excluded)
            }
            Some(mine) => {
                let (_, equals) = same(|tags| &tags.exclusion, mine);
                let alone = card.unsure.is_zero() && equals == card.tenants as usize;
                (!alone).then(|| TagConflict::Exclusion(mine.clone()))
            }
        }
    }
}

/// One of the tags.
type TagOf = fn(&CardTags) -> &Option<Arc<str>>;

/// The tag that keeps a pod away from a card that others are on.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TagConflict {
    /// The pod has this affinity, and nobody on the card has it.
    Affinity(Arc<str>),
    /// The pod is of this virtual GPU, and nobody on the card is, or another card has the name.
    VirtualGpu(Arc<str>),
    /// The pod has this anti-affinity, and so has somebody on the card.
    AntiAffinity(Arc<str>),
    /// The pod has this exclusion, and somebody on the card has not.
    Exclusion(Arc<str>),
    /// Somebody on the card has this exclusion, and the pod has none.
    Excluded(Arc<str>),
}

impl Claim {
    /// The pods that it wants beside it on a card, and those that it does not want.
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
            let conflict = neighbour(pod).tags.conflict(&card, &there);
            assert_eq!(conflict.is_none(), expected, "{pod:?} beside {there:?}");
        }
    }
}
