//! What a product of a given name is like, for programs that ask: architecture, clocks,
//! power, place on the bus. None of it limits what the fake machine does. Both libraries
//! answer from here, so they cannot disagree.
//!
//! The figures are those of NVIDIA's data sheets and of `nvidia-smi -q` on such cards.

/// The PCI domain of all fake cards.
pub const PCI_DOMAIN: u32 = 0;
/// NVIDIA's number as a PCI vendor.
pub const PCI_VENDOR: u32 = 0x10de;

/// A product.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Board {
    /// Compute capability.
    pub capability: (i32, i32),
    /// Streaming multiprocessors.
    pub n_multiprocessors: u32,
    /// CUDA cores of each.
    pub n_cores: u32,
    /// Highest clock of the multiprocessors in MHz.
    pub graphics_mhz: u32,
    /// Clock of the memory in MHz.
    pub memory_mhz: u32,
    /// Width of the memory bus in bits.
    pub bus_bits: u32,
    /// Most power in watts.
    pub watts: u32,
    /// PCI Express generation.
    pub pcie: u32,
    /// Number of the product as a PCI device.
    pub pci_device: u32,
    /// Can it be split into instances?
    pub has_mig: bool,
}

/// What a card is whose name says nothing.
const PLAIN: Board = Board {
    capability: (9, 0),
    n_multiprocessors: 132,
    n_cores: 128,
    graphics_mhz: 1980,
    memory_mhz: 2619,
    bus_bits: 5120,
    watts: 700,
    pcie: 5,
    pci_device: 0x2330,
    has_mig: true,
};

/// By a part of the name. The first that fits counts, so `A100` stands before `A10`.
const BOARDS: [(&str, Board); 9] = [
    (
        "B200",
        Board {
            capability: (10, 0),
            n_multiprocessors: 148,
            graphics_mhz: 1965,
            memory_mhz: 3996,
            bus_bits: 8192,
            watts: 1000,
            pci_device: 0x2901,
            ..PLAIN
        },
    ),
    (
        "H200",
        Board {
            memory_mhz: 3201,
            bus_bits: 6144,
            pci_device: 0x2335,
            ..PLAIN
        },
    ),
    ("H100", PLAIN),
    (
        "A100",
        Board {
            capability: (8, 0),
            n_multiprocessors: 108,
            n_cores: 64,
            graphics_mhz: 1410,
            memory_mhz: 1593,
            watts: 400,
            pcie: 4,
            pci_device: 0x20b2,
            ..PLAIN
        },
    ),
    (
        "A10",
        Board {
            capability: (8, 6),
            n_multiprocessors: 72,
            graphics_mhz: 1695,
            memory_mhz: 6251,
            bus_bits: 384,
            watts: 150,
            pcie: 4,
            pci_device: 0x2236,
            has_mig: false,
            ..PLAIN
        },
    ),
    (
        "L40S",
        Board {
            capability: (8, 9),
            n_multiprocessors: 142,
            graphics_mhz: 2520,
            memory_mhz: 9001,
            bus_bits: 384,
            watts: 350,
            pcie: 4,
            pci_device: 0x26b9,
            has_mig: false,
            ..PLAIN
        },
    ),
    (
        "L4",
        Board {
            capability: (8, 9),
            n_multiprocessors: 58,
            graphics_mhz: 2040,
            memory_mhz: 6251,
            bus_bits: 192,
            watts: 72,
            pcie: 4,
            pci_device: 0x27b8,
            has_mig: false,
            ..PLAIN
        },
    ),
    (
        "V100",
        Board {
            capability: (7, 0),
            n_multiprocessors: 80,
            n_cores: 64,
            graphics_mhz: 1530,
            memory_mhz: 877,
            bus_bits: 4096,
            watts: 300,
            pcie: 3,
            pci_device: 0x1db5,
            has_mig: false,
        },
    ),
    (
        "T4",
        Board {
            capability: (7, 5),
            n_multiprocessors: 40,
            n_cores: 64,
            graphics_mhz: 1590,
            memory_mhz: 5001,
            bus_bits: 256,
            watts: 70,
            pcie: 3,
            pci_device: 0x1eb8,
            has_mig: false,
        },
    ),
];

impl Board {
    /// The product with this name.
    #[must_use]
    pub fn of(name: &str) -> Board {
        let known = BOARDS.iter().find(|(part, _)| name.contains(part));
        known.map_or(PLAIN, |(_, board)| *board)
    }
}

/// The bus of card number `index`; each fake card has one to itself, as far apart as below
/// real switches.
#[must_use]
pub fn pci_bus(index: usize) -> u32 {
    u32::try_from(0x10 + 8 * index).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::Board;

    #[test]
    fn the_most_exact_name_counts() {
        let capability = |name| Board::of(name).capability;
        assert_eq!(capability("NVIDIA A100-SXM4-80GB"), (8, 0));
        assert_eq!(capability("NVIDIA A10"), (8, 6));
        assert_eq!(capability("NVIDIA L40S"), (8, 9));
        assert_eq!(Board::of("NVIDIA L40S").watts, 350);
        assert_eq!(Board::of("NVIDIA L4").watts, 72);
        assert_eq!(Board::of("NVIDIA H200").pci_device, 0x2335);
        assert_eq!(capability("Sublet Fake GPU"), (9, 0));
    }
}
