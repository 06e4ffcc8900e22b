//! Multicast objects: memory of several cards that is written at once. An object is physical memory
//! of no card here. Memory that is bound to it stays, but bytes that are written through it reach
//! nobody.

use sublet_driver_api::cuda::memory::CUmulticastObjectProp_v1;

use crate::cuda::arguments::{In, Out};
use crate::cuda::{Handle, functions, outside_capture};
use crate::driver::Session;
use crate::driver::memory::address_space::BLOCK;
use crate::driver::memory::physical::Properties;
use crate::driver::result::{Answer, Code};

functions! {
    fn cuMulticastGetGranularity(granularity: Out<usize>, given: In<CUmulticastObjectProp_v1>, option: u32) {
        Session::open()?;
        given.get()?;
        if option > 1 {
            return Err(Code::INVALID_VALUE);
        }
        granularity.put(BLOCK as usize)
    }

    fn cuMulticastCreate(handle: Out<Handle>, given: In<CUmulticastObjectProp_v1>) {
        handle.check()?;
        let mut session = outside_capture()?;
        let given = given.get()?;
        if given.numDevices == 0 || given.flags != 0 || given.handleTypes & !1 != 0 {
            return Err(Code::INVALID_VALUE);
        }
        let properties = Properties {
            handle_types: given.handleTypes as u32,
            location: 0,
            location_id: 0,
            rdma: false,
        };
        handle.put(session.create_physical(given.size as u64, None, properties)?)
    }

    fn cuMulticastAddDevice(object: Handle, device: i32) {
        let session = Session::open()?;
        session.card_of(device)?;
        session.memory.physicals.get(object).map(drop)
    }

    fn cuMulticastBindMem(object: Handle, offset: usize, memory: Handle, from: usize, size: usize, flags: u64) {
        bind(object, offset, memory, from, size, flags)
    }

    fn cuMulticastBindAddr(object: Handle, offset: usize, address: u64, size: usize, flags: u64) {
        bind_address(object, offset, address, size, flags)
    }

    fn cuMulticastUnbind(object: Handle, device: i32, offset: usize, size: usize) {
        let mut session = outside_capture()?;
        let card = session.card_of(device)?;
        session.unbind(object, card, offset as u64, size as u64)
    }
}

fn bind(
    object: Handle,
    offset: usize,
    memory: Handle,
    from: usize,
    size: usize,
    flags: u64,
) -> Answer {
    let is_aligned = |number: usize| (number as u64).is_multiple_of(BLOCK);
    if flags != 0 || ![offset, from, size].into_iter().all(is_aligned) {
        return Err(Code::INVALID_VALUE);
    }
    let mut session = outside_capture()?;
    session.bind(object, offset as u64, memory, from as u64, size as u64)
}

fn bind_address(object: Handle, offset: usize, address: u64, size: usize, flags: u64) -> Answer {
    let memory = outside_capture()?.physical_at(address, size as u64)?;
    bind(object, offset, memory, 0, size, flags)
}
