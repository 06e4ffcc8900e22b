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

/// Exported by NVIDIA's drivers, and found by none of their look-ups (R535, R550, R555).
const NEVER_FOUND: &str = "cuEventCreateFromEGLSync";

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
    if flags & !(LEGACY | PER_THREAD) != 0 {
        return Err(Code::INVALID_VALUE);
    }
    let per_thread = flags & PER_THREAD != 0;
    // What is newer than the driver is not in it. The driver compares without a sign.
    let newest = CUDA_VERSION.cast_unsigned();
    let found = CUDA.resolve(&name, version.cast_unsigned().min(newest), per_thread);
    let found = found.filter(|_| name != NEVER_FOUND);
    match status {
        // The newer form tells in the status, and does not fail.
        Some(status) => status.put_if(match found {
            Some(_) => FOUND,
            None if is_known(&name) => TOO_NEW,
            None => UNKNOWN,
        }),
        // The older one then leaves the program's variable as it was.
        None if found.is_none() => return Err(Code::NOT_FOUND),
        None => {}
    }
    function.put(found.map_or(FunctionPointer(std::ptr::null()), target))
}

/// Does the driver have the function in some version?
fn is_known(name: &str) -> bool {
    let newest = CUDA_VERSION.cast_unsigned();
    name != NEVER_FOUND && CUDA.resolve(name, newest, false).is_some()
}
