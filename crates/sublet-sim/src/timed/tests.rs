//! Lines of pods short enough to follow with a finger.

use super::*;
use crate::trace::{BadLines, read_nodes, read_pods};

const NODES: &str = "sn,cpu_milli,memory_mib,gpu,model\na,8000,8192,1,T4\nb,8000,8192,1,T4\n";

fn play(pods: &str, load: Option<u32>) -> Result<TimedOutcome, TimedError> {
    let header = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,creation_time,duration,priority\n";
    let (nodes, _) = read_nodes(NODES.as_bytes(), BadLines::Stop).unwrap();
    let (pods, _) =
        read_pods(format!("{header}{pods}").as_bytes(), &nodes, BadLines::Stop).unwrap();
    let policy = &Policy::default();
    let run = Timed {
        nodes: &nodes,
        pods: &pods,
        ranks: &[0, 1],
        policy,
        load,
    };
    timed(run, |_| {})
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
    assert!((outcome.mean_percent - 87.5).abs() < 1e-9, "{outcome:?}");
    assert!((outcome.parts_percent[0] - 100.0).abs() < 1e-9);
    assert!((outcome.parts_percent[19] - 50.0).abs() < 1e-9);
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
fn what_no_node_can_ever_take_is_named() {
    let outcome = play(
        "x,0,0,2,1000,0,10,0\ny,9000,0,1,500,0,10,0\nz,0,0,0,0,3,1,0\n",
        None,
    )
    .unwrap();
    assert_eq!(outcome.impossible, [0, 1]);
    assert_eq!((&outcome.waits[..], outcome.makespan), (&[0][..], 4));
    assert!(outcome.ends_empty);
}

#[test]
fn a_load_presses_time_together() {
    // 20 card-seconds over 100 s of two cards are a load of 0.1; at 0.5 they come within 20 s.
    let pods = "x,0,0,1,1000,0,10,0\ny,0,0,1,1000,100,10,0\n";
    assert_eq!(play(pods, None).unwrap().makespan, 110);
    assert_eq!(play(pods, Some(500)).unwrap().makespan, 30);
    assert_eq!(
        play("x,0,0,0,0,0,10,0\n", Some(500)),
        Err(TimedError::NoLoad)
    );
    let error = play("x,0,0,1,1000,,10,0\n", None).unwrap_err().to_string();
    assert!(error.starts_with("pod x has no creation_time"), "{error}");
    assert_eq!(play("", None).unwrap().waits, [0; 0]);
}
