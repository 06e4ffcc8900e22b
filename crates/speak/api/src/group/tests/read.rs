//! Single objects: facts read from them, and messages that name unreadable fields.

use serde_json::json as value;
use sublet_model::Time;
use sublet_queue::{GangMode, MatchPolicy};

use super::{fixture, job, json, pod, read};
use crate::group::{
    GANG_DIALECTS, GangName, GangTerms, JOB_KINDS, JobFacts, JobProgress, gang_of, job_of, moment,
    read_pod_group,
};
use crate::keys;
use crate::object::Pod;

/// `NAME min N of K: ROLE MIN/REPLICAS …`; `~` marks late roles.
fn outline(job: &JobFacts) -> String {
    let role = |role: &crate::group::JobRole| {
        let late = if role.is_late { "~" } else { "" };
        let min = role.min.unwrap_or(0);
        format!("{late}{} {min}/{}", role.name, role.replicas)
    };
    let roles: Vec<String> = job.shape.roles.iter().map(role).collect();
    let copies = job.shape.copies.map_or(String::new(), |n| format!(" x{n}"));
    let suspended = match job.state {
        JobProgress::Suspended => ", suspended",
        JobProgress::Released => "",
        JobProgress::Over => ", over",
    };
    let min = job.terms.min;
    format!(
        "{}{copies} min {min}: {}{suspended}",
        job.job,
        roles.join(", ")
    )
}

#[test]
fn published_jobs_have_the_members_that_their_operators_make() {
    for (yaml, expected) in [
        (
            fixture!("kubeflow-tfjob"),
            "tfjob/default/dist-mnist-for-e2e-test min 4: chief 1/1, ps 1/1, worker 2/2",
        ),
        (
            fixture!("kubeflow-elastic-pytorchjob"),
            "pytorchjob/default/elastic-example-echo min 1: worker 1/2",
        ),
        (
            fixture!("mpijob"),
            "mpijob/default/pi min 3: launcher 1/1, worker 2/2",
        ),
        (
            fixture!("kubedl-tfjob"),
            "kubedl-tfjob/default/tf-distributed-simple min 3: worker 3/3",
        ),
        (
            fixture!("leaderworkerset"),
            "leaderworkerset/default/leaderworkerset-multi-template x3 min 4: leader 1/1, worker 3/3",
        ),
        (
            fixture!("jobset"),
            "jobset/default/fine-tune-llm min 4: initializer 1/1, ~trainer-node 3/3",
        ),
    ] {
        assert_eq!(outline(&job(yaml)), expected);
    }
}

const BATCH: &str = "{apiVersion: batch/v1, kind: Job, metadata: {name: j, namespace: t, uid: u}, spec: {SPEC}, \
     status: {STATUS}}";

fn batch(spec: &str, status: &str) -> String {
    BATCH.replace("SPEC", spec).replace("STATUS", status)
}

#[test]
fn a_job_of_kubernetes_needs_as_many_pods_as_are_left_to_run() {
    for (spec, status, expected) in [
        ("", "", "job/t/j min 1: worker 1/1"),
        (
            "parallelism: 8, suspend: true",
            "",
            "job/t/j min 8: worker 8/8, suspended",
        ),
        (
            "parallelism: 4, completions: 10",
            "succeeded: 8",
            "job/t/j min 2: worker 2/2",
        ),
        ("parallelism: 0", "", "job/t/j min 0: worker 0/0"),
        (
            "parallelism: 2",
            "conditions: [{type: Complete, status: 'True'}]",
            "job/t/j min 2: worker 2/2, over",
        ),
        (
            "parallelism: 2",
            "conditions: [{type: Suspended, status: 'True'}]",
            "job/t/j min 2: worker 2/2",
        ),
    ] {
        assert_eq!(
            outline(&job(&batch(spec, status))),
            expected,
            "{spec} {status}"
        );
    }
    let timed = job(&batch(
        "activeDeadlineSeconds: 60",
        "startTime: '2026-11-25T10:00:00Z'",
    ));
    assert_eq!(timed.shape.runs_for_s, Some(60));
    let at = moment("2026-11-25T10:00:00Z");
    assert_eq!(
        (timed.shape.started, at.map(Time::ms)),
        (at, Some(1_795_600_800_000))
    );
}

#[test]
fn minima_come_from_policies_and_annotations() {
    let tf = |policy: &str, ps: &str| {
        job(&format!(
            "apiVersion: kubeflow.org/v1\nkind: TFJob\nmetadata: {{name: t, namespace: ns}}\nspec:\n  \
             runPolicy: {{suspend: true, schedulingPolicy: {{{policy}}}}}\n  tfReplicaSpecs:\n    \
             PS: {{replicas: 2, template: {{metadata: {{annotations: {{{ps}}}}}}}}}\n    \
             Worker: {{replicas: 8, template: {{}}}}\n"
        ))
    };
    let min = |n: u32| format!("{}: '{n}'", keys::GANG_MIN);
    for (policy, ps, expected) in [
        ("", String::new(), "min 10: ps 2/2, worker 8/8"),
        (
            "minAvailable: 6",
            String::new(),
            "min 6: ps 1/2, worker 1/8",
        ),
        ("minAvailable: 6", min(2), "min 6: ps 2/2, worker 1/8"),
        ("minAvailable: 99", min(99), "min 10: ps 2/2, worker 8/8"),
        (
            "minAvailable: 1",
            String::new(),
            "min 1: ps 1/2, worker 0/8",
        ),
    ] {
        let expected = format!("tfjob/ns/t {expected}, suspended");
        assert_eq!(outline(&tf(policy, &ps)), expected, "{policy} {ps}");
    }
    let job = tf(
        "queue: team-a, priorityClass: high, scheduleTimeoutSeconds: 30",
        "",
    );
    assert_eq!(job.quotas, ["team-a"]);
    assert_eq!(job.terms.priority.class.as_deref(), Some("high"));
    assert_eq!(job.terms.waits_s, Some(30));
}

#[test]
fn the_launcher_of_an_mpi_job_may_come_last() {
    let late = fixture!("mpijob").replace(
        "  slotsPerWorker: 1",
        "  slotsPerWorker: 1\n  launcherCreationPolicy: WaitForWorkersReady",
    );
    let expected = "mpijob/default/pi min 3: ~launcher 1/1, worker 2/2";
    assert_eq!(outline(&job(&late)), expected);
}

#[test]
fn roles_of_kubedl_come_in_stages_and_its_master_is_in_no_gang() {
    let job = job("
apiVersion: training.kubedl.io/v1alpha1
kind: PyTorchJob
metadata: {name: p, namespace: ns}
spec:
  schedulingPolicy: {queue: q, priority: 7, priorityClassName: low}
  pytorchReplicaSpecs:
    AIMaster: {replicas: 1, template: {}}
    Master: {replicas: 1, template: {}}
    Worker: {replicas: 3, template: {}}
");
    let expected = "kubedl-pytorchjob/ns/p min 4: aimaster 0/1, ~master 1/1, ~worker 1/3";
    assert_eq!(outline(&job), expected);
    assert_eq!(job.terms.priority.resolve(&|_| Some(1)), Ok(Some(7)));
}

#[test]
fn a_job_is_let_go_by_one_patch_that_names_it() {
    for (yaml, path) in [
        (batch("", ""), "/spec/suspend"),
        (
            fixture!("mpijob").replace("metadata:\n", "metadata:\n  uid: u\n"),
            "/spec/runPolicy/suspend",
        ),
    ] {
        let patch = job(&yaml).switch(false);
        let expected = value!([
            {"op": "test", "path": "/metadata/uid", "value": "u"},
            {"op": "add", "path": path, "value": false},
        ]);
        assert_eq!(patch, Some(expected));
    }
    assert_eq!(job(fixture!("leaderworkerset")).switch(false), None);
}

/// The training operator has MPIJobs too, in a version of its own.
#[test]
fn a_job_is_written_in_the_version_in_which_it_was_read() {
    let versions = |version: &str| {
        let yaml = fixture!("mpijob").replace("kubeflow.org/v2beta1", version);
        job(&yaml).api.version
    };
    assert_eq!(versions("kubeflow.org/v2beta1"), "v2beta1");
    assert_eq!(versions("kubeflow.org/v1"), "v1");
    assert_eq!(versions("kubeflow.org/v9"), "v2beta1");
}

/// A pod that an object owns.
fn owned(api: &str, kind: &str, labels: &str, annotations: &str) -> Pod {
    pod(&format!(
        "metadata: {{name: p, namespace: ns, labels: {{{labels}}}, annotations: {{{annotations}}}, \
         ownerReferences: [{{apiVersion: {api}, kind: {kind}, name: o, controller: true}}]}}"
    ))
}

/// Pods as operators make them, each with its job, its role and its index.
fn members() -> [(Pod, &'static str); 9] {
    let index = "batch.kubernetes.io/job-completion-index: '2'";
    [
        (owned("batch/v1", "Job", "", index), "job/ns/o worker 2"),
        (owned("batch/v1", "Job", "", ""), "job/ns/o worker -"),
        (
            owned(
                "batch/v1",
                "Job",
                "jobset.sigs.k8s.io/jobset-name: s, jobset.sigs.k8s.io/replicatedjob-name: r, \
                 jobset.sigs.k8s.io/job-index: '1'",
                index,
            ),
            "jobset/ns/s r 1.2",
        ),
        (
            owned(
                "kubeflow.org/v1",
                "TFJob",
                "training.kubeflow.org/replica-type: ps, training.kubeflow.org/replica-index: '1'",
                "",
            ),
            "tfjob/ns/o ps 1",
        ),
        (
            owned(
                "kubeflow.org/v2beta1",
                "MPIJob",
                "training.kubeflow.org/job-role: worker, training.kubeflow.org/replica-index: '3'",
                "",
            ),
            "mpijob/ns/o worker 3",
        ),
        (
            owned(
                "batch/v1",
                "Job",
                "training.kubeflow.org/operator-name: mpi-operator, \
                 training.kubeflow.org/job-name: m, training.kubeflow.org/job-role: launcher",
                "",
            ),
            "mpijob/ns/m launcher -",
        ),
        (
            owned(
                "training.kubedl.io/v1alpha1",
                "TFJob",
                "replica-type: worker, replica-index: '0'",
                "",
            ),
            "kubedl-tfjob/ns/o worker 0",
        ),
        (
            owned(
                "apps/v1",
                "StatefulSet",
                "leaderworkerset.sigs.k8s.io/name: l, leaderworkerset.sigs.k8s.io/group-index: '1', \
                 leaderworkerset.sigs.k8s.io/worker-index: '3'",
                "",
            ),
            "leaderworkerset/ns/l/1 worker 2",
        ),
        (owned("apps/v1", "ReplicaSet", "", ""), "none"),
    ]
}

#[test]
fn pods_are_the_members_that_their_operators_say() {
    for (pod, expected) in members() {
        let found = job_of(&pod).map_or("none".to_owned(), |(job, member)| {
            let copy = member.copy.map_or(String::new(), |copy| format!("/{copy}"));
            let index = member
                .index
                .map_or("-".to_owned(), |index| index.to_string());
            let within = match member.within {
                0 => String::new(),
                within => format!(".{within}"),
            };
            format!("{job}{copy} {} {index}{within}", member.role)
        });
        assert_eq!(found, expected);
    }
}

fn gang(name: &str) -> GangName {
    GangName {
        word: "podgroup",
        namespace: "ns".to_owned(),
        name: name.to_owned(),
    }
}

#[test]
fn gangs_are_named_in_three_dialects() {
    let named = |labels: &str, annotations: &str| {
        let pod = pod(&format!(
            "metadata: {{namespace: ns, labels: {{{labels}}}, annotations: {{{annotations}}}}}"
        ));
        gang_of(&pod).map(|found| found.map(|found| (found.gang.to_string(), found.terms)))
    };
    let name = |labels: &str| named(labels, "").unwrap().map(|(name, _)| name);
    let podgroup = Some("podgroup/ns/g".to_owned());
    assert_eq!(name("scheduling.x-k8s.io/pod-group: g"), podgroup);
    assert_eq!(name("pod-group.scheduling.sigs.k8s.io: g"), podgroup);
    assert_eq!(name("pod-group.scheduling.sigs.k8s.io/name: g"), podgroup);
    assert_eq!(name(""), None);
    // As an operator writes that does not know who schedules.
    let both = "scheduling.x-k8s.io/pod-group: g, pod-group.scheduling.sigs.k8s.io: g";
    assert_eq!(name(both), podgroup);
    let two = both.replace("io: g", "io: h");
    let error = named(&two, "").unwrap_err().to_string();
    assert!(error.contains("two gangs, g and h"), "{error}");
    let native = pod("{metadata: {namespace: ns}, spec: {schedulingGroup: {podGroupName: g}}}");
    let found = gang_of(&native).unwrap().unwrap();
    assert_eq!(found.gang.to_string(), "native-podgroup/ns/g");
}

#[test]
fn koordinators_annotations_say_all_of_a_gang() {
    let terms = |annotations: &str| {
        let pod = pod(&format!(
            "metadata: {{namespace: ns, annotations: {{gang.scheduling.koordinator.sh/name: g, \
             {annotations}}}}}"
        ));
        gang_of(&pod).map(|found| found.unwrap().terms)
    };
    let key = |key: &str, value: &str| format!("gang.scheduling.koordinator.sh/{key}: '{value}', ");
    let all = [
        key("min-available", "5"),
        key("total-number", "6"),
        key("waiting-time", "3600s"),
        key("mode", "NonStrict"),
        key("match-policy", "only-waiting"),
        key("groups", r#"["ns/h", "ns/g"]"#),
    ];
    let expected = GangTerms {
        min: 5,
        total: Some(6),
        mode: GangMode::NonStrict,
        matching: MatchPolicy::OnlyWaiting,
        waits_s: Some(3600),
        with: vec![gang("g"), gang("h")],
        ..GangTerms::default()
    };
    assert_eq!(terms(&all.concat()), Ok(Some(expected)));
    assert_eq!(terms(""), Ok(None));
    let error = terms(&key("min-available", "five"))
        .unwrap_err()
        .to_string();
    assert!(error.starts_with(
        "field `metadata.annotations.gang.scheduling.koordinator.sh/min-available`: it is `five`"
    ));
    let min = key("min-available", "2");
    for (odd, wanted) in [
        (key("mode", "strict"), "Strict counts"),
        (key("match-policy", "x"), "once-satisfied counts"),
        (key("waiting-time", "soon"), "the scheduler's own counts"),
        (key("total-number", "1"), "that one counts"),
        (key("groups", "g,h"), "the gang starts alone"),
    ] {
        let terms = terms(&format!("{min}{odd}")).unwrap().unwrap();
        let said = terms.odd.iter().map(ToString::to_string);
        let said: Vec<String> = said.collect();
        assert!(
            said.len() == 1 && said[0].contains(wanted),
            "{odd}: {said:?}"
        );
        assert_eq!(
            (terms.min, terms.mode, terms.with),
            (2, GangMode::Strict, vec![])
        );
    }
}

#[test]
fn pod_groups_of_all_apis_are_read() {
    let read = |api: &str, rest: &str| {
        let object = json(&format!("{{metadata: {{name: g, namespace: ns}}, {rest}}}"));
        read_pod_group(api, &object).map_err(|error| error.to_string())
    };
    let (published, _) = fixture!("plugins-podgroup").split_once("---").unwrap();
    let facts = read_pod_group("scheduling.x-k8s.io/v1alpha1", &json(published));
    let facts = facts.unwrap().unwrap();
    assert_eq!((facts.terms.min, facts.terms.waits_s), (3, Some(10)));
    assert_eq!(facts.gang.to_string(), "podgroup/default/nginx");
    let native = "spec: {schedulingPolicy: {gang: {minCount: 4}}, priorityClassName: high}";
    for version in ["v1alpha2", "v1beta1"] {
        let api = format!("scheduling.k8s.io/{version}");
        let facts = read(&api, native).unwrap().unwrap();
        assert_eq!(facts.api_version, api);
        assert_eq!((facts.terms.min, &facts.terms.odd[..]), (4, &[][..]));
        assert_eq!(facts.terms.priority.class.as_deref(), Some("high"));
    }
    let apart = native.replace(
        "}},",
        "}}, schedulingConstraints: {topology: [{key: rack}]},",
    );
    let facts = read("scheduling.k8s.io/v1alpha2", &apart).unwrap().unwrap();
    assert_eq!(
        facts.terms.odd[0].to_string(),
        "field `spec.schedulingConstraints.topology`: the queue does not look at it: its pods may get \
         places apart"
    );
    assert_eq!(read("scheduling.volcano.sh/v1beta1", "spec: {}"), Ok(None));
    for (rest, expected) in [
        (
            "spec: {minMember: -1}",
            "field `spec.minMember`: it is no whole number from 0",
        ),
        ("spec: 7", "field `spec`: it is no object with fields"),
    ] {
        let error = read("scheduling.sigs.k8s.io/v1alpha1", rest).unwrap_err();
        assert!(error.starts_with(expected), "{error}");
    }
}

#[test]
fn a_field_of_a_job_that_cannot_be_read_is_named() {
    for (yaml, expected) in [
        (
            batch("parallelism: many", ""),
            "field `spec.parallelism`: it is no whole number",
        ),
        (
            batch("suspend: 'yes'", ""),
            "field `spec.suspend`: it is neither true nor false",
        ),
        (
            batch("template: {spec: {containers: 7}}", ""),
            "field `spec.template`: invalid type",
        ),
        (
            batch("", "conditions: {}"),
            "field `status.conditions`: it is no list",
        ),
        (
            fixture!("mpijob").replace("replicas: 2", "replicas: 2.5"),
            "field `spec.mpiReplicaSpecs.Worker.replicas`: it is no whole number",
        ),
        (
            fixture!("jobset").replace("parallelism: 3", "parallelism: [3]"),
            "field `spec.replicatedJobs[1].template.spec.parallelism`: it is no whole number",
        ),
    ] {
        let error = read(&yaml).unwrap_err();
        assert!(error.starts_with(expected), "{error}");
    }
}

#[test]
fn kinds_and_words_stand_once() {
    let mut words: Vec<&str> = JOB_KINDS.iter().map(|kind| kind.word()).collect();
    let mut apis: Vec<_> = JOB_KINDS.iter().map(|kind| kind.api()).collect();
    words.sort_unstable();
    words.dedup();
    apis.sort_by_key(|api| (api.group, api.kind));
    apis.dedup_by_key(|api| (api.group, api.kind));
    assert_eq!(
        (words.len(), apis.len()),
        (JOB_KINDS.len(), JOB_KINDS.len())
    );
    assert!(
        words
            .iter()
            .all(|word| !word.contains('/') && *word != "pod")
    );
    assert!(
        GANG_DIALECTS
            .iter()
            .all(|dialect| !words.contains(&dialect.word()))
    );
}
