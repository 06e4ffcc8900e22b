//! The agent on a real node: kubelet, containerd and runc start the containers, and each of
//! them finds in its environment the card that its own pod was given.

use std::collections::BTreeMap;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use sublet_e2e::{
    AGENT, Environment, GpuNode, TWO_CARDS, audit, eventually, parse_environment, yaml,
};
use sublet_testbed::Signal;

const MEMORY: &str = "aliyun.com/gpu-mem";
const CARD: u64 = 16_276;

fn pod<'a>(name: &'a str, limits: &'a [&'a str]) -> yaml::Pod<'a> {
    yaml::Pod {
        name,
        limits,
        ..yaml::Pod::default()
    }
}

/// A card, and how much of it one container got.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Share {
    card: usize,
    memory: u64,
}

/// A container's share by the pod's annotation, one card only.
fn share_of(pod: &Value, container: &str) -> Result<Share> {
    let text = pod["metadata"]["annotations"]["sublet.dev/allocation"].as_str();
    let text = text.with_context(|| format!("no allocation: {}", pod["metadata"]))?;
    let grants: Vec<Value> = serde_json::from_str(text)?;
    let mut own = grants
        .iter()
        .filter(|grant| grant["container"] == container);
    let grant = own
        .next()
        .with_context(|| format!("nothing for {container}: {text}"))?;
    ensure!(own.next().is_none(), "two cards for {container}: {text}");
    Ok(Share {
        card: usize::try_from(grant["index"].as_u64().context("no index")?)?,
        memory: grant["memoryMiB"].as_u64().context("no memory")?,
    })
}

/// Checks that a container finds inside what its own pod's annotations say, and that kubelet's
/// books agree about the amount.
fn check_inside(
    node: &GpuNode,
    pod: &Value,
    container: &str,
    inside: &Environment,
) -> Result<Share> {
    let annotations = &pod["metadata"]["annotations"];
    let share = share_of(pod, container)?;
    let found = |key: &str| inside.get(key).map(String::as_str).unwrap_or("absent");
    let annotated = |key: &str| annotations[key].as_str().unwrap_or("missing");
    let uuid = node.uuids()[share.card].as_str();
    let index = share.card.to_string();
    assert_eq!(annotated("ALIYUN_COM_GPU_MEM_IDX"), index, "{annotations}");
    until_marked(node, pod)?;
    assert_eq!(found("NVIDIA_VISIBLE_DEVICES"), uuid, "{inside:?}");
    assert_eq!(found("ALIYUN_COM_GPU_MEM_IDX"), index, "{inside:?}");
    assert_eq!(
        found("ALIYUN_COM_GPU_MEM_CONTAINER"),
        share.memory.to_string()
    );
    assert_eq!(
        found("ALIYUN_COM_GPU_MEM_POD"),
        annotated("ALIYUN_COM_GPU_MEM_POD")
    );
    assert_eq!(found("ALIYUN_COM_GPU_MEM_DEV"), CARD.to_string());
    let devices = node.devices_of(pod, container)?;
    assert_eq!(devices.len() as u64, share.memory);
    Ok(share)
}

/// Waits until the pod says that it has its devices. If the runtime names the container, the agent
/// writes this after its answer, and nobody waits for it.
fn until_marked(node: &GpuNode, pod: &Value) -> Result<()> {
    let name = pod["metadata"]["name"].as_str().context("no name")?;
    eventually(|| {
        let now = node.world.get(&["pod", name])?;
        let mark = &now["metadata"]["annotations"]["ALIYUN_COM_GPU_MEM_ASSIGNED"];
        ensure!(mark == "true", "{name} is not marked: {now}");
        Ok(())
    })
}

/// Kubelet's books name the container's card. Not if several equal pods were admitted before any of
/// their containers was created: then kubelet picked among the IDs by itself.
fn check_books(node: &GpuNode, pod: &Value, container: &str) -> Result<()> {
    let uuid = node.uuids()[share_of(pod, container)?.card].as_str();
    let devices = node.devices_of(pod, container)?;
    assert!(
        devices.iter().all(|id| id.starts_with(uuid)),
        "{uuid}: {:?}",
        devices.first()
    );
    Ok(())
}

/// The same for a container that runs.
fn check_running(node: &GpuNode, pod: &str, container: &str) -> Result<Share> {
    let object = node.until_running(pod)?;
    check_books(node, &object, container)?;
    check_object(node, &object, container)
}

fn check_object(node: &GpuNode, pod: &Value, container: &str) -> Result<Share> {
    let name = pod["metadata"]["name"].as_str().unwrap_or_default();
    check_inside(node, pod, container, &node.environment(name, container)?)
}

/// Waits until a Deployment has so many pods that run, and returns them.
fn until_all_run(node: &GpuNode, deployment: &str, count: usize) -> Result<Vec<Value>> {
    let label = format!("app={deployment}");
    eventually(|| {
        let pods = node.world.get(&["pods", "-l", &label])?;
        let mut pods = pods["items"].as_array().cloned().unwrap_or_default();
        let failed = pods.iter().find(|pod| pod["status"]["phase"] == "Failed");
        ensure!(failed.is_none(), "failed: {failed:?}");
        pods.retain(|pod| pod["status"]["phase"] == "Running");
        ensure!(pods.len() == count, "{} of {count} run", pods.len());
        Ok(pods)
    })
}

fn delete_all(node: &GpuNode) -> Result<()> {
    let cluster = &node.world.cluster;
    cluster.kubectl(&["delete", "deployments", "--all"])?;
    cluster.kubectl(&["delete", "pods", "--all"])?;
    let inspect = format!("/gpushare-scheduler/inspect/{}", node.name());
    eventually(|| {
        let page = node.world.page(&inspect)?;
        ensure!(page.contains("\"usedGPU\":0,\"devs\""), "not empty: {page}");
        Ok(())
    })
}

/// The product asked for nothing that it has no right to. Also prints the agent's size, a
/// figure that debug builds cannot be held to.
fn wind_up(node: &GpuNode) -> Result<()> {
    let cluster = &node.world.cluster;
    println!("agent: {} MiB resident", cluster.rss_mib(AGENT)?);
    assert_eq!(audit::forbidden(cluster)?, []);
    Ok(())
}

#[test]
fn each_container_finds_the_card_of_its_own_pod() -> Result<()> {
    let Some(node) = GpuNode::start(&[])? else {
        return Ok(());
    };
    node.until_allocatable(MEMORY, 2 * CARD)?;
    node.until_allocatable("aliyun.com/gpu-count", 2)?;

    let two = ["aliyun.com/gpu-mem: 100", "aliyun.com/gpu-mem: 200"];
    node.world.cluster.apply(&pod("two", &two).yaml())?;
    for (container, memory) in [("c0", 100), ("c1", 200)] {
        let share = check_running(&node, "two", container)?;
        assert_eq!(share, Share { card: 0, memory });
    }

    // One container before the others, and one beside them. Kubelet lets the later ones have
    // the devices of the one that has ended.
    let spec = "initContainers: [\
        {name: prepare, image: 'sublet.test/busybox:1', imagePullPolicy: Never, args: [env], \
         resources: {limits: {aliyun.com/gpu-mem: 300}}}, \
        {name: side, image: 'sublet.test/busybox:1', imagePullPolicy: Never, \
         restartPolicy: Always, args: [sh, -c, exec sleep 100000], \
         resources: {limits: {aliyun.com/gpu-mem: 50}}}]";
    let staged = yaml::Pod {
        spec,
        ..pod("staged", &["aliyun.com/gpu-mem: 150"])
    };
    node.world.cluster.apply(&staged.yaml())?;
    let object = node.until_running("staged")?;
    assert_eq!(
        object["metadata"]["annotations"]["ALIYUN_COM_GPU_MEM_POD"],
        "300"
    );
    let logs = node
        .world
        .cluster
        .kubectl(&["logs", "staged", "-c", "prepare"])?;
    check_inside(&node, &object, "prepare", &parse_environment(&logs))?;
    for container in ["side", "c0"] {
        check_running(&node, "staged", container)?;
    }

    // Before the cards fill up: when a kubelet starts, the time until it offers devices grows
    // with those it is told of times those in use, and with full cards is minutes (v1.36).
    restarts(&node)?;

    node.world
        .cluster
        .apply(&pod("binpack", &["aliyun.com/gpu-mem: 8138"]).deployment(3))?;
    let mut cards = [0, 0];
    for pod in until_all_run(&node, "binpack", 3)? {
        cards[check_object(&node, &pod, "c0")?.card] += 1;
    }
    assert_eq!(cards, [1, 2]);

    let (code, table, error) = node.world.sublet(&["inspect"])?;
    assert_eq!(code, 0, "{error}");
    let row = table.lines().find(|line| line.starts_with(&node.name()));
    let row: Vec<&str> = row.unwrap_or_default().split_whitespace().collect();
    let amounts = ["10238/16276", "16276/16276", "26514/32552"];
    assert!(row.ends_with(&amounts), "{table}");
    wind_up(&node)
}

/// Kubelet restarted, agent killed: pods stay, the plugin comes back, new pods are served.
fn restarts(node: &GpuNode) -> Result<()> {
    let picture = || -> Result<BTreeMap<String, Value>> {
        let pods = node.world.get(&["pods"])?;
        let pods = pods["items"].as_array().cloned().unwrap_or_default();
        let entry = |pod: &Value| {
            let status = &pod["status"];
            let container = &status["containerStatuses"][0];
            let state = json!({
                "phase": status["phase"],
                "message": status["message"],
                "container": container["containerID"],
                "restarts": container["restartCount"],
            });
            (pod["metadata"]["name"].to_string(), state)
        };
        Ok(pods.iter().map(entry).collect())
    };
    let before = picture()?;
    assert_eq!(before.len(), 2);
    let fresh = |pod: &Value| pod["phase"] == "Running" && pod["restarts"] == 0;
    assert!(before.values().all(fresh), "{before:?}");

    let started = Instant::now();
    node.restart_kubelet()?;
    node.until_allocatable(MEMORY, 2 * CARD)?;
    node.until_allocatable("aliyun.com/gpu-count", 2)?;
    println!(
        "kubelet restarted: {:.1} s",
        started.elapsed().as_secs_f64()
    );
    node.world
        .cluster
        .apply(&pod("after-kubelet", &["aliyun.com/gpu-mem: 700"]).yaml())?;
    check_running(node, "after-kubelet", "c0")?;

    node.restart_agent()?;
    node.until_allocatable(MEMORY, 2 * CARD)?;
    node.world
        .cluster
        .apply(&pod("after-agent", &["aliyun.com/gpu-mem: 800"]).yaml())?;
    check_running(node, "after-agent", "c0")?;

    let mut after = picture()?;
    after.retain(|name, _| before.contains_key(name));
    assert_eq!(after, before);
    Ok(())
}

#[test]
fn pods_that_look_alike_are_never_mixed_up() -> Result<()> {
    let Some(node) = GpuNode::start(&["--identity", "kubelet-checkpoint"])? else {
        return Ok(());
    };
    node.until_allocatable(MEMORY, 2 * CARD)?;
    // Ten of them fill a card but for six units.
    let started = Instant::now();
    node.world
        .cluster
        .apply(&pod("equal", &["aliyun.com/gpu-mem: 1627"]).deployment(20))?;
    let pods = until_all_run(&node, "equal", 20)?;
    println!(
        "twenty equal pods on one node: {:.1} s",
        started.elapsed().as_secs_f64()
    );
    let mut used = BTreeMap::new();
    for pod in pods {
        check_books(&node, &pod, "c0")?;
        let share = check_object(&node, &pod, "c0")?;
        *used.entry(share.card).or_insert(0) += share.memory;
    }
    assert_eq!(used, BTreeMap::from([(0, 16_270), (1, 16_270)]));
    delete_all(&node)?;

    two_forced_at_once(&node)?;
    bound_without_cards(&node)?;
    delete_all(&node)?;
    sick_card(&node)?;
    wind_up(&node)
}

/// Two equal pods that nobody but the agent can tell apart: it cannot, and says so.
fn two_forced_at_once(node: &GpuNode) -> Result<()> {
    let (cluster, name) = (&node.world.cluster, node.name());
    let limits = ["aliyun.com/gpu-mem: 900"];
    for twin in ["castor", "pollux"] {
        cluster.apply(
            &pod(twin, &limits)
                .yaml()
                .replace("sublet-scheduler", "nobody"),
        )?;
    }
    // While the agent cannot answer, kubelet gets both; the younger first.
    cluster.kill(AGENT, Signal::STOP)?;
    for (twin, card) in [("pollux", "1"), ("castor", "0")] {
        let annotations = json!({
            "ALIYUN_COM_GPU_MEM_IDX": card, "ALIYUN_COM_GPU_MEM_ASSIGNED": "false",
        });
        node.world.bind_by_hand(twin, &name, &annotations)?;
    }
    cluster.kill(AGENT, Signal::CONT)?;
    let mut refused = Vec::new();
    for twin in ["castor", "pollux"] {
        if node.until_settled(twin)?["status"]["phase"] == "Running" {
            // The other had failed before kubelet came to this one, so it stood alone.
            check_forced(node, twin)?;
        } else {
            refused.push(node.until_not_admitted(twin)?);
        }
    }
    println!("two equal pods at once: {refused:?}");
    assert!(!refused.is_empty());
    for message in refused {
        assert!(
            message.contains("default/castor and default/pollux both wait"),
            "{message}"
        );
    }
    Ok(())
}

/// A pod that was bound by hand is on the card of its own annotation.
fn check_forced(node: &GpuNode, pod: &str) -> Result<()> {
    let object = node.until_running(pod)?;
    let inside = node.environment(pod, "c0")?;
    let card = object["metadata"]["annotations"]["ALIYUN_COM_GPU_MEM_IDX"].as_str();
    let index = inside.get("ALIYUN_COM_GPU_MEM_IDX").map(String::as_str);
    assert_eq!(index, card);
    let uuid = &node.uuids()[card.unwrap_or_default().parse::<usize>()?];
    assert_eq!(inside.get("NVIDIA_VISIBLE_DEVICES"), Some(uuid));
    Ok(())
}

/// A pod that somebody else sent here has no card, and does not start on one.
fn bound_without_cards(node: &GpuNode) -> Result<()> {
    let spec = format!("nodeName: {}", node.name());
    let stray = yaml::Pod {
        spec: &spec,
        ..pod("stray", &["aliyun.com/gpu-mem: 600"])
    };
    node.world.cluster.apply(&stray.yaml())?;
    let message = node.until_not_admitted("stray")?;
    println!("bound by somebody else: {message}");
    let wanted = "bound without an allocation, not by Sublet: default/stray";
    assert!(message.contains(wanted), "{message}");
    Ok(())
}

/// A card gets sick: the node has less, new pods keep away from it, and it comes back.
fn sick_card(node: &GpuNode) -> Result<()> {
    let cluster = &node.world.cluster;
    cluster.apply(&pod("early", &["aliyun.com/gpu-mem: 400"]).yaml())?;
    assert_eq!(check_running(node, "early", "c0")?.card, 0);
    node.set_devices("gpus: [{memory: 16276MiB, health: xid 79}, {memory: 16276MiB}]")?;
    node.until_allocatable(MEMORY, CARD)?;

    // By the amounts alone card 0 is the fuller one, and would be taken.
    cluster.apply(&pod("later", &["aliyun.com/gpu-mem: 1000"]).yaml())?;
    assert_eq!(check_running(node, "later", "c0")?.card, 1);
    cluster.apply(&pod("latest", &["aliyun.com/gpu-mem: 15500"]).yaml())?;
    let event = node.world.until_event("latest", "1 GPU is unhealthy")?;
    println!("with a sick card: {event}");
    assert!(node.world.placed("latest").is_err());

    // A pod that was sent to the card all the same is refused by the agent.
    cluster.apply(
        &pod("sent", &["aliyun.com/gpu-mem: 300"])
            .yaml()
            .replace("sublet-scheduler", "nobody"),
    )?;
    let annotations =
        json!({ "ALIYUN_COM_GPU_MEM_IDX": "0", "ALIYUN_COM_GPU_MEM_ASSIGNED": "false" });
    node.world
        .bind_by_hand("sent", &node.name(), &annotations)?;
    let message = node.until_not_admitted("sent")?;
    assert!(
        message.contains("pod default/sent: GPU 0 is unhealthy (xid 79)"),
        "{message}"
    );

    node.set_devices(TWO_CARDS)?;
    node.until_allocatable(MEMORY, 2 * CARD)?;
    assert_eq!(check_running(node, "latest", "c0")?.card, 0);
    check_running(node, "early", "c0")?;
    Ok(())
}

#[test]
fn a_node_of_slots_and_a_node_of_whole_cards() -> Result<()> {
    let Some(node) = GpuNode::start(&["--advertise", "slots"])? else {
        return Ok(());
    };
    let cluster = &node.world.cluster;
    node.until_allocatable("sublet.dev/gpu-slot", 128)?;
    node.until_allocatable(MEMORY, 2 * CARD)?;
    let with_slot = ["aliyun.com/gpu-mem: 8138, sublet.dev/gpu-slot: 1"];
    cluster.apply(&pod("with", &with_slot).yaml())?;
    let object = node.until_running("with")?;
    let inside = node.environment("with", "c0")?;
    assert_eq!(
        share_of(&object, "c0")?,
        Share {
            card: 0,
            memory: 8138
        }
    );
    assert_eq!(inside["NVIDIA_VISIBLE_DEVICES"], node.uuids()[0]);
    assert_eq!(inside["ALIYUN_COM_GPU_MEM_CONTAINER"], "8138");

    cluster.apply(&pod("without", &["aliyun.com/gpu-mem: 100"]).yaml())?;
    let words = node.world.until_refused("without")?;
    assert!(
        words.contains("node needs sublet.dev/gpu-slot in the pod"),
        "{words}"
    );
    let event = node
        .world
        .until_event("without", "sublet.dev/gpu-slot: 1")?;
    println!("without a slot: {event}");

    // Kubelet writes its status again and again, and leaves our amounts alone.
    node.restart_kubelet()?;
    node.until_allocatable(MEMORY, 2 * CARD)?;
    delete_all(&node)?;

    cluster.stop(AGENT);
    node.start_agent(&["--sharing", "whole"])?;
    node.until_allocatable("nvidia.com/gpu", 2)?;
    node.until_allocatable(MEMORY, 0)?;
    node.until_allocatable("aliyun.com/gpu-count", 0)?;
    cluster.apply(&pod("both", &["nvidia.com/gpu: 2"]).yaml())?;
    node.until_running("both")?;
    let inside = node.environment("both", "c0")?;
    assert_eq!(inside["NVIDIA_VISIBLE_DEVICES"], node.uuids().join(","));
    cluster.kubectl(&["delete", "pod", "both"])?;

    // Kubelet picks a device by itself; that it is the one the pod was given is our advice.
    for name in ["one", "two"] {
        cluster.apply(&pod(name, &["nvidia.com/gpu: 1"]).yaml())?;
        let object = node.until_running(name)?;
        let inside = node.environment(name, "c0")?;
        let devices = node.devices_of(&object, "c0")?;
        assert_eq!(devices, [inside["NVIDIA_VISIBLE_DEVICES"].clone()]);
    }
    let of = |name| {
        Ok::<_, anyhow::Error>(node.environment(name, "c0")?["NVIDIA_VISIBLE_DEVICES"].clone())
    };
    assert_ne!(of("one")?, of("two")?);
    wind_up(&node)
}

#[test]
fn a_container_finds_what_its_pod_got_where_the_webhook_put_it() -> Result<()> {
    let Some(node) = GpuNode::start(&[])? else {
        return Ok(());
    };
    node.until_allocatable(MEMORY, 2 * CARD)?;
    node.world.start_controller(&[])?;
    // The API server asks the webhook from about a second after it was told to.
    let tried = pod("tried", &["aliyun.com/gpu-mem: 100"]).yaml();
    let dry = ["apply", "--filename=-", "--dry-run=server", "--output=yaml"];
    eventually(|| {
        let made = node.world.cluster.kubectl_with_input(&dry, &tried)?;
        ensure!(made.contains("SUBLET_ALLOCATION"), "{made}");
        Ok(())
    })?;
    let told = pod(
        "told",
        &["aliyun.com/gpu-mem: 100", "aliyun.com/gpu-mem: 200"],
    );
    node.world.cluster.apply(&told.yaml())?;
    let told = node.until_running("told")?;
    let annotation = told["metadata"]["annotations"]["sublet.dev/allocation"].as_str();
    for container in ["c0", "c1"] {
        let inside = node.environment("told", container)?;
        assert_eq!(
            inside.get("SUBLET_ALLOCATION").map(String::as_str),
            annotation
        );
        check_inside(&node, &told, container, &inside)?;
    }
    Ok(())
}
