//! Memory of graphs: the memory that a graph allocates when it runs.
//!
//! A graph's allocations get their memory when the graph is made executable or first launched. It
//! comes from one pool per card, and stays there until the pool is trimmed. So an executable graph
//! is charged while it exists, before it is made, with the most that its allocations can need at
//! once ([`needs`]). The pool is charged this amount or the amount that the driver reports as
//! reserved, whichever is more. If the driver takes more when it makes the graph executable, the
//! excess must fit as well, or the call is undone; an excess at the first launch is charged at the
//! next look. If the driver does not report all of a graph, it is asked how much the graph's
//! launches would take ([`unknown`]). Memory that a graph allocates and does not free outlives the
//! graph, until the program frees it: it stays charged as long as the driver reports that so much
//! is in use. [`DriverCache`] combines both.

pub mod added;
mod needs;
pub mod unknown;

use std::collections::HashMap;
use std::ffi::{c_char, c_void};
use std::sync::Mutex;

use sublet_abi::{DeviceIndex, Units};

use self::needs::{Needs, needs_of};
use super::c::*;
use super::driver_cache::DriverCache;
use super::tenant::{CachesMemory, Place, Tenant, giving};
use super::{locked, real, row};
use crate::guard::{Inside, catch_panic};
use crate::link::Budget;
use crate::real::Like;

/// Executable graphs, and the memory of graphs by card.
#[derive(Debug, Default)]
pub struct Graphs {
    needs: HashMap<CUgraphExec, Needs>,
    cards: HashMap<CUdevice, Card>,
}

/// The limit does not allow it: on which of the tenant's devices, if it is one, and how much.
#[derive(Debug)]
struct Refused(Option<(DeviceIndex, Units)>);

impl Refused {
    /// Notes it for `sublet top`.
    fn note(self, tenant: &Tenant) -> CUresult {
        if let Some((index, amount)) = self.0 {
            tenant.link.note_refusal(index, amount.bytes());
        }
        CUDA_ERROR_OUT_OF_MEMORY
    }
}

/// The memory of graphs on one card.
#[derive(Debug)]
struct Card {
    device: CUdevice,
    /// In use: the needs of executable graphs, and the memory that outlives its graphs.
    cache: DriverCache,
    /// The latter: never less than it is.
    outliving: Units,
    /// Amount that the driver had reserved at the last look.
    reserved: Units,
}

impl Card {
    /// Asks the driver about the graphs of the card; `None` if it does not know.
    fn asked(&self, attribute: CUgraphMem_attribute) -> Option<Units> {
        let mut bytes = 0_u64;
        let bytes_at: *mut c_void = (&raw mut bytes).cast();
        // SAFETY: both attributes that are asked for are numbers of eight bytes.
        let result =
            unsafe { real::cuDeviceGetGraphMemAttribute(self.device, attribute, bytes_at) };
        (result == CUDA_SUCCESS).then(|| Units::taken_by(bytes).unwrap_or(Units::MAX))
    }

    /// Charges the current amount. An amount that the driver does not report stays charged. True if
    /// the charge is less than before.
    fn settle(&mut self, tenant: &Tenant) -> bool {
        if let Some(used) = self.asked(CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT) {
            let left = self.outliving.min(used);
            self.cache.freed(self.outliving.saturating_sub(left));
            self.outliving = left;
        }
        match self.asked(CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT) {
            Some(reserved) => {
                self.reserved = reserved;
                self.cache.settle(tenant, reserved)
            }
            None => false,
        }
    }

    /// Takes from the card's graphs the memory that they only keep. True if there was any.
    fn trim(&mut self, tenant: &Tenant) -> bool {
        // SAFETY: releases what no graph uses.
        let _ = unsafe { real::cuDeviceGraphMemTrim(self.device) };
        self.settle(tenant)
    }
}

impl Graphs {
    /// The memory of graphs on one of the driver's devices, if it is one of the tenant's.
    fn card(&mut self, tenant: &Tenant, device: CUdevice) -> Option<(DeviceIndex, &mut Card)> {
        let index = tenant.place(device).listed()?;
        let card = self.cards.entry(device).or_insert_with(|| Card {
            device,
            cache: DriverCache::new(index),
            outliving: Units::ZERO,
            reserved: Units::ZERO,
        });
        Some((index, card))
    }

    /// Takes the memory that a graph needs. If the limit does not allow it, returns the card and
    /// takes nothing. If the needs are not fully known, all cards are looked at, to see their
    /// growth.
    fn take(&mut self, tenant: &Tenant, needs: &Needs) -> Result<(), Refused> {
        let mut taken = Vec::new();
        for (&device, &amount) in &needs.cards {
            let Some((index, card)) = self.card(tenant, device) else {
                self.give(tenant, &taken);
                return Err(Refused(None));
            };
            card.settle(tenant);
            let fits = card.cache.make_room(tenant, amount, Units::ZERO) || {
                card.trim(tenant);
                card.cache.make_room(tenant, amount, Units::ZERO)
            };
            if !fits {
                self.give(tenant, &taken);
                return Err(Refused(Some((index, amount))));
            }
            taken.push((device, amount));
        }
        if needs.is_unknown {
            self.settle_all(tenant);
        }
        Ok(())
    }

    /// Charges the current amounts on each card.
    fn settle_all(&mut self, tenant: &Tenant) {
        for device in unknown::devices() {
            if let Some((_, card)) = self.card(tenant, device) {
                card.settle(tenant);
            }
        }
    }

    /// After the driver could take memory for a graph: the additional memory must fit too.
    fn take_growth(&mut self, tenant: &Tenant, needs: &Needs) -> Result<(), Refused> {
        for device in needs.devices() {
            let Some((index, card)) = self.card(tenant, device) else {
                continue;
            };
            let reserved = card.asked(CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT);
            let reserved = reserved.unwrap_or(Units::ZERO);
            if !card.cache.take_growth(tenant, reserved) {
                let told = needs.cards.get(&device).copied();
                let amount = told.unwrap_or(reserved.saturating_sub(card.reserved));
                return Err(Refused(Some((index, amount))));
            }
        }
        Ok(())
    }

    /// Takes from the cards the memory that their graphs only keep.
    fn trim(&mut self, tenant: &Tenant, needs: &Needs) {
        for device in needs.devices() {
            if let Some((_, card)) = self.card(tenant, device) {
                card.trim(tenant);
            }
        }
    }

    /// An executable graph was made.
    fn know(&mut self, exec: CUgraphExec, needs: Needs) {
        if needs.is_unknown {
            unknown::look_at_launches();
        }
        self.needs.insert(exec, needs);
    }

    /// Gives back the memory of a graph that never ran.
    fn give(&mut self, tenant: &Tenant, taken: &[(CUdevice, Units)]) {
        for &(device, amount) in taken {
            if let Some(card) = self.cards.get_mut(&device) {
                card.cache.freed(amount);
                card.settle(tenant);
            }
        }
    }

    /// Notes that an executable graph is gone. Memory that it allocated and did not free is still
    /// there; the driver reports the amount only for all graphs together.
    fn outlive(&mut self, tenant: &Tenant, needs: Needs) {
        for (device, amount) in needs.cards {
            if let Some(card) = self.cards.get_mut(&device) {
                card.outliving = card.outliving.saturating_add(amount);
                card.settle(tenant);
            }
        }
        if needs.is_unknown {
            self.settle_all(tenant);
        }
    }
}

impl CachesMemory for Mutex<Graphs> {
    fn release_unused(&self, tenant: &Tenant, budget: Budget) -> bool {
        // A thread that makes a graph holds the book, and trims for itself.
        let Ok(mut graphs) = self.try_lock() else {
            return false;
        };
        let mut released = false;
        for card in graphs.cards.values_mut() {
            if card.cache.budget() == budget && card.cache.has_unused() {
                released |= card.trim(tenant);
            }
        }
        released
    }

    fn look_again(&self, tenant: &Tenant, device: DeviceIndex) {
        let Ok(mut graphs) = self.try_lock() else {
            return;
        };
        for card in graphs.cards.values_mut() {
            if card.cache.budget() == Budget::Device(device) {
                card.settle(tenant);
            }
        }
    }
}

/// A call that makes a graph executable.
fn instantiating(
    exec: *mut CUgraphExec,
    graph: CUgraph,
    call: impl FnOnce() -> CUresult,
) -> CUresult {
    let Some(_inside) = Inside::enter() else {
        return call();
    };
    let Some(tenant) = catch_panic(Tenant::current).flatten() else {
        return call();
    };
    let needs = catch_panic(|| needs_of(graph)).unwrap_or_default();
    if needs.is_nothing() {
        return call();
    }
    let take = || locked(&tenant.accounts.graphs).take(&tenant, &needs);
    let taken = catch_panic(|| take().or_else(|refused| retry(&tenant, &needs, refused, take)));
    match taken {
        None => return call(),
        Some(Err(refused)) => return refused.note(&tenant),
        Some(Ok(())) => {}
    }
    let result = call();
    catch_panic(|| {
        let mut graphs = locked(&tenant.accounts.graphs);
        let taken: Vec<_> = needs
            .cards
            .iter()
            .map(|(&device, &amount)| (device, amount))
            .collect();
        if result != CUDA_SUCCESS {
            graphs.give(&tenant, &taken);
            return result;
        }
        // SAFETY: the driver wrote it.
        let made = unsafe { *exec };
        let Err(refused) = graphs.take_growth(&tenant, &needs) else {
            graphs.know(made, needs);
            return result;
        };
        // SAFETY: the program does not know it yet.
        let _ = unsafe { real::cuGraphExecDestroy(made) };
        graphs.trim(&tenant, &needs);
        graphs.give(&tenant, &taken);
        refused.note(&tenant)
    })
    .unwrap_or(result)
}

/// Another attempt, if anything was kept unused on the cards.
fn retry(
    tenant: &Tenant,
    needs: &Needs,
    refused: Refused,
    take: impl FnOnce() -> Result<(), Refused>,
) -> Result<(), Refused> {
    if release_caches(tenant, needs) {
        take()
    } else {
        Err(refused)
    }
}

fn release_caches(tenant: &Tenant, needs: &Needs) -> bool {
    let mut released = false;
    for device in needs.devices() {
        if let Place::Listed(index) = tenant.place(device) {
            released |= tenant.release_unused(index);
        }
    }
    released
}

/// `cuGraphInstantiate` of CUDA 10 and its `_v2`.
///
/// # Safety
/// As the driver documents.
pub unsafe extern "C" fn instantiate<R: Like<row::cuGraphInstantiate>>(
    exec: *mut CUgraphExec,
    graph: CUgraph,
    error_node: *mut CUgraphNode,
    log: *mut c_char,
    log_bytes: usize,
) -> CUresult {
    // SAFETY: the program's own arguments.
    instantiating(exec, graph, || unsafe {
        R::call((exec, graph, error_node, log, log_bytes))
    })
}

/// `cuGraphInstantiateWithFlags`.
///
/// # Safety
/// As the driver documents.
pub unsafe extern "C" fn instantiate_with_flags<R: Like<row::cuGraphInstantiateWithFlags>>(
    exec: *mut CUgraphExec,
    graph: CUgraph,
    flags: u64,
) -> CUresult {
    // SAFETY: the program's own arguments.
    instantiating(exec, graph, || unsafe { R::call((exec, graph, flags)) })
}

/// `cuGraphInstantiateWithParams`.
///
/// # Safety
/// As the driver documents.
pub unsafe extern "C" fn instantiate_with_params<R: Like<row::cuGraphInstantiateWithParams>>(
    exec: *mut CUgraphExec,
    graph: CUgraph,
    parameters: *mut CUDA_GRAPH_INSTANTIATE_PARAMS,
) -> CUresult {
    // SAFETY: the program's own arguments.
    instantiating(exec, graph, || unsafe {
        R::call((exec, graph, parameters))
    })
}

/// `cuGraphExecDestroy`.
///
/// # Safety
/// As the driver documents.
pub unsafe extern "C" fn exec_destroy<R: Like<row::cuGraphExecDestroy>>(
    exec: CUgraphExec,
) -> CUresult {
    giving(
        |tenant| locked(&tenant.accounts.graphs).needs.remove(&exec),
        // SAFETY: the program's own argument.
        || unsafe { R::call((exec,)) },
        |tenant, needs, destroyed| {
            let mut graphs = locked(&tenant.accounts.graphs);
            if destroyed {
                graphs.outlive(tenant, needs);
            } else {
                graphs.needs.insert(exec, needs);
            }
        },
    )
}

/// `cuDeviceGraphMemTrim`.
///
/// # Safety
/// As the driver documents.
pub unsafe extern "C" fn trim<R: Like<row::cuDeviceGraphMemTrim>>(device: CUdevice) -> CUresult {
    giving(
        |_| Some(()),
        // SAFETY: the program's own argument.
        || unsafe { R::call((device,)) },
        |tenant, (), _| {
            if let Some(card) = locked(&tenant.accounts.graphs).cards.get_mut(&device) {
                card.settle(tenant);
            }
        },
    )
}
