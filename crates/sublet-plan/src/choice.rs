//! Which cards of a node serve an ask: candidates, what each costs, the best.
//!
//! This is the one place that chooses cards. Whatever looks at several cards at once (such as
//! their wiring) belongs in [`several`] and [`whole`], and nowhere else.

use sublet_model::{Ask, Book, Claim, Class, Count, Hold, Part, Parts};

use crate::CardLoad;
use crate::score::Cost;

/// The best card for one part.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct One {
    /// It is only free if no soft hold comes true.
    pub(crate) contended: bool,
    /// How busy it probably is, where that counts.
    pub(crate) load: CardLoad,
    cost: Cost,
    /// Its position on the node.
    pub(crate) position: usize,
}

/// The cards for several parts, in their order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Several {
    /// One of them is only free if no soft hold comes true.
    pub(crate) contended: bool,
    /// How busy the busiest probably is, where that counts: the others wait for it.
    pub(crate) load: CardLoad,
    /// Their positions on the node.
    pub(crate) positions: Vec<usize>,
}

/// What a card costs: its position, and what would be left of it.
pub(crate) trait CardCost: Fn(usize, Part) -> Cost {}
impl<F: Fn(usize, Part) -> Cost> CardCost for F {}

/// The best card for a part of one; `None` where none has room.
pub(crate) fn one(book: &Book, part: Part, class: Class, cost: impl CardCost) -> Option<One> {
    candidates(book, part, class, &cost).min()
}

/// The best cards for parts of several cards.
///
/// # Errors
/// The number of parts for which there are cards, if that is not all.
pub(crate) fn several(
    book: &Book,
    parts: &Parts,
    class: Class,
    cost: impl CardCost,
) -> Result<Several, Count> {
    let able = |part| {
        let mut able: Vec<One> = candidates(book, part, class, &cost).collect();
        able.sort_unstable();
        able
    };
    let able: Vec<Vec<One>> = parts.iter().map(able).collect();
    let choose = |contended: bool| {
        let open = able.iter().map(|cards| {
            let cards = cards.iter().filter(|one| contended || !one.contended);
            cards.map(|one| one.position).collect()
        });
        let open: Vec<Vec<usize>> = open.collect();
        match_up(&open, book.cards().len())
    };
    let found = |contended| {
        move |positions: Vec<usize>| {
            let loads = positions.iter().map(|&at| CardLoad::of(book, at, class));
            Several {
                contended,
                load: loads.max().unwrap_or_default(),
                positions,
            }
        }
    };
    let free = choose(false).map(found(false));
    free.or_else(|_| choose(true).map(found(true)))
}

/// The cards that can be handed out whole: first those that no soft hold wants, each group
/// in order of the index.
pub(crate) fn whole(book: &Book) -> impl Iterator<Item = usize> {
    let cards = book.cards().iter().enumerate();
    let idle = cards.filter(|(_, card)| card.is_idle());
    let wanted = idle.clone().filter(|(_, card)| card.holds > 0);
    let rest = idle.filter(|(_, card)| card.holds == 0);
    rest.chain(wanted).map(|(at, _)| at)
}

/// Could the pod have its parts on just the cards that it holds?
pub(crate) fn is_free(book: &Book, claim: &Claim, hold: &Hold) -> bool {
    let Ask::Parts(parts) = claim.ask() else {
        return false;
    };
    let free = |(part, &(at, _)): (Part, &(usize, Part))| {
        let card = book.cards().get(at);
        card.is_some_and(|card| card.left_beside(part, claim.class()).is_some())
    };
    parts.count().get() as usize == hold.cards.len() && parts.iter().zip(&hold.cards).all(free)
}

/// The cards that have room for a part.
fn candidates(
    book: &Book,
    part: Part,
    class: Class,
    cost: &impl CardCost,
) -> impl Iterator<Item = One> {
    let cards = book.cards().iter().enumerate();
    cards.filter_map(move |(position, card)| {
        let left = card.left_beside(part, class)?;
        // With holds counted in, or, if only a hold is in the way, without.
        let uncontended = left.checked_sub(card.held);
        Some(One {
            contended: uncontended.is_none(),
            load: CardLoad::of(book, position, class),
            cost: cost(position, uncontended.unwrap_or(left)),
            position,
        })
    })
}

/// A different card for each part, out of those that can serve it, the best first. Augmenting
/// paths (Kuhn, *The Hungarian method for the assignment problem*, 1955) find cards for all parts
/// whenever that is possible.
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

/// Gives the part a card: a free one, or that of a part which can have another. No card is
/// asked for twice.
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
