//! Pods that have not come yet: the pods of workloads, the order in which they come, and the
//! namespaces' limits on GPUs.

use super::*;

/// Two nodes with a card of 16,000 MiB each; the first has a taint that the API server sets.
const NODES: &str = "
---
kind: Node
metadata: {name: n1, labels: {disk: ssd}}
spec: {taints: [{key: node.kubernetes.io/unschedulable, effect: NoSchedule}], unschedulable: true}
status: {capacity: {aliyun.com/gpu-mem: 16000, aliyun.com/gpu-count: 1}}
---
kind: Node
metadata: {name: n2}
status: {capacity: {aliyun.com/gpu-mem: 16000, aliyun.com/gpu-count: 1}}
";

fn template(memory: u32) -> String {
    format!(
        "{{spec: {{schedulerName: sublet-scheduler, containers: [{{name: c, \
         resources: {{limits: {{aliyun.com/gpu-mem: {memory}}}}}}}]}}}}"
    )
}

fn pod(name: &str, memory: u32, metadata: &str, spec: &str) -> String {
    format!(
        "---\nkind: Pod\nmetadata: {{name: {name}{metadata}}}\nspec: {{schedulerName: \
         sublet-scheduler, {spec}containers: [{{name: c, resources: {{limits: \
         {{aliyun.com/gpu-mem: {memory}}}}}}}]}}\n"
    )
}

/// `name: node`, `name: why`, in the order in which they were taken; notes; and the exit code.
fn said(files: &[&str], arrival: Arrival) -> (Vec<String>, Vec<String>, u8) {
    let how = Printing {
        format: Format::Json,
        ..Printing::default()
    };
    let answer = arriving(files, "binpack", arrival, how);
    let plan: serde_json::Value = serde_json::from_str(&answer.text).unwrap_or_default();
    let pods = plan["pods"].as_array().into_iter().flatten();
    let pod = |pod: &serde_json::Value| {
        let text = |value: &serde_json::Value| value.as_str().map(str::to_owned);
        let why = text(&pod["reasons"][0]).or_else(|| text(&pod["verdict"]));
        let where_or_why = text(&pod["node"]).or(why).unwrap_or_default();
        format!(
            "{}: {where_or_why}",
            pod["name"].as_str().unwrap_or_default()
        )
    };
    (pods.map(pod).collect(), answer.notes, answer.code)
}

fn placed(files: &[&str]) -> Vec<String> {
    said(files, Arrival::InOrder).0
}

#[test]
fn workloads_are_planned_by_the_pods_that_they_will_have() {
    let workload = |api: &str, kind: &str, more: &str| {
        let template = template(6_000);
        format!(
            "---\napiVersion: {api}\nkind: {kind}\nmetadata: {{name: w}}\nspec: {{{more}template: \
             {template}}}\n"
        )
    };
    let two = ["w-0: n2", "w-1: n2"];
    for (api, kind, more) in [
        ("apps/v1", "Deployment", "replicas: 2, "),
        ("apps/v1", "StatefulSet", "replicas: 2, "),
        ("apps/v1", "ReplicaSet", "replicas: 2, "),
        ("batch/v1", "Job", "parallelism: 2, "),
        (
            "batch/v1",
            "Job",
            "parallelism: 9, completions: 2, suspend: true, ",
        ),
    ] {
        let (pods, notes, code) = said(&[NODES, &workload(api, kind, more)], Arrival::InOrder);
        assert_eq!(
            (&pods[..], code),
            (&two.map(str::to_owned)[..], DONE),
            "{kind}"
        );
        let when = match more.contains("suspend") {
            true => ", which it makes when it is resumed",
            false => "",
        };
        let note =
            format!("file2: document 1 (line 2): {kind} default/w is planned by its 2 pods{when}");
        assert_eq!(notes[0], format!("note: {note}"));
    }
    assert_eq!(
        placed(&[NODES, &workload("apps/v1", "Deployment", "")]),
        ["w-0: n2"]
    );
    assert_eq!(
        placed(&[NODES, &workload("apps/v1", "Deployment", "replicas: 0, ")]),
        [""; 0]
    );
    // One on each node, cordoned or not.
    let all = ["w-n1: n1", "w-n2: n2"];
    assert_eq!(placed(&[NODES, &workload("apps/v1", "DaemonSet", "")]), all);
    let picky = workload("apps/v1", "DaemonSet", "")
        .replace("{spec: {", "{spec: {nodeSelector: {disk: ssd}, ");
    assert_eq!(placed(&[NODES, &picky]), ["w-n1: n1"]);
    let operators = "---\napiVersion: kubeflow.org/v1\nkind: PyTorchJob\nmetadata: {name: w}\nspec: \
         {pytorchReplicaSpecs: {Master: {replicas: 1, template: TEMPLATE}, Worker: {replicas: 1, \
         template: TEMPLATE}}}\n";
    let operators = operators.replace("TEMPLATE", &template(6_000));
    let mut roles = placed(&[NODES, &operators]);
    roles.sort();
    assert_eq!(roles, ["w-master-0: n2", "w-worker-0: n2"]);
}

#[test]
fn a_workload_of_the_cluster_counts_by_its_pods() {
    let deployment = format!(
        "---\napiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: w, namespace: a, \
         creationTimestamp: '2026-11-25T10:00:00Z'}}\nspec: {{replicas: 2, template: {}}}\n",
        template(6_000)
    );
    let (pods, notes, code) = said(&[NODES, &deployment], Arrival::InOrder);
    assert_eq!((&pods[..], code), (&[][..], DONE));
    assert!(notes[0].ends_with(
        "passed over, Deployment a/w is in the cluster already; its pods count as they are"
    ));
}

#[test]
fn a_workload_that_cannot_be_read_may_be_pods_that_wait() {
    let with = |spec: &str| {
        format!("---\napiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: w}}\nspec: {spec}\n")
    };
    for (odd, words) in [
        (
            with(&format!("{{replicas: two, template: {}}}", template(1))),
            "Deployment w, field `spec.replicas`: it is no whole number",
        ),
        (
            with("{replicas: 2}"),
            "field `spec.template`: it is missing",
        ),
        (
            with(&format!(
                "{{replicas: 2000000000, template: {}}}",
                template(1)
            )),
            "field `spec`: it makes 2000000000 pods, and a cluster has at most 150000",
        ),
        (
            with(&format!("{{template: {}}}", template(1))).replace("name: w", "labels: {}"),
            "field `metadata.name`: it is missing",
        ),
    ] {
        let (pods, notes, code) = said(&[NODES, &odd], Arrival::InOrder);
        assert_eq!((pods.len(), code), (0, NOT_DONE), "{words}");
        let notes = notes.join("\n");
        assert!(notes.contains(words), "{notes}");
    }
}

/// Pods that are applied one after another have their places before the next one comes.
#[test]
fn pods_come_in_order_or_together() {
    let files = [
        NODES,
        &pod("low", 10_000, "", ""),
        &pod("high", 10_000, "", "priority: 9, preemptionPolicy: Never, "),
    ];
    let said_of = |arrival| said(&files, arrival).0;
    assert_eq!(said_of(Arrival::InOrder), ["low: n2", "high: refused"]);
    assert_eq!(said_of(Arrival::Together), ["high: n2", "low: refused"]);
    // Those of the cluster are there together.
    let old = |name: &str, at: u32, spec: &str| {
        let metadata = format!(", creationTimestamp: '2026-11-25T10:00:0{at}Z'");
        pod(name, 10_000, &metadata, spec)
    };
    let files = [
        NODES,
        &pod("new", 4_000, "", "priority: 10, "),
        &old("low", 1, ""),
        &old("high", 2, "priority: 9, preemptionPolicy: Never, "),
    ];
    let in_order = ["high: n2", "low: refused", "new: n2"];
    assert_eq!(said(&files, Arrival::InOrder).0, in_order);
    // The name of a priority is worth what its class says.
    let classes = "---\napiVersion: scheduling.k8s.io/v1\nkind: PriorityClass\nmetadata: {name: urgent}\n\
                   value: 9\n---\napiVersion: scheduling.k8s.io/v1\nkind: PriorityClass\nmetadata: {name: \
                   usual}\nvalue: 5\nglobalDefault: true\n";
    let files = [
        NODES,
        classes,
        &pod("unnamed", 10_000, "", "preemptionPolicy: Never, "),
        &pod("low", 10_000, "", "priority: 1, preemptionPolicy: Never, "),
        &pod(
            "named",
            10_000,
            "",
            "priorityClassName: urgent, preemptionPolicy: Never, ",
        ),
    ];
    let by_class = ["named: n2", "unnamed: refused", "low: refused"];
    assert_eq!(said(&files, Arrival::Together).0, by_class);
    // A workload comes where it stands.
    let deployment = format!(
        "---\napiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: w}}\nspec: {{template: {}}}\n",
        template(10_000)
    );
    let between = [&deployment, &pod("after", 10_000, "", "")]
        .map(String::as_str)
        .concat();
    assert_eq!(placed(&[NODES, &between]), ["w-0: n2", "after: refused"]);
}

/// HAMi's quotas: the extender counts a namespace's GPUs, and so does the plan.
#[test]
fn a_namespace_gets_no_more_of_gpus_than_its_quota_says() {
    let quota = |hard: &str| {
        format!(
            "---\napiVersion: v1\nkind: ResourceQuota\nmetadata: {{name: q, namespace: team}}\nspec: \
             {{hard: {{{hard}}}}}\n"
        )
    };
    let pods: String = (0..3)
        .map(|at| pod(&format!("p{at}"), 3_000, ", namespace: team", ""))
        .chain([pod("other", 3_000, ", namespace: else", "")])
        .collect();
    let over = "3000 MiB of GPU memory asked, and namespace team has 6000 MiB of the 8000 MiB that its \
         quota limits.nvidia.com/gpumem allows";
    let limited = quota("limits.nvidia.com/gpumem: 8000");
    let (said_of, notes, code) = said(&[NODES, &limited, &pods], Arrival::InOrder);
    let expected = ["p0: n2", "p1: n2", &format!("p2: {over}"), "other: n2"];
    assert_eq!(
        (&said_of[..], code),
        (&expected.map(str::to_owned)[..], NOT_DONE)
    );
    // The last note is of slots.
    assert!(
        !notes.iter().any(|note| note.contains("ResourceQuota")),
        "{notes:?}"
    );
    let table = planned(&[NODES, &limited, &pods], Format::Table, "binpack");
    assert!(
        table
            .text
            .contains(&format!("team/p2 is not placed\n  {over}\n")),
        "{}",
        table.text
    );
    // One that says nothing of GPUs, and one that cannot be read.
    let free = ["p0: n2", "p1: n2", "p2: n2", "other: n2"];
    assert_eq!(placed(&[NODES, &quota("pods: 1"), &pods]), free);
    let odd = quota("limits.nvidia.com/gpumem: lots");
    let (said_of, notes, _) = said(&[NODES, &odd, &pods], Arrival::InOrder);
    assert_eq!(said_of, free);
    let words = "ResourceQuota team/q, field `spec.hard.limits.nvidia.com/gpumem`: ";
    assert!(notes.iter().any(|note| note.contains(words)), "{notes:?}");
}
