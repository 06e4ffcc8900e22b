//! The models of nodes and the cards that a pod accepts. Room does not count here.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::{CardTags, Gpu, GpuUuid};

/// The GPU models that a pod accepts; none named means any. They stay in the order given, so that
/// the same models in another order compare as different.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Models(Vec<Arc<str>>);

impl Models {
    /// These models; any, if there are none.
    #[must_use]
    pub fn new(models: impl IntoIterator<Item = Arc<str>>) -> Models {
        Models(models.into_iter().collect())
    }

    /// Does the pod name any model?
    #[must_use]
    pub fn is_any(&self) -> bool {
        self.0.is_empty()
    }

    /// May the pod go on that model?
    #[must_use]
    pub fn accept(&self, model: &str) -> bool {
        self.0.is_empty() || self.iter().any(|known| **known == *model)
    }

    /// The models by name.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &Arc<str>> {
        self.0.iter()
    }
}

/// The cards that a pod accepts. If none is wanted, any card is; if none is unwanted, all are
/// allowed.
///
/// The wishes are those of HAMi's annotations (`use-gputype`, `nouse-gpuuuid`, `numa-bind` and
/// the others): any of the wanted, none of the unwanted.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct CardWishes {
    /// It must be one of these cards.
    pub uuids: BTreeSet<GpuUuid>,
    /// It must be none of these.
    pub not_uuids: BTreeSet<GpuUuid>,
    /// Its product name must contain one of these texts, in lower case.
    pub models: BTreeSet<Arc<str>>,
    /// Its product name must contain none of these, in lower case.
    pub not_models: BTreeSet<Arc<str>>,
    /// All the pod's cards must be of one NUMA node. Each card's NUMA node must be known.
    pub one_numa: bool,
    /// Pods that it wants beside it, and pods that it does not want. They say nothing of the card
    /// itself.
    pub tags: CardTags,
}

impl CardWishes {
    /// Does the pod accept every card?
    #[must_use]
    pub fn are_none(&self) -> bool {
        *self == CardWishes::default()
    }

    /// Does it accept that card, all others aside?
    #[must_use]
    pub fn accept(&self, gpu: &Gpu) -> bool {
        let is_one_of = |uuids: &BTreeSet<GpuUuid>| {
            let uuid = gpu.uuid.as_ref();
            uuid.is_some_and(|uuid| uuids.contains(uuid))
        };
        let model = gpu.model.to_lowercase();
        // A label cannot hold blanks, so whoever makes one of a name writes `nvidia-a100`.
        let dashed = model.replace(' ', "-");
        let is_named = |part: &Arc<str>| model.contains(&**part) || dashed.contains(&**part);
        let has = |models: &BTreeSet<Arc<str>>| models.iter().any(is_named);
        (self.uuids.is_empty() || is_one_of(&self.uuids))
            && !is_one_of(&self.not_uuids)
            && (self.models.is_empty() || has(&self.models))
            && !has(&self.not_models)
            && (!self.one_numa || gpu.numa.is_some())
    }

    /// The cards among which the pod's may be chosen, as positions in `gpus`: one set, or with
    /// [`CardWishes::one_numa`] one for each NUMA node. No set is empty.
    #[must_use]
    pub fn groups(&self, gpus: &[Gpu]) -> Vec<Vec<usize>> {
        let accepted = (0..gpus.len()).filter(|&at| self.accept(&gpus[at]));
        let accepted: Vec<usize> = accepted.collect();
        let numas = accepted.iter().map(|&at| gpus[at].numa);
        let numas: BTreeSet<Option<u16>> = match self.one_numa {
            true => numas.collect(),
            false => accepted.first().map(|_| None).into_iter().collect(),
        };
        let group = |numa: Option<u16>| {
            let of = |at: &&usize| !self.one_numa || gpus[**at].numa == numa;
            accepted.iter().filter(of).copied().collect()
        };
        numas.into_iter().map(group).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{GpuIndex, MiB};

    /// Cards as `uuid:model:numa`.
    fn cards(text: &str) -> Vec<Gpu> {
        let card = |(at, one): (usize, &str)| {
            let mut fields = one.split(':');
            let mut next = || fields.next().unwrap().to_owned();
            let mut gpu = Gpu::plain(GpuIndex(at as u16), MiB::from(100));
            gpu.uuid = Some(GpuUuid::new(&next()).unwrap());
            gpu.model = Arc::from(next());
            gpu.numa = next().parse().ok();
            gpu
        };
        text.split_whitespace().enumerate().map(card).collect()
    }

    fn names(names: &[&str]) -> BTreeSet<Arc<str>> {
        names.iter().map(|name| Arc::from(*name)).collect()
    }

    fn uuids(names: &[&str]) -> BTreeSet<GpuUuid> {
        names.iter().map(|n| GpuUuid::new(n).unwrap()).collect()
    }

    #[test]
    fn any_of_the_wanted_and_none_of_the_unwanted() {
        let gpus = cards("a:Tesla-V100:0 b:NVIDIA-A100:0 c:NVIDIA-A100:1 d:NVIDIA-H100:x");
        let found = |wishes: CardWishes| format!("{:?}", wishes.groups(&gpus));
        let any = CardWishes::default;
        assert_eq!(found(any()), "[[0, 1, 2, 3]]");
        assert_eq!(
            found(CardWishes {
                models: names(&["a100", "v100"]),
                ..any()
            }),
            "[[0, 1, 2]]"
        );
        assert_eq!(
            found(CardWishes {
                not_models: names(&["nvidia"]),
                ..any()
            }),
            "[[0]]"
        );
        let both = CardWishes {
            uuids: uuids(&["a", "b"]),
            not_uuids: uuids(&["a"]),
            ..any()
        };
        assert_eq!(found(both), "[[1]]");
        assert_eq!(
            found(CardWishes {
                uuids: uuids(&["e"]),
                ..any()
            }),
            "[]",
            "that card is not there"
        );
    }

    #[test]
    fn a_blank_of_a_name_may_be_written_as_a_dash() {
        let mut gpu = cards("a:x:0").remove(0);
        gpu.model = Arc::from("NVIDIA A100-SXM4-80GB");
        for (model, expected) in [
            ("nvidia a100-sxm4", true),
            ("nvidia-a100-sxm4", true),
            ("nvidia a100 sxm4", false),
        ] {
            let wishes = CardWishes {
                models: names(&[model]),
                ..CardWishes::default()
            };
            assert_eq!(wishes.accept(&gpu), expected, "{model}");
        }
    }

    #[test]
    fn cards_of_one_numa_node_are_chosen_together() {
        let gpus = cards("a:A100:1 b:A100:1 c:A100:0 d:A100:x");
        let wishes = CardWishes {
            one_numa: true,
            ..CardWishes::default()
        };
        assert_eq!(
            format!("{:?}", wishes.groups(&gpus)),
            "[[2], [0, 1]]",
            "the last one's is not known"
        );
    }
}
