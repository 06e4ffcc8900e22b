//! Tests of the printed texts: small clusters, wrong files, and the forms of the answer.

mod queue;
mod timed;

use std::path::Path;

use clap::Parser;

use super::*;

#[derive(Debug, Parser)]
struct Line {
    #[command(flatten)]
    args: Args,
}

const NODES: &str = "sn,cpu_milli,memory_mib,gpu,model\na,8000,8192,2,T4\nb,8000,8192,1,T4\n";
const PODS: &str = "name,cpu_milli,memory_mib,num_gpu,gpu_milli\n\
                    p0,1000,100,1,500\np1,1000,100,2,1000\np2,9000,100,1,100\np3,10,10,0,0\n";

struct Files {
    folder: tempfile::TempDir,
}

impl Files {
    fn new() -> Files {
        let files = Files {
            folder: tempfile::tempdir().unwrap(),
        };
        files.write("nodes.csv", NODES);
        files.write("pods.csv", PODS);
        files
    }

    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).display().to_string()
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.path(name), text).unwrap();
    }

    /// Runs with these words; `@name` is a file of the folder.
    fn run(&self, words: &str) -> Answer {
        let lists = "simulate --nodes @nodes.csv --pods @pods.csv --no-timing";
        let words = format!("{lists} {words}");
        let words = words
            .split_whitespace()
            .map(|word| match word.strip_prefix('@') {
                Some(name) => self.path(name),
                None => word.to_owned(),
            });
        run(&Line::parse_from(words).args).unwrap()
    }

    fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).unwrap()
    }
}

/// Tables and JSON of an example by each protocol.
pub(crate) fn answers() -> Vec<[String; 2]> {
    let files = Files::new();
    let [table, json] = ["", "-o json"].map(|form| files.run(form).text);
    [
        vec![[table, json]],
        timed::answers(),
        queue::answers(),
        snapshot::tests::moves::answers(),
    ]
    .concat()
}

#[test]
fn every_arrival_is_placed_or_dropped_as_the_sequence_says() {
    let files = Files::new();
    files.write("order", "nodes 1 0\npods 1 0 2 3 0 0\n");
    let answer = files.run("--policy binpack --sequence @order --placements @placed -o csv");
    assert_eq!(answer.code, 0, "{answer:?}");
    // p1 takes both cards of a; p0 half of b's; p2 asks more CPU than there is; p3 goes where
    // least is free, and the last p0 finds no card.
    let placed = files.read("placed");
    assert_eq!(
        placed,
        "1 a [0,1]\n0 b [0]\n2 - []\n3 a []\n0 b [0]\n0 - []\n"
    );
    let lines: Vec<&str> = answer.text.lines().collect();
    assert_eq!(
        lines[0],
        "policy,seed,arrived_percent,allocated_percent,fragmented_percent"
    );
    // One free card, which three of the four shapes cannot use: 750 of 3000 thousandths.
    assert_eq!(lines[2], "\"binpack\",,67,66.6700,25.0000");
    assert_eq!(lines.last().unwrap().split(',').nth(2), Some("120"));
}

#[test]
fn the_same_seeds_give_the_same_bytes_whatever_runs_beside() {
    let files = Files::new();
    let all = "--policy tiling --policy random --policy fgd=0.7,best-fit=0.3 --seed 1-6 -o json";
    let one = files.run(&format!("{all} --threads 1"));
    let many = files.run(&format!("{all} --threads 4"));
    assert_eq!(one, many);
    let json: serde_json::Value = serde_json::from_str(&one.text).unwrap();
    let runs = json["runs"].as_array().unwrap();
    assert_eq!(runs.len(), 18);
    assert_eq!(runs[0]["policy"], "tiling");
    assert_eq!(runs[17]["policy"], "fgd=0.7,best-fit=0.3");
    assert_eq!((&runs[0]["seed"], &runs[5]["seed"]), (&1.into(), &6.into()));
    for run in runs {
        let dropped = &run["droppedByGpus"];
        assert!(
            ["none", "part", "1", "2", "4", "8"]
                .iter()
                .all(|key| dropped[key].is_u64())
        );
        assert!(run["placed"].as_u64() <= run["arrivals"].as_u64());
        assert!(run["curve"].as_array().unwrap().iter().all(|point| {
            point["allocatedPercent"].as_f64() <= Some(100.0) && point["fragmentedPercent"].is_f64()
        }));
        assert!(run.get("cpuSeconds").is_none() && json.get("peakMemoryMiB").is_none());
    }
}

#[test]
fn times_are_told_unless_they_are_not_wanted() {
    let files = Files::new();
    let words = [
        "simulate",
        "--nodes",
        &files.path("nodes.csv"),
        "--pods",
        &files.path("pods.csv"),
        "-o",
        "json",
    ];
    let answer = run(&Line::parse_from(words).args).unwrap();
    let json: serde_json::Value = serde_json::from_str(&answer.text).unwrap();
    assert!(json["runs"][0]["cpuSeconds"].is_f64());
    assert!(json["peakMemoryMiB"].as_u64() > Some(0));
}

#[test]
fn a_table_has_steps_drops_and_for_two_policies_the_difference() {
    let files = Files::new();
    let text = files
        .run("--policy binpack --policy spread --seed 1-3")
        .text;
    assert!(
        text.starts_with("2 nodes with 3 GPUs; 4 pods in the list."),
        "{text}"
    );
    for part in [
        "\nbinpack, 3 seeds\nARRIVED  ALLOCATED",
        "\nspread, 3 seeds\n",
        "Dropped until 100 % had arrived:",
        "Unallocated by spread minus binpack, paired by seed",
        "95 % INTERVAL",
    ] {
        assert!(text.contains(part), "no `{part}` in\n{text}");
    }
    assert!(!text.contains("CPU seconds"));
}

#[test]
fn what_cannot_be_used_is_named_with_file_and_place() {
    let files = Files::new();
    let note = |words: &str| {
        let answer = files.run(words);
        assert_eq!((answer.code, &*answer.text), (BAD_INPUT, ""));
        answer
            .notes
            .join("\n")
            .replace(&files.folder.path().display().to_string(), "")
    };
    let nowhere = note("--sequence @none");
    assert!(
        nowhere.contains("/none") && nowhere.contains("cannot be read"),
        "{nowhere}"
    );
    files.write("short", "nodes 0 1\n");
    let short = note("--sequence @short");
    assert!(
        short.contains("/short") && short.contains("line 2: it must begin with `pods`"),
        "{short}"
    );
    assert!(
        note("--seed 1,2 --placements @p")
            .contains("exactly one run, and these arguments ask for 2")
    );
    assert!(note("--policy spread --policy spread").contains("policy spread is given twice"));
    assert!(note("--plot @p.png").contains("must end in .svg or .html"));
    files.write(
        "pods.csv",
        "name,cpu_milli,memory_mib,num_gpu,gpu_milli\np,1,1,1,x\n",
    );
    assert!(
        note("").contains("/pods.csv\n  caused by: line 2, column 5 (`gpu_milli`): `x`"),
        "{}",
        note("")
    );
    let counted = files.run("--bad-lines count");
    assert_eq!((counted.code, counted.notes.len()), (0, 1));
    assert!(
        counted.notes[0].contains("1 lines left out; line 2"),
        "{:?}",
        counted.notes
    );
    files.write("nodes.csv", "sn,cpu_milli,memory_mib,gpu\n");
    assert!(note("").contains("there is no node in it"));
    std::fs::write(files.path("nodes.csv"), [0x1f, 0x8b, 1, 2, 3]).unwrap();
    assert!(note("").contains("/nodes.csv"));
}

#[test]
fn curves_are_drawn_for_every_policy() {
    let files = Files::new();
    let words = "--policy tiling --policy fgd=0.5,spread=0.5 --seed 1,2 --plot @curves.svg";
    let answer = files.run(words);
    let place = format!("plot: {}", files.path("curves.svg"));
    assert!(
        answer.text.ends_with(&format!("\n\n{place}\n")),
        "{answer:?}"
    );
    // What programs read is left alone.
    let answer = files.run(&format!("{words} -o csv"));
    assert_eq!(answer.notes, [place]);
    assert!(answer.text.starts_with("policy,seed,"), "{answer:?}");
    let svg = files.read("curves.svg");
    assert_eq!(svg.matches("<polyline").count(), 2);
    assert!(svg.contains(">tiling</text>") && svg.contains(">fgd=0.5,spread=0.5</text>"));
    assert!(svg.starts_with("<svg") && svg.ends_with("</svg>\n") && !svg.contains("NaN"));
    files.run("--arrive 0 --plot @page.html");
    let page = files.read("page.html");
    assert!(page.starts_with("<!doctype html>") && page.contains("<svg") && !page.contains("NaN"));
    assert_eq!(
        plot::Kind::of(Path::new("x.htm")).unwrap(),
        plot::Kind::Html
    );
}

#[test]
fn drops_are_told_with_what_they_lacked() {
    let files = Files::new();
    files.write("order", "nodes 1 0\npods 1 0 2 3 0 0\n");
    // The last one comes when more than 100 % have arrived, and is not counted.
    let table = files.run("--sequence @order").text;
    assert!(table.contains("\nWhat they lacked: 1 cpu.\n"), "{table}");
    let json = files.run("--sequence @order -o json").text;
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    let reasons = &json["runs"][0]["droppedByReason"];
    assert_eq!(*reasons, serde_json::json!({ "cpu": 1 }));
    files.write("none", "nodes 1 0\npods 0\n");
    let table = files.run("--sequence @none").text;
    assert!(!table.contains("lacked"), "{table}");
}

#[test]
fn the_stock_scheduler_can_place_pods_without_gpu() {
    let files = Files::new();
    files.write("order", "nodes 1 0\npods 1 0 3\n");
    files.run("--sequence @order --placements @placed --cpu-only-pods stock");
    // Both nodes have as much left, and b comes first; binpack takes a, as above.
    assert_eq!(files.read("placed"), "1 a [0,1]\n0 b [0]\n3 b []\n");
}
