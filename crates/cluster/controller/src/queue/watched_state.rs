//! The data that the queue decides on, as the watches have last told it: pods, groups, jobs,
//! quotas, plans.
//!
//! It decides nothing. The queue's own writes are entered as if a watch had told them, so that the
//! next decision does not write them again.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use kube::ResourceExt;
use kube::core::DynamicObject;
use serde_json::Value;
use sublet_api::gang_plan::{GangPlan, GangPlanObject, SlotMark, slot_to_json};
use sublet_api::group::{
    JobFacts, JobName, JobProgress, PodGroupFacts, PriorityClasses, job_kind, moment, read_job,
    read_pod_group,
};
use sublet_api::object::{Node, Pod};
use sublet_api::{ElasticQuota, is_over, keys, node_amounts};
use sublet_client::Change;
use sublet_model::Time;
use sublet_queue::Amounts;

/// Everything that is seen.
#[derive(Debug, Default)]
pub(crate) struct WatchedState {
    /// By UID.
    pub(crate) pods: BTreeMap<String, Arc<Pod>>,
    /// Amounts that pods can have of each node.
    pub(crate) nodes: BTreeMap<String, Amounts>,
    /// PodGroups, by kind and API group, namespace and name.
    pub(crate) pod_groups: BTreeMap<Address, WatchedPodGroup>,
    /// PodGroups and jobs that cannot be read, by kind and API group, namespace and name.
    pub(crate) unreadable: BTreeMap<Address, Unread>,
    /// Quotas, by API group, namespace and name.
    pub(crate) quotas: BTreeMap<Address, ElasticQuota>,
    /// Jobs, by name.
    pub(crate) jobs: BTreeMap<JobName, JobFacts>,
    /// Plans, by name; none where one cannot be read.
    pub(crate) plans: BTreeMap<String, WatchedPlan>,
    /// PriorityClasses.
    pub(crate) classes: PriorityClasses,
    /// Lists that are being read, with the objects read so far.
    listed: BTreeMap<String, BTreeSet<String>>,
}

/// API group or kind, namespace, name.
pub(crate) type Address = (String, String, String);

/// An object that says how often its group went for others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum GroupObject {
    /// A job.
    Job(JobName),
    /// A PodGroup.
    PodGroup(Address),
}

/// A PodGroup.
#[derive(Debug, Clone)]
pub(crate) struct WatchedPodGroup {
    pub(crate) facts: PodGroupFacts,
    /// Its status.
    pub(crate) status: Value,
}

/// Something that cannot be read.
#[derive(Debug, Clone)]
pub(crate) struct Unread {
    /// Group and version, and kind.
    pub(crate) api: (String, String),
    pub(crate) uid: String,
    /// The field and its fault.
    pub(crate) why: String,
}

/// A plan.
#[derive(Debug, Clone)]
pub(crate) struct WatchedPlan {
    pub(crate) uid: String,
    /// When it was made, as the API server says.
    pub(crate) made: Option<Time>,
    /// As it is read, or why it cannot be.
    pub(crate) plan: Result<Arc<GangPlan>, String>,
}

impl WatchedState {
    /// Pods changed.
    pub(crate) fn pod(&mut self, change: Change<Pod>) {
        match change {
            Change::ListBegins => self.begin("pods"),
            Change::ListEnds => {
                let listed = self.listed.remove("pods").unwrap_or_default();
                self.pods.retain(|uid, _| listed.contains(uid));
            }
            Change::Set(pod) => {
                let uid = pod.metadata.uid.clone();
                self.list("pods", || uid.clone());
                self.pods.insert(uid, Arc::new(pod));
            }
            Change::Gone(pod) => drop(self.pods.remove(&pod.metadata.uid)),
        }
    }

    /// Nodes changed.
    pub(crate) fn node(&mut self, change: Change<Node>) {
        match change {
            Change::ListBegins => self.begin("nodes"),
            Change::ListEnds => {
                let listed = self.listed.remove("nodes").unwrap_or_default();
                self.nodes.retain(|name, _| listed.contains(name));
            }
            Change::Set(node) => {
                let name = node.metadata.name.clone();
                self.list("nodes", || name.clone());
                match node_amounts(&node) {
                    Ok(amounts) => drop(self.nodes.insert(name, amounts)),
                    Err(error) => {
                        tracing::warn!(node = name, %error, "a node that no quota counts");
                    }
                }
            }
            Change::Gone(node) => drop(self.nodes.remove(&node.metadata.name)),
        }
    }

    /// Quotas of one API group changed.
    pub(crate) fn quota(&mut self, group: &str, change: Change<ElasticQuota>) {
        let address = |quota: &ElasticQuota| {
            let meta = &quota.metadata;
            (group.to_owned(), meta.namespace.clone(), meta.name.clone())
        };
        let kind = format!("quotas {group}");
        match change {
            Change::ListBegins => self.begin(&kind),
            Change::ListEnds => {
                let listed = self.listed.remove(&kind).unwrap_or_default();
                self.quotas
                    .retain(|at, _| at.0 != group || listed.contains(&text(at)));
            }
            Change::Set(quota) => {
                let at = address(&quota);
                self.list(&kind, || text(&at));
                self.quotas.insert(at, quota);
            }
            Change::Gone(quota) => drop(self.quotas.remove(&address(&quota))),
        }
    }

    /// Plans changed.
    pub(crate) fn plan(&mut self, change: Change<GangPlanObject>) {
        match change {
            Change::ListBegins => self.begin("plans"),
            Change::ListEnds => {
                let listed = self.listed.remove("plans").unwrap_or_default();
                self.plans.retain(|name, _| listed.contains(name));
            }
            Change::Set(object) => {
                let name = object.metadata.name.clone();
                self.list("plans", || name.clone());
                let plan = object.read();
                let watched = WatchedPlan {
                    uid: object.metadata.uid.clone(),
                    made: object
                        .metadata
                        .creation_timestamp
                        .as_deref()
                        .and_then(moment),
                    plan: plan.map(Arc::new).map_err(|error| error.to_string()),
                };
                self.plans.insert(name, watched);
            }
            Change::Gone(object) => drop(self.plans.remove(&object.metadata.name)),
        }
    }

    /// Objects of a kind changed that is read as data: PodGroups, jobs, PriorityClasses.
    pub(crate) fn object(&mut self, api_version: &str, kind: &str, change: Change<DynamicObject>) {
        // An object is the same one in whatever version of its API it is read: a control plane that
        // is being upgraded serves one in the morning and another one at night.
        let group = api_version.split_once('/').map_or("", |(group, _)| group);
        let (word, list) = (format!("{kind} {group}"), format!("{kind} {api_version}"));
        match change {
            Change::ListBegins => self.begin(&list),
            Change::ListEnds => {
                let listed = self.listed.remove(&list).unwrap_or_default();
                let stays = |at: &Address| at.0 != word || listed.contains(&text(at));
                self.pod_groups.retain(|at, _| stays(at));
                self.unreadable.retain(|at, _| stays(at));
                if let Some(job) = job_kind(api_version, kind) {
                    let at =
                        |job: &JobName| (word.clone(), job.namespace.clone(), job.name.clone());
                    // A list in one version says nothing of objects that were read in another.
                    let version = api_version.rsplit('/').next().unwrap_or(api_version);
                    self.jobs.retain(|name, facts| {
                        name.word != job.word() || facts.api.version != version || stays(&at(name))
                    });
                }
                if kind == "PriorityClass" {
                    let at = |name: &str| (word.clone(), String::new(), name.to_owned());
                    self.classes.retain(|name| stays(&at(name)));
                }
            }
            Change::Set(object) => {
                let at = address(&word, &object);
                self.list(&list, || text(&at));
                self.enter(api_version, kind, at, object);
            }
            Change::Gone(object) => {
                self.forget(api_version, kind, &address(&word, &object));
            }
        }
    }

    fn forget(&mut self, api_version: &str, kind: &str, at: &Address) {
        self.pod_groups.remove(at);
        self.unreadable.remove(at);
        if kind == "PriorityClass" {
            self.classes.remove(&at.2);
        }
        if let Some(job) = job_kind(api_version, kind) {
            self.jobs.remove(&JobName {
                word: job.word(),
                namespace: at.1.clone(),
                name: at.2.clone(),
            });
        }
    }

    fn enter(&mut self, api_version: &str, kind: &str, at: Address, object: DynamicObject) {
        let status = object.data["status"].clone();
        let mut object = match serde_json::to_value(object) {
            Ok(object) => object,
            Err(error) => {
                tracing::warn!(object = text(&at), %error, "it cannot be read");
                return self.forget(api_version, kind, &at);
            }
        };
        if kind == "PriorityClass" {
            if let Err(error) = self.classes.enter(&at.2, &object) {
                tracing::warn!(object = text(&at), %error, "it cannot be read");
            }
            return;
        }
        object["apiVersion"] = api_version.into();
        self.unreadable.remove(&at);
        let wrong = match job_kind(api_version, kind) {
            Some(job) => match read_job(job, &object) {
                Ok(facts) => {
                    self.jobs.insert(facts.job.clone(), facts);
                    return;
                }
                Err(error) => error,
            },
            None => match read_pod_group(api_version, &object) {
                Ok(Some(facts)) => {
                    self.pod_groups
                        .insert(at, WatchedPodGroup { facts, status });
                    return;
                }
                Ok(None) => return,
                Err(error) => error,
            },
        };
        tracing::warn!(object = text(&at), error = %wrong, "it cannot be read");
        // What it said before holds no more.
        self.forget(api_version, kind, &at);
        let unread = Unread {
            api: (api_version.to_owned(), kind.to_owned()),
            uid: object["metadata"]["uid"]
                .as_str()
                .unwrap_or_default()
                .to_owned(),
            why: wrong.to_string(),
        };
        self.unreadable.insert(at, unread);
    }

    /// A pod was let go to its slot, by a write of ours.
    pub(crate) fn released(&mut self, uid: &str, mark: &SlotMark) {
        let Some(pod) = self.pods.get_mut(uid) else {
            return;
        };
        let pod = Arc::make_mut(pod);
        pod.spec
            .scheduling_gates
            .retain(|gate| gate.name != keys::SCHEDULING_GATE);
        let text = slot_to_json(mark);
        pod.metadata.annotations.insert(keys::SLOT.to_owned(), text);
    }

    /// A pod was asked to go, by a write of ours.
    pub(crate) fn evicted(&mut self, uid: &str, when: &str) {
        if let Some(pod) = self.pods.get_mut(uid) {
            let deletion = &mut Arc::make_mut(pod).metadata.deletion_timestamp;
            deletion.get_or_insert_with(|| when.to_owned());
        }
    }

    /// A job was let make its pods, or held back again, by a write of ours.
    pub(crate) fn switched(&mut self, job: &JobName, suspended: bool) {
        if let Some(job) = self.jobs.get_mut(job) {
            job.state = match suspended {
                true => JobProgress::Suspended,
                false => JobProgress::Released,
            };
        }
    }

    /// The object says how often its group went, by a write of ours.
    pub(crate) fn counted(&mut self, object: &GroupObject, reclaims: u32, at: Time) {
        let terms = match object {
            GroupObject::Job(name) => self.jobs.get_mut(name).map(|job| &mut job.terms),
            GroupObject::PodGroup(address) => {
                let group = self.pod_groups.get_mut(address);
                group.map(|group| &mut group.facts.terms)
            }
        };
        if let Some(terms) = terms {
            (terms.past.reclaims, terms.past.reclaimed) = (reclaims, Some(at));
        }
    }

    fn begin(&mut self, kind: &str) {
        self.listed.insert(kind.to_owned(), BTreeSet::new());
    }

    fn list(&mut self, kind: &str, name: impl FnOnce() -> String) {
        if let Some(listed) = self.listed.get_mut(kind) {
            listed.insert(name());
        }
    }
}

fn address(kind: &str, object: &DynamicObject) -> Address {
    let namespace = object.namespace().unwrap_or_default();
    (kind.to_owned(), namespace, object.name_any())
}

fn text(at: &Address) -> String {
    format!("{} {}/{}", at.0, at.1, at.2)
}

/// Does the pod hold resources, or may it come to hold some?
pub(crate) fn counts(pod: &Pod) -> bool {
    !is_over(pod) && (pod.metadata.deletion_timestamp.is_none() || !pod.spec.node_name.is_empty())
}
