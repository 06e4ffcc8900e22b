//! Rows H of HAMi's own tests that are about placement, by their numbers: its pods on paper, and
//! their outcomes. If HAMi decides otherwise, the row says so.

use super::*;

/// A node with our agent. Cards are `MiB@NUMA node`, and are called `GPU-0` and so on. `more`: the
/// text after its annotations.
fn node(cards: &str, more: &str) -> String {
    let cards = cards.split_whitespace().enumerate().map(|(at, card)| {
        let (memory, numa) = card.split_once('@').unwrap_or((card, "0"));
        format!(
            r#"{{"index":{at},"uuid":"GPU-{at}","model":"NVIDIA A100","memoryMiB":{memory},"numa":{numa}}}"#
        )
    });
    let cards = cards.collect::<Vec<_>>().join(",");
    format!(
        "---\nkind: Node\nmetadata:\n  name: n1\n  annotations:\n    sublet.dev/inventory: \
         '{{\"version\":1,\"unit\":\"MiB\",\"sharing\":\"memory\",\"identity\":\"nri\",\"advertise\":\"units\",\"gpus\":[{cards}]}}'\n{more}"
    )
}

/// A pod with a container for each part between `+`: `gpumem: 3000, gpucores: 30` stands for the
/// resources of that name of `nvidia.com`. Text before `|` is annotations.
fn pod(name: &str, asks: &str) -> String {
    let (annotations, asks) = asks.split_once('|').unwrap_or(("", asks));
    let container = |(at, ask): (usize, &str)| {
        let limits = ask
            .split(',')
            .map(|one| format!("nvidia.com/{}", one.trim()));
        let limits = limits.collect::<Vec<_>>().join(", ");
        format!("  - {{name: c{at}, resources: {{limits: {{{limits}}}}}}}\n")
    };
    let containers: String = asks.split('+').enumerate().map(container).collect();
    format!(
        "---\nkind: Pod\nmetadata: {{name: {name}, uid: {name}, annotations: {{{annotations}}}}}\n\
         spec:\n  schedulerName: sublet-scheduler\n  containers:\n{containers}"
    )
}

/// Outcome of each of these pods, one after the other: its cards, or the reason why it has none.
fn becomes(node: &str, pods: &[&str]) -> Vec<String> {
    let mut text = node.to_owned();
    for (at, asks) in pods.iter().enumerate() {
        text += &pod(&format!("p{at}"), asks);
    }
    let plan = json(&text);
    let said = |pod: &serde_json::Value| match pod["refusals"]["n1"].as_str() {
        Some(refused) => refused.to_owned(),
        None => {
            let devices = pod["gpus"].as_array().unwrap().iter();
            let cards = devices.map(|one| one["uuid"].as_str().unwrap_or("?").to_owned());
            cards.collect::<Vec<_>>().join(" ")
        }
    };
    plan["pods"].as_array().unwrap().iter().map(said).collect()
}

/// Pods of one node, each with its outcome.
#[track_caller]
fn check(node: &str, rows: &[(&str, &str)]) {
    let pods: Vec<&str> = rows.iter().map(|(pod, _)| *pod).collect();
    let expected: Vec<&str> = rows.iter().map(|(_, becomes)| *becomes).collect();
    assert_eq!(becomes(node, &pods), expected);
}

const COMPANY: &str = "GPU 0 has room, but a guaranteed pod that asks for all of a GPU's compute \
                       time shares it with no other guaranteed pod";

/// HAMi takes the last of two idle cards. Here the cluster's policy decides: binpack takes the first,
/// and fills it.
#[test]
fn h1_of_idle_cards_the_policy_takes_one() {
    check(
        &node("128 128", ""),
        &[
            ("gpu: 1, gpumem: 64, gpucores: 50", "GPU-0"),
            ("gpu: 1, gpumem: 64, gpucores: 50", "GPU-0"),
            ("gpu: 1, gpumem: 64", "GPU-1"),
        ],
    );
}

#[test]
fn h2_h3_too_little_memory_and_too_little_compute_time_are_told_apart() {
    check(
        &node("128", ""),
        &[(
            "gpu: 1, gpumem: 512",
            "512 MiB asked of one GPU, but the largest, GPU 0, has 128 MiB in all (384 MiB too few)",
        )],
    );
    check(
        &node("128", ""),
        &[
            ("gpumem: 100", "GPU-0"),
            (
                "gpumem: 64",
                "GPU 0 lacks 36 MiB: 64 MiB asked, and the largest hole on this node is 28 MiB",
            ),
        ],
    );
    check(
        &node("128", ""),
        &[
            ("gpumem: 32, gpucores: 60", "GPU-0"),
            (
                "gpumem: 32, gpucores: 50",
                "GPU 0 lacks 10 % of its compute time: 50 % asked, and 40 % is the most that is \
                 left of a GPU with enough memory",
            ),
        ],
    );
}

#[test]
fn h4_all_cores_are_for_an_idle_card() {
    check(
        &node("128", ""),
        &[
            ("gpumem: 32", "GPU-0"),
            ("gpumem: 32, gpucores: 100", COMPANY),
        ],
    );
}

/// HAMi refuses a pod without cores on a card whose cores are all asked for, by any number of pods.
/// Here one pod of 100 keeps the others away. Beside two of 50 there is room: a pod that asks for
/// no compute time is promised none.
#[test]
fn h5_a_pod_without_cores_goes_where_others_have_some() {
    check(
        &node("128", ""),
        &[
            ("gpumem: 32, gpucores: 100", "GPU-0"),
            ("gpumem: 32", COMPANY),
        ],
    );
    check(
        &node("128", ""),
        &[
            ("gpumem: 32, gpucores: 50", "GPU-0"),
            ("gpumem: 32, gpucores: 50", "GPU-0"),
            ("gpumem: 32", "GPU-0"),
        ],
    );
}

/// HAMi counts the pods of a card against its split count. Here kubelet does, by devices of
/// `nvidia.com/gpu`, and the stock scheduler looks at that; a card itself has no such limit.
#[test]
fn h6_the_split_count_is_the_node_s_amount() {
    let status = "status: {capacity: {nvidia.com/gpu: 2}, allocatable: {cpu: 8, memory: 16Gi, \
                  pods: 110, nvidia.com/gpu: 2, nvidia.com/gpumem: 128}}\n";
    check(
        &node("128", status),
        &[
            ("gpu: 1, gpumem: 1", "GPU-0"),
            ("gpu: 1, gpumem: 1", "GPU-0"),
            (
                "gpu: 1, gpumem: 1",
                "1 nvidia.com/gpu asked, and 0 of 2 are left on the node",
            ),
        ],
    );
}

#[test]
fn h7_cards_are_named_by_uuid_and_model() {
    check(
        &node("128 128", ""),
        &[
            ("nvidia.com/use-gpuuuid: GPU-1|gpumem: 32", "GPU-1"),
            (
                "nvidia.com/use-gpuuuid: GPU-7|gpumem: 32",
                "the pod accepts only GPUs with UUID `GPU-7`; the node has none of these",
            ),
            (
                "nvidia.com/nouse-gpuuuid: \"GPU-0,GPU-1\"|gpumem: 32",
                "the pod accepts only GPUs without UUID `GPU-0` or `GPU-1`; the node has none of these",
            ),
            (
                "nvidia.com/nouse-gputype: a100|gpumem: 32",
                "the pod accepts only GPUs not of model `a100`; the node has `NVIDIA A100`",
            ),
            ("nvidia.com/use-gputype: \"\"|gpumem: 32", "GPU-1"),
        ],
    );
}

#[test]
fn h8_a_cordoned_card_gets_no_new_pod_and_the_refusal_says_why() {
    check(
        &node("128 128", "    hami.io/device-cordon: GPU-0\n"),
        &[
            ("gpumem: 64", "GPU-1"),
            (
                "gpumem: 100",
                "GPU 1 lacks 36 MiB: 100 MiB asked, and the largest hole on this node is 64 MiB; \
                 1 GPU is unhealthy (cordoned by hami.io/device-cordon)",
            ),
        ],
    );
}

#[test]
fn h9_cards_of_one_numa_node() {
    check(
        &node("128@1 128@1 128@0", ""),
        &[
            (
                "nvidia.com/numa-bind: \"true\"|gpu: 2, gpumem: 32",
                "GPU-0 GPU-1",
            ),
            (
                "nvidia.com/numa-bind: \"true\"|gpu: 3, gpumem: 32",
                "3 GPUs asked, but the node has 2 GPUs that the pod accepts together",
            ),
            ("gpu: 3, gpumem: 32", "GPU-0 GPU-1 GPU-2"),
        ],
    );
}

/// HAMi's examples `use_sharing_card` and `use_exclusive_card`.
#[test]
fn shares_of_memory_that_are_a_card_fit_on_it() {
    check(
        &node("127", ""),
        &[
            ("gpu: 1, gpumem-percentage: 40, gpucores: 60", "GPU-0"),
            ("gpu: 1, gpumem-percentage: 60, gpucores: 40", "GPU-0"),
        ],
    );
    check(
        &node("127 127", ""),
        &[
            (
                "gpu: 2, gpumem-percentage: 100, gpucores: 100",
                "GPU-0 GPU-1",
            ),
            (
                "gpumem: 1",
                "GPU 0 lacks 1 MiB: 1 MiB asked, and the largest hole on this node is 0 MiB",
            ),
        ],
    );
}

#[test]
fn each_container_has_a_card_of_its_own_choice() {
    check(
        &node("8000 8000", ""),
        &[
            ("gpumem: 5000+gpumem: 4000", "GPU-0 GPU-1"),
            ("gpumem: 4000+gpumem: 3000", "GPU-1 GPU-0"),
        ],
    );
}

#[test]
fn nothing_is_bound_where_hami_s_own_plugin_hands_out_cards() {
    let register = r#"[{"id":"GPU-0","count":10,"devmem":128,"devcore":100,"type":"NVIDIA-A100","mode":"hami-core","health":true}]"#;
    let node = format!(
        "kind: Node\nmetadata:\n  name: n1\n  annotations:\n    hami.io/node-nvidia-register: '{register}'\n\
         status: {{capacity: {{nvidia.com/gpu: 10}}}}\n"
    );
    let why = "the device plugin of HAMi hands out the node's GPUs, and does not know what Sublet \
               decides";
    check(&node, &[("gpumem: 1", why), ("gpu: 1", why)]);
}

/// HAMi's example `default_use`.
#[test]
fn a_plan_of_hami_s_example_reads_well() {
    let example = "\
---
apiVersion: v1
kind: Pod
metadata:
  name: gpu-pod
spec:
  schedulerName: sublet-scheduler
  containers:
    - name: ubuntu-container
      image: ubuntu:22.04
      command: [\"bash\", \"-c\", \"sleep 86400\"]
      resources:
        limits:
          nvidia.com/gpu: 1 # declare how many physical GPUs the pod needs
          nvidia.com/gpumem: 3000
          nvidia.com/gpucores: 30
";
    let answer = table(&(node("81559 81559", "") + example));
    assert_eq!(answer.notes, Vec::<String>::new());
    let (text, _our_own_keys) = answer.text.split_once("  sublet.dev/").unwrap();
    assert_eq!(
        text,
        "\
NAMESPACE  NAME     NODE  CONTAINER         GPU  GRANTED   COMPUTE REQUEST     UUID
default    gpu-pod  n1    ubuntu-container  0    3000 MiB  30 %, at most 30 %  GPU-0

default/gpu-pod gets the annotations
  hami.io/bind-phase: allocating
  hami.io/bind-time: 1700000000
  hami.io/vgpu-devices-allocated: GPU-0,NVIDIA,3000,30:;
  hami.io/vgpu-devices-to-allocate: GPU-0,NVIDIA,3000,30:;
  hami.io/vgpu-node: n1
  hami.io/vgpu-time: 1700000000
  required-plugins.noderesource.dev: [\"sublet\"]
"
    );
}
