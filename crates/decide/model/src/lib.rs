//! The nouns of Sublet: each quantity, name and device, impossible to build wrong.
//!
//! This crate belongs to the *decide* ring: it knows no clock, thread, socket, file,
//! wire format or Kubernetes object. Text becomes one of these types once, at the edge
//! (`sublet-api`, `sublet-agent`), and afterwards nobody can hold a wrong one.
//!
//! Suggested reading order: quantities, names, devices, claims, allocations, the ledger.
//!
//! # Modules
//! Quantities that cannot be mixed up (`MiB`, `Milli`, `Count`), amounts and lengths of turns as
//! people write them, names, devices and their wiring (`Inventory`), what a pod asks (`Claim`), what
//! it got (`Allocation`), what a node says of itself (`NodeFacts`), and the `Ledger`.

mod allocation;
mod amount;
mod ask;
mod claim;
mod device;
mod host;
mod ledger;
mod name;
mod node;
mod part;
mod pauses;
mod peak;
mod quantity;
mod slice;
mod stock;
mod tags;
mod time;
mod topology;
mod wishes;

pub use allocation::{Allocation, CardRef, Charge, Grant, charges_of};
pub use amount::{AmountError, parse_bytes, parse_memory, parse_share, parse_size};
pub use ask::{Ask, OwnParts, Parts};
pub use claim::{
    Carrier, Claim, ClaimShapeError, Class, ContainerCards, ContainerClaim, Demand, DialectName,
    Portion, Role,
};
pub use device::{Gpu, GpuIndex, Health, Inventory, InventoryError};
pub use host::Host;
pub use ledger::{Book, Card, Checkpoint, Entry, Hold, Ledger, NodeIdx, Outline, Standing};
pub use name::{ContainerName, GpuUuid, NameError, NodeName, PodKey, PodUid, Victim};
pub use node::{Advertise, Identity, KeptFree, MeasuredUse, NodeFacts, Sharing, Unit, UnitError};
pub use part::Part;
pub use pauses::Pauses;
pub use peak::{peak, peak_of};
pub use quantity::{Bytes, Count, GiB, MiB, Milli, MilliCpu};
pub use slice::{SliceError, SliceLength};
pub use stock::{HostPort, MachineUse, Resources, StockAllocatable, StockAsk};
pub use tags::{CardTags, TagConflict};
pub use time::Time;
pub use topology::{Bdf, BdfError, Fabric, Level, Nic, Pair, Partition};
pub use wishes::{CardWishes, Models};
