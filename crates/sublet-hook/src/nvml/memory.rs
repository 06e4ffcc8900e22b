//! How much memory there is: what `cuMemGetInfo` says, in NVML's structs.
//!
//! The library is asked too and first, because it knows about wrong handles, wrong versions of
//! the struct and lost cards; then the three numbers are the tenant's.

use sublet_driver_api::nvml::*;

use super::devices::place;
use super::{real, seeing};

/// `nvmlDeviceGetMemoryInfo`.
///
/// # Safety
/// As NVIDIA documents.
pub unsafe extern "C" fn info<const ROW: usize>(
    device: nvmlDevice_t,
    memory: *mut nvmlMemory_t,
) -> nvmlReturn_t {
    // SAFETY: the row has this type, and the caller's arguments are passed on.
    let real = || unsafe {
        let real: unsafe extern "C" fn(nvmlDevice_t, *mut nvmlMemory_t) -> nvmlReturn_t =
            real::function(ROW);
        real(device, memory)
    };
    seeing(real, |view| match place(view, device) {
        Err(error) => error,
        Ok(place) => {
            let result = real();
            // SAFETY: null, or what the library just wrote to.
            let memory = unsafe { memory.as_mut() };
            if let Some(memory) = memory.filter(|_| result == NVML_SUCCESS) {
                let seen = view.memory(place);
                (memory.total, memory.used, memory.free) = (seen.total, seen.used, seen.free);
            }
            result
        }
    })
}

/// `nvmlDeviceGetMemoryInfo_v2`. What the driver reserves for itself is the whole card's and no
/// tenant's: 0, so that used and free make up the total.
///
/// # Safety
/// As NVIDIA documents.
pub unsafe extern "C" fn info_v2<const ROW: usize>(
    device: nvmlDevice_t,
    memory: *mut nvmlMemory_v2_t,
) -> nvmlReturn_t {
    // SAFETY: the row has this type, and the caller's arguments are passed on.
    let real = || unsafe {
        let real: unsafe extern "C" fn(nvmlDevice_t, *mut nvmlMemory_v2_t) -> nvmlReturn_t =
            real::function(ROW);
        real(device, memory)
    };
    seeing(real, |view| match place(view, device) {
        Err(error) => error,
        Ok(place) => {
            let result = real();
            // SAFETY: null, or what the library just wrote to.
            let memory = unsafe { memory.as_mut() };
            if let Some(memory) = memory.filter(|_| result == NVML_SUCCESS) {
                let seen = view.memory(place);
                (memory.total, memory.used, memory.free) = (seen.total, seen.used, seen.free);
                memory.reserved = 0;
            }
            result
        }
    })
}
