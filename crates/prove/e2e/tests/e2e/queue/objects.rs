//! Groups, quotas and jobs as a user writes them.

use anyhow::Result;
use sublet_e2e::yaml;

/// The memory of each card, which each pod here asks for as a whole.
const CARD_MIB: u32 = 1_000;

/// A played node with so many cards, and what its agent reports.
pub(super) fn card_node(name: &str, cards: u16) -> Result<(String, String)> {
    yaml::agent_node(name, cards, CARD_MIB)
}

/// Pods that start together.
#[derive(Debug, Clone, Copy)]
pub(super) struct Gang<'a> {
    /// The PodGroup.
    pub(super) name: &'a str,
    pub(super) namespace: &'a str,
    /// Request of each pod.
    pub(super) limits: &'a str,
}

impl<'a> Gang<'a> {
    /// In the usual namespace, of pods with a card each.
    pub(super) fn new(name: &'a str) -> Gang<'a> {
        Gang {
            name,
            namespace: "default",
            limits: "aliyun.com/gpu-mem: 1000",
        }
    }

    /// One of its pods.
    pub(super) fn pod(&self, name: &str) -> String {
        let gang = self.name;
        let metadata = format!("labels: {{app: {name}, scheduling.x-k8s.io/pod-group: {gang}}}");
        let pod = yaml::Pod {
            name,
            limits: &[self.limits],
            metadata: &metadata,
            ..yaml::Pod::default()
        };
        in_namespace(&pod.yaml(), self.namespace)
    }

    /// All of them, which come again when they are gone.
    pub(super) fn deployment(&self, replicas: u32) -> String {
        let labels = format!("app: {}", self.name);
        let both = format!("{labels}, scheduling.x-k8s.io/pod-group: {}", self.name);
        let limits = [self.limits];
        let pod = yaml::Pod {
            name: self.name,
            limits: &limits,
            ..yaml::Pod::default()
        };
        let yaml = pod.deployment(replicas);
        // The template's labels, not the selector's.
        let template = format!("labels: {{{labels}}}");
        in_namespace(
            &yaml.replacen(&template, &format!("labels: {{{both}}}"), 1),
            self.namespace,
        )
    }
}

/// The same in a namespace.
pub(super) fn in_namespace(yaml: &str, namespace: &str) -> String {
    match yaml.contains("metadata: {name: ") {
        true => yaml.replacen(
            "metadata: {name: ",
            &format!("metadata: {{namespace: {namespace}, name: "),
            1,
        ),
        false => yaml.replacen(
            "metadata:\n",
            &format!("metadata:\n  namespace: {namespace}\n"),
            1,
        ),
    }
}

/// A PodGroup of scheduler-plugins.
pub(crate) fn pod_group(name: &str, min: u32, namespace: &str) -> String {
    let namespace = if namespace.is_empty() {
        "default"
    } else {
        namespace
    };
    format!(
        "---\napiVersion: scheduling.x-k8s.io/v1alpha1\nkind: PodGroup\nmetadata:\n  name: {name}\n  \
         namespace: {namespace}\nspec: {{minMember: {min}}}\n"
    )
}

/// A namespace whose pods queue.
pub(crate) fn namespace(name: &str) -> String {
    format!(
        "---\napiVersion: v1\nkind: Namespace\nmetadata:\n  name: {name}\n  \
         labels: {{sublet.dev/queue: enabled}}\n"
    )
}

/// A quota of Koordinator's form, in cards.
pub(super) fn elastic_quota(name: &str, namespace: &str, min: u32, max: u32) -> String {
    format!(
        "---\napiVersion: scheduling.sigs.k8s.io/v1alpha1\nkind: ElasticQuota\nmetadata:\n  \
         name: {name}\n  namespace: {namespace}\nspec:\n  min: {{sublet.dev/gpu: {min}}}\n  \
         max: {{sublet.dev/gpu: {max}}}\n"
    )
}

/// A Job of pods with a card each, which start together.
pub(super) fn job(name: &str, namespace: &str, pods: usize, is_suspended: bool) -> String {
    format!(
        "---\napiVersion: batch/v1\nkind: Job\nmetadata: {{name: {name}, namespace: {namespace}}}\n\
         spec:\n  suspend: {is_suspended}\n  parallelism: {pods}\n  completions: {pods}\n  \
         template:\n    spec:\n      schedulerName: sublet-scheduler\n      restartPolicy: Never\n      \
         automountServiceAccountToken: false\n      containers:\n      - name: c\n        \
         image: sublet.test/busybox:1\n        \
         resources: {{limits: {{aliyun.com/gpu-mem: 1000}}}}\n"
    )
}
