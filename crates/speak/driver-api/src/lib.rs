//! The functions of libcuda and libnvidia-ml as NVIDIA's headers declare them.
//!
//! A stand-in for a driver must export the driver's functions, answer look-ups by version as it
//! does, and lay out its structs as it does. This crate holds those facts and nothing else: no
//! library is loaded and no function called.
//!
//! Read [`table`] first: the list of functions. [`cuda`] and [`nvml`] are the types and constants
//! that Sublet itself reads or fills.
//!
//! # Where the facts come from
//! `cargo xtask driver-tables` writes `table/*.tsv` from the headers in NVIDIA's packages
//! `nvidia-cuda-runtime` and `nvidia-nvml-dev`, at pinned versions. They are names, versions,
//! signatures, sizes and offsets: facts that a program must share with the driver to be able to
//! talk to it. No text or code of the headers is copied.
//!
//! # Use from a `build.rs`
//! A crate that must write down one item for each function (a trampoline, an exported name)
//! takes this crate as a *build* dependency and walks [`CUDA`] or [`NVML`] in its `build.rs`.
//! A function's index in the array is the same there and at run time, so it can number a
//! table of targets. [`Function::prototype`] writes its signature in Rust.
//!
//! # Modules
//! Tables of every driver function by version, made from NVIDIA's headers by `cargo xtask
//! driver-tables`. C types, whose sizes and offsets are compared with a C compiler's.

mod as_in_c;
pub mod cuda;
#[cfg(test)]
mod layout;
pub mod nvml;
mod prototype;
pub mod table;

pub use as_in_c::Zeroed;
pub use table::{CUDA, CUDA_UNDECLARED, Function, NVML, Table, Thread};
