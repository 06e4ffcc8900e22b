//! Groups, quotas and jobs as a user writes them.

use anyhow::Result;
use sublet_e2e::yaml;

/// The memory of each card, which each pod here asks for as a whole.
const CARD_MIB: u32 = 1_000;

/// A played node with so many cards, and what its agent reports.
pub(super) fn card_node(name: &str, cards: u16) -> Result<(String, String)> {
    yaml::agent_node(name, cards, CARD_MIB)
}

/// A namespace whose pods queue.
pub(super) fn namespace(name: &str) -> String {
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
