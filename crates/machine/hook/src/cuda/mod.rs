//! The CUDA half: the function behind each exported `cu…` name.
//!
//! A name leads through [`TARGETS`] to the real function or to a hook. [`table`] has one line for
//! each hooked function, and a rule for functions that pass the gate. A hook asks the driver
//! *after* it has taken the memory from the tenant's account, and gives it back when the driver
//! refuses or the program frees it. Without an arbiter nothing is hooked and every name leads to
//! the real driver.
//!
//! Modules point in one direction, which a test of `xtask` holds. From the table down:
//! - [`table`] lists the function behind each name.
//! - Hooks take memory: [`linear`], [`pinned`], [`pool`], [`physical`], [`array`], [`graph`],
//!   [`external`]; [`context`] is the cost of a context, [`module`] that of code. [`shared`] is memory between processes,
//!   [`info`] answers, [`start`] is `cuInit`, [`lookup`] `cuGetProcAddress`, [`sync`] the points
//!   when pools may have become smaller, [`stream_life`] streams that come and go. [`launch`] is
//!   the gate, `gated` the list of functions that pass it, [`queue`] the bound of the work behind
//!   it, [`work`] the work that still runs.
//! - [`address`] is the knowledge about linear memory. An address that is freed tells [`owned`],
//!   which tells the account that paid: [`small`] (pieces that several share: [`heap`]),
//!   [`pool_account`] (with the memory that the driver keeps for later: [`driver_cache`]), or the
//!   tenant. If others may still hold the memory, [`deferred_free`] tells them later. [`borrowed`]
//!   is memory of others.
//! - [`tenant`] takes and gives back. It knows no module above it: a module that keeps memory
//!   unused is a [`tenant::CachesMemory`] in the list of `CudaAccounts::caches`.
//! - [`real`] is the driver itself, [`stream`] the properties of its streams, [`c`] its types.
//!   [`undeclared`] passes on functions that no header declares.
//!
//! Read [`table`], then [`tenant`], then a hook.

pub mod address;
pub mod array;
pub mod borrowed;
pub mod c;
pub mod context;
pub mod deferred_free;
pub mod driver_cache;
pub mod external;
#[cfg(test)]
mod gated;
pub mod graph;
pub mod heap;
pub mod info;
pub mod launch;
pub mod linear;
pub mod lookup;
pub mod module;
pub mod owned;
pub mod physical;
pub mod pinned;
pub mod pool;
pub mod pool_account;
pub mod queue;
pub mod real;
pub mod shared;
pub mod small;
pub mod start;
pub mod stream;
pub mod stream_life;
pub mod sync;
pub mod table;
pub mod tenant;
pub mod undeclared;
pub mod work;

use std::ffi::c_void;
use std::sync::atomic::AtomicPtr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use sublet_abi::GateState;

pub use self::lookup::Export;
use crate::gate;
use crate::link::{self, Link};
use crate::pointers::Pointers;
use crate::progress;
use crate::trampoline::{Targets, settle};
use real::REAL;

/// Places of functions in the driver's table.
pub mod row {
    #![allow(
        missing_docs,
        non_camel_case_types,
        non_upper_case_globals,
        reason = "generated: the driver's own names"
    )]
    include!(concat!(env!("OUT_DIR"), "/cuda_rows.rs"));
}

/// Current target of each exported name: at first the resolver; see [`crate::trampoline`].
pub static TARGETS: Targets<{ row::COUNT }> =
    [const { AtomicPtr::new(resolve as *mut c_void) }; row::COUNT];

crate::lazy_resolver! {
    /// Finds out where a name leads, remembers it, and goes there.
    pub fn resolve => decide
}

/// Tells the addresses of the exported functions, before anybody can call one.
pub fn register(exports: &'static [Export; row::COUNT]) {
    lookup::give_out(exports, |index| table::kind(index) != table::Kind::Forward);
}

extern "C" fn decide(index: usize) -> *const c_void {
    let otherwise = real::not_supported as *const c_void;
    settle(&TARGETS, index, otherwise, || {
        let (kind, is_hooking) = (table::kind(index), link::is_hooking());
        match kind {
            // It says hello to the arbiter first, and then looks for the driver.
            table::Kind::Hook(hook) if is_hooking && index == row::cuInit => return hook,
            _ => {}
        }
        let real = REAL.address(index);
        match kind {
            _ if !is_hooking => real,
            table::Kind::Forward => real,
            table::Kind::Gate(hook) | table::Kind::Hook(hook) => hook,
        }
    })
}

/// This process's memory and work, by card.
#[derive(Debug, Default)]
pub struct CudaAccounts {
    /// Linear memory, by address.
    pub pointers: Pointers<owned::Owned>,
    /// Pieces that small allocations share.
    pub heaps: small::Heaps,
    /// Code that is being loaded.
    pub modules: module::Modules,
    /// Contexts.
    pub contexts: Mutex<context::Contexts>,
    /// Pools, by handle.
    pub pools: Mutex<pool_account::Pools>,
    /// Memory of graphs.
    pub graphs: Mutex<graph::Graphs>,
    /// Memory behind handles, and where it is mapped.
    pub physical: Mutex<physical::Physical>,
    /// Memory of the host, by its first address.
    pub pinned: Pointers<tenant::ContextCharge>,
    /// Arrays and mipmapped arrays, by handle.
    pub arrays: Pointers<array::Array>,
    /// Memory imported from other interfaces, by handle.
    pub externals: Pointers<tenant::Share>,
    /// Others that may hold memory at an address.
    pub exports: Pointers<Vec<deferred_free::Holder>>,
    /// Addresses of other processes' memory.
    pub borrowed: Pointers<Vec<borrowed::Borrowed>>,
    /// Freed memory that others may still hold.
    pub deferred_frees: deferred_free::DeferredFrees,
    /// The tenant's device of each device of the driver.
    pub devices: tenant::Devices,
    /// Work that may still run.
    pub work: work::WorkBook,
    /// Amount of queued work.
    pub queues: queue::Queues,
    /// Observations of its mini-batches.
    pub steps: progress::Steps,
    /// Threads that wait at the gate.
    pub waiting: gate::ThreadsAtGate,
    /// `cuInit`.
    pub start: Mutex<start::Start>,
}

impl CudaAccounts {
    /// Notes all that may run, since nobody knows.
    pub fn note_all_work(&self, link: &Link) {
        let contexts = locked(&self.contexts).handles();
        self.work.note_all(link, &contexts);
    }

    /// Looks whether all work has ended ([`work::WorkBook::look`]). While a thread waits for room
    /// in a queue and the gate is open, more comes at once.
    pub fn look_for_end(&self, link: &Link, looker: work::Looker) -> bool {
        if self.queues.are_awaited() && gate::word().state() != GateState::Closed {
            self.work.count_time(link);
            return false;
        }
        self.work.look(link, looker)
    }

    /// Notes that a context is gone, with the code in it.
    pub fn note_context_ended(&self) {
        self.modules.note_freed();
    }

    /// Returns the accounts to ask for unused memory, in this order: a deferred free may let a
    /// pool shrink.
    fn caches(&self) -> [&dyn tenant::CachesMemory; 4] {
        [
            &self.deferred_frees,
            &self.graphs,
            &self.pools,
            &self.modules,
        ]
    }
}

/// Takes the lock of an account. If a thread panicked with it, it had changed the account in one
/// step.
fn locked<T>(account: &Mutex<T>) -> MutexGuard<'_, T> {
    account.lock().unwrap_or_else(PoisonError::into_inner)
}
