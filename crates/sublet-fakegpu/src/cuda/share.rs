//! Memory between processes.

use sublet_driver_api::cuda::CUipcMemHandle_v1;

use super::arguments::Out;
use super::{careful, functions};
use crate::driver::Session;
use crate::driver::code::{Answer, Code};
use crate::driver::share::Handle;

functions! {
    fn cuIpcGetMemHandle(handle: Out<CUipcMemHandle_v1>, address: u64) {
        handle.check()?;
        let mut session = careful()?;
        let reserved = session.export_memory(address)?.to_bytes();
        handle.put(CUipcMemHandle_v1 { reserved })
    }

    fn cuIpcOpenMemHandle(address: Out<u64>, handle: CUipcMemHandle_v1, flags: u32) {
        open(address, &handle, flags)
    }

    fn cuIpcOpenMemHandle_v2(address: Out<u64>, handle: CUipcMemHandle_v1, flags: u32) {
        open(address, &handle, flags)
    }

    fn cuIpcCloseMemHandle(address: u64) {
        let mut session = careful()?;
        let context = session.current()?;
        session.finish_context(context);
        session.close_import(address)
    }
}

fn open(address: Out<u64>, handle: &CUipcMemHandle_v1, flags: u32) -> Answer {
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
