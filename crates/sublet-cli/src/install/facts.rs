//! Reads the facts that `preflight` judges. It writes nothing but questions about the user's own
//! rights.

use std::collections::BTreeSet;

use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::core::ApiResource;
use serde_json::Value;
use sublet_client::{Client, list_whole, may};

use super::manifests::{self, Choices, Object};
use super::preflight::{self, Facts};
use crate::answer::{Advised, api_error};

/// Verbs that each object needs.
const WRITES: [&str; 4] = ["get", "create", "patch", "delete"];

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

/// Facts read from the cluster.
pub(super) struct Read {
    pub(super) facts: Facts,
    /// The extender's port, if it serves the cluster's own scheduler already.
    pub(super) default_scheduler: Option<u16>,
}

/// Reads a cluster.
///
/// # Errors
/// The API server cannot be reached, or refuses to list.
pub(super) async fn read(client: &Client, choices: &Choices) -> Result<Read, Advised> {
    let version = client.apiserver_version().await;
    let version = version.map_err(|error| api_error("cannot reach the API server", error))?;
    let objects = manifests::objects(choices);
    let mut facts = Facts {
        version: version.git_version,
        ..Facts::default()
    };
    rights(client, &objects, &mut facts).await?;
    if !facts.lacking.is_empty() {
        return Ok(Read {
            facts,
            default_scheduler: None,
        });
    }
    let deployments = all::<Deployment>(client, None).await?;
    let default_scheduler = deployments.iter().find_map(manifests::served_port);
    facts = Facts {
        nodes: all::<Node>(client, None).await?,
        daemon_sets: all::<DaemonSet>(client, None).await?,
        deployments,
        definitions: all::<CustomResourceDefinition>(client, None).await?,
        image: choices.image.clone(),
        kube_scheduler_image: choices.kube_scheduler_image.clone(),
        ..facts
    };
    facts.definitions.retain(|found| {
        let mut ours = objects
            .iter()
            .filter(|object| object.is("CustomResourceDefinition"));
        ours.any(|object| found["metadata"]["name"] == *object.address.name)
    });
    if facts.kube_scheduler_image.is_none() {
        let pods = all::<Pod>(client, Some("component=kube-scheduler")).await?;
        facts.kube_scheduler_image = preflight::scheduler_image(&pods);
    }
    Ok(Read {
        facts,
        default_scheduler,
    })
}

async fn rights(client: &Client, objects: &[Object], facts: &mut Facts) -> Result<(), Advised> {
    let refused = |error| api_error("cannot ask which rights you have", error);
    if may(client, "*", "*", "*").await.map_err(refused)? {
        facts.may_grant = true;
        return Ok(());
    }
    let mut needed = BTreeSet::new();
    for object in objects {
        let kind = &object.address.kind;
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

async fn all<K: kube::Resource<DynamicType = ()>>(
    client: &Client,
    labels: Option<&str>,
) -> Result<Vec<Value>, Advised> {
    let kind = ApiResource::erase::<K>(&());
    let listed = list_whole(client, &kind, None, labels).await;
    listed.map_err(|error| api_error(&format!("cannot list {}", kind.plural), error))
}
