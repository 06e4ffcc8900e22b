//! `cuGetProcAddress`: a function by its name, the version of CUDA that the program was
//! built for, and how it takes default streams.

use sublet_driver_api::CUDA;

use crate::FunctionPointer;
use crate::cuda::arguments::{Out, Text};
use crate::cuda::{functions, target};
use crate::driver::result::{Answer, Code};
use crate::product::CUDA_VERSION;

/// `CU_GET_PROC_ADDRESS_*`: how a look-up went.
const FOUND: u32 = 0;
const UNKNOWN: u32 = 1;
const TOO_NEW: u32 = 2;

/// The flags: the legacy default stream, or one for each thread.
const LEGACY: u64 = 1;
const PER_THREAD: u64 = 2;

functions! {
    fn cuGetProcAddress(name: Text, function: Out<FunctionPointer>, version: i32, flags: u64) {
        look_up(name, function, version, flags, None)
    }

    fn cuGetProcAddress_v2(name: Text, function: Out<FunctionPointer>, version: i32, flags: u64, status: Out<u32>) {
        look_up(name, function, version, flags, Some(status))
    }
}

fn look_up(
    name: Text,
    function: Out<FunctionPointer>,
    version: i32,
    flags: u64,
    status: Option<Out<u32>>,
) -> Answer {
    let name = name.string()?;
    function.check()?;
    if flags & !(LEGACY | PER_THREAD) != 0 || flags == LEGACY | PER_THREAD {
        return Err(Code::INVALID_VALUE);
    }
    let per_thread = flags == PER_THREAD;
    // The empty name asks whether there is a driver: it gets this very function.
    if name.is_empty() {
        if let Some(status) = status {
            status.put_if(FOUND);
        }
        let index = CUDA.index_of("cuGetProcAddress_v2").ok_or(Code::UNKNOWN)?;
        return function.put(target(index));
    }
    // What is newer than the driver is not in it.
    let version = u32::try_from(version.min(CUDA_VERSION)).unwrap_or(0);
    let found = CUDA.resolve(&name, version, per_thread);
    let outcome = match found {
        Some(_) => FOUND,
        None if is_known(&name) => TOO_NEW,
        None => UNKNOWN,
    };
    function.put(found.map_or(FunctionPointer(std::ptr::null()), target))?;
    match status {
        // The newer form tells in the status, and does not fail.
        Some(status) => {
            status.put_if(outcome);
            if found.is_none() && status.is_null() {
                return Err(Code::NOT_FOUND);
            }
            Ok(())
        }
        None if found.is_none() => Err(Code::NOT_FOUND),
        None => Ok(()),
    }
}

/// Does the driver have the function in some version?
fn is_known(name: &str) -> bool {
    CUDA.resolve(name, CUDA_VERSION as u32, true).is_some()
}
