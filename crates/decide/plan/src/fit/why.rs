//! Reasons why a node's cards cannot take a claim, with the numbers: worked out only on request.

use std::sync::Arc;

use sublet_model::{Ask, Card, CardTags, CardWishes, Class, Count, Gpu, MiB, Milli, Part, Parts};

use super::{Case, Refusal};
use crate::{Reason, SickCards};

impl Refusal for Reason {
    fn too_few(case: &Case<'_>, can_be_had: Count) -> Reason {
        too_few_cards(case, can_be_had)
    }

    fn unwanted(wishes: &Arc<CardWishes>, gpus: &[Gpu]) -> Reason {
        let mut models: Vec<Arc<str>> = Vec::new();
        for gpu in gpus {
            if !models.contains(&gpu.model) {
                models.push(gpu.model.clone());
            }
        }
        let accepted = CardWishes {
            one_numa: false,
            ..CardWishes::clone(wishes)
        };
        Reason::Unwanted {
            wishes: wishes.clone(),
            models,
            numa_unknown: wishes.one_numa && !accepted.groups(gpus).is_empty(),
        }
    }
}

/// The reason why there are fewer parts or whole cards than the pod asks for.
fn too_few_cards(case: &Case<'_>, can_be_had: Count) -> Reason {
    if let Some(tags) = case.open.tags {
        let case = case.whatever_tags();
        return match case.on_cards() {
            Ok(_) => by_tags(&case, tags),
            Err(can_be_had) => too_few_cards(&case, can_be_had),
        };
    }
    if let Some(splits) = case.open.splits {
        let case = case.whatever_splits();
        return match case.on_cards() {
            Ok(_) => Reason::Splits { splits },
            Err(can_be_had) => too_few_cards(&case, can_be_had),
        };
    }
    match case.asked.ask {
        Ask::Parts(parts) => few_rooms(case, parts, can_be_had),
        Ask::WholeCards(asked) => few_idle(case, *asked, can_be_had),
        // It asks for no card, so there is enough of them.
        Ask::Nothing => Reason::NoGpu,
    }
}

/// The reason why the pod goes on no cards, though there is room. It names the first card that has
/// room and a tag that keeps the pod away, whatever the policy prefers.
fn by_tags(case: &Case<'_>, tags: &CardTags) -> Reason {
    let class = case.open.class;
    let has_room = |card: &Card| match case.asked.ask {
        Ask::Nothing => false,
        Ask::WholeCards(_) => card.is_idle(),
        Ask::Parts(parts) => {
            let own = parts.own().into_iter().flatten().map(|own| own.part);
            let mut parts = own.chain(parts.iter());
            parts.any(|part| card.left_beside(part, class).is_some())
        }
    };
    let mut roomy = case.open.cards().filter(|(_, card)| has_room(card));
    let conflict = roomy.find_map(|(at, _)| Some((at, case.book.tag_conflict(tags, at)?)));
    conflict.map_or(Reason::NoGpu, |(at, tag)| Reason::Tags {
        gpu: case.facts.inventory.gpus()[at].index,
        tag,
    })
}

/// The reason why there are not enough cards for several parts.
fn few_rooms(case: &Case<'_>, parts: &Parts, fitting: Count) -> Reason {
    let total = Count::new(cards(case).count() as u32);
    let asked = match parts.own() {
        Some(own) => own.iter().map(|own| own.gpus).max().unwrap_or_default(),
        None => parts.count(),
    };
    if asked > total {
        return Reason::TooFew {
            asked,
            total,
            chosen: case.open.accepted.is_some(),
        };
    }
    if fitting == Count::ZERO {
        return no_room(case, parts);
    }
    if let Some(own) = parts.own() {
        let own = own.len() as u32;
        return Reason::TooFewForAll {
            containers: own,
            fitting: fitting.get(),
        };
    }
    Reason::TooFewRooms {
        asked,
        part: parts.first(),
        fitting,
    }
}

/// The reason why so many cards cannot be handed out whole.
fn few_idle(case: &Case<'_>, asked: Count, idle: Count) -> Reason {
    let count = |is_it: &dyn Fn(&Card) -> bool| {
        Count::new(cards(case).filter(|(card, _)| is_it(card)).count() as u32)
    };
    let total = count(&|_| true);
    if asked > total {
        return Reason::TooFew {
            asked,
            total,
            chosen: case.open.accepted.is_some(),
        };
    }
    Reason::NoIdle {
        asked,
        idle,
        total,
        sick: SickCards::among(cards(case).map(|(_, gpu)| &gpu.health)),
        unsure: count(&|card| card.tenants == 0 && !card.unsure.is_zero()),
    }
}

/// The cards that the pod accepts.
fn cards<'a>(case: &Case<'a>) -> impl Iterator<Item = (&'a Card, &'a Gpu)> + Clone {
    let gpus = case.facts.inventory.gpus();
    case.open.cards().map(|(at, card)| (card, &gpus[at]))
}

/// The largest card by this measure, and the first of several equals, so that the answer does not
/// depend on chance.
fn largest<'a>(case: &Case<'a>, size: impl Fn(&Card) -> MiB) -> Option<(MiB, &'a Card, &'a Gpu)> {
    let sized = cards(case).map(|(card, gpu)| (size(card), card, gpu));
    sized.reduce(|best, next| if next.0 > best.0 { next } else { best })
}

/// The reason why no card has room for the largest of these parts.
fn no_room(case: &Case<'_>, parts: &Parts) -> Reason {
    let part = parts.own().map_or(parts.first(), |own| own[0].part);
    let doubt = case.book.unplaced() > Count::ZERO;
    let Some((capacity, _, gpu)) = largest(case, |card| card.capacity.memory) else {
        return Reason::NoGpu;
    };
    let asked = part.on(capacity).memory;
    if capacity < asked {
        return Reason::TooSmall {
            asked,
            largest: capacity,
            gpu: gpu.index,
        };
    }
    let is_large = |card: &Card| part.on(card.capacity.memory).memory <= card.capacity.memory;
    let large = cards(case).filter(|(card, _)| is_large(card));
    let sick = SickCards::among(large.map(|(_, gpu)| &gpu.health));
    if !doubt && let Some(reason) = no_compute(case, part) {
        return reason;
    }
    let room = |card: &Card| if doubt { MiB::ZERO } else { card.free().memory };
    let Some((hole, card, gpu)) = largest(case, room) else {
        return Reason::NoGpu;
    };
    Reason::NoRoom {
        asked: part.on(card.capacity.memory).memory,
        hole,
        gpu: gpu.index,
        sick,
        unsure: match doubt {
            true => card.capacity.memory.saturating_sub(card.used.memory),
            false => card.unsure.memory,
        },
    }
}

/// The reason why cards with enough memory cannot take a part; `None` if there are no such cards.
fn no_compute(case: &Case<'_>, part: Part) -> Option<Reason> {
    let memory = Part {
        compute: Milli::ZERO,
        ..part
    };
    let roomy =
        |(card, _): &(&Card, &Gpu)| card.left_beside(memory, Class::Opportunistic).is_some();
    let more = |best: (_, _), next: (_, _)| {
        let of = |(card, _): (&Card, &Gpu)| card.free().compute;
        if of(next) > of(best) { next } else { best }
    };
    // Of several with the most, the first, so that the answer does not depend on chance.
    let Some((card, gpu)) = cards(case).filter(roomy).reduce(more) else {
        let overfull = |(card, _): &(&Card, &Gpu)| {
            let taken = card.used.memory.plus(card.unsure.memory);
            let left = card.capacity.memory.saturating_sub(taken);
            let is_open = card.healthy && card.whole == 0;
            let asked = part.on(card.capacity.memory).memory;
            is_open && asked <= left && !card.used.fits_in(card.capacity)
        };
        let (_, gpu) = cards(case).find(overfull)?;
        return Some(Reason::Overfull { gpu: gpu.index });
    };
    let asked = part.on(card.capacity.memory);
    if case.open.class == Class::Guaranteed && asked.fits_in(card.free()) {
        return Some(Reason::Company { gpu: gpu.index });
    }
    Some(Reason::NoCompute {
        asked: part.compute,
        left: card.free().compute,
        gpu: gpu.index,
    })
}
