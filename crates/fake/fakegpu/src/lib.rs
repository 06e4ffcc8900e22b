//! A machine with GPUs that is not there.
//!
//! Read [`spec`] (the parts of a machine), [`machine`] (the file that its processes share: memory,
//! time, living processes), then `driver` (the driver's state inside one process) and `cuda` (the
//! functions of libcuda, which only translate). The cdylib `sublet_fakecuda` exports those
//! functions as `libcuda.so.1`.
//!
//! # Modules
//! One shared file holds a fake machine: its cards, who uses how much memory, and when each card
//! is busy. Processes find it by SPEC. Each holds a byte lock for its life, so that death frees
//! its memory as a driver would. `product` has the figures of products, for both libraries.
//! `driver` is what a driver keeps in a process. `cuda` and `nvml` translate calls. `driver` and
//! `cuda` have the same folders: context, device, graph, memory, module, sharing, stream.
//! `cuda/features` lists what is there and what is refused; the guide's table
//! (`docs/guide/fake-driver.md`) is made from it. It runs no GPU code. The CUDA runtime
//! goes as far as its check that the driver is NVIDIA's own, which the fake does not pass; `notice`
//! tells the process that has started the program.
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
pub mod notice;
pub mod nvml;
mod product;
pub mod spec;
mod trace;

pub use function_pointer::FunctionPointer;
pub use machine::registration::Registration;
pub use machine::{CardInfo, CardUse, FakeMachine, MachineError, ProcessUse};
pub use spec::{Spec, SpecError};
