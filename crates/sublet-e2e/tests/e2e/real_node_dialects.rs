//! Pods as six systems have them written, on a real node: one ledger, one card.

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use sublet_e2e::{GpuNode, eventually, yaml};

const CARD: u64 = 16_276;

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
    let labels = "labels: {sharedgpu/gpu_request: \"0.1\", sharedgpu/gpu_limit: \"0.5\", \
                  sharedgpu/gpu_mem: \"1073741824\"}";
    let pods = [
        ("aliyun", "aliyun.com/gpu-mem: 1000", "", 1000),
        (
            "hami",
            "nvidia.com/gpu: 1, nvidia.com/gpumem: 1100",
            "",
            1100,
        ),
        (
            "koordinator",
            "koordinator.sh/gpu-memory: 1200Mi, koordinator.sh/gpu-core: 10",
            "",
            1200,
        ),
        ("kubeshare", "cpu: 10m", labels, 1024),
        (
            "kai",
            "cpu: 10m",
            "annotations: {gpu-fraction: \"0.1\"}",
            1627,
        ),
        (
            "sublet",
            "sublet.dev/gpu-memory: 1400Mi, sublet.dev/gpu-compute: 20",
            "",
            1400,
        ),
    ];
    // The API server asks the webhook from about a second after it was told to.
    let (_, limits, metadata, _) = pods[4];
    let limits = [limits];
    let tried = yaml::Pod {
        metadata,
        ..pod("tried", &limits)
    };
    let dry = ["apply", "--filename=-", "--dry-run=server", "--output=yaml"];
    eventually(|| {
        let made = cluster.kubectl_with_input(&dry, &tried.yaml())?;
        ensure!(made.contains("sublet.dev/gpu-slot"), "{made}");
        Ok(())
    })?;
    for (name, limits, metadata, _) in pods {
        let limits = [limits];
        let written = yaml::Pod {
            metadata,
            ..pod(name, &limits)
        };
        cluster.apply(&written.yaml())?;
        node.until_running(name)?;
    }
    for (name, _, _, memory) in pods {
        let object = node.until_running(name)?;
        assert_eq!(share_of(&object)?, (0, memory), "{name}");
        let inside = node.environment(name, "c0")?;
        assert_eq!(inside["NVIDIA_VISIBLE_DEVICES"], node.uuids()[0], "{name}");
    }
    let annotation = |name: &str, key: &str| -> Result<String> {
        let object = node.until_running(name)?;
        let text = object["metadata"]["annotations"][key].as_str();
        Ok(text.unwrap_or_default().to_owned())
    };
    let uuid = &node.uuids()[0];
    assert_eq!(
        annotation("hami", "hami.io/vgpu-devices-allocated")?,
        format!("{uuid},NVIDIA,1100,0:;")
    );
    assert_eq!(annotation("hami", "hami.io/bind-phase")?, "success");
    assert_eq!(
        annotation("koordinator", "scheduling.koordinator.sh/gpu-minors")?,
        "0"
    );
    assert_eq!(annotation("kubeshare", "sharedgpu/gpu_uuid")?, *uuid);

    let mixed = pod("mixed", &["aliyun.com/gpu-mem: 1, nvidia.com/gpumem: 1"]);
    let refused = cluster.apply(&mixed.yaml()).unwrap_err().to_string();
    assert!(
        refused.contains("`aliyun.com/gpu-mem` and for `nvidia.com/gpumem`"),
        "{refused}"
    );
    node.world.cluster.kubectl(&["delete", "pods", "--all"])?;
    Ok(())
}
