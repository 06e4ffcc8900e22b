//! What our agent says of its node in the words of others, on the real API server: for whom it says
//! it, and when it keeps silent.
//!
//! The node is on paper (KWOK); the agent is real, and finds no kubelet there.

use std::fs;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use sublet_e2e::{World, eventually, yaml};
use sublet_testbed::{deployed, free_port};

const REGISTER: &str = "hami.io/node-nvidia-register";
const HANDSHAKE: &str = "hami.io/node-handshake";

/// Two cards, the second one sick for this reason.
fn cards(reason: &str) -> String {
    let of_both = "model: NVIDIA A100, memory: 16276MiB, numa: 1";
    format!("gpus: [{{{of_both}}}, {{{of_both}, health: {reason}}}]\n")
}

/// A cluster with the node `n1` on paper, and its agent.
struct PaperNode {
    world: World,
}

impl PaperNode {
    fn start(flags: &[&str]) -> Result<Option<PaperNode>> {
        let Some(world) = World::start()? else {
            return Ok(None);
        };
        world.cluster.apply(&yaml::share_node("n1", 2, 32_552))?;
        let node = PaperNode { world };
        fs::create_dir(node.world.cluster.dir().join("plugins"))?;
        node.start_agent(flags)?;
        Ok(Some(node))
    }

    fn start_agent(&self, flags: &[&str]) -> Result<()> {
        let cluster = &self.world.cluster;
        let dir = cluster.dir();
        fs::write(dir.join("gpus.yaml"), cards("first"))?;
        let mut command = Command::new(self.world.sublet_path());
        command
            .args(["agent", "--node-name", "n1", "--isolation", "off"])
            .args(["--health-listen", &format!("127.0.0.1:{}", free_port()?)])
            .arg("--kubeconfig")
            .arg(cluster.kubeconfig(&deployed::account("sublet-agent").name)?)
            .arg("--inventory")
            .arg(dir.join("gpus.yaml"))
            .arg("--device-plugin-dir")
            .arg(dir.join("plugins"))
            .args(flags);
        cluster.spawn(deployed::AGENT, command)?;
        self.until_reported("first")
    }

    fn restart_agent(&self, flags: &[&str]) -> Result<()> {
        self.world.cluster.stop(deployed::AGENT);
        // So that the new agent's own report is told from that of the last one.
        self.world
            .annotate_node_as_agent("n1", "sublet.dev/inventory", "")?;
        self.start_agent(flags)
    }

    fn annotation(&self, key: &str) -> Result<String> {
        let node = self.world.get(&["node", "n1"])?;
        let text = node["metadata"]["annotations"][key].as_str();
        Ok(text.unwrap_or_default().to_owned())
    }

    /// Has the agent look again, and waits until it has written what it saw: all it says of its
    /// node in annotations goes in one request.
    fn look_again(&self, reason: &str) -> Result<()> {
        fs::write(self.world.cluster.dir().join("gpus.yaml"), cards(reason))?;
        self.until_reported(reason)
    }

    fn until_reported(&self, reason: &str) -> Result<()> {
        eventually(|| {
            let inventory = self.annotation("sublet.dev/inventory")?;
            ensure!(inventory.contains(reason), "not reported: {inventory}");
            Ok(())
        })
    }

    fn annotate(&self, text: &str) -> Result<()> {
        let args = ["annotate", "--overwrite", "node", "n1", text];
        self.world.cluster.kubectl(&args).map(drop)
    }
}

/// A pod of that size: of two that look the same, the second waits for the first one's devices.
fn pod(name: &str, memory_mib: u64) -> String {
    let limit = format!("aliyun.com/gpu-mem: {memory_mib}");
    yaml::Pod {
        name,
        limits: &[&limit],
        ..yaml::Pod::default()
    }
    .yaml()
}

/// Our agent's register is there for HAMi's readers, and the node stays ours; one of HAMi's own plugin
/// closes the node, and our agent does not touch it.
#[test]
fn hami_s_readers_find_the_node_and_hami_s_plugin_wins_it() -> Result<()> {
    let Some(node) = PaperNode::start(&["--hami-register", "--gpu-splits", "10"])? else {
        return Ok(());
    };
    let ours = node.annotation(REGISTER)?;
    let read: Value = serde_json::from_str(&ours)?;
    let first = &read[0];
    let expected = json!({
        "id": first["id"], "index": 0, "count": 10, "devmem": 16_276, "devcore": 100,
        "type": "NVIDIA A100", "numa": 1, "mode": "hami-core", "health": true,
        "writer": "sublet.dev",
    });
    assert_eq!(*first, expected);
    assert_eq!(read[1]["health"], false);
    let handshake = node.annotation(HANDSHAKE)?;
    assert!(handshake.starts_with("Reported_20"), "{handshake}");
    node.world.cluster.apply(&pod("before", 1000))?;
    assert_eq!(node.world.until_placed("before")?.node, "n1");

    // HAMi's scheduler asks, and gets no answer; nothing else is new, so nothing else is written.
    let asked = "Requesting_2026-11-24 09:30:00";
    node.annotate(&format!("{HANDSHAKE}={asked}"))?;
    node.look_again("second")?;
    assert_eq!(node.annotation(HANDSHAKE)?, asked);
    assert_eq!(node.annotation(REGISTER)?, ours);

    // HAMi's plugin comes.
    let hamis = ours.replace(",\"writer\":\"sublet.dev\"", "");
    node.annotate(&format!("{REGISTER}={hamis}"))?;
    node.look_again("third")?;
    assert_eq!(node.annotation(REGISTER)?, hamis);
    assert_eq!(node.annotation(HANDSHAKE)?, asked);
    let log = node.world.cluster.log(deployed::AGENT);
    let log = fs::read_to_string(log).context("the agent's log")?;
    let said = log
        .matches("HAMi's device plugin reports this node")
        .count();
    assert_eq!(said, 1, "{log}");
    node.world.cluster.apply(&pod("beside", 2000))?;
    let words = "the device plugin of HAMi hands out the node's GPUs";
    node.world.until_event("beside", words)?;

    // It goes, and leaves its register behind until somebody removes that.
    node.annotate(&format!("{REGISTER}-"))?;
    assert_eq!(node.world.until_placed("beside")?.node, "n1");
    node.look_again("fourth")?;
    assert_eq!(node.annotation(REGISTER)?, ours);
    assert!(node.annotation(HANDSHAKE)?.starts_with("Reported_20"));

    // Without the flag, nothing is left.
    node.restart_agent(&[])?;
    assert_eq!(node.annotation(REGISTER)?, "");
    assert_eq!(node.annotation(HANDSHAKE)?, "");
    Ok(())
}
