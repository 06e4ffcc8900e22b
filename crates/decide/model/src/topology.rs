//! The wiring of a node's devices: PCIe places, pair levels, NICs, partitions, fabric.
//!
//! No decision needs all of this yet. Agents report it already, so that decisions about RDMA, NUMA
//! and NVSwitch partitions will need no new agent. Names and levels follow `nvidia-smi topo -m`
//! and NVML.

use std::fmt;

use crate::{GpuIndex, GpuUuid};

/// A PCI address, `domain:bus:device.function`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bdf {
    /// PCI domain; wider than 16 bits on some virtual machines.
    pub domain: u32,
    /// Bus number.
    pub bus: u8,
    /// Device number, below 32.
    pub device: u8,
    /// Function number, below 8.
    pub function: u8,
}

/// Reason why some text is not a PCI address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a PCI address such as 0000:3b:00.0")]
pub struct BdfError(String);

impl std::str::FromStr for Bdf {
    type Err = BdfError;

    /// Reads `0000:3b:00.0`; NVML's eight-digit domains are read too.
    fn from_str(text: &str) -> Result<Bdf, BdfError> {
        let parse = || {
            let mut parts = text.splitn(3, ':');
            let (domain, bus, rest) = (parts.next()?, parts.next()?, parts.next()?);
            let (device, function) = rest.split_once('.')?;
            let bdf = Bdf {
                domain: u32::from_str_radix(domain, 16).ok()?,
                bus: u8::from_str_radix(bus, 16).ok()?,
                device: u8::from_str_radix(device, 16).ok()?,
                function: u8::from_str_radix(function, 16).ok()?,
            };
            (bdf.device < 32 && bdf.function < 8).then_some(bdf)
        };
        parse().ok_or_else(|| BdfError(text.to_owned()))
    }
}

impl fmt::Display for Bdf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:04x}:{:02x}:{:02x}.{:x}",
            self.domain, self.bus, self.device, self.function
        )
    }
}

/// Distance between two devices of a node, nearest first (`nvidia-smi topo -m`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// On one board.
    Board,
    /// Behind one PCIe switch.
    Pix,
    /// Behind several PCIe switches, below one host bridge.
    Pxb,
    /// Below one host bridge.
    Phb,
    /// In one NUMA node.
    Node,
    /// On one socket.
    Socket,
    /// Across sockets.
    Sys,
}

/// The wiring between two GPUs of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pair {
    /// The two GPUs, the smaller index first.
    pub gpus: (GpuIndex, GpuIndex),
    /// Their distance over PCIe.
    pub level: Level,
    /// Active NVLinks between them, directly or through NVSwitch.
    pub nvlinks: u8,
}

/// A network card that a GPU job may use over RDMA.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Nic {
    /// PCI address of the physical function.
    pub bdf: Bdf,
    /// RDMA device name, such as `mlx5_0`.
    pub ibdev: String,
    /// NUMA node, if the platform tells.
    pub numa: Option<u16>,
    /// PCIe bridges from the root down.
    pub pci_path: Vec<Bdf>,
}

/// A set of GPUs that shared NVSwitch can hand out together (Fabric Manager).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Partition {
    /// Fabric Manager's own number of the partition.
    pub id: u16,
    /// Its GPUs, ascending.
    pub gpus: Vec<GpuIndex>,
    /// NVLinks each GPU has inside it.
    pub links: u8,
}

/// Membership of a multi-node NVLink fabric (NVML `clusterUuid.cliqueId`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fabric {
    /// The NVLink domain.
    pub cluster: GpuUuid,
    /// The clique within it.
    pub clique: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pci_addresses_are_read_and_printed() {
        let check = |text: &str| {
            text.parse::<Bdf>()
                .map(|b| b.to_string())
                .unwrap_or_default()
        };
        assert_eq!(check("0000:3b:00.0"), "0000:3b:00.0");
        assert_eq!(check("00000000:3B:1F.7"), "0000:3b:1f.7");
        assert_eq!(check("3b:00.0"), "");
        assert_eq!(check("0000:3b:20.0"), "");
        assert_eq!(check(""), "");
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_answered(text in "[0-9a-fA-F:. ]{0,20}") {
            if let Ok(bdf) = text.parse::<Bdf>() {
                proptest::prop_assert_eq!(bdf.to_string().parse::<Bdf>(), Ok(bdf));
            }
        }
    }
}
