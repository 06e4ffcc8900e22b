//! Physical memory, addresses, and mappings.

use sublet_driver_api::Zeroed;
use sublet_driver_api::cuda::memory::{
    CUmemAccessDesc_v1, CUmemAllocationProp_allocFlags, CUmemAllocationProp_v1, CUmemLocation_v1,
};
use sublet_driver_api::cuda::{
    CU_MEM_ALLOCATION_TYPE_PINNED, CUmemAllocationHandleType, CUmemLocationType,
};

use crate::cuda::arguments::{In, Out};
use crate::cuda::{Handle, functions, outside_capture};
use crate::driver::memory::address_space::BLOCK;
use crate::driver::memory::physical::Properties;
use crate::driver::result::{Answer, Code};
use crate::driver::{Driver, Session};

/// `CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR`.
pub(crate) const DESCRIPTOR: u32 = 1;

functions! {
    fn cuMemGetAllocationGranularity(granularity: Out<usize>, properties: In<CUmemAllocationProp_v1>, option: u32) {
        let session = Session::open()?;
        read(&session, &properties.get()?)?;
        if option > 1 {
            return Err(Code::INVALID_VALUE);
        }
        granularity.put(BLOCK as usize)
    }

    fn cuMemCreate(handle: Out<Handle>, size: usize, properties: In<CUmemAllocationProp_v1>, flags: u64) {
        handle.check()?;
        let mut session = outside_capture()?;
        if flags != 0 {
            return Err(Code::INVALID_VALUE);
        }
        let (card, properties) = read(&session, &properties.get()?)?;
        handle.put(session.create_physical(size as u64, card, properties)?)
    }

    fn cuMemRelease(handle: Handle) {
        Session::open()?.release_physical(handle)
    }

    fn cuMemRetainAllocationHandle(handle: Out<Handle>, address: u64) {
        handle.check()?;
        handle.put(Session::open()?.retain_physical(address)?)
    }

    fn cuMemGetAllocationPropertiesFromHandle(properties: Out<CUmemAllocationProp_v1>, handle: Handle) {
        let session = Session::open()?;
        let known = session.memory.physicals.get(handle)?.properties;
        properties.put(CUmemAllocationProp_v1 {
            r#type: CU_MEM_ALLOCATION_TYPE_PINNED,
            requestedHandleTypes: CUmemAllocationHandleType(known.handle_types),
            location: CUmemLocation_v1 {
                r#type: CUmemLocationType(known.location),
                id: known.location_id,
            },
            allocFlags: CUmemAllocationProp_allocFlags {
                gpuDirectRDMACapable: u8::from(known.rdma),
                ..Zeroed::ZERO
            },
            ..Zeroed::ZERO
        })
    }

    fn cuMemAddressReserve(address: Out<u64>, size: usize, alignment: usize, hint: u64, flags: u64) {
        address.check()?;
        if flags != 0 {
            return Err(Code::INVALID_VALUE);
        }
        let start = Session::open()?.reserve_addresses(size as u64, alignment as u64, hint)?;
        address.put(start)
    }

    fn cuMemAddressFree(address: u64, size: usize) {
        Session::open()?.free_addresses(address, size as u64)
    }

    fn cuMemMap(address: u64, size: usize, offset: usize, handle: Handle, flags: u64) {
        if flags != 0 {
            return Err(Code::INVALID_VALUE);
        }
        Session::open()?.map_physical(address, size as u64, offset as u64, handle)
    }

    fn cuMemUnmap(address: u64, size: usize) {
        let mut session = outside_capture()?;
        session.unmap_physical(address, size as u64)
    }

    fn cuMemSetAccess(address: u64, size: usize, wanted: In<CUmemAccessDesc_v1>, count: usize) {
        let mut session = Session::open()?;
        let wanted = wanted.list(count)?;
        if wanted.is_empty() {
            return Err(Code::INVALID_VALUE);
        }
        let mut allowed = false;
        for one in wanted {
            location(&session, &one.location)?;
            match one.flags.0 {
                0 => {}
                1 | 3 => allowed = true,
                _ => return Err(Code::INVALID_VALUE),
            }
        }
        session.set_access(address, size as u64, allowed)
    }

    fn cuMemGetAccess(flags: Out<u64>, place: In<CUmemLocation_v1>, address: u64) {
        let session = Session::open()?;
        location(&session, &place.get()?)?;
        let range = session.memory.ranges.at(address).ok_or(Code::INVALID_VALUE)?;
        let usable = session.memory.is_accessible(address, 1) && range.kind.is_on_card();
        flags.put(if usable { 3 } else { 0 })
    }

    fn cuMemGetHandleForAddressRange(descriptor: Out<i32>, address: u64, size: usize, kind: u32, flags: u64) {
        descriptor.check()?;
        let mut session = outside_capture()?;
        // The one kind there is: a dma-buf.
        if kind != 1 || flags != 0 {
            return Err(Code::INVALID_VALUE);
        }
        descriptor.put(session.give_out_range(address, size as u64)?)
    }

    fn cuMemExportToShareableHandle(shareable: Out<i32>, handle: Handle, kind: u32, flags: u64) {
        shareable.check()?;
        let mut session = outside_capture()?;
        if flags != 0 || kind != DESCRIPTOR {
            return Err(Code::INVALID_VALUE);
        }
        shareable.put(session.export_physical(handle)?)
    }

    fn cuMemImportFromShareableHandle(handle: Out<Handle>, shareable: usize, kind: u32) {
        handle.check()?;
        if kind != DESCRIPTOR {
            return Err(Code::INVALID_VALUE);
        }
        let descriptor = i32::try_from(shareable).map_err(|_| Code::INVALID_VALUE)?;
        handle.put(Session::open()?.import_physical(descriptor)?)
    }
}

/// The card that a location means; `None` for the host.
pub(crate) fn location(driver: &Driver, place: &CUmemLocation_v1) -> Answer<Option<usize>> {
    match place.r#type.0 {
        1 => driver.card_of(place.id).map(Some),
        2 | 4 => Ok(None),
        3 if place.id >= 0 => Ok(None),
        _ => Err(Code::INVALID_VALUE),
    }
}

fn read(driver: &Driver, given: &CUmemAllocationProp_v1) -> Answer<(Option<usize>, Properties)> {
    if given.r#type != CU_MEM_ALLOCATION_TYPE_PINNED {
        return Err(Code::INVALID_VALUE);
    }
    let card = location(driver, &given.location)?;
    let handle_types = given.requestedHandleTypes.0;
    // Handles for other machines and other systems.
    if handle_types & !DESCRIPTOR != 0 {
        return Err(Code::NOT_SUPPORTED);
    }
    let properties = Properties {
        handle_types,
        location: given.location.r#type.0,
        location_id: given.location.id,
        rdma: given.allocFlags.gpuDirectRDMACapable != 0,
    };
    Ok((card, properties))
}
