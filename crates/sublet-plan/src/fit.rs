//! Can a pod go on this node, and on which cards? The only implementation of fit and choice.
//!
//! Called for every node that a scan does not skip (`screen`), so a "yes" allocates nothing. A
//! "no" with its numbers ([`fit`]) costs another pass over the node's cards; a scan does without
//! the numbers ([`place`]).

use std::cell::Cell;

use sublet_model::{
    Advertise, Allocation, Ask, Book, Card, CardRef, Claim, Class, Count, Grant, Identity, Ledger,
    MiB, NodeFacts, Part, Parts, PodUid, Portion, Role, Sharing,
};

use crate::choice::{self, CardCost};
use crate::policy::Costs;
use crate::score::{After, Asked, Cost, Prepared, Scores};
use crate::stock::counts::{check_devices, check_machine};
use crate::{CardLoad, EngineOptions, Reason, StockRules};

/// A place for the claim on a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Candidate {
    /// Position of the chosen card, or of the first of several.
    pub position: usize,
    /// The place is only free if some soft hold is not used: such nodes come last.
    pub contended: bool,
    /// How busy the card probably is, or the busiest of several. It counts before the cost.
    pub load: CardLoad,
    /// What the node costs to each part of the policy.
    pub(crate) costs: Costs,
}

impl Candidate {
    /// What the place costs to the policy, or to the first one of a mix; lower is better.
    #[must_use]
    pub fn cost(&self) -> i64 {
        self.costs[0]
    }
}

/// What a place is judged by.
#[derive(Clone, Copy)]
pub(crate) struct Rules<'a> {
    pub(crate) ledger: &'a Ledger,
    pub(crate) options: &'a EngineOptions,
    pub(crate) scores: &'a Scores,
}

/// One question about one node.
struct Case<'a> {
    rules: &'a Rules<'a>,
    book: &'a Book,
    facts: &'a NodeFacts,
    class: Class,
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
    judge(rules, book, uid, claim, prepared, few_rooms, few_idle)
}

/// The same without reasons: on a full node that saves the pass that finds the numbers.
pub(crate) fn place(
    rules: &Rules<'_>,
    book: &Book,
    uid: &PodUid,
    claim: &Claim,
    prepared: &[Prepared],
) -> Option<Candidate> {
    let no_rooms = |_: &Case<'_>, _: &Parts, _| Unexplained;
    let no_idle = |_: &Case<'_>, _, _| Unexplained;
    judge(rules, book, uid, claim, prepared, no_rooms, no_idle).ok()
}

/// Stands for a reason that nobody needs.
struct Unexplained;

impl From<Reason> for Unexplained {
    fn from(_: Reason) -> Self {
        Self
    }
}

/// The common part of [`fit`] and [`place`]. `few_rooms` gives the reason if there are cards for
/// only so many of the parts, `few_idle` if only so many cards can be handed out whole.
fn judge<No: From<Reason>>(
    rules: &Rules<'_>,
    book: &Book,
    uid: &PodUid,
    claim: &Claim,
    prepared: &[Prepared],
    few_rooms: impl FnOnce(&Case<'_>, &Parts, Count) -> No,
    few_idle: impl FnOnce(&Case<'_>, Count, Count) -> No,
) -> Result<Candidate, No> {
    let facts = check_node(rules, book, claim)?;
    let case = Case::new(rules, book, facts, uid, claim, prepared);
    let place = match claim.ask() {
        Ask::Nothing => return Ok(case.on_host()),
        Ask::Parts(parts) => {
            let place = case.on_parts(parts);
            place.map_err(|fitting| few_rooms(&case, parts, fitting))?
        }
        Ask::WholeCards(asked) => {
            let place = case.on_whole(*asked);
            place.map_err(|free| few_idle(&case, *asked, free))?
        }
    };
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
    match claim.ask() {
        Ask::Nothing => Vec::new(),
        Ask::Parts(parts) if parts.count() == Count::new(1) => vec![candidate.position],
        Ask::Parts(parts) => {
            let Some(facts) = book.facts() else {
                return Vec::new();
            };
            let prepared = rules.scores.prepare(rules.ledger, book);
            let case = Case::new(rules, book, facts, uid, claim, &prepared);
            let found = choice::several(book, parts, claim.class(), case.card_cost());
            found.map_or_else(|_| Vec::new(), |found| found.positions)
        }
        Ask::WholeCards(count) => choice::whole(book).take(count.get() as usize).collect(),
    }
}

/// Makes the allocation for a claim that fits, on these cards (from [`cards_at`]).
///
/// Containers with parts use the first cards of their pod. Init containers use the cards of
/// the containers after them, as kubelet does.
pub(crate) fn allocate(book: &Book, claim: &Claim, chosen: &[usize]) -> Allocation {
    let gpus = book.facts().map_or(&[][..], |facts| facts.inventory.gpus());
    let mut next = 0;
    let mut grants = Vec::new();
    for container in claim.containers() {
        let count = container.demand.gpus.get() as usize;
        let cards = match container.demand.portion {
            Portion::Part(_) => &chosen[..count],
            Portion::Whole => &chosen[next..next + count],
        };
        if container.demand.portion == Portion::Whole && container.role != Role::Init {
            next += count;
        }
        grants.extend(cards.iter().map(|&position| Grant {
            container: container.name.clone(),
            card: CardRef {
                index: gpus[position].index,
                uuid: gpus[position].uuid.clone(),
            },
            memory: match container.demand.portion {
                Portion::Part(part) => part.memory,
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
            node: facts.model.clone(),
        });
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
    if part && facts.advertise == Advertise::Slots && !claim.has_slot() {
        return Err(Reason::NoSlot);
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
            book,
            facts,
            class: claim.class(),
            asked: Asked {
                ask: claim.ask(),
                host: claim.host(),
                uid,
            },
            prepared,
        }
    }

    fn on_host(&self) -> Candidate {
        let after = After {
            card_left: MiB::ZERO,
            node_left: self.book.free(),
            node_capacity: self.book.capacity(),
        };
        Candidate {
            position: 0,
            contended: false,
            load: CardLoad::default(),
            costs: self.costs(0, &after),
        }
    }

    /// The place for the parts; or else the number of parts that can have a card.
    fn on_parts(&self, parts: &Parts) -> Result<Candidate, Count> {
        let (book, first) = (self.book, parts.first());
        // Pods that hold whole cards without saying which ones may be on any card.
        if book.unplaced() > Count::ZERO {
            return Err(Count::ZERO);
        }
        let (position, contended, load) = if parts.count() == Count::new(1) {
            let best = choice::one(book, first, self.class, self.card_cost());
            best.map(|one| (one.position, one.contended, one.load))
                .ok_or(Count::ZERO)?
        } else {
            let best = choice::several(book, parts, self.class, self.card_cost());
            best.map(|found| (found.positions[0], found.contended, found.load))?
        };
        let held: MiB = book.cards().iter().map(|card| card.held.memory).sum();
        let card = &book.cards()[position];
        let room = card.free().saturating_sub(card.held);
        let after = After {
            card_left: room.saturating_sub(first).memory,
            node_left: book.free().saturating_sub(held.plus(parts.memory())),
            node_capacity: book.capacity(),
        };
        Ok(Candidate {
            position,
            contended,
            load,
            costs: self.costs(position, &after),
        })
    }

    /// The place for whole cards; or else the number of cards that can be handed out.
    fn on_whole(&self, asked: Count) -> Result<Candidate, Count> {
        let book = self.book;
        let gpus = self.facts.inventory.gpus();
        let (mut idle, mut holds) = (0, 0);
        let (mut taken, mut first) = (MiB::ZERO, None);
        for at in choice::whole(book) {
            if idle < asked.get() {
                taken = taken.plus(gpus[at].memory);
            }
            idle += 1;
            holds += u32::from(book.cards()[at].holds > 0);
            first = first.or(Some(at));
        }
        let free = Count::new(idle).saturating_sub(book.unplaced());
        if asked > free {
            return Err(free);
        }
        let held: MiB = book.cards().iter().map(|card| card.held.memory).sum();
        let after = After {
            card_left: MiB::ZERO,
            node_left: book.free().saturating_sub(held).saturating_sub(taken),
            node_capacity: book.capacity(),
        };
        let position = first.unwrap_or(0);
        Ok(Candidate {
            position,
            contended: asked > free.saturating_sub(Count::new(holds)),
            load: CardLoad::default(),
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

    fn costs(&self, position: usize, after: &After) -> Costs {
        let site = (self.book, self.prepared);
        self.rules.scores.node(site, &self.asked, position, after)
    }
}

/// If a node's agent recognises pods only by their sizes, two pods that look alike must not wait
/// for their devices at the same time. With slots the agent sees no sizes, so all look alike.
///
/// # Errors
/// The other pod that looks alike.
pub(crate) fn check_look_alikes(
    ledger: &Ledger,
    book: &Book,
    uid: &PodUid,
    claim: &Claim,
) -> Result<(), Reason> {
    if book.unassigned().is_empty() || !claim.has_gpu() {
        return Ok(());
    }
    let Some(facts) = book.facts() else {
        return Ok(());
    };
    if facts.identity != Identity::SizeAndOrder {
        return Ok(());
    }
    let slots = facts.advertise == Advertise::Slots;
    for other in book.unassigned().iter().filter(|other| *other != uid) {
        if let Some(entry) = ledger.entry(other)
            && (slots || entry.claim.looks_like(claim))
        {
            return Err(Reason::LookAlike {
                other: entry.pod.clone(),
            });
        }
    }
    Ok(())
}

/// The reason why there are not enough cards for several parts.
fn few_rooms(case: &Case<'_>, parts: &Parts, fitting: Count) -> Reason {
    let (facts, book, class) = (case.facts, case.book, case.class);
    let (asked, total) = (parts.count(), Count::new(book.cards().len() as u32));
    if asked > total {
        return Reason::TooFew { asked, total };
    }
    if fitting == Count::ZERO {
        return no_room(facts, book, parts, class);
    }
    Reason::TooFewRooms {
        asked,
        part: parts.first(),
        fitting,
    }
}

/// The reason why so many cards cannot be handed out whole.
fn few_idle(case: &Case<'_>, asked: Count, idle: Count) -> Reason {
    let cards = case.book.cards();
    let total = Count::new(cards.len() as u32);
    if asked > total {
        return Reason::TooFew { asked, total };
    }
    let count =
        |is_it: &dyn Fn(&&Card) -> bool| Count::new(cards.iter().filter(is_it).count() as u32);
    Reason::NoIdle {
        asked,
        idle,
        total,
        sick: count(&|card| !card.healthy),
        unsure: count(&|card| card.tenants == 0 && !card.unsure.is_zero()),
    }
}

/// The reason why no card has room for the largest of these parts.
fn no_room(facts: &NodeFacts, book: &Book, parts: &Parts, class: Class) -> Reason {
    let (part, asked) = (parts.first(), parts.first().memory);
    let (gpus, cards) = (facts.inventory.gpus(), book.cards());
    let doubt = book.unplaced() > Count::ZERO;
    // Of several largest ones the first, so that the answer does not depend on chance.
    let largest = |size: &dyn Fn(&Card) -> MiB| {
        let best = (0..cards.len()).max_by_key(|&at| (size(&cards[at]), usize::MAX - at));
        let at = best.unwrap_or(0);
        (size(&cards[at]), gpus[at].index)
    };
    let (capacity, gpu) = largest(&|card| card.capacity.memory);
    if capacity < asked {
        return Reason::TooSmall {
            asked,
            largest: capacity,
            gpu,
        };
    }
    let sick = cards
        .iter()
        .filter(|card| !card.healthy && card.capacity.memory >= asked)
        .count();
    let (hole, gpu) = largest(&|card| if doubt { MiB::ZERO } else { card.free().memory });
    if !doubt && let Some(reason) = no_compute(facts, book, part, class) {
        return reason;
    }
    let unsure = gpus.iter().zip(cards).find(|(it, _)| it.index == gpu);
    Reason::NoRoom {
        asked,
        hole,
        gpu,
        sick: Count::new(sick as u32),
        unsure: match unsure {
            Some((_, card)) if doubt => card.capacity.memory.saturating_sub(card.used.memory),
            Some((_, card)) => card.unsure.memory,
            None => MiB::ZERO,
        },
    }
}

/// The reason why cards with enough memory cannot take a part; `None` if there are no such cards.
fn no_compute(facts: &NodeFacts, book: &Book, part: Part, class: Class) -> Option<Reason> {
    let cards = || book.cards().iter().zip(facts.inventory.gpus());
    let roomy = cards().filter(|(card, _)| {
        let memory = Part::of_memory(part.memory);
        card.left_beside(memory, Class::Opportunistic).is_some()
    });
    // Of several with the most, the first, so that the answer does not depend on chance.
    let Some((card, gpu)) = roomy.rev().max_by_key(|(card, _)| card.free().compute) else {
        let overfull = |(card, _): &(&Card, _)| {
            let taken = card.used.memory.plus(card.unsure.memory);
            let left = card.capacity.memory.saturating_sub(taken);
            let is_open = card.healthy && card.whole == 0;
            is_open && part.memory <= left && !card.used.fits_in(card.capacity)
        };
        let (_, gpu) = cards().find(overfull)?;
        return Some(Reason::Overfull { gpu: gpu.index });
    };
    if class == Class::Guaranteed && part.fits_in(card.free()) {
        return Some(Reason::Company { gpu: gpu.index });
    }
    Some(Reason::NoCompute {
        asked: part.compute,
        left: card.free().compute,
        gpu: gpu.index,
    })
}

#[cfg(test)]
mod tests;
