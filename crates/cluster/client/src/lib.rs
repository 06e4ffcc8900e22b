//! The API server as Sublet's processes call it: slim lists and watches, one writer of objects, one
//! of events, and whole objects for commands that set a cluster up.
//!
//! It moves bytes and decides nothing: what an answer means is for `sublet-plan`. Objects
//! are read into `sublet_api::object`, so fields nobody uses are never kept.
//!
//! # Modules
//! - `slim`: lists and watches that read only the fields we need.
//! - `write`: writes of any object as data: create, replace, server-side apply and patches, also of
//!   a status, evictions and the Binding of a pod. `event`: what events are made of.
//! - `whole`: objects of any kind, for `sublet install`; their names, for completion.
//! - `agent_port`: the way to an agent's port through the API server.

mod agent_port;
mod event;
mod slim;
mod whole;
mod write;

use std::path::Path;

use anyhow::Context;
use kube::config::{KubeConfigOptions, Kubeconfig};

pub use agent_port::{AgentConnection, AgentPod, find_agent};
pub use event::{EventText, event, event_address, pod_reference, reference, warning};
pub use kube::Client;
pub use slim::{
    Budgets, Change, ConfigMaps, ElasticQuotas, Flavors, GangPlans, Namespaces, Nodes, ObjectKind,
    PluginQuotas, PodWire, Pods, Quotas, SharePodWire, SharePods, is_unknown_kind, list, read_node,
    read_pod, watch, watch_any, watch_definitions, watch_some,
};
pub use whole::{list_names, list_whole, may};
pub use write::{Act, ObjectAddress, Write, WriteError, perform, perform_returning, read_object};

/// Connects by that kubeconfig file, else by `KUBECONFIG`, `~/.kube/config` or the pod's own
/// service account, as kubectl does.
///
/// # Errors
/// No usable configuration, and the places that were tried.
pub async fn connect(kubeconfig: Option<&Path>) -> anyhow::Result<Client> {
    let config = match kubeconfig {
        Some(file) => {
            let text = Kubeconfig::read_from(file)
                .with_context(|| format!("cannot read kubeconfig {}", file.display()))?;
            kube::Config::from_custom_kubeconfig(text, &KubeConfigOptions::default())
                .await
                .with_context(|| format!("cannot use kubeconfig {}", file.display()))?
        }
        None => kube::Config::infer()
            .await
            .context("no cluster to talk to: give --kubeconfig FILE or set KUBECONFIG")?,
    };
    Client::try_from(config).context("cannot set up a connection to the API server")
}
