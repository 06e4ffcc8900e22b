//! Reads the facts that `preflight` judges. It writes nothing but questions about the user's own
//! rights.

use std::collections::BTreeSet;

use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::core::{ApiResource, GroupVersionKind};
use serde_json::Value;
use sublet_client::{Client, list_whole, may};

use super::preflight::{self, Facts};
use super::values::Choices;
use super::{helm, manifests};
use crate::answer::{Advised, api_error};

/// Verbs that helm needs for each object.
const WRITES: [&str; 6] = ["get", "list", "watch", "create", "patch", "delete"];

/// Other kinds that are read.
fn listed() -> [ApiResource; 5] {
    [
        ApiResource::erase::<Node>(&()),
        ApiResource::erase::<Pod>(&()),
        ApiResource::erase::<Deployment>(&()),
        ApiResource::erase::<DaemonSet>(&()),
        ApiResource::erase::<CustomResourceDefinition>(&()),
    ]
}

/// Reads a cluster.
///
/// # Errors
/// The API server cannot be reached, or refuses to list.
pub(super) async fn read(client: &Client, choices: &Choices) -> Result<Facts, Advised> {
    let version = client.apiserver_version().await;
    let version = version.map_err(|error| api_error("cannot reach the API server", error))?;
    let objects: Vec<Value> = manifests::objects().collect();
    let mut facts = Facts {
        helm: helm::version(),
        version: version.git_version,
        ..Facts::default()
    };
    rights(client, &objects, &mut facts).await?;
    if !facts.lacking.is_empty() {
        return Ok(facts);
    }
    facts = Facts {
        nodes: all::<Node>(client, None).await?,
        daemon_sets: all::<DaemonSet>(client, None).await?,
        deployments: all::<Deployment>(client, None).await?,
        definitions: all::<CustomResourceDefinition>(client, None).await?,
        image: choices.image.as_ref().map(|image| image.name.clone()),
        kube_scheduler_image: choices
            .kube_scheduler_image
            .as_ref()
            .map(|image| image.name.clone()),
        ..facts
    };
    facts.definitions.retain(|found| {
        let mut ours = objects
            .iter()
            .filter(|object| object["kind"] == "CustomResourceDefinition");
        ours.any(|object| found["metadata"]["name"] == object["metadata"]["name"])
    });
    if facts.kube_scheduler_image.is_none() {
        let pods = all::<Pod>(client, Some("component=kube-scheduler")).await?;
        facts.kube_scheduler_image = preflight::scheduler_image(&pods);
    }
    Ok(facts)
}

async fn rights(client: &Client, objects: &[Value], facts: &mut Facts) -> Result<(), Advised> {
    let refused = |error| api_error("cannot ask which rights you have", error);
    if may(client, "*", "*", "*").await.map_err(refused)? {
        facts.may_grant = true;
        return Ok(());
    }
    let mut needed = BTreeSet::new();
    for object in objects {
        let kind = kind_of(object);
        needed.extend(WRITES.map(|verb| (kind.group.clone(), kind.plural.clone(), verb)));
    }
    needed.extend(listed().map(|kind| (kind.group, kind.plural, "list")));
    for (group, plural, verb) in needed {
        if !may(client, verb, &group, &plural).await.map_err(refused)? {
            let title = preflight::resource_title(&group, &plural);
            facts.lacking.push(format!("{verb} {title}"));
        }
    }
    facts.may_grant = may(
        client,
        "escalate",
        "rbac.authorization.k8s.io",
        "clusterroles",
    )
    .await
    .map_err(refused)?;
    Ok(())
}

fn kind_of(object: &Value) -> ApiResource {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let version = text(&object["apiVersion"]);
    let (group, version) = version.split_once('/').unwrap_or(("", &version));
    ApiResource::from_gvk(&GroupVersionKind::gvk(
        group,
        version,
        &text(&object["kind"]),
    ))
}

async fn all<K: kube::Resource<DynamicType = ()>>(
    client: &Client,
    labels: Option<&str>,
) -> Result<Vec<Value>, Advised> {
    let kind = ApiResource::erase::<K>(&());
    let listed = list_whole(client, &kind, None, labels).await;
    listed.map_err(|error| api_error(&format!("cannot list {}", kind.plural), error))
}
