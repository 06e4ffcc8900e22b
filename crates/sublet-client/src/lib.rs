//! The API server as Sublet's processes call it: slim lists and watches, the one write that
//! binds a pod, patches of annotations, events, writes of any object (`any`), and whole objects for
//! commands that set a cluster up (`whole`).
//!
//! It moves bytes and decides nothing: what an answer means is for `sublet-plan`. Objects
//! are read into `sublet_api::object`, so fields nobody uses are never kept.
//!
//! # Modules
//! Lists and watches that read only the fields we need, the Binding, patches, events. `any`:
//! writes of any object as data (create, replace, server-side apply, also of a status). `whole`:
//! objects of any kind, for `sublet install`. It decides nothing.

mod agent_port;
mod any;
mod slim;
mod whole;
mod write;

use std::path::Path;

use anyhow::Context;
use kube::config::{KubeConfigOptions, Kubeconfig};

pub use agent_port::{AgentConnection, AgentPod, find_agent};
pub use any::{Act, ObjectAddress, Write, perform, perform_returning, read_object};
pub use kube::Client;
pub use slim::{
    Budgets, Change, ConfigMaps, ElasticQuotas, Flavors, GangPlans, Namespaces, Nodes, ObjectKind,
    PluginQuotas, PodWire, Pods, Quotas, SharePodWire, SharePods, is_unknown_kind, list, read_node,
    read_pod, watch, watch_any, watch_definitions, watch_some,
};
pub use whole::{apply_whole, delete_whole, list_whole, may, merge_whole};
pub use write::{
    EventText, PodEvent, WriteError, bind_pod, patch_node_annotations, patch_node_capacity,
    patch_pod_annotations, post_node_event, post_pod_event,
};

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
