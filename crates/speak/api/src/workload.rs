//! Objects that make pods from a template: workloads of Kubernetes itself, and jobs of every kind.
//! The module foretells their pods, before anybody has made them.

use serde_json::Value;
use sublet_plan::stock::NodeRules;

use crate::group::{Field, GroupError, JobProgress, job_kind, read_job};
use crate::object::{
    Meta, NodeSelector, NodeTerm, Pod, PodSpec, SelectorRequirement, TolerationSpec,
};
use crate::stock::{RuleError, pod_rules};

/// The most pods that a cluster may have: no object makes more.
const MOST_PODS: u64 = 150_000;

/// The API group of Kubernetes' own workloads.
const APPS: &str = "apps/";

/// The kinds of that group that are read.
const KINDS: [&str; 4] = ["Deployment", "StatefulSet", "ReplicaSet", "DaemonSet"];

/// Taints that the pods of every DaemonSet tolerate, and the effect. The last is for pods on the network
/// of their machine (`AddOrUpdateDaemonPodTolerations` of Kubernetes' daemon controller).
const TOLERATED: [(&str, &str); 7] = [
    ("node.kubernetes.io/not-ready", "NoExecute"),
    ("node.kubernetes.io/unreachable", "NoExecute"),
    ("node.kubernetes.io/disk-pressure", "NoSchedule"),
    ("node.kubernetes.io/memory-pressure", "NoSchedule"),
    ("node.kubernetes.io/pid-pressure", "NoSchedule"),
    ("node.kubernetes.io/unschedulable", "NoSchedule"),
    ("node.kubernetes.io/network-unavailable", "NoSchedule"),
];

/// An object that makes pods.
#[derive(Debug, Clone, PartialEq)]
pub struct Workload {
    /// Its metadata, with its namespace.
    pub metadata: Meta,
    /// It makes no pods until it is released.
    pub is_suspended: bool,
    /// Roles of the pods that it makes.
    pub roles: Vec<WorkloadRole>,
}

/// Equal pods of one.
#[derive(Debug, Clone, PartialEq)]
pub struct WorkloadRole {
    /// Start of its pods' names.
    pub name: String,
    /// Number of pods; `None` means one on each node that they may use.
    pub replicas: Option<u32>,
    /// Template of the pods.
    pub template: Pod,
}

/// Is it one of Kubernetes' own kinds that are read here? For jobs, see [`job_kind`].
#[must_use]
pub fn is_workload(kind: &str) -> bool {
    KINDS.contains(&kind)
}

/// Reads an object; `None` if its kind is not known to make pods.
///
/// # Errors
/// A field that cannot be read, or more pods than a cluster may have.
pub fn read_workload(object: &Value) -> Result<Option<Workload>, GroupError> {
    let root = Field::root(object);
    let text = |key: &str| Ok::<_, GroupError>(root.get(key)?.text()?.unwrap_or_default());
    let (api, kind) = (text("apiVersion")?, text("kind")?);
    let mut metadata: Meta = root.get("metadata")?.read()?;
    if metadata.name.is_empty() {
        return Err(root.at(&["metadata", "name"])?.wrong("it is missing"));
    }
    if metadata.namespace.is_empty() {
        metadata.namespace = "default".to_owned();
    }
    let (is_suspended, roles) = match job_kind(api, kind) {
        Some(job) => {
            let facts = read_job(job, object)?;
            let copies = facts.shape.copies.unwrap_or(1);
            let many = facts.shape.roles.len() > 1;
            let roles = facts.shape.roles.into_iter().map(|role| WorkloadRole {
                name: match many {
                    true => format!("{}-{}", metadata.name, role.name.to_lowercase()),
                    false => metadata.name.clone(),
                },
                replicas: Some(role.replicas.saturating_mul(copies)),
                template: role.template,
            });
            (facts.state == JobProgress::Suspended, roles.collect())
        }
        None if api.starts_with(APPS) && is_workload(kind) => {
            let spec = root.get("spec")?;
            let replicas = match kind {
                "DaemonSet" => None,
                _ => Some(spec.get("replicas")?.count()?.unwrap_or(1)),
            };
            let template = spec.get("template")?;
            if !template.is_there() {
                return Err(template.wrong("it is missing"));
            }
            let role = WorkloadRole {
                name: metadata.name.clone(),
                replicas,
                template: template.read()?,
            };
            (false, vec![role])
        }
        None => return Ok(None),
    };
    let all = roles
        .iter()
        .map(|role: &WorkloadRole| u64::from(role.replicas.unwrap_or(0)));
    let all: u64 = all.sum();
    if all > MOST_PODS {
        let what = format!("it makes {all} pods, and a cluster has at most {MOST_PODS}");
        return Err(root.get("spec")?.wrong(&what));
    }
    Ok(Some(Workload {
        metadata,
        is_suspended,
        roles,
    }))
}

impl Workload {
    /// Its pods, as they are before the API server has them. `nodes`: all there are.
    ///
    /// # Errors
    /// A wish of a template about nodes that cannot be read, of one that has a pod on each.
    pub fn pods(&self, nodes: &[NodeRules]) -> Result<Vec<Pod>, RuleError> {
        let mut pods = Vec::new();
        for role in &self.roles {
            let mut template = role.template.clone();
            template
                .metadata
                .namespace
                .clone_from(&self.metadata.namespace);
            template.metadata.uid.clear();
            template.metadata.creation_timestamp = None;
            let named = |pod: &mut Pod, end: &str| {
                pod.metadata.name = format!("{}-{end}", role.name);
            };
            let Some(replicas) = role.replicas else {
                for node in nodes {
                    if let Some(mut pod) = daemon(&template, node)? {
                        named(&mut pod, &node.name);
                        pods.push(pod);
                    }
                }
                continue;
            };
            for at in 0..replicas {
                let mut pod = template.clone();
                named(&mut pod, &at.to_string());
                pods.push(pod);
            }
        }
        Ok(pods)
    }
}

/// The pod of a DaemonSet on a node, restricted to the node by its name. `None` if the pod's rules
/// do not allow the node.
fn daemon(template: &Pod, node: &NodeRules) -> Result<Option<Pod>, RuleError> {
    let mut pod = template.clone();
    tolerate(&mut pod.spec);
    let field = || SelectorRequirement {
        key: "metadata.name".to_owned(),
        operator: "In".to_owned(),
        values: vec![node.name.to_string()],
    };
    let required = &mut pod.spec.affinity.node_affinity.required;
    let NodeSelector {
        node_selector_terms: terms,
    } = required.get_or_insert_with(|| NodeSelector {
        node_selector_terms: vec![NodeTerm::default()],
    });
    for term in terms {
        term.match_fields = vec![field()];
    }
    let rules = pod_rules(&pod)?;
    Ok(rules.check(node).is_ok().then_some(pod))
}

fn tolerate(spec: &mut PodSpec) {
    let all = TOLERATED.len() - usize::from(!spec.host_network);
    for (key, effect) in &TOLERATED[..all] {
        spec.tolerations.push(TolerationSpec {
            key: (*key).to_owned(),
            operator: "Exists".to_owned(),
            effect: (*effect).to_owned(),
            ..TolerationSpec::default()
        });
    }
}
