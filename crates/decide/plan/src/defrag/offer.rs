//! Offers: the cards and nodes that could be emptied, the number of pods that would have to go, and
//! the gain. Whether these pods find a place is not checked here.

use std::collections::BTreeMap;

use sublet_model::{Ask, Ledger, MiB, Milli, NodeIdx, PodUid, Sharing};

use super::draft::Draft;
use super::measure::Largest;

/// The pods of a node's load that would go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum What {
    /// From one pile, so many pods, beginning with the pod `first`.
    Of {
        pile: usize,
        first: usize,
        pods: usize,
    },
    /// All pods of so many piles, the cheapest piles first.
    Piles(usize),
}

impl What {
    /// Sorts before all others. [`What::LAST`] sorts after all others.
    pub(super) const FIRST: What = What::Of {
        pile: 0,
        first: 0,
        pods: 0,
    };
    pub(super) const LAST: What = What::Piles(usize::MAX);
}

/// A card or a node that could be emptied, in part or in full.
#[derive(Debug, Clone, Copy)]
pub(super) struct Offer {
    pub(super) node: NodeIdx,
    pub(super) what: What,
    /// Number of pods that would have to go.
    pub(super) moves: usize,
    /// Thousandths of GPUs: the GPUs that become free, plus the growth of the largest pod.
    pub(super) win: u64,
    /// The memory of these pods on cards that are used in parts.
    pub(super) memory: MiB,
    /// Would the largest pod have more GPUs than before?
    pub(super) grows: bool,
    /// Number of free GPUs of the node that would have CPU in addition.
    pub(super) fed: u32,
    /// Number of GPUs that would be free on the node.
    pub(super) free: u32,
}

/// Pods that free cards together: all pods on one card, or one pod with cards of its own.
#[derive(Debug)]
struct Pile {
    /// With their memory, the largest first.
    pods: Vec<(MiB, PodUid)>,
    /// The card that the pods share; `None` for a pod with cards of its own.
    card: Option<usize>,
    /// Number of healthy cards that are free when all these pods are gone.
    cards: u32,
    /// The CPU that these pods give back.
    cpu: u64,
}

impl Pile {
    /// GPUs that become free in the cluster. A pod with cards of its own takes as many elsewhere.
    fn won(&self) -> u32 {
        if self.card.is_some() { self.cards } else { 0 }
    }
}

/// The pods on a node that could go.
#[derive(Debug)]
pub(super) struct Load {
    /// Sorted; the pile with the fewest pods per card comes first.
    piles: Vec<Pile>,
}

impl Load {
    pub(super) fn of(ledger: &Ledger, node: NodeIdx, movable: &dyn Fn(&PodUid) -> bool) -> Load {
        let book = ledger.book(node);
        let Some(facts) = book.facts() else {
            return Load { piles: Vec::new() };
        };
        let mut shared: BTreeMap<usize, Pile> = BTreeMap::new();
        let mut piles = Vec::new();
        for uid in book.pods().filter(|uid| movable(uid)) {
            let Some(entry) = ledger.entry(uid) else {
                continue;
            };
            let grants = entry.allocation.iter().flat_map(|given| &given.grants);
            let mut cards: Vec<usize> = grants
                .filter_map(|grant| facts.inventory.position(&grant.card))
                .collect();
            cards.sort_unstable();
            cards.dedup();
            let cpu = entry.claim.host().cpu.get();
            match (entry.claim.ask(), &cards[..]) {
                (Ask::Parts(parts), &[card]) => {
                    let pile = shared.entry(card).or_insert_with(|| Pile {
                        pods: Vec::new(),
                        card: Some(card),
                        cards: 1,
                        cpu: 0,
                    });
                    let of = book.cards()[card].capacity.memory;
                    pile.pods.push((parts.memory_on(of), uid.clone()));
                    pile.cpu = pile.cpu.saturating_add(cpu);
                }
                (Ask::WholeCards(_), [_, ..]) => piles.push(Pile {
                    pods: vec![(MiB::ZERO, uid.clone())],
                    card: None,
                    cards: healthy(book, &cards),
                    cpu,
                }),
                _ => {}
            }
        }
        for (card, mut pile) in shared {
            let own = &book.cards()[card];
            // A pod has the whole card too, or no pod may come to the card.
            if own.whole > 0 || !own.healthy {
                continue;
            }
            // If some pods stay, a larger hole can be won, but no free card.
            pile.cards = u32::from(own.tenants as usize == pile.pods.len());
            pile.pods.sort_by(|a, b| (b.0, &a.1).cmp(&(a.0, &b.1)));
            piles.push(pile);
        }
        let per_card = |a: &Pile, b: &Pile| a.pods.len() * b.cards as usize;
        piles.sort_by(|a, b| {
            let order = per_card(a, b).cmp(&per_card(b, a));
            order.then(b.won().cmp(&a.won())).then(a.pods.cmp(&b.pods))
        });
        Load { piles }
    }

    /// The pods that would go, in the order of their moves.
    pub(super) fn pods(&self, what: What) -> Vec<PodUid> {
        let (piles, from, most) = match what {
            What::Of { pile, first, pods } => (&self.piles[pile..=pile], first, pods),
            What::Piles(piles) => (&self.piles[..piles], 0, usize::MAX),
        };
        let pods = piles.iter().flat_map(|pile| &pile.pods);
        let pods = pods.skip(from).take(most);
        pods.map(|(_, uid)| uid.clone()).collect()
    }

    /// The card that the pods leave; `None` if they leave several.
    pub(super) fn card(&self, what: What) -> Option<usize> {
        match what {
            What::Of { pile, .. } => self.piles.get(pile)?.card,
            What::Piles(_) => None,
        }
    }

    /// Adds the offers of this node.
    pub(super) fn offer(
        &self,
        draft: &Draft<'_>,
        node: NodeIdx,
        largest: Largest,
        offers: &mut Vec<Offer>,
    ) {
        let sharing = draft.ledger().book(node).facts().map(|facts| facts.sharing);
        for at in 0..self.piles.len() {
            self.offer_pile(draft, (node, at), sharing, largest, offers);
        }
        if sharing == Some(Sharing::Memory) {
            return;
        }
        let (mut cards, mut won, mut moves) = (0, 0, 0);
        let (mut memory, mut cpu) = (MiB::ZERO, 0u64);
        let emptied = self.piles.iter().take_while(|pile| pile.cards > 0);
        for (at, pile) in emptied.enumerate() {
            cards += pile.cards;
            won += pile.won();
            moves += pile.pods.len();
            memory = memory.plus(pile.pods.iter().map(|(memory, _)| *memory).sum());
            cpu = cpu.saturating_add(pile.cpu);
            let (free, fed) = draft.with(node, cards, cpu);
            if at > 0 && free > largest.gpus {
                offers.push(Offer {
                    node,
                    what: What::Piles(at + 1),
                    moves,
                    memory,
                    win: 1000 * u64::from(won + free - largest.gpus),
                    grows: true,
                    fed,
                    free,
                });
            }
        }
    }

    /// Adds the offers of one pile: all of it, or a larger hole on its card.
    fn offer_pile(
        &self,
        draft: &Draft<'_>,
        (node, at): (NodeIdx, usize),
        sharing: Option<Sharing>,
        largest: Largest,
        offers: &mut Vec<Offer>,
    ) {
        let pile = &self.piles[at];
        let own = pile
            .card
            .map(|card| draft.ledger().book(node).cards()[card]);
        let n_pods = pile.pods.len();
        // Each pod alone, and the largest ones together: smaller ones may stay.
        let singles = (0..n_pods).map(|first| (first, 1));
        for (first, pods) in singles.chain((2..=n_pods).map(|pods| (0, pods))) {
            let emptied = pods == n_pods;
            let (cards, cpu) = if emptied {
                (pile.cards, pile.cpu)
            } else {
                (0, 0)
            };
            let (free, fed) = draft.with(node, cards, cpu);
            let larger = match sharing {
                Some(Sharing::Memory) => 0,
                _ => free.saturating_sub(largest.gpus),
            };
            let gone = pile.pods[first..first + pods].iter();
            let memory = gone.map(|(memory, _)| *memory).sum();
            let deeper = match own {
                Some(own) if larger == 0 && sharing != Some(Sharing::Whole) => deeper(
                    own.free().memory.plus(memory),
                    largest.memory,
                    own.capacity.memory,
                ),
                _ => 0,
            };
            let won = if emptied { pile.won() } else { 0 };
            offers.push(Offer {
                node,
                what: What::Of {
                    pile: at,
                    first,
                    pods,
                },
                moves: pods,
                memory,
                win: 1000 * u64::from(won + larger) + deeper,
                grows: larger > 0,
                fed,
                free,
            });
        }
    }
}

/// The growth from the largest hole to this one, in thousandths of its card.
fn deeper(hole: MiB, largest: MiB, card: MiB) -> u64 {
    match hole.checked_sub(largest) {
        Some(more) if !more.is_zero() => u64::from(Milli::share_up(more, card).get()),
        _ => 0,
    }
}

fn healthy(book: &sublet_model::Book, cards: &[usize]) -> u32 {
    let healthy = cards.iter().filter(|card| book.cards()[**card].healthy);
    healthy.count() as u32
}
