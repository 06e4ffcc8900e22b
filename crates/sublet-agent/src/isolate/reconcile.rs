//! Which containers are still to be looked after? A function of the node's pods. A folder
//! stays for as long as its pod does, because kubelet asks for a container's devices once and
//! mounts the same folder again whenever it restarts the container; the job with the arbiter
//! may end earlier.

use sublet_api::is_over;
use sublet_api::object::Pod;

use super::record::Record;

/// What becomes of a container's job and folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wish {
    /// It may have processes: the arbiter looks after it.
    Keep,
    /// It has ended and its pod has not: others may have its memory, but its folder stays.
    Rest,
    /// Its pod is gone.
    Forget,
}

/// What is to become of a container, given all pods of the node, freshly listed.
#[must_use]
pub fn wish(record: &Record, pods: &[Pod]) -> Wish {
    let pod = pods.iter().find(|pod| pod.metadata.uid == record.uid);
    let Some(pod) = pod.filter(|pod| !is_over(pod)) else {
        return Wish::Forget;
    };
    let statuses = &pod.status.init_container_statuses;
    let own = statuses
        .iter()
        .find(|status| status.name == record.container);
    let has_ended = own.is_some_and(|status| status.state.terminated.is_some());
    if record.ends_first && has_ended {
        Wish::Rest
    } else {
        Wish::Keep
    }
}

#[cfg(test)]
mod tests {
    use sublet_api::object::{Anything, ContainerState, ContainerStatus};

    use super::*;

    /// A pod `a` with an init container in that state, and in that phase.
    fn check(place: &str, init: &str, phase: &str) -> Wish {
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
        }];
        let record = Record {
            id: Some(1),
            namespace: "ns".to_owned(),
            pod: "a".to_owned(),
            uid: "uid-a".to_owned(),
            container: if place == "init-0" { "i" } else { "m" }.to_owned(),
            place: place.to_owned(),
            ends_first: place == "init-0",
            cards: Vec::new(),
        };
        wish(&record, &[Pod::default(), pod])
    }

    #[test]
    fn an_init_container_that_has_ended_rests() {
        assert_eq!(check("init-0", "waiting", "Pending"), Wish::Keep);
        assert_eq!(check("init-0", "running", "Pending"), Wish::Keep);
        assert_eq!(check("init-0", "terminated", "Pending"), Wish::Rest);
        assert_eq!(check("init-0", "terminated", "Running"), Wish::Rest);
        assert_eq!(check("main-0", "terminated", "Running"), Wish::Keep);
    }

    #[test]
    fn a_pod_that_is_over_or_gone_is_forgotten() {
        assert_eq!(check("main-0", "terminated", "Succeeded"), Wish::Forget);
        assert_eq!(check("main-0", "waiting", "Failed"), Wish::Forget);
        // It has failed, but a container still runs.
        assert_eq!(check("init-0", "running", "Failed"), Wish::Keep);
        let mut stranger = Pod::default();
        stranger.metadata.uid = "uid-b".to_owned();
        let record = Record {
            id: None,
            namespace: String::new(),
            pod: String::new(),
            uid: "uid-a".to_owned(),
            container: String::new(),
            place: "main-0".to_owned(),
            ends_first: false,
            cards: Vec::new(),
        };
        assert_eq!(wish(&record, &[stranger]), Wish::Forget);
        assert_eq!(wish(&record, &[]), Wish::Forget);
    }
}
