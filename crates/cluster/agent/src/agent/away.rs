//! Between one agent and the next no agent hands out devices, and kubelet fails a pod for good if
//! its device's plugin is away. So an agent that is to end first says on its node that it goes:
//! cards of such a node get no new pods. Pods that were bound before get their devices, and then
//! the agent ends. The next one takes the word back when kubelet knows all of its plugins.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use jiff::Timestamp;
use sublet_api::object::{Node, Pod};
use sublet_api::{is_over, keys};
use sublet_client::{Client, Write};
use sublet_model::NodeName;
use tokio::time::{Instant, sleep};
use tracing::{info, warn};

use crate::api_calls::send;
use crate::checkpoint::{KubeletCheckpoint, is_ours};
use crate::pods::PodSource;

/// Time in which schedulers hear of it, and a Binding that was decided before arrives.
const NEWS: Duration = Duration::from_millis(500);

/// Longest wait for pods that have a node and no devices yet.
const LAST_PODS: Duration = Duration::from_secs(5);

/// Interval between looks at these pods.
const LOOK: Duration = Duration::from_millis(100);

/// Longest time until kubelet asks for the devices of a plugin that it has registered.
const LISTING: Duration = Duration::from_millis(500);

/// An agent that is to end.
pub(super) struct Leave {
    pub(super) client: Client,
    pub(super) node: NodeName,
    pub(super) pods: PodSource,
    /// Kubelet's checkpoint.
    pub(super) checkpoint: PathBuf,
}

impl Leave {
    /// Says it, and waits until no pod counts on this agent any more. Everything else of the agent
    /// must go on meanwhile.
    pub(super) async fn take(&self) {
        let since = Timestamp::now().to_string();
        let word = [(keys::AGENT_AWAY.to_owned(), Some(since))].into();
        let word = Write::node_annotations(&self.node, &word, None);
        if let Err(error) = send(&self.client, &word).await {
            warn!(%error, "ends, and the cluster does not know");
            return;
        }
        info!(node = %self.node, "ends: the node's cards get no new pods");
        sleep(NEWS).await;
        let begun = Instant::now();
        while begun.elapsed() < LAST_PODS {
            if let Ok(pods) = self.pods.now().await
                && !KubeletCheckpoint::read(&self.checkpoint)
                    .is_some_and(|checkpoint| somebody_waits(&pods, &checkpoint))
            {
                return;
            }
            sleep(LOOK).await;
        }
        warn!("ends, and a pod has no devices yet");
    }
}

/// Is there a pod whose devices kubelet has not asked for yet?
fn somebody_waits(pods: &[Pod], checkpoint: &KubeletCheckpoint) -> bool {
    let asks = |pod: &&Pod| {
        let containers = pod.spec.containers.iter();
        let mut asked = containers.flat_map(|one| one.resources.limits.keys());
        asked.any(|resource| is_ours(resource))
    };
    let there = pods.iter().filter(|pod| !is_over(pod));
    there
        .filter(asks)
        .any(|pod| !checkpoint.has_any(&pod.metadata.uid))
}

/// An agent that has come.
#[derive(Debug, Default)]
pub(super) struct Return {
    /// When kubelet took the registration of each resource.
    registered: BTreeMap<String, Instant>,
    is_awaited: bool,
}

impl Return {
    /// Kubelet has taken the registration of that resource's plugin.
    pub(super) fn registered(&mut self, resource: String, now: Instant) {
        self.registered.insert(resource, now);
    }

    /// Returns the annotations to write on the node so that its cards get pods again, once kubelet
    /// knows `resources`.
    pub(super) fn news<'a>(
        &mut self,
        node: &Node,
        mut resources: impl Iterator<Item = &'a str>,
        now: Instant,
    ) -> Option<(String, Option<String>)> {
        self.is_awaited = node.metadata.annotations.contains_key(keys::AGENT_AWAY);
        let is_known = |resource: &str| {
            let at = self.registered.get(resource);
            at.is_some_and(|at| now.duration_since(*at) >= LISTING)
        };
        let is_back = self.is_awaited && resources.all(is_known);
        is_back.then(|| (keys::AGENT_AWAY.to_owned(), None))
    }

    /// When to look again, if nothing happens before `pause`.
    pub(super) fn sooner(&self, pause: Duration) -> Duration {
        if self.is_awaited {
            pause.min(LISTING)
        } else {
            pause
        }
    }
}

#[cfg(test)]
mod tests {
    use sublet_api::object::{Container, Quantity};

    use super::*;

    #[test]
    fn an_agent_is_back_when_kubelet_knows_all_of_its_plugins() {
        let mut node = Node::default();
        let mut back = Return::default();
        let begun = Instant::now();
        let after = |times| begun + LISTING * times;
        let news = |back: &mut Return, node: &Node, times| {
            back.news(node, ["a", "b"].into_iter(), after(times))
        };
        back.registered("a".to_owned(), begun);
        back.registered("b".to_owned(), begun);
        assert_eq!(news(&mut back, &node, 1), None, "it was never away");
        assert_eq!(back.sooner(Duration::from_secs(30)).as_secs(), 30);

        let word = (keys::AGENT_AWAY.to_owned(), "since".to_owned());
        node.metadata.annotations.extend([word]);
        let mut back = Return::default();
        back.registered("a".to_owned(), begun);
        assert_eq!(news(&mut back, &node, 1), None, "kubelet does not know `b`");
        assert_eq!(back.sooner(Duration::from_secs(30)), LISTING);
        back.registered("b".to_owned(), after(1));
        assert_eq!(news(&mut back, &node, 1), None, "it may not have asked yet");
        let word = (keys::AGENT_AWAY.to_owned(), None);
        assert_eq!(news(&mut back, &node, 2), Some(word));
    }

    #[test]
    fn a_pod_waits_until_kubelets_checkpoint_has_its_devices() {
        let pod = |resource: &str| {
            let mut pod = Pod::default();
            pod.metadata.uid = "u".to_owned();
            let mut container = Container::default();
            let one = Quantity("1".to_owned());
            container.resources.limits = [(resource.to_owned(), one)].into();
            pod.spec.containers = vec![container];
            pod
        };
        let check = |pod: &Pod, uid: &str| {
            let checkpoint = format!(
                r#"{{"Data": {{"PodDeviceEntries": [{{"PodUID": "{uid}", "ContainerName": "c",
                "ResourceName": "aliyun.com/gpu-mem", "DeviceIDs": {{"-1": ["d"]}}}}]}}}}"#
            );
            let checkpoint = KubeletCheckpoint::from_json(checkpoint.as_bytes()).unwrap();
            somebody_waits(std::slice::from_ref(pod), &checkpoint)
        };
        let mut ours = pod(keys::ALIYUN_GPU_MEM);
        assert!(check(&ours, "another"));
        assert!(!check(&ours, "u"));
        assert!(!check(&pod("cpu"), "another"));
        ours.status.phase = "Failed".to_owned();
        assert!(!check(&ours, "another"));
    }
}
