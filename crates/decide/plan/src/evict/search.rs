//! The smallest set of victims on one node.
//!
//! For each card: all pods elsewhere stay first, then as many on the card as fit, the smallest
//! first. In memory alone this leaves as few victims as that card allows. Once the number is known,
//! the most important pods are spared as long as the number stays the same. Claims that need more
//! than memory (compute time, several cards, CPU of the machine) may cost more victims than the
//! best choice would; but no victim can ever be left out.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use sublet_model::{Ask, Book, Entry, Ledger, NodeIdx, PodUid, charges_of};

/// A pod that may have to go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Evictable {
    /// The pod's UID.
    pub uid: PodUid,
    /// Would its eviction break a disruption budget, according to [`breaking`](super::breaking)?
    pub breaks: bool,
}

/// A search. Positions are those of `row`. Its first pod is the most important.
pub(super) struct Search<'a> {
    pub(super) row: &'a [Evictable],
    pub(super) node: NodeIdx,
    pub(super) ledger: &'a Ledger,
    /// Does the claim fit on such a page?
    pub(super) fits: &'a dyn Fn(&Book) -> bool,
    /// May the pod be spared at all?
    pub(super) may_stay: &'a dyn Fn(&Evictable) -> bool,
}

/// In which order pods are spared.
struct Order {
    /// At once, if all of them can be.
    first: Vec<usize>,
    /// One by one.
    then: Vec<usize>,
    /// Does the order go by size, so that important pods may be left?
    by_size: bool,
}

/// Broken budgets, then pods.
type Price = (usize, usize);

impl Search<'_> {
    /// The victims, in the order of the row.
    pub(super) fn fewest(&self) -> Vec<usize> {
        let found = self.orders().into_iter().filter_map(|order| {
            let gone = self.spare(&order, &[])?;
            Some((order, gone))
        });
        let found: Vec<(Order, Vec<usize>)> = found.collect();
        let least = found.iter().map(|(_, gone)| self.price(gone)).min();
        let best = found.into_iter();
        let best = best.filter(|(_, gone)| Some(self.price(gone)) == least);
        let best = best.map(|(order, gone)| match order.by_size {
            true => self.refine(&order, gone),
            false => gone,
        });
        // Positions grow as importance falls.
        best.min_by_key(|gone| Reverse(gone.clone()))
            .unwrap_or_else(|| (0..self.row.len()).collect())
    }

    /// One order for each card, and one by importance, for cases that no single card explains.
    fn orders(&self) -> Vec<Order> {
        let pods: Vec<(usize, &Entry)> = (0..self.row.len())
            .filter(|&at| (self.may_stay)(&self.row[at]))
            .filter_map(|at| Some((at, self.ledger.entry(&self.row[at].uid)?)))
            .collect();
        let guarded_first = |order: &mut Vec<usize>| order.sort_by_key(|&at| !self.row[at].breaks);
        let mut by_importance = pods.iter().map(|&(at, _)| at).collect();
        guarded_first(&mut by_importance);
        let mut orders = vec![Order {
            first: Vec::new(),
            then: by_importance,
            by_size: false,
        }];
        let book = self.ledger.book(self.node);
        for card in 0..book.cards().len() {
            let sizes = pods.iter().map(|&(at, pod)| (size_on(book, card, pod), at));
            let (first, mut there): (Vec<_>, Vec<_>) = sizes.partition(|&(size, _)| size == 0);
            there.sort_unstable();
            let first = first.into_iter().map(|(_, at)| at).collect();
            let mut then = there.into_iter().map(|(_, at)| at).collect();
            guarded_first(&mut then);
            let by_size = true;
            orders.push(Order {
                first,
                then,
                by_size,
            });
        }
        orders
    }

    /// Spares these pods, and then as many as possible in that order; all others must go. `None` if
    /// these pods cannot be spared.
    fn spare(&self, order: &Order, these: &[usize]) -> Option<Vec<usize>> {
        let with = |spared: &[usize]| {
            let gone = (0..self.row.len()).filter(|at| !spared.contains(at));
            let gone: BTreeSet<PodUid> = gone.map(|at| self.row[at].uid.clone()).collect();
            let book = self.ledger.book_without(self.node, &gone);
            (self.fits)(&book).then_some(book)
        };
        let mut spared = [&order.first[..], these].concat();
        let (mut book, one_by_one) = if let Some(book) = with(&spared) {
            (book, order.then.clone())
        } else {
            spared = these.to_vec();
            (with(these)?, [&order.first[..], &order.then].concat())
        };
        for at in one_by_one {
            if spared.contains(&at) {
                continue;
            }
            let entry = self.ledger.entry(&self.row[at].uid);
            let Some(more) = entry.map(|entry| book.with(entry)) else {
                continue;
            };
            if (self.fits)(&more) {
                book = more;
                spared.push(at);
            }
        }
        let gone = (0..self.row.len()).filter(|at| !spared.contains(at));
        Some(gone.collect())
    }

    /// Other victims for the same price, with the important pods spared.
    fn refine(&self, order: &Order, mut gone: Vec<usize>) -> Vec<usize> {
        let mut spared = Vec::new();
        for at in 0..self.row.len() {
            if !gone.contains(&at) {
                spared.push(at);
                continue;
            }
            // Somebody less important would have to go in its place. Of pods of one size the least
            // important go in any case.
            let in_its_place = |&other: &usize| other > at && !gone.contains(&other);
            if order.then.contains(&at) && order.then.iter().any(in_its_place) {
                spared.push(at);
                match self.spare(order, &spared) {
                    Some(others) if self.price(&others) <= self.price(&gone) => gone = others,
                    _ => drop(spared.pop()),
                }
            }
        }
        gone
    }

    fn price(&self, gone: &[usize]) -> Price {
        let broken = gone.iter().filter(|&&at| self.row[at].breaks).count();
        (broken, gone.len())
    }
}

/// The memory of a card that the pod holds, in MiB. A pod that does not say its cards may hold it
/// of any.
fn size_on(book: &Book, card: usize, pod: &Entry) -> u64 {
    let whole = book.cards()[card].capacity.memory.get();
    match (&pod.allocation, pod.claim.ask(), book.facts()) {
        (Some(allocation), _, Some(facts)) => charges_of(&pod.claim, allocation)
            .iter()
            .filter(|charge| facts.inventory.position(&charge.card) == Some(card))
            .map(|charge| {
                if charge.whole {
                    whole
                } else {
                    charge.part.memory.get()
                }
            })
            .sum(),
        (None, Ask::Parts(parts), _) => parts.largest().memory.get(),
        (None, Ask::WholeCards(_), _) => whole,
        _ => 0,
    }
}
