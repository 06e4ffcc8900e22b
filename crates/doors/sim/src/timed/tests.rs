//! Lines of pods short enough to follow with a finger, and longer ones against the plain way
//! of doing it.

use proptest::prelude::*;

use super::*;
use crate::trace::{BadLines, read_nodes, read_pods};

const NODES: &str = "sn,cpu_milli,memory_mib,gpu,model\na,8000,8192,1,T4\nb,8000,8192,1,T4\n";

fn lists(nodes: &str, pods: &str) -> (NodeList, PodList) {
    let header = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,creation_time,duration,priority\n";
    let (nodes, _) = read_nodes(nodes.as_bytes(), BadLines::Stop).unwrap();
    let pods = format!("{header}{pods}");
    let (pods, _) = read_pods(pods.as_bytes(), &nodes, BadLines::Stop).unwrap();
    (nodes, pods)
}

fn play_with(
    policy: &str,
    (nodes, pods): &(NodeList, PodList),
    load: Option<u64>,
) -> Result<TimedOutcome, TimedError> {
    let policy = &policy.parse().unwrap();
    let run = Timed {
        nodes,
        pods,
        policy,
        cpu_only: CpuOnlyPods::Policy,
        load,
    };
    let mut told = 0;
    let outcome = timed(run, |number| told = number)?;
    let never = outcome.too_large + outcome.never.values().sum::<u32>();
    assert_eq!(told, 2 * pods.rows.len() - never as usize);
    Ok(outcome)
}

fn play(pods: &str, load: Option<u64>) -> Result<TimedOutcome, TimedError> {
    play_with("binpack", &lists(NODES, pods), load)
}

#[test]
fn who_waits_is_tried_by_priority_then_by_arrival() {
    // Two cards: x and y take them for 10 s; p (5 s in), then q, then r of higher priority wait.
    let outcome = play(
        "x,0,0,1,1000,0,10,0\ny,0,0,1,1000,0,30,0\n\
         p,0,0,1,1000,5,10,0\nq,0,0,1,1000,6,10,0\nr,0,0,1,1000,7,10,9\n",
        None,
    )
    .unwrap();
    // At 10 r (waited 3), at 20 p (15), at 30 p and y end: q (24).
    assert_eq!(outcome.waits, [0, 0, 3, 15, 24]);
    assert_eq!(outcome.makespan, 40);
    assert!(outcome.ends_empty);
    // 70 of 80 card-seconds.
    assert!((outcome.usage.mean_percent() - 87.5).abs() < 1e-9);
    let parts = outcome.usage.parts_percent(4);
    for (part, percent) in parts.iter().zip([100.0, 100.0, 100.0, 50.0]) {
        assert!((part - percent).abs() < 1e-9, "{parts:?}");
    }
    // Thirds of 40 s do not meet the steps: the last third has 20 of 26.7 card-seconds.
    assert!((outcome.usage.parts_percent(3)[2] - 62.5).abs() < 1e-9);
}

#[test]
fn who_comes_when_something_ends_has_his_priority_at_once() {
    // At 10 one card is free: late, of higher priority, comes just then and passes early.
    let outcome = play(
        "x,0,0,1,1000,0,10,0\ny,0,0,1,1000,0,20,0\n\
         early,0,0,1,1000,5,100,0\nlate,0,0,1,1000,10,10,1\n",
        None,
    )
    .unwrap();
    assert_eq!(outcome.waits, [0, 0, 0, 15]);
}

#[test]
fn a_small_pod_passes_a_large_one_that_waits() {
    let outcome = play(
        "x,0,0,1,600,0,10,0\ny,0,0,1,600,0,10,0\nlarge,0,0,1,1000,1,5,0\nsmall,0,0,1,400,2,5,0\n",
        None,
    )
    .unwrap();
    assert_eq!(outcome.waits, [0, 0, 0, 9]);
    assert!(outcome.ends_empty);
}

#[test]
fn what_no_node_can_ever_take_is_counted_and_stands_in_nobody_s_way() {
    let outcome = play(
        "large,0,0,2,1000,0,10,0\ncpu,9000,0,1,500,0,10,0\ngood,0,0,1,1000,0,10,0\nz,0,0,0,0,3,1,0\n",
        None,
    )
    .unwrap();
    assert_eq!(outcome.too_large, 1);
    assert_eq!(outcome.never, Reasons::from([("cpu", 1)]));
    assert_eq!((&outcome.waits[..], outcome.makespan), (&[0, 0][..], 10));
    assert!(outcome.ends_empty);
    assert!((outcome.usage.mean_percent() - 50.0).abs() < 1e-9);
}

#[test]
fn a_load_presses_time_together() {
    // 20 card-seconds over 100 s of two cards are a load of 0.1; at 0.5 they come within 20 s.
    let pods = "x,0,0,1,1000,50,10,0\ny,0,0,1,1000,150,10,0\n";
    assert_eq!(play(pods, None).unwrap().makespan, 110);
    assert_eq!(play(pods, Some(500_000)).unwrap().makespan, 30);
    // At 0.05 they come twice as far apart.
    assert_eq!(play(pods, Some(50_000)).unwrap().makespan, 210);
    // A pod that no node can take asks for no time that could be had.
    let with_large = format!("{pods}large,0,0,9,1000,60,1000000,0\n");
    assert_eq!(play(&with_large, Some(500_000)).unwrap().makespan, 30);
    for pods in ["x,0,0,0,0,0,10,0\n", "x,0,0,1,1000,7,10,0\n"] {
        assert_eq!(play(pods, Some(500_000)), Err(TimedError::NoLoad));
    }
    for pods in ["x,0,0,1,1000,,10,0\n", "x,0,0,1,1000,1,,0\n"] {
        let error = play(pods, None).unwrap_err().to_string();
        assert!(error.starts_with("pod x has no creation_time"), "{error}");
    }
    let nothing = play("", None).unwrap();
    assert_eq!((nothing.waits.len(), nothing.makespan), (0, 0));
    assert_eq!(nothing.usage.mean_percent(), 0.0);
}

/// The plain way: each waiting pod is tried on every node at every moment.
fn plainly((nodes, pods): &(NodeList, PodList), policy: &Policy) -> Vec<u64> {
    let mut world = World::new(nodes, None, pods, policy);
    let row = |number: usize| &pods.rows[number];
    let mut order: Vec<usize> = (0..pods.rows.len()).collect();
    order.sort_by_key(|&at| (row(at).comes, at));
    let mut waits = Vec::new();
    let (mut running, mut waiting): (Vec<(u64, usize)>, Vec<usize>) = (Vec::new(), Vec::new());
    let mut come = 0;
    loop {
        let ends = running.iter().map(|(end, _)| *end);
        let comes = order.get(come).and_then(|&at| row(at).comes);
        let Some(now) = ends.chain(comes).min() else {
            return waits;
        };
        let (ended, stay) = running.into_iter().partition(|(end, _)| *end <= now);
        running = stay;
        let mut ended: Vec<(u64, usize)> = ended;
        ended.sort_unstable();
        for (_, number) in ended {
            world.leave(number, row(order[number]));
        }
        while come < order.len() && row(order[come]).comes == Some(now) {
            world.come(row(order[come]));
            waiting.push(come);
            come += 1;
        }
        waiting.sort_by_key(|&number| (Reverse(row(order[number]).priority), number));
        waiting.retain(|&number| {
            let pod = row(order[number]);
            let placed = world.place(number, pod, None).is_some();
            if placed {
                waits.push(now - pod.comes.unwrap());
                running.push((now + pod.lasts.unwrap(), number));
            }
            !placed
        });
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn passing_over_changes_nothing(
        rows in prop::collection::vec(
            (0..4u32, 0..3usize, 0..20u64, 0..12u64, 0..3i32), 0..40),
        policy in prop::sample::select(vec!["binpack", "spread", "best-fit", "fgd", "tiling"]),
    ) {
        let nodes = "sn,cpu_milli,memory_mib,gpu,model\na,8,8,2,T4\nb,6,8,1,T4\nc,9,9,0,\n";
        let text: String = rows.iter().enumerate().map(|(at, (cpu, ask, comes, lasts, priority))| {
            let (gpus, milli) = [(0, 0), (1, 400), (2, 1000)][*ask];
            format!("p{at},{cpu},0,{gpus},{milli},{comes},{lasts},{priority}\n")
        }).collect();
        let lists = lists(nodes, &text);
        let outcome = play_with(policy, &lists, None).unwrap();
        let mut plain = plainly(&lists, &policy.parse().unwrap());
        plain.sort_unstable();
        prop_assert_eq!(&outcome.waits, &plain);
        prop_assert_eq!(outcome.waits.len(), rows.len());
        prop_assert!(outcome.ends_empty);
    }
}
