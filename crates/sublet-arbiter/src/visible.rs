//! Which cards CUDA shows a program, and in which order, as the driver itself answers. Where
//! numbers name cards CUDA counts the fastest first, and how fast a card is only the driver
//! knows; it also has rules of its own for `CUDA_VISIBLE_DEVICES`.
//!
//! For a process of its own: the driver reads the environment once, and what it opens and starts
//! stays. It makes no context, so that the process takes no memory of a card.

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::fmt::Write as _;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Why the driver does not say it.
#[derive(Debug, thiserror::Error)]
pub enum VisibleError {
    /// The library cannot be loaded, or is no CUDA driver.
    #[error("{}: {why}", library.display())]
    NoDriver {
        /// The library.
        library: PathBuf,
        /// What the loader said.
        why: String,
    },
    /// A call failed.
    #[error("{call} failed with error {code}")]
    Call {
        /// The function.
        call: &'static str,
        /// The driver's number for what is wrong.
        code: c_int,
    },
}

/// What `cuInit` says where no card may be seen.
const NO_DEVICE: c_int = 100;

/// The UUIDs of the cards that this process's environment lets CUDA show, in CUDA's order.
///
/// # Errors
/// There is no driver at that path, or it does not answer.
pub fn visible_cards(library: &Path) -> Result<Vec<String>, VisibleError> {
    let driver = Driver::load(library)?;
    let init: unsafe extern "C" fn(c_uint) -> c_int = driver.function(c"cuInit")?;
    let get_count: unsafe extern "C" fn(*mut c_int) -> c_int =
        driver.function(c"cuDeviceGetCount")?;
    let get: unsafe extern "C" fn(*mut c_int, c_int) -> c_int = driver.function(c"cuDeviceGet")?;
    // The first version names the card that an instance of MIG is on, and not the instance.
    let get_uuid: unsafe extern "C" fn(*mut [u8; 16], c_int) -> c_int = driver
        .function(c"cuDeviceGetUuid_v2")
        .or_else(|_| driver.function(c"cuDeviceGetUuid"))?;
    let mut count = 0;
    // SAFETY: as cuda.h declares it.
    match unsafe { init(0) } {
        NO_DEVICE => return Ok(Vec::new()),
        code => checked("cuInit", code)?,
    }
    // SAFETY: as cuda.h declares it; the number lives through the call.
    checked("cuDeviceGetCount", unsafe { get_count(&raw mut count) })?;
    let mut cards = Vec::new();
    for ordinal in 0..count {
        let (mut device, mut uuid) = (0, [0; 16]);
        // SAFETY: as above.
        checked("cuDeviceGet", unsafe { get(&raw mut device, ordinal) })?;
        // SAFETY: as above; a `CUuuid` is these sixteen bytes.
        let code = unsafe { get_uuid(&raw mut uuid, device) };
        checked("cuDeviceGetUuid", code)?;
        cards.push(text_of(&uuid));
    }
    Ok(cards)
}

fn checked(call: &'static str, code: c_int) -> Result<(), VisibleError> {
    match code {
        0 => Ok(()),
        code => Err(VisibleError::Call { call, code }),
    }
}

/// A UUID as `nvidia-smi` prints it.
fn text_of(uuid: &[u8; 16]) -> String {
    let mut text = "GPU-".to_owned();
    for (at, byte) in uuid.iter().enumerate() {
        if matches!(at, 4 | 6 | 8 | 10) {
            text.push('-');
        }
        let _never_fails = write!(text, "{byte:02x}");
    }
    text
}

/// The driver's library. It is never unloaded: it may have started threads.
struct Driver<'a> {
    library: &'a Path,
    handle: *mut c_void,
}

impl Driver<'_> {
    fn load(library: &Path) -> Result<Driver<'_>, VisibleError> {
        let name = CString::new(library.as_os_str().as_bytes()).unwrap_or_default();
        // SAFETY: the name lives through the call. What a library does when it is loaded is its
        // own affair, as with any program that loads it.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW) };
        if handle.is_null() {
            return Err(failed(library));
        }
        Ok(Driver { library, handle })
    }

    /// A function of that name, as the caller declares it.
    fn function<F: Copy>(&self, name: &CStr) -> Result<F, VisibleError> {
        const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
        // SAFETY: the handle is open, and the name lives through the call.
        let address = unsafe { libc::dlsym(self.handle, name.as_ptr()) };
        if address.is_null() {
            return Err(failed(self.library));
        }
        // SAFETY: of one size, as is checked above. That the function is so declared the caller
        // knows from cuda.h.
        Ok(unsafe { std::mem::transmute_copy(&address) })
    }
}

/// What the loader says of its last failure.
fn failed(library: &Path) -> VisibleError {
    // SAFETY: it returns nothing or a text that lives until the next call of the loader, on this
    // thread.
    let why = unsafe {
        let text: *const c_char = libc::dlerror();
        (!text.is_null()).then(|| CStr::from_ptr(text).to_string_lossy().into_owned())
    };
    VisibleError::NoDriver {
        library: library.to_owned(),
        why: why.unwrap_or_else(|| "it cannot be loaded".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_driver_is_told_with_its_path() {
        let error = |path: &str| visible_cards(Path::new(path)).unwrap_err().to_string();
        let absent = error("/nowhere/libcuda.so.1");
        assert!(absent.starts_with("/nowhere/libcuda.so.1: "), "{absent}");
        // A library that has none of the driver's functions.
        assert!(
            error("libc.so.6").contains("cuInit"),
            "{}",
            error("libc.so.6")
        );
    }

    #[test]
    fn a_uuid_is_written_as_the_tools_write_it() {
        let bytes = std::array::from_fn(|at| at as u8 * 0x11);
        assert_eq!(text_of(&bytes), "GPU-00112233-4455-6677-8899-aabbccddeeff");
    }
}
