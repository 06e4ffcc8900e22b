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
//! Suggested reading order: [`admin`], `machine_folder`, `lock`, `peer`, `closers`, `stamp`,
//! `host_lock`, `job_record`, `pages`, `job_pages`, `gpu`, [`gauge`], `mps_control`, `rows`,
//! `arbiter`, `standalone`; `unmanaged_gpus`, `holder`, `libraries`, `driver` and `visible_cards`
//! by themselves.
//!
//! # Modules
//! - `arbiter`: one thread around `sublet-share` that waits for sockets, pidfds and a clock.
//!   State that changes together is one struct in a file of its own: `jobs`, `processes`,
//!   `admin_connections`, `process_connections`, `readings`, `turns`, `measured`, `identity`
//!   (lock, epoch, numbers of jobs), `recorded` (jobs of before a restart), `mps`, `lifetime`,
//!   `sources` (the events that it waits for). `admin_connections` says which connections may
//!   stay: a job's connection stays, all others make room (`crowd`). `lobby` is a line for each
//!   user in place of the kernel's one line for all. `listeners` gives each user's processes a
//!   socket of their own, where everybody is served.
//! - `arbiter/turns` reads the processes' slots, asks `sublet-share` once for all of it (a
//!   *round*), and sets gates. Knocks, deaths and an alarm lead to a round; rounds keep a
//!   distance, so that no tenant can take the arbiter's time. `arbiter/measured` sets the
//!   driver's figures of each process against that.
//! - `pages` makes and seals the shared pages. `peer` identifies a caller. `gpu` reads NVML from
//!   a thread of its own.
//! - `mps_control` runs NVIDIA's `nvidia-cuda-mps-control`: the daemon as a child, and words to
//!   it. Tests run it against a stand-in, `sublet-workload mps-control`, and with `cargo xtask test
//!   --all` against NVIDIA's own daemon, whose server was never run: it needs a card. It also tells
//!   which user the daemon's server serves.
//! - `gauge` measures the cost of a context and the driver's packing of memory, in a process of
//!   its own, before the first job.
//! - `visible_cards` asks the CUDA driver, in a process of its own, for the cards that
//!   `CUDA_VISIBLE_DEVICES` means.
//! - `admin`: the messages of `sublet run`, `ps`, `top` and `limit`. `unmanaged_gpus` shows the cards
//!   to commands that found no arbiter; `rows` makes the rows that both have.
//! - `holder`: what keeps an arbiter from starting, and which command ends that.
//! - `libraries`: copies our libraries, from inside the executable or from beside it, into
//!   folders named after their contents. `sublet run` and the agent use it.
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
pub mod holder;
mod host_lock;
mod job_pages;
mod job_record;
pub mod libraries;
mod lock;
mod machine_folder;
mod mps_control;
mod pages;
mod peer;
mod poller;
mod rows;
mod socket;
mod stamp;
mod standalone;
mod unmanaged_gpus;
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
pub use job_record::expects_jobs;
pub use machine_folder::{Audience, Folder, REAL_MACHINE};
pub use mps_control::MPS_CONTROL;
pub use peer::{Image, Stat, holder_of};
pub use stamp::ProcessStamp;
pub use standalone::{Standalone, run};
pub use unmanaged_gpus::UnmanagedGpus;
pub use visible_cards::visible_cards;
