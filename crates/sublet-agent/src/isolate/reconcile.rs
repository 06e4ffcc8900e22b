//! Which containers are still to be looked after? A function of the node's pods. All of a pod
//! for as long as it is not over, those that have ended too: kubelet asks for a container's
//! devices once, starts it again whenever it must (init containers as well, with a new sandbox),
//! and mounts the same folder each time. One that has ended costs nothing: a pod is counted at
//! its worst moment, as the cluster does it.

use sublet_api::is_over;
use sublet_api::object::Pod;

use super::record::Record;

/// Is a container still to be looked after, given all pods of the node, freshly listed?
#[must_use]
pub fn is_wanted(record: &Record, pods: &[Pod]) -> bool {
    let pod = pods.iter().find(|pod| pod.metadata.uid == record.uid);
    pod.is_some_and(|pod| !is_over(pod))
}

#[cfg(test)]
mod tests {
    use sublet_api::object::{Anything, ContainerState, ContainerStatus};

    use super::*;

    /// A container of pod `a`, whose init container is in that state, in that phase.
    fn check(init: &str, phase: &str) -> bool {
        let mut pod = Pod::default();
        pod.metadata.uid = "uid-a".to_owned();
        pod.status.phase = phase.to_owned();
        let there = |word| (init == word).then_some(Anything);
        pod.status.init_container_statuses = vec![ContainerStatus {
            name: "i".to_owned(),
            state: ContainerState {
                running: there("running"),
                terminated: there("terminated"),
            },
            ..ContainerStatus::default()
        }];
        is_wanted(&record(), &[Pod::default(), pod])
    }

    fn record() -> Record {
        Record {
            id: Some(1),
            namespace: "ns".to_owned(),
            pod: "a".to_owned(),
            uid: "uid-a".to_owned(),
            container: "i".to_owned(),
            place: "init-0".to_owned(),
            ends_first: true,
            cards: Vec::new(),
            pinned_limit_mib: None,
            libraries: Vec::new(),
        }
    }

    #[test]
    fn a_container_is_looked_after_as_long_as_its_pod_lives() {
        assert!(check("waiting", "Pending"));
        assert!(check("running", "Pending"));
        // With a new sandbox it runs again.
        assert!(check("terminated", "Pending"));
        assert!(check("terminated", "Running"));
        // It has failed, but a container still runs.
        assert!(check("running", "Failed"));
        assert!(!check("terminated", "Succeeded"));
        assert!(!check("waiting", "Failed"));
    }

    #[test]
    fn a_pod_that_is_gone_takes_its_containers_along() {
        let mut stranger = Pod::default();
        stranger.metadata.uid = "uid-b".to_owned();
        assert!(!is_wanted(&record(), &[stranger]));
        assert!(!is_wanted(&record(), &[]));
    }
}
