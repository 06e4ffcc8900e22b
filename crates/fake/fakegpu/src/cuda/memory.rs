//! Memory of cards and of the host.

use crate::cuda::arguments::Out;
use crate::cuda::{functions, outside_capture};
use crate::driver::Session;
use crate::driver::memory::PITCH;
use crate::driver::memory::ranges::Kind;
use crate::driver::result::Code;

pub(crate) mod array;
pub(crate) mod copy;
pub(crate) mod fill;
pub(crate) mod managed;
pub(crate) mod physical;
pub(crate) mod pointer;
pub(crate) mod pool;

functions! {
    fn cuMemGetInfo_v2(free: Out<usize>, total: Out<usize>) {
        let session = Session::open()?;
        let card = session.current_card()?;
        let usage = session.registration.machine().usage(card);
        let usage = usage.map_err(|_| Code::OPERATING_SYSTEM)?;
        // The real driver takes null for what is not wanted.
        free.put_if(usage.free as usize);
        total.put_if(usage.total as usize);
        Ok(())
    }

    fn cuMemAlloc_v2(address: Out<u64>, size: usize) {
        address.check()?;
        let mut session = outside_capture()?;
        address.put(session.allocate(size as u64)?)
    }

    fn cuMemAllocPitch_v2(address: Out<u64>, pitch: Out<usize>, width: usize, height: usize, element: u32) {
        address.check()?;
        pitch.check()?;
        if width == 0 || height == 0 || !matches!(element, 4 | 8 | 16) {
            return Err(Code::INVALID_VALUE);
        }
        let mut session = outside_capture()?;
        let row = (width as u64).checked_next_multiple_of(PITCH).ok_or(Code::OUT_OF_MEMORY)?;
        let size = row.checked_mul(height as u64).ok_or(Code::OUT_OF_MEMORY)?;
        address.put(session.allocate(size)?)?;
        pitch.put(row as usize)
    }

    fn cuMemAllocManaged(address: Out<u64>, size: usize, flags: u32) {
        address.check()?;
        let mut session = outside_capture()?;
        address.put(session.allocate_managed(size as u64, flags)?)
    }

    fn cuMemFree_v2(address: u64) {
        let mut session = outside_capture()?;
        session.free(address)
    }

    fn cuMemAllocHost_v2(address: Out<u64>, size: usize) {
        address.check()?;
        let mut session = outside_capture()?;
        address.put(session.allocate_host(size as u64, 0)?)
    }

    fn cuMemHostAlloc(address: Out<u64>, size: usize, flags: u32) {
        address.check()?;
        let mut session = outside_capture()?;
        address.put(session.allocate_host(size as u64, flags)?)
    }

    fn cuMemFreeHost(address: u64) {
        let mut session = outside_capture()?;
        session.free_host(address)
    }

    fn cuMemHostRegister_v2(address: u64, size: usize, flags: u32) {
        outside_capture()?.register_host(address, size as u64, flags)
    }

    fn cuMemHostUnregister(address: u64) {
        outside_capture()?.unregister_host(address)
    }

    fn cuMemHostGetDevicePointer_v2(device: Out<u64>, address: u64, flags: u32) {
        if flags != 0 {
            return Err(Code::INVALID_VALUE);
        }
        let session = Session::open()?;
        session.current()?;
        match session.memory.ranges.at(address).map(|range| &range.kind) {
            Some(Kind::Host | Kind::Registered) => device.put(address),
            _ => Err(Code::INVALID_VALUE),
        }
    }

    fn cuMemGetAddressRange_v2(base: Out<u64>, size: Out<usize>, address: u64) {
        let session = Session::open()?;
        session.current()?;
        let range = session.memory.ranges.at(address).ok_or(Code::NOT_FOUND)?;
        base.put_if(range.start);
        size.put_if(range.size as usize);
        Ok(())
    }
}
