//! The text of an inventory file: a machine described by hand, in YAML or JSON, as short as
//! possible. `gpus: [{memory: 16276MiB, count: 2}]` is a whole file. Nothing here touches the file
//! system. An unknown field is refused with its line, so that a misspelt field never becomes a
//! healthy card.

use std::sync::Arc;

use serde::Deserialize;
use serde::de::{Deserializer, Error as _};
use sublet_model::{
    Bdf, Fabric, Gpu, GpuIndex, GpuUuid, Health, Inventory, Level, MiB, Nic, NodeName, Pair,
    Partition, parse_size,
};

/// The devices that `text` describes. Cards without a UUID get one made from the name of
/// the node and their number, so it stays the same through restarts and differs between
/// nodes that share a file.
///
/// # Errors
/// The part that is not understood, and its place: one paragraph for people.
pub fn parse(text: &str, node: &NodeName) -> Result<Inventory, String> {
    if text.trim().is_empty() {
        return Err("the file is empty; write at least `gpus: []`".to_owned());
    }
    let file: File = serde_saphyr::from_str(text).map_err(|error| explain(text, &error))?;
    let mut gpus = Vec::new();
    for (entry, cards) in file.gpus.iter().enumerate() {
        if let Some(field) = cards.single_field().filter(|_| cards.count != 1) {
            let count = cards.count;
            return Err(format!(
                "gpus[{entry}]: `{field}` is of one card, but count is {count}"
            ));
        }
        if cards.count > Inventory::MAX_GPUS - gpus.len() {
            let max = Inventory::MAX_GPUS;
            return Err(format!("gpus[{entry}]: more than {max} GPUs on one node"));
        }
        for _ in 0..cards.count {
            let gpu = cards
                .gpu(gpus.len(), node)
                .map_err(|why| format!("gpus[{entry}]: {why}"))?;
            gpus.push(gpu);
        }
    }
    let pairs = file.pairs.iter().map(FilePair::pair).collect();
    let nics = file.nics.into_iter().map(FileNic::nic).collect();
    let partitions = file
        .partitions
        .into_iter()
        .map(FilePartition::partition)
        .collect();
    Inventory::new(gpus, pairs, nics, partitions).map_err(|error| error.to_string())
}

/// The error, with the name of the field that has the wrong value. The parser tells line and column
/// only, and `invalid u16` alone sends a reader counting columns.
fn explain(text: &str, error: &serde_saphyr::Error) -> String {
    let field = error.location().and_then(|place| {
        let line = text
            .lines()
            .nth(usize::try_from(place.line()).ok()?.checked_sub(1)?)?;
        let n_before = usize::try_from(place.column()).ok()?.checked_sub(1)?;
        let before: String = line.chars().take(n_before).collect();
        let key = before.trim_end().strip_suffix(':')?.trim_end_matches('"');
        key.rsplit(|c: char| !c.is_alphanumeric())
            .next()
            .map(str::to_owned)
    });
    let problem = error.without_snippet();
    match field {
        Some(field) => format!("`{field}`: {problem}"),
        None => problem.to_string(),
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    gpus: Vec<Cards>,
    #[serde(default)]
    pairs: Vec<FilePair>,
    #[serde(default)]
    nics: Vec<FileNic>,
    #[serde(default)]
    partitions: Vec<FilePartition>,
}

/// One card, or several equal ones. Cards are numbered in the order of the file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Cards {
    memory: Text<MiB>,
    #[serde(default = "one")]
    count: usize,
    #[serde(default)]
    model: String,
    health: Option<Text<Health>>,
    numa: Option<u16>,
    socket: Option<u16>,
    uuid: Option<Text<GpuUuid>>,
    minor: Option<u16>,
    module_id: Option<u8>,
    bdf: Option<Text<Bdf>>,
    #[serde(default)]
    pci_path: Vec<Text<Bdf>>,
    fabric: Option<FileFabric>,
}

fn one() -> usize {
    1
}

impl Cards {
    /// A field of this entry that two cards cannot share.
    fn single_field(&self) -> Option<&'static str> {
        [
            ("uuid", self.uuid.is_some()),
            ("minor", self.minor.is_some()),
            ("moduleId", self.module_id.is_some()),
            ("bdf", self.bdf.is_some()),
        ]
        .into_iter()
        .find_map(|(field, given)| given.then_some(field))
    }

    fn gpu(&self, number: usize, node: &NodeName) -> Result<Gpu, String> {
        let index = u16::try_from(number).map_err(|error| error.to_string())?;
        let uuid = match &self.uuid {
            Some(Text(uuid)) => uuid.clone(),
            None => made_up_uuid(node, index).map_err(|error| error.to_string())?,
        };
        Ok(Gpu {
            index: GpuIndex(index),
            uuid: Some(uuid),
            model: Arc::from(self.model.as_str()),
            memory: self.memory.0,
            health: self
                .health
                .as_ref()
                .map_or(Health::Healthy, |Text(health)| health.clone()),
            minor: self.minor.or(Some(index)),
            module_id: self.module_id,
            bdf: self.bdf.as_ref().map(|Text(bdf)| *bdf),
            numa: self.numa,
            socket: self.socket,
            pci_path: self.pci_path.iter().map(|Text(bdf)| *bdf).collect(),
            fabric: self.fabric.as_ref().map(|fabric| Fabric {
                cluster: fabric.cluster.0.clone(),
                clique: fabric.clique,
            }),
        })
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FileFabric {
    cluster: Text<GpuUuid>,
    clique: u32,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FilePair {
    gpus: (u16, u16),
    level: Text<Level>,
    #[serde(default)]
    nvlinks: u8,
}

impl FilePair {
    fn pair(&self) -> Pair {
        let (a, b) = self.gpus;
        Pair {
            gpus: (GpuIndex(a.min(b)), GpuIndex(a.max(b))),
            level: self.level.0,
            nvlinks: self.nvlinks,
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct FileNic {
    bdf: Text<Bdf>,
    ibdev: String,
    numa: Option<u16>,
    #[serde(default)]
    pci_path: Vec<Text<Bdf>>,
}

impl FileNic {
    fn nic(self) -> Nic {
        Nic {
            bdf: self.bdf.0,
            ibdev: self.ibdev,
            numa: self.numa,
            pci_path: self.pci_path.into_iter().map(|Text(bdf)| bdf).collect(),
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FilePartition {
    id: u16,
    gpus: Vec<u16>,
    #[serde(default)]
    links: u8,
}

impl FilePartition {
    fn partition(mut self) -> Partition {
        self.gpus.sort_unstable();
        Partition {
            id: self.id,
            gpus: self.gpus.into_iter().map(GpuIndex).collect(),
            links: self.links,
        }
    }
}

/// A value that is written as one word in the file.
struct Text<T>(T);

impl<'de, T: FromText> Deserialize<'de> for Text<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        T::from_text(&text).map(Text).map_err(D::Error::custom)
    }
}

trait FromText: Sized {
    fn from_text(text: &str) -> Result<Self, String>;
}

impl FromText for MiB {
    fn from_text(text: &str) -> Result<MiB, String> {
        parse_size(text).map_err(|error| error.to_string())
    }
}

impl FromText for Health {
    fn from_text(text: &str) -> Result<Health, String> {
        match text.trim() {
            "" => Err("health is `healthy` or a reason, such as `xid 79`".to_owned()),
            "healthy" => Ok(Health::Healthy),
            reason => Ok(Health::Sick(Arc::from(reason))),
        }
    }
}

impl FromText for Bdf {
    fn from_text(text: &str) -> Result<Bdf, String> {
        text.parse()
            .map_err(|error: sublet_model::BdfError| error.to_string())
    }
}

impl FromText for GpuUuid {
    fn from_text(text: &str) -> Result<GpuUuid, String> {
        GpuUuid::new(text).map_err(|error| error.to_string())
    }
}

impl FromText for Level {
    /// The words of `nvidia-smi topo -m`, which has none for two GPUs on one board.
    fn from_text(text: &str) -> Result<Level, String> {
        Ok(match text {
            "BOARD" => Level::Board,
            "PIX" => Level::Pix,
            "PXB" => Level::Pxb,
            "PHB" => Level::Phb,
            "NODE" => Level::Node,
            "SOCKET" => Level::Socket,
            "SYS" => Level::Sys,
            _ => {
                return Err(format!(
                    "`{text}` is not one of BOARD, PIX, PXB, PHB, NODE, SOCKET, SYS"
                ));
            }
        })
    }
}

/// A UUID in NVML's form for a card that has none: FNV-1a over node name and number.
/// `std`'s hasher may change with the toolchain, and a card must not change its name.
fn made_up_uuid(node: &NodeName, index: u16) -> Result<GpuUuid, sublet_model::NameError> {
    // http://www.isthe.com/chongo/tech/comp/fnv/, the 128-bit parameters.
    const BASIS: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;
    // The words after the number mix the last digit into all of the hash.
    let name = format!("{node}/{index} made up by sublet");
    let hash = name.bytes().fold(BASIS, |hash, byte| {
        (hash ^ u128::from(byte)).wrapping_mul(PRIME)
    });
    let hex = format!("{hash:032x}");
    let part = |from, to| &hex[from..to];
    let (a, b, c) = (part(0, 8), part(8, 12), part(12, 16));
    GpuUuid::new(&format!(
        "GPU-{a}-{b}-{c}-{}-{}",
        part(16, 20),
        part(20, 32)
    ))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(text: &str) -> Result<Inventory, String> {
        parse(text, &NodeName::new("n1").unwrap())
    }

    #[test]
    fn a_short_file_is_a_machine() {
        let inventory = read("gpus: [{memory: 16276MiB, count: 2}]").unwrap();
        assert_eq!(inventory.memory().get(), 32_552);
        let uuids: Vec<&str> = inventory
            .gpus()
            .iter()
            .filter_map(|gpu| Some(gpu.uuid.as_ref()?.as_str()))
            .collect();
        // Written out, because annotations of running pods have these names.
        assert_eq!(
            uuids,
            [
                "GPU-35a01770-70a6-d246-d037-8c8a136a2571",
                "GPU-3b28a0c3-acd3-7a86-8d98-b86ca2c91ad6"
            ]
        );
        let other = parse("gpus: [{memory: 1MiB}]", &NodeName::new("n2").unwrap()).unwrap();
        assert_ne!(other.gpus()[0].uuid, inventory.gpus()[0].uuid);
    }

    #[test]
    fn a_long_file_says_everything() {
        let text = r#"
gpus:
- {memory: 80GiB, model: NVIDIA H100, numa: 0, socket: 0, uuid: GPU-a, minor: 3, moduleId: 2,
   bdf: "0000:1b:00.0", pciPath: ["0000:16:01.0"], fabric: {cluster: f, clique: 7}}
- {memory: 80 GiB, health: xid 79}
pairs: [{gpus: [1, 0], level: NODE, nvlinks: 18}]
nics: [{bdf: "0000:1c:00.0", ibdev: mlx5_0, numa: 0, pciPath: ["0000:16:01.0"]}]
partitions: [{id: 4, gpus: [1, 0], links: 18}]
"#;
        let inventory = read(text).unwrap();
        let [first, second] = inventory.gpus() else {
            panic!("two cards")
        };
        assert_eq!(
            (&*first.model, first.minor, first.module_id),
            ("NVIDIA H100", Some(3), Some(2))
        );
        assert_eq!(first.bdf.unwrap().to_string(), "0000:1b:00.0");
        assert_eq!(
            (first.pci_path.len(), first.fabric.as_ref().unwrap().clique),
            (1, 7)
        );
        assert_eq!(second.health, Health::Sick(Arc::from("xid 79")));
        assert_eq!((second.minor, second.memory.get()), (Some(1), 80 * 1024));
        assert_eq!(inventory.pairs()[0].gpus, (GpuIndex(0), GpuIndex(1)));
        assert_eq!(inventory.pairs()[0].level, Level::Node);
        assert_eq!(inventory.nics()[0].ibdev, "mlx5_0");
        assert_eq!(inventory.partitions()[0].gpus, [GpuIndex(0), GpuIndex(1)]);
        assert_eq!(read("gpus: []").unwrap().gpus().len(), 0);
    }

    #[test]
    fn json_is_read_too() {
        let inventory = read(r#"{"gpus": [{"memory": "1GiB", "numa": 1}]}"#).unwrap();
        assert_eq!(inventory.gpus()[0].numa, Some(1));
    }

    fn check(text: &str, parts: &[&str]) {
        let error = read(text).expect_err(text);
        for part in parts {
            assert!(
                error.contains(part),
                "{text:?} gives {error:?} without {part:?}"
            );
        }
    }

    #[test]
    fn bad_files_are_refused_with_their_place() {
        check("", &["the file is empty"]);
        check(" \n", &["the file is empty"]);
        check("# nothing\n", &["line 2", "end of input"]);
        check("nodes: []", &["line 1", "nodes"]);
        check("gpus:\n- {memory: 1MiB, modell: x}", &["line 2", "modell"]);
        check("gpus:\n- {memory: 1MiB}\n- {}", &["line 3", "memory"]);
        check("gpus:\n- {memory: 5}", &["line 2", "`5` is not a size"]);
        check(
            "gpus:\n- {memory: -5MiB}",
            &["line 2", "`-5MiB` is less than nothing"],
        );
        check(
            "gpus:\n- {memory: 99999999999999999999MiB}",
            &["more memory than any machine has"],
        );
        check("gpus:\n- {memory: 1.5.GiB}", &["not a size"]);
        check("gpus:\n- {memory: [1]}", &["line 2"]);
        check("gpus:\n- {memory: 1MiB, numa: -1}", &["line 2", "`numa`"]);
        check(
            "{\"gpus\": [{\"memory\": \"1MiB\", \"numa\": -1}]}",
            &["line 1", "`numa`"],
        );
        check(
            "gpus:\n- {memory: 1MiB, count: many}",
            &["line 2", "`count`"],
        );
        check("gpus:\n- {memory: 1MiB, count: -1}", &["line 2", "`count`"]);
        check("gpus:\n- {memory: 1MiB, count: 5000}", &["gpus[0]", "4096"]);
        check(
            "gpus:\n- {memory: 1MiB, count: 2, uuid: GPU-a}",
            &["gpus[0]", "uuid", "2"],
        );
        check("gpus: [{memory: 1MiB, bdf: 3b}]", &["3b", "PCI address"]);
        check("gpus: [{memory: 1MiB, health: ''}]", &["xid 79"]);
        check(
            "gpus: [{memory: 1MiB, uuid: a}, {memory: 1MiB, uuid: a}]",
            &["UUID a", "twice"],
        );
        check("gpus: [", &["line 1"]);
        check("gpus: hello", &["line 1"]);
    }

    #[test]
    fn bad_wiring_is_refused_with_its_place() {
        check(
            "gpus: []\npairs: [{gpus: [0, 1], level: PIX}]",
            &["GPU 0", "not on the node"],
        );
        check(
            "gpus: []\npairs: [{gpus: [0, 1], level: NVL}]",
            &["`NVL` is not one of"],
        );
        let two = "gpus: [{memory: 1MiB, count: 2}]\n";
        for (wiring, problem) in [
            (
                "pairs: [{gpus: [0, 1], level: PIX}, {gpus: [1, 0], level: SYS}]",
                "`pairs` has GPUs 0 and 1 twice",
            ),
            (
                "pairs: [{gpus: [1, 1], level: PIX}]",
                "`pairs` has GPU 1 as a pair with itself",
            ),
            (
                "nics: [{bdf: '0000:1c:00.0', ibdev: a}, {bdf: '00000000:1C:00.0', ibdev: b}]",
                "`nics` has the PCI address 0000:1c:00.0 twice",
            ),
            (
                "partitions: [{id: 4, gpus: [0]}, {id: 4, gpus: [1]}]",
                "`partitions` has the id 4 twice",
            ),
            (
                "partitions: [{id: 4, gpus: [1, 0, 1]}]",
                "`partitions` has GPU 1 twice in partition 4",
            ),
        ] {
            check(&format!("{two}{wiring}"), &[problem]);
        }
    }

    proptest! {
        #[test]
        fn no_text_panics(text in any::<String>()) {
            if let Ok(inventory) = read(&text) {
                prop_assert!(inventory.gpus().len() <= Inventory::MAX_GPUS);
            }
        }

        #[test]
        fn no_almost_right_text_panics(
            memory in "-?[0-9]{0,22}(MiB|GiB|Mi|)",
            count in "-?[0-9]{0,5}",
            more in "[a-z:, \\[\\]{}0-9\n-]{0,40}",
        ) {
            let text = format!("gpus: [{{memory: {memory}, count: {count}}}]\n{more}");
            if let Ok(inventory) = read(&text) {
                prop_assert!(inventory.gpus().len() <= Inventory::MAX_GPUS);
            }
        }
    }
}
