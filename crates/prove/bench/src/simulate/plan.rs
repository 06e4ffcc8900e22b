//! `sublet-bench plan`: what `sublet plan` costs for each pod. Beside it stands `sublet simulate`,
//! which places the same pods on the same nodes but reads them from lists that are cheap to parse.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use sublet_model::{Ask, NodeFacts};
use sublet_sim::{BadLines, NodeList, PodList, PodRow, read_nodes, read_pods};
use sublet_testbed::bench;

use super::speed::timed;
use super::traces::{open, openb, pod_list};
use super::{manifest, trial};
use crate::machine;
use crate::progress::progress;
use crate::report::{Report, Verdict, short};

/// Milliseconds of CPU time for each pod (issue 14).
const TARGET: f64 = 0.2;

/// Milliseconds for a gang of 64 in a cluster of 1,000 nodes (issue 15).
const TRIAL_TARGET: f64 = 5.0;

/// Runs of each program; the best one counts.
const TRIES: usize = 3;

/// Head of the table of costs.
const HEADING: [&str; 7] = [
    "",
    "placed",
    "`simulate`, s",
    "`plan` of JSON, s",
    "of YAML, s",
    "YAML, ms a pod",
    "times `simulate`",
];

/// Measure what a plan of a large cluster costs.
///
/// Prints Markdown. About a minute.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  cargo xtask bench plan                           10,000 pods on 1,250 nodes
  cargo xtask bench plan --write                   kept in docs/benchmarks/plan.md
  cargo xtask bench plan --nodes 100 --pods 500    a small run to see that it works")]
pub(crate) struct Arguments {
    /// Nodes of the cluster
    #[arg(long, default_value_t = 1_250)]
    nodes: usize,
    /// Pods that wait
    #[arg(long, default_value_t = 10_000)]
    pods: usize,
    /// Store the output in docs/benchmarks/
    #[arg(long)]
    write: bool,
}

/// A cluster, and the pods that arrive.
struct Case {
    what: &'static str,
    nodes: Vec<NodeFacts>,
    pods: Vec<PodRow>,
}

/// CPU seconds of a program, and how many pods it has placed.
#[derive(Debug, Clone, Copy)]
struct Run {
    seconds: f64,
    placed: u64,
}

/// Measures and prints.
///
/// # Errors
/// When something could not be measured. A missed target is not an error.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    ensure!(
        arguments.nodes > 0 && arguments.pods > 0,
        "a plan wants at least one node and one pod"
    );
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..");
    let sublet = crate::scheduler::sublet()?;
    let mut report = Report::default();
    report.say("# What a plan costs");
    report.say("Written by `cargo xtask bench plan --write`.");
    let remark = "CPU seconds, user and system, of a process of its own, best of 3, with reading \
                  and printing.";
    report.say(&machine::described(&bench::PLAN, &repository, &[], remark));
    let (nodes, _) = read_nodes(
        open(&openb(&repository, "openb_node_list_gpu_node.csv.gz"))?,
        BadLines::Stop,
    )?;
    let (pods, _) = read_pods(
        open(&pod_list(&repository, "default"))?,
        &nodes,
        BadLines::Stop,
    )?;
    let mut rows = vec![HEADING.map(str::to_owned).to_vec()];
    let mut verdicts = Vec::new();
    for case in cases(&nodes, &pods, arguments) {
        progress(&format!("plan: {}", case.what));
        let folder = tempfile::tempdir()?;
        let runs = case.measure(&sublet, folder.path())?;
        rows.push(case.row(runs));
        verdicts.extend(case.verdicts(runs));
    }
    report.say(&format!(
        "{} nodes and {} pods of openb's default list (its rows again from the first, where they \
         do not suffice), all pods waiting, policy `tiling`. `plan` reads the objects as kubectl \
         prints them and prints every verdict as JSON; `simulate` reads the same as lists. *placed* \
         is of `plan` / of `simulate`: among nodes of equal cost each has an order of its own.",
        arguments.nodes, arguments.pods
    ));
    report.table(&rows);
    verdicts.push(try_gang(&nodes, &pods, &mut report)?);
    report.verdicts(&verdicts);
    report.misses();
    report.say(&format!("Load average at the end: {}", machine::load()));
    if arguments.write {
        report.store(&bench::PLAN, &repository)?;
    }
    Ok(())
}

/// Measures the trial of a gang, and reports it.
fn try_gang(nodes: &NodeList, pods: &PodList, report: &mut Report) -> Result<Verdict> {
    progress("a gang tried out");
    let large = nodes
        .rows
        .iter()
        .find(|row| row.inventory.gpus().len() == 8);
    let (median, longest) = trial::measure(large.context("no node of 8 GPUs")?, &pods.rows)?;
    report.say(&format!(
        "A gang of {gang} pods of one GPU, placed by the engine on {nodes} nodes of 8 GPUs half of \
         which are taken, and taken back: {} ms (median of 101 trials in one process), {} ms at \
         most.",
        short(median),
        short(longest),
        gang = trial::GANG,
        nodes = trial::NODES,
    ));
    let what = format!("a gang of {} tried out", trial::GANG);
    Ok(Verdict::at_most(&what, median, TRIAL_TARGET, "ms"))
}

fn cases(nodes: &NodeList, pods: &PodList, arguments: &Arguments) -> [Case; 2] {
    let pods: Vec<PodRow> = pods
        .rows
        .iter()
        .cycle()
        .take(arguments.pods)
        .cloned()
        .collect();
    let take = |large: bool| {
        let all = nodes.rows.iter();
        let some = all.filter(|row| !large || row.inventory.gpus().len() == 8);
        let some: Vec<&NodeFacts> = some.collect();
        some.into_iter()
            .cycle()
            .take(arguments.nodes)
            .cloned()
            .collect()
    };
    [
        ("nodes of 8 GPUs, with room", true),
        ("openb's nodes, full", false),
    ]
    .map(|(what, large)| Case {
        what,
        nodes: take(large),
        pods: pods.clone(),
    })
}

impl Case {
    fn measure(&self, sublet: &Path, folder: &Path) -> Result<[Run; 3]> {
        let (nodes, pods, order) = self.lists(folder)?;
        let list = self.objects()?;
        let json = folder.join("cluster.json");
        fs::write(&json, serde_json::to_string_pretty(&list)?)?;
        let yaml = folder.join("cluster.yaml");
        let mut text = String::new();
        write_yaml(&list, 0, &mut text);
        fs::write(&yaml, text)?;
        drop(list);
        let simulate = || {
            let mut command = Command::new(sublet);
            command.args([
                "simulate",
                "--no-timing",
                "-o",
                "json",
                "--policy",
                "tiling",
            ]);
            command.arg("--nodes").arg(&nodes).arg("--pods").arg(&pods);
            command.arg("--sequence").arg(&order);
            command
        };
        let plan = |file: &Path| {
            let mut command = Command::new(sublet);
            command
                .args(["plan", "-o", "json", "--policy", "tiling", "-f"])
                .arg(file);
            command
        };
        // A plan that does not place all pods exits with 1.
        Ok([
            best(simulate, &[0], &["runs", "0", "placed"])?,
            best(|| plan(&json), &[0, 1], &["placed"])?,
            best(|| plan(&yaml), &[0, 1], &["placed"])?,
        ])
    }

    /// Milliseconds of CPU time for each pod.
    fn each(&self, run: Run) -> f64 {
        run.seconds * 1000.0 / self.pods.len() as f64
    }

    /// Its line in the table of costs.
    fn row(&self, [simulated, json, yaml]: [Run; 3]) -> Vec<String> {
        vec![
            self.what.to_owned(),
            format!("{} / {}", yaml.placed, simulated.placed),
            short(simulated.seconds),
            short(json.seconds),
            short(yaml.seconds),
            short(self.each(yaml)),
            short(yaml.seconds / simulated.seconds),
        ]
    }

    fn verdicts(&self, [_, json, yaml]: [Run; 3]) -> [Verdict; 2] {
        [("JSON", json), ("YAML", yaml)].map(|(form, run)| {
            let what = format!("a pod of {form}, {}", self.what);
            Verdict::at_most(&what, self.each(run), TARGET, "ms of CPU")
        })
    }

    /// Files with the nodes, the pods and their order, in the form that `simulate` reads.
    fn lists(&self, folder: &Path) -> Result<(PathBuf, PathBuf, PathBuf)> {
        let mut nodes = "sn,cpu_milli,memory_mib,gpu,model\n".to_owned();
        for (number, node) in self.nodes.iter().enumerate() {
            let (host, gpus) = (node.host, node.inventory.gpus().len());
            let (cpu, memory) = (host.cpu.get(), host.memory.get() >> 20);
            let _ = writeln!(
                nodes,
                "{},{cpu},{memory},{gpus},{}",
                name(number),
                node.model
            );
        }
        let mut pods = "name,cpu_milli,memory_mib,num_gpu,gpu_milli\n".to_owned();
        for (number, pod) in self.pods.iter().enumerate() {
            let (count, milli) = match pod.claim.ask() {
                Ask::Nothing => (0, 0),
                // Cards of lists without memory have one MiB for each thousandth of a card.
                Ask::Parts(parts) => (1, parts.memory().get()),
                Ask::WholeCards(count) => (count.get(), 1000),
            };
            let host = pod.claim.host();
            let (cpu, memory) = (host.cpu.get(), host.memory.get() >> 20);
            let _ = writeln!(pods, "pod-{number:05},{cpu},{memory},{count},{milli}");
        }
        let all =
            |count: usize| (0..count).fold(String::new(), |all, next| format!("{all} {next}"));
        let order = format!(
            "nodes{}\npods{}\n",
            all(self.nodes.len()),
            all(self.pods.len())
        );
        let file = |name: &str, text: &str| {
            let path = folder.join(name);
            fs::write(&path, text).with_context(|| format!("write {}", path.display()))?;
            anyhow::Ok(path)
        };
        Ok((
            file("nodes.csv", &nodes)?,
            file("pods.csv", &pods)?,
            file("order", &order)?,
        ))
    }

    /// The same nodes and pods as Kubernetes objects.
    fn objects(&self) -> Result<Value> {
        let mut items = Vec::with_capacity(self.nodes.len() + self.pods.len());
        for (number, node) in self.nodes.iter().enumerate() {
            let mut node = manifest::node(&name(number), node, false)?;
            node["metadata"]["uid"] = uid(1, number);
            items.push(node);
        }
        for (number, pod) in self.pods.iter().enumerate() {
            let name = format!("pod-{number:05}");
            let mut pod = manifest::pod(&name, &pod.claim);
            pod["metadata"]["namespace"] = json!("default");
            pod["metadata"]["uid"] = uid(2, number);
            pod["metadata"]["resourceVersion"] = json!(number.to_string());
            pod["metadata"]["creationTimestamp"] = json!("2026-01-01T00:00:00Z");
            pod["spec"]["tolerations"] = json!([{
                "key": "node.kubernetes.io/not-ready", "operator": "Exists",
                "effect": "NoExecute", "tolerationSeconds": 300,
            }]);
            pod["status"] = json!({ "phase": "Pending", "qosClass": "Burstable" });
            items.push(pod);
        }
        Ok(json!({ "apiVersion": "v1", "kind": "List", "items": items }))
    }
}

fn name(number: usize) -> String {
    format!("node-{number:05}")
}

fn uid(kind: usize, number: usize) -> Value {
    json!(format!("{kind:08x}-5b1e-4c0a-9d3f-{number:012x}"))
}

/// The least CPU time of several runs, and the number at the path `placed` in the answer.
fn best(command: impl Fn() -> Command, codes: &[i32], placed: &[&str]) -> Result<Run> {
    let mut best: Option<Run> = None;
    for _ in 0..TRIES {
        let (seconds, answer) = timed(&command(), codes)?;
        let mut found: Value =
            serde_json::from_str(&answer).context("an answer that is not JSON")?;
        for step in placed {
            found = match step.parse::<usize>() {
                Ok(at) => found[at].take(),
                Err(_) => found[*step].take(),
            };
        }
        let placed = found.as_u64().context("the answer has no count of pods")?;
        if best.is_none_or(|best| seconds < best.seconds) {
            best = Some(Run { seconds, placed });
        }
    }
    best.context("nothing was run")
}

/// Writes a value in the style of kubectl: block maps and lists, lists at the indentation of
/// their key, and quotes where a reader might take a string for another type.
fn write_yaml(value: &Value, indent: usize, text: &mut String) {
    match value {
        Value::Object(map) if !map.is_empty() => {
            for (number, (key, value)) in map.iter().enumerate() {
                if number > 0 {
                    text.extend(std::iter::repeat_n(' ', indent));
                }
                let _ = write!(text, "{key}:");
                let nested = match value {
                    Value::Object(map) => !map.is_empty(),
                    Value::Array(list) => !list.is_empty(),
                    _ => false,
                };
                if nested {
                    let within = indent + if value.is_object() { 2 } else { 0 };
                    text.push('\n');
                    text.extend(std::iter::repeat_n(' ', within));
                    write_yaml(value, within, text);
                } else {
                    text.push(' ');
                    write_yaml(value, indent, text);
                }
            }
        }
        Value::Array(list) if !list.is_empty() => {
            for (number, value) in list.iter().enumerate() {
                if number > 0 {
                    text.extend(std::iter::repeat_n(' ', indent));
                }
                text.push_str("- ");
                write_yaml(value, indent + 2, text);
            }
        }
        Value::String(plain) if is_plain(plain) => {
            let _ = writeln!(text, "{plain}");
        }
        other => {
            let _ = writeln!(text, "{other}");
        }
    }
}

fn is_plain(text: &str) -> bool {
    let starts = text.starts_with(|c: char| c.is_ascii_alphabetic());
    let usual = |c: char| c.is_ascii_alphanumeric() || " ./-_".contains(c);
    let words = ["true", "false", "null", "yes", "no", "on", "off", "y", "n"];
    starts
        && text.chars().all(usual)
        && !text.ends_with(' ')
        && !words.contains(&text.to_ascii_lowercase().as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_are_written_as_kubectl_writes_them() {
        let value = json!({
            "items": [{ "name": "a", "list": ["x", "1"] }, { "empty": {}, "none": [] }],
            "kind": "List", "number": 5, "quoted": "true", "time": "2026-01-01T00:00:00Z",
        });
        let mut text = String::new();
        write_yaml(&value, 0, &mut text);
        let expected = "\
items:
- list:
  - x
  - \"1\"
  name: a
- empty: {}
  none: []
kind: List
number: 5
quoted: \"true\"
time: \"2026-01-01T00:00:00Z\"
";
        assert_eq!(text, expected);
    }
}
