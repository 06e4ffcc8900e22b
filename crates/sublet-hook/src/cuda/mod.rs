//! The CUDA half: what stands behind each exported `cu…` name.
//!
//! A name leads through [`TARGETS`] to the real function, to the launch gate, or to a hook;
//! [`table`] says which, one line for each hooked function. A hook asks the driver *after* it
//! has taken the memory from the tenant's account, and gives it back when the driver refuses or
//! the program frees it. Without an arbiter nothing is hooked and every name leads to the real
//! driver.
//!
//! Read [`table`], then [`tenant`] (how a charge is taken and given back), then the hooks:
//! [`plain`], [`pinned`], [`pool`], [`physical`], [`array`], [`graph`], [`external`] take memory (small
//! pieces share a larger one: [`heap`]; the driver keeps some of it for later: [`kept`]; others may hold what was freed: [`lent`],
//! [`shared`]),
//! [`context`] what a context costs, [`info`] answers, [`start`] is `cuInit`, [`lookup`]
//! `cuGetProcAddress`, [`sync`] when pools may have become smaller.

pub mod array;
pub mod c;
pub mod context;
pub mod external;
pub mod graph;
pub mod heap;
pub mod info;
pub mod kept;
pub mod launch;
pub mod lent;
pub mod lookup;
pub mod physical;
pub mod pinned;
pub mod plain;
pub mod pool;
pub mod real;
pub mod shared;
pub mod start;
pub mod sync;
pub mod table;
pub mod tenant;

use std::ffi::c_void;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::link;
use crate::pointers::Pointers;
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

/// Where each exported name leads now. The resolver first; see [`crate::trampoline`].
pub static TARGETS: Targets<{ row::COUNT }> =
    [const { AtomicPtr::new(resolve as *mut c_void) }; row::COUNT];

crate::lazy_resolver! {
    /// Finds out where a name leads, remembers it, and goes there.
    pub fn resolve => decide
}

/// The exported functions themselves, by row: what `cuGetProcAddress` gives out for a hooked
/// name. The library that exports them says where they are, before anybody can call one.
static EXPORTS: AtomicPtr<Export> = AtomicPtr::new(std::ptr::null_mut());

/// An exported function, of whatever type.
pub type Export = unsafe extern "C" fn();

/// Tells the addresses of the exported functions.
pub fn register(exports: &'static [Export; row::COUNT]) {
    EXPORTS.store(exports.as_ptr().cast_mut(), Ordering::Release);
}

/// The exported function of a row, if they are known.
fn export(index: usize) -> Option<Export> {
    let first = EXPORTS.load(Ordering::Acquire);
    // SAFETY: `register` had an array of this length that lives for ever.
    (!first.is_null() && index < row::COUNT).then(|| unsafe { *first.add(index) })
}

extern "C" fn decide(index: usize) -> *const c_void {
    let otherwise = real::not_supported as *const c_void;
    settle(&TARGETS, index, otherwise, || {
        let real = REAL.address(index);
        match table::kind(index) {
            _ if !link::is_hooking() => real,
            table::Kind::Forward => real,
            table::Kind::Gate => launch::gated as *const c_void,
            table::Kind::Hook(hook) => hook,
        }
    })
}

/// What this process has of which card.
#[derive(Debug, Default)]
pub struct Books {
    /// Linear memory, by address.
    pub pointers: Pointers<plain::Owned>,
    /// What small ones of it share.
    pub heaps: plain::Heaps,
    /// Contexts.
    pub contexts: Mutex<context::Contexts>,
    /// Pools, by handle.
    pub pools: Mutex<pool::Pools>,
    /// Memory of graphs.
    pub graphs: Mutex<graph::Graphs>,
    /// Memory behind handles, and where it is mapped.
    pub physical: Mutex<physical::Physical>,
    /// Memory of the host, by its first address.
    pub pinned: Pointers<tenant::Held>,
    /// Arrays and mipmapped arrays, by handle.
    pub arrays: Pointers<array::Array>,
    /// Memory imported from other interfaces, by handle.
    pub externals: Pointers<external::Share>,
    /// How memory at an address was given to others.
    pub exports: Pointers<Vec<lent::Trace>>,
    /// Where memory of other processes is.
    pub borrowed: Pointers<Vec<shared::Borrowed>>,
    /// What is freed, and may be held by others.
    pub lent: lent::Lent,
    /// Which device of the driver is which of the tenant.
    pub devices: tenant::Devices,
    /// `cuInit`.
    pub start: Mutex<start::Start>,
}

/// Takes a lock of the books. Whoever panicked with it had changed the book in one step.
fn locked<T>(book: &Mutex<T>) -> MutexGuard<'_, T> {
    book.lock().unwrap_or_else(PoisonError::into_inner)
}
