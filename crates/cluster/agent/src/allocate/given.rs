//! The containers that an agent has served, as far as it knows beside the pods' annotations.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use sublet_api::object::{Container, Pod};
use sublet_model::{ContainerName, PodUid};

use crate::checkpoint::KubeletCheckpoint;

/// Devices that this process has handed over, or is about to. The pods' annotations say the same,
/// but a list may come from a server that lags behind, or have been asked for before.
#[derive(Clone, Debug, Default)]
pub struct Given {
    handed: BTreeMap<PodUid, Served>,
    /// Was kubelet's checkpoint read just now? Without it nobody is served in doubt.
    with_checkpoint: bool,
    /// Is the pod of every answer known?
    settled: bool,
    /// Time of the last answer without a known pod.
    doubt: Option<Instant>,
}

/// Notes about one pod.
#[derive(Clone, Debug)]
struct Served {
    containers: BTreeSet<ContainerName>,
    /// When the last was.
    last: Instant,
}

impl Given {
    /// Notes that a container has its devices, or is about to get them.
    pub fn note(&mut self, pod: &PodUid, container: &ContainerName, now: Instant) {
        let served = self.handed.entry(pod.clone()).or_insert_with(|| Served {
            containers: BTreeSet::new(),
            last: now,
        });
        served.containers.insert(container.clone());
        served.last = now;
    }

    /// It does not get them after all.
    pub(crate) fn withdraw(&mut self, pod: &PodUid, container: &ContainerName) {
        if let Some(served) = self.handed.get_mut(pod) {
            served.containers.remove(container);
        }
    }

    /// Notes the containers that kubelet has served by its own checkpoint; `None`: it cannot be read.
    pub(crate) fn learn(
        &mut self,
        pods: &[Pod],
        checkpoint: Option<&KubeletCheckpoint>,
        now: Instant,
    ) {
        self.with_checkpoint = checkpoint.is_some();
        for pod in pods {
            let uid = &pod.metadata.uid;
            let containers = pod.spec.init_containers.iter().chain(&pod.spec.containers);
            let served =
                |one: &&Container| checkpoint.is_some_and(|b| b.has_served(uid, &one.name));
            for one in containers.filter(served) {
                if let (Ok(uid), Ok(name)) = (PodUid::new(uid), ContainerName::new(&one.name)) {
                    self.note(&uid, &name, now);
                }
            }
        }
    }

    /// Notes an answer without a known pod.
    pub(crate) fn doubt(&mut self, now: Instant) {
        self.doubt = Some(now);
        self.settled = false;
    }

    /// Says whether the pod is known of each answer that was given before `asked`. It is not when
    /// the process begins.
    pub(crate) fn settle(&mut self, settled: bool, asked: Instant) {
        let is_older = self.doubt.is_none_or(|doubt| doubt < asked);
        self.settled = settled && is_older;
    }

    /// May one of several pods be served?
    pub(super) fn has_checkpoint(&self) -> bool {
        self.with_checkpoint
    }

    /// Need kubelet's checkpoint not be read before the next answer?
    pub(crate) fn is_settled(&self) -> bool {
        self.settled
    }

    /// Forgets pods that were not on the node any more when its pods were asked for.
    pub fn keep(&mut self, pods: &[Pod], asked: Instant) {
        self.handed.retain(|uid, served| {
            let is_there = |pod: &Pod| pod.metadata.uid == uid.as_str();
            served.last >= asked || pods.iter().any(is_there)
        });
    }

    /// Has that container its devices?
    pub(super) fn has(&self, pod: &PodUid, container: &ContainerName) -> bool {
        let served = self.handed.get(pod);
        served.is_some_and(|served| served.containers.contains(container))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_list_of_before_says_nothing_of_what_was_given_since() {
        let begun = Instant::now();
        let at = |seconds| begun + Duration::from_secs(seconds);
        let (pod, container) = (PodUid::new("a").unwrap(), ContainerName::new("c").unwrap());
        let mut given = Given::default();
        assert!(!given.is_settled());
        given.note(&pod, &container, at(5));
        given.keep(&[], at(4));
        assert!(given.has(&pod, &container));
        given.keep(&[], at(6));
        assert!(!given.has(&pod, &container));
        given.doubt(at(5));
        given.settle(true, at(4));
        assert!(!given.is_settled(), "the doubt is newer");
        given.settle(true, at(6));
        assert!(given.is_settled());
        given.settle(false, at(7));
        assert!(!given.is_settled());
        // What is not handed over after all can be asked for again.
        given.note(&pod, &container, at(8));
        given.withdraw(&pod, &container);
        assert!(!given.has(&pod, &container));
    }
}
