//! The protocol on small clusters, and the clusters that nobody has.

use super::*;
use crate::trace::{BadLines, read_nodes, read_pods};

const HEADER: &str = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec\n";

fn play(nodes: &str, pods: &str, arrivals: &[u32], policy: &str) -> Outcome {
    play_variant(nodes, pods, arrivals, policy, Variant::default())
}

fn play_variant(
    nodes: &str,
    pods: &str,
    arrivals: &[u32],
    policy: &str,
    variant: Variant,
) -> Outcome {
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
        variant,
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

#[test]
fn a_drop_is_put_down_to_the_one_thing_that_lacks() {
    let check = |nodes: &str, rest: &str, arrivals: &[u32], expected: &[(&'static str, u32)]| {
        let pods = format!("fill,1,1,32,1000,\npart,1,1,1,900,\n{rest}");
        let outcome = play(nodes, &pods, arrivals, "best-fit");
        let expected: Reasons = expected.iter().copied().collect();
        assert_eq!(outcome.reasons, expected, "{rest}");
    };
    // All of `full` is taken at once; what comes then finds GPUs on `a` alone.
    let nodes = "full,9000,900,32,G2\na,4000,1000,2,T4\n";
    for (pod, reason) in [
        ("p,9000,1,1,50,", "cpu"),
        ("p,9001,1,0,0,", "cpu"),
        ("p,1,1001,1,50,", "host_memory"),
        ("p,1,1,1,50,G2|P100", "model"),
        ("p,9000,1,1,50,G2", "several"),
        ("p,9000,1001,1,50,", "several"),
    ] {
        check(nodes, pod, &[0, 2], &[(reason, 1)]);
    }
    // With `a` taken as well, GPUs are what lacks, whatever else does.
    check(nodes, "p,9000,1,1,200,G2", &[0, 1, 1, 2], &[("no_room", 1)]);
    check(
        "a,9,1,3,T4\nb,9,1,1,T4\n",
        "p,1,0,2,1000,",
        &[2, 2],
        &[("no_idle", 1)],
    );
    check(
        "a,1,1,2,T4\nb,1,1,2,T4\n",
        "p,1,1,3,1000,",
        &[2],
        &[("too_few", 1)],
    );
    // What lacked once may lack otherwise later: first CPU, then room.
    let all = [("cpu", 1), ("no_room", 1)];
    check(nodes, "p,9000,1,1,150,", &[0, 2, 1, 1, 2], &all);
}

#[test]
fn the_stock_scheduler_takes_the_emptiest_node_for_pods_without_gpu() {
    let nodes = "a,8000,8000,1,T4\nb,8000,8000,1,T4\n";
    let pods = "gpu,4000,4000,1,500,\nhost,1000,1000,0,0,\nlarge,8000,8000,0,0,\n";
    let places = |cpu_only| {
        let variant = Variant {
            cpu_only,
            ..Variant::default()
        };
        let outcome = play_variant(nodes, pods, &[0, 1, 1, 1, 1, 2], "best-fit", variant);
        let places = places(&outcome).into_iter();
        places
            .map(|place| place.map(|(node, _)| node))
            .collect::<Vec<_>>()
    };
    assert_eq!(
        places(CpuOnlyPods::Policy),
        [Some(0), Some(0), Some(0), Some(0), Some(0), Some(1)]
    );
    // `b`, until it is as full as `a`.
    assert_eq!(
        places(CpuOnlyPods::Stock),
        [Some(0), Some(1), Some(1), Some(1), Some(1), None]
    );
}

#[test]
fn a_restart_forgets_pods_that_are_not_placed_and_nothing_else() {
    let nodes = "a,64000,1000,4,T4\nb,64000,1000,4,G2\n";
    // Nothing has the CPU for the first; it teaches that T4 will be wanted.
    let pods = "wish,99999,1,1,1000,T4\nany,1,1,1,1000,\n";
    let mut arrivals = vec![1, 1];
    arrivals.extend([0; 20]);
    arrivals.extend([1, 1, 1]);
    for policy in Policy::names() {
        let run = |restart_at| {
            let variant = Variant {
                restart_at,
                ..Variant::default()
            };
            let outcome = play_variant(nodes, pods, &arrivals, policy, variant);
            let placed = places(&outcome).into_iter().flatten();
            placed.map(|(node, _)| node).collect::<Vec<_>>()
        };
        let (through, again) = (run(None), run(Some(200)));
        if policy == "tiling" {
            assert_eq!((through[2], again[2]), (1, 0), "{through:?} {again:?}");
        } else {
            assert_eq!(through, again, "{policy}");
        }
    }
}

#[test]
fn costs_worked_out_anew_place_every_pod_alike() {
    let nodes = "a,9000,9000,4,T4\nb,16000,9000,2,G2\nc,5000,9000,4,T4\nd,9000,9000,8,G2\n";
    let pods = "a,600,1,1,1000,\nb,100,1,1,470,\nc,400,1,1,330,G2\nd,200,1,1,810,\n\
                e,900,1,2,1000,T4\nf,100,1,0,0,\n";
    let mut random = fastrand::Rng::with_seed(3);
    let arrivals: Vec<u32> = (0..60).map(|_| random.u32(0..6)).collect();
    for policy in Policy::names() {
        let run = |naive| {
            let variant = Variant {
                naive,
                ..Variant::default()
            };
            play_variant(nodes, pods, &arrivals, policy, variant)
        };
        assert_eq!(run(true), run(false), "{policy}");
    }
}
