//! The policies that were published, run as they were published: allocation and fragmentation
//! at every percent of arrival against the authors' own tables. 130 runs: optimised builds
//! only (`cargo xtask test` makes one).
#![cfg(not(debug_assertions))]

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use flate2::read::GzDecoder;
use sublet_sim::{BadLines, Inflation, Sequence, Variant, inflate, read_nodes, read_pods};

/// The published figures are cut to two decimals.
const TOLERANCE: f64 = 0.0101;

const POLICIES: [(&str, &str); 5] = [
    ("02-DotProd", "dot-product"),
    ("03-GpuClustering", "gpu-clustering"),
    ("04-GpuPacking", "gpu-packing"),
    ("05-BestFit", "best-fit"),
    ("06-FGD", "fgd"),
];

fn trace(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../../fixtures/traces/openb")
        .join(name)
}

fn open(name: &str) -> GzDecoder<File> {
    GzDecoder::new(File::open(trace(name)).unwrap())
}

/// Rows of a published table, by list, policy and seed.
fn published(name: &str) -> BTreeMap<(String, String, u64), Vec<f64>> {
    let mut reader = csv::Reader::from_reader(open(name));
    let headers = reader.headers().unwrap().clone();
    let first = headers.iter().position(|name| name == "0").unwrap();
    let rows = reader.records().map(|row| {
        let row = row.unwrap();
        let list = row[0].trim_start_matches("openb_pod_list_").to_owned();
        let key = (list, row[1].to_owned(), row[3].parse().unwrap());
        let figures = row
            .iter()
            .skip(first)
            .map(|text| text.parse().unwrap_or(f64::NAN));
        (key, figures.collect())
    });
    rows.collect()
}

fn check(runs: &[(&str, u64)]) {
    let allocated = published("published/analysis_allo_discrete.csv.gz");
    let fragmented = published("published/analysis_frag_discrete.csv.gz");
    let (nodes, _) = read_nodes(open("openb_node_list_gpu_node.csv.gz"), BadLines::Stop).unwrap();
    let mut misses = Vec::new();
    for (list, seed) in runs {
        let pods = open(&format!("openb_pod_list_{list}.csv.gz"));
        let (pods, _) = read_pods(pods, &nodes, BadLines::Stop).unwrap();
        let mut text = String::new();
        open(&format!("seq/{list}.{seed}.gz"))
            .read_to_string(&mut text)
            .unwrap();
        let sequence = Sequence::read(&text, &nodes, &pods).unwrap();
        for (theirs, ours) in POLICIES {
            let policy = &ours.parse().unwrap();
            let run = Inflation {
                nodes: &nodes,
                pods: &pods,
                sequence: &sequence,
                policy,
                variant: Variant::default(),
            };
            let begin = std::time::Instant::now();
            let outcome = inflate(run, |_| {});
            println!(
                "{list} {seed} {ours}: {:?} placed {}",
                begin.elapsed(),
                outcome.placed
            );
            let key = ((*list).to_owned(), theirs.to_owned(), *seed);
            for percent in 0..=130 {
                let point = outcome.curve.at(percent).unwrap();
                for (what, table, is) in [
                    ("allocated", &allocated, point.allocated_percent),
                    ("fragmented", &fragmented, point.fragmented_percent),
                ] {
                    let published = table[&key][percent as usize];
                    if (is - published).abs() > TOLERANCE {
                        misses.push(format!(
                            "{list} {seed} {ours} {what} at {percent} %: {is:.3}, published {published}"
                        ));
                    }
                }
            }
        }
    }
    assert!(misses.is_empty(), "{}", misses.join("\n"));
}

#[test]
fn published_policies_give_the_published_rows_on_default() {
    let seeds: Vec<_> = (42..=51).map(|seed| ("default", seed)).collect();
    check(&seeds);
}

#[test]
fn published_policies_give_the_published_rows_on_the_other_lists() {
    let lists = [
        "cpu050",
        "cpu100",
        "cpu200",
        "cpu250",
        "gpushare40",
        "gpushare60",
        "gpushare80",
        "gpushare100",
        "gpuspec10",
        "gpuspec20",
        "gpuspec25",
        "gpuspec33",
        "multigpu20",
        "multigpu30",
        "multigpu40",
        "multigpu50",
    ];
    check(&lists.map(|list| (list, 42)));
}
