//! Groups of many objects: their pods, their roles, and their members that have a place.

use proptest::prelude::*;
use sublet_model::{MiB, Time, Unit};
use sublet_queue::protocol::PlannedGroup;
use sublet_queue::{GroupId, Slot};

use super::{json, pod, read};
use crate::gang_plan::GangPlan;
use crate::group::{
    Gathered, GroupSources, JobFacts, PodGroupFacts, ShapeMemo, gather, job_kind, read_job,
    read_pod_group,
};
use crate::keys;
use crate::object::Pod;
use crate::quota_index::QuotaIndex;

/// Objects of any kind, as documents.
#[derive(Default)]
pub(super) struct World {
    pods: Vec<Pod>,
    pod_groups: Vec<PodGroupFacts>,
    jobs: Vec<JobFacts>,
    plans: Vec<GangPlan>,
}

impl World {
    pub(super) fn of(documents: &[String]) -> World {
        let mut world = World::default();
        for text in documents {
            let object = json(text);
            let field = |name: &str| object[name].as_str().unwrap_or_default();
            let (api, kind) = (field("apiVersion"), field("kind"));
            match (job_kind(api, kind), kind) {
                (Some(kind), _) => world.jobs.push(read_job(kind, &object).unwrap()),
                (None, "PodGroup") => {
                    let facts = read_pod_group(api, &object).unwrap();
                    world.pod_groups.push(facts.unwrap());
                }
                _ => world.pods.push(pod(text)),
            }
        }
        world
    }

    pub(super) fn gather(&self) -> Gathered {
        let pods: Vec<&Pod> = self.pods.iter().collect();
        let sources = GroupSources {
            pods: &pods,
            pod_groups: &self.pod_groups.iter().collect::<Vec<_>>(),
            jobs: &self.jobs.iter().collect::<Vec<_>>(),
            plans: &self.plans.iter().collect::<Vec<_>>(),
            quotas: &QuotaIndex::default(),
            priority: &|class| (class == "high").then_some(100),
            is_queued: &|pod| pod.spec.scheduler_name == "ours",
            unit: Unit::MiB,
            card: MiB::from(1000),
            now: Time::from_ms(9),
        };
        gather(sources, &mut ShapeMemo::default())
    }

    /// A line for each group: `ID prio P satisfied: GANG min N: ROLE MIN/REPLICAS [INDEX=NODE…]`.
    fn outline(&self) -> Vec<String> {
        let gathered = self.gather();
        let problems = gathered.problems.iter();
        let problems = problems.map(|problem| format!("{}: {}", problem.of, problem.error.what));
        let groups = gathered.groups.iter().map(|queued| {
            let group = &queued.group;
            let mut line = format!("{} prio {}", group.id, group.priority);
            if group.satisfied {
                line += " satisfied";
            }
            for gang in &group.gangs {
                line += &format!("; {} min {}:", gang.name, gang.min);
                for role in &gang.roles {
                    // The name of a role of a gang is a number that says nothing.
                    let name = role.name.split("pods-").next().unwrap_or_default();
                    line += &format!(" {name} {}/{}", role.min, role.replicas);
                    for member in &role.members {
                        line += &format!(" {}={}", member.index, member.node);
                    }
                }
            }
            line.replace("  ", " ")
        });
        groups.chain(problems).collect()
    }
}

/// A pod of ours that asks so many cards; `meta` and `spec` are further fields.
pub(super) fn ours(name: &str, cards: u32, meta: &str, spec: &str) -> String {
    format!(
        "{{metadata: {{name: {name}, namespace: ns, uid: u-{name}, {meta}}}, spec: {{schedulerName: ours, \
         containers: [{{name: c, resources: {{limits: {{nvidia.com/gpu: {cards}}}}}}}], {spec}}}}}"
    )
}

pub(super) const IN_GANG: &str = "labels: {scheduling.x-k8s.io/pod-group: g}";

fn pod_group(api: &str, rest: &str) -> String {
    format!(
        "{{apiVersion: {api}, kind: PodGroup, metadata: {{name: g, namespace: ns}}, spec: {{{rest}}}}}"
    )
}

const PLUGINS: &str = "scheduling.x-k8s.io/v1alpha1";

#[test]
fn a_pod_alone_is_a_group_of_one() {
    let world = World::of(&[
        ours("a", 1, "", "priority: 5"),
        ours("b", 1, "", "nodeName: n1"),
        ours("stranger", 1, "", "").replace("ours", "theirs"),
    ]);
    assert_eq!(
        world.outline(),
        [
            "pod/ns/a prio 5; pod min 1: pod 1/1",
            "pod/ns/b prio 0 satisfied; pod min 1: pod 1/1 0=n1",
        ]
    );
    let gathered = world.gather();
    let role = &gathered.groups[0].group.gangs[0].roles[0];
    let amount = |name: &str| role.pod.amounts[name];
    assert_eq!((amount("nvidia.com/gpu"), amount(keys::GPU)), (1, 1));
    assert_eq!(
        (amount(keys::GPU_MEMORY), amount(keys::GPU_COMPUTE)),
        (1000 << 20, 100)
    );
    assert_eq!(
        &*gathered.groups[0].group.quota,
        "koordinator-default-quota"
    );
}

#[test]
fn pods_of_a_gang_that_ask_the_same_are_a_role() {
    let world = World::of(&[
        pod_group(PLUGINS, "minMember: 3"),
        ours("a", 1, IN_GANG, "nodeName: n1"),
        ours("b", 1, IN_GANG, ""),
        ours("c", 1, IN_GANG, "priorityClassName: high"),
        ours(
            "done",
            1,
            IN_GANG,
            "nodeName: n1}, status: {phase: Succeeded",
        ),
    ]);
    // Who has ended well counts.
    let expected = "podgroup/ns/g prio 100; ns/g min 2: 0/3 0=n1";
    assert_eq!(world.outline(), [expected]);
    let other = ours("d", 2, IN_GANG, "");
    let world = World::of(&[
        pod_group(PLUGINS, "minMember: 2"),
        other,
        ours("b", 1, IN_GANG, ""),
    ]);
    assert_eq!(world.gather().groups[0].group.gangs[0].roles.len(), 2);
}

#[test]
fn a_gang_without_its_pod_group_says_so() {
    let world = World::of(&[ours("a", 1, IN_GANG, "")]);
    let said = world.outline();
    assert_eq!(said.len(), 1);
    assert!(said[0].starts_with("pod/ns/a: it starts with podgroup/ns/g, which is not there"));
}

#[test]
fn gangs_that_name_each_other_are_one_group() {
    let in_gang = |gang: &str| {
        format!(
            "annotations: {{gang.scheduling.koordinator.sh/name: {gang}, \
             gang.scheduling.koordinator.sh/min-available: '1', \
             gang.scheduling.koordinator.sh/groups: '[\"ns/h\",\"ns/g\"]'}}"
        )
    };
    let both = [
        ours("a", 1, &in_gang("g"), ""),
        ours("b", 1, &in_gang("h"), ""),
    ];
    let together = "podgroup/ns/g+ns/h prio 0; ns/g min 1: ns/g/ 0/1; ns/h min 1: ns/h/ 0/1";
    assert_eq!(World::of(&both).outline(), [together]);
    // One that has not come yet is waited for.
    let waiting = "podgroup/ns/g+ns/h prio 0; ns/g min 1: ns/g/ 0/1; ns/h min 1:";
    assert_eq!(World::of(&both[..1]).outline(), [waiting]);
}

fn tf_job(suspend: bool) -> String {
    let role = |n: u32, cards: u32| {
        format!(
            "{{replicas: {n}, template: {{spec: {{schedulerName: ours, priorityClassName: high, containers: \
             [{{name: c, resources: {{limits: {{nvidia.com/gpu: {cards}}}}}}}]}}}}}}"
        )
    };
    format!(
        "{{apiVersion: kubeflow.org/v1, kind: TFJob, metadata: {{name: t, namespace: ns, uid: t}}, \
         spec: {{runPolicy: {{suspend: {suspend}}}, tfReplicaSpecs: {{PS: {}, Worker: {}}}}}}}",
        role(1, 0),
        role(2, 1)
    )
}

fn tf_pod(name: &str, role: &str, index: u32, spec: &str) -> String {
    let meta = format!(
        "labels: {{training.kubeflow.org/replica-type: {role}, \
         training.kubeflow.org/replica-index: '{index}', scheduling.x-k8s.io/pod-group: g}}, \
         ownerReferences: [{{apiVersion: kubeflow.org/v1, kind: TFJob, name: t, controller: true}}]"
    );
    ours(name, 1, &meta, spec)
}

#[test]
fn a_job_has_its_members_before_it_has_pods() {
    let suspended = World::of(&[tf_job(true)]);
    let group = "tfjob/ns/t prio 100; t min 3: ps 1/1 worker 2/2";
    assert_eq!(suspended.outline(), [group]);
    assert!(suspended.gather().groups[0].is_suspended);
    // The PodGroup that its operator makes of it is the same group.
    let world = World::of(&[
        tf_job(false),
        pod_group(PLUGINS, "minMember: 3"),
        tf_pod("p", "ps", 0, "nodeName: n1"),
        tf_pod("w", "worker", 1, "nodeName: n2"),
    ]);
    let expected = "tfjob/ns/t prio 100; t min 3: ps 1/1 0=n1 worker 2/2 1=n2";
    assert_eq!(world.outline(), [expected]);
}

#[test]
fn slots_of_plans_are_members_until_a_pod_is_bound() {
    let mut world = World::of(&[tf_job(false), tf_pod("w", "worker", 1, "nodeName: n2")]);
    let slot = |index: u32, node: &str, pod: Option<&str>| Slot {
        role: "worker".into(),
        index,
        node: sublet_model::NodeName::new(node).unwrap(),
        allocation: sublet_model::Allocation::default(),
        pod: pod.map(|uid| sublet_model::PodUid::new(uid).unwrap()),
    };
    world.plans.push(GangPlan {
        name: "p1".into(),
        version: "".into(),
        epoch: 1,
        deadline: Time::from_ms(0),
        groups: vec![PlannedGroup {
            id: GroupId::new("tfjob/ns/t"),
            quota: "q".into(),
            roles: Vec::new(),
            slots: vec![slot(0, "n3", None), slot(1, "n2", Some("u-w"))],
            victims: Vec::new(),
        }],
    });
    let expected = "tfjob/ns/t prio 100; t min 3: ps 1/1 worker 2/2 0=n3 1=n2";
    assert_eq!(world.outline(), [expected]);
    let gathered = world.gather();
    let members = &gathered.groups[0].group.gangs[0].roles[1].members;
    assert_eq!(members[0].uid.as_str(), "slot:p1:tfjob:ns:t:worker:0");
    assert_eq!(members[1].uid.as_str(), "u-w");
}

#[test]
fn a_train_job_has_the_shape_of_its_job_set() {
    let train = "{apiVersion: trainer.kubeflow.org/v1alpha1, kind: TrainJob, metadata: {name: t, \
                 namespace: ns, uid: t}, spec: {suspend: true}}";
    let set = "{apiVersion: jobset.x-k8s.io/v1alpha2, kind: JobSet, metadata: {name: t, namespace: ns, \
               ownerReferences: [{apiVersion: trainer.kubeflow.org/v1alpha1, kind: TrainJob, name: t, \
               controller: true}]}, spec: {suspend: true, replicatedJobs: [{name: node, replicas: 1, \
               template: {spec: {parallelism: 4, template: {spec: {schedulerName: ours}}}}}]}}";
    let pod = ours(
        "p",
        1,
        "labels: {jobset.sigs.k8s.io/jobset-name: t, jobset.sigs.k8s.io/replicatedjob-name: node, \
         jobset.sigs.k8s.io/job-index: '0', batch.kubernetes.io/job-completion-index: '3'}",
        "nodeName: n1",
    );
    let all = [train.to_owned(), set.to_owned(), pod];
    let expected = "trainjob/ns/t prio 0; t min 4: node 4/4 3=n1";
    assert_eq!(World::of(&all).outline(), [expected]);
    // Before Trainer has made it, nothing is known.
    assert_eq!(World::of(&all[..1]).outline(), Vec::<String>::new());
}

/// Watches report pods, jobs and their makers in any order.
#[test]
fn a_pod_whose_job_is_not_there_yet_does_not_start_alone() {
    let owned_by = |api: &str, kind: &str, name: &str| {
        format!(
            "ownerReferences: [{{apiVersion: {api}, kind: {kind}, name: {name}, controller: true}}]"
        )
    };
    let job = |owner: &str| {
        format!(
            "{{apiVersion: batch/v1, kind: Job, metadata: {{name: s-r-0, namespace: ns, {owner}}}, \
             spec: {{template: {{spec: {{schedulerName: ours}}}}}}}}"
        )
    };
    let of_job = owned_by("batch/v1", "Job", "s-r-0");
    let pod = ours("p", 1, &of_job, "");
    let alone = World::of(std::slice::from_ref(&pod)).outline();
    assert_eq!(alone.len(), 1);
    let wanted = "pod/ns/p: it belongs to job/ns/s-r-0, which is not there";
    assert!(alone[0].starts_with(wanted), "{alone:?}");
    // One that has a place counts as before.
    let bound = World::of(&[ours("p", 1, &of_job, "nodeName: n1")]).outline();
    assert_eq!(
        bound,
        ["pod/ns/p prio 0 satisfied; pod min 1: pod 1/1 0=n1"]
    );
    let both = World::of(&[job(""), pod]).outline();
    assert_eq!(both, ["job/ns/s-r-0 prio 0; s-r-0 min 1: worker 1/1"]);

    // A Job of a JobSet is no group of its own, nor are its pods, before the JobSet is there.
    let owner = owned_by("jobset.x-k8s.io/v1alpha2", "JobSet", "s");
    let labels = "labels: {jobset.sigs.k8s.io/jobset-name: s, \
                  jobset.sigs.k8s.io/replicatedjob-name: r, jobset.sigs.k8s.io/job-index: '0'}";
    let pod = ours("p", 1, &format!("{labels}, {of_job}"), "");
    let early = World::of(&[job(&owner), pod.clone()]).outline();
    assert_eq!(early.len(), 1);
    assert!(
        early[0].starts_with("pod/ns/p: it belongs to jobset/ns/s, "),
        "{early:?}"
    );
    let set = "{apiVersion: jobset.x-k8s.io/v1alpha2, kind: JobSet, metadata: {name: s, namespace: ns}, \
               spec: {replicatedJobs: [{name: r, replicas: 2, template: {spec: {template: {spec: \
               {schedulerName: ours}}}}}]}}";
    let all = World::of(&[job(&owner), pod, set.to_owned()]).outline();
    assert_eq!(all, ["jobset/ns/s prio 0; s min 2: r 2/2"]);
}

/// Checks CONTRIBUTING: one file and one line make a kind of job known to all readers of jobs.
#[test]
fn a_kind_of_job_is_one_file_and_one_line() {
    let held = "{apiVersion: toy.dev/v1, kind: ToyJob, metadata: {name: t, namespace: ns, uid: t}, \
                spec: {suspend: true, replicas: 2, template: {spec: {schedulerName: ours}}}}";
    let owner =
        "ownerReferences: [{apiVersion: toy.dev/v1, kind: ToyJob, name: t, controller: true}]";

    // It is a group before it has pods, and one patch lets it make them.
    let suspended = World::of(&[held.to_owned()]);
    let group = "toyjob/ns/t prio 0; t min 2: toy 2/2";
    assert_eq!(suspended.outline(), [group]);
    assert!(suspended.gather().groups[0].is_suspended);
    let patch = serde_json::json!([
        {"op": "test", "path": "/metadata/uid", "value": "t"},
        {"op": "add", "path": "/spec/suspend", "value": false},
    ]);
    assert_eq!(suspended.jobs[0].switch(false), Some(patch));

    // Its pods are its members, and none of them starts without it.
    let released = held.replace("suspend: true", "suspend: false");
    let world = World::of(&[released, ours("p", 1, owner, "nodeName: n1")]);
    let expected = "toyjob/ns/t prio 0; t min 2: toy 2/2 0=n1";
    assert_eq!(world.outline(), [expected]);
    let early = World::of(&[ours("p", 1, owner, "")]).outline();
    let wanted = "pod/ns/p: it belongs to toyjob/ns/t, which is not there";
    assert!(
        early.len() == 1 && early[0].starts_with(wanted),
        "{early:?}"
    );

    // A field that cannot be read is named.
    let error = read(&held.replace("replicas: 2", "replicas: many")).unwrap_err();
    assert!(error.starts_with("field `spec.replicas`: "), "{error}");
}

#[test]
fn a_name_in_the_template_of_a_job_means_nothing() {
    let job = "{apiVersion: batch/v1, kind: Job, metadata: {name: j, namespace: ns}, spec: {template: \
               {metadata: {name: pi}, spec: {schedulerName: ours}}}}";
    let world = World::of(&[job.to_owned()]);
    assert_eq!(world.outline(), ["job/ns/j prio 0; j min 1: worker 1/1"]);
}

/// So it may go where room is kept for later.
#[test]
fn a_waiting_job_ends_as_if_it_began_now() {
    let job = "{apiVersion: batch/v1, kind: Job, metadata: {name: j, namespace: ns}, spec: \
               {activeDeadlineSeconds: 60, suspend: true, template: {spec: {schedulerName: ours}}}}";
    let gathered = World::of(&[job.to_owned()]).gather();
    assert_eq!(gathered.groups[0].group.ends.map(Time::ms), Some(60_009));
}

#[test]
fn each_replica_of_a_leader_worker_set_is_a_group() {
    let set = "{apiVersion: leaderworkerset.x-k8s.io/v1, kind: LeaderWorkerSet, metadata: {name: l, \
               namespace: ns}, spec: {replicas: 2, leaderWorkerTemplate: {size: 3, workerTemplate: \
               {spec: {schedulerName: ours}}}}}";
    let pod = ours(
        "p",
        0,
        "labels: {leaderworkerset.sigs.k8s.io/name: l, leaderworkerset.sigs.k8s.io/group-index: '1', \
         leaderworkerset.sigs.k8s.io/worker-index: '2'}",
        "nodeName: n1",
    );
    assert_eq!(
        World::of(&[set.to_owned(), pod]).outline(),
        [
            "leaderworkerset/ns/l/0 prio 0; l min 3: leader 1/1 worker 2/2",
            "leaderworkerset/ns/l/1 prio 0; l min 3: leader 1/1 worker 2/2 1=n1",
        ]
    );
}

proptest! {
    /// The same objects give the same groups, whatever their order.
    #[test]
    fn order_does_not_matter(order in Just((0..9_usize).collect::<Vec<_>>()).prop_shuffle()) {
        let documents = [
            pod_group(PLUGINS, "minMember: 2"),
            ours("a", 1, IN_GANG, "nodeName: n1"),
            ours("b", 1, IN_GANG, ""),
            ours("c", 2, IN_GANG, "nodeName: n2"),
            tf_job(false),
            tf_pod("p", "ps", 0, "nodeName: n1"),
            tf_pod("w", "worker", 0, ""),
            ours("lone", 1, "", ""),
            ours("odd", 1, "annotations: {gang.scheduling.koordinator.sh/name: x}", ""),
        ];
        let shuffled: Vec<String> = order.iter().map(|&at| documents[at].clone()).collect();
        prop_assert_eq!(World::of(&shuffled).outline(), World::of(&documents).outline());
    }
}
