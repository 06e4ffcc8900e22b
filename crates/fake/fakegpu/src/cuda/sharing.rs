//! Memory, events and pools between processes.

use sublet_driver_api::cuda::{CUipcEventHandle_v1, CUipcMemHandle_v1};

use crate::cuda::arguments::{In, Out};
use crate::cuda::memory::physical::DESCRIPTOR;
use crate::cuda::{functions, outside_capture};
use crate::driver::Session;
use crate::driver::result::Code;
use crate::driver::sharing::Handle;
use crate::driver::sharing::event::EventHandle;
use crate::driver::sharing::pool::PointerData;

pub(crate) mod external;
pub(crate) mod multicast;

functions! {
    fn cuIpcGetMemHandle(handle: Out<CUipcMemHandle_v1>, address: u64) {
        handle.check()?;
        let mut session = outside_capture()?;
        let reserved = session.export_memory(address)?.to_bytes();
        handle.put(CUipcMemHandle_v1 { reserved })
    }

    fn cuIpcOpenMemHandle_v2(address: Out<u64>, handle: CUipcMemHandle_v1, flags: u32) {
        address.check()?;
        // The one flag: peers are made to see each other when that is needed.
        if flags != 1 {
            return Err(Code::INVALID_VALUE);
        }
        let handle = Handle::from_bytes(&handle.reserved).ok_or(Code::INVALID_VALUE)?;
        let mut session = Session::open()?;
        session.forbid_in_capture()?;
        address.put(session.import_memory(handle)?)
    }

    fn cuIpcCloseMemHandle(address: u64) {
        let mut session = outside_capture()?;
        let context = session.owner()?;
        session.finish_context(context);
        session.close_import(address)
    }

    fn cuIpcGetEventHandle(handle: Out<CUipcEventHandle_v1>, event: crate::cuda::Handle) {
        handle.check()?;
        let reserved = Session::open()?.export_event(event)?.to_bytes();
        handle.put(CUipcEventHandle_v1 { reserved })
    }

    fn cuIpcOpenEventHandle(event: Out<crate::cuda::Handle>, handle: CUipcEventHandle_v1) {
        event.check()?;
        let handle = EventHandle::from_bytes(&handle.reserved).ok_or(Code::INVALID_VALUE)?;
        event.put(Session::open()?.import_event(handle)?)
    }

    fn cuMemPoolExportToShareableHandle(shareable: Out<i32>, pool: crate::cuda::Handle, kind: u32, flags: u64) {
        shareable.check()?;
        if flags != 0 || kind != DESCRIPTOR {
            return Err(Code::INVALID_VALUE);
        }
        shareable.put(Session::open()?.export_pool(pool)?)
    }

    fn cuMemPoolImportFromShareableHandle(pool: Out<crate::cuda::Handle>, shareable: usize, kind: u32, flags: u64) {
        pool.check()?;
        if flags != 0 || kind != DESCRIPTOR {
            return Err(Code::INVALID_VALUE);
        }
        let descriptor = i32::try_from(shareable).map_err(|_| Code::INVALID_VALUE)?;
        pool.put(Session::open()?.import_pool(descriptor)?)
    }

    fn cuMemPoolExportPointer(data: Out<[u8; 64]>, address: u64) {
        data.check()?;
        data.put(Session::open()?.export_pool_pointer(address)?.to_bytes())
    }

    fn cuMemPoolImportPointer(address: Out<u64>, pool: crate::cuda::Handle, data: In<[u8; 64]>) {
        address.check()?;
        let data = PointerData::from_bytes(&data.get()?).ok_or(Code::INVALID_VALUE)?;
        address.put(Session::open()?.import_pool_pointer(pool, data)?)
    }
}
