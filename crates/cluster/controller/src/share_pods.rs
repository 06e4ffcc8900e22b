//! The controller of SharePods, KubeShare 1's own kind of object: it makes a pod of each.
//!
//! The pod has the SharePod's name and spec, and its annotations carry the request (the dialect
//! `sharepod`), so the scheduler places it as any other pod. The pod's state is copied into the
//! SharePod's status, in KubeShare's form. The garbage collector takes the pod with its SharePod; a
//! pod that is gone without having ended is made again, as KubeShare's controller did.
//!
//! `pod_of` also judges a SharePod when it is created (`webhook`): the words are the same.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{
    Affinity, NodeSelectorRequirement, NodeSelectorTerm, Pod as PodKind,
};
use kube::runtime::reflector::ObjectRef;
use kube::runtime::{Controller, watcher};
use kube::{Api, Client, Resource};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use sublet_api::dialect::{ClaimError, asked_by, result_keys};
use sublet_api::object::{Meta, Pod};
use sublet_api::{SharePod, allocation_from_json, flavor_of, keys, scheduler_of};
use sublet_client::{
    Act, ObjectAddress, PodWire, SharePodWire, Write, event, read_object, reference,
};
use sublet_model::GpuUuid;

use crate::admission::{AdmissionError, AdmissionRules, admit};
use crate::flavors::KnownFlavors;
use crate::known::Known;
use crate::shell::{Control, Decision};

/// Pause before another look at a SharePod without a pod: nothing may tell when the obstacle goes.
const AGAIN: Duration = Duration::from_secs(30);

/// When the API server is asked again that did not answer.
const ASK_AGAIN: Duration = Duration::from_secs(1);

/// Annotations of a SharePod that mean nothing without an amount in KubeShare's form.
const WISHES: [&str; 4] = [
    keys::SHAREPOD_GPU,
    keys::SHAREPOD_AFFINITY,
    keys::SHAREPOD_ANTI_AFFINITY,
    keys::SHAREPOD_EXCLUSION,
];

/// Annotation in which `kubectl apply` keeps what it wrote: about the SharePod, not about its pod.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// Reason why no pod is made of a SharePod.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SharePodError {
    /// It asks for a part of a GPU, and its scheduler knows none.
    #[error(
        "`spec.schedulerName` is `{0}`, which does not ask Sublet, so the pod would get no GPU: \
         leave it out, or write `{1}`"
    )]
    Scheduler(String, String),
    /// It asks where it wants to be, and not for a part of a card in KubeShare's form.
    #[error(
        "`{0}` is there, and counts only beside `{limit}`, `{request}` and `{memory}`: add them, or \
         leave it out",
        limit = keys::SHAREPOD_LIMIT, request = keys::SHAREPOD_REQUEST,
        memory = keys::SHAREPOD_MEMORY
    )]
    WishAlone(&'static str),
    /// Its node cannot be put there.
    #[error("`spec.affinity` cannot be read: {0}")]
    Affinity(serde_json::Error),
    /// As for any pod.
    #[error(transparent)]
    Pod(#[from] AdmissionError),
}

impl From<ClaimError> for SharePodError {
    fn from(error: ClaimError) -> SharePodError {
        SharePodError::Pod(error.into())
    }
}

/// The pod of a SharePod. `labels`: its namespace's.
///
/// # Errors
/// It asks for something that cannot be served.
pub(crate) fn pod_of(
    share_pod: &SharePod,
    labels: &BTreeMap<String, String>,
    flavors: Option<&KnownFlavors>,
    rules: &AdmissionRules,
) -> Result<Value, SharePodError> {
    let mut spec = share_pod.spec.clone();
    if let Some(Value::String(node)) = spec.remove("nodeName")
        && !node.is_empty()
    {
        // Only the scheduler chooses cards, so the node is a wish.
        pin(&mut spec, &node)?;
    }
    let scheduler = spec.entry("schedulerName").or_insert_with(|| json!(""));
    if scheduler == "" {
        let assigned = labels.get(keys::ASSIGN_SCHEDULER_LABEL);
        let mut names = assigned.into_iter().chain(&rules.assign);
        let ours = names.find(|name| rules.schedulers.contains(*name));
        *scheduler = ours.or(rules.schedulers.first()).cloned().into();
    }
    for list in ["containers", "initContainers"] {
        let containers = spec.get_mut(list).and_then(Value::as_array_mut);
        for container in containers.into_iter().flatten() {
            // As the API server fills it in, which has not seen this pod yet.
            if let Some(container) = container.as_object_mut() {
                container.entry("resources").or_insert_with(|| json!({}));
            }
        }
    }
    let mut pod = json!({ "metadata": metadata(&share_pod.metadata), "spec": spec });

    let read = Pod::deserialize(&pod).map_err(AdmissionError::from)?;
    let asks = asked_by(&read)?;
    let scheduler = scheduler_of(&read);
    if (asks.is_some() || flavor_of(&read)?.is_some())
        && !rules.schedulers.iter().any(|one| one == scheduler)
    {
        let ours = rules.schedulers.first().cloned();
        let scheduler = scheduler.to_owned();
        return Err(SharePodError::Scheduler(
            scheduler,
            ours.unwrap_or_default(),
        ));
    }
    let annotations = &share_pod.metadata.annotations;
    let wish = WISHES
        .into_iter()
        .find(|wish| annotations.get(*wish).is_some_and(|text| !text.is_empty()));
    let in_their_form = [
        keys::SHAREPOD_LIMIT,
        keys::SHAREPOD_REQUEST,
        keys::SHAREPOD_MEMORY,
    ];
    if let Some(wish) = wish
        && !asks.is_some_and(|field| in_their_form.contains(&field))
    {
        return Err(SharePodError::WishAlone(wish));
    }
    let admitted = admit(&pod, labels, flavors, rules)?;
    json_patch::patch(&mut pod, &admitted.patch).map_err(AdmissionError::from)?;
    Ok(pod)
}

/// The metadata of a SharePod's pod. Fields that only Sublet writes are not copied.
fn metadata(meta: &Meta) -> Value {
    let mut annotations = meta.annotations.clone();
    annotations.retain(|key, _| {
        let is_result = result_keys().any(|own| own == key) || key == keys::PREEMPTING;
        !is_result && key != LAST_APPLIED
    });
    let mut labels = meta.labels.clone();
    labels.insert(keys::SHARE_POD_LABEL.to_owned(), "true".to_owned());
    json!({
        "name": meta.name,
        "namespace": meta.namespace,
        "labels": labels,
        "annotations": annotations,
        // Without blockOwnerDeletion, for which a controller needs a right of its own.
        "ownerReferences": [{
            "apiVersion": SharePodWire::api_version(&()),
            "kind": SharePodWire::kind(&()),
            "name": meta.name,
            "uid": meta.uid,
            "controller": true,
        }],
    })
}

/// Makes a node the only one that the spec accepts.
fn pin(spec: &mut Map<String, Value>, node: &str) -> Result<(), SharePodError> {
    let affinity = spec.remove("affinity").unwrap_or_default();
    let affinity: Option<Affinity> =
        serde_json::from_value(affinity).map_err(SharePodError::Affinity)?;
    let mut affinity = affinity.unwrap_or_default();
    let nodes = affinity.node_affinity.get_or_insert_default();
    let required = &mut nodes.required_during_scheduling_ignored_during_execution;
    let terms = &mut required.get_or_insert_default().node_selector_terms;
    if terms.is_empty() {
        terms.push(NodeSelectorTerm::default());
    }
    // A node is accepted by any one of the terms, which accepts it by all it says.
    for term in terms {
        term.match_fields
            .get_or_insert_default()
            .push(NodeSelectorRequirement {
                key: "metadata.name".to_owned(),
                operator: "In".to_owned(),
                values: Some(vec![node.to_owned()]),
            });
    }
    let affinity = serde_json::to_value(affinity).map_err(SharePodError::Affinity)?;
    spec.insert("affinity".to_owned(), affinity);
    Ok(())
}

/// The controller of SharePods.
#[derive(Debug, Clone)]
pub(crate) struct SharePodKeeper {
    /// The rules of admission.
    pub(crate) rules: AdmissionRules,
    /// Namespaces and flavors.
    pub(crate) known: Known,
}

/// Data for a decision about a SharePod.
#[derive(Debug)]
pub(crate) struct SharePodSnapshot {
    /// The pod of its name, if there is one; or why nobody knows.
    pod: Result<Option<Value>, String>,
    /// The labels of its namespace.
    labels: BTreeMap<String, String>,
    flavors: Option<KnownFlavors>,
}

impl Control for SharePodKeeper {
    type Object = SharePodWire;
    /// The pod of a SharePod is read for each decision: a cache may not have the pod of a moment
    /// ago, and it would be made twice.
    type Caches = Client;
    type Snapshot = SharePodSnapshot;

    const NAME: &'static str = "sublet-sharepods";

    fn watch(&self, client: &Client, _: u64) -> (Controller<SharePodWire>, Client) {
        let share_pods = Api::all_with(client.clone(), &());
        let pods: Api<PodWire> = Api::all_with(client.clone(), &());
        let made = watcher::Config::default().labels(keys::SHARE_POD_LABEL);
        let controller = Controller::new(share_pods, watcher::Config::default());
        let controller = controller.watches(pods, made, |pod: PodWire| {
            let Meta {
                name, namespace, ..
            } = &pod.object.metadata;
            Some(ObjectRef::new(name).within(namespace))
        });
        (controller, client.clone())
    }

    async fn see(&self, client: &Client, share_pod: &SharePodWire) -> SharePodSnapshot {
        let SharePod { metadata, .. } = &share_pod.object;
        let Meta {
            labels,
            annotations,
            ..
        } = metadata;
        let asked = labels.get(keys::FLAVOR).or(annotations.get(keys::FLAVOR));
        let labels = self.known.labels_of(&metadata.namespace).await;
        let asked = asked.map(String::as_str);
        self.known.await_flavor(asked, &labels).await;
        let pod = read_object(client, &pod_address(metadata)).await;
        SharePodSnapshot {
            pod: pod.map_err(|error| error.to_string()),
            labels,
            flavors: self.known.flavors.borrow().clone(),
        }
    }

    fn decide(
        &self,
        share_pod: &SharePodWire,
        snapshot: &SharePodSnapshot,
        now: Timestamp,
    ) -> Decision {
        let share_pod = &share_pod.object;
        let write = |write| Decision {
            writes: vec![write],
            again: None,
        };
        let later = |write| Decision {
            writes: vec![write],
            again: Some(AGAIN),
        };
        match &snapshot.pod {
            Err(_) => Decision {
                writes: Vec::new(),
                again: Some(ASK_AGAIN),
            },
            Ok(Some(pod)) if is_of(pod, share_pod) => {
                // One of KubeShare's own controller has no label by which its end is seen.
                let is_seen = pod["metadata"]["labels"][keys::SHARE_POD_LABEL].is_string();
                let again = (!is_seen).then_some(AGAIN);
                let status = status(pod);
                if without_nulls(&share_pod.status) == status {
                    return Decision {
                        writes: Vec::new(),
                        again,
                    };
                }
                let written = Write {
                    to: address(&share_pod.metadata),
                    act: Act::ApplyStatus(json!({
                        "metadata": { "uid": share_pod.metadata.uid },
                        "status": status,
                    })),
                };
                Decision {
                    writes: vec![written],
                    again,
                }
            }
            // Of a SharePod of this name that is no more: it goes in a moment.
            Ok(Some(pod)) if is_of_a_share_pod(pod) => Decision {
                writes: Vec::new(),
                again: Some(AGAIN),
            },
            Ok(Some(_)) => later(failed(
                share_pod,
                "there is a pod of this name already, which was not made for this SharePod",
                now,
            )),
            Ok(None) if !wants_pod(share_pod) => Decision::default(),
            Ok(None) => {
                let flavors = snapshot.flavors.as_ref();
                match pod_of(share_pod, &snapshot.labels, flavors, &self.rules) {
                    Ok(pod) => write(Write {
                        to: pod_address(&share_pod.metadata),
                        act: Act::Create(pod),
                    }),
                    Err(error) => later(failed(share_pod, &error.to_string(), now)),
                }
            }
        }
    }

    fn refused(
        &self,
        share_pod: &SharePodWire,
        write: &Write,
        why: &str,
        now: Timestamp,
    ) -> Option<Write> {
        // A quota, a policy, a wrong field: who wrote the SharePod sees nothing else of it.
        let is_pod = matches!(write.act, Act::Create(_));
        is_pod.then(|| failed(&share_pod.object, why, now))
    }
}

fn address(meta: &Meta) -> ObjectAddress {
    ObjectAddress::of::<SharePodWire>(Some(&meta.namespace), &meta.name)
}

fn pod_address(meta: &Meta) -> ObjectAddress {
    ObjectAddress::of::<PodKind>(Some(&meta.namespace), &meta.name)
}

/// Was the pod made for this SharePod?
fn is_of(pod: &Value, share_pod: &SharePod) -> bool {
    owner(pod)["uid"] == share_pod.metadata.uid
}

/// Was it made for some SharePod?
fn is_of_a_share_pod(pod: &Value) -> bool {
    owner(pod)["kind"] == *SharePodWire::kind(&())
}

/// The owner that made the pod and takes it along; `null` if there is none.
fn owner(pod: &Value) -> &Value {
    let owners = pod["metadata"]["ownerReferences"].as_array();
    let mut owners = owners.into_iter().flatten();
    let made = owners.find(|owner| owner["controller"] == true);
    made.unwrap_or(&Value::Null)
}

/// Is a pod to be made where there is none? Not where the last one has ended, as its restart policy
/// says.
fn wants_pod(share_pod: &SharePod) -> bool {
    let phase = share_pod.status["PodStatus"]["phase"].as_str();
    let policy = share_pod.spec.get("restartPolicy").and_then(Value::as_str);
    let has_ended = match policy {
        Some("Never") => matches!(phase, Some("Succeeded" | "Failed")),
        Some("OnFailure") => phase == Some("Succeeded"),
        _ => false,
    };
    !has_ended && share_pod.metadata.deletion_timestamp.is_none()
}

/// The status of a SharePod by its pod, in KubeShare's form. Ports are of KubeShare's own isolation,
/// and there are none.
fn status(pod: &Value) -> Value {
    let mut metadata = pod["metadata"].clone();
    if let Some(metadata) = metadata.as_object_mut() {
        metadata.remove("managedFields");
    }
    let annotations = &pod["metadata"]["annotations"];
    let allocation = annotations[keys::ALLOCATION].as_str();
    let allocation = allocation.and_then(|text| allocation_from_json(text).ok());
    let grants = allocation.iter().flat_map(|allocation| &allocation.grants);
    let cards: BTreeSet<_> = grants
        .filter_map(|grant| grant.card.uuid.as_ref())
        .collect();
    let cards: Vec<&str> = cards.into_iter().map(GpuUuid::as_str).collect();
    without_nulls(&json!({
        "PodStatus": pod["status"],
        "PodObjectMeta": metadata,
        "BoundDeviceID": cards.join(","),
        "PodManagerPort": 0,
    }))
}

/// Without members that are null, which the API server may drop.
fn without_nulls(value: &Value) -> Value {
    match value {
        Value::Object(members) => {
            let members = members.iter().filter(|(_, member)| !member.is_null());
            members
                .map(|(name, member)| (name.clone(), without_nulls(member)))
                .collect()
        }
        Value::Array(items) => items.iter().map(without_nulls).collect(),
        other => other.clone(),
    }
}

/// An event: this SharePod has no pod.
fn failed(share_pod: &SharePod, why: &str, now: Timestamp) -> Write {
    let meta = &share_pod.metadata;
    let (version, kind) = (SharePodWire::api_version(&()), SharePodWire::kind(&()));
    let about = reference(&version, &kind, &meta.namespace, &meta.name, &meta.uid);
    event(
        SharePodKeeper::NAME,
        &about,
        "Warning",
        "FailedCreate",
        why,
        now,
    )
}

#[cfg(test)]
mod tests;
