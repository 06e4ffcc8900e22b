//! The data that the arbiter and its tenants' processes share.
//!
//! An arbiter and a tenant's processes are built at different times: the interposer sits in a
//! container for weeks while the arbiter on the node is replaced. So this crate holds everything
//! that both touch, nothing else, and has a version: two pages of shared memory, the protocol by
//! which memory is taken from a limit, the five messages on the tenant's socket, and the file that
//! names the socket's place. This crate opens no file, maps no memory and knows no clock; it is
//! given addresses, bytes and times.
//!
//! Read in this order:
//! - [`units`]: the unit of accounting, and the checked numbers of slots and devices.
//! - [`control`]: the page that the arbiter writes and tenants only read.
//! - [`gate`]: the permission to launch work, and the processes' answers.
//! - [`packing`]: the memory that a driver takes from the card for a program's allocations.
//! - [`ledger`]: the page that both write, and all operations on it.
//! - [`host`]: the end of both, a budget of pinned memory.
//! - `reserve`: the protocol, without locks, so that a process may die at any instruction.
//! - [`message`]: hello, welcome, refused, knock, bye.
//! - [`header`]: the first bytes of either page, the same in every version.
//! - [`settings`]: the file by which root tells a process of its arbiter.
//!
//! # How a next version is added
//! 1. The meaning of a page's [`header`] and of a message's first eight bytes never changes.
//! 2. A field that old readers may ignore takes the place of reserved bytes, which are zero
//!    in every page made before; the version stays.
//! 3. A field that everybody must count or obey needs a new version: its words behind those of the
//!    version before, and [`VERSION`] raised. Existing fields keep their places, so that one piece of
//!    code can serve both. [`OLDEST`] stays at a version that was released, as long as it is served.
//!
//! A process names the versions that it speaks in its hello, and [`agree`] finds the newest one that
//! both sides speak. A tenant's pages are made when its first process has come, and stay so for the
//! tenant's life: all its processes count on one page.
//!
//! # Modules
//! - `control`, `ledger`: the two pages. `host`: the end of both, a budget of pinned memory.
//!   `packing`: the driver's packing of small allocations. `header`: the first bytes, which no
//!   version moves.
//! - `reserve`: the lock-free protocol that takes and gives memory, when any process may die at
//!   any step. One piece of code, generic over the word. `interleavings` runs it under loom;
//!   `scribbles` runs it on a page that a tenant overwrites.
//! - `message`: the datagrams on `tenant.sock`.
#![no_std]
#![expect(
    unsafe_code,
    reason = "shared memory is an address and a length until its first bytes are checked"
)]

#[cfg(test)]
extern crate std;

pub mod control;
pub mod gate;
pub mod header;
pub mod host;
pub mod ledger;
#[cfg(test)]
mod memory;
pub mod message;
pub mod packing;
#[cfg(test)]
mod places;
mod reserve;
pub mod settings;
pub mod units;
mod version;

pub use control::{ControlDevice, ControlPage, ControlWriter};
pub use gate::{GateRules, GateState, GateWord, TurnReport};
pub use header::PageError;
pub use host::{HostLedger, HostLimit};
pub use ledger::{LedgerPage, ProcessSlot};
pub use message::{
    ArbiterMessage, DeviceClaim, Hello, MessageError, Mode, ProcessMessage, RefusedHello, Welcome,
};
pub use packing::Packing;
pub use reserve::{Contended, NotCharged, NotReleased, NotReserved};
pub use units::{DeviceIndex, MAX_DEVICES, SLOTS, SlotIndex, Units, Uuid};
pub use version::{OLDEST, VERSION, agree};
