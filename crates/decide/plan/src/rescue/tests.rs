//! Rescues in short stories, and compared with every set of pods.

use proptest::prelude::*;
use sublet_model::Standing;

use super::*;
use crate::EngineOptions;
use crate::script::{claim, entry, node, placed, uid};

/// Pods of one node: name, card, memory in GiB, priority.
fn engine(cards: &str, pods: &[(&str, &str, u32, i32)]) -> (Engine, NodeIdx, Vec<Removable>) {
    let mut engine = Engine::new(EngineOptions::default());
    let at = engine.set_node(node("a", cards).0);
    let mut row = Vec::new();
    for (age, &(name, card, memory, priority)) in pods.iter().enumerate() {
        let claim = claim(&memory.to_string());
        let mut pod = entry(name, "a", &claim);
        pod.allocation = Some(placed(&claim, card, 16.into()));
        pod.standing = Standing::Bound;
        pod.priority = priority;
        engine.observe(pod);
        row.push(Removable {
            pod: Evictable {
                uid: uid(name),
                breaks: false,
            },
            priority,
            started: Some(format!("2026-01-01T00:00:{age:02}Z").into()),
        });
    }
    // As the scheduler orders pods: by importance, the oldest of a priority first.
    row.sort_by_key(|one| Reverse(one.priority));
    (engine, at, row)
}

fn rescued(
    engine: &mut Engine,
    prospect: &Prospect,
    asked: &str,
    guarded: &[&str],
) -> Result<String, NoRescue> {
    let waiting = entry("x", "a", &claim(asked));
    let mut prospect = prospect.clone();
    for one in &mut prospect.row {
        one.pod.breaks = guarded.contains(&one.pod.uid.as_str());
    }
    let before: Vec<Entry> = engine.ledger().entries().cloned().collect();
    let prospects = std::slice::from_ref(&prospect);
    let breaks = |all: &[&Entry]| all.iter().any(|one| guarded.contains(&one.uid.as_str()));
    let rescue = engine.rescue(Time::from_ms(0), &waiting, prospects, breaks);
    assert!(
        engine.ledger().entries().eq(&before),
        "nothing is evicted here"
    );
    let victims = rescue?.victims.into_iter();
    Ok(victims
        .map(|one| one.to_string())
        .collect::<Vec<_>>()
        .join(" "))
}

#[test]
fn the_fewest_go_then_the_lowest_then_the_youngest() {
    use NoRescue::{Guarded, NobodyHelps, RoomComes};
    type Case<'a> = (
        &'a [(&'a str, &'a str, u32, i32)],
        &'a str,
        &'a [&'a str],
        Result<&'a str, NoRescue>,
    );
    let cases: &[Case<'_>] = &[
        // The issue's own: the sum is free, no card is. Both help alike; q is younger.
        (&[("p", "0", 9, 1), ("q", "1", 9, 1)], "14", &[], Ok("q")),
        (&[("p", "0", 9, 1), ("q", "1", 9, 2)], "14", &[], Ok("p")),
        // One of a high priority rather than two of a low one.
        (
            &[("p", "0", 12, 5), ("q", "1", 6, 1), ("r", "1", 6, 1)],
            "16",
            &[],
            Ok("p"),
        ),
        // The large one of a card rather than two small ones, though it is older.
        (
            &[
                ("p", "0", 9, 1),
                ("q", "0", 3, 1),
                ("r", "0", 3, 1),
                ("s", "1", 16, 9),
            ],
            "9",
            &[],
            Ok("p"),
        ),
        // Cards of two nodes' worth: two whole cards need both.
        (&[("p", "0", 9, 1), ("q", "1", 9, 1)], "2x", &[], Ok("p q")),
        (&[("p", "0", 9, 1), ("q", "1", 9, 1)], "14", &["q"], Ok("p")),
        (
            &[("p", "0", 9, 1), ("q", "1", 9, 1)],
            "14",
            &["p", "q"],
            Err(Guarded),
        ),
        (
            &[("p", "0", 9, 1), ("q", "1", 9, 1)],
            "7",
            &[],
            Err(RoomComes),
        ),
        (
            &[("p", "0", 9, 1), ("q", "1", 9, 1)],
            "17",
            &[],
            Err(NobodyHelps),
        ),
        (&[], "17", &[], Err(NobodyHelps)),
    ];
    for (pods, asked, guarded, expected) in cases {
        let (mut engine, node, row) = engine("0/16 0/16", pods);
        let going = BTreeSet::new();
        let prospect = Prospect { node, row, going };
        let found = rescued(&mut engine, &prospect, asked, guarded);
        assert_eq!(
            found.as_deref(),
            expected.as_ref().copied(),
            "{pods:?} {asked}"
        );
    }
}

#[test]
fn nobody_goes_where_somebody_goes_anyway() {
    let pods = [("p", "0", 9, 1), ("q", "1", 9, 1)];
    let (mut engine, node, mut row) = engine("0/16 0/16", &pods);
    row.retain(|one| one.pod.uid != uid("p"));
    let going = BTreeSet::from([uid("p")]);
    let prospect = Prospect { node, row, going };
    let found = rescued(&mut engine, &prospect, "14", &[]);
    assert_eq!(found, Err(NoRescue::RoomComes));
}

#[test]
fn who_would_take_the_room_of_a_rescue_is_known() {
    let (mut engine, node, _) = engine("0/16 0/16", &[("p", "0", 9, 1), ("q", "1", 9, 1)]);
    let (waiting, late) = (entry("x", "a", &claim("14")), entry("y", "a", &claim("7")));
    let going = BTreeSet::from([uid("q")]);
    let mut leaves = |late: &Entry, going: &BTreeSet<PodUid>| {
        engine.leaves_room(Time::from_ms(0), &waiting, node, going, late)
    };
    // It fits on p's card, beside the pod for which q goes.
    assert!(leaves(&late, &going));
    assert!(
        !leaves(&entry("y", "a", &claim("8")), &going),
        "it fits nowhere yet"
    );
    // Without a rescue under way it is in nobody's way.
    assert!(leaves(&late, &BTreeSet::new()));
}

proptest! {
    /// No smaller set helps, none of the set can stay, and the pod then has its place.
    #[test]
    fn a_rescue_is_as_small_as_can_be(
        pods in prop::collection::vec((1..17u32, 0..3u16, 0..3i32), 0..7),
        asked in 1..17u32,
    ) {
        let mut used = [0; 3];
        let names = ["p0", "p1", "p2", "p3", "p4", "p5", "p6"];
        let cards = ["0", "1", "2"];
        let pods: Vec<_> = pods.iter().zip(names).filter_map(|(&(memory, card, priority), name)| {
            let card = usize::from(card);
            (used[card] + memory <= 16).then(|| {
                used[card] += memory;
                (name, cards[card], memory, priority)
            })
        }).collect();
        let (mut engine, node, row) = engine("0/16 0/16 0/16", &pods);
        let prospect = Prospect { node, row, going: BTreeSet::new() };
        let found = rescued(&mut engine, &prospect, &asked.to_string(), &[]);
        let fits = |gone: &[&str]| (0..3).any(|card| {
            let stay = pods.iter().filter(|pod| pod.1 == cards[card] && !gone.contains(&pod.0));
            stay.map(|pod| pod.2).sum::<u32>() + asked <= 16
        });
        if fits(&[]) {
            prop_assert_eq!(found, Err(NoRescue::RoomComes));
            return Ok(());
        }
        let found = found.expect("each card alone is large enough");
        let gone: Vec<&str> = found.split(' ').collect();
        prop_assert!(fits(&gone));
        let sets = (0..1u32 << pods.len()).filter(|bits| {
            let set = pods.iter().enumerate().filter(|(at, _)| bits >> at & 1 == 1);
            fits(&set.map(|(_, pod)| pod.0).collect::<Vec<_>>())
        });
        let fewest = sets.map(u32::count_ones).min();
        prop_assert_eq!(u32::try_from(gone.len()).ok(), fewest);
    }
}
