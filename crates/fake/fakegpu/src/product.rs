//! Properties of a product with a given name, for programs that ask: architecture, clocks, power,
//! place on the bus, and the version of the driver. Both libraries answer from here and keep no
//! such figure of their own, so they cannot disagree. No figure changes how long the fake takes for
//! anything.
//!
//! The figures are those of NVIDIA's data sheets, of `nvidia-smi -q` on such cards, and of
//! the programming guide's table of compute capabilities.

use sublet_model::Bdf;

/// NVIDIA's number as a PCI vendor.
const PCI_VENDOR: u32 = 0x10de;

/// The driver that we play: R580, the branch of CUDA 13.0.
pub(crate) const DRIVER: &str = "580.95.05";
/// The newest CUDA that this driver knows.
pub(crate) const CUDA_VERSION: i32 = 13_000;

/// A product.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Product {
    /// Compute capability.
    pub(crate) capability: (i32, i32),
    /// Streaming multiprocessors.
    pub(crate) n_multiprocessors: u32,
    /// CUDA cores of each.
    pub(crate) n_cores: u32,
    /// Highest clock of the multiprocessors in MHz.
    pub(crate) graphics_mhz: u32,
    /// Clock of the memory in MHz.
    pub(crate) memory_mhz: u32,
    /// Width of the memory bus in bits.
    pub(crate) bus_bits: u32,
    /// The second-level cache in KiB.
    pub(crate) l2_kib: u32,
    /// Most power in watts.
    pub(crate) watts: u32,
    /// PCI Express generation.
    pub(crate) pcie: u32,
    /// Number of the product as a PCI device.
    pub(crate) pci_device: u32,
    /// Can it be split into instances?
    pub(crate) has_mig: bool,
}

/// Properties of every multiprocessor of one compute capability.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Multiprocessor {
    /// The most threads that are on it at one time.
    pub(crate) n_threads: u32,
    /// The most blocks.
    pub(crate) n_blocks: u32,
    /// Its shared memory in bytes.
    pub(crate) shared: u32,
    /// The most of that for one block which asks for it.
    pub(crate) shared_of_block: u32,
    /// Bytes of it that the system takes for each block.
    pub(crate) shared_reserved: u32,
    /// Ratio of its speed with single precision to its speed with double precision.
    pub(crate) double_ratio: u32,
    /// The fewest multiprocessors of a green context.
    pub(crate) fewest: u32,
    /// The number of them is a multiple of this.
    pub(crate) step: u32,
}

/// Product of a card with an unknown name.
const PLAIN: Product = Product {
    capability: (9, 0),
    n_multiprocessors: 132,
    n_cores: 128,
    graphics_mhz: 1980,
    memory_mhz: 2619,
    bus_bits: 5120,
    l2_kib: 51_200,
    watts: 700,
    pcie: 5,
    pci_device: 0x2330,
    has_mig: true,
};

/// By a part of the name. The first that fits counts, so `A100` stands before `A10`.
const PRODUCTS: [(&str, Product); 9] = [
    (
        "B200",
        Product {
            capability: (10, 0),
            n_multiprocessors: 148,
            graphics_mhz: 1965,
            memory_mhz: 3996,
            bus_bits: 8192,
            l2_kib: 129536,
            watts: 1000,
            pci_device: 0x2901,
            ..PLAIN
        },
    ),
    (
        "H200",
        Product {
            memory_mhz: 3201,
            bus_bits: 6144,
            l2_kib: 61440,
            pci_device: 0x2335,
            ..PLAIN
        },
    ),
    ("H100", PLAIN),
    (
        "A100",
        Product {
            capability: (8, 0),
            n_multiprocessors: 108,
            n_cores: 64,
            graphics_mhz: 1410,
            memory_mhz: 1593,
            l2_kib: 40960,
            watts: 400,
            pcie: 4,
            pci_device: 0x20b2,
            ..PLAIN
        },
    ),
    (
        "A10",
        Product {
            capability: (8, 6),
            n_multiprocessors: 72,
            graphics_mhz: 1695,
            memory_mhz: 6251,
            bus_bits: 384,
            l2_kib: 6144,
            watts: 150,
            pcie: 4,
            pci_device: 0x2236,
            has_mig: false,
            ..PLAIN
        },
    ),
    (
        "L40S",
        Product {
            capability: (8, 9),
            n_multiprocessors: 142,
            graphics_mhz: 2520,
            memory_mhz: 9001,
            bus_bits: 384,
            l2_kib: 98304,
            watts: 350,
            pcie: 4,
            pci_device: 0x26b9,
            has_mig: false,
            ..PLAIN
        },
    ),
    (
        "L4",
        Product {
            capability: (8, 9),
            n_multiprocessors: 58,
            graphics_mhz: 2040,
            memory_mhz: 6251,
            bus_bits: 192,
            l2_kib: 49152,
            watts: 72,
            pcie: 4,
            pci_device: 0x27b8,
            has_mig: false,
            ..PLAIN
        },
    ),
    (
        "V100",
        Product {
            capability: (7, 0),
            n_multiprocessors: 80,
            n_cores: 64,
            graphics_mhz: 1530,
            memory_mhz: 877,
            bus_bits: 4096,
            l2_kib: 6144,
            watts: 300,
            pcie: 3,
            pci_device: 0x1db5,
            has_mig: false,
        },
    ),
    (
        "T4",
        Product {
            capability: (7, 5),
            n_multiprocessors: 40,
            n_cores: 64,
            graphics_mhz: 1590,
            memory_mhz: 5001,
            bus_bits: 256,
            l2_kib: 4096,
            watts: 70,
            pcie: 3,
            pci_device: 0x1eb8,
            has_mig: false,
        },
    ),
];

impl Product {
    /// The product with this name.
    #[must_use]
    pub(crate) fn of(name: &str) -> Product {
        let known = PRODUCTS.iter().find(|(part, _)| name.contains(part));
        known.map_or(PLAIN, |(_, product)| *product)
    }

    /// Returns the properties of its multiprocessors.
    #[must_use]
    pub(crate) fn multiprocessor(&self) -> Multiprocessor {
        const WIDE: Multiprocessor = Multiprocessor {
            n_threads: 2048,
            n_blocks: 32,
            shared: 228 << 10,
            shared_of_block: 227 << 10,
            shared_reserved: 1 << 10,
            double_ratio: 2,
            fewest: 8,
            step: 8,
        };
        match self.capability {
            (7, 0) => Multiprocessor {
                shared: 96 << 10,
                shared_of_block: 96 << 10,
                shared_reserved: 0,
                fewest: 2,
                step: 2,
                ..WIDE
            },
            (7, _) => Multiprocessor {
                n_threads: 1024,
                n_blocks: 16,
                shared: 64 << 10,
                shared_of_block: 64 << 10,
                shared_reserved: 0,
                double_ratio: 32,
                fewest: 2,
                step: 2,
            },
            (8, 0) => Multiprocessor {
                shared: 164 << 10,
                shared_of_block: 163 << 10,
                fewest: 4,
                step: 2,
                ..WIDE
            },
            (8, minor) => Multiprocessor {
                n_threads: 1536,
                n_blocks: if minor == 9 { 24 } else { 16 },
                shared: 100 << 10,
                shared_of_block: 99 << 10,
                double_ratio: 64,
                fewest: 4,
                step: 2,
                ..WIDE
            },
            _ => WIDE,
        }
    }

    /// Product and vendor in one word, as both libraries tell them.
    #[must_use]
    pub(crate) fn pci_id(&self) -> u32 {
        self.pci_device << 16 | PCI_VENDOR
    }
}

/// Returns the default address of card number `index`: each fake card has a bus to itself, as far
/// apart as below real switches.
#[must_use]
pub(crate) fn pci_address_of(index: usize) -> Bdf {
    Bdf {
        domain: 0,
        bus: u8::try_from(0x10 + 8 * index).unwrap_or(u8::MAX),
        device: 0,
        function: 0,
    }
}

/// The PCI address that a program means by `domain:bus:device.function`; domain and function may
/// be missing. A card has no other function than 0.
#[must_use]
pub(crate) fn parse_pci_address(text: &str) -> Option<Bdf> {
    let hex = |text: &str| {
        let is_hex = !text.is_empty() && text.bytes().all(|digit| digit.is_ascii_hexdigit());
        is_hex.then(|| u32::from_str_radix(text, 16).ok()).flatten()
    };
    let (device, function) = text.rsplit_once('.').unwrap_or((text, "0"));
    let mut parts = device.rsplitn(3, ':');
    let (device, bus) = (hex(parts.next()?)?, hex(parts.next()?)?);
    let domain = parts.next().map_or(Some(0), hex)?;
    let sound = hex(function)? == 0 && device < 0x20;
    let (bus, device) = (u8::try_from(bus).ok()?, u8::try_from(device).ok()?);
    sound.then_some(Bdf {
        domain,
        bus,
        device,
        function: 0,
    })
}

#[cfg(test)]
mod tests {
    use super::{PRODUCTS, Product, parse_pci_address, pci_address_of};

    #[test]
    fn the_most_exact_name_counts() {
        let capability = |name| Product::of(name).capability;
        assert_eq!(capability("NVIDIA A100-SXM4-80GB"), (8, 0));
        assert_eq!(capability("NVIDIA A10"), (8, 6));
        assert_eq!(capability("NVIDIA L40S"), (8, 9));
        assert_eq!(Product::of("NVIDIA L40S").watts, 350);
        assert_eq!(Product::of("NVIDIA L4").watts, 72);
        assert_eq!(Product::of("NVIDIA H200").pci_device, 0x2335);
        assert_eq!(capability("Sublet Fake GPU"), (9, 0));
    }
    #[test]
    fn a_block_fits_on_a_multiprocessor_of_every_product() {
        for (name, product) in PRODUCTS {
            let multiprocessor = product.multiprocessor();
            assert!(
                multiprocessor.shared_of_block + multiprocessor.shared_reserved
                    <= multiprocessor.shared,
                "{name}"
            );
            assert!((1024..=2048).contains(&multiprocessor.n_threads), "{name}");
            assert!(
                multiprocessor.fewest % multiprocessor.step == 0
                    && multiprocessor.fewest <= product.n_multiprocessors
            );
        }
        let multiprocessor = |name| Product::of(name).multiprocessor();
        assert_eq!(multiprocessor("NVIDIA A100").shared_of_block, 166_912);
        assert_eq!(
            (
                multiprocessor("NVIDIA L4").n_blocks,
                multiprocessor("Tesla T4").n_threads
            ),
            (24, 1024)
        );
    }

    #[test]
    fn places_are_read_as_people_write_them() {
        let at = |text| {
            parse_pci_address(text).map(|address| (address.domain, address.bus, address.device))
        };
        assert_eq!(at("0000FA4E:01:00.0"), Some((0xfa4e, 1, 0)));
        assert_eq!(at("fa4e:01:00.0"), Some((0xfa4e, 1, 0)));
        assert_eq!(at("3b:1f.0"), Some((0, 0x3b, 0x1f)));
        assert_eq!(at("0000:3b:1f"), Some((0, 0x3b, 0x1f)));
        assert_eq!(
            parse_pci_address(&pci_address_of(3).to_string()),
            Some(pci_address_of(3))
        );
        for wrong in [
            "",
            "01",
            "fa4e:1:0.1",
            "g:01:00.0",
            "0:+1:0.0",
            "0:100:0.0",
            "0:1:20.0",
        ] {
            assert_eq!(at(wrong), None, "{wrong}");
        }
    }
}
