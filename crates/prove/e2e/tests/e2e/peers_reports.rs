//! Reports of our agent about its node in the words of others, on the real API server: the readers
//! for which it writes them, and the cases in which it keeps silent.
//!
//! The node is on paper (KWOK); the agent is real, and finds no kubelet there.

use std::collections::BTreeMap;
use std::fs;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use sublet_client::{Write, WriteError, connect, perform};
use sublet_e2e::{World, eventually, install_device_crd, yaml};
use sublet_model::NodeName;
use sublet_testbed::{deployed, free_port};

const REGISTER: &str = "hami.io/node-nvidia-register";
const HANDSHAKE: &str = "hami.io/node-handshake";
const NOT_ISOLATED: &str = "sublet.dev/not-isolated";

/// Two cards, the second one sick for this reason.
fn cards(reason: &str) -> String {
    let of_both = "model: NVIDIA A100, memory: 16276MiB, numa: 1";
    let place = "minor: 3, bdf: '0000:4b:00.0', pciPath: ['0000:4a:02.0']";
    format!("gpus: [{{{of_both}, {place}}}, {{{of_both}, health: {reason}}}]\n")
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
        self.start_agent_with(&[&["--isolation", "off"], flags].concat())
    }

    /// Starts it, and waits until it has reported the node.
    fn start_agent_with(&self, flags: &[&str]) -> Result<()> {
        let cluster = &self.world.cluster;
        let dir = cluster.dir();
        fs::write(dir.join("gpus.yaml"), cards("first"))?;
        let mut command = Command::new(self.world.sublet_path());
        command
            .args(["agent", "--node-name", "n1"])
            .args(["--health-listen", &format!("127.0.0.1:{}", free_port()?)])
            .arg("--kubeconfig")
            .arg(deployed::agent_kubeconfig(cluster, "n1")?)
            .arg("--inventory")
            .arg(dir.join("gpus.yaml"))
            .arg("--device-plugin-dir")
            .arg(dir.join("plugins"))
            .args(flags);
        cluster.spawn(deployed::AGENT, command)?;
        self.until_reported("first")
    }

    fn restart_agent(&self, flags: &[&str]) -> Result<()> {
        self.restart_agent_with(&[&["--isolation", "off"], flags].concat())
    }

    fn restart_agent_with(&self, flags: &[&str]) -> Result<()> {
        self.world.cluster.stop(deployed::AGENT);
        // So that the new agent's own report is told from that of the last one.
        self.world
            .annotate_node_as_agent("n1", "sublet.dev/inventory", "")?;
        self.start_agent_with(flags)
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

    /// Number of times the agent has said this in its log.
    fn said(&self, words: &str) -> Result<usize> {
        let log = self.world.cluster.log(deployed::AGENT);
        let log = fs::read_to_string(log).context("the agent's log")?;
        Ok(log.matches(words).count())
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
    assert_eq!(node.said("HAMi's device plugin reports this node")?, 1);
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
    parts_wait_until_the_agent_can_limit_them(&node)
}

/// An agent that cannot start its arbiter says so, and nobody sends it parts of cards meanwhile.
fn parts_wait_until_the_agent_can_limit_them(node: &PaperNode) -> Result<()> {
    let dir = node.world.cluster.dir();
    let (state, run) = (dir.join("state"), dir.join("run"));
    fs::create_dir(&state)?;
    fs::write(state.join("containers"), "no folder")?;
    let (state_dir, run_dir) = (state.display().to_string(), run.display().to_string());
    let dirs = ["--state-dir", &state_dir, "--runtime-dir", &run_dir];
    node.restart_agent_with(&[&["--isolation", "auto"], &dirs[..]].concat())?;
    // There is no kubelet to know its plugins, so the word of the one before stays.
    let back = r#"{"metadata": {"annotations": {"sublet.dev/agent-away": null}}}"#;
    let mut patch = vec!["patch", "node", "n1", "--type=merge", "-p", back];
    let agent = deployed::as_agent_of("n1");
    patch.extend(agent.iter().map(String::as_str));
    node.world.cluster.kubectl(&patch)?;
    let note = node.annotation(NOT_ISOLATED)?;
    assert!(note.starts_with("pending: making "), "{note}");
    let (_, _, notes) = node.world.sublet(&["inspect"])?;
    let words = "node n1 hands out no part of a GPU until its agent can limit it: making ";
    assert!(notes.contains(words), "{notes}");
    node.world.cluster.apply(&pod("limited", 3000))?;
    let words = "nothing holds containers to their parts now: making ";
    node.world.until_event("limited", words)?;
    fs::remove_file(state.join("containers"))?;
    assert_eq!(node.world.until_placed("limited")?.node, "n1");
    assert_eq!(node.annotation(NOT_ISOLATED)?, "");
    Ok(())
}

/// Annotations of a node that are only right for the node as it was read: what somebody else has
/// written in between stays.
#[test]
fn what_was_written_in_between_is_not_lost() -> Result<()> {
    let Some(world) = World::start()? else {
        return Ok(());
    };
    world.cluster.apply(&yaml::share_node("n1", 2, 32_552))?;
    let _installed = rustls::crypto::ring::default_provider().install_default();
    let kubeconfig = deployed::agent_kubeconfig(&world.cluster, "n1")?;
    let node = NodeName::new("n1")?;
    let ours = BTreeMap::from([(REGISTER.to_owned(), Some("ours".to_owned()))]);
    let version = |world: &World| -> Result<String> {
        let node = world.get(&["node", "n1"])?;
        let version = node["metadata"]["resourceVersion"].as_str();
        Ok(version.context("no version")?.to_owned())
    };
    let write = |version: &str| -> Result<Result<(), u16>> {
        let executor = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        executor.block_on(async {
            let client = connect(Some(&kubeconfig)).await?;
            let write = Write::node_annotations(&node, &ours, Some(version));
            let written = perform(&client, &write, "sublet-agent", Duration::from_secs(30)).await;
            Ok(written.map_err(|error| match error {
                WriteError::Refused { code, .. } => code,
                WriteError::Unanswered(_) => 0,
            }))
        })
    };
    let before = version(&world)?;
    let hamis = format!("{REGISTER}=hamis");
    world.cluster.kubectl(&["annotate", "node", "n1", &hamis])?;
    assert_eq!(write(&before)?, Err(409));
    let annotation = |world: &World| -> Result<Value> {
        Ok(world.get(&["node", "n1"])?["metadata"]["annotations"][REGISTER].clone())
    };
    assert_eq!(annotation(&world)?, "hamis");
    eventually(|| {
        // Kubelet, or who plays it, writes to the node too.
        ensure!(write(&version(&world)?)? == Ok(()), "changed again");
        Ok(())
    })?;
    assert_eq!(annotation(&world)?, "ours");
    Ok(())
}

const DEVICE: &str = "device.scheduling.koordinator.sh";

impl PaperNode {
    /// Gives the node one card of that memory in place of what it had.
    fn set_card(&self, memory: u64) -> Result<()> {
        let text = format!("gpus: [{{memory: {memory}MiB}}]");
        Ok(fs::write(self.world.cluster.dir().join("gpus.yaml"), text)?)
    }

    fn device(&self) -> Result<Value> {
        self.world.get(&[DEVICE, "n1"])
    }

    /// Waits until the first card of the `Device` has this memory.
    fn until_device(&self, memory: &str) -> Result<Value> {
        eventually(|| {
            let device = self.device()?;
            let resources = &device["spec"]["devices"][0]["resources"];
            ensure!(resources["koordinator.sh/gpu-memory"] == memory, "{device}");
            Ok(device)
        })
    }

    fn until_said(&self, words: &str) -> Result<()> {
        eventually(|| {
            let times = self.said(words)?;
            ensure!(times == 1, "`{words}` is said {times} times");
            Ok(())
        })
    }
}

/// All that was sent passed Koordinator's schema, and is there.
fn check_device(node: &PaperNode, device: &Value) -> Result<()> {
    let resources = json!({
        "koordinator.sh/gpu-core": "100", "koordinator.sh/gpu-memory": "16276Mi",
        "koordinator.sh/gpu-memory-ratio": "100",
    });
    let uuids = [0, 1].map(|at| device["spec"]["devices"][at]["id"].clone());
    let topology = json!({
        "socketID": -1, "nodeID": 1, "pcieID": "pci0000:4a", "busID": "0000:4b:00.0",
    });
    let expected = json!([
        {
            "type": "gpu", "id": uuids[0], "minor": 1, "health": false, "resources": resources,
        },
        {
            "type": "gpu", "id": uuids[1], "minor": 3, "health": true, "resources": resources,
            "topology": topology,
        },
    ]);
    assert_eq!(device["spec"]["devices"], expected);
    let inventory = node.annotation("sublet.dev/inventory")?;
    assert!(inventory.contains(uuids[0].as_str().context("no id")?));
    let labels = json!({
        "node.koordinator.sh/gpu-vendor": "nvidia", "node.koordinator.sh/gpu-model": "A100",
    });
    assert_eq!(device["metadata"]["labels"], labels);
    let owner = &device["metadata"]["ownerReferences"][0];
    let uid = &node.world.get(&["node", "n1"])?["metadata"]["uid"];
    assert_eq!((&owner["kind"], &owner["uid"]), (&json!("Node"), uid));
    Ok(())
}

/// The agent's `Device` passes Koordinator's own schema with nothing lost, follows the cards, and
/// gives way to koordlet's.
#[test]
fn koordinator_s_device_is_kept_true_until_koordlet_has_it() -> Result<()> {
    let flags = &["--koordinator-device"];
    let Some(node) = PaperNode::start(flags)? else {
        return Ok(());
    };
    let cluster = &node.world.cluster;
    let no_crd = "no CRD of Koordinator's device";
    node.until_said(no_crd)?;
    node.look_again("second")?;
    node.look_again("third")?;
    assert_eq!(node.said(no_crd)?, 1, "once, however often it looks");
    install_device_crd(&node.world)?;
    node.restart_agent(flags)?;
    let device = eventually(|| node.device())?;
    check_device(&node, &device)?;

    // Another reason of the same sickness is no news; other cards are.
    node.look_again("fourth")?;
    node.set_card(8000)?;
    let now = node.until_device("8000Mi")?;
    let generation = |device: &Value| device["metadata"]["generation"].as_u64();
    assert_eq!((generation(&device), generation(&now)), (Some(1), Some(2)));

    // Koordlet comes, and writes what it found.
    let mut found = now["spec"].clone();
    found["devices"][0]["resources"]["koordinator.sh/gpu-memory"] = json!("7999Mi");
    let patch = json!({ "spec": found }).to_string();
    let by = ["--type=merge", "--field-manager=koordlet", "-p", &patch];
    cluster.kubectl(&[&["patch", DEVICE, "n1"], &by[..]].concat())?;
    node.set_card(8001)?;
    let gives_way = "reports the node's device: left alone";
    node.until_said(gives_way)?;
    node.until_device("7999Mi")?;
    node.set_card(8002)?;
    node.until_reported("8002")?;

    // A card that it calls unhealthy gets no new work of ours.
    found["devices"][0]["health"] = json!(false);
    let patch = json!({ "spec": found }).to_string();
    let by = ["--type=merge", "--field-manager=koordlet", "-p", &patch];
    cluster.kubectl(&[&["patch", DEVICE, "n1"], &by[..]].concat())?;
    node.set_card(8002)?;
    node.until_reported("unhealthy by koordlet's Device")?;

    // It goes, and its object with it.
    cluster.kubectl(&["delete", DEVICE, "n1"])?;
    node.set_card(8003)?;
    node.until_device("8003Mi")?;
    assert_eq!(node.said(gives_way)?, 1, "once, however often it tries");

    // Whoever has the token of this node's agent reports no other node.
    let other = json!({
        "apiVersion": "scheduling.koordinator.sh/v1alpha1", "kind": "Device",
        "metadata": {"name": "n2"}, "spec": {},
    });
    let agent = deployed::as_agent_of("n1");
    let agent: Vec<&str> = agent.iter().map(String::as_str).collect();
    let is_refused = |object: &Value, agent: &[&str], why: &str| {
        let args = [&["create", "--filename=-"], agent].concat();
        let refused = cluster.kubectl_with_input(&args, &object.to_string());
        let refused = refused.unwrap_err().to_string();
        assert!(refused.contains(why), "{refused}");
    };
    is_refused(&other, &agent, "this agent belongs to node n1");
    // Of no node is a token that was not issued to a pod.
    is_refused(&other, &agent[..3], "this token names no node");
    Ok(())
}
