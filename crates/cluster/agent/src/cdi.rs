//! The devices of each card as CDI describes them, so that runtimes put them into a container's
//! specification. Devices that only a hook brings in, because of a variable, are taken away again when
//! systemd reloads its units; those in the specification stay.
//!
//! If NVIDIA's toolkit has described a card itself, its name is used, because it brings the
//! driver's libraries too. Otherwise ours is: the device files alone, beside the variable as ever.
//!
//! The file outlives the agent: kubelet starts containers again while the agent is away, and a runtime
//! refuses names that nothing describes. It goes when there is no card any more.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde_json::json;
use sublet_model::{Gpu, Inventory};
use tracing::{info, warn};

use crate::allocate::CardLimit;

/// Folder in which runtimes look for descriptions that are made while the machine runs.
pub(crate) const DEFAULT_FOLDER: &str = "/var/run/cdi";

/// The vendor and class of our descriptions, and the file's name.
const KIND: &str = "sublet.dev/gpu";
const FILE: &str = "sublet.dev-gpu.json";

/// NVIDIA's vendor and class, and the folder of descriptions that stay.
const NVIDIAS_KIND: &str = "nvidia.com/gpu";
const FIXED_FOLDER: &str = "/etc/cdi";

/// File in which the kernel lists drivers and their device numbers. The same in every container,
/// unlike the device files themselves.
pub(crate) const DEVICE_NUMBERS: &str = "/proc/devices";

/// Devices that every container with a card needs beside the card's own file: the file, the
/// driver's name for its numbers, and the minor number (Linux'
/// Documentation/admin-guide/devices.txt, and NVIDIA's own kernel modules).
const COMMON: [(&str, &str, u32); 3] = [
    ("nvidiactl", CARDS, 255),
    ("nvidia-uvm", "nvidia-uvm", 0),
    ("nvidia-uvm-tools", "nvidia-uvm", 1),
];

/// The driver's name for the numbers of cards; some versions say it otherwise.
const CARDS: &str = "nvidia";
const CARDS_TOO: &str = "nvidia-frontend";

/// Place of the cards.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Hardware {
    /// On this machine; the file of device numbers.
    Real(PathBuf),
    /// In an inventory file. A container gets a file that does nothing, where a card's would be.
    Simulated,
}

/// The descriptions of this node's cards.
pub(crate) struct Cdi {
    folder: PathBuf,
    hardware: Hardware,
    /// By which name a container gets a card, by its UUID.
    names: Mutex<BTreeMap<String, String>>,
}

impl Cdi {
    /// In that folder, which must be there: the runtime would not look into one that only we see.
    pub(crate) fn within(folder: &Path, hardware: Hardware) -> Option<Cdi> {
        let folder = folder.to_owned();
        let is_there = folder.is_dir();
        if !is_there {
            info!(folder = %folder.display(), "no folder for CDI: devices come by variables alone");
        }
        is_there.then(|| Cdi {
            folder,
            hardware,
            names: Mutex::default(),
        })
    }

    /// Describes these cards, and no others.
    pub(crate) fn keep(&self, inventory: &Inventory) {
        let numbers = match &self.hardware {
            Hardware::Real(file) => numbers(&fs::read_to_string(file).unwrap_or_default()),
            Hardware::Simulated => Numbers::new(),
        };
        let (text, mut names) = describe(inventory, &self.hardware, &numbers);
        if let Err(error) = self.write(text) {
            let folder = self.folder.display();
            warn!(%folder, %error, "cards not described, devices come by variables alone");
            names.clear();
        }
        if self.hardware != Hardware::Simulated {
            let texts = descriptions(&[Path::new(FIXED_FOLDER), &self.folder]);
            prefer_nvidias(&mut names, inventory, &texts);
        }
        *self.lock() = names;
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, String>> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self, text: Option<String>) -> io::Result<()> {
        let path = self.folder.join(FILE);
        let Some(text) = text else {
            return match fs::remove_file(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
                _ => Ok(()),
            };
        };
        if fs::read_to_string(&path).is_ok_and(|before| before == text) {
            return Ok(());
        }
        // Runtimes read every `.json` and `.yaml` there, and must not read half of one.
        let draft = self.folder.join(".sublet.dev-gpu.new");
        fs::write(&draft, text)?;
        fs::rename(&draft, &path)
    }

    /// The names by which a container gets the devices of its cards; none where they are not
    /// described.
    pub(crate) fn devices(&self, cards: &[CardLimit]) -> Vec<String> {
        let names = self.lock();
        let uuids = cards.iter().filter_map(|card| card.uuid.as_ref());
        let known = uuids.filter_map(|uuid| names.get(uuid.as_str()));
        known.cloned().collect()
    }
}

/// Reads the descriptions that others have put into these folders.
fn descriptions(folders: &[&Path]) -> Vec<String> {
    let files = folders.iter().flat_map(fs::read_dir).flatten().flatten();
    let paths = files.map(|file| file.path());
    let is_read = |path: &PathBuf| {
        let end = path.extension().and_then(|end| end.to_str());
        matches!(end, Some("json" | "yaml")) && !path.ends_with(FILE)
    };
    let texts = paths.filter(is_read).map(fs::read_to_string);
    texts.flatten().collect()
}

/// Takes NVIDIA's name of a card where its toolkit has described it. A text that has both the kind
/// and the card's UUID as words is such a description: nothing else in it is called so.
fn prefer_nvidias(names: &mut BTreeMap<String, String>, inventory: &Inventory, texts: &[String]) {
    for uuid in inventory.gpus().iter().filter_map(|gpu| gpu.uuid.as_ref()) {
        let is_in = |text: &&String| {
            let has = |word: &str| {
                let ends = |end: char| end.is_whitespace() || matches!(end, '"' | '\'' | ',');
                text.split(ends).any(|one| one == word)
            };
            has(NVIDIAS_KIND) && has(uuid.as_str())
        };
        if texts.iter().any(|text| is_in(&text)) {
            names.insert(uuid.to_string(), format!("{NVIDIAS_KIND}={uuid}"));
        }
    }
}

/// The file's text, and the names of the cards in it by their UUIDs; no text where there is no card
/// to describe.
fn describe(
    inventory: &Inventory,
    hardware: &Hardware,
    numbers: &Numbers,
) -> (Option<String>, BTreeMap<String, String>) {
    let mut names = BTreeMap::new();
    let mut devices = Vec::new();
    for gpu in inventory.gpus() {
        if let (Some(uuid), Some(nodes)) = (&gpu.uuid, nodes(gpu, hardware, numbers)) {
            names.insert(uuid.to_string(), format!("{KIND}={uuid}"));
            devices
                .push(json!({"name": uuid.to_string(), "containerEdits": {"deviceNodes": nodes}}));
        }
    }
    let text = json!({"cdiVersion": "0.5.0", "kind": KIND, "devices": devices});
    let text = (!devices.is_empty()).then(|| format!("{text:#}\n"));
    (text, names)
}

/// The first device number of each driver of character devices, by its name.
type Numbers = BTreeMap<String, u32>;

/// Reads the kernel's list. A line that is none of a driver is passed over.
fn numbers(text: &str) -> Numbers {
    let characters = text.split("Block devices:").next().unwrap_or_default();
    let lines = characters.lines().map(str::split_whitespace);
    let pairs = lines.filter_map(|mut words| {
        let major = words.next()?.parse().ok()?;
        Some((words.next()?.to_owned(), major))
    });
    pairs.collect()
}

/// The device files of a card; `None` where they are not known.
fn nodes(gpu: &Gpu, hardware: &Hardware, numbers: &Numbers) -> Option<Vec<serde_json::Value>> {
    match hardware {
        Hardware::Real(_) => {
            let major = |driver: &str| match driver {
                CARDS => numbers.get(CARDS).or_else(|| numbers.get(CARDS_TOO)),
                other => numbers.get(other),
            };
            // With its numbers the runtime makes the file, whether it is there on the host or not.
            let node = |name: &str, major: u32, minor: u32| {
                let path = format!("/dev/{name}");
                json!({"path": path, "type": "c", "major": major, "minor": minor, "fileMode": 0o666})
            };
            let minor = gpu.minor?;
            let own = node(&format!("nvidia{minor}"), *major(CARDS)?, minor.into());
            let common = COMMON
                .iter()
                .filter_map(|(name, driver, minor)| Some(node(name, *major(driver)?, *minor)));
            Some(std::iter::once(own).chain(common).collect())
        }
        Hardware::Simulated => {
            let path = format!("/dev/sublet-fake{}", gpu.index);
            Some(vec![json!({"path": path, "hostPath": "/dev/null"})])
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use sublet_model::{GpuIndex, GpuUuid, MiB};

    use super::*;

    fn inventory(uuids: &[&str]) -> Inventory {
        let gpu = |(index, uuid): (usize, &&str)| Gpu {
            uuid: Some(GpuUuid::new(uuid).unwrap()),
            minor: u16::try_from(index).ok(),
            ..Gpu::plain(GpuIndex(u16::try_from(index).unwrap()), MiB::from(10))
        };
        let gpus = uuids.iter().enumerate().map(gpu).collect();
        Inventory::new(gpus, Vec::new(), Vec::new(), Vec::new()).unwrap()
    }

    fn cards(inventory: &Inventory) -> Vec<CardLimit> {
        let card = |gpu: &Gpu| CardLimit {
            index: gpu.index,
            uuid: gpu.uuid.clone(),
            memory: gpu.memory,
        };
        inventory.gpus().iter().map(card).collect()
    }

    const DEVICES: &str = "Character devices:\n  1 mem\n195 nvidia\n195 nvidiactl\n511 nvidia-uvm\n\n\
        Block devices:\n  8 sd\n  9 nvidia\n";

    #[test]
    fn a_card_is_described_by_its_device_numbers() {
        let base = tempfile::tempdir().unwrap();
        let (devices, folder) = (base.path().join("devices"), base.path().join("cdi"));
        let cdi = || Cdi::within(&folder, Hardware::Real(devices.clone()));
        assert!(cdi().is_none());
        fs::create_dir(&folder).unwrap();
        let cdi = cdi().unwrap();
        let all = inventory(&["GPU-a", "GPU-b"]);
        // Without a driver nothing is described, and nothing else goes wrong.
        cdi.keep(&all);
        assert!(cdi.devices(&cards(&all)).is_empty());
        fs::write(&devices, DEVICES).unwrap();
        cdi.keep(&all);
        let file = folder.join(FILE);
        let text: serde_json::Value =
            serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
        let second = &text["devices"][1];
        assert_eq!(
            (&text["kind"], &second["name"]),
            (&json!("sublet.dev/gpu"), &json!("GPU-b"))
        );
        let nodes = second["containerEdits"]["deviceNodes"].as_array().unwrap();
        let nodes: Vec<String> = nodes
            .iter()
            .map(|one| {
                format!(
                    "{} {}:{}",
                    one["path"].as_str().unwrap(),
                    one["major"],
                    one["minor"]
                )
            })
            .collect();
        assert_eq!(
            nodes,
            [
                "/dev/nvidia1 195:1",
                "/dev/nvidiactl 195:255",
                "/dev/nvidia-uvm 511:0",
                "/dev/nvidia-uvm-tools 511:1"
            ]
        );
        let names = ["sublet.dev/gpu=GPU-a", "sublet.dev/gpu=GPU-b"];
        assert_eq!(cdi.devices(&cards(&all)), names);
        cdi.keep(&inventory(&[]));
        assert!(!file.exists() && cdi.devices(&cards(&all)).is_empty());
    }

    proptest! {
        #[test]
        fn damaged_numbers_are_those_of_a_line(at in 0..DEVICES.len(), byte in any::<char>()) {
            let damaged = format!("{}{byte}{}", &DEVICES[..at], &DEVICES[at..]);
            for (name, number) in numbers(&damaged) {
                prop_assert!(damaged.contains(&name) && damaged.contains(&number.to_string()));
            }
        }
    }

    #[test]
    fn what_nvidias_toolkit_has_described_goes_by_its_name() {
        let all = inventory(&["GPU-a", "GPU-b"]);
        let check = |text: &str| {
            let (_, mut names) = describe(&all, &Hardware::Simulated, &Numbers::new());
            prefer_nvidias(&mut names, &all, &[text.to_owned()]);
            names.into_values().collect::<Vec<_>>().join(" ")
        };
        let own = "sublet.dev/gpu=GPU-a sublet.dev/gpu=GPU-b";
        assert_eq!(check(""), own);
        for text in [
            "cdiVersion: 0.5.0\nkind: nvidia.com/gpu\ndevices:\n- name: \"0\"\n- name: GPU-b\n",
            r#"{"kind": "nvidia.com/gpu", "devices": [{"name":"GPU-b","containerEdits":{}}]}"#,
        ] {
            let theirs = "sublet.dev/gpu=GPU-a nvidia.com/gpu=GPU-b";
            assert_eq!(check(text), theirs, "{text}");
        }
        assert_eq!(
            check("kind: nvidia.com/gds\ndevices:\n- name: GPU-b\n"),
            own
        );
        assert_eq!(
            check("kind: nvidia.com/gpu\ndevices:\n- name: GPU-bb\n"),
            own
        );
    }
}
