//! Three months of jobs that come and go, against a cluster on which they must wait: every job
//! that some node can take is placed, and at the end nothing is left. Optimised builds only
//! (`cargo xtask test` makes one).
#![cfg(not(debug_assertions))]

use std::fs::File;
use std::path::{Path, PathBuf};

use flate2::read::GzDecoder;
use sublet_sim::{BadLines, CpuOnlyPods, Timed, read_nodes, read_pods, timed};

fn trace(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../../fixtures/traces/philly")
        .join(name)
}

#[test]
fn philly_s_jobs_wait_and_the_ledger_ends_empty() {
    let nodes = File::open(trace("nodes_60x8.csv")).unwrap();
    let (nodes, _) = read_nodes(nodes, BadLines::Stop).unwrap();
    let pods = GzDecoder::new(File::open(trace("philly.csv.gz")).unwrap());
    let (pods, _) = read_pods(pods, &nodes, BadLines::Stop).unwrap();
    assert_eq!(pods.rows.len(), 82_247);
    for policy in ["binpack", "tiling"] {
        let run = Timed {
            nodes: &nodes,
            pods: &pods,
            policy: &policy.parse().unwrap(),
            cpu_only: CpuOnlyPods::Policy,
            load: Some(900_000),
        };
        let outcome = timed(run, |_| {}).unwrap();
        // The README of the list counts them: 289 jobs of 12 GPUs and more.
        assert_eq!(outcome.too_large, 289, "{policy}");
        assert_eq!(outcome.waits.len(), 82_247 - 289, "{policy}");
        assert!(outcome.never.is_empty() && outcome.ends_empty, "{policy}");
        // A queue builds up: nothing is idle for weeks, and the longest wait is one of days.
        let parts = outcome.usage.parts_percent(20);
        assert!(
            parts.iter().filter(|percent| **percent > 99.9).count() >= 3,
            "{policy}: {parts:?}"
        );
        assert!(outcome.waits.last() > Some(&86_400), "{policy}");
    }
}
