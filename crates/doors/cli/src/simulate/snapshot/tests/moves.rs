//! `--defrag`: pods that may be moved, and the gain of moves.

use super::*;

/// Three nodes of one card of 16, on each a pod, as the cluster would print them.
fn owned(pods: &[(&str, &str, &str, &str)]) -> String {
    let mut text = String::new();
    for name in ["a", "b", "c"] {
        text += &format!(
            "kind: Node\nmetadata: {{name: {name}}}\nstatus: {{capacity: {{aliyun.com/gpu-mem: 16, aliyun.com/gpu-count: 1}}, allocatable: {{cpu: \"8\", memory: 8Gi}}}}\n---\n"
        );
    }
    for (name, node, amount, meta) in pods {
        text += &format!(
            "kind: Pod\nmetadata: {{name: {name}, namespace: team, annotations: {{ALIYUN_COM_GPU_MEM_IDX: \"0\"}}{meta}}}\n\
             spec: {{nodeName: {node}, containers: [{{name: m, resources: {{requests: {{cpu: \"2\"}}, limits: {{aliyun.com/gpu-mem: {amount}}}}}}}]}}\n---\n"
        );
    }
    text
}

const SET: &str = ", ownerReferences: [{kind: ReplicaSet}]";

/// Three nodes, and a move that helps.
fn three() -> String {
    owned(&[
        ("p", "a", "4", SET),
        ("q", "b", "10", SET),
        ("r", "c", "7", SET),
    ])
}

pub(crate) fn answers() -> Vec<[String; 2]> {
    let words = "--snapshot @ --defrag 5";
    vec![["", " -o json"].map(|form| simulated(&three(), &format!("{words}{form}")).0.text)]
}

#[test]
fn moves_are_told_with_what_they_win() {
    let text = three();
    let (answer, _) = simulated(&text, "--snapshot @ --defrag 5");
    assert_eq!(
        answer.text,
        "\
3 nodes with 3 GPUs; 3 pods with GPUs that can be moved.

MOVE  NAME    REQUEST  FROM  TO
1     team/p  4 MiB    a/0   b/0

MOVES  LARGEST POD  FREE GPUS  WON GPUS  FREE GPUS WITH CPU  NODES WITH FREE  FRAGMENTED
0      12 MiB       0          +0        0                   0×8 0×4 0×2 0×1  14.58 %
1      16 MiB       1          +1        1                   0×8 0×4 0×2 1×1  10.41 %
FREE GPUS WITH CPU: free GPUs whose node has CPU left for them, as much for each as running pods have.
NODES WITH FREE: so many nodes with 8, 4, 2 and 1 free GPUs.
"
    );
    let (answer, _) = simulated(&text, "--snapshot @ --defrag 5 -o json");
    let found = json(&answer);
    assert_eq!(
        found["moves"],
        serde_json::json!([{
            "move": 1, "namespace": "team", "name": "p", "requestMiB": 4, "cpuRequestMilli": 2000,
            "from": {"node": "a", "gpus": [0]}, "to": {"node": "b", "gpus": [0]},
        }])
    );
    let last = &found["states"][1];
    assert_eq!(
        (&last["wonGpus"], &last["freeGpusWithCpu"]),
        (&1.into(), &1.into())
    );
    assert_eq!(
        last["largestPod"],
        serde_json::json!({"requestGpus": 0, "requestMiB": 16})
    );
    assert_eq!(
        last["nodesWithFree"],
        serde_json::json!({"8": 0, "4": 0, "2": 0, "1": 1})
    );
    // Nothing arrives unless it is asked for.
    let (answer, _) = simulated(&text, "--snapshot @ --defrag 0");
    assert!(
        answer.text.contains("\nNo move helps.\n"),
        "{}",
        answer.text
    );
}

#[test]
fn pods_that_nobody_brings_back_stay() {
    let daemon = ", ownerReferences: [{kind: DaemonSet}]";
    let mirror = ", ownerReferences: [{kind: Node}]";
    let going = ", ownerReferences: [{kind: Job}], deletionTimestamp: \"2026-01-01T00:00:00Z\"";
    let unsafe_ = "";
    let text = owned(&[
        ("p", "a", "1", daemon),
        ("q", "a", "1", mirror),
        ("r", "b", "1", going),
        ("s", "b", "1", unsafe_),
        ("t", "c", "1", SET),
    ]);
    let text = text.replace(
        "kind: Pod\nmetadata: {name: t, namespace: team, annotations: {",
        "kind: Pod\nmetadata: {name: t, namespace: team, annotations: {cluster-autoscaler.kubernetes.io/safe-to-evict: \"false\", ",
    );
    let (answer, _) = simulated(&text, "--snapshot @ --defrag 9 -o json");
    let found = json(&answer);
    assert_eq!(found["moves"], serde_json::json!([]));
    assert_eq!(
        (&found["movablePods"], &found["stayingPods"]),
        (
            &0.into(),
            &serde_json::json!({
                "about to end": 1,
                "marked as not safe to evict": 1,
                "of a DaemonSet": 1,
                "static": 1,
                "without an owner that would start them again": 1,
            })
        )
    );
    // New pods are drawn like all but those that belong to a node.
    assert_eq!(snapshot(&text, &[]).unwrap().pods.rows.len(), 3);
}

#[test]
fn a_trace_s_pods_are_moved_where_a_run_has_left_them() {
    let folder = tempfile::tempdir().unwrap();
    let pods = folder.path().join("pods");
    std::fs::write(
        &pods,
        "name,cpu_milli,memory_mib,num_gpu,gpu_milli\np,1,1,1,400\n",
    )
    .unwrap();
    let nodes = "sn,cpu_milli,memory_mib,gpu\na,99,99,1\nb,99,99,1\n";
    let words = format!(
        "--nodes @ --pods {} --policy spread --arrive 40 --defrag 9",
        pods.display()
    );
    let (answer, _) = simulated(nodes, &words);
    let moved: Vec<&str> = answer
        .text
        .lines()
        .filter(|line| line.starts_with("1     default/p"))
        .collect();
    assert!(
        moved.len() == 1 && moved[0].contains("0.400 GPU"),
        "{}",
        answer.text
    );
}

/// No rule says where else such a pod may go, so no move of it is proposed.
#[test]
fn pods_with_wishes_that_are_not_looked_at_stay() {
    let text = owned(&[
        ("p", "a", "1", SET),
        ("q", "b", "1", SET),
        ("r", "c", "1", &format!("{SET}, labels: {{app: web}}")),
    ]);
    let mounts = "volumes: [{name: data, persistentVolumeClaim: {claimName: c}}], ";
    let apart = "affinity: {podAntiAffinity: {requiredDuringSchedulingIgnoredDuringExecution: \
                 [{topologyKey: zone, labelSelector: {matchLabels: {app: web}}}]}}, ";
    let wishes = [("a", mounts), ("b", apart), ("c", "")];
    let text = wishes.iter().fold(text, |text, (node, wish)| {
        text.replace(
            &format!("nodeName: {node}, "),
            &format!("nodeName: {node}, {wish}"),
        )
    });
    let (answer, _) = simulated(&text, "--snapshot @ --defrag 9 -o json");
    let found: serde_json::Value = serde_json::from_str(&answer.text).unwrap();
    assert_eq!(
        (&found["movablePods"], &found["stayingPods"]),
        (
            &0.into(),
            // Its own volume, its own anti-affinity, and that of another.
            &serde_json::json!({ "with wishes that are not looked at": 3 })
        )
    );
}
