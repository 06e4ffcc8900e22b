//! Pods as six systems have them written, on a real node: one ledger, one card.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use sublet_e2e::{GpuNode, eventually, yaml};

use crate::real_node_isolation::{also, pod_with, stage};

const CARD: u64 = 16_276;
const MIB: u64 = 1 << 20;

/// Program of each pod: it takes a little, and waits.
const HOLD: &str = "/lib64/sublet-workload alloc --size 10MiB --count 5 --check --hold 100000";

/// The one card's number and the memory that the pod's annotation says its container got.
fn share_of(pod: &Value) -> Result<(u64, u64)> {
    let text = pod["metadata"]["annotations"]["sublet.dev/allocation"].as_str();
    let grants: Value = serde_json::from_str(text.context("no allocation")?)?;
    let [grant] = &grants.as_array().context("no list")?[..] else {
        anyhow::bail!("not one grant: {grants}");
    };
    let number = |key: &str| {
        grant[key]
            .as_u64()
            .with_context(|| format!("no {key}: {grants}"))
    };
    Ok((number("index")?, number("memoryMiB")?))
}

fn pod<'a>(name: &'a str, limits: &'a [&'a str]) -> yaml::Pod<'a> {
    yaml::Pod {
        name,
        limits,
        ..yaml::Pod::default()
    }
}

/// Another program in the container sees this much by CUDA and by NVML, and gets no more.
fn check_limit(node: &GpuNode, pod: &str, memory: u64) -> Result<()> {
    let seen = also(node, pod, "info --nvml")?;
    let (cuda, nvml) = (&seen["devices"], &seen["nvml"]["devices"]);
    assert_eq!(cuda[0]["totalMem"], memory * MIB, "{pod}: {seen}");
    assert_eq!(nvml[0]["memory"]["total"], memory * MIB, "{pod}: {seen}");
    assert_eq!(nvml.as_array().map(Vec::len), Some(1), "{pod}: {seen}");
    let took = also(node, pod, "alloc --size 2MiB --until-oom --down-to 512")?;
    assert_eq!(took["refused"]["code"], 2, "{pod}: {took}");
    let bytes = took["bytes"].as_u64().context("no bytes")?;
    assert!(0 < bytes && bytes < memory * MIB, "{pod}: {took}");
    Ok(())
}

/// A pod's name, limits and metadata, and the MiB that it gets.
type Asked = (&'static str, &'static str, &'static str, u64);

const PODS: [Asked; 6] = [
    ("aliyun", "aliyun.com/gpu-mem: 1150", "", 1150),
    (
        "hami",
        "nvidia.com/gpu: 1, nvidia.com/gpumem: 1250",
        "",
        1250,
    ),
    (
        "koordinator",
        "koordinator.sh/gpu-memory: 1300Mi, koordinator.sh/gpu-core: 10",
        "",
        1300,
    ),
    (
        "kubeshare",
        "cpu: 10m",
        "labels: {sharedgpu/gpu_request: \"0.1\", sharedgpu/gpu_limit: \"0.5\", \
         sharedgpu/gpu_mem: \"1258291200\"}",
        1200,
    ),
    KAI,
    (
        "sublet",
        "sublet.dev/gpu-memory: 1400Mi, sublet.dev/gpu-compute: 20",
        "",
        1400,
    ),
];

const KAI: Asked = (
    "kai",
    "cpu: 10m",
    "annotations: {gpu-fraction: \"0.1\"}",
    1627,
);

/// Pods as six systems have them written, none with a slot: the webhook gives one to those that
/// need it. All share one card of the node, and none has more than it asked.
#[test]
fn pods_of_six_dialects_share_one_card() -> Result<()> {
    let Some(node) = GpuNode::start(&["--gpu-splits", "10"])? else {
        return Ok(());
    };
    node.until_allocatable("aliyun.com/gpu-mem", 2 * CARD)?;
    node.until_allocatable("nvidia.com/gpu", 20)?;
    node.until_allocatable("koordinator.sh/gpu-core", 200)?;
    node.world.start_controller(&[])?;
    let cluster = &node.world.cluster;
    until_pods_are_completed(&node)?;
    let stage = stage(&node)?;
    for (name, limits, metadata, _) in PODS {
        cluster.apply(&pod_with(name, metadata, limits, &stage, HOLD))?;
        node.until_running(name)?;
    }
    create_share_pod(&node, &stage)?;
    let all = PODS.map(|(name, _, _, memory)| (name, memory));
    for (name, memory) in all.into_iter().chain([("sharepod", 1500)]) {
        let object = node.until_running(name)?;
        assert_eq!(share_of(&object)?, (0, memory), "{name}");
        let inside = node.environment(name, "main")?;
        assert_eq!(inside["NVIDIA_VISIBLE_DEVICES"], node.uuids()[0], "{name}");
        check_limit(&node, name, memory)?;
    }
    results_are_written_for_each_system(&node)?;
    let mixed = pod("mixed", &["aliyun.com/gpu-mem: 1, nvidia.com/gpumem: 1"]);
    let refused = cluster.apply(&mixed.yaml()).unwrap_err().to_string();
    assert!(
        refused.contains("`aliyun.com/gpu-mem` and for `nvidia.com/gpumem`"),
        "{refused}"
    );
    cluster.kubectl(&["delete", "sharepods,pods", "--all"])?;
    Ok(())
}

/// The API server asks the webhook from about a second after it was told to.
fn until_pods_are_completed(node: &GpuNode) -> Result<()> {
    let (_, limits, metadata, _) = KAI;
    let limits = [limits];
    let tried = yaml::Pod {
        metadata,
        ..pod("tried", &limits)
    };
    let dry = ["apply", "--filename=-", "--dry-run=server", "--output=yaml"];
    eventually(|| {
        let made = node.world.cluster.kubectl_with_input(&dry, &tried.yaml())?;
        ensure!(made.contains("sublet.dev/gpu-slot"), "{made}");
        Ok(())
    })
}

/// KubeShare 1's own kind of object. Its pod mounts a folder of the host, as the others do.
fn create_share_pod(node: &GpuNode, stage: &Path) -> Result<()> {
    let cluster = &node.world.cluster;
    let allowed = "sublet.dev/privileged-sharepods=allowed";
    cluster.kubectl(&["label", "namespace", "default", allowed])?;
    let metadata = "annotations: {kubeshare/gpu_request: \"0.1\", kubeshare/gpu_limit: \"1.0\", \
                    kubeshare/gpu_mem: \"1572864000\"}";
    let share_pod = pod_with("sharepod", metadata, "cpu: 10m", stage, HOLD);
    let share_pod = share_pod.replace(
        "apiVersion: v1\nkind: Pod\n",
        "apiVersion: kubeshare.nthu/v1\nkind: SharePod\n",
    );
    cluster.apply(&share_pod).map(drop)
}

/// Annotations that the tools of these systems read.
fn results_are_written_for_each_system(node: &GpuNode) -> Result<()> {
    let annotation = |name: &str, key: &str| -> Result<String> {
        let object = node.until_running(name)?;
        let text = object["metadata"]["annotations"][key].as_str();
        Ok(text.unwrap_or_default().to_owned())
    };
    let uuid = &node.uuids()[0];
    assert_eq!(
        annotation("hami", "hami.io/vgpu-devices-allocated")?,
        format!("{uuid},NVIDIA,1250,0:;")
    );
    assert_eq!(annotation("hami", "hami.io/bind-phase")?, "success");
    assert_eq!(
        annotation("koordinator", "scheduling.koordinator.sh/gpu-minors")?,
        "0"
    );
    assert_eq!(annotation("kubeshare", "sharedgpu/gpu_uuid")?, *uuid);
    Ok(())
}
