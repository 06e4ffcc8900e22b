//! Pods that go and pods that stay, by the noted age; and a world of a ReplicaSet, a webhook that
//! comes and goes, and leaders that forget everything.

use proptest::prelude::*;

use super::*;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_700_000_000 + second).unwrap()
}

/// A pod that was created at that second; `owner`: `apps/v1/ReplicaSet`, or nothing.
fn pod(uid: &str, created: i64, owner: &str) -> PodWire {
    let owners = match owner.rsplit_once('/') {
        None => json!([]),
        Some((api_version, kind)) => json!([{
            "apiVersion": api_version, "kind": kind, "name": "web", "uid": "o", "controller": true,
        }]),
    };
    let pod = json!({"metadata": {
        "name": format!("web-{uid}"), "namespace": "a", "uid": uid, "resourceVersion": "7",
        "creationTimestamp": at(created).to_string(), "ownerReferences": owners,
    }});
    serde_json::from_value(pod).unwrap()
}

fn keeper() -> IncompletePods {
    IncompletePods {
        rules: AdmissionRules {
            unit: sublet_model::Unit::MiB,
            schedulers: vec!["sublet-scheduler".to_owned()],
            assign: None,
            slots: false,
            queue: false,
        },
        known: Known {
            namespaces: watch::channel(None).1,
            flavors: watch::channel(None).1,
            quotas: watch::channel(None).1,
        },
        namespace: "sublet-system".to_owned(),
        certificate: watch::channel(None).1,
    }
}

fn lacks(owner: Option<Remaker>) -> IncompleteSnapshot {
    IncompleteSnapshot::Lacks {
        field: keys::GPU_SLOT,
        begun: at(0),
        owner,
    }
}

fn remaker(pod: &PodWire, noted: Option<i64>, completed: Option<i64>) -> Option<Remaker> {
    Some(Remaker {
        owner: pod.object.metadata.controller()?.clone(),
        youngest: at(130),
        noted: noted.map(at),
        completed: completed.map(at),
    })
}

/// `note SECOND`, `delete POD`, `tell: WORDS`.
fn said(decision: &Decision) -> Vec<String> {
    let write = |write: &Write| match &write.act {
        Act::Delete { uid, version } => {
            assert_eq!(version.as_deref(), Some("7"));
            assert_eq!(write.to.name, format!("web-{uid}"));
            format!("delete {uid}")
        }
        Act::Apply(event) => match until(event) {
            Some(until) => {
                assert_eq!(write.to, note_address("a", &owner()));
                format!("note {}", until.as_second() - at(0).as_second())
            }
            None => format!("tell: {}", event["message"].as_str().unwrap()),
        },
        other => panic!("{other:?}"),
    };
    decision.writes.iter().map(write).collect()
}

fn owner() -> OwnerReference {
    let pod = pod("p", 0, "apps/v1/ReplicaSet");
    pod.object.metadata.controller().unwrap().clone()
}

#[test]
fn a_pod_that_is_made_anew_goes_once() {
    let (keeper, now) = (keeper(), at(200));
    let of_set = pod("p", 100, "apps/v1/ReplicaSet");
    let decide = |noted, completed| {
        let snapshot = lacks(remaker(&of_set, noted, completed));
        said(&keeper.decide(&of_set, &snapshot, now))
    };
    // All that wait are noted before the first of them goes.
    assert_eq!(decide(None, None), ["note 130", "delete p"]);
    assert_eq!(decide(Some(130), None), ["note 130", "delete p"]);
    // The one that waits since 130 may be made anew already.
    assert_eq!(decide(Some(100), None), ["note 100", "delete p"]);
    // It is one that was made anew.
    for completed in [None, Some(98), Some(99)] {
        let [note, told] = &decide(Some(99), completed)[..] else {
            panic!("{:?}", decide(Some(99), completed))
        };
        assert_eq!(note, "note 99");
        assert!(told.contains("it was made anew already, and lacks it again"));
    }
    // The webhook has answered since, and was away once more.
    assert_eq!(decide(Some(99), Some(100)), ["note 130", "delete p"]);
    assert_eq!(decide(Some(99), Some(150)), ["note 150", "delete p"]);
    assert_eq!(decide(None, Some(150)), ["note 150", "delete p"]);
}

#[test]
fn whom_nobody_makes_anew_is_told_what_to_do() {
    let told = |owner: &str| {
        let pod = pod("p", 100, owner);
        let reference = pod.object.metadata.controller();
        assert!(!reference.is_some_and(remakes), "{owner}");
        let decision = keeper().decide(&pod, &lacks(None), at(200));
        assert_eq!(decision.again, Some(AGAIN));
        let [told] = &said(&decision)[..] else {
            panic!("{decision:?}")
        };
        told.rsplit_once("take it: ").unwrap().1.to_owned()
    };
    assert_eq!(told(""), "delete the pod and create it again");
    assert_eq!(
        told("batch/v1/Job"),
        "delete the pod, and Job web makes another, but counts this one as a failure \
         (`backoffLimit`); or create the Job again"
    );
    for other in ["kubeflow.org/v1/PyTorchJob", "example.org/v1/ReplicaSet"] {
        assert!(told(other).ends_with("web makes another"), "{other}");
    }
    for kind in ["ReplicaSet", "StatefulSet", "DaemonSet"] {
        let pod = pod("p", 0, &format!("apps/v1/{kind}"));
        assert!(remakes(pod.object.metadata.controller().unwrap()), "{kind}");
    }
    let old = pod("p", 0, "v1/ReplicationController");
    assert!(remakes(old.object.metadata.controller().unwrap()));
}

#[test]
fn nothing_goes_before_the_webhook_had_time_to_come_back() {
    let of_set = pod("p", 100, "apps/v1/ReplicaSet");
    let again = |snapshot: &IncompleteSnapshot, now| {
        let decision = keeper().decide(&of_set, snapshot, at(now));
        (decision.writes.len(), decision.again)
    };
    let seconds = |seconds| Some(Duration::from_secs(seconds));
    let new = lacks(remaker(&of_set, None, None));
    assert_eq!(again(&new, 99), (0, seconds(30)));
    assert_eq!(again(&new, 110), (0, seconds(20)));
    assert_eq!(again(&new, 130), (2, None));
    let late = IncompleteSnapshot::Lacks {
        field: keys::GPU_SLOT,
        begun: at(150),
        owner: remaker(&of_set, None, None),
    };
    assert_eq!(again(&late, 160), (0, seconds(20)));
    assert_eq!(again(&IncompleteSnapshot::Unknown, 500), (0, seconds(30)));
    assert_eq!(again(&IncompleteSnapshot::Complete, 500), (0, None));
}

/// One pod of a ReplicaSet: when it was created, and whether the webhook completed it.
#[derive(Debug, Clone)]
struct Made {
    uid: usize,
    created: i64,
    complete: bool,
}

/// A ReplicaSet's pods, and the note on it. All that a leader knows it reads from here.
#[derive(Debug, Default)]
struct World {
    pods: Vec<Made>,
    made: usize,
    noted: Option<Timestamp>,
}

impl World {
    fn make(&mut self, created: i64, complete: bool) {
        let uid = self.made;
        self.made += 1;
        self.pods.push(Made {
            uid,
            created,
            complete,
        });
    }

    /// The controller looks at each pod that lacks something; returns the pods that it deletes.
    fn look(&mut self, now: i64, answers: bool) -> Vec<Made> {
        let mut gone = Vec::new();
        let incomplete: Vec<Made> = self
            .pods
            .iter()
            .filter(|one| !one.complete)
            .cloned()
            .collect();
        for one in incomplete {
            let waiting = self.pods.iter().filter(|one| !one.complete);
            let youngest = waiting.map(|one| at(one.created)).max().unwrap();
            let complete = self.pods.iter().filter(|one| one.complete);
            let wire = pod(&one.uid.to_string(), one.created, "apps/v1/ReplicaSet");
            let snapshot = lacks(Some(Remaker {
                owner: owner(),
                youngest,
                noted: self.noted,
                completed: complete.map(|one| at(one.created)).max(),
            }));
            let decision = keeper().decide(&wire, &snapshot, at(now));
            for write in &decision.writes {
                match &write.act {
                    Act::Apply(event) => self.noted = until(event).or(self.noted),
                    Act::Delete { .. } => {
                        self.pods.retain(|other| other.uid != one.uid);
                        gone.push(one.clone());
                        self.make(now, answers);
                    }
                    other => panic!("{other:?}"),
                }
            }
        }
        gone
    }
}

proptest! {
    /// Minutes in which the webhook answers or not, and pods come. In every case, a pod that was
    /// made anew in an outage is not made anew in the same one.
    #[test]
    fn no_pod_is_made_anew_twice_in_one_outage(
        minutes in prop::collection::vec((any::<bool>(), 0_usize..3), 1..20),
    ) {
        let mut world = World::default();
        let mut replaced: Vec<usize> = Vec::new();
        let mut was_away = false;
        for (minute, (answers, more)) in (0..).zip(minutes) {
            let now = (minute + 1) * 60;
            if answers || !was_away {
                replaced.clear();
            }
            was_away = !answers;
            let before = world.made;
            let gone = world.look(now, answers);
            for one in &gone {
                prop_assert!(!replaced.contains(&one.uid), "{one:?} goes again");
            }
            replaced.extend(before..world.made);
            for _ in 0..more {
                world.make(now + 1, answers);
            }
        }
        // One that comes while it answers shows that, and then all others go.
        world.make(60 * 29, true);
        world.look(60 * 30, true);
        prop_assert!(world.pods.iter().all(|one| one.complete), "{world:?}");
    }
}
