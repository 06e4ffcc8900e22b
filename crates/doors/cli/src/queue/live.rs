//! The objects of a live cluster that the queue looks at, read once.

use std::path::Path;

use kube::core::{ApiResource, GroupVersionKind};
use serde_json::{Value, json};
use sublet_api::group::group_apis;
use sublet_client::{Client, list_whole};

use crate::answer::{api_error, connected};
use crate::plan::Input;

/// Reads them, and says which namespace is the current one. Kinds that the cluster does not know
/// have no objects; kinds that this user may not list are told.
pub(super) async fn read(kubeconfig: Option<&Path>) -> anyhow::Result<(Input, String)> {
    let client = connected(kubeconfig, Some("queue")).await?;
    let namespace = client.default_namespace().to_owned();
    let mut input = Input::default();
    for (api, kind, plural) in [("v1", "Node", "nodes"), ("v1", "Pod", "pods")] {
        let found = list(&client, api, kind, plural).await;
        let found = found.map_err(|error| api_error(&format!("cannot list {plural}"), error))?;
        input.read(plural, &found);
    }
    for (api, kind, plural) in others() {
        match list(&client, &api, kind, plural).await {
            Ok(found) => input.read(&format!("{plural} of {api}"), &found),
            Err(error) => input.notes.push(format!(
                "warning: {plural} of {api} cannot be listed: {error}"
            )),
        }
    }
    Ok((input, namespace))
}

/// Group and version, kind and plural of everything that need not be there.
fn others() -> Vec<(String, &'static str, &'static str)> {
    let mut kinds = vec![
        ("v1".to_owned(), "Namespace", "namespaces"),
        ("sublet.dev/v1alpha1".to_owned(), "GangPlan", "gangplans"),
        (
            "policy/v1".to_owned(),
            "PodDisruptionBudget",
            "poddisruptionbudgets",
        ),
    ];
    for group in ["scheduling.sigs.k8s.io", "scheduling.x-k8s.io"] {
        kinds.push((format!("{group}/v1alpha1"), "ElasticQuota", "elasticquotas"));
    }
    let apis = group_apis().into_iter();
    kinds.extend(apis.map(|api| {
        let version = format!("{}/{}", api.group, api.version);
        (version, api.kind, api.plural)
    }));
    kinds
}

/// All objects of a kind as one document; the items of a list do not name their kind.
async fn list(client: &Client, api: &str, kind: &str, plural: &str) -> Result<String, kube::Error> {
    let (group, version) = api.split_once('/').unwrap_or(("", api));
    let kind_of = GroupVersionKind::gvk(group, version, kind);
    let resource = ApiResource::from_gvk_with_plural(&kind_of, plural);
    let mut items: Vec<Value> = list_whole(client, &resource, None, None).await?;
    for item in &mut items {
        item["apiVersion"] = json!(api);
        item["kind"] = json!(kind);
    }
    Ok(json!({"kind": "List", "items": items}).to_string())
}
