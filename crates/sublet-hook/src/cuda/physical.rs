//! Memory behind handles (`cuMemCreate`), and where it is mapped.
//!
//! Such memory lives while anything refers to it: the handle it was created with, handles that
//! were got from an address, and mappings. Releasing the handle of mapped memory frees nothing;
//! the charge goes back with the last reference. The device is the one the program named, since
//! there need be no current context; memory on the host is not the card's. A handle imported
//! from another process costs nothing here: whoever created it has paid.

use std::collections::{BTreeMap, HashMap};
use std::ffi::{c_uint, c_ulonglong, c_void};

use super::c::*;
use super::tenant::{Ask, Charge, giving, taking};
use super::{locked, real};

/// Which memory. Handles come and go, and their numbers are used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Id(u64);

#[derive(Debug)]
struct Memory {
    charge: Charge,
    /// References: handles, as often as each was given out, and mappings.
    references: usize,
}

#[derive(Debug)]
struct Mapping {
    end: u64,
    memory: Id,
}

/// All such memory of the process.
#[derive(Debug, Default)]
pub struct Physical {
    next: u64,
    memories: HashMap<Id, Memory>,
    /// The memory behind a handle, and how often the driver gave that handle out.
    handles: HashMap<CUmemGenericAllocationHandle, (Id, usize)>,
    /// By first address.
    mappings: BTreeMap<u64, Mapping>,
}

impl Physical {
    fn created(&mut self, handle: CUmemGenericAllocationHandle, charge: Charge) {
        let id = Id(self.next);
        self.next += 1;
        let references = 1;
        self.memories.insert(id, Memory { charge, references });
        self.handles.insert(handle, (id, 1));
    }

    /// The driver gave a handle for what is mapped at an address.
    fn retained(&mut self, handle: CUmemGenericAllocationHandle, address: u64) {
        let Some(id) = self.mapped_at(address) else {
            return;
        };
        let (_, times) = self.handles.entry(handle).or_insert((id, 0));
        *times += 1;
        self.refer(id);
    }

    /// The driver gave a handle for memory that was exported. If it is one of ours, it counts
    /// once more; another process's memory is another's to pay.
    fn imported(&mut self, handle: CUmemGenericAllocationHandle) {
        if let Some((id, times)) = self.handles.get_mut(&handle) {
            *times += 1;
            let id = *id;
            self.refer(id);
        }
    }

    /// A handle is about to be released: it is no longer known, but still refers.
    fn take_handle(&mut self, handle: CUmemGenericAllocationHandle) -> Option<Id> {
        let (id, times) = self.handles.get_mut(&handle)?;
        let id = *id;
        *times -= 1;
        if *times == 0 {
            self.handles.remove(&handle);
        }
        Some(id)
    }

    /// It was not released after all.
    fn put_handle(&mut self, handle: CUmemGenericAllocationHandle, id: Id) {
        let (_, times) = self.handles.entry(handle).or_insert((id, 0));
        *times += 1;
    }

    fn mapped(&mut self, address: u64, bytes: u64, handle: CUmemGenericAllocationHandle) {
        let Some(&(memory, _)) = self.handles.get(&handle) else {
            return;
        };
        let end = address.saturating_add(bytes);
        self.mappings.insert(address, Mapping { end, memory });
        self.refer(memory);
    }

    /// Mappings within a range are about to go; the driver only unmaps whole ones.
    fn take_mappings(&mut self, address: u64, bytes: u64) -> Vec<(u64, Mapping)> {
        let end = address.saturating_add(bytes);
        let gone: Vec<u64> = self
            .mappings
            .range(address..end)
            .filter(|(_, mapping)| mapping.end <= end)
            .map(|(&start, _)| start)
            .collect();
        gone.into_iter()
            .filter_map(|start| Some((start, self.mappings.remove(&start)?)))
            .collect()
    }

    fn mapped_at(&self, address: u64) -> Option<Id> {
        let (_, mapping) = self.mappings.range(..=address).next_back()?;
        (address < mapping.end).then_some(mapping.memory)
    }

    fn refer(&mut self, id: Id) {
        if let Some(memory) = self.memories.get_mut(&id) {
            memory.references += 1;
        }
    }

    /// The charge, if that was the last reference.
    fn drop_reference(&mut self, id: Id) -> Option<Charge> {
        let memory = self.memories.get_mut(&id)?;
        memory.references -= 1;
        if memory.references > 0 {
            return None;
        }
        self.memories.remove(&id).map(|memory| memory.charge)
    }
}

/// The card that memory would be on; `None` for the host.
fn card_of(location: CUmemLocation_v1) -> Option<CUdevice> {
    match location.r#type {
        CU_MEM_LOCATION_TYPE_DEVICE => Some(location.id),
        // The device is the first byte of the identifier.
        CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN => Some(location.id & 0xff),
        _ => None,
    }
}

/// `cuMemCreate`.
///
/// # Safety
/// As the driver documents.
pub unsafe extern "C" fn create<const ROW: usize>(
    handle: *mut CUmemGenericAllocationHandle,
    bytes: usize,
    properties: *const CUmemAllocationProp_v1,
    flags: c_ulonglong,
) -> CUresult {
    // SAFETY: the row's type.
    let real: unsafe extern "C" fn(
        *mut CUmemGenericAllocationHandle,
        usize,
        *const CUmemAllocationProp_v1,
        c_ulonglong,
    ) -> CUresult = unsafe { real::function(ROW) };
    taking(
        |tenant| {
            // SAFETY: null or the program's struct.
            let location = unsafe { properties.as_ref() }?.location;
            let place = tenant.place(card_of(location)?);
            let bytes = bytes as u64;
            Some(Ask { place, bytes })
        },
        // SAFETY: the program's own arguments.
        || unsafe { real(handle, bytes, properties, flags) },
        |tenant, charge| {
            // SAFETY: the driver wrote it.
            let handle = unsafe { *handle };
            locked(&tenant.books.physical).created(handle, charge);
        },
    )
}

/// `cuMemRelease`.
///
/// # Safety
/// As the driver documents.
pub unsafe extern "C" fn release<const ROW: usize>(
    handle: CUmemGenericAllocationHandle,
) -> CUresult {
    // SAFETY: the row's type.
    let real: unsafe extern "C" fn(CUmemGenericAllocationHandle) -> CUresult =
        unsafe { real::function(ROW) };
    giving(
        |tenant| locked(&tenant.books.physical).take_handle(handle),
        // SAFETY: the program's own argument.
        || unsafe { real(handle) },
        |tenant, id, released| {
            let mut physical = locked(&tenant.books.physical);
            if !released {
                physical.put_handle(handle, id);
                return;
            }
            let last = physical.drop_reference(id);
            drop(physical);
            last.into_iter().for_each(|charge| tenant.give(charge));
        },
    )
}

/// `cuMemMap`.
///
/// # Safety
/// As the driver documents.
pub unsafe extern "C" fn map<const ROW: usize>(
    address: CUdeviceptr,
    bytes: usize,
    offset: usize,
    handle: CUmemGenericAllocationHandle,
    flags: c_ulonglong,
) -> CUresult {
    // SAFETY: the row's type.
    let real: unsafe extern "C" fn(
        CUdeviceptr,
        usize,
        usize,
        CUmemGenericAllocationHandle,
        c_ulonglong,
    ) -> CUresult = unsafe { real::function(ROW) };
    noting(
        // SAFETY: the program's own arguments.
        || unsafe { real(address, bytes, offset, handle, flags) },
        |physical| physical.mapped(address, bytes as u64, handle),
    )
}

/// `cuMemUnmap`.
///
/// # Safety
/// As the driver documents.
pub unsafe extern "C" fn unmap<const ROW: usize>(address: CUdeviceptr, bytes: usize) -> CUresult {
    // SAFETY: the row's type.
    let real: unsafe extern "C" fn(CUdeviceptr, usize) -> CUresult = unsafe { real::function(ROW) };
    giving(
        |tenant| {
            let mut physical = locked(&tenant.books.physical);
            Some(physical.take_mappings(address, bytes as u64))
        },
        // SAFETY: the program's own arguments.
        || unsafe { real(address, bytes) },
        |tenant, mappings, unmapped| {
            let mut physical = locked(&tenant.books.physical);
            if !unmapped {
                physical.mappings.extend(mappings);
                return;
            }
            let charges: Vec<Charge> = mappings
                .into_iter()
                .filter_map(|(_, mapping)| physical.drop_reference(mapping.memory))
                .collect();
            drop(physical);
            charges.into_iter().for_each(|charge| tenant.give(charge));
        },
    )
}

/// `cuMemRetainAllocationHandle`.
///
/// # Safety
/// As the driver documents.
pub unsafe extern "C" fn retain<const ROW: usize>(
    handle: *mut CUmemGenericAllocationHandle,
    address: *mut c_void,
) -> CUresult {
    // SAFETY: the row's type.
    let real: unsafe extern "C" fn(*mut CUmemGenericAllocationHandle, *mut c_void) -> CUresult =
        unsafe { real::function(ROW) };
    noting(
        // SAFETY: the program's own arguments.
        || unsafe { real(handle, address) },
        // SAFETY: the driver wrote it.
        |physical| physical.retained(unsafe { *handle }, address.addr() as u64),
    )
}

/// `cuMemImportFromShareableHandle`.
///
/// # Safety
/// As the driver documents.
pub unsafe extern "C" fn import<const ROW: usize>(
    handle: *mut CUmemGenericAllocationHandle,
    from: *mut c_void,
    kind: CUmemAllocationHandleType,
) -> CUresult {
    // SAFETY: the row's type.
    let real: unsafe extern "C" fn(
        *mut CUmemGenericAllocationHandle,
        *mut c_void,
        CUmemAllocationHandleType,
    ) -> CUresult = unsafe { real::function(ROW) };
    noting(
        // SAFETY: the program's own arguments.
        || unsafe { real(handle, from, kind) },
        // SAFETY: the driver wrote it.
        |physical| physical.imported(unsafe { *handle }),
    )
}

/// `cuMemMapArrayAsync`: memory behind the tiles of a sparse array. Which tiles are unmapped
/// again is not followed: what was once mapped so stays charged until the process ends, which
/// is never too little. Nobody is known to map and release such memory in a loop.
///
/// # Safety
/// As the driver documents.
pub unsafe extern "C" fn map_array<const ROW: usize>(
    list: *mut CUarrayMapInfo_v1,
    count: c_uint,
    stream: CUstream,
) -> CUresult {
    // SAFETY: the row's type.
    let real: unsafe extern "C" fn(*mut CUarrayMapInfo_v1, c_uint, CUstream) -> CUresult =
        unsafe { real::function(ROW) };
    noting(
        // SAFETY: the program's own arguments.
        || unsafe { real(list, count, stream) },
        |physical| {
            // SAFETY: the driver has just read so many.
            let list = unsafe { std::slice::from_raw_parts(list, count as usize) };
            for one in list {
                if one.memOperationType == CU_MEM_OPERATION_TYPE_MAP
                    && let Some(&(id, _)) = physical.handles.get(&one.memHandle)
                {
                    physical.refer(id);
                }
            }
        },
    )
}

/// Calls the driver, and after success writes down what it did.
fn noting(call: impl FnOnce() -> CUresult, note: impl FnOnce(&mut Physical)) -> CUresult {
    giving(
        |_| Some(()),
        call,
        |tenant, (), done| {
            if done {
                note(&mut locked(&tenant.books.physical));
            }
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use sublet_abi::{DeviceIndex, Units};

    fn charge(units: u64) -> Charge {
        Charge {
            device: DeviceIndex::new(0).expect("a device"),
            amount: Units::new(units).expect("few units"),
        }
    }

    impl Physical {
        fn release(&mut self, handle: u64) -> Option<Charge> {
            let id = self.take_handle(handle)?;
            self.drop_reference(id)
        }

        fn unmap(&mut self, address: u64, bytes: u64) -> Vec<Charge> {
            let taken = self.take_mappings(address, bytes);
            taken
                .into_iter()
                .filter_map(|(_, mapping)| self.drop_reference(mapping.memory))
                .collect()
        }
    }

    #[test]
    fn memory_lives_until_its_last_reference() {
        let mut physical = Physical::default();
        physical.created(7, charge(1));
        physical.mapped(0x1000, 0x1000, 7);
        assert_eq!(physical.release(7), None, "still mapped");
        assert_eq!(physical.release(7), None, "unknown now");
        physical.retained(9, 0x1fff);
        assert_eq!(physical.unmap(0x1000, 0x1000), [], "a handle is left");
        physical.mapped(0x8000, 0x1000, 9);
        assert_eq!(physical.release(9), None);
        assert_eq!(physical.unmap(0x7000, 0x3000), [charge(1)]);
        assert!(physical.memories.is_empty() && physical.handles.is_empty());
    }

    #[test]
    fn a_handles_number_may_come_again_while_its_old_memory_is_mapped() {
        let mut physical = Physical::default();
        physical.created(7, charge(1));
        physical.mapped(0x1000, 0x1000, 7);
        physical.release(7);
        physical.created(7, charge(2));
        assert_eq!(physical.unmap(0x1000, 0x1000), [charge(1)]);
        assert_eq!(physical.release(7), Some(charge(2)));
    }

    #[test]
    fn memory_that_comes_back_to_its_maker_counts_once_more() {
        let mut physical = Physical::default();
        physical.created(7, charge(1));
        physical.imported(7);
        assert_eq!(physical.release(7), None);
        assert_eq!(physical.release(7), Some(charge(1)));
    }

    #[test]
    fn what_is_not_known_is_left_alone() {
        let mut physical = Physical::default();
        physical.imported(5); // from another process
        physical.mapped(0x1000, 0x1000, 5);
        physical.retained(6, 0x1000);
        assert_eq!(physical.release(5), None);
        assert_eq!(physical.release(6), None);
        assert_eq!(physical.unmap(0, u64::MAX), []);
    }

    proptest! {
        /// Whatever is done in whatever order: what was charged is paid back exactly once.
        #[test]
        fn every_charge_is_paid_back_once(
            steps in proptest::collection::vec((0_u8..5, 0_u64..6, 0_u64..6), 0..80)
        ) {
            let mut physical = Physical::default();
            let (mut charged, mut paid) = (0_u64, 0_u64);
            let pay = |charges: Vec<Charge>| -> u64 {
                charges.iter().map(|charge| charge.amount.count()).sum()
            };
            for (verb, a, b) in steps {
                match verb {
                    0 if !physical.handles.contains_key(&a) => {
                        physical.created(a, charge(b + 1));
                        charged += b + 1;
                    }
                    1 if !physical.mappings.contains_key(&(b << 12)) => {
                        physical.mapped(b << 12, 1 << 12, a);
                    }
                    2 => {
                        // The driver may give a known handle of the same memory, or a new one.
                        let same = physical.mapped_at(b << 12);
                        let known = physical.handles.get(&(a + 10)).map(|known| known.0);
                        if known.is_none() || known == same {
                            physical.retained(a + 10, b << 12);
                        }
                    }
                    3 => paid += pay(physical.release(a).into_iter().collect()),
                    _ => paid += pay(physical.unmap(a << 12, b << 12)),
                }
                let held: u64 =
                    physical.memories.values().map(|one| one.charge.amount.count()).sum();
                prop_assert_eq!(charged, paid + held);
            }
            paid += pay(physical.unmap(0, u64::MAX));
            let left: Vec<u64> = physical.handles.keys().copied().collect();
            for handle in left {
                while physical.handles.contains_key(&handle) {
                    paid += pay(physical.release(handle).into_iter().collect());
                }
            }
            prop_assert_eq!(charged, paid);
            prop_assert!(physical.memories.is_empty());
        }
    }
}
