//! Chooses the cards of a node for a claim: the candidates, the cost of each, and the best.
//!
//! This is the only place that chooses cards. Code that looks at several cards at once (such as
//! at their wiring) belongs in [`several`] and [`whole`], and nowhere else.

use std::collections::BTreeSet;

use sublet_model::{
    Advertise, Allocation, Ask, Book, Card, CardTags, Carrier, Charge, Claim, Class, Count, Hold,
    OwnParts, Part, Parts, Role, charges_of, peak_of,
};

use crate::Preference;
use crate::score::Cost;

/// The cards of a node that a claim may have: all of them, or those that the pod accepts.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Open<'a> {
    pub(crate) book: &'a Book,
    /// By position in ascending order; `None` for all.
    pub(crate) accepted: Option<&'a [usize]>,
    /// The pod's tags; `None` where neither it nor any pod of the node has some.
    pub(crate) tags: Option<&'a CardTags>,
    /// A card with so many pods takes no more of this form.
    pub(crate) splits: Option<u32>,
    /// The pod's class.
    pub(crate) class: Class,
}

impl<'a> Open<'a> {
    /// All cards, as far as tags and the number of pods allow.
    pub(crate) fn of(book: &'a Book, claim: &'a Claim) -> Open<'a> {
        let tags = claim.tags();
        Open {
            book,
            accepted: None,
            tags: (book.has_tags() || !tags.are_none()).then_some(tags),
            splits: splits(book, claim),
            class: claim.class(),
        }
    }

    /// Are all cards the same to the pod? Costs do not count.
    fn is_indifferent(self) -> bool {
        self.tags.is_none() && self.class == Class::Guaranteed
    }

    fn preference(self, position: usize) -> Preference {
        if self.is_indifferent() {
            return Preference::default();
        }
        let tags = self.tags.unwrap_or(CardTags::NONE);
        Preference::of(self.book, position, tags, self.class)
    }

    /// The cards and their positions.
    pub(crate) fn cards(self) -> impl Iterator<Item = (usize, &'a Card)> + Clone {
        let cards = self.book.cards().iter().enumerate();
        cards.filter(move |(at, card)| {
            let Open {
                accepted,
                tags,
                splits,
                ..
            } = self;
            accepted.is_none_or(|accepted| accepted.binary_search(at).is_ok())
                && tags.is_none_or(|tags| self.book.suits(tags, *at))
                && splits.is_none_or(|splits| card.tenants < splits)
        })
    }
}

/// The best card for one part.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct One {
    /// Some pod's soft hold wants the room, so it is only free if that pod goes elsewhere.
    pub(crate) contended: bool,
    /// The pod's preference for the card.
    pub(crate) preference: Preference,
    cost: Cost,
    /// The card's position on the node.
    pub(crate) position: usize,
}

/// The best cards for several parts, in the order of the parts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Several {
    /// Soft holds want the room on at least one of the cards.
    pub(crate) contended: bool,
    /// The preference for the card that the pod likes least: if one card is busy, the others wait
    /// for it.
    pub(crate) preference: Preference,
    /// The cards' positions on the node.
    pub(crate) positions: Vec<usize>,
}

/// Computes the cost of a card, from its position and from the room that would be left.
pub(crate) trait CardCost: Fn(usize, Part) -> Cost {}
impl<F: Fn(usize, Part) -> Cost> CardCost for F {}

/// The best card for a single part; `None` if no card has room. `is_personal`: cards with equal
/// accounts may cost different amounts.
pub(crate) fn one(
    open: Open<'_>,
    part: Part,
    is_personal: bool,
    cost: impl CardCost,
) -> Option<One> {
    // Of cards that are all the same the first is taken, so the others need no look. Most cards of
    // a node are like the one before.
    let skips = !is_personal && open.is_indifferent();
    let mut before = None;
    let cards = open.cards().filter(move |(_, card)| {
        let is_again = skips && before == Some(*card);
        before = Some(*card);
        !is_again
    });
    candidates(cards, open, part, &cost).min()
}

/// The best cards for parts of several cards.
///
/// # Errors
/// The number of parts that can have a card, if that is not all.
pub(crate) fn several(
    open: Open<'_>,
    parts: &Parts,
    cost: impl CardCost,
) -> Result<Several, Count> {
    let able = |part| {
        let mut able: Vec<One> = candidates(open.cards(), open, part, &cost).collect();
        able.sort_unstable();
        able
    };
    let able: Vec<Vec<One>> = parts.iter().map(able).collect();
    let book = open.book;
    let choose = |contended: bool| {
        let uncontended = able.iter().map(|cards| {
            let cards = cards.iter().filter(|one| contended || !one.contended);
            cards.map(|one| one.position).collect()
        });
        let usable: Vec<Vec<usize>> = uncontended.collect();
        match_up(&usable, book.cards().len())
    };
    let found = |contended| {
        move |positions: Vec<usize>| {
            let preferences = positions.iter().map(|&at| open.preference(at));
            Several {
                contended,
                preference: preferences.max().unwrap_or_default(),
                positions,
            }
        }
    };
    let free = choose(false).map(found(false));
    free.or_else(|_| choose(true).map(found(true)))
}

/// The best cards for containers that choose their cards each for itself, in the containers' order.
///
/// The first container takes the best cards for it. The next container takes the best of the cards
/// that are left, and so on, as HAMi does it. If a container finds no card, the container before it
/// takes another one. At most [`MAX_TRIES`] arrangements are tried; several cards of one container
/// are not varied. The question whether there is an arrangement is asked with tight cards first. So
/// its answer does not depend on the policy, and is the same for every caller.
///
/// # Errors
/// The number of containers that can have their cards, if not all can.
pub(crate) fn own(open: Open<'_>, own: &[OwnParts], cost: impl CardCost) -> Result<Several, Count> {
    let tightest = |_, left: Part| Cost::try_from(left.memory.get()).unwrap_or(Cost::MAX);
    let (any, most) = arrange(open, own, true, &tightest);
    let any = any.ok_or(Count::new(most as u32))?;
    let preferred = |contended| {
        let (found, _) = arrange(open, own, contended, &cost);
        Some((contended, found?))
    };
    let preferred = preferred(false).or_else(|| preferred(true));
    let (contended, positions) = preferred.unwrap_or((true, any));
    let preferences = positions.iter().map(|&at| open.preference(at));
    Ok(Several {
        contended,
        preference: preferences.max().unwrap_or_default(),
        positions,
    })
}

/// An arrangement of all these containers, and how many found cards at once.
fn arrange(
    open: Open<'_>,
    own: &[OwnParts],
    contended: bool,
    cost: &impl CardCost,
) -> (Option<Vec<usize>>, usize) {
    let mut placing = Placing {
        open,
        own,
        cost,
        contended,
        taken: Vec::new(),
        most: 0,
        tries: 0,
    };
    let found = placing.place(0);
    let positions = placing.taken.iter().map(|(at, ..)| *at);
    (found.then(|| positions.collect()), placing.most)
}

/// Limit on the attempts to put a container on cards in the search for an arrangement. Eight
/// containers on eight cards find one at the eighth; only nodes that are nearly full need more.
const MAX_TRIES: usize = 2_000;

/// An arrangement of containers that is being made.
struct Placing<'a, C> {
    open: Open<'a>,
    own: &'a [OwnParts],
    cost: &'a C,
    /// May it use room that a soft hold wants?
    contended: bool,
    /// Cards in use, one entry for each: the card's position, the container's role, and its part.
    taken: Vec<(usize, Role, Part)>,
    /// Containers that had cards at once.
    most: usize,
    tries: usize,
}

impl<C: CardCost> Placing<'_, C> {
    /// Puts the container and all after it on cards.
    fn place(&mut self, container: usize) -> bool {
        self.most = self.most.max(container);
        let Some(&OwnParts { role, gpus, part }) = self.own.get(container) else {
            return true;
        };
        let mut able: Vec<One> = self.able(role, part).collect();
        able.sort_unstable();
        let gpus = gpus.get() as usize;
        if able.len() < gpus {
            return false;
        }
        let before = self.taken.len();
        let choices = if gpus == 1 { able.len() } else { 1 };
        for first in 0..choices {
            self.tries += 1;
            let cards = able[first..first + gpus].iter();
            self.taken
                .extend(cards.map(|one| (one.position, role, part)));
            if self.place(container + 1) {
                return true;
            }
            self.taken.truncate(before);
            if self.tries >= MAX_TRIES {
                return false;
            }
        }
        false
    }

    /// The cards that have room for such a container beside those before it.
    fn able(&self, role: Role, part: Part) -> impl Iterator<Item = One> {
        self.open.cards().filter_map(move |(position, card)| {
            let before = self.taken.iter().filter(|(at, ..)| *at == position);
            let before = before.map(|&(_, role, part)| (role, part));
            let all: Vec<_> = before.chain([(role, part)]).collect();
            let all = peak_of(&all);
            let left = card.left_beside(all, self.open.class)?;
            let uncontended = left.checked_sub(card.held);
            if !self.contended && uncontended.is_none() {
                return None;
            }
            Some(One {
                contended: uncontended.is_none(),
                preference: self.open.preference(position),
                cost: (self.cost)(position, uncontended.unwrap_or(left)),
                position,
            })
        })
    }
}

/// The number of cards that can be handed out whole, and the first of them.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Idle {
    pub(crate) cards: u32,
    /// The idle cards that a soft hold wants.
    pub(crate) wanted: u32,
    pub(crate) first: Option<usize>,
}

/// Counts the cards that [`whole`] would find, in one pass: a scan asks every node.
pub(crate) fn idle(open: Open<'_>) -> Idle {
    let mut idle = Idle::default();
    let mut first_wanted = None;
    for (at, card) in open.cards().filter(|(_, card)| card.is_idle()) {
        idle.cards += 1;
        if card.holds > 0 {
            idle.wanted += 1;
            first_wanted = first_wanted.or(Some(at));
        } else {
            idle.first = idle.first.or(Some(at));
        }
    }
    idle.first = idle.first.or(first_wanted);
    idle
}

/// The cards that can be handed out whole. Cards that no soft hold wants come first; each group
/// is in order of the index.
pub(crate) fn whole(open: Open<'_>) -> impl Iterator<Item = usize> {
    let idle = open.cards().filter(|(_, card)| card.is_idle());
    let wanted = idle.clone().filter(|(_, card)| card.holds > 0);
    let rest = idle.filter(|(_, card)| card.holds == 0);
    rest.chain(wanted).map(|(at, _)| at)
}

/// The cards that a soft hold names, one at least, if the pod can have all it asks on exactly these.
/// The hold may be of another claim of the same pod.
pub(crate) fn held_cards(book: &Book, claim: &Claim, hold: &Hold) -> Option<Vec<usize>> {
    let asked: Vec<Option<Part>> = match claim.ask() {
        Ask::Nothing => return None,
        // Containers that choose for themselves may be several on one card; they choose again.
        Ask::Parts(parts) if parts.own().is_some() => return None,
        Ask::Parts(parts) => parts.iter().map(Some).collect(),
        Ask::WholeCards(count) => vec![None; count.get() as usize],
    };
    let cards: Vec<usize> = hold.cards.iter().map(|(at, _)| *at).collect();
    let are_free = !cards.is_empty()
        && asked.len() == cards.len()
        && cards.iter().collect::<BTreeSet<_>>().len() == cards.len()
        && (cards.iter().zip(asked)).all(|(&at, asked)| is_free(book, claim, at, asked))
        && are_together(book, claim, &cards);
    are_free.then_some(cards)
}

/// The position of the first card, if the pod can have exactly these; 0 for a pod that asks for none.
pub(crate) fn are_free(book: &Book, claim: &Claim, allocation: &Allocation) -> Option<usize> {
    let inventory = &book.facts()?.inventory;
    if !allocation.answers(claim) {
        return None;
    }
    let free = |charge: Charge| {
        let asked = (!charge.whole).then_some(charge.part);
        let at = inventory.position(&charge.card)?;
        is_free(book, claim, at, asked).then_some(at)
    };
    let charges = charges_of(claim, allocation).into_iter();
    let cards: Vec<usize> = charges.map(free).collect::<Option<_>>()?;
    are_together(book, claim, &cards).then(|| cards.first().copied().unwrap_or(0))
}

/// Can the pod have so much of that card, or all of it where no part is asked?
fn is_free(book: &Book, claim: &Claim, position: usize, asked: Option<Part>) -> bool {
    let Some(card) = book.cards().get(position) else {
        return false;
    };
    let has_room = match asked {
        Some(part) => card.left_beside(part, claim.class()).is_some(),
        None => card.is_idle(),
    };
    has_room && accepts(book, claim, position)
}

/// Are these cards of one set that the pod accepts? Each of them alone is another question.
fn are_together(book: &Book, claim: &Claim, cards: &[usize]) -> bool {
    let (Some(wishes), Some(facts)) = (claim.wishes(), book.facts()) else {
        return true;
    };
    let groups = wishes.groups(facts.inventory.gpus());
    let has_all = |group: &Vec<usize>| cards.iter().all(|at| group.contains(at));
    cards.is_empty() || groups.iter().any(has_all)
}

/// Does the pod accept that card and the pods on it? Room does not count.
pub(crate) fn accepts(book: &Book, claim: &Claim, position: usize) -> bool {
    let gpus = book.facts().map_or(&[][..], |facts| facts.inventory.gpus());
    let wished = gpus.get(position).is_some_and(|gpu| match claim.wishes() {
        Some(wishes) => wishes.accept(gpu),
        None => true,
    });
    let has_split = |splits| book.cards()[position].tenants < splits;
    wished && book.suits(claim.tags(), position) && splits(book, claim).is_none_or(has_split)
}

/// Limit on the pods of a card if this claim's pod joins them; `None` for no limit.
fn splits(book: &Book, claim: &Claim) -> Option<u32> {
    // Kubelet counts the devices of all cards together, and would let all go on one.
    let by_cards = claim.carrier_on(Advertise::Units) == Carrier::Cards;
    let splits = book.facts().filter(|_| by_cards)?.splits?;
    Some(splits.get().into())
}

/// Filters these cards: keeps the cards that have room for a part.
fn candidates<'a>(
    cards: impl Iterator<Item = (usize, &'a Card)>,
    open: Open<'a>,
    part: Part,
    cost: &impl CardCost,
) -> impl Iterator<Item = One> {
    cards.filter_map(move |(position, card)| {
        let left = card.left_beside(part, open.class)?;
        // What is left with all holds counted; if only a hold is in the way, what is left without.
        let uncontended = left.checked_sub(card.held);
        Some(One {
            contended: uncontended.is_none(),
            preference: open.preference(position),
            cost: cost(position, uncontended.unwrap_or(left)),
            position,
        })
    })
}

/// A different card for each part, from the cards that have room for it. For each part `able`
/// lists these, the best first. Augmenting paths (Kuhn, *The Hungarian method for the assignment
/// problem*, 1955) find cards for all parts whenever that is possible.
///
/// # Errors
/// The number of parts that can have a card, if that is not all.
fn match_up(able: &[Vec<usize>], cards: usize) -> Result<Vec<usize>, Count> {
    let mut owner: Vec<Option<usize>> = vec![None; cards];
    let served = (0..able.len()).filter(|&part| {
        let mut asked = vec![false; cards];
        give(part, able, &mut owner, &mut asked)
    });
    let served = served.count();
    if served < able.len() {
        return Err(Count::new(served as u32));
    }
    let mut positions = vec![0; able.len()];
    for (card, part) in owner.into_iter().enumerate() {
        if let Some(part) = part {
            positions[part] = card;
        }
    }
    Ok(positions)
}

/// Gives the part a card: a free one, or the card of a part that can take another. Each card is
/// asked for at most once.
fn give(part: usize, able: &[Vec<usize>], owner: &mut [Option<usize>], asked: &mut [bool]) -> bool {
    if let Some(&free) = able[part].iter().find(|card| owner[**card].is_none()) {
        owner[free] = Some(part);
        return true;
    }
    for &card in &able[part] {
        if !std::mem::replace(&mut asked[card], true)
            && let Some(other) = owner[card]
            && give(other, able, owner, asked)
        {
            owner[card] = Some(part);
            return true;
        }
    }
    false
}

#[cfg(test)]
mod tests;
