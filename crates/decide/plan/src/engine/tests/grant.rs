//! The rules that every grant must obey, whatever came before it.

use std::collections::BTreeSet;

use sublet_model::{Advertise, Ask, Carrier, Ledger, MiB};

use super::tags::check_tags;
use crate::script::uid;

/// A grant fits: each card has room, a whole card has only that pod, and tags and splits allow it.
pub(super) fn check_grant(ledger: &Ledger, pod: u8, before: &Ledger) {
    let entry = ledger.entry(&uid(&format!("p{pod}"))).unwrap();
    let book = ledger.book(ledger.find(entry.node.as_str()).unwrap());
    let allocation = entry.allocation.as_ref().unwrap();
    assert!(allocation.answers(&entry.claim), "{entry:?}");
    let was = before.book(before.find(entry.node.as_str()).unwrap());
    let mut touched = BTreeSet::new();
    for grant in &allocation.grants {
        let inventory = &book.facts().unwrap().inventory;
        let at = inventory.position(&grant.card).unwrap();
        let card = book.cards()[at];
        assert!(card.healthy && card.used.fits_in(card.capacity), "{card:?}");
        assert!(card.whole == 0 || card.tenants == 1, "{card:?}");
        let splits = book.facts().unwrap().splits;
        if entry.claim.carrier_on(Advertise::Units) == Carrier::Cards
            && let Some(splits) = splits
        {
            assert!(card.tenants <= splits.get().into(), "{card:?}");
        }
        touched.insert(at);
    }
    touched
        .iter()
        .for_each(|&at| check_tags(entry, at, book, before));
    let growth = |at: &usize| book.cards()[*at].used.saturating_sub(was.cards()[*at].used);
    match entry.claim.ask() {
        Ask::Parts(parts) if parts.own().is_some() => {
            let taken: MiB = touched.iter().map(|at| growth(at).memory).sum();
            assert!(!taken.is_zero(), "{entry:?}");
        }
        Ask::Parts(parts) => {
            let mut asked: Vec<_> = parts.iter().collect();
            for at in &touched {
                let card = book.cards()[*at].capacity.memory;
                let part = asked.iter().position(|part| part.on(card) == growth(at));
                asked.swap_remove(part.unwrap_or_else(|| panic!("GPU {at}: {entry:?}")));
            }
            assert!(asked.is_empty(), "{entry:?}");
        }
        Ask::WholeCards(count) => assert_eq!(touched.len(), count.get() as usize),
        Ask::Nothing => assert!(touched.is_empty()),
    }
}
