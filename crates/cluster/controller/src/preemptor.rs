//! The controller that evicts pods in cases that the stock scheduler cannot see.
//!
//! The stock scheduler counts sums. Suppose that a pod asks 14,000 MiB of one card, and two cards
//! have 7,000 MiB free each. The sum is there, so the stock scheduler evicts nobody, and the pod
//! waits for ever. For such a pod this controller searches card by card for evictions that help
//! (`sublet_plan::Rescue`). It makes room in steps, and each step is a write that can be done
//! twice: it notes the victims on the pod, asks them to go by the Eviction API, and nominates the
//! node. The note comes first and is never written again, so a leader that takes over goes on with
//! the same victims, and one request evicts once. The extender reads the note too, and keeps the
//! room. If jobs queue, it shares their ledger, which has their plans, and members of groups are the
//! queue's alone: evictions for them go by quotas.
//!
//! The stock scheduler has the first try: it says `Unschedulable` after its own preemption, and
//! nominates in the same write.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod as PodKind;
use kube::runtime::{Controller, watcher};
use kube::{Api, Client};
use serde_json::json;
use sublet_api::object::Pod;
use sublet_api::{Preempting, is_unschedulable, keys, preempting_to_json, scheduler_of};
use sublet_client::{Act, ObjectAddress, PodWire, Write, event, pod_reference, reference};
use sublet_model::Victim;
use sublet_plan::NoRescue;
use sublet_scheduler::PreemptionVerdict;

use crate::ledger::{LedgerKeeper, SharedLedger};
use crate::shell::{Control, Decision};

/// When a pod that nobody helps is looked at again.
const AGAIN: Duration = Duration::from_secs(30);

/// The controller that evicts.
pub(crate) struct Preemptor {
    /// The schedulers that ask Sublet.
    pub(crate) schedulers: Vec<String>,
    pub(crate) ledgers: Arc<LedgerKeeper>,
}

impl Preemptor {
    /// Does this pod still wait after its scheduler has done all it can?
    fn concerns(&self, pod: &Pod) -> bool {
        is_unschedulable(pod)
            && self.schedulers.iter().any(|one| one == scheduler_of(pod))
            && pod.spec.preemption_policy != "Never"
            && pod.metadata.deletion_timestamp.is_none()
            && pod.status.nominated_node_name.is_empty()
    }
}

impl Control for Preemptor {
    type Object = PodWire;
    type Caches = Arc<SharedLedger>;
    /// `None`: the pod is none of its business.
    type Snapshot = Option<PreemptionVerdict>;

    const NAME: &'static str = "sublet-preemptor";

    fn watch(&self, client: &Client, tenure: u64) -> (Controller<PodWire>, Arc<SharedLedger>) {
        let pods = Api::all_with(client.clone(), &());
        let waiting = watcher::Config::default().fields("spec.nodeName=");
        (
            Controller::new(pods, waiting),
            self.ledgers.of(client, tenure),
        )
    }

    async fn see(&self, ledger: &Arc<SharedLedger>, pod: &PodWire) -> Option<PreemptionVerdict> {
        if !self.concerns(&pod.object) {
            return None;
        }
        ledger.read_replica.ready().await;
        Some(ledger.read_replica.preemption_verdict(&pod.object))
    }

    fn decide(
        &self,
        pod: &PodWire,
        snapshot: &Option<PreemptionVerdict>,
        now: Timestamp,
    ) -> Decision {
        let pod = &pod.object;
        match snapshot {
            None | Some(PreemptionVerdict::Unknown) => Decision::default(),
            Some(PreemptionVerdict::No(no)) => Decision {
                writes: match no {
                    NoRescue::Guarded => vec![blocked(pod, now)],
                    NoRescue::RoomComes | NoRescue::NobodyHelps => Vec::new(),
                },
                again: Some(AGAIN),
            },
            Some(PreemptionVerdict::Possible(decided)) => Decision {
                writes: vec![noted(pod, decided)],
                again: None,
            },
            Some(PreemptionVerdict::Decided(_, left)) if left.is_empty() => Decision::default(),
            Some(PreemptionVerdict::Decided(decided, left)) => {
                let told = left
                    .iter()
                    .map(|victim| preempted(pod, decided, victim, now));
                let evicted = left.iter().map(|victim| Write {
                    to: address(victim.pod.namespace(), victim.pod.name()),
                    act: Act::Evict(victim.uid.to_string()),
                });
                let writes = told.chain(evicted).chain([nominated(pod, decided)]);
                Decision {
                    writes: writes.collect(),
                    again: None,
                }
            }
        }
    }
}

fn address(namespace: &str, name: &str) -> ObjectAddress {
    ObjectAddress::of::<PodKind>(Some(namespace), name)
}

fn address_of(pod: &Pod) -> ObjectAddress {
    address(&pod.metadata.namespace, &pod.metadata.name)
}

/// Notes the victims on the pod, in the version that was seen.
fn noted(pod: &Pod, decided: &Preempting) -> Write {
    Write {
        to: address_of(pod),
        act: Act::Apply(json!({"metadata": {
            "resourceVersion": pod.metadata.resource_version,
            "annotations": { keys::PREEMPTING: preempting_to_json(decided) },
        }})),
    }
}

fn nominated(pod: &Pod, decided: &Preempting) -> Write {
    Write {
        to: address_of(pod),
        act: Act::ApplyStatus(json!({
            "metadata": { "uid": pod.metadata.uid },
            "status": { "nominatedNodeName": decided.node.as_str() },
        })),
    }
}

fn preempted(pod: &Pod, decided: &Preempting, victim: &Victim, now: Timestamp) -> Write {
    let (namespace, name) = (&pod.metadata.namespace, &pod.metadata.name);
    let message = format!(
        "evicted for pod {namespace}/{name} of higher priority, which finds no GPU with enough \
         room; it is to run on node {}",
        decided.node
    );
    let Victim { pod, uid } = victim;
    let about = reference("v1", "Pod", pod.namespace(), pod.name(), uid.as_str());
    event(
        Preemptor::NAME,
        &about,
        "Normal",
        "Preempted",
        &message,
        now,
    )
}

fn blocked(pod: &Pod, now: Timestamp) -> Write {
    let message = "no GPU has enough room; pods of lower priority are in its way, and a \
                   PodDisruptionBudget forbids to evict as many of them as must go, or they are in a \
                   namespace of the system";
    event(
        Preemptor::NAME,
        &pod_reference(pod),
        "Warning",
        "PreemptionBlocked",
        message,
        now,
    )
}

#[cfg(test)]
mod tests {
    use serde_json::Value;
    use sublet_model::{NodeName, PodKey, PodUid, Time, Unit};
    use sublet_tasks::vital;

    use super::*;

    fn waiting(change: impl FnOnce(&mut Value)) -> PodWire {
        let mut pod = json!({
            "metadata": {"name": "w", "namespace": "a", "uid": "u", "resourceVersion": "7"},
            "spec": {"schedulerName": "sublet-scheduler"},
            "status": {"conditions": [
                {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"},
            ]},
        });
        change(&mut pod);
        serde_json::from_value(pod).unwrap()
    }

    fn preemptor() -> Preemptor {
        Preemptor {
            schedulers: vec!["sublet-scheduler".to_owned()],
            ledgers: Arc::new(LedgerKeeper::new(Unit::MiB, None, vital().0)),
        }
    }

    fn decided() -> Preempting {
        let victim = |name: &str| Victim {
            pod: PodKey::new("b", name).unwrap(),
            uid: PodUid::new(&format!("u-{name}")).unwrap(),
        };
        Preempting {
            node: NodeName::new("n1").unwrap(),
            at: Time::from_ms(5_000),
            victims: vec![victim("p"), victim("q")],
        }
    }

    #[test]
    fn only_pods_for_which_the_scheduler_can_do_no_more_are_looked_at() {
        let preemptor = preemptor();
        assert!(preemptor.concerns(&waiting(|_| ()).object));
        let others: [fn(&mut Value); 6] = [
            |pod| pod["status"]["conditions"][0]["status"] = "True".into(),
            |pod| pod["status"]["conditions"][0]["reason"] = "SchedulingGated".into(),
            |pod| pod["status"]["nominatedNodeName"] = "n1".into(),
            |pod| pod["spec"]["schedulerName"] = "default-scheduler".into(),
            |pod| pod["spec"]["preemptionPolicy"] = "Never".into(),
            |pod| pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into(),
        ];
        for (at, change) in others.into_iter().enumerate() {
            assert!(!preemptor.concerns(&waiting(change).object), "{at}");
        }
    }

    #[test]
    fn it_is_noted_who_goes_before_anybody_does() {
        let (pod, now) = (waiting(|_| ()), Timestamp::now());
        let possible = Some(PreemptionVerdict::Possible(decided()));
        let decision = preemptor().decide(&pod, &possible, now);
        let [
            Write {
                to,
                act: Act::Apply(note),
            },
        ] = &decision.writes[..]
        else {
            panic!("{decision:?}")
        };
        assert_eq!(*to, address("a", "w"));
        assert_eq!(note["metadata"]["resourceVersion"], "7");
        let text = note["metadata"]["annotations"][keys::PREEMPTING].as_str();
        assert_eq!(text, Some(preempting_to_json(&decided()).as_str()));
    }

    #[test]
    fn who_is_left_is_told_and_evicted_and_then_the_node_is_nominated() {
        let (pod, now) = (waiting(|_| ()), Timestamp::now());
        let left = decided().victims[1..].to_vec();
        let snapshot = Some(PreemptionVerdict::Decided(decided(), left));
        let decision = preemptor().decide(&pod, &snapshot, now);
        let [told, evicted, nominated] = &decision.writes[..] else {
            panic!("{decision:?}")
        };
        assert_eq!(told.to.name, "preempted.u-q");
        assert_eq!(evicted.to, address("b", "q"));
        assert_eq!(evicted.act, Act::Evict("u-q".to_owned()));
        assert_eq!(nominated.to, address("a", "w"));
        let Act::ApplyStatus(status) = &nominated.act else {
            panic!("{nominated:?}")
        };
        assert_eq!(status["status"]["nominatedNodeName"], "n1");
        let done = Some(PreemptionVerdict::Decided(decided(), Vec::new()));
        assert_eq!(preemptor().decide(&pod, &done, now), Decision::default());
    }

    #[test]
    fn a_budget_in_the_way_is_told_on_the_pod() {
        let (pod, now) = (waiting(|_| ()), Timestamp::now());
        let decide = |no| preemptor().decide(&pod, &Some(PreemptionVerdict::No(no)), now);
        let [event] = &decide(NoRescue::Guarded).writes[..] else {
            panic!("no event")
        };
        assert_eq!(event.to.name, "preemptionblocked.u");
        let nobody = decide(NoRescue::NobodyHelps);
        assert_eq!((nobody.writes, nobody.again), (Vec::new(), Some(AGAIN)));
    }
}
