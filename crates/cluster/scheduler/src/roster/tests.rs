//! For any order, and nodes that come and go, the answer is a plain look-up's.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

/// Names of different lengths, some with equal beginnings or ends, and an empty one.
const NAMES: [&str; 12] = [
    "", "a", "b", "aa", "ab", "ba", "n-1", "n-10", "n-2", "n-20", "1-n", "nowhere",
];

#[derive(Debug, Clone)]
enum Step {
    Insert(usize, u32),
    Remove(usize),
    Resolve(Vec<usize>),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        3 => (0..NAMES.len(), 0..40u32).prop_map(|(name, slot)| Step::Insert(name, slot)),
        1 => (0..NAMES.len()).prop_map(Step::Remove),
        // Long enough quiet for an order to be learnt.
        6 => prop::collection::vec(0..NAMES.len(), 0..20).prop_map(Step::Resolve),
    ];
    let quiet = prop::collection::vec(0..NAMES.len(), 0..20).prop_map(Step::Resolve);
    (
        prop::collection::vec(step.clone(), 0..30),
        prop::collection::vec(quiet, 0..40),
        prop::collection::vec(step, 0..20),
    )
        .prop_map(|(first, quiet, last)| [first, quiet, last].concat())
}

proptest! {
    #[test]
    fn it_answers_as_a_plain_look_up_does(steps in steps()) {
        let mut roster = Roster::default();
        let mut plain: BTreeMap<&str, NodeIdx> = BTreeMap::new();
        for step in steps {
            match step {
                Step::Insert(name, slot) => {
                    roster.insert(NAMES[name], NodeIdx(slot));
                    plain.insert(NAMES[name], NodeIdx(slot));
                }
                Step::Remove(name) => {
                    prop_assert_eq!(roster.remove(NAMES[name]), plain.remove(NAMES[name]));
                }
                Step::Resolve(names) => {
                    let names: Vec<&str> = names.into_iter().map(|name| NAMES[name]).collect();
                    let (known, unknown): (Vec<&str>, Vec<&str>) =
                        names.iter().partition(|name| plain.contains_key(**name));
                    let known = known.iter().map(|name| plain[name]).collect();
                    prop_assert_eq!(roster.resolve(&names), (known, unknown));
                }
            }
            prop_assert_eq!(roster.len(), plain.len());
            let mut names: Vec<&str> = roster.names().collect();
            names.sort_unstable();
            prop_assert!(names.iter().eq(plain.keys()));
        }
    }
}

/// The names in the order that is expected.
fn expected(roster: &Roster) -> Vec<NodeIdx> {
    let order = roster.order.as_ref();
    order.map_or(vec![], |order| {
        order.places.iter().map(|place| place.1).collect()
    })
}

#[test]
fn an_order_that_comes_again_and_again_is_learnt() {
    let mut roster = Roster::default();
    let names: Vec<String> = (0..9).map(|number| format!("n{number}")).collect();
    for (slot, name) in (0..).zip(&names) {
        roster.insert(name, NodeIdx(slot));
    }
    let slots = |numbers: &[u32]| numbers.iter().copied().map(NodeIdx).collect::<Vec<_>>();
    let backwards: Vec<&str> = names.iter().rev().skip(1).map(String::as_str).collect();
    for _ in 0..FIRST_PATIENCE {
        assert_eq!(
            roster.resolve(&backwards).0,
            slots(&[7, 6, 5, 4, 3, 2, 1, 0])
        );
        assert_eq!(expected(&roster), slots(&[0, 1, 2, 3, 4, 5, 6, 7, 8]));
    }
    roster.resolve(&backwards);
    assert_eq!(expected(&roster), slots(&[7, 6, 5, 4, 3, 2, 1, 0, 8]));
    // A node that was never named is found all the same.
    assert_eq!(roster.resolve(&["n8", "n9"]), (slots(&[8]), vec!["n9"]));
    // A new node: back to the beginning.
    roster.insert("n9", NodeIdx(9));
    roster.resolve(&["n9"]);
    assert_eq!(expected(&roster), slots(&[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]));
}
