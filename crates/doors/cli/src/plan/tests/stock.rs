//! No plan promises a place that the stock scheduler refuses; rules that nobody checks make a plan
//! conditional.

use super::*;

/// A node with 8 cores and two cards of 10 MiB, as a cluster would print it. `more`: other fields
/// of its metadata, spec and status.
fn node(name: &str, meta: &str, spec: &str, status: &str) -> String {
    format!(
        "---\nkind: Node\nmetadata: {{name: {name}, uid: u-{name}, labels: {{kubernetes.io/hostname: {name}{meta}}}}}\n\
         spec: {{{spec}}}\nstatus: {{capacity: {{aliyun.com/gpu-count: 2, aliyun.com/gpu-mem: 20}}, \
         allocatable: {{cpu: 8, memory: 16Gi, pods: 110, aliyun.com/gpu-count: 2, aliyun.com/gpu-mem: 20{status}}}}}\n"
    )
}

/// A waiting pod of that many MiB; `asks`: more resources, `spec`: more fields.
fn pod(name: &str, asks: &str, spec: &str) -> String {
    waiting(name, &format!("1{asks}"), ", labels: {app: web}", spec)
}

/// Each pod's verdict, and why not on `n1` or why it is conditional.
fn verdicts(text: &str) -> Vec<String> {
    let answer = planned(&[text], Format::Json, "binpack");
    let plan: serde_json::Value = serde_json::from_str(&answer.text).unwrap();
    assert_eq!(plan["unreadable"], serde_json::json!([]));
    let all = plan["pods"].as_array().unwrap();
    let done = all.iter().all(|pod| pod["verdict"] == "placed");
    assert_eq!(answer.code == DONE, done);
    let said = |pod: &serde_json::Value| {
        let because = pod["reasons"][0].as_str();
        let refused = pod["refusals"]["n1"].as_str();
        let node = pod["node"].as_str();
        let verdict = pod["verdict"].as_str().unwrap();
        format!(
            "{verdict} {}",
            because.or(refused).or(node).unwrap_or_default()
        )
    };
    all.iter().map(said).collect()
}

#[test]
fn pods_that_find_no_cpu_are_not_promised_a_gpu() {
    // As it was found: eight pods of 3 CPU on two nodes of 8, and cards enough for all.
    let mut text = node("n1", "", "", "") + &node("n2", "", "", "");
    for name in 0..8 {
        text += &pod(&format!("p{name}"), ", cpu: 3", "");
    }
    let said = verdicts(&text);
    let placed = said
        .iter()
        .filter(|said| said.starts_with("placed"))
        .count();
    assert_eq!(placed, 4, "{said:?}");
    assert_eq!(
        said[7],
        "refused 3 CPU asked, and 2 CPU is left on the node"
    );
}

/// A node and a pod that differ in something from ordinary ones, and the pod's verdict.
struct Case {
    /// More labels of the node.
    labels: &'static str,
    /// Fields of the node's spec.
    node: &'static str,
    /// Amount of a resource that the node has allocatable, in place of the usual one.
    allocatable: &'static str,
    /// More resources that the pod asks for.
    asks: &'static str,
    /// More fields of the pod's spec.
    pod: &'static str,
    verdict: &'static str,
}

const ORDINARY: Case = Case {
    labels: "",
    node: "",
    allocatable: "",
    asks: "",
    pod: "",
    verdict: "placed n1",
};

const SSD: &str = "  nodeSelector: {disk: ssd}\n";
const ZONE_B: &str = "  affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: \
                      {nodeSelectorTerms: [{matchExpressions: [{key: zone, operator: In, values: \
                      [b]}]}]}}}\n";
const NODE_N2: &str = "  affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: \
                       {nodeSelectorTerms: [{matchFields: [{key: metadata.name, operator: In, \
                       values: [n2]}]}]}}}\n";

const CASES: &[Case] = &[
    ORDINARY,
    Case {
        pod: SSD,
        verdict: "refused the pod selects disk=ssd, and the node has no such label",
        ..ORDINARY
    },
    Case {
        labels: ", disk: ssd",
        pod: SSD,
        ..ORDINARY
    },
    Case {
        labels: ", zone: a",
        pod: ZONE_B,
        verdict: "refused the pod's node affinity asks zone in (b), and the node has a",
        ..ORDINARY
    },
    Case {
        labels: ", zone: b",
        pod: ZONE_B,
        ..ORDINARY
    },
    Case {
        pod: NODE_N2,
        verdict: "refused the pod's node affinity asks metadata.name in (n2), and the node has n1",
        ..ORDINARY
    },
    Case {
        node: "unschedulable: true",
        verdict: "refused the node takes no new pods: it is cordoned",
        ..ORDINARY
    },
    Case {
        node: "taints: [{key: a, effect: NoExecute}]",
        verdict: "refused the pod does not tolerate the taint a:NoExecute",
        ..ORDINARY
    },
    Case {
        allocatable: "pods: 0",
        verdict: "refused the node has as many pods as it takes, 0",
        ..ORDINARY
    },
    Case {
        asks: ", memory: 17Gi",
        verdict: "refused 17408 MiB of the machine's memory asked, and 16384 MiB are left",
        ..ORDINARY
    },
    Case {
        asks: ", example.com/nic: 1",
        verdict: "refused 1 example.com/nic asked, and 0 of 0 are left on the node: is its device \
                  plugin running?",
        ..ORDINARY
    },
    Case {
        allocatable: "example.com/nic: 1",
        asks: ", example.com/nic: 1",
        ..ORDINARY
    },
    Case {
        asks: ", ephemeral-storage: 1Gi",
        verdict: "refused 1073741824 ephemeral-storage asked, and 0 of 0 are left on the node",
        ..ORDINARY
    },
    // The device plugin is gone, and the cards are still there.
    Case {
        allocatable: "aliyun.com/gpu-mem: 0",
        verdict: "refused 1 aliyun.com/gpu-mem asked, and 0 of 0 are left on the node: is its \
                  device plugin running?",
        ..ORDINARY
    },
    Case {
        pod: "  hostNetwork: false\n",
        ..ORDINARY
    },
];

/// The node with this amount allocatable, and not what it had of that resource.
fn with_allocatable(node: &str, amount: &str) -> String {
    let (key, _) = amount.split_once(": ").unwrap();
    let (head, list) = node.rsplit_once("allocatable: {").unwrap();
    let kept: Vec<&str> = list
        .trim_end_matches("}}\n")
        .split(", ")
        .filter(|has| !has.starts_with(key))
        .collect();
    format!("{head}allocatable: {{{}, {amount}}}}}\n", kept.join(", "))
}

#[test]
fn what_the_stock_scheduler_refuses_is_refused_with_its_numbers() {
    for case in CASES {
        let mut node = node("n1", case.labels, case.node, "");
        if !case.allocatable.is_empty() {
            node = with_allocatable(&node, case.allocatable);
        }
        let said = verdicts(&(node.clone() + &pod("p", case.asks, case.pod)));
        assert_eq!(said, [case.verdict], "{node}");
    }
}

#[test]
fn pods_that_run_take_ports_pods_and_resources_too() {
    let port = |name: &str, number: u16, spec: &str| {
        format!(
            "---\nkind: Pod\nmetadata: {{name: {name}}}\nspec:\n  schedulerName: sublet-scheduler\n  \
             containers: [{{name: c, ports: [{{containerPort: 1, hostPort: {number}}}], resources: \
             {{limits: {{example.com/nic: 1}}}}}}]\n{spec}"
        )
    };
    let n1 = node("n1", "", "", ", example.com/nic: 4").replace("pods: 110", "pods: 4");
    let text = n1
        + &port("runs", 80, "  nodeName: n1\n")
        + &port("same", 80, "")
        + &port("other", 81, "")
        + &port("last", 82, "")
        + &pod("third", "", "")
        + &pod("fifth", "", "");
    assert_eq!(
        verdicts(&text),
        [
            "refused port 80/TCP of the node is taken",
            "placed n1",
            "placed n1",
            "placed n1",
            "refused the node has as many pods as it takes, 4",
        ]
    );
}

/// A pod with this stays away from pods like itself.
const ANTI: &str = "  affinity: {podAntiAffinity: {requiredDuringSchedulingIgnoredDuringExecution: \
                    [{topologyKey: kubernetes.io/hostname, labelSelector: {matchLabels: \
                    {app: web}}}]}}\n";

#[test]
fn what_is_not_looked_at_is_conditional_and_keeps_its_place() {
    rules_that_nobody_checks_make_a_plan_conditional();
    pods_of_another_scheduler_are_conditional();
    others_may_keep_a_pod_away();
    the_place_is_kept_and_shown_as_what_it_is();
}

fn rules_that_nobody_checks_make_a_plan_conditional() {
    let near = ANTI.replace("podAntiAffinity", "podAffinity");
    for (spec, expected) in [
        (ANTI, "conditional its pod anti-affinity is not looked at"),
        (
            near.as_str(),
            "conditional its pod affinity is not looked at",
        ),
        (
            "  topologySpreadConstraints: [{maxSkew: 1, topologyKey: zone, whenUnsatisfiable: DoNotSchedule}]\n",
            "conditional its topology spread constraints are not looked at",
        ),
        (
            "  volumes: [{name: data, persistentVolumeClaim: {claimName: d}}]\n",
            "conditional its volume data may bind it to other nodes",
        ),
        (
            "  resourceClaims: [{name: gpu, resourceClaimName: g}]\n",
            "conditional its resource claims are not looked at",
        ),
        ("  volumes: [{name: data, emptyDir: {}}]\n", "placed n1"),
    ] {
        let text = node("n1", "", "", "") + &pod("p", "", spec);
        assert_eq!(verdicts(&text), [expected]);
    }
}

fn pods_of_another_scheduler_are_conditional() {
    let ours = node("n1", "", "", "") + &pod("p", "", "");
    let theirs = ours.replace("sublet-scheduler", "default-scheduler");
    let said =
        "conditional it is placed by the scheduler default-scheduler, which does not ask Sublet";
    assert_eq!(verdicts(&theirs), [said]);
    let nobody = theirs.replace("  schedulerName: default-scheduler\n", "");
    assert_eq!(verdicts(&nobody), [said]);
}

/// A pod that runs keeps pods like it away, and so does one that was just given a place.
fn others_may_keep_a_pod_away() {
    let beside = |first: &str| verdicts(&(node("n1", "", "", "") + first + &pod("p", "", "")));
    let first = pod("first", "", ANTI);
    let after = "conditional the anti-affinity of pod default/first may keep it away";
    let runs = first.replace("schedulerName: sublet-scheduler", "nodeName: n1");
    assert_eq!(beside(&runs), [after]);
    assert_eq!(beside(&first)[1], after);
    let others = first.replace("matchLabels: {app: web}", "matchLabels: {app: db}");
    assert_eq!(beside(&others)[1], "placed n1");
}

fn the_place_is_kept_and_shown_as_what_it_is() {
    let text = node("n1", "", "", "") + &pod("first", "", ANTI) + &pod("p", ", cpu: 8", "");
    let text = text.replace("gpu-mem: 1}}", "gpu-mem: 1, cpu: 1}}");
    let plan = json(&text);
    assert_eq!(
        (&plan["placed"], &plan["conditional"]),
        (&0.into(), &1.into())
    );
    let first = &plan["pods"][0];
    assert_eq!(
        (&first["node"], &first["gpus"]),
        (&serde_json::Value::Null, &serde_json::json!([]))
    );
    assert_eq!(first["candidate"]["node"], "n1");
    assert_eq!(
        plan["pods"][1]["refusals"]["n1"],
        "8 CPU asked, and 7 CPU is left on the node"
    );
    let shown = table(&text).text;
    assert!(
        shown.contains("\ndefault    first  n1?     c          0    1 MiB    -\n"),
        "{shown}"
    );
    assert!(shown.contains(
        "\ndefault/first may be placed or not\n  its pod anti-affinity is not looked at\n"
    ));
    assert!(
        shown.ends_with("\n0 placed, 1 conditional, 1 not placed, 0 held back\n"),
        "{shown}"
    );
}

#[test]
fn a_pod_that_may_evict_others_is_not_refused_for_sure() {
    let fill = "  nodeName: n1\n  priority: 1\n";
    let text = |spec: &str| {
        let full = waiting(
            "full",
            "20, cpu: 8",
            ", annotations: {ALIYUN_COM_GPU_MEM_IDX: \"0\"}",
            fill,
        );
        node("n1", "", "", "") + &full + &pod("p", ", cpu: 1", spec)
    };
    let evicts = "conditional pods of lower priority may be evicted for it";
    let full = "refused 1 CPU asked, and 0 CPU is left on the node";
    assert_eq!(verdicts(&text("  priority: 2\n")), [evicts]);
    assert_eq!(verdicts(&text("  priority: 1\n")), [full]);
    assert_eq!(
        verdicts(&text("  priority: 2\n  preemptionPolicy: Never\n")),
        [full]
    );
}

#[test]
fn the_scheduler_s_own_scores_choose_among_equals() {
    // Binpack finds two empty nodes equal; the stock scheduler takes the emptier machine.
    let two = node("n1", "", "", "") + &node("n2", "", "", "").replace("cpu: 8", "cpu: 64");
    assert_eq!(verdicts(&(two + &pod("p", ", cpu: 4", ""))), ["placed n2"]);
    let equal = node("n1", "", "", "") + &node("n2", "", "", "") + &pod("p", "", "");
    assert_eq!(
        json(&equal)["pods"][0]["alternatives"],
        serde_json::json!(["n2"])
    );
    assert!(
        table(&equal)
            .text
            .contains("1 of them may go elsewhere too: the scheduler picks")
    );
    let tiling = planned(&[&equal], Format::Json, "tiling").text;
    let tiling: serde_json::Value = serde_json::from_str(&tiling).unwrap();
    assert_eq!(tiling["pods"][0]["alternatives"], serde_json::Value::Null);
}

#[test]
fn a_pod_is_planned_with_the_slot_that_it_gets_when_it_is_created() {
    let node = "---\nkind: Node\nmetadata:\n  name: n1\n  annotations:\n    sublet.dev/inventory: \
                '{\"version\":1,\"unit\":\"MiB\",\"sharing\":\"memory\",\"identity\":\"nri\",\
                \"advertise\":\"units\",\"gpus\":[{\"index\":0,\"memoryMiB\":16276}]}'\n";
    let pod = |meta: &str| {
        format!(
            "---\nkind: Pod\nmetadata: {{name: p, uid: p{meta}}}\nspec:\n  schedulerName: \
             sublet-scheduler\n  containers:\n  - {{name: c0, resources: {{limits: \
             {{sublet.dev/gpu-memory: 4Gi}}}}}}\n"
        )
    };
    let new = table(&format!("{node}{}", pod("")));
    assert_eq!(new.code, DONE, "{}", new.text);
    assert_eq!(
        new.notes,
        [
            "note: 1 pods are planned with the sublet.dev/gpu-slot that `sublet controller` adds \
             when they are created; without it, write it yourself"
        ]
    );
    // The webhook has seen it, or there was none.
    let created = pod(", creationTimestamp: 2026-01-01T00:00:00Z");
    let created = table(&format!("{node}{created}"));
    assert_eq!((created.code, created.notes), (NOT_DONE, Vec::new()));
    assert!(
        created
            .text
            .contains("does not ask for sublet.dev/gpu-slot"),
        "{}",
        created.text
    );
}
