//! What could be emptied, how many pods would have to go for it, and what that would win.
//! Whether they find a place is not asked here.

use std::collections::BTreeMap;

use sublet_model::{Ask, Ledger, MiB, Milli, NodeIdx, PodUid, Sharing};

use super::draft::Draft;
use super::measure::Largest;

/// What of a node's load would go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum What {
    /// Of one pile so many pods from that one on.
    Of {
        pile: usize,
        first: usize,
        pods: usize,
    },
    /// So many piles, the cheapest first, with all their pods.
    Piles(usize),
}

impl What {
    /// Before and after all others.
    pub(super) const FIRST: What = What::Of {
        pile: 0,
        first: 0,
        pods: 0,
    };
    pub(super) const LAST: What = What::Piles(usize::MAX);
}

/// Something that could be emptied.
#[derive(Debug, Clone, Copy)]
pub(super) struct Offer {
    pub(super) node: NodeIdx,
    pub(super) what: What,
    /// Pods that would have to go.
    pub(super) moves: usize,
    /// Thousandths of GPUs: GPUs that come free, and by how much the largest pod grows.
    pub(super) win: u64,
    /// What those pods ask of cards in parts.
    pub(super) memory: MiB,
    /// Would the largest pod need more GPUs than before?
    pub(super) grows: bool,
    /// So many more free GPUs of the node have CPU then.
    pub(super) fed: u32,
    /// All that are free on it then.
    pub(super) free: u32,
}

/// Pods that free cards together: those on one card, or one pod with cards of its own.
#[derive(Debug)]
struct Pile {
    /// The largest first.
    pods: Vec<(MiB, PodUid)>,
    /// The card that they share; nothing for a pod with cards of its own.
    card: Option<usize>,
    /// Healthy cards that are free when all of them are gone.
    cards: u32,
    /// CPU that they give back.
    cpu: u64,
}

impl Pile {
    /// GPUs that come free in the cluster: a pod with cards of its own takes others instead.
    fn won(&self) -> u32 {
        if self.card.is_some() { self.cards } else { 0 }
    }
}

/// What stands on a node and could go.
#[derive(Debug)]
pub(super) struct Load {
    /// The fewest pods per card first.
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
                    pile.pods.push((parts.memory(), uid.clone()));
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
            // Somebody has the card for himself too, or nobody may come.
            if own.whole > 0 || !own.healthy {
                continue;
            }
            // Some stay: there can be a larger hole, and no free card.
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

    /// The pods that would go, in their order.
    pub(super) fn pods(&self, what: What) -> Vec<PodUid> {
        let (piles, from, most) = match what {
            What::Of { pile, first, pods } => (&self.piles[pile..=pile], first, pods),
            What::Piles(piles) => (&self.piles[..piles], 0, usize::MAX),
        };
        let pods = piles.iter().flat_map(|pile| &pile.pods);
        let pods = pods.skip(from).take(most);
        pods.map(|(_, uid)| uid.clone()).collect()
    }

    /// The card that pods leave; nothing if they leave several.
    pub(super) fn card(&self, what: What) -> Option<usize> {
        match what {
            What::Of { pile, .. } => self.piles.get(pile)?.card,
            What::Piles(_) => None,
        }
    }

    /// Adds what could be emptied here.
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

    /// Adds what one pile could give: all of it, or of a card a larger hole.
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
        // Each pod alone, and the largest together: the smaller ones may stay.
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

/// By how many thousandths of its card a hole is larger than the largest.
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
