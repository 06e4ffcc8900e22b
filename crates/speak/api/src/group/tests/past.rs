//! Evictions and saved work of groups, as annotations say them.

use sublet_queue::{GroupPast, Saves};

use super::together::{IN_GANG, World, ours};
use crate::group::moment;

/// Annotations of these names and values, as fields of metadata.
fn notes(all: &[(&str, &str)]) -> String {
    let each = all
        .iter()
        .map(|(key, value)| format!("sublet.dev/{key}: '{value}'"));
    format!("annotations: {{{}}}", each.collect::<Vec<_>>().join(", "))
}

/// A Job with these annotations, and those of its template.
fn job(own: &[(&str, &str)], template: &[(&str, &str)]) -> String {
    let (own, template) = (notes(own), notes(template));
    format!(
        "{{apiVersion: batch/v1, kind: Job, metadata: {{name: j, namespace: ns, uid: j, {own}}}, spec: \
         {{parallelism: 2, template: {{metadata: {{{template}}}, spec: {{schedulerName: ours, containers: \
         [{{name: c, resources: {{limits: {{nvidia.com/gpu: 1}}}}}}]}}}}}}}}"
    )
}

/// A pod of that Job, on a node or not.
fn pod_of_job(name: &str, node: &str, own: &[(&str, &str)]) -> String {
    let owner = "ownerReferences: [{apiVersion: batch/v1, kind: Job, name: j, controller: true}]";
    ours(name, 1, &format!("{owner}, {}", notes(own)), node)
}

fn pod_group(name: &str, more: &str, own: &[(&str, &str)]) -> String {
    format!(
        "{{apiVersion: scheduling.sigs.k8s.io/v1alpha1, kind: PodGroup, metadata: {{name: {name}, \
         namespace: ns, {}}}, spec: {{minMember: 1}}}}",
        notes(own).replacen('{', &format!("{{{more}"), 1)
    )
}

/// The past of the first group, and what cannot be read.
fn told(documents: &[String]) -> (GroupPast, Vec<String>) {
    let gathered = World::of(documents).gather();
    let problems = gathered.problems.iter();
    let problems = problems.map(|problem| format!("{}: {}", problem.of, problem.error.what));
    (gathered.groups[0].group.past.clone(), problems.collect())
}

const SEVEN: &str = "2026-11-25T07:00:00Z";
const EIGHT: &str = "2026-11-25T08:00:00Z";

#[test]
fn a_job_says_what_it_saves_and_how_often_it_went() {
    let own = [
        ("checkpoint-every", "30m"),
        ("reclaims", "2"),
        ("reclaimed-at", SEVEN),
    ];
    let past = GroupPast {
        reclaims: 2,
        reclaimed: moment(SEVEN),
        room_since: None,
        saves: Saves::Every(1_800_000),
    };
    assert_eq!(told(&[job(&own, &[])]), (past, vec![]));
    // Its template may say it, and its pods say when.
    let template = job(&[], &[("checkpoint-every", "1h")]);
    let saves = |documents: &[String]| told(documents).0.saves;
    assert_eq!(
        saves(std::slice::from_ref(&template)),
        Saves::Every(3_600_000)
    );
    let pods = [
        template,
        pod_of_job("a", "nodeName: n1", &[("checkpointed-at", SEVEN)]),
        pod_of_job("b", "nodeName: n1", &[("checkpointed-at", EIGHT)]),
    ];
    assert_eq!(saves(&pods), Saves::At(moment(EIGHT).unwrap()));
    // A pod that waits has done nothing.
    let waits = [
        job(&[], &[]),
        pod_of_job("a", "", &[("checkpointed-at", SEVEN)]),
    ];
    assert_eq!(saves(&waits), Saves::Unknown);
    assert_eq!(told(&[job(&[], &[])]).0, GroupPast::default());
}

#[test]
fn of_gangs_that_start_together_the_one_counts_that_went_most_often() {
    let together = "gang.scheduling.koordinator.sh/groups: '[\"ns/h\",\"ns/g\"]', ";
    let in_gang = |gang: &str| format!("labels: {{pod-group.scheduling.sigs.k8s.io: {gang}}}");
    let documents = [
        pod_group("g", together, &[("reclaims", "1"), ("reclaimed-at", EIGHT)]),
        pod_group(
            "h",
            together,
            &[("reclaims", "3"), ("checkpointed-at", SEVEN)],
        ),
        ours("a", 1, &in_gang("g"), ""),
        ours("b", 1, &in_gang("h"), ""),
    ];
    let (past, problems) = told(&documents);
    assert_eq!((past.reclaims, past.reclaimed), (3, moment(EIGHT)));
    assert_eq!(past.saves, Saves::At(moment(SEVEN).unwrap()));
    assert_eq!(problems, [""; 0]);
}

/// Milliseconds that the first group is taken to run, and what cannot be read.
fn runs(documents: &[String]) -> (Option<u64>, Vec<String>) {
    let gathered = World::of(documents).gather();
    let problems = gathered.problems.iter();
    let problems = problems.map(|problem| problem.error.what.clone());
    (gathered.groups[0].group.runs_ms, problems.collect())
}

const HOUR: u64 = 3_600_000;

#[test]
fn a_group_says_how_long_it_runs() {
    let own = [("max-run-time", "4h")];
    let template = [("max-run-time", "2h")];
    assert_eq!(runs(&[job(&[], &[])]), (None, vec![]));
    assert_eq!(runs(&[job(&own, &template)]), (Some(4 * HOUR), vec![]));
    assert_eq!(runs(&[job(&[], &template)]), (Some(2 * HOUR), vec![]));
    let gang = [
        pod_group("g", "", &own),
        ours("a", 1, "labels: {pod-group.scheduling.sigs.k8s.io: g}", ""),
    ];
    assert_eq!(runs(&gang), (Some(4 * HOUR), vec![]));
    assert_eq!(
        runs(&[ours("a", 1, &notes(&own), "")]),
        (Some(4 * HOUR), vec![])
    );
    // It is ended after an hour anyway.
    let ended = "spec: {activeDeadlineSeconds: 3600, parallelism";
    let both = job(&own, &[]).replacen("spec: {parallelism", ended, 1);
    assert_eq!(runs(&[both]), (Some(HOUR), vec![]));
    let odd = "it is `soon`: write a duration above zero, such as 30m; none counts";
    let bad = [("max-run-time", "soon")];
    assert_eq!(runs(&[job(&bad, &[])]), (None, vec![odd.to_owned()]));
}

/// A Job of that name that began at seven, and its status.
fn ran(name: &str, completed: &str) -> String {
    let status = format!(
        "status: {{startTime: '{SEVEN}', {completed}conditions: [{{type: Complete, status: 'True'}}]}}"
    );
    let named = job(&[], &[]).replacen(
        "name: j, namespace: ns, uid: j",
        &format!("name: {name}, namespace: ns, uid: {name}"),
        1,
    );
    format!("{}, {status}}}", named.strip_suffix('}').unwrap())
}

#[test]
fn who_does_not_say_it_is_taken_to_run_as_long_as_others_of_its_name() {
    let done = format!("completionTime: '{EIGHT}', ");
    let waits = job(&[], &[]).replacen("name: j,", "name: train-9,", 1);
    let with = |other: String| runs(&[waits.clone(), other]).0;
    assert_eq!(with(ran("train-8", &done)), Some(HOUR));
    assert_eq!(with(ran("train-x7k2q", &done)), Some(HOUR));
    assert_eq!(with(ran("eval-8", &done)), None);
    // One that failed says nothing.
    assert_eq!(with(ran("train-8", "")), None);
    let says = job(&[("max-run-time", "4h")], &[]).replacen("name: j,", "name: train-9,", 1);
    assert_eq!(runs(&[says, ran("train-8", &done)]).0, Some(4 * HOUR));
}

/// Nothing else of the group is lost.
#[test]
fn a_past_that_cannot_be_read_counts_as_none_and_is_told() {
    let period = "it is `0s`: write a duration above zero, such as 30m; none counts";
    let time = "it is `now`: write a time in RFC 3339; none counts";
    let own = [
        ("checkpoint-every", "0s"),
        ("checkpointed-at", "now"),
        ("reclaims", "-1"),
        ("reclaimed-at", "now"),
    ];
    let (past, mut problems) = told(&[job(&own, &[])]);
    problems.sort();
    assert_eq!(past, GroupPast::default());
    let expected = [
        "it is `-1`: write a whole number; 0 counts",
        period,
        time,
        time,
    ];
    assert_eq!(problems, expected.map(|what| format!("job/ns/j: {what}")));
    let bad = [("checkpointed-at", "now")];
    let alone = ours("a", 1, &notes(&bad), "nodeName: n1");
    assert_eq!(
        told(&[alone]),
        (GroupPast::default(), vec![format!("pod/ns/a: {time}")])
    );
    // Many pods have one template.
    let annotated = format!("{IN_GANG}, {}", notes(&bad));
    let in_gang = |name: &str| ours(name, 1, &annotated, "nodeName: n1");
    let group = "{apiVersion: scheduling.x-k8s.io/v1alpha1, kind: PodGroup, metadata: {name: g, namespace: \
                 ns}, spec: {minMember: 2}}";
    let (_, problems) = told(&[group.to_owned(), in_gang("a"), in_gang("b")]);
    assert_eq!(problems, [format!("pod/ns/a: {time}")]);
}
