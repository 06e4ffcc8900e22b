//! Reads the place of a PCI device in the tree of bridges, as Linux tells it under `/sys`. NVML
//! does not say it for all cards, and says nothing of bridges. Whatever is missing or odd is
//! unknown, never an error: a container may see only a part of `/sys`.

use std::fs;
use std::path::{Path, PathBuf};

use sublet_model::Bdf;

/// A view of `/sys`.
pub(super) struct Sysfs {
    root: PathBuf,
}

impl Sysfs {
    pub(super) fn new(root: &Path) -> Sysfs {
        Sysfs {
            root: root.to_owned(),
        }
    }

    /// The NUMA node; unknown where Linux says -1.
    pub(super) fn numa(&self, bdf: Bdf) -> Option<u16> {
        fs::read_to_string(self.device(bdf).join("numa_node"))
            .ok()?
            .trim()
            .parse()
            .ok()
    }

    /// The PCI class: three bytes.
    pub(super) fn class(&self, bdf: Bdf) -> Option<u32> {
        let text = fs::read_to_string(self.device(bdf).join("class")).ok()?;
        u32::from_str_radix(text.trim().strip_prefix("0x")?, 16).ok()
    }

    /// The bridges above the device, from the root down.
    pub(super) fn pci_path(&self, bdf: Bdf) -> Vec<Bdf> {
        let Ok(path) = fs::canonicalize(self.device(bdf)) else {
            return Vec::new();
        };
        let names = path.iter().filter_map(|name| name.to_str());
        names
            .filter_map(|name| name.parse().ok())
            .filter(|&bridge| bridge != bdf)
            .collect()
    }

    fn device(&self, bdf: Bdf) -> PathBuf {
        self.root.join("bus/pci/devices").join(bdf.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bridges_numa_node_and_class_are_read_from_the_tree() {
        let root = tempfile::tempdir().unwrap();
        let bus = root.path().join("bus/pci/devices");
        let place = root
            .path()
            .join("devices/pci0000:16/0000:16:01.0/0000:17:00.0/0000:1b:00.0");
        fs::create_dir_all(&bus).unwrap();
        fs::create_dir_all(&place).unwrap();
        std::os::unix::fs::symlink(&place, bus.join("0000:1b:00.0")).unwrap();
        let bdf = "00000000:1B:00.0".parse().unwrap();
        let sysfs = Sysfs::new(root.path());

        let path: Vec<String> = sysfs
            .pci_path(bdf)
            .iter()
            .map(ToString::to_string)
            .collect();
        assert_eq!(path, ["0000:16:01.0", "0000:17:00.0"]);
        assert_eq!(sysfs.numa(bdf), None);
        fs::write(place.join("numa_node"), "1\n").unwrap();
        assert_eq!(sysfs.numa(bdf), Some(1));
        fs::write(place.join("numa_node"), "-1\n").unwrap();
        assert_eq!(sysfs.numa(bdf), None);
        assert_eq!(sysfs.class(bdf), None);
        fs::write(place.join("class"), "0x030200\n").unwrap();
        assert_eq!(sysfs.class(bdf), Some(0x03_0200));
        assert!(sysfs.pci_path("0000:ff:00.0".parse().unwrap()).is_empty());
    }
}
