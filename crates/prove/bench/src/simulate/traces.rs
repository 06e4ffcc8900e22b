//! The traces in `fixtures/`, and the orders of arrival that the published results were made
//! with: streams of Go's generator, written by the Go program in `tools/sequence`.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use flate2::read::GzDecoder;
use sublet_sim::{BadLines, NodeList, PodList, Sequence, read_nodes, read_pods};

/// The lists with published results, in the order of the published tables.
pub(super) const PUBLISHED: [&str; 17] = [
    "default",
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

/// The lists that Sublet's policy was tuned on, with other seeds (docs/placement.md).
pub(super) const TUNED_ON: [&str; 2] = ["default", "multigpu30"];

/// The memory that we give the spot cluster's nodes, because their list names none: MiB for each
/// core. The openb cluster has 4.6 GiB a core. With 8 GiB, memory is rarely the limit.
const SPOT_MIB_A_CORE: u64 = 8192;

/// Nodes, pods and orders of arrival.
pub(super) struct Traces {
    pub(super) nodes: NodeList,
    pub(super) lists: BTreeMap<&'static str, PodList>,
    sequences: BTreeMap<(&'static str, u64), Sequence>,
}

impl Traces {
    /// Reads lists, and draws the published orders of arrival of these seeds.
    pub(super) fn read(repository: &Path, lists: &[&'static str], seeds: &[u64]) -> Result<Traces> {
        let nodes = openb(repository, "openb_node_list_gpu_node.csv.gz");
        let (nodes, _) = read_nodes(open(&nodes)?, BadLines::Stop)?;
        let mut traces = Traces {
            nodes,
            lists: BTreeMap::new(),
            sequences: BTreeMap::new(),
        };
        let orders = Orders::build(repository)?;
        for &list in lists {
            let pods = open(&pod_list(repository, list))?;
            let (pods, _) = read_pods(pods, &traces.nodes, BadLines::Stop)?;
            for &seed in seeds {
                let text = orders.of(list, seed)?;
                let sequence = Sequence::read(&text, &traces.nodes, &pods)
                    .with_context(|| format!("the order of {list}, seed {seed}"))?;
                traces.sequences.insert((list, seed), sequence);
            }
            traces.lists.insert(list, pods);
        }
        Ok(traces)
    }

    /// The order of arrival of one run.
    pub(super) fn sequence(&self, list: &'static str, seed: u64) -> Result<&Sequence> {
        let found = self.sequences.get(&(list, seed));
        found.with_context(|| format!("no order of arrival of {list}, seed {seed}"))
    }
}

/// The Go program that writes orders of arrival.
pub(super) struct Orders {
    folder: tempfile::TempDir,
    repository: PathBuf,
}

impl Orders {
    pub(super) fn build(repository: &Path) -> Result<Orders> {
        let folder = tempfile::tempdir()?;
        let status = Command::new("go")
            .args(["build", "-o"])
            .arg(folder.path())
            .arg(".")
            .current_dir(repository.join("tools/sequence"))
            .status()
            .context("run go, which writes the published orders of arrival")?;
        ensure!(
            status.success(),
            "tools/sequence cannot be built ({status})"
        );
        Ok(Orders {
            folder,
            repository: repository.to_owned(),
        })
    }

    /// A file of the order of arrival, in the form that `sublet simulate --sequence` reads.
    pub(super) fn of(&self, list: &str, seed: u64) -> Result<String> {
        let output = Command::new(self.folder.path().join("sequence"))
            .arg("-nodes")
            .arg(openb(&self.repository, "openb_node_list_gpu_node.csv.gz"))
            .arg("-pods")
            .arg(pod_list(&self.repository, list))
            .args(["-seed", &seed.to_string()])
            .output()?;
        let error = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "tools/sequence: {error}");
        Ok(String::from_utf8(output.stdout)?)
    }
}

/// A file of the openb trace.
pub(super) fn openb(repository: &Path, name: &str) -> PathBuf {
    repository.join("fixtures/traces/openb").join(name)
}

/// A list of pods of the openb trace.
pub(super) fn pod_list(repository: &Path, list: &str) -> PathBuf {
    openb(repository, &format!("openb_pod_list_{list}.csv.gz"))
}

/// The node shapes of Alibaba's spot cluster of 2026.
pub(super) fn spot_nodes(repository: &Path) -> Result<NodeList> {
    let file = repository.join("fixtures/traces/spot-2026/node_info_df.csv.gz");
    spot_list(open(&file)?).with_context(|| format!("read {}", file.display()))
}

fn spot_list(raw: impl Read) -> Result<NodeList> {
    let mut text = "sn,cpu_milli,memory_mib,gpu,model\n".to_owned();
    for row in csv::Reader::from_reader(raw).deserialize() {
        let (model, gpus, cores, name): (String, u32, u64, String) = row?;
        let memory = cores * SPOT_MIB_A_CORE;
        let _ = writeln!(text, "{name},{},{memory},{gpus},{model}", cores * 1000);
    }
    let (nodes, _) = read_nodes(text.as_bytes(), BadLines::Stop)?;
    Ok(nodes)
}

/// A published table: figures at 0 to 130 % by list, policy and seed.
pub(super) type Published = BTreeMap<(String, String, u64), Vec<f64>>;

/// Reads one of the published tables.
pub(super) fn published(repository: &Path, name: &str) -> Result<Published> {
    let file = openb(
        repository,
        &format!("published/analysis_{name}_discrete.csv.gz"),
    );
    published_table(open(&file)?).with_context(|| format!("read {}", file.display()))
}

fn published_table(text: impl Read) -> Result<Published> {
    let mut reader = csv::Reader::from_reader(text);
    let headers = reader.headers()?.clone();
    let first = headers.iter().position(|name| name == "0");
    let first = first.context("there is no column `0`")?;
    let row = |row: csv::Result<csv::StringRecord>| {
        let row = row?;
        let text = |at: usize| row.get(at).context("a row is too short");
        let list = text(0)?.trim_start_matches("openb_pod_list_").to_owned();
        let figures = row.iter().skip(first).map(str::parse::<f64>);
        let figures: Result<Vec<f64>, _> = figures.collect();
        Ok(((list, text(1)?.to_owned(), text(3)?.parse()?), figures?))
    };
    reader.records().map(row).collect()
}

pub(super) fn open(file: &Path) -> Result<GzDecoder<File>> {
    let opened = File::open(file).with_context(|| format!("open {}", file.display()))?;
    Ok(GzDecoder::new(opened))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spot_node_has_eight_gib_a_core() {
        let raw = "gpu_model,gpu_capacity_num,cpu_num,node_name\nA10,1,128,7\nH800,8,192,8\n";
        let nodes = spot_list(raw.as_bytes()).unwrap();
        let row = &nodes.rows[0];
        assert_eq!(
            (row.host.cpu.get(), row.host.memory.get()),
            (128_000, 1 << 40)
        );
        assert_eq!((&*row.model, row.inventory.gpus().len()), ("A10", 1));
        assert_eq!(nodes.rows[1].inventory.gpus().len(), 8);
        assert!(spot_list("gpu_model,n\nA10,1\n".as_bytes()).is_err());
    }

    #[test]
    fn a_published_row_is_found_by_list_policy_and_seed() {
        let text = "workload,sc_policy,tune,seed,total_gpus,0,1\n\
                    openb_pod_list_default,06-FGD,1.3,42,6212,0.5,1.25\n";
        let table = published_table(text.as_bytes()).unwrap();
        let key = ("default".to_owned(), "06-FGD".to_owned(), 42);
        assert_eq!(table[&key], [0.5, 1.25]);
        assert!(published_table("workload,a\nx,y\n".as_bytes()).is_err());
        assert!(published_table(text.replace("1.25", "x").as_bytes()).is_err());
    }
}
