//! The controller of pods that lack fields, because the webhook was away when they were created.
//! The API server lets nobody add these fields later, such as the slot, so the pods wait for ever.
//!
//! A pod with an owner that makes it anew (a ReplicaSet or the like) is deleted, as long as it has
//! no node: the next pod goes through the webhook. This happens once. If the next pod lacks the
//! same field, the webhook is still away, and that pod stays: an event on the owner notes up to
//! which age its pods were made anew, before the first of them goes. Only a younger, complete pod
//! shows that the webhook has answered since, and lets that age grow. All ages are by the API
//! server's clock, so no restart, second leader or wrong clock begins a loop.
//!
//! A Job counts a deleted pod as a failure, and nobody makes a lone pod anew: an event on such pods
//! gives advice. The controller never deletes a pod that has a node, nor a pod of a system
//! namespace. A policy of the API server holds every holder of its token to the same
//! (`34-controller-policy.yaml`).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod as PodKind;
use kube::runtime::controller::Config;
use kube::runtime::reflector::Store;
use kube::runtime::{Controller, watcher};
use kube::{Api, Client};
use rustls::ServerConfig;
use serde_json::{Value, json};
use sublet_api::object::{OwnerReference, Pod};
use sublet_api::{SYSTEM_NAMESPACES, is_unschedulable, keys};
use sublet_client::{
    Act, ObjectAddress, PodWire, Pods, Write, event, event_address, list, pod_reference,
    read_object, reference,
};
use tokio::sync::watch;

use crate::admission::{AdmissionRules, lacking};
use crate::flavors::FlavorError;
use crate::known::Known;
use crate::shell::{Control, Decision};

/// Time that this process must lead, and that a pod must exist, before anything is deleted. By then
/// API servers reach the webhook again, if it is there at all.
const SETTLE: Duration = Duration::from_secs(30);

/// Pause before another look at a pod that stays. Events are forgotten after an hour, and the age
/// that an event notes must not be.
const AGAIN: Duration = Duration::from_secs(5 * 60);

/// The event on an owner that notes that its pods were made anew.
const MADE_ANEW: &str = "IncompletePodsMadeAnew";

/// The controller of incomplete pods.
#[derive(Debug, Clone)]
pub(crate) struct IncompletePods {
    /// The rules of admission.
    pub(crate) rules: AdmissionRules,
    /// Namespaces and flavors.
    pub(crate) known: Known,
    /// The controller's own namespace; the webhook is not asked about its pods.
    pub(crate) namespace: String,
    /// `None` as long as no webhook can answer.
    pub(crate) certificate: watch::Receiver<Option<Arc<ServerConfig>>>,
}

/// Data for a decision, beside the pod.
pub(crate) struct IncompleteCaches {
    client: Client,
    waiting: Store<PodWire>,
    begun: Timestamp,
}

/// The view of a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum IncompleteSnapshot {
    /// It lacks nothing, or is none of ours.
    Complete,
    /// Nobody can say: no webhook answers, or the API server did not.
    Unknown,
    /// It lacks something.
    Lacks {
        /// The field.
        field: &'static str,
        /// When this process began to lead.
        begun: Timestamp,
        /// Its owner, if that one makes it anew.
        owner: Option<Remaker>,
    },
}

/// The owner that makes a pod anew.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Remaker {
    owner: OwnerReference,
    /// When the youngest of its pods was created that wait and lack something.
    youngest: Timestamp,
    /// Its pods that are not younger were made anew.
    noted: Option<Timestamp>,
    /// When the youngest of its complete pods was created. Not read if the pod is not younger than
    /// the noted age.
    completed: Option<Timestamp>,
}

impl Control for IncompletePods {
    type Object = PodWire;
    type Caches = IncompleteCaches;
    type Snapshot = IncompleteSnapshot;

    const NAME: &'static str = "sublet-incomplete-pods";

    fn watch(&self, client: &Client, _: u64) -> (Controller<PodWire>, IncompleteCaches) {
        let pods = Api::all_with(client.clone(), &());
        let waiting = watcher::Config::default().fields("spec.nodeName=");
        // One after the other: what one notes of an owner, the next one finds.
        let controller =
            Controller::new(pods, waiting).with_config(Config::default().concurrency(1));
        let caches = IncompleteCaches {
            client: client.clone(),
            waiting: controller.store(),
            begun: Timestamp::now(),
        };
        (controller, caches)
    }

    async fn see(&self, caches: &IncompleteCaches, pod: &PodWire) -> IncompleteSnapshot {
        let pod = &pod.object;
        let namespace = pod.metadata.namespace.as_str();
        let is_system = SYSTEM_NAMESPACES.contains(&namespace) || namespace == self.namespace;
        // The scheduler has the first word: a node may take the pod as it is.
        if is_system || !is_unschedulable(pod) || pod.metadata.deletion_timestamp.is_some() {
            return IncompleteSnapshot::Complete;
        }
        let labels = self.known.labels_of(namespace).await;
        let field = match self.lacks(pod, &labels) {
            Ok(Some(field)) => field,
            Ok(None) => return IncompleteSnapshot::Complete,
            Err(_) => return IncompleteSnapshot::Unknown,
        };
        if self.certificate.borrow().is_none() {
            return IncompleteSnapshot::Unknown;
        }
        let owner = pod.metadata.controller().filter(|owner| remakes(owner));
        let owner = match owner {
            None => None,
            Some(owner) => match self.remaker(caches, pod, owner, &labels).await {
                Ok(remaker) => Some(remaker),
                Err(error) => {
                    tracing::warn!(%error, "an incomplete pod is looked at again later");
                    return IncompleteSnapshot::Unknown;
                }
            },
        };
        IncompleteSnapshot::Lacks {
            field,
            begun: caches.begun,
            owner,
        }
    }

    fn decide(&self, pod: &PodWire, snapshot: &IncompleteSnapshot, now: Timestamp) -> Decision {
        let pod = &pod.object;
        let later = |again| Decision {
            writes: Vec::new(),
            again: Some(again),
        };
        let (field, begun, owner) = match snapshot {
            IncompleteSnapshot::Complete => return Decision::default(),
            IncompleteSnapshot::Unknown => return later(SETTLE),
            IncompleteSnapshot::Lacks {
                field,
                begun,
                owner,
            } => (*field, *begun, owner.as_ref()),
        };
        let Some(created) = created(pod) else {
            return Decision::default();
        };
        let since = now.duration_since(begun.max(created));
        let since = Duration::try_from(since).unwrap_or(Duration::ZERO);
        if since < SETTLE {
            return later(SETTLE - since);
        }
        let is_noted = owner.is_some_and(|owner| Some(created) <= owner.noted);
        let is_first =
            owner.is_some_and(|owner| owner.noted.is_none() || owner.completed > owner.noted);
        let note = owner.and_then(|owner| {
            // Others that wait are noted with it. Later it would be too late: those that are made
            // anew wait too by then. What the complete ones show is used up.
            let until = match is_first && !is_noted {
                true => owner.completed.max(Some(owner.youngest.max(created))),
                false => owner.noted,
            };
            Some(noted(pod, &owner.owner, field, until?, now))
        });
        let goes = is_noted || is_first;
        let mut writes: Vec<Write> = note.into_iter().collect();
        writes.push(match goes {
            true => deleted(pod),
            false => advised(pod, field, owner.is_some(), now),
        });
        Decision {
            writes,
            again: (!goes).then_some(AGAIN),
        }
    }
}

impl IncompletePods {
    /// The field that a pod lacks.
    fn lacks(
        &self,
        pod: &Pod,
        labels: &BTreeMap<String, String>,
    ) -> Result<Option<&'static str>, FlavorError> {
        lacking(
            pod,
            labels,
            self.known.flavors.borrow().as_ref(),
            &self.rules,
        )
    }

    /// The view of a pod's owner.
    async fn remaker(
        &self,
        caches: &IncompleteCaches,
        pod: &Pod,
        owner: &OwnerReference,
        labels: &BTreeMap<String, String>,
    ) -> Result<Remaker, kube::Error> {
        let is_its = |other: &Pod| {
            let made = other.metadata.controller();
            made.is_some_and(|made| made.uid == owner.uid)
        };
        let waiting = caches.waiting.state();
        let incomplete = waiting.iter().map(|other| &other.object);
        let incomplete = incomplete.filter(|other| is_its(other));
        let incomplete =
            incomplete.filter(|other| matches!(self.lacks(other, labels), Ok(Some(_))));
        let youngest = incomplete.filter_map(created).max();
        let place = note_address(&pod.metadata.namespace, owner);
        let note = read_object(&caches.client, &place).await?;
        let noted = note.as_ref().and_then(until);
        let made = created(pod);
        let completed = match made <= noted {
            true => None,
            false => {
                let here = format!("metadata.namespace={}", pod.metadata.namespace);
                let all = list::<Pods>(&caches.client, Some(&here)).await?;
                let complete = all.iter().filter(|other| is_its(other));
                let complete = complete.filter(|other| self.lacks(other, labels) == Ok(None));
                complete.filter_map(created).max()
            }
        };
        Ok(Remaker {
            owner: owner.clone(),
            youngest: youngest.or(made).unwrap_or_default(),
            noted,
            completed,
        })
    }
}

/// Does it make each of its pods anew, without counting the last one as a failure?
fn remakes(owner: &OwnerReference) -> bool {
    match owner.kind.as_str() {
        "ReplicaSet" | "StatefulSet" | "DaemonSet" => owner.api_version.starts_with("apps/"),
        "ReplicationController" => owner.api_version == "v1",
        _ => false,
    }
}

fn created(pod: &Pod) -> Option<Timestamp> {
    pod.metadata.creation_timestamp.as_deref()?.parse().ok()
}

/// The time that an event notes.
fn until(event: &Value) -> Option<Timestamp> {
    let text = &event["metadata"]["annotations"][keys::MADE_ANEW_UNTIL];
    text.as_str()?.parse().ok()
}

fn owner_reference(namespace: &str, owner: &OwnerReference) -> Value {
    let OwnerReference {
        api_version,
        kind,
        name,
        uid,
        ..
    } = owner;
    reference(api_version, kind, namespace, name, uid)
}

fn note_address(namespace: &str, owner: &OwnerReference) -> ObjectAddress {
    event_address(MADE_ANEW, &owner_reference(namespace, owner))
}

/// Notes on the owner that its pods up to that age are made anew.
fn noted(
    pod: &Pod,
    owner: &OwnerReference,
    field: &str,
    until: Timestamp,
    now: Timestamp,
) -> Write {
    let message = format!(
        "pods that were created while no webhook of Sublet answered lack `{field}`, which nobody can \
         add to them; each is deleted once, as pod {} is, so that {} makes another",
        pod.metadata.name, owner.kind,
    );
    let about = owner_reference(&pod.metadata.namespace, owner);
    let mut write = event(
        IncompletePods::NAME,
        &about,
        "Normal",
        MADE_ANEW,
        &message,
        now,
    );
    if let Act::Apply(event) = &mut write.act {
        let note = json!({ keys::MADE_ANEW_UNTIL: until.to_string() });
        event["metadata"] = json!({ "annotations": note });
    }
    write
}

/// Deletes the pod, if it still is as it was seen: without a node.
fn deleted(pod: &Pod) -> Write {
    let meta = &pod.metadata;
    Write {
        to: ObjectAddress::of::<PodKind>(Some(&meta.namespace), &meta.name),
        act: Act::Delete {
            uid: meta.uid.clone(),
            version: Some(meta.resource_version.clone()),
        },
    }
}

/// Advises about a pod that stays. `again`: its owner has made it anew for this.
fn advised(pod: &Pod, field: &str, again: bool, now: Timestamp) -> Write {
    let meta = &pod.metadata;
    let cure = match meta.controller() {
        _ if again => {
            "it was made anew already, and lacks it again: does the API server reach the \
             webhook (71-webhook.yaml)? Then delete the pod"
                .to_owned()
        }
        Some(owner) if owner.kind == "Job" => format!(
            "delete the pod, and Job {} makes another, but counts this one as a failure \
             (`backoffLimit`); or create the Job again",
            owner.name
        ),
        Some(owner) => format!(
            "delete the pod, if {} {} makes another",
            owner.kind, owner.name
        ),
        None => "delete the pod and create it again".to_owned(),
    };
    let message = format!(
        "the pod lacks `{field}`, which the webhook of `sublet controller` gives to pods when they are \
         created, and which nobody can add later, so no node can take it: {cure}"
    );
    event(
        IncompletePods::NAME,
        &pod_reference(pod),
        "Warning",
        "IncompletePod",
        &message,
        now,
    )
}

#[cfg(test)]
mod tests;
