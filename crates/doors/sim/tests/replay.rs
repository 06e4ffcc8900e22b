//! Three months of jobs through the queue, by every rule: each job ends, gangs among them, and every
//! account is right at the end. Optimised builds only, and a minute: `cargo xtask test --all` runs it.
#![cfg(not(debug_assertions))]

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};

use flate2::read::GzDecoder;
use sublet_sim::{
    BadLines, DISCIPLINES, PartitionSize, Replay, RunTimes, SizeClass, read_nodes, read_pods,
    replay,
};

fn trace(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../../fixtures/traces/philly")
        .join(name)
}

#[test]
fn philly_s_jobs_all_end_by_every_rule() {
    let nodes = File::open(trace("nodes_60x8.csv")).unwrap();
    let (nodes, _) = read_nodes(nodes, BadLines::Stop).unwrap();
    let pods = GzDecoder::new(File::open(trace("philly.csv.gz")).unwrap());
    let (pods, _) = read_pods(pods, &nodes, BadLines::Stop).unwrap();
    let mut useful = BTreeMap::new();
    for &discipline in DISCIPLINES {
        let name = discipline.name();
        let run = Replay {
            nodes: &nodes,
            pods: &pods,
            policy: &"binpack".parse().unwrap(),
            discipline,
            quotas: None,
            load: None,
            // Few decisions: this is about what ends, not about how long it waits.
            interval: 7_200,
            profile: "koordinator".parse().unwrap(),
            min_within: None,
            saves_every: None,
            run_times: RunTimes::Unknown,
        };
        let outcome = replay(run, &mut |_| {}).unwrap();
        // The README of the list counts them.
        let never = outcome.too_large;
        assert_eq!((outcome.ended + never, outcome.left), (82_247, 0), "{name}");
        assert_eq!(never > 0, discipline.is_apart(), "{name}");
        assert_eq!(outcome.impossible, (0, None), "{name}");
        assert!(outcome.ends_empty, "{name}");
        let gangs = outcome.sizes.last().unwrap();
        assert_eq!((gangs.of, gangs.jobs), (SizeClass::Gang, 289));
        assert_eq!(outcome.tenants.len(), 15, "{name}");
        let minima: u64 = outcome.tenants.iter().map(|tenant| tenant.min_milli).sum();
        assert_eq!(minima, 480_000, "all cards are somebody's");
        // Only ours takes back what was lent, and then work is lost.
        assert_eq!(outcome.evictions > 0, name == "sublet", "{name}");
        assert_eq!(outcome.lost_hours > 0.0, name == "sublet", "{name}");
        // Eleven of the fifteen have a min of 4 GPUs and more.
        assert_eq!(
            outcome.sharing_incentive(PartitionSize::Min).1,
            11,
            "{name}"
        );
        let lag = outcome.largest_lag(PartitionSize::WholeNodes).unwrap().1;
        assert_eq!(lag == 0, discipline.is_apart(), "{name}: {lag}");
        useful.insert(name, outcome.useful_percent);
    }
    assert!(useful["backfill"] > useful["fifo"], "{useful:?}");
}
