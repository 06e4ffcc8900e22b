//! Moves in a cluster that a run has filled, and in one where pods run from the start.

use sublet_model::{Allocation, CardRef, Entry, Grant, Standing};

use super::*;
use crate::sequence::Sequence;
use crate::trace::{BadLines, NodeList, PodList, read_nodes, read_pods};
use crate::{Running, Variant};

const PODS: &str = "name,cpu_milli,memory_mib,num_gpu,gpu_milli\np,1000,1,1,400\nq,1000,1,1,700\n";

fn lists() -> (NodeList, PodList) {
    let nodes = "sn,cpu_milli,memory_mib,gpu\na,9000,9,1\nb,9000,9,1\nc,9000,9,1\n";
    let (nodes, _) = read_nodes(nodes.as_bytes(), BadLines::Stop).unwrap();
    let (pods, _) = read_pods(PODS.as_bytes(), &nodes, BadLines::Stop).unwrap();
    (nodes, pods)
}

fn relocated(nodes: &NodeList, pods: &PodList, arrivals: &[u32]) -> Relocations {
    // The last node goes first among equals.
    let sequence = Sequence {
        ranks: vec![2, 1, 0],
        arrivals: arrivals.to_vec(),
    };
    let policy = "spread".parse().unwrap();
    let run = Inflation {
        nodes,
        pods,
        sequence: &sequence,
        policy: &policy,
        variant: Variant::default(),
    };
    relocate(run, 10)
}

/// A pod of 400 that runs on a row's only card.
fn running(pods: &PodList, number: u32, row: u32) -> Running {
    let claim = Arc::clone(&pods.rows[0].claim);
    let grant = Grant {
        container: claim.containers()[0].name.clone(),
        card: CardRef {
            index: GpuIndex(0),
            uuid: None,
        },
        memory: 400.into(),
    };
    Running {
        entry: Entry {
            pod: PodKey::new("team", &format!("r{number}")).unwrap(),
            uid: PodUid::new(&format!("r{number}")).unwrap(),
            node: sublet_model::NodeName::new("elsewhere").unwrap(),
            claim,
            allocation: Some(Allocation {
                grants: vec![grant],
            }),
            standing: Standing::Bound,
            assigned: true,
            priority: 0,
        },
        node: row,
        reach: None,
        stays: None,
    }
}

#[test]
fn what_a_run_has_spread_is_brought_together() {
    let (nodes, pods) = lists();
    let found = relocated(&nodes, &pods, &[0, 0, 1]);
    // Two of 400 and one of 700 on a card each; the two share one afterwards.
    let [step] = &found.moves[..] else {
        panic!("{found:?}")
    };
    assert_eq!((step.from.node, step.to.node), (2, 1));
    assert_eq!(step.pod.to_string(), "default/p");
    assert_eq!((found.states[0].free, found.states[1].free), (0, 1));
    assert_eq!((found.movable, found.staying.len()), (3, 0));
}

#[test]
fn what_runs_from_the_start_moves_too_unless_it_stays() {
    let (mut nodes, pods) = lists();
    nodes.running = vec![running(&pods, 0, 0), running(&pods, 1, 1)];
    let free = relocated(&nodes, &pods, &[]);
    assert_eq!(free.moves.len(), 1);
    assert_eq!(free.moves[0].pod.to_string(), "team/r1");
    assert_eq!((free.states[0].free, free.states[1].free), (1, 2));

    nodes.running[1].stays = Some("no owner");
    let one = relocated(&nodes, &pods, &[]);
    assert_eq!(one.moves[0].pod.to_string(), "team/r0");
    assert_eq!(one.staying, BTreeMap::from([("no owner", 1)]));
    assert_eq!(one.movable, 1);

    // Its nodes are its own and the empty one.
    nodes.running[0].reach = Some(Reach::new([(0, 0), (2, 0)]));
    assert_eq!(relocated(&nodes, &pods, &[]).moves, []);
}

#[test]
fn what_runs_counts_as_arrived() {
    let (mut nodes, pods) = lists();
    nodes.running = vec![running(&pods, 0, 0), running(&pods, 1, 1)];
    let sequence = Sequence::draw(1, &nodes, &pods, 900);
    let asked = |row: &u32| [400, 700][*row as usize];
    let arrived: u32 = sequence.arrivals.iter().map(asked).sum();
    // 90 % of three cards, of which 800 thousandths run.
    assert!((1200..=1900).contains(&arrived), "{arrived}");
    assert!(Sequence::draw(1, &nodes, &pods, 200).arrivals.is_empty());

    let policy = "binpack".parse().unwrap();
    let run = Inflation {
        nodes: &nodes,
        pods: &pods,
        sequence: &Sequence {
            ranks: vec![0, 1, 2],
            arrivals: vec![1],
        },
        policy: &policy,
        variant: Variant::default(),
    };
    let outcome = crate::inflate(run, |_| {});
    let allocated = |percent| outcome.curve.at(percent).map(|p| p.allocated_percent);
    assert_eq!((allocated(27), allocated(50)), (Some(26.67), Some(50.0)));
    assert_eq!(outcome.placements[0].place, Some((2, vec![0])));
}
