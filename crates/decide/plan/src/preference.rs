//! A pod's preferences among cards, before any policy counts.
//!
//! A pod with an affinity goes to a card with a pod of the same affinity, and a pod with a virtual
//! GPU to a card with a pod of the same virtual GPU. Opportunistic pods go to the cards with the
//! most time left.
//!
//! The load is the measurement of the node's agent, plus a guess for each pod that the measurement
//! does not include yet. So a burst of pods spreads before the first of them can be measured. The
//! load refuses nothing, and guaranteed pods ignore it.

use sublet_model::{Book, Card, CardTags, Class, MeasuredUse};

/// The load of a pod while nobody has measured its use, in thousandths of a card: four pods fill
/// one card.
const UNMEASURED: u32 = 250;

/// A pod's preference; less is better. Zero for a guaranteed pod without an affinity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Preference(
    /// Probable load of the card, in thousandths of its time: more than 1,000 if many pods are new.
    /// [`APART`] is added if the pod has an affinity and no pod of it is on the card.
    u16,
);

/// More than any load.
const APART: u16 = 1 << 15;

impl Preference {
    /// The preference of a pod with these tags and of this class for the card at `position`.
    pub(crate) fn of(book: &Book, position: usize, tags: &CardTags, class: Class) -> Preference {
        let apart = tags.seek_friends() && !book.has_friend(tags, position);
        let load = match class {
            Class::Guaranteed => 0,
            Class::Opportunistic => {
                let facts = book.facts();
                let measured = facts.and_then(|facts| {
                    let gpu = facts.inventory.gpus().get(position)?;
                    facts.measured.get(&gpu.index).copied()
                });
                Preference::load(&book.cards()[position], measured)
            }
        };
        Preference(if apart { load + APART } else { load })
    }

    /// Soft holds count as pods, because these pods will come in a moment. Without a measurement,
    /// compute time that is promised to pods counts as used, if it is more than a guess for each.
    fn load(card: &Card, measured: Option<MeasuredUse>) -> u16 {
        let pods = card.tenants.saturating_add(card.holds);
        let guess = |pods: u32| pods.saturating_mul(UNMEASURED);
        let load = match measured {
            None => guess(pods).max(u32::from(card.used.compute.get())),
            Some(MeasuredUse { busy, pods: known }) => {
                let new = guess(pods.saturating_sub(known));
                new.saturating_add(u32::from(busy.get()))
            }
        };
        u16::try_from(load).unwrap_or(u16::MAX).min(APART - 1)
    }
}

#[cfg(test)]
mod tests {
    use sublet_model::{MiB, Milli, Part};

    use super::*;

    #[test]
    fn pods_that_nobody_has_measured_are_guessed() {
        // Pods, soft holds, what they were promised, (measured use, of so many pods); the load.
        for (tenants, holds, promised, measured, expected) in [
            (0, 0, 0, None, 0),
            (1, 0, 0, None, 250),
            (2, 1, 300, None, 750),
            (1, 0, 800, None, 800),
            (0, 0, 0, Some((0, 0)), 0),
            (2, 0, 1000, Some((350, 2)), 350),
            (3, 1, 0, Some((350, 2)), 850),
            (1, 0, 0, Some((350, 2)), 350),
            (9, 0, 0, Some((1000, 0)), 3250),
            (u32::MAX, 9, 0, Some((1000, 0)), APART - 1),
        ] {
            let compute = Milli::new(promised).unwrap();
            let card = Card {
                tenants,
                holds,
                used: Part {
                    memory: MiB::ZERO,
                    compute,
                    ..Part::ZERO
                },
                ..Card::default()
            };
            let measured = measured.map(|(busy, pods)| MeasuredUse {
                busy: Milli::new(busy).unwrap(),
                pods,
            });
            let load = Preference::load(&card, measured);
            assert_eq!(load, expected, "{card:?} {measured:?}");
        }
    }
}
