//! Can a pod go on this node, and on which cards? The only implementation of fit and choice.
//!
//! Called for every node that a scan does not skip (`screen`), so a "yes" allocates nothing. A
//! "no" with its numbers ([`fit`]) costs another pass over the node's cards; a scan does without
//! the numbers ([`place`]).

use std::cell::Cell;
use std::cmp::Ordering;
use std::sync::Arc;

use sublet_model::{
    Allocation, Ask, Book, CardRef, CardWishes, Carrier, Claim, Count, Gpu, Grant, Ledger, MiB,
    NodeFacts, Part, Parts, PodUid, Portion, Role, Sharing,
};

use crate::choice::{self, CardCost, Open};
use crate::policy::Costs;
use crate::score::{After, Asked, Cost, Prepared, Scores, Then};
use crate::stock::counts::{check_devices, check_machine};
use crate::{EngineOptions, Preference, Reason, StockRules};

mod why;

/// A place for the claim on a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Candidate {
    /// Position of the chosen card, or of the first of several.
    pub position: usize,
    /// The place is only free if some soft hold is not used: such nodes come last.
    pub contended: bool,
    /// The pod's preference. With several cards, the one for the card that the pod likes least
    /// counts. It comes before the cost.
    pub preference: Preference,
    /// The node's cost to each part of the policy.
    pub(crate) costs: Costs,
}

impl Candidate {
    /// The cost of the place to the policy, or to the first policy of a mix; lower is better.
    #[must_use]
    pub fn cost(&self) -> i64 {
        self.costs[0]
    }

    /// Better places come first.
    fn order(&self) -> (bool, Preference, Costs, usize) {
        (self.contended, self.preference, self.costs, self.position)
    }
}

/// The rules that judge a place.
#[derive(Clone, Copy)]
pub(crate) struct Rules<'a> {
    pub(crate) ledger: &'a Ledger,
    pub(crate) options: &'a EngineOptions,
    pub(crate) scores: &'a Scores,
}

/// One question about one node.
#[derive(Clone, Copy)]
struct Case<'a> {
    rules: &'a Rules<'a>,
    open: Open<'a>,
    book: &'a Book,
    facts: &'a NodeFacts,
    asked: Asked<'a>,
    prepared: &'a [Prepared],
}

/// Can the pod `uid` with this claim go on that node, if look-alikes are ignored? `prepared` is
/// the result of [`Scores::prepare`] for the page.
///
/// # Errors
/// The reason why it cannot.
pub(crate) fn fit(
    rules: &Rules<'_>,
    book: &Book,
    uid: &PodUid,
    claim: &Claim,
    prepared: &[Prepared],
) -> Result<Candidate, Reason> {
    judge(rules, book, uid, claim, prepared)
}

/// The same without reasons: on a full node that saves the pass that finds the numbers.
pub(crate) fn place(
    rules: &Rules<'_>,
    book: &Book,
    uid: &PodUid,
    claim: &Claim,
    prepared: &[Prepared],
) -> Option<Candidate> {
    judge::<Unexplained>(rules, book, uid, claim, prepared).ok()
}

/// A "no" of [`judge`], which says why, or not.
trait Refusal: From<Reason> {
    /// There are cards for only so many of the parts, or only so many that can be handed out whole.
    fn too_few(case: &Case<'_>, can_be_had: Count) -> Self;
    /// The pod accepts no card of the node.
    fn unwanted(wishes: &Arc<CardWishes>, gpus: &[Gpu]) -> Self;
}

/// Stands for a reason that nobody needs.
struct Unexplained;

impl From<Reason> for Unexplained {
    fn from(_: Reason) -> Self {
        Self
    }
}

impl Refusal for Unexplained {
    fn too_few(_: &Case<'_>, _: Count) -> Self {
        Self
    }

    fn unwanted(_: &Arc<CardWishes>, _: &[Gpu]) -> Self {
        Self
    }
}

/// The common part of [`fit`] and [`place`].
fn judge<No: Refusal>(
    rules: &Rules<'_>,
    book: &Book,
    uid: &PodUid,
    claim: &Claim,
    prepared: &[Prepared],
) -> Result<Candidate, No> {
    let facts = check_node(rules, book, claim)?;
    let case = Case::new(rules, book, facts, uid, claim, prepared);
    if !claim.has_gpu() {
        return Ok(case.on_host());
    }
    let found = match claim.wishes() {
        None => case.on_cards().map_err(|few| No::too_few(&case, few)),
        Some(wishes) => {
            let gpus = facts.inventory.gpus();
            let groups = wishes.groups(gpus);
            let among = groups.iter().map(|group| case.among(group));
            let tried = among.map(|case| (case, case.on_cards()));
            match tried.min_by(best_group) {
                Some((case, found)) => found.map_err(|few| No::too_few(&case, few)),
                None => Err(No::unwanted(wishes, gpus)),
            }
        }
    };
    let place = found?;
    if rules.options.stock == StockRules::Here {
        check_devices(book, claim)?;
    }
    Ok(place)
}

/// The cards that a claim gets at a place. `candidate` must come from [`fit`] on this page.
///
/// Whole cards are taken in order of their index; cards that a soft hold wants come last.
pub(crate) fn cards_at(
    rules: &Rules<'_>,
    book: &Book,
    uid: &PodUid,
    claim: &Claim,
    candidate: &Candidate,
) -> Vec<usize> {
    let groups = match (claim.wishes(), book.facts()) {
        (Some(wishes), Some(facts)) => wishes.groups(facts.inventory.gpus()),
        _ => Vec::new(),
    };
    let group = groups.iter().find(|at| at.contains(&candidate.position));
    let open = Open {
        accepted: group.map(Vec::as_slice),
        ..Open::of(book, claim)
    };
    match claim.ask() {
        Ask::Nothing => Vec::new(),
        Ask::Parts(parts) if parts.count() == Count::new(1) => vec![candidate.position],
        Ask::Parts(parts) => {
            let Some(facts) = book.facts() else {
                return Vec::new();
            };
            let prepared = rules.scores.prepare(rules.ledger, book);
            let case = Case::new(rules, book, facts, uid, claim, &prepared);
            let found = match parts.own() {
                Some(own) => choice::own(open, own, case.card_cost()),
                None => choice::several(open, parts, case.card_cost()),
            };
            found.map_or_else(|_| Vec::new(), |found| found.positions)
        }
        Ask::WholeCards(count) => choice::whole(open).take(count.get() as usize).collect(),
    }
}

/// The set with the best place comes first. If none has any, the largest one does, because it is
/// the one that may have a place later.
fn best_group<'a>(
    (case, one): &(Case<'a>, Result<Candidate, Count>),
    (other_case, other): &(Case<'a>, Result<Candidate, Count>),
) -> Ordering {
    let cards = |case: &Case<'a>| case.open.cards().count();
    match (one, other) {
        (Ok(one), Ok(other)) => one.order().cmp(&other.order()),
        (Ok(_), Err(_)) => Ordering::Less,
        (Err(_), Ok(_)) => Ordering::Greater,
        (Err(one), Err(other)) => (cards(other_case), other).cmp(&(cards(case), one)),
    }
}

/// Makes the allocation for a claim that fits, on these cards (from [`cards_at`]).
///
/// Containers with parts use the first cards of their pod, or each those it has chosen. Init containers use the cards of
/// the containers after them, as kubelet does.
pub(crate) fn allocate(book: &Book, claim: &Claim, chosen: &[usize]) -> Allocation {
    let gpus = book.facts().map_or(&[][..], |facts| facts.inventory.gpus());
    let own = matches!(claim.ask(), Ask::Parts(parts) if parts.own().is_some());
    let mut next = 0;
    let mut grants = Vec::new();
    for container in claim.containers() {
        let count = container.demand.gpus.get() as usize;
        let cards = match container.demand.portion {
            Portion::Part(_) if !own => &chosen[..count],
            _ => &chosen[next..next + count],
        };
        if own || container.role != Role::Init {
            next += count;
        }
        grants.extend(cards.iter().map(|&position| Grant {
            container: container.name.clone(),
            card: CardRef {
                index: gpus[position].index,
                uuid: gpus[position].uuid.clone(),
            },
            memory: match container.demand.portion {
                Portion::Part(part) => part.on(gpus[position].memory).memory,
                Portion::Whole => gpus[position].memory,
            },
        }));
    }
    Allocation { grants }
}

fn check_node<'a>(
    rules: &Rules<'_>,
    book: &'a Book,
    claim: &Claim,
) -> Result<&'a NodeFacts, Reason> {
    let facts = book.facts().ok_or(Reason::Unknown)?;
    let here = rules.options.stock == StockRules::Here;
    if here {
        check_machine(book, claim)?;
    }
    let part = match claim.ask() {
        Ask::Nothing => return Ok(facts),
        Ask::Parts(_) => true,
        Ask::WholeCards(_) => false,
    };
    if book.cards().is_empty() {
        return Err(Reason::NoGpu);
    }
    // If the claim's stock rules are known, the node's labels have been checked by now.
    if here && claim.stock().is_none() && !claim.models().accept(&facts.model) {
        return Err(Reason::Model {
            wanted: claim.models().clone(),
            node: facts.model.clone(),
        });
    }
    if let Some(plugin) = facts.plugin {
        return Err(Reason::Plugin { plugin });
    }
    let served = match facts.sharing {
        Sharing::Both => true,
        Sharing::Memory => part,
        Sharing::Whole => !part,
    };
    if !served {
        return Err(Reason::Sharing {
            node: facts.sharing,
        });
    }
    let unit = rules.options.unit;
    if part && facts.unit != unit {
        return Err(Reason::Unit {
            node: facts.unit,
            scheduler: unit,
        });
    }
    let by_slots = claim.carrier_on(facts.advertise) == Carrier::Slots;
    if by_slots && !claim.has_slot() {
        return Err(Reason::NoSlot);
    }
    // Of a claim that is written in no dialect, nobody asks kubelet for anything.
    if !by_slots && claim.has_slot() && claim.dialect().is_some() {
        return Err(Reason::SlotBeside);
    }
    Ok(facts)
}

impl<'a> Case<'a> {
    fn new(
        rules: &'a Rules<'a>,
        book: &'a Book,
        facts: &'a NodeFacts,
        uid: &'a PodUid,
        claim: &'a Claim,
        prepared: &'a [Prepared],
    ) -> Case<'a> {
        Case {
            rules,
            open: Open::of(book, claim),
            book,
            facts,
            asked: Asked {
                ask: claim.ask(),
                host: claim.host(),
                uid,
            },
            prepared,
        }
    }

    /// The same question about these cards only.
    fn among(self, accepted: &'a [usize]) -> Case<'a> {
        let open = Open {
            accepted: Some(accepted),
            ..self.open
        };
        Case { open, ..self }
    }

    /// The same question, however many pods are on the cards.
    fn whatever_splits(self) -> Case<'a> {
        let open = Open {
            splits: None,
            ..self.open
        };
        Case { open, ..self }
    }

    /// The same question, but the pods on the cards do not matter.
    fn whatever_tags(self) -> Case<'a> {
        let open = Open {
            tags: None,
            ..self.open
        };
        Case { open, ..self }
    }

    fn on_host(&self) -> Candidate {
        let after = || After {
            card_left: MiB::ZERO,
            node_left: self.book.free(),
            node_capacity: self.book.capacity(),
        };
        Candidate {
            position: 0,
            contended: false,
            preference: Preference::default(),
            costs: self.costs(0, &after),
        }
    }

    /// The place on cards; or else the number of parts or of whole cards that can be had.
    fn on_cards(&self) -> Result<Candidate, Count> {
        match self.asked.ask {
            Ask::Nothing => Ok(self.on_host()),
            Ask::Parts(parts) => self.on_parts(parts),
            Ask::WholeCards(asked) => self.on_whole(*asked),
        }
    }

    /// The place for the parts; or else the number of parts that can have a card.
    fn on_parts(&self, parts: &Parts) -> Result<Candidate, Count> {
        let (book, first) = (self.book, parts.first());
        // Pods that hold whole cards without saying which ones may be on any card.
        if book.unplaced() > Count::ZERO {
            return Err(Count::ZERO);
        }
        let (position, contended, preference) = if parts.count() == Count::new(1) {
            let is_personal = self.rules.scores.is_personal();
            let best = choice::one(self.open, first, is_personal, self.card_cost());
            best.map(|one| (one.position, one.contended, one.preference))
                .ok_or(Count::ZERO)?
        } else if let Some(own) = parts.own() {
            let found = choice::own(self.open, own, self.card_cost())?;
            // The score is told of the card of the largest part.
            let mut parts = own
                .iter()
                .flat_map(|one| vec![one.part; one.gpus.get() as usize]);
            let at = parts.position(|part| part == first).unwrap_or(0);
            (found.positions[at], found.contended, found.preference)
        } else {
            let best = choice::several(self.open, parts, self.card_cost());
            best.map(|found| (found.positions[0], found.contended, found.preference))?
        };
        let after = || {
            let card = &book.cards()[position];
            let room = card.free().saturating_sub(card.held);
            let capacity = card.capacity.memory;
            let taken = held_on(book).plus(parts.memory_on(capacity));
            After {
                card_left: room.saturating_sub(first.on(capacity)).memory,
                node_left: book.free().saturating_sub(taken),
                node_capacity: book.capacity(),
            }
        };
        Ok(Candidate {
            position,
            contended,
            preference,
            costs: self.costs(position, &after),
        })
    }

    /// The place for whole cards; or else the number of cards that can be handed out.
    fn on_whole(&self, asked: Count) -> Result<Candidate, Count> {
        let book = self.book;
        let idle = choice::idle(self.open);
        let free = Count::new(idle.cards).saturating_sub(book.unplaced());
        if asked > free {
            return Err(free);
        }
        let after = || {
            let gpus = self.facts.inventory.gpus();
            let cards = choice::whole(self.open).take(asked.get() as usize);
            let taken: MiB = cards.map(|at| gpus[at].memory).sum();
            After {
                card_left: MiB::ZERO,
                node_left: book.free().saturating_sub(held_on(book).plus(taken)),
                node_capacity: book.capacity(),
            }
        };
        let position = idle.first.unwrap_or(0);
        Ok(Candidate {
            position,
            contended: asked > free.saturating_sub(Count::new(idle.wanted)),
            preference: Preference::default(),
            costs: self.costs(position, &after),
        })
    }

    /// The cost of a card to the policy that chooses among cards. A cost is expensive to compute,
    /// and most cards of a node are like the previous one, so the previous cost is kept.
    fn card_cost(&self) -> impl CardCost {
        let site = (self.book, self.prepared);
        let scores = self.rules.scores;
        let cards = self.book.cards();
        let before: Cell<Option<(usize, Part, Cost)>> = Cell::new(None);
        let cost_of =
            move |position, left: Part| scores.card(site, &self.asked, position, left.memory);
        move |position, left| {
            if let Some((other, left_of_other, cost)) = before.get()
                && left_of_other == left
                && !scores.is_personal()
                && cards[other] == cards[position]
            {
                debug_assert_eq!(cost, cost_of(position, left), "alike cards cost alike");
                return cost;
            }
            let cost = cost_of(position, left);
            before.set(Some((position, left, cost)));
            cost
        }
    }

    fn costs(&self, position: usize, after: Then<'_>) -> Costs {
        let site = (self.book, self.prepared);
        self.rules.scores.node(site, &self.asked, position, after)
    }
}

/// The memory that soft holds want, of all cards together.
fn held_on(book: &Book) -> MiB {
    book.cards().iter().map(|card| card.held.memory).sum()
}

#[cfg(test)]
mod tests;
