//! The cards that CUDA shows a program, in CUDA's order, as the driver itself answers. CUDA
//! numbers the fastest card first, and only the driver knows the speed of a card. It also has
//! rules of its own for `CUDA_VISIBLE_DEVICES`.
//!
//! This needs a process of its own: the driver reads the environment once, and never closes what
//! it opens. It makes no context, so that the process takes no memory of a card.

use std::ffi::{c_int, c_uint};
use std::fmt::Write as _;
use std::path::Path;

use sublet_driver_api::cuda::{CUDA_ERROR_NO_DEVICE, CUDA_SUCCESS, CUdevice, CUresult, CUuuid};

use crate::driver::{DriverError, call, load};

/// The UUIDs of the cards that this process's environment lets CUDA show, in CUDA's order.
///
/// # Errors
/// There is no driver at that path, or it does not answer.
pub fn visible_cards(cuda: &Path) -> Result<Vec<String>, DriverError> {
    let library = load(cuda)?;
    match call!(library, cuInit(0 => c_uint)) {
        Err(DriverError::Refused(_, code)) if code == CUDA_ERROR_NO_DEVICE.0 => {
            return Ok(Vec::new());
        }
        other => other?,
    }
    let mut count = 0;
    call!(library, cuDeviceGetCount(&raw mut count => *mut c_int))?;
    let mut cards = Vec::new();
    for ordinal in 0..count {
        let (mut device, mut uuid) = (CUdevice::default(), CUuuid::default());
        call!(library, cuDeviceGet(&raw mut device => *mut CUdevice, ordinal => c_int))?;
        let found = call!(
            library,
            cuDeviceGetUuid_v2(&raw mut uuid => *mut CUuuid, device => CUdevice)
        );
        match found {
            // Before CUDA 11.4: an instance of MIG had the name of its card.
            Err(DriverError::Missing(_)) => call!(
                library,
                cuDeviceGetUuid(&raw mut uuid => *mut CUuuid, device => CUdevice)
            )?,
            found => found?,
        }
        cards.push(text_of(uuid.bytes));
    }
    Ok(cards)
}

/// A UUID as `nvidia-smi` prints it.
fn text_of(uuid: [u8; 16]) -> String {
    let mut text = "GPU-".to_owned();
    for (at, byte) in uuid.iter().enumerate() {
        if matches!(at, 4 | 6 | 8 | 10) {
            text.push('-');
        }
        let _never_fails = write!(text, "{byte:02x}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_driver_is_told_with_what_is_missing() {
        let error = |path: &str| visible_cards(Path::new(path)).unwrap_err().to_string();
        let absent = error("/nowhere/libcuda.so.1");
        assert_eq!(absent, "cannot load `/nowhere/libcuda.so.1`");
        assert_eq!(error("libc.so.6"), "the driver has no cuInit");
    }

    #[test]
    fn a_uuid_is_written_as_the_tools_write_it() {
        let bytes = std::array::from_fn(|at| at as u8 * 0x11);
        assert_eq!(text_of(bytes), "GPU-00112233-4455-6677-8899-aabbccddeeff");
    }
}
