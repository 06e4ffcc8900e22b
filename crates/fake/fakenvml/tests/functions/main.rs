//! The built library as programs use it: loaded by path, called as C, through the Rust
//! wrapper that the node agent uses, and through NVIDIA's Python binding.
//!
//! The library finds its machine by the environment, so each test runs once more in a
//! process of its own, which has the variables; see [`test_machine`].
#![expect(unsafe_code, reason = "calls a C library")]

mod process;
mod python;
mod raw;
mod test_machine;
mod wrapper;
