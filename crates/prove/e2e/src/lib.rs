//! End-to-end tests: the product's one binary beside a stock control plane, with exactly the
//! rights and the scheduler configuration that `deploy/kubernetes/` ships.
//!
//! Tests that need no cluster run on one machine (`one_machine`), without a control plane.
//!
//! The tests are in `tests/`, and this crate has what they share. Nothing in it reaches into the
//! product: it reads what a user could read and runs what a user would run.

pub mod audit;
mod gpu_node;
pub mod interposer;
mod mps_control;
pub mod one_machine;
mod pod_stream;
pub mod real_driver;
mod recorder;
mod takeover;
mod world;
pub mod yaml;

pub use gpu_node::{AGENT, Environment, GpuNode, TWO_CARDS, parse_environment};
pub use mps_control::MpsControl;
pub use pod_stream::PodStream;
pub use recorder::{Happened, Recorder, Seen};
pub use takeover::{Blow, Struck};
pub use world::{Lease, Placed, World, binaries, eventually, install_device_crd};
