//! Loads as people write them, and an end that must not be.

use proptest::prelude::*;
use sublet_sim::{BadLines, CpuOnlyPods, read_nodes, read_pods};

use super::*;

#[test]
fn a_load_is_a_decimal_above_0() {
    let of = |text: &str| text.parse::<Load>().map(|load| load.0);
    assert_eq!(of("0.9"), Ok(900_000));
    assert_eq!(of("1"), Ok(1_000_000));
    assert_eq!(of("1000.000000"), Ok(1_000_000_000));
    assert_eq!(of("0.000001"), Ok(1));
    for bad in [
        "",
        "0",
        "0.0",
        "-1",
        "+1",
        ".9",
        "1.",
        "90%",
        "1e2",
        "1000.1",
        "0.0000001",
        "99999",
    ] {
        assert_eq!(of(bad), Err(LoadError(bad.to_owned())), "{bad}");
    }
}

proptest! {
    #[test]
    fn any_text_is_answered(text in "[0-9.+e-]{0,9}") {
        if let Ok(load) = text.parse::<Load>() {
            prop_assert_eq!(load.to_string().parse::<Load>(), Ok(load));
            let number: f64 = text.parse().unwrap();
            prop_assert!((number * 1e6 - load.0 as f64).abs() < 1e-3);
        }
    }
}

#[test]
fn a_ledger_that_is_not_empty_at_the_end_is_an_error() {
    let nodes = "sn,cpu_milli,memory_mib,gpu\na,1,1,1\n";
    let (nodes, _) = read_nodes(nodes.as_bytes(), BadLines::Stop).unwrap();
    let pods = "num_gpu,creation_time,duration\n1,0,9\n";
    let (pods, _) = read_pods(pods.as_bytes(), &nodes, BadLines::Stop).unwrap();
    let policy = Policy::default();
    let run = Timed {
        nodes: &nodes,
        pods: &pods,
        policy: &policy,
        cpu_only: CpuOnlyPods::Policy,
        load: None,
    };
    let outcome = timed(run, |_| {}).unwrap();
    let mut runs = [TimedRun {
        policy,
        outcome,
        cpu: Duration::ZERO,
    }];
    let good = checked("text".to_owned(), vec!["note".to_owned()], &runs);
    assert_eq!((good.code, good.notes.len()), (0, 1));
    runs[0].outcome.ends_empty = false;
    let bad = checked("text".to_owned(), vec!["note".to_owned()], &runs);
    assert_eq!((bad.code, &*bad.text), (NOT_DONE, "text"));
    assert!(bad.notes[1].starts_with("error: tiling: when the last pod had gone"));
}
