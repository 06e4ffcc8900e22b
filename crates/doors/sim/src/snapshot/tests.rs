//! A cluster that runs is one that somebody has filled before.

use sublet_model::{Allocation, CardRef, Grant, PodKey, PodUid, Standing};

use super::*;
use crate::trace::{BadLines, NodeList, PodList, read_nodes, read_pods};
use crate::{Inflation, Outcome, Sequence, Variant, inflate};

/// Twelve nodes of some kinds, and pods of some sizes.
fn lists() -> (NodeList, PodList) {
    let mut nodes = "sn,cpu_milli,memory_mib,gpu\n".to_owned();
    for at in 0..12 {
        let gpus = [1, 2, 4, 8][at % 4];
        nodes += &format!("n{at},{},99999,{gpus}\n", 4000 + 9000 * gpus);
    }
    let mut pods = "name,cpu_milli,memory_mib,num_gpu,gpu_milli\n".to_owned();
    let asks = [
        (1, 330),
        (1, 470),
        (1, 1000),
        (2, 1000),
        (1, 810),
        (0, 0),
        (4, 1000),
    ];
    for (at, (gpus, milli)) in asks.into_iter().enumerate() {
        pods += &format!("p{at},{},1,{gpus},{milli}\n", 2000 + 1000 * at);
    }
    let (nodes, _) = read_nodes(nodes.as_bytes(), BadLines::Stop).unwrap();
    let (pods, _) = read_pods(pods.as_bytes(), &nodes, BadLines::Stop).unwrap();
    (nodes, pods)
}

fn played(
    nodes: &NodeList,
    pods: &PodList,
    arrivals: &[u32],
    policy: &str,
    restart: Option<u32>,
) -> Outcome {
    let sequence = Sequence {
        ranks: (0..nodes.rows.len() as u32).collect(),
        arrivals: arrivals.to_vec(),
    };
    let run = Inflation {
        nodes,
        pods,
        sequence: &sequence,
        policy: &policy.parse().unwrap(),
        variant: Variant {
            restart_at: restart,
            ..Variant::default()
        },
    };
    inflate(run, |_| {})
}

/// The first arrivals of a run, as pods that run from the start.
fn running(pods: &PodList, outcome: &Outcome, first: usize) -> Vec<Running> {
    let mut running = Vec::new();
    for (number, placement) in outcome.placements[..first].iter().enumerate() {
        let Some((node, cards)) = &placement.place else {
            continue;
        };
        let pod = &pods.rows[placement.pod as usize];
        let grant = |card: &u16| Grant {
            container: pod.claim.containers()[0].name.clone(),
            card: CardRef {
                index: sublet_model::GpuIndex(*card),
                uuid: None,
            },
            memory: 1000.into(),
        };
        running.push(Running {
            entry: Entry {
                pod: PodKey::new("default", &pod.name).unwrap(),
                uid: PodUid::new(&format!("r{number}-{}", pod.name)).unwrap(),
                node: sublet_model::NodeName::new("any").unwrap(),
                claim: Arc::clone(&pod.claim),
                allocation: Some(Allocation {
                    grants: cards.iter().map(grant).collect(),
                }),
                standing: Standing::Bound,
                assigned: true,
                priority: 0,
            },
            node: *node,
            reach: None,
            stays: None,
        });
    }
    // As the API server lists them.
    running.sort_by(|a, b| a.entry.uid.cmp(&b.entry.uid));
    running
}

#[test]
fn a_run_goes_on_from_a_snapshot_as_after_a_restart() {
    let (nodes, pods) = lists();
    for (seed, policy) in (0..).zip([
        "tiling",
        "fgd",
        "fgd-online",
        "best-fit",
        "tiling",
        "tiling",
    ]) {
        let arrivals = Sequence::draw(seed, &nodes, &pods, 1200).arrivals;
        let all = played(&nodes, &pods, &arrivals, policy, Some(60));
        // The restart comes with the first arrival that makes it 60 of 100.
        let capacity = 1000 * 45;
        let mut arrived = 0;
        let first = 1 + arrivals
            .iter()
            .position(|row| {
                arrived += pods.rows[*row as usize].claim.ask().milli(1000.into());
                arrived * 1000 >= capacity * 595
            })
            .unwrap();
        let later = NodeList {
            running: running(&pods, &all, first),
            ..nodes.clone()
        };
        let rest = played(&later, &pods, &arrivals[first..], policy, None);
        assert_eq!(rest.placements, all.placements[first..], "{policy}");
        assert_eq!(rest.used_nodes, all.used_nodes);
        assert_eq!(rest.curve.points.last(), all.curve.points.last());
    }
}

#[test]
fn a_pod_goes_only_where_it_may_and_soft_marks_come_last() {
    let (nodes, mut pods) = lists();
    pods.rows[0].reach = Some(Reach::new([(2, 1), (7, 0)]));
    let places = played(&nodes, &pods, &[0; 40], "binpack", None).placements;
    let rows: Vec<u32> = places
        .iter()
        .filter_map(|p| p.place.as_ref())
        .map(|p| p.0)
        .collect();
    // Three thirds on each of the eight cards of row 7 and, then, the four of row 2.
    let expected = [vec![7; 24], vec![2; 12]].concat();
    assert_eq!(rows, expected);
    pods.rows[0].reach = Some(Reach::default());
    assert_eq!(played(&nodes, &pods, &[0; 4], "tiling", None).placed, 0);
}
