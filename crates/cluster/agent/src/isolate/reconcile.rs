//! Decides which containers are still to be looked after: a function of the node's pods.
//!
//! These are all containers of a pod until it is over, also containers that have ended. Kubelet
//! asks for a container's devices once, starts it again whenever it must (init containers as well,
//! with a new sandbox), and mounts the same folder each time. A container that has ended costs
//! nothing: a pod is counted at its worst moment, as in the cluster.
//!
//! Also here: the cards of pods that do not name their cards themselves.

use std::sync::Arc;

use sublet_api::object::Pod;
use sublet_api::{Handed, bound_entry, dialect, is_over};
use sublet_model::{CardRef, GpuIndex, GpuUuid, Unit};

use super::record::Record;

/// Is a container still to be looked after, given all pods of the node, freshly listed?
#[must_use]
pub fn is_wanted(record: &Record, pods: &[Pod]) -> bool {
    // Of one of several pods as long as any of them may have it.
    record.holders().any(|uid| is_there(uid, pods))
}

/// Is that pod among them, and not over?
#[must_use]
pub fn is_there(uid: &str, pods: &[Pod]) -> bool {
    let pod = pods.iter().find(|pod| pod.metadata.uid == uid);
    pod.is_some_and(|pod| !is_over(pod))
}

/// The cards of pods that do not say themselves which they have, as far as we handed them
/// over: the scheduler would have to keep as much free on every card for each of them.
#[must_use]
pub fn lost<'a>(records: impl Iterator<Item = &'a Record>, pods: &[Pod], unit: Unit) -> Handed {
    let mut handed = Handed::new();
    for record in records {
        let pod = pods.iter().find(|pod| pod.metadata.uid == record.uid);
        let Some(pod) = pod.filter(|pod| !is_over(pod)) else {
            continue;
        };
        let Ok(Some(claim)) = dialect::claim_of(pod, unit) else {
            continue;
        };
        let Ok((entry, _problem)) = bound_entry(pod, Arc::new(claim)) else {
            continue;
        };
        if entry.allocation.is_some() {
            continue;
        }
        let cards = handed.entry(entry.uid).or_default();
        for card in &record.cards {
            let uuid = card.uuid.as_deref();
            let card = CardRef {
                index: GpuIndex(card.index),
                uuid: uuid.and_then(|uuid| GpuUuid::new(uuid).ok()),
            };
            // Containers of a pod share their card.
            if !cards.contains(&card) {
                cards.push(card);
            }
        }
    }
    handed
}

#[cfg(test)]
mod tests {
    use sublet_api::handed_to_json;
    use sublet_api::object::{Anything, ContainerState, ContainerStatus};

    use super::*;
    use crate::isolate::record::{RecordCard, Seat};

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
            compute: None,
            slice: None,
            mps: false,
            libraries: Vec::new(),
            seat: None,
        }
    }

    #[test]
    fn a_seat_stays_while_anybody_may_have_it() {
        let twin = |name: &str| [format!("uid-{name}"), "ns".to_owned(), name.to_owned()];
        let mut seat = Record {
            uid: "seat-1".to_owned(),
            pod: "?".to_owned(),
            seat: Some(Seat {
                folder: "seat-1".to_owned(),
                device: "GPU-a-_-0".to_owned(),
                twins: vec![twin("a"), twin("b")],
            }),
            ..record()
        };
        let pods = |names: &[&str]| -> Vec<Pod> {
            let pod = |name: &&str| {
                let mut pod = Pod::default();
                pod.metadata.uid = format!("uid-{name}");
                pod
            };
            names.iter().map(pod).collect()
        };
        for (names, wanted) in [(&["a", "c"][..], true), (&["b"], true), (&["c"], false)] {
            assert_eq!(is_wanted(&seat, &pods(names)), wanted, "{names:?}");
        }
        // Who has another seat has not this one. If all have, an answer was lost on its way.
        let mut lost = seat.clone();
        assert!(lost.rule_out(|uid| uid == "uid-a"));
        assert!(!lost.rule_out(|uid| uid == "uid-a"));
        assert!(!is_wanted(&lost, &pods(&["a"])) && is_wanted(&lost, &pods(&["a", "b"])));
        assert!(lost.rule_out(|uid| uid == "uid-b"));
        assert!(!is_wanted(&lost, &pods(&["a", "b"])));
        let folder = seat.folder("/s".as_ref());
        assert!(!seat.is_of("uid-c"));
        assert!(seat.is_of("uid-b"));
        assert_eq!(
            (seat.name(), seat.folder("/s".as_ref())),
            ("ns/b/i".to_owned(), folder)
        );
        // It is the other's no more.
        assert!(!seat.is_of("uid-a"));
        assert!(!is_wanted(&seat, &pods(&["a"])));
        assert!(is_wanted(&seat, &pods(&["b"])));
    }

    #[test]
    fn a_pod_that_does_not_say_its_card_has_those_that_we_handed_over() {
        let pod = |annotations: &str| -> Pod {
            let text = format!(
                r#"{{"metadata":{{"name":"a","namespace":"ns","uid":"uid-a","annotations":{{{annotations}}}}},
                     "spec":{{"nodeName":"n","containers":[
                         {{"name":"c","resources":{{"limits":{{"aliyun.com/gpu-mem":4}}}}}}]}}}}"#
            );
            serde_json::from_str(&text).unwrap()
        };
        let card = |index, uuid: Option<&str>| RecordCard {
            index,
            uuid: uuid.map(str::to_owned),
            limit_mib: 4,
        };
        let with = |cards| Record { cards, ..record() };
        let records = [
            with(vec![card(1, Some("GPU-b"))]),
            with(vec![card(1, Some("GPU-b"))]),
            Record {
                uid: "uid-gone".to_owned(),
                ..with(vec![card(0, None)])
            },
        ];
        let check = |pod: Pod| handed_to_json(&lost(records.iter(), &[pod], Unit::MiB));
        let known = r#"{"uid-a":[{"index":1,"uuid":"GPU-b"}]}"#;
        assert_eq!(check(pod("")), known);
        assert_eq!(check(pod(r#""ALIYUN_COM_GPU_MEM_IDX":"one""#)), known);
        assert_eq!(check(pod(r#""ALIYUN_COM_GPU_MEM_IDX":"0""#)), "{}");
        let mut over = pod("");
        over.status.phase = "Failed".to_owned();
        assert_eq!(check(over), "{}");
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
