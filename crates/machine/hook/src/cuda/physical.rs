//! Memory behind handles (`cuMemCreate`), and the places where it is mapped.
//!
//! Such memory lives while anything refers to it ([`book`] lists the kinds of references).
//! Releasing the handle of mapped memory frees nothing; the charge goes back with the last
//! reference, or later if others have the memory too ([`super::deferred_free`]). The device is the
//! one the program named, since there need be no current context; memory on the host has a budget
//! of its own. A handle imported from another process costs nothing here: the process that created
//! it pays.

mod book;
mod bound;
mod tiles;

use std::ffi::{c_ulonglong, c_void};
use std::sync::Arc;

use self::book::Holding;
pub use self::book::Physical;
pub use self::bound::{
    bind_address, bind_address_v2, bind_endpoint_address, bind_endpoint_memory, bind_memory,
    bind_memory_v2, create_multicast, destroy_endpoint, unbind, unbind_endpoint,
};
pub use self::tiles::Mapped;
pub(super) use self::tiles::{Region, Tile, TilePart};
use super::c::*;
use super::deferred_free::{Holder, Work};
use super::tenant::{Need, Place, Tenant, giving, is_absent, taking};
use super::{locked, row};
use crate::link::marks::Key;
use crate::real::Like;

/// Returns the place that memory would be taken from; `None` if the place is not known.
fn place_of(tenant: &Tenant, location: CUmemLocation_v1) -> Option<Place> {
    let on = |device| match tenant.place(device) {
        Place::Unlisted if is_absent(device) => None,
        place => Some(place),
    };
    match location.r#type {
        CU_MEM_LOCATION_TYPE_DEVICE => on(location.id),
        // The device is the first byte of the identifier.
        CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN => on(location.id & 0xff),
        CU_MEM_LOCATION_TYPE_HOST
        | CU_MEM_LOCATION_TYPE_HOST_NUMA
        | CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT => Some(Place::Host),
        _ => None,
    }
}

/// `cuMemCreate`.
///
/// # Safety
/// As the driver documents.
pub unsafe extern "C" fn create<R: Like<row::cuMemCreate>>(
    handle: *mut CUmemGenericAllocationHandle,
    bytes: usize,
    properties: *const CUmemAllocationProp_v1,
    flags: c_ulonglong,
) -> CUresult {
    taking(
        |tenant| {
            // SAFETY: null or the program's struct.
            let location = unsafe { properties.as_ref() }?.location;
            let place = place_of(tenant, location)?;
            let bytes = bytes as u64;
            Some(Need { place, bytes })
        },
        // SAFETY: the program's own arguments.
        || unsafe { R::call((handle, bytes, properties, flags)) },
        |tenant, charge| {
            // SAFETY: the driver wrote it.
            let handle = unsafe { *handle };
            let holders = Vec::new();
            let holding = Holding::Own { charge, holders };
            locked(&tenant.accounts.physical).made(handle, holding);
        },
    )
}

/// `cuMemRelease`.
///
/// # Safety
/// As the driver documents.
pub unsafe extern "C" fn release<R: Like<row::cuMemRelease>>(
    handle: CUmemGenericAllocationHandle,
) -> CUresult {
    giving(
        |tenant| locked(&tenant.accounts.physical).take_handle(handle),
        // SAFETY: the program's own argument.
        || unsafe { R::call((handle,)) },
        |tenant, id, released| {
            let mut physical = locked(&tenant.accounts.physical);
            if !released {
                physical.put_handle(handle, id);
                return;
            }
            let mut gone = Vec::new();
            physical.drop_reference(id, &mut gone);
            drop(physical);
            let_go(tenant, gone, None);
        },
    )
}

/// `cuMemMap`.
///
/// # Safety
/// As the driver documents.
pub unsafe extern "C" fn map<R: Like<row::cuMemMap>>(
    address: CUdeviceptr,
    bytes: usize,
    offset: usize,
    handle: CUmemGenericAllocationHandle,
    flags: c_ulonglong,
) -> CUresult {
    noting(
        // SAFETY: the program's own arguments.
        || unsafe { R::call((address, bytes, offset, handle, flags)) },
        |physical| physical.mapped(address, bytes as u64, handle),
    )
}

/// `cuMemUnmap`.
///
/// # Safety
/// As the driver documents.
pub unsafe extern "C" fn unmap<R: Like<row::cuMemUnmap>>(
    address: CUdeviceptr,
    bytes: usize,
) -> CUresult {
    giving(
        |tenant| {
            let mut physical = locked(&tenant.accounts.physical);
            Some(physical.take_mappings(address, bytes as u64))
        },
        // SAFETY: the program's own arguments.
        || unsafe { R::call((address, bytes)) },
        |tenant, mappings, unmapped| {
            let mut physical = locked(&tenant.accounts.physical);
            if !unmapped {
                physical.put_mappings(mappings);
                return;
            }
            let mut gone = Vec::new();
            for (_, mapping) in mappings {
                physical.drop_reference(mapping.memory, &mut gone);
            }
            drop(physical);
            let_go(tenant, gone, None);
        },
    )
}

/// `cuMemRetainAllocationHandle`.
///
/// # Safety
/// As the driver documents.
pub unsafe extern "C" fn retain<R: Like<row::cuMemRetainAllocationHandle>>(
    handle: *mut CUmemGenericAllocationHandle,
    address: *mut c_void,
) -> CUresult {
    noting(
        // SAFETY: the program's own arguments.
        || unsafe { R::call((handle, address)) },
        // SAFETY: the driver wrote it.
        |physical| physical.retained(unsafe { *handle }, address.addr() as u64),
    )
}

/// Notes that parts of sparse arrays are now mapped to other memory, or to none: each change names
/// a part and a handle. Memory that is unmapped goes when the stream reaches the change.
pub(super) fn set_tiles(
    tenant: &Tenant,
    changes: impl Iterator<Item = (Tile, Region, Option<CUmemGenericAllocationHandle>)>,
    stream: CUstream,
) {
    let mut gone = Vec::new();
    let mut physical = locked(&tenant.accounts.physical);
    for (tile, region, handle) in changes {
        let memory = handle.and_then(|handle| physical.behind(handle));
        physical.set_tiles(tile, region, memory, &mut gone);
    }
    drop(physical);
    let_go(tenant, gone, Some(stream));
}

/// Returns the memory mapped into an array that is about to go.
pub fn take_array(tenant: &Tenant, array: u64) -> Mapped {
    locked(&tenant.accounts.physical).take_array(array)
}

/// It did not go after all.
pub fn put_array(tenant: &Tenant, mapped: Mapped) {
    locked(&tenant.accounts.physical).put_array(mapped);
}

/// It is gone, with its mappings.
pub fn drop_array(tenant: &Tenant, mapped: Mapped) {
    let mut gone = Vec::new();
    locked(&tenant.accounts.physical).drop_array(mapped, &mut gone);
    let_go(tenant, gone, None);
}

/// Memory behind a handle goes to other processes.
pub fn lend(tenant: &Tenant, handle: CUmemGenericAllocationHandle, holder: Holder) {
    let mut physical = locked(&tenant.accounts.physical);
    if let Some(id) = physical.behind(handle) {
        physical.add_holder(id, holder, |known| known.still_holds(tenant));
    }
}

/// Memory that is mapped in a range of addresses goes to others. False if none of it is known.
pub fn lend_range(tenant: &Tenant, address: u64, bytes: u64, holder: &Holder) -> bool {
    let mut physical = locked(&tenant.accounts.physical);
    let all = physical.mapped_within(address, bytes);
    for &id in &all {
        physical.add_holder(id, holder.clone(), |known| known.still_holds(tenant));
    }
    !all.is_empty()
}

/// A handle came from another process, or from this one by way of another.
pub fn imported(tenant: &Tenant, handle: CUmemGenericAllocationHandle, key: Option<Key>) {
    let is_borrowed = locked(&tenant.accounts.physical).imported(handle, key);
    if let (true, Some(key), Some(marks)) = (is_borrowed, key, tenant.link.marks()) {
        marks.set(key);
    }
}

/// Nothing here refers to these any more; `after` is a stream that must come to it first.
fn let_go(tenant: &Tenant, gone: Vec<Holding>, after: Option<CUstream>) {
    for holding in gone {
        match holding {
            Holding::Own {
                charge,
                mut holders,
            } => {
                let work =
                    |stream| Work::in_stream(stream).map(|work| Holder::Work(Arc::new(work)));
                holders.extend(after.map(|stream| work(stream).unwrap_or(Holder::Unseen)));
                tenant
                    .accounts
                    .deferred_frees
                    .pay_back(tenant, charge, holders);
            }
            Holding::Borrowed(Some(key)) => {
                if let Some(marks) = tenant.link.marks() {
                    marks.clear(key);
                }
            }
            Holding::Borrowed(None) | Holding::Object => {}
        }
    }
}

/// Calls the driver, and after success notes the change.
fn noting(call: impl FnOnce() -> CUresult, note: impl FnOnce(&mut Physical)) -> CUresult {
    giving(
        |_| Some(()),
        call,
        |tenant, (), done| {
            if done {
                note(&mut locked(&tenant.accounts.physical));
            }
        },
    )
}
