//! The protocol on small clusters, and the clusters that nobody has.

use super::*;
use crate::trace::{BadLines, read_nodes, read_pods};

const HEADER: &str = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec\n";

fn play(nodes: &str, pods: &str, arrivals: &[u32], policy: &str) -> Outcome {
    let nodes = format!("sn,cpu_milli,memory_mib,gpu,model\n{nodes}");
    let (nodes, _) = read_nodes(nodes.as_bytes(), BadLines::Stop).unwrap();
    let pods = format!("{HEADER}{pods}");
    let (pods, _) = read_pods(pods.as_bytes(), &nodes, BadLines::Stop).unwrap();
    let sequence = Sequence {
        ranks: (0..nodes.rows.len() as u32).collect(),
        arrivals: arrivals.to_vec(),
    };
    let policy = policy.parse().unwrap();
    let run = Inflation {
        nodes: &nodes,
        pods: &pods,
        sequence: &sequence,
        policy: &policy,
    };
    inflate(run, |_| {})
}

fn places(outcome: &Outcome) -> Vec<Option<(u32, Vec<u16>)>> {
    outcome
        .placements
        .iter()
        .map(|placement| placement.place.clone())
        .collect()
}

#[test]
fn each_limit_drops_what_exceeds_it() {
    let nodes = "a,4000,1000,2,T4\nb,4000,1000,0,\n";
    let pods = "cpu,5000,1,0,0,\nmemory,1,1001,0,0,\ngpus,1,1,4,1000,\nmodel,1,1,1,500,G2\n\
                fits,1,1,1,500,G2|T4\neight,1,1,8,1000,\n";
    let outcome = play(nodes, pods, &[0, 1, 4, 3, 2, 5], "binpack");
    assert_eq!(
        places(&outcome),
        [None, None, Some((0, vec![0])), None, None, None]
    );
    let expected = Drops {
        none: 2,
        share: 1,
        whole: [0; 4],
    };
    // The last two came after 100 % had arrived.
    assert_eq!(
        (outcome.placed, outcome.drops, outcome.used_nodes),
        (1, expected, 1)
    );
}

#[test]
fn clusters_that_nobody_has_are_simulated_too() {
    for policy in Policy::names() {
        let outcome = play("", "p,1,1,1,500,\n", &[0, 0], policy);
        assert_eq!(places(&outcome), [None, None], "{policy}: no node");
        let outcome = play(
            "a,4000,1000,0,\n",
            "p,1,1,1,500,\nq,1,1,0,0,\n",
            &[0, 1],
            policy,
        );
        assert_eq!(
            places(&outcome),
            [None, Some((0, vec![]))],
            "{policy}: no GPU"
        );
        let outcome = play("a,4000,1000,2,T4\n", "p,1,1,1,500,\n", &[], policy);
        assert_eq!(
            (outcome.placed, outcome.curve.points.len()),
            (0, 0),
            "{policy}: no pod"
        );
        let outcome = play("a,4000,1000,1,T4\n", "p,1,1,1,500,\n", &[0, 0, 0], policy);
        assert_eq!(
            (outcome.placed, outcome.drops.share),
            (2, 0),
            "{policy}: one node"
        );
        assert_eq!(
            outcome.curve.at(100).map(|p| p.allocated_percent),
            Some(100.0)
        );
    }
}

#[test]
fn every_policy_places_whatever_fits() {
    // Three halves and a whole card on two cards: the half that comes last finds a place only
    // if the halves before it shared a card.
    for policy in Policy::names().filter(|name| !["spread", "random"].contains(name)) {
        let outcome = play(
            "a,64000,1000,1,T4\nb,64000,1000,1,T4\n",
            "half,1000,1,1,500,\nwhole,1000,1,1,1000,\n",
            &[0, 0, 1],
            policy,
        );
        assert_eq!(outcome.placed, 3, "{policy}");
    }
}
