//! Clusters small enough to plan by hand.
//!
//! ```text
//! a 40: 4+3 - W 2!     a node with 40 CPU, and cards of 8 MiB: parts, free, whole, sick
//! b 40: P P 2*         one pod on two cards; a pod that must stay
//! -> a0b a/0 to b/2    a move: the second pod of a's card 0
//! => 2 free, 1 fed, 1x8    after each move: free GPUs, those with CPU, the largest pod
//! ```
//! A pod asks for as much CPU as memory, so that a GPU needs 8 CPU.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;

use sublet_model::{
    Claim, Gpu, GpuIndex, Health, Host, Inventory, Ledger, MilliCpu, NodeFacts, NodeName, PodUid,
    Sharing, Unit,
};

use super::*;
use crate::script::{claim, entry, placed};
use crate::{Fragmentation, ShapeCounts};

/// Nodes and pods, and the pods that must stay.
#[derive(Debug, Default)]
pub(super) struct Cluster {
    pub(super) ledger: Ledger,
    pub(super) staying: BTreeSet<PodUid>,
}

/// A claim with as much CPU as memory.
fn with_cpu(text: &str) -> Arc<Claim> {
    let cpu = match text.strip_suffix('x') {
        Some(cards) => 8 * cards.parse::<u64>().unwrap(),
        None => text.parse().unwrap(),
    };
    Arc::new(Claim::clone(&claim(text)).with_host(cpu_of(cpu)))
}

fn cpu_of(cpu: u64) -> Host {
    Host {
        cpu: MilliCpu::new(cpu),
        ..Host::ZERO
    }
}

impl Cluster {
    /// Adds the node that a line describes.
    fn add(&mut self, line: &str) {
        let (head, cards) = line.split_once(':').unwrap();
        let mut words = head.split_whitespace();
        let (name, cpu) = (words.next().unwrap(), words.next().unwrap());
        let sharing = match words.next() {
            Some("memory") => Sharing::Memory,
            Some("whole") => Sharing::Whole,
            _ => Sharing::Both,
        };
        let mut pods: BTreeMap<String, (Arc<Claim>, String, bool)> = BTreeMap::new();
        let mut gpus = Vec::new();
        for (index, card) in (0..).zip(cards.split_whitespace()) {
            let mut gpu = Gpu::plain(GpuIndex(index), 8.into());
            if card.ends_with('!') {
                gpu.health = Health::Sick(Arc::from("xid 79"));
            }
            gpus.push(gpu);
            let tenants = card.trim_end_matches('!').split('+').enumerate();
            for (number, tenant) in tenants.filter(|(_, tenant)| !matches!(*tenant, "" | "-")) {
                let stays = tenant.ends_with('*');
                let amount = tenant.trim_end_matches('*');
                if amount.parse::<u32>().is_ok() {
                    let uid = format!("{name}{index}{}", char::from(b'a' + number as u8));
                    pods.insert(uid, (with_cpu(amount), index.to_string(), stays));
                } else {
                    let pod = pods.entry(format!("{name}{amount}"));
                    let pod = pod.or_insert_with(|| (with_cpu("1x"), String::new(), stays));
                    pod.1 += &format!(" {index}");
                    pod.0 = with_cpu(&format!("{}x", pod.1.split_whitespace().count()));
                }
            }
        }
        self.ledger.set_node(NodeFacts {
            sharing,
            host: cpu_of(cpu.parse().unwrap()),
            ..NodeFacts::plain(
                NodeName::new(name).unwrap(),
                Arc::new(Inventory::new(gpus, vec![], vec![], vec![]).unwrap()),
            )
        });
        for (uid, (claim, cards, stays)) in pods {
            let mut entry = entry(&uid, name, &claim);
            entry.assigned = true;
            entry.allocation = Some(placed(&claim, &cards.trim().replace(' ', ","), 8.into()));
            if stays {
                self.staying.insert(entry.uid.clone());
            }
            self.ledger.enter(entry);
        }
    }

    pub(super) fn defragment(&self, most: usize) -> Defragmented {
        self.with(most, &|_, _| true)
    }

    fn with(&self, most: usize, open: &dyn Fn(&PodUid, NodeIdx) -> bool) -> Defragmented {
        let asked = Defrag {
            ledger: &self.ledger,
            unit: Unit::MiB,
            fragmentation: &Fragmentation::by(&ShapeCounts::default()),
            movable: &|uid| !self.staying.contains(uid),
            open,
            most,
        };
        defragment(asked)
    }

    pub(super) fn of(script: &str) -> Cluster {
        let mut cluster = Cluster::default();
        let lines = script.lines().map(str::trim);
        for line in lines.filter(|line| !line.is_empty() && !line.starts_with(['-', '='])) {
            cluster.add(line);
        }
        cluster
    }

    fn spot(&self, spot: &Spot) -> String {
        let cards: Vec<String> = spot.cards.iter().map(ToString::to_string).collect();
        format!("{}/{}", self.ledger.book(spot.node).name(), cards.join(","))
    }

    fn written(&self, found: &Defragmented) -> String {
        let mut text = String::new();
        for (at, state) in found.states.iter().enumerate() {
            if let Some(step) = at.checked_sub(1).map(|at| &found.moves[at]) {
                let (from, to) = (self.spot(&step.from), self.spot(&step.to));
                let _ = writeln!(text, "-> {} {from} to {to}", step.uid);
            }
            let ClusterState {
                free, fed, largest, ..
            } = state;
            let Largest { gpus, memory } = largest;
            let _ = writeln!(text, "=> {free} free, {fed} fed, {gpus}x{}", memory.get());
        }
        text
    }
}

/// Replays a script, and fails where an answer differs.
#[track_caller]
fn check(script: &str) {
    let cluster = Cluster::of(script);
    let lines = script.lines().map(str::trim);
    let expected: Vec<&str> = lines.filter(|line| line.starts_with(['-', '='])).collect();
    let found = cluster.defragment(100);
    assert_eq!(cluster.written(&found).trim(), expected.join("\n"));
}

#[test]
fn a_card_is_emptied_into_the_smallest_hole_that_is_large_enough() {
    check(
        "a 72: 4*
         b 72: 5*
         c 72: 7*
         d 72: 2
         => 0 free, 0 fed, 0x6
         -> d0a d/0 to b/0
         => 1 free, 1 fed, 1x8",
    );
}

#[test]
fn the_fewest_moves_come_first() {
    check(
        "a 72: 2+2
         b 72: 4 4*
         => 0 free, 0 fed, 0x4
         -> b0a b/0 to a/0
         => 1 free, 1 fed, 1x8",
    );
}

#[test]
fn several_pods_leave_a_card_the_largest_first() {
    check(
        "a 72: 3+2
         b 72: 5*
         c 72: 6*
         => 0 free, 0 fed, 0x3
         -> a0a a/0 to b/0
         => 0 free, 0 fed, 0x6
         -> a0b a/0 to c/0
         => 1 free, 1 fed, 1x8",
    );
}

#[test]
fn nothing_moves_where_nothing_is_won() {
    // There is room for the 3, but its card would not become free: the other pod there stays.
    check(
        "a 72: 3+2* -
         b 72: 5*
         => 1 free, 1 fed, 1x8",
    );
    // One of the two pods finds a hole, the other does not: so the first stays too.
    check(
        "a 72: 4+4
         b 72: 4*
         c 72: 6*
         => 0 free, 0 fed, 0x4",
    );
}

#[test]
fn the_largest_part_grows_where_no_card_comes_free() {
    // Only b's small pod finds a hole.
    check(
        "a 72: 7*
         b 72: 1+3
         => 0 free, 0 fed, 0x4
         -> b0a b/0 to a/0
         => 0 free, 0 fed, 0x5",
    );
}

#[test]
fn sick_cards_are_neither_won_nor_used() {
    check(
        "a 72: 2 3!
         b 72: 4*!
         => 0 free, 0 fed, 0x6",
    );
}

#[test]
fn a_pod_fits_with_its_cpu_before_it_leaves() {
    // b has the smaller hole, but too little CPU.
    check(
        "a 72: 2
         b 7: 6*
         c 72: 4*
         => 0 free, 0 fed, 0x6
         -> a0a a/0 to c/0
         => 1 free, 1 fed, 1x8",
    );
    // On its own node too: during the move the pod is at both places, and its CPU counts twice.
    check(
        "a 9: 2 6*
         => 0 free, 0 fed, 0x6",
    );
    check(
        "a 10: 2 6*
         => 0 free, 0 fed, 0x6
         -> a0a a/0 to a/1
         => 1 free, 0 fed, 1x8",
    );
}

#[test]
fn a_free_gpu_keeps_its_cpu_if_there_is_another_hole() {
    // b's hole is smaller, but then b would have only 6 CPU left for its free GPU.
    check(
        "a 72: 2
         b 13: 5* -
         c 72: 4*
         => 1 free, 1 fed, 1x8
         -> a0a a/0 to c/0
         => 2 free, 2 fed, 1x8",
    );
}

#[test]
fn a_gpu_that_has_cpu_is_won_first() {
    let cluster = Cluster::of("a 2: 2\nb 72: 2\nc 72: 4*\n");
    let found = cluster.defragment(1);
    assert_eq!(cluster.spot(&found.moves[0].from), "b/0");
    assert_eq!((found.states[1].free, found.states[1].fed), (1, 1));
}

#[test]
fn pods_with_cards_of_their_own_make_room_for_a_larger_one() {
    check(
        "a 72: W - - -
         b 72: W* -
         => 4 free, 4 fed, 3x8
         -> aW a/0 to b/1
         => 4 free, 4 fed, 4x8",
    );
    // Two cards at once move to the node with the fewest free cards that are enough.
    check(
        "a 72: P P - -
         b 72: W* W* - -
         c 72: W* - - -
         => 7 free, 7 fed, 3x8
         -> aP a/0,1 to b/2,3
         => 7 free, 7 fed, 4x8",
    );
    // If the largest pod only fits on another node than before, nothing is won.
    check(
        "a 72: W -
         b 72: W -
         c 72: - -
         => 4 free, 4 fed, 2x8",
    );
}

#[test]
fn a_card_on_the_emptiest_node_is_worth_two() {
    check(
        "a 72: 2
         b 72: 2 - -
         c 72: 4*
         => 2 free, 2 fed, 2x8
         -> b0a b/0 to c/0
         => 3 free, 3 fed, 3x8
         -> a0a a/0 to c/0
         => 4 free, 4 fed, 3x8",
    );
}

#[test]
fn nodes_for_parts_only_have_no_room_for_whole_gpus() {
    check(
        "a 72 memory: 2
         b 72 memory: 4
         => 0 free, 0 fed, 0x6
         -> a0a a/0 to b/0
         => 1 free, 1 fed, 0x8",
    );
}

#[test]
fn nodes_that_are_closed_to_a_pod_are_left_alone() {
    let cluster = Cluster::of("a 72: 2\nb 9: 6*\nc 9: 3*\n");
    let closed = cluster.ledger.find("b").unwrap();
    let found = cluster.with(9, &|_, node| node != closed);
    assert_eq!(cluster.spot(&found.moves[0].to), "c/0");
}

#[test]
fn no_more_moves_than_asked() {
    let cluster = Cluster::of("a 72: 2 2 2\nb 9: 3*+3*\nc 9: 2*+4*\nd 9: 1*+5*\n");
    for most in 0..5 {
        let found = cluster.defragment(most);
        assert_eq!(found.moves.len(), most.min(3));
        assert_eq!(found.states.len(), found.moves.len() + 1);
    }
    // A goal that takes two moves is not begun when only one move is left.
    let cluster = Cluster::of("a 72: 3+2\nb 9: 5*\nc 9: 6*\nd 9: -\n");
    assert_eq!(cluster.defragment(1).moves, []);
    assert_eq!(cluster.defragment(2).moves.len(), 2);
}
