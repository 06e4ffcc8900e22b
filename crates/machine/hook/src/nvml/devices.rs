//! The visible cards: the tenant's, in the order of its list.
//!
//! Handles are the library's own and stay unchanged; only the choice of handles and their indices
//! change. `CUDA_VISIBLE_DEVICES` plays no part, as NVML knows nothing of it. A card that is not
//! the tenant's is not found, as on a machine without that card.

use std::ffi::{CStr, CString, c_char};

use sublet_abi::{ControlPage, DeviceIndex, Uuid};
use sublet_driver_api::nvml::*;

use super::view::View;
use super::{lists, real, row, seeing, seeing_own};
use crate::real::{Like, Row};
use crate::visible;

/// The library's longest UUID, with its end (`NVML_DEVICE_UUID_V2_BUFFER_SIZE`).
const UUID_BYTES: usize = 96;

/// Returns the tenant's device of a handle.
///
/// # Errors
/// The library's error for an invalid handle. A handle of a device that is not the tenant's counts
/// as invalid.
pub fn place(view: &View, handle: nvmlDevice_t) -> Result<DeviceIndex, nvmlReturn_t> {
    let control = view.control();
    if let Some(device) = uuid_of(handle)?.and_then(|uuid| control.find(&uuid)) {
        return Ok(device);
    }
    // An instance of a card that is split by MIG belongs to whom the card belongs to.
    let mut card = nvmlDevice_t::default();
    // SAFETY: writes the handle it is given.
    let result =
        unsafe { real::nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle, &raw mut card) };
    if result == NVML_SUCCESS
        && card != handle
        && let Some(device) = uuid_of(card)?.and_then(|uuid| control.find(&uuid))
    {
        return Ok(device);
    }
    Err(NVML_ERROR_INVALID_ARGUMENT)
}

fn uuid_of(handle: nvmlDevice_t) -> Result<Option<Uuid>, nvmlReturn_t> {
    let mut text: [c_char; UUID_BYTES] = [0; UUID_BYTES];
    // SAFETY: writes at most so many bytes.
    let result = unsafe { real::nvmlDeviceGetUUID(handle, text.as_mut_ptr(), UUID_BYTES as u32) };
    if result != NVML_SUCCESS {
        return Err(result);
    }
    text[UUID_BYTES - 1] = 0;
    // SAFETY: terminated at the latest by the zero above.
    let text = unsafe { CStr::from_ptr(text.as_ptr()) };
    Ok(text.to_str().ok().and_then(parse_uuid))
}

/// `GPU-` or `MIG-` and 32 hex digits in groups.
fn parse_uuid(text: &str) -> Option<Uuid> {
    let digits = text
        .strip_prefix("GPU-")
        .or_else(|| text.strip_prefix("MIG-"))?;
    let mut digits = digits.chars().filter(|&digit| digit != '-');
    let mut uuid = Uuid::default();
    for byte in &mut uuid {
        let high = digits.next()?.to_digit(16)?;
        let low = digits.next()?.to_digit(16)?;
        *byte = (high << 4 | low) as u8; // two digits
    }
    digits.next().is_none().then_some(uuid)
}

fn count_of(control: &ControlPage) -> u32 {
    control.devices().count() as u32 // at most sixteen
}

fn handle_of(uuid: &Uuid) -> Result<nvmlDevice_t, nvmlReturn_t> {
    let text = visible::text_of(uuid);
    let mut result = NVML_ERROR_NOT_FOUND;
    for text in [text.clone(), text.replacen("GPU-", "MIG-", 1)] {
        let Ok(text) = CString::new(text) else {
            continue;
        };
        let mut device = nvmlDevice_t::default();
        // SAFETY: a terminated text; writes the handle it is given.
        result = unsafe { real::nvmlDeviceGetHandleByUUID(text.as_ptr(), &raw mut device) };
        match result {
            NVML_SUCCESS => return Ok(device),
            NVML_ERROR_NOT_FOUND | NVML_ERROR_INVALID_ARGUMENT => {}
            error => return Err(error),
        }
    }
    Err(result)
}

/// `nvmlDeviceGetCount`.
///
/// # Safety
/// As NVIDIA documents.
pub unsafe extern "C" fn count<R: Like<row::nvmlDeviceGetCount>>(count: *mut u32) -> nvmlReturn_t {
    // SAFETY: the caller's arguments are passed on.
    let real = || unsafe { R::call((count,)) };
    seeing(real, |view| {
        let result = real();
        if result == NVML_SUCCESS && !count.is_null() {
            // SAFETY: not null, and the library just wrote there.
            unsafe { count.write(count_of(view.control())) };
        }
        result
    })
}

/// `nvmlDeviceGetHandleByIndex`.
///
/// # Safety
/// As NVIDIA documents.
pub unsafe extern "C" fn by_index<R: Like<row::nvmlDeviceGetHandleByIndex>>(
    index: u32,
    device: *mut nvmlDevice_t,
) -> nvmlReturn_t {
    // SAFETY: the caller's arguments are passed on.
    let real = || unsafe { R::call((index, device)) };
    seeing(real, |view| {
        let control = view.control();
        let mut listed = control.devices();
        match listed.nth(index as usize) {
            Some((_, entry)) if !device.is_null() => match handle_of(&entry.uuid()) {
                Ok(handle) => {
                    // SAFETY: not null, and the caller says it can be written.
                    unsafe { device.write(handle) };
                    NVML_SUCCESS
                }
                Err(error) => error,
            },
            _ => once_initialised(NVML_ERROR_INVALID_ARGUMENT),
        }
    })
}

/// An answer of ours. Before `nvmlInit` each call has to say so instead.
pub(super) fn once_initialised(answer: nvmlReturn_t) -> nvmlReturn_t {
    let mut count = 0_u32;
    // SAFETY: writes the number it is given.
    match unsafe { real::nvmlDeviceGetCount_v2(&raw mut count) } {
        NVML_SUCCESS => answer,
        error => error,
    }
}

/// `nvmlDeviceGetHandleByUUID`, `…UUIDV`, `…PciBusId`, `…Serial`: whatever the key is, the
/// library finds the device, and it is kept back if it is not the tenant's.
///
/// # Safety
/// As NVIDIA documents.
pub unsafe extern "C" fn by_key<K, R>(key: *const K, device: *mut nvmlDevice_t) -> nvmlReturn_t
where
    R: Row<Arguments = (*const K, *mut nvmlDevice_t), Result = nvmlReturn_t>,
{
    let real = |found: *mut nvmlDevice_t| {
        // SAFETY: the caller's arguments are passed on.
        unsafe { R::call((key, found)) }
    };
    seeing(
        || real(device),
        |view| {
            let mut found = nvmlDevice_t::default();
            if device.is_null() {
                return real(device);
            }
            match real(&raw mut found) {
                NVML_SUCCESS => {}
                error => return error,
            }
            if place(view, found).is_err() {
                return NVML_ERROR_NOT_FOUND;
            }
            // SAFETY: not null, and the caller says it can be written.
            unsafe { device.write(found) };
            NVML_SUCCESS
        },
    )
}

/// `nvmlDeviceGetIndex`. The minor number stays the machine's: it names a file.
///
/// # Safety
/// As NVIDIA documents.
pub unsafe extern "C" fn index<R: Like<row::nvmlDeviceGetIndex>>(
    device: nvmlDevice_t,
    index: *mut u32,
) -> nvmlReturn_t {
    // SAFETY: the caller's arguments are passed on.
    let real = || unsafe { R::call((device, index)) };
    seeing_own(device, real, |_, place| {
        let result = real();
        if result == NVML_SUCCESS && !index.is_null() {
            // SAFETY: not null, and the library just wrote there.
            unsafe { index.write(place.get()) };
        }
        result
    })
}

/// `nvmlDeviceGetTopologyNearestGpus`.
///
/// # Safety
/// As NVIDIA documents.
pub unsafe extern "C" fn nearest<R: Like<row::nvmlDeviceGetTopologyNearestGpus>>(
    device: nvmlDevice_t,
    level: nvmlGpuTopologyLevel_t,
    count: *mut u32,
    devices: *mut nvmlDevice_t,
) -> nvmlReturn_t {
    let real = |count: *mut u32, devices: *mut nvmlDevice_t| {
        // SAFETY: the caller's arguments are passed on.
        unsafe { R::call((device, level, count, devices)) }
    };
    // SAFETY: as the caller says.
    seeing(
        || real(count, devices),
        |view| unsafe { those_of(view, &real, count, devices) },
    )
}

/// `nvmlSystemGetTopologyGpuSet`.
///
/// # Safety
/// As NVIDIA documents.
pub unsafe extern "C" fn near_cpu<R: Like<row::nvmlSystemGetTopologyGpuSet>>(
    cpu: u32,
    count: *mut u32,
    devices: *mut nvmlDevice_t,
) -> nvmlReturn_t {
    let real = |count: *mut u32, devices: *mut nvmlDevice_t| {
        // SAFETY: the caller's arguments are passed on.
        unsafe { R::call((cpu, count, devices)) }
    };
    // SAFETY: as the caller says.
    seeing(
        || real(count, devices),
        |view| unsafe { those_of(view, &real, count, devices) },
    )
}

/// The tenant's among some devices: these functions first want a 0 to tell the number.
///
/// # Safety
/// `count` and `devices` as NVIDIA documents.
unsafe fn those_of(
    view: &View,
    real: &dyn Fn(*mut u32, *mut nvmlDevice_t) -> nvmlReturn_t,
    count: *mut u32,
    devices: *mut nvmlDevice_t,
) -> nvmlReturn_t {
    let mut number = 0;
    let result = real(&raw mut number, std::ptr::null_mut());
    if result != NVML_SUCCESS {
        return result;
    }
    let mut list = vec![nvmlDevice_t::default(); number as usize];
    if number > 0 {
        let result = real(&raw mut number, list.as_mut_ptr());
        if result != NVML_SUCCESS {
            return result;
        }
    }
    list.truncate(number as usize);
    // SAFETY: as the caller says.
    unsafe { lists::answer_first(&own_of(list, view), count, devices) }
}

fn own_of(mut list: Vec<nvmlDevice_t>, view: &View) -> Vec<nvmlDevice_t> {
    list.retain(|&device| place(view, device).is_ok());
    list
}

/// `nvmlUnitGetDevices`.
///
/// # Safety
/// As NVIDIA documents.
pub unsafe extern "C" fn of_unit<R: Like<row::nvmlUnitGetDevices>>(
    unit: nvmlUnit_t,
    count: *mut u32,
    devices: *mut nvmlDevice_t,
) -> nvmlReturn_t {
    let real = |count: *mut u32, devices: *mut nvmlDevice_t| {
        // SAFETY: the caller's arguments are passed on.
        unsafe { R::call((unit, count, devices)) }
    };
    seeing(
        || real(count, devices),
        |view| {
            let keep = |list| own_of(list, view);
            // SAFETY: as the caller says.
            unsafe { lists::answer_kept(real, keep, count, devices) }
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uuids_are_read_as_the_library_writes_them() {
        let uuid: Uuid = std::array::from_fn(|index| index as u8 * 17);
        let text = visible::text_of(&uuid);
        assert_eq!(parse_uuid(&text), Some(uuid));
        assert_eq!(parse_uuid(&text.replace("GPU", "MIG")), Some(uuid));
        for wrong in [
            "",
            "GPU-",
            &text[4..],
            &text[..39],
            &format!("{text}0"),
            "GPU-zz112233-4455-6677-8899-aabbccddeeff",
            "MIG-GPU-00112233-4455-6677-8899-aabbccddeeff/1/0",
        ] {
            assert_eq!(parse_uuid(wrong), None, "{wrong}");
        }
    }
}
