//! Several parts find cards whenever that is possible, and the cheapest cards where the parts are
//! alike.

use proptest::prelude::*;

use super::*;

/// Tries every order of cards: can each part have its own card?
fn can_all(able: &[Vec<usize>], taken: &mut Vec<usize>) -> bool {
    let Some((first, rest)) = able.split_first() else {
        return true;
    };
    first.iter().any(|card| {
        if taken.contains(card) {
            return false;
        }
        taken.push(*card);
        let can = can_all(rest, taken);
        taken.pop();
        can
    })
}

proptest! {
    #[test]
    fn parts_are_matched_whenever_they_can_be(
        able in prop::collection::vec(prop::sample::subsequence((0..6usize).collect::<Vec<_>>(), 0..=6), 1..6),
    ) {
        let found = match_up(&able, 6);
        prop_assert_eq!(found.is_ok(), can_all(&able, &mut Vec::new()));
        match found {
            Ok(cards) => {
                let mut once = cards.clone();
                once.sort_unstable();
                once.dedup();
                prop_assert_eq!(once.len(), able.len());
                prop_assert!(able.iter().zip(&cards).all(|(able, card)| able.contains(card)));
            }
            Err(served) => prop_assert!((served.get() as usize) < able.len()),
        }
    }

    #[test]
    fn equal_parts_have_the_best_cards(
        order in Just((0..6usize).collect::<Vec<_>>()).prop_shuffle(), parts in 1..=6usize,
    ) {
        let mut found = match_up(&vec![order.clone(); parts], 6).unwrap();
        found.sort_unstable();
        let mut best = order[..parts].to_vec();
        best.sort_unstable();
        prop_assert_eq!(found, best);
    }
}
