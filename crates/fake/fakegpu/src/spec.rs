//! Parts of a fake machine, and the text that describes them. `2x16GiB` is a whole machine. A path
//! means an inventory file, the one that the node agent reads, so a simulated node and the card of
//! a program are the same. Reading is total: every text yields a machine, or an error that names
//! the part that was not understood.

use std::fmt;
use std::path::Path;

use sublet_api::inventory_file;
use sublet_model::{Bdf, Gpu, Inventory, NodeName};

use crate::product::pci_address_of;

mod packing;
mod text;
mod time;

pub use packing::PackingRule;
pub use text::{CARDS_MAX, MEMORY_MAX_MIB, NAME_MAX, SpecError};
use text::{NAME, mib, number, plain, shown};
pub use time::TimeRule;

/// Version of the layout of machines in shared memory. Raised whenever a field moves.
pub(crate) const LAYOUT_VERSION: u32 = 4;

/// Cost of a process's first context on a card. On data-centre cards it was measured between 300
/// and 550 MiB, depending on driver and kernels.
pub const CONTEXT_MIB: u64 = 480;

/// One card of the machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CardSpec {
    /// Product name, such as `NVIDIA H200`: [`Product`](crate::product::Product) has the product's
    /// properties.
    pub name: String,
    /// Its memory in bytes.
    pub memory: u64,
    /// Bytes of it that the first context of a process takes.
    pub context: u64,
    /// Its UUID as CUDA returns it.
    pub uuid: CardUuid,
    /// Its PCI address. Cards have no other function than 0.
    pub pci_address: Bdf,
    /// The number of its device file.
    pub minor: u32,
}

/// Sixteen bytes, written as NVML writes them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CardUuid(pub [u8; 16]);

impl fmt::Display for CardUuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("GPU")?;
        for (at, byte) in self.0.iter().enumerate() {
            if matches!(at, 0 | 4 | 6 | 8 | 10) {
                f.write_str("-")?;
            }
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}

impl CardUuid {
    /// Reads NVML's form, `GPU-` and five groups of hexadecimal digits.
    #[must_use]
    pub fn parse(text: &str) -> Option<CardUuid> {
        let groups = text.strip_prefix("GPU-")?;
        let lengths: Vec<usize> = groups.split('-').map(str::len).collect();
        if lengths != [8, 4, 4, 4, 12] {
            return None;
        }
        let hex: String = groups.split('-').collect();
        if !hex.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            return None;
        }
        let number = u128::from_str_radix(&hex, 16).ok()?;
        Some(CardUuid(number.to_be_bytes()))
    }
}

/// A whole machine: at least one card, at most [`CARDS_MAX`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Spec {
    cards: Vec<CardSpec>,
    packing: PackingRule,
    time: TimeRule,
}

impl Spec {
    /// Reads the machine that `text` describes. A text with a `/` in it, or one that names an
    /// existing file, is read as an inventory file.
    ///
    /// # Errors
    /// The part that was not understood.
    pub fn read(text: &str) -> Result<Spec, SpecError> {
        let path = Path::new(text);
        if !text.contains('/') && !path.is_file() {
            return Spec::parse(text);
        }
        let problem = |problem: String| SpecError::File {
            path: text.escape_debug().to_string(),
            problem,
        };
        let file = std::fs::read_to_string(path).map_err(|error| problem(error.to_string()))?;
        let node = NodeName::new("fake").map_err(|error| problem(error.to_string()))?;
        let inventory = inventory_file::parse(&file, &node).map_err(problem)?;
        Spec::from_inventory(&inventory)
    }

    /// Reads the machine that a short text describes, without looking at any file.
    ///
    /// # Errors
    /// The part that was not understood.
    pub fn parse(text: &str) -> Result<Spec, SpecError> {
        let text = text.trim();
        if text.is_empty() {
            return Err(SpecError::Empty);
        }
        let mut parts = text.split(',');
        let cards = parts.next().unwrap_or_default();
        let (count, memory) = cards
            .split_once('x')
            .ok_or_else(|| SpecError::Shape(shown(cards)))?;
        let count = number(count)
            .and_then(|count| usize::try_from(count).ok())
            .filter(|count| (1..=CARDS_MAX).contains(count))
            .ok_or_else(|| SpecError::Count(shown(count)))?;
        let memory = mib(memory)?;
        let (mut name, mut context, mut packing) = (NAME, None, PackingRule::default());
        let mut time = TimeRule::default();
        for option in parts {
            match option.split_once('=') {
                Some(("name", value)) => name = value,
                Some(("context", value)) => context = Some(mib(value)?),
                Some(("packing", value)) => packing = PackingRule::parse(value)?,
                Some(("slice", value)) => time.slice = TimeRule::parse(value)?,
                Some(("switch", value)) => time.switch = TimeRule::parse(value)?,
                _ => return Err(SpecError::Option(shown(option))),
            }
        }
        let drafts = vec![Draft::new(name, memory, context)?; count];
        Spec::of_drafts(drafts, packing, time.checked()?)
    }

    /// The machine with the cards of an inventory. Cards without a UUID get one made of
    /// their number and the machine's other cards. Allocations are packed, and
    /// time is shared, as by default.
    ///
    /// # Errors
    /// An amount or a name that a fake card cannot have.
    pub fn from_inventory(inventory: &Inventory) -> Result<Spec, SpecError> {
        let cards = inventory
            .gpus()
            .iter()
            .map(Draft::of_gpu)
            .collect::<Result<Vec<_>, _>>()?;
        Spec::of_drafts(cards, PackingRule::default(), TimeRule::default())
    }

    /// At least one card, at most [`CARDS_MAX`].
    #[must_use]
    pub fn cards(&self) -> &[CardSpec] {
        &self.cards
    }

    /// Returns its driver's packing rule.
    #[must_use]
    pub fn packing(&self) -> PackingRule {
        self.packing
    }

    /// Returns the rule by which processes share its cards' time.
    #[must_use]
    pub fn time(&self) -> TimeRule {
        self.time
    }

    /// The name under which machines of this kind share one folder. Machines of another layout have
    /// another.
    #[must_use]
    pub fn digest(&self) -> String {
        let digest = hash(&format!("{self} {LAYOUT_VERSION}"));
        format!("{:016x}", (digest >> 64) as u64 ^ digest as u64)
    }

    fn of_drafts(
        drafts: Vec<Draft>,
        packing: PackingRule,
        time: TimeRule,
    ) -> Result<Spec, SpecError> {
        if drafts.is_empty() || drafts.len() > CARDS_MAX {
            return Err(SpecError::Count(drafts.len().to_string()));
        }
        let all: String = drafts.iter().map(Draft::plain).collect();
        let cards = drafts.into_iter().enumerate();
        let cards = cards.map(|(index, draft)| {
            // The words after the number stir its last digit into all of the hash.
            let made_up = || CardUuid(hash(&format!("{all}{index} card of sublet")).to_be_bytes());
            CardSpec {
                uuid: draft.uuid.unwrap_or_else(made_up),
                pci_address: draft.pci_address.unwrap_or_else(|| pci_address_of(index)),
                minor: draft
                    .minor
                    .unwrap_or_else(|| u32::try_from(index).unwrap_or(u32::MAX)),
                name: draft.name,
                memory: draft.memory_mib << 20,
                context: draft.context_mib << 20,
            }
        });
        Ok(Spec {
            cards: cards.collect(),
            packing,
            time,
        })
    }
}

/// A card as described by a text. Open values follow from its number.
#[derive(Debug, Clone)]
struct Draft {
    name: String,
    memory_mib: u64,
    context_mib: u64,
    uuid: Option<CardUuid>,
    pci_address: Option<Bdf>,
    minor: Option<u32>,
}

impl Draft {
    /// A context that nobody set is smaller on a card that could not hold it: an eighth of
    /// the memory.
    fn new(name: &str, memory: u64, context: Option<u64>) -> Result<Draft, SpecError> {
        let printable = name
            .bytes()
            .all(|byte| (b' '..=b'~').contains(&byte) && byte != b',');
        if name.trim().is_empty() || name.len() > NAME_MAX || !printable {
            return Err(SpecError::Name(shown(name)));
        }
        if memory == 0 || memory > MEMORY_MAX_MIB {
            return Err(SpecError::Memory(format!("{memory}MiB")));
        }
        let context = context.unwrap_or_else(|| CONTEXT_MIB.min(memory / 8));
        if context >= memory {
            return Err(SpecError::Context { context, memory });
        }
        Ok(Draft {
            name: name.to_owned(),
            memory_mib: memory,
            context_mib: context,
            uuid: None,
            pci_address: None,
            minor: None,
        })
    }

    fn of_gpu(gpu: &Gpu) -> Result<Draft, SpecError> {
        let name = match &*gpu.model {
            "" => NAME,
            model => model,
        };
        let uuid = gpu.uuid.as_ref().map(|uuid| {
            let uuid = uuid.as_str();
            CardUuid::parse(uuid).unwrap_or_else(|| CardUuid(hash(uuid).to_be_bytes()))
        });
        Ok(Draft {
            uuid,
            pci_address: gpu.bdf.map(|pci_address| Bdf {
                function: 0,
                ..pci_address
            }),
            minor: gpu.minor.map(u32::from),
            ..Draft::new(name, gpu.memory.get(), None)?
        })
    }

    /// Returns the properties that tell all cards of this machine apart from those of another
    /// machine, in one line.
    fn plain(&self) -> String {
        plain(&self.name, self.memory_mib, self.context_mib)
    }
}

/// One line per card, one for a packing and one for a time that is not the usual one. The folder's name is made of
/// these lines, so two texts for one machine lead to one machine.
impl fmt::Display for Spec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for card in &self.cards {
            let plain = plain(&card.name, card.memory >> 20, card.context >> 20);
            let CardSpec {
                uuid,
                pci_address,
                minor,
                ..
            } = card;
            writeln!(f, "{plain}{uuid} at {pci_address}, minor {minor}")?;
        }
        if self.packing != PackingRule::default() {
            writeln!(f, "packing {}", self.packing)?;
        }
        if self.time != TimeRule::default() {
            writeln!(f, "{}", self.time)?;
        }
        Ok(())
    }
}

/// FNV-1a, 128 bits: the same on every machine and with every compiler, which the hasher
/// of `std` does not promise.
fn hash(text: &str) -> u128 {
    const BASIS: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;
    text.bytes().fold(BASIS, |hash, byte| {
        (hash ^ u128::from(byte)).wrapping_mul(PRIME)
    })
}
