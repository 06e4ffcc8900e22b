//! How busy a card probably is. Opportunistic pods go to the cards with the most time left.
//!
//! The load is what the node's agent measured, plus a guess for each pod that the measurement does
//! not include yet. So a burst of pods spreads before the first of them can be measured. The load
//! refuses nothing, and guaranteed pods ignore it.

use sublet_model::{Book, Card, Class, MeasuredUse};

/// What a pod counts for while nobody has measured its use, in thousandths of a card: four pods
/// fill one card.
const UNMEASURED: u32 = 250;

/// How busy a card probably is; less is better. Zero for guaranteed pods, which ignore it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct CardLoad(
    /// In thousandths of the card's time. It exceeds 1,000 if many pods are new.
    u16,
);

impl CardLoad {
    /// The load of the card at `position`, as a pod of this class sees it.
    pub(crate) fn of(book: &Book, position: usize, class: Class) -> CardLoad {
        match class {
            Class::Guaranteed => CardLoad::default(),
            Class::Opportunistic => {
                let facts = book.facts();
                let measured = facts.and_then(|facts| {
                    let gpu = facts.inventory.gpus().get(position)?;
                    facts.measured.get(&gpu.index).copied()
                });
                CardLoad::expected(&book.cards()[position], measured)
            }
        }
    }

    /// Soft holds count as pods, because these pods will come in a moment. Without a measurement,
    /// what was promised to pods counts as used, if that is more than a guess for each.
    fn expected(card: &Card, measured: Option<MeasuredUse>) -> CardLoad {
        let pods = card.tenants.saturating_add(card.holds);
        let guess = |pods: u32| pods.saturating_mul(UNMEASURED);
        let load = match measured {
            None => guess(pods).max(u32::from(card.used.compute.get())),
            Some(MeasuredUse { busy, pods: known }) => {
                let new = guess(pods.saturating_sub(known));
                new.saturating_add(u32::from(busy.get()))
            }
        };
        CardLoad(u16::try_from(load).unwrap_or(u16::MAX))
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
            (u32::MAX, 9, 0, Some((1000, 0)), u16::MAX),
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
            let load = CardLoad::expected(&card, measured);
            assert_eq!(load, CardLoad(expected), "{card:?} {measured:?}");
        }
    }
}
