//! Calls of the CUDA driver, for the processes of ours that ask it something and end. The
//! arbiter itself never loads it.

use std::mem::ManuallyDrop;
use std::path::{Path, PathBuf};

use libloading::Library;

/// Ways in which a call of the driver can fail.
#[derive(Debug, thiserror::Error)]
pub enum DriverError {
    /// One of the driver's libraries is not there.
    #[error("cannot load `{}`", .0.display())]
    NoDriver(PathBuf),
    /// A function is not there.
    #[error("the driver has no {0}")]
    Missing(&'static str),
    /// It refuses: the function, and its code.
    #[error("{0} failed with CUDA error {1}")]
    Refused(&'static str, u32),
}

/// Loads the driver. It is never unloaded: it may have started threads.
///
/// # Errors
/// There is no library at that path, or it cannot be loaded.
pub(crate) fn load(cuda: &Path) -> Result<ManuallyDrop<Library>, DriverError> {
    // SAFETY: the driver's library, whose constructors are the driver's business.
    let library = unsafe { Library::new(cuda) };
    let library = library.map_err(|_| DriverError::NoDriver(cuda.to_owned()))?;
    Ok(ManuallyDrop::new(library))
}

/// Calls a function of the driver. An error has the driver's own code.
macro_rules! call {
    ($library:expr, $name:ident($($argument:expr => $type:ty),*)) => {{
        // SAFETY: the types are those of the driver's header.
        let function = unsafe {
            $library.get::<unsafe extern "C" fn($($type),*) -> CUresult>(stringify!($name).as_bytes())
        };
        match function {
            // SAFETY: every pointer is to a live value of the caller's.
            Ok(function) => match unsafe { function($($argument),*) } {
                CUDA_SUCCESS => Ok(()),
                refused => Err(DriverError::Refused(stringify!($name), refused.0)),
            },
            Err(_) => Err(DriverError::Missing(stringify!($name))),
        }
    }};
}

pub(crate) use call;
