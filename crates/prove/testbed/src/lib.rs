//! A real Kubernetes control plane and a real node on loopback, and one machine without them.
//!
//! End-to-end tests, benchmarks and the demo all need the same: stock components that start in
//! seconds, live in a directory of their own, and are gone afterwards, even if the process that
//! started them is killed. This crate builds these components from the Go modules pinned in
//! `control-plane/` and `tools/` and runs them.
//!
//! It never calls the API server itself (`kubectl` does), never opens a port beyond loopback, and
//! links nothing of the product, which it only knows as one program and some manifests.
//!
//! # Modules
//! A real control plane and a real node on loopback, built from pinned Go modules into a cache
//! outside the checkout. A guard process removes every process, mount and folder even if the test
//! is killed. `go_module` fetches files of other projects, such as Koordinator's CRDs, out of
//! their own modules. `helm` is built the same way, in a cache entry of its own, and says what
//! the chart makes; `prometheus` too, for long tests alone.
//! `operators` builds and starts those of jobs: JobSet and LeaderWorkerSet for every test, the
//! MPI operator, the training operator, Trainer and KubeDL for long tests, and `kueue` for a
//! benchmark alone. `deployed` runs the
//! product with exactly the rights and configuration of `deploy/kubernetes/`.

pub mod bench;
mod build;
mod chart_values;
mod cluster;
mod components;
pub mod debian;
pub mod deployed;
mod form;
mod go_module;
mod guard;
mod helm;
mod kubectl;
mod kueue;
mod kwok;
mod loopback;
mod machine;
mod node;
mod node_config;
mod operators;
mod pki;
mod progress;
mod prometheus;
mod supervisor;

pub use build::{Binaries, control_plane, default_cache};
pub use chart_values::{chart_values, with_table_of_values};
pub use cluster::{Cluster, ClusterOptions};
pub use components::{APISERVER, CONTROLLERS, ETCD, GANG_FEATURE_GATES, KWOK};
pub use deployed::NAMESPACE_MANIFEST;
pub use form::{FORMS, PodForm};
pub use go_module::{GoModule, KOORDINATOR, MPI_JOB_FILES, SCHEDULER_PLUGINS, TRAINING_JOB_FILES};
pub use helm::{Helm, chart_folder};
pub use kueue::Kueue;
pub use kwok::kwok_node;
pub use loopback::{free_port, http_get};
pub use machine::Machine;
pub use node::{Node, NodeOptions};
pub use operators::{
    JOB_SET, KUBEDL, LEADER_WORKER_SET, MPI_OPERATOR, Operator, Operators, TRAINER,
    TRAINING_OPERATOR,
};
pub use pki::User;
pub use progress::Progress;
pub use prometheus::Prometheus;
pub use rustix::process::Signal;
pub use supervisor::keeps_files;
