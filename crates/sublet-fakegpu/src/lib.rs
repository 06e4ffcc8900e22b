//! A machine with GPUs that is not there.
//!
//! Read [`spec`] (the parts of a machine), [`machine`] (the file that its processes share: memory,
//! time, living processes), then `driver` (the driver's state inside one process) and `cuda` (the
//! functions of libcuda, which only translate). The cdylib `sublet_fakecuda` exports those
//! functions as `libcuda.so.1`.
#![expect(
    unsafe_code,
    reason = "stands in for a C library: raw pointers are its interface, mappings its memory"
)]

#[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
compile_error!("the fake driver is for Linux on x86-64 only");

pub mod cuda;
mod driver;
mod fault;
mod function_pointer;
pub mod machine;
pub mod nvml;
mod product;
pub mod spec;
mod trace;

pub use function_pointer::FunctionPointer;
pub use machine::{CardInfo, CardUse, FakeMachine, MachineError, ProcessUse, Registration};
pub use spec::{Spec, SpecError};
