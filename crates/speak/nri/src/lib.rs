//! NRI, the socket on which a container runtime asks plugins about each container that it creates:
//! its pod, and the changes to make. The messages, the framing below them, and a plugin's side of a
//! connection ([`serve`]). Other crates decide the changes; nothing here knows a GPU.
//!
//! One connection carries two services (`frame`): the runtime calls the plugin on one, the plugin
//! the runtime on the other. The calls are ttrpc's, which is gRPC without HTTP.
//!
//! The code in `src/gen` is made from `proto/` by the test `generated` (run it with `UPDATE=1` to
//! rewrite it), so that a build needs neither `protoc` nor a build script.
//!
//! # Modules
//! - `frame`: messages of ttrpc on NRI's multiplexed connection. Bytes in, messages out.
//! - `plugin`: a plugin's side of one connection. Messages are generated from `proto/`, as for
//!   kubelet.

pub mod frame;
mod plugin;

pub use generated::{
    CdiDevice, ConfigureRequest, ConfigureResponse, Container, ContainerAdjustment, ContainerState,
    CreateContainerRequest, CreateContainerResponse, KeyValue, Mount, PodSandbox,
    RegisterPluginRequest, SynchronizeRequest, SynchronizeResponse,
};
pub use plugin::{NriError, NriPlugin, serve};
pub use ttrpc::{Request, Response, Status};

/// Socket on which runtimes listen for plugins, unless they are configured otherwise.
pub const DEFAULT_SOCKET: &str = "/var/run/nri/nri.sock";

/// A pod's annotation that names required plugins: without them the runtime creates none of its
/// containers. It is a list in YAML of the names under which they registered. The runtime's default
/// validator checks it, if that is enabled (nri v0.10.0, pkg/plugin/annotations.go).
pub const REQUIRED_PLUGINS: &str = "required-plugins.noderesource.dev";

#[rustfmt::skip]
#[path = "gen/nri.pkg.api.v1alpha1.rs"]
#[allow(
    missing_docs,
    unreachable_pub,
    unused_qualifications,
    clippy::all,
    clippy::semicolon_if_nothing_returned,
    reason = "generated; the words are NRI's, the form is prost's"
)]
mod generated;

#[rustfmt::skip]
#[path = "gen/ttrpc.rs"]
#[allow(
    missing_docs,
    unreachable_pub,
    unused_qualifications,
    clippy::all,
    clippy::semicolon_if_nothing_returned,
    reason = "generated; the words are ttrpc's, the form is prost's"
)]
mod ttrpc;
