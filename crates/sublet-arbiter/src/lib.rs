//! The node's referee: sockets, shared pages and processes around `sublet-share`.
//!
//! One arbiter manages one machine's cards. It hands each process of a job two shared pages
//! (`sublet-abi`), takes back the memory of dead processes, compares the driver's figures with
//! the pages', and answers people's commands. `sublet-share` makes the decisions. This crate
//! has one thread that waits for sockets, processes and a clock, and a second that asks the
//! driver, because the driver may take its time.
//!
//! No message of a tenant may end or stall it: sockets never block, queues are bounded, and a
//! client that misbehaves loses its own connection.
//!
//! Suggested reading order: [`admin`], `runtime`, `lock`, `peer`, `closers`, `stamp`, `host_lock`,
//! `job_record`, `pages`, `job_pages`, `gpu`,
//! [`gauge`], `mps_control`, `arbiter`, `standalone`; `libraries`, `driver` and `visible_cards` by themselves.
#![expect(
    unsafe_code,
    reason = "maps shared pages, asks the kernel for a peer's pidfd, has children end with it, asks the kernel to refuse descriptors, and calls the driver's C functions"
)]

pub mod admin;
mod arbiter;
mod closers;
mod driver;
mod error;
pub mod gauge;
mod gpu;
mod host_lock;
mod job_pages;
mod job_record;
pub mod libraries;
mod lock;
mod mps_control;
mod pages;
mod peer;
mod poller;
mod runtime;
mod socket;
mod stamp;
mod standalone;
mod visible_cards;

pub use arbiter::{
    Arbiter, ContainerCard, ContainerJob, ExclusiveSlices, Handle, HandleError, OPPORTUNISTIC_DUTY,
    Options, TimeSharing,
};
pub use driver::DriverError;
pub use error::ArbiterError;
pub use gauge::Gauge;
pub use gpu::{CUDA_LIBRARY, CardBusy, CardReading, GpuView, GpuViewError, NVML_LIBRARY, NvmlView};
pub use host_lock::HostPlace;
pub use mps_control::MPS_CONTROL;
pub use peer::{Image, Stat};
pub use runtime::{Audience, Folder, REAL_MACHINE};
pub use standalone::{Standalone, run};
pub use visible_cards::visible_cards;
