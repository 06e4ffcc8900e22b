//! Decisions of the scheduler beyond the published examples: eviction, node modes, pods that look
//! alike, an API server that goes away, and that `sublet plan` promises nothing else.

mod draw;
mod promises;

use anyhow::{Context, Result, ensure};
use serde_json::json;
use sublet_e2e::{Placed, Recorder, World, eventually, yaml};
use sublet_testbed::kwok_node;

fn pod<'a>(name: &'a str, limits: &'a [&'a str]) -> yaml::Pod<'a> {
    yaml::Pod {
        name,
        limits,
        ..yaml::Pod::default()
    }
}

/// Reports a node's devices as its agent would: nobody else may.
fn report(world: &World, node: &str, inventory: &str) -> Result<()> {
    world.annotate_node_as_agent(node, "sublet.dev/inventory", inventory)
}

fn inventory(sharing: &str, identity: &str, cards: &[u64]) -> String {
    let gpu = |(index, memory): (usize, &u64)| json!({ "index": index, "uuid": format!("GPU-{index}"), "memoryMiB": memory });
    let gpus: Vec<_> = cards.iter().enumerate().map(gpu).collect();
    json!({ "version": 1, "unit": "MiB", "sharing": sharing, "identity": identity,
            "advertise": "units", "gpus": gpus })
    .to_string()
}

/// Priority classes `p1` to `p9`, of those values.
fn priority_classes(world: &World) -> Result<()> {
    let class = |value: u32| {
        format!(
            "---\napiVersion: scheduling.k8s.io/v1\nkind: PriorityClass\n\
             metadata: {{name: p{value}}}\nvalue: {value}\n"
        )
    };
    let all: String = (1..10).map(class).collect();
    world.cluster.apply(&all)?;
    Ok(())
}

/// Applies a pod of that class, labelled with its own name, and waits until it is placed.
fn place(world: &World, name: &str, class: &str, node: &str, memory: u32) -> Result<Placed> {
    let spec = format!("priorityClassName: {class}");
    let yaml = yaml::Pod {
        node,
        spec: &spec,
        metadata: &format!("labels: {{app: {name}}}"),
        ..pod(name, &[&format!("aliyun.com/gpu-mem: {memory}")])
    }
    .yaml();
    world.cluster.apply(&yaml)?;
    world.until_placed(name)
}

/// Number of evictions by the kube-scheduler.
fn evictions(world: &World) -> Result<usize> {
    let audit = std::fs::read_to_string(world.cluster.audit_log())?;
    let evicted = audit.lines().filter(|line| {
        line.contains("\"verb\":\"delete\"")
            && line.contains("\"resource\":\"pods\"")
            && line.contains("sublet-kube-scheduler")
    });
    Ok(evicted.count())
}

fn pods_left(world: &World) -> Result<String> {
    let names = world.cluster.kubectl(&["get", "pods", "-o", "name"])?;
    Ok(names.replace("pod/", "").replace('\n', " "))
}

#[test]
fn eviction_frees_a_card_with_the_least_important_pods_that_do() -> Result<()> {
    let Some(world) = World::lease()? else {
        return Ok(());
    };
    let before = evictions(&world)?;
    world
        .cluster
        .apply(&(yaml::share_node("n1", 2, 32_552) + &yaml::share_node("n2", 1, 16_276)))?;
    priority_classes(&world)?;
    // n1: half of each card is of the lowest priority, so by the sum alone those two halves
    // would be the victims, and no card would be free. n2: one pod that fills the card.
    for (name, class) in [("a", "p1"), ("b", "p2"), ("c", "p1"), ("d", "p2")] {
        place(&world, name, class, "n1", 8_138)?;
    }
    place(&world, "e", "p5", "n2", 16_276)?;
    assert_eq!(world.placed("a")?.card, world.placed("b")?.card);
    assert_eq!(world.placed("c")?.card, world.placed("d")?.card);

    // Either card of n1 has a pod that a budget guards; by the sum, a and d would do.
    world.cluster.apply(
        "---\napiVersion: policy/v1\nkind: PodDisruptionBudget\nmetadata: {name: guard}\n\
         spec: {minAvailable: 2, selector: {matchExpressions: [\
         {key: app, operator: In, values: [b, c]}]}}\n",
    )?;
    let guarded = [
        "wait",
        "pdb/guard",
        "--for=jsonpath={.status.expectedPods}=2",
    ];
    world.cluster.kubectl(&guarded)?;
    assert_eq!(place(&world, "high", "p9", "", 16_276)?.node, "n2");
    assert_eq!(pods_left(&world)?, "a b c d high ");
    assert_eq!(evictions(&world)?, before + 1, "evicted once");

    world.cluster.kubectl(&["delete", "pdb", "guard"])?;
    assert_eq!(place(&world, "next", "p8", "", 16_276)?.node, "n1");
    let left = pods_left(&world)?;
    let pairs = ["a b high next ", "c d high next "];
    assert!(pairs.contains(&left.as_str()), "one card is free: {left}");
    assert_eq!(evictions(&world)?, before + 3);
    Ok(())
}

#[test]
fn eviction_looks_at_nodes_whose_sum_is_free_already() -> Result<()> {
    let Some(world) = World::lease()? else {
        return Ok(());
    };
    let before = evictions(&world)?;
    world
        .cluster
        .apply(&(yaml::share_node("n1", 2, 32_552) + &yaml::share_node("n2", 1, 16_276)))?;
    priority_classes(&world)?;
    // n1: `gone` fills up a card with `lo`, so that `mid` goes to the other, and leaves.
    for (name, class) in [("gone", "p1"), ("lo", "p1"), ("mid", "p2")] {
        place(&world, name, class, "n1", 8_138)?;
    }
    world.cluster.kubectl(&["delete", "pod", "gone"])?;
    assert_ne!(world.placed("lo")?.card, world.placed("mid")?.card);
    place(&world, "top", "p5", "n2", 16_276)?;
    // The sum of n1 suffices without eviction, so the kube-scheduler's own choice is `top`.
    assert_eq!(place(&world, "high", "p9", "", 16_276)?.node, "n1");
    assert_eq!(pods_left(&world)?, "high mid top ");
    assert_eq!(evictions(&world)?, before + 1);
    Ok(())
}

#[test]
fn a_request_above_every_node_s_total_is_refused_with_a_reason() -> Result<()> {
    let Some(world) = World::lease()? else {
        return Ok(());
    };
    world.cluster.apply(&yaml::share_node("n1", 2, 32_552))?;
    // The kube-scheduler drops the node before it asks us; above one card, it asks us.
    world
        .cluster
        .apply(&pod("above-node", &["aliyun.com/gpu-mem: 40000"]).yaml())?;
    world
        .cluster
        .apply(&pod("above-card", &["aliyun.com/gpu-mem: 20000"]).yaml())?;
    let event = world.until_event("above-node", "n1: 40000 MiB asked of one GPU")?;
    assert!(
        event.contains("GPU 0, has 16276 MiB in all (23724 MiB too few)"),
        "{event}"
    );
    world.until_event("above-card", "n1: 20000 MiB asked of one GPU")?;
    let words = world.until_refused("above-card")?;
    assert!(words.contains("no GPU is as large as 20000 MiB"), "{words}");
    assert!(
        world
            .until_refused("above-node")?
            .contains("Insufficient aliyun.com/gpu-mem")
    );
    Ok(())
}

#[test]
fn whole_cards_and_parts_of_cards_in_one_cluster() -> Result<()> {
    let Some(world) = World::lease()? else {
        return Ok(());
    };
    let parts = [
        ("aliyun.com/gpu-mem", "32552"),
        ("aliyun.com/gpu-count", "2"),
    ];
    let whole = [("nvidia.com/gpu", "4")];
    world
        .cluster
        .apply(&(kwok_node("parts", &[], &parts) + &kwok_node("whole", &[], &whole)))?;
    report(&world, "whole", &inventory("whole", "none", &[81_559; 4]))?;

    world
        .cluster
        .apply(&pod("two", &["nvidia.com/gpu: 1", "nvidia.com/gpu: 1"]).yaml())?;
    world
        .cluster
        .apply(&pod("part", &["aliyun.com/gpu-mem: 100"]).yaml())?;
    assert_eq!(world.until_placed("two")?.node, "whole");
    assert_eq!(
        world.until_placed("part")?,
        Placed {
            node: "parts".into(),
            card: "0".into()
        }
    );
    let two = world.get(&["pod", "two"])?;
    let allocation = two["metadata"]["annotations"]["sublet.dev/allocation"].as_str();
    assert_eq!(
        allocation,
        Some(concat!(
            r#"[{"container":"c0","index":0,"uuid":"GPU-0","memoryMiB":81559},"#,
            r#"{"container":"c1","index":1,"uuid":"GPU-1","memoryMiB":81559}]"#
        ))
    );
    world
        .cluster
        .apply(&pod("three", &["nvidia.com/gpu: 3"]).yaml())?;
    world.until_event("three", "whole: 3 GPUs asked, but 2 of 4 GPUs idle")?;
    world
        .cluster
        .apply(&pod("both", &["aliyun.com/gpu-mem: 1, nvidia.com/gpu: 1"]).yaml())?;
    world.until_event("both", "a pod can use one way of asking for GPUs")?;
    Ok(())
}

#[test]
fn a_pod_of_no_gpu_goes_where_the_policy_says_and_leaves_cards_their_cpu() -> Result<()> {
    let Some(world) = World::start_with(&["--policy", "tiling"])? else {
        return Ok(());
    };
    // Both have 64 cores.
    let nodes = yaml::share_node("cards", 2, 32_552) + &kwok_node("plain", &[], &[]);
    world.cluster.apply(&nodes)?;
    let there = yaml::Pod {
        node: "plain",
        ..pod("there", &["cpu: 20"])
    };
    world.cluster.apply(&there.yaml())?;
    world.until_placed("there")?;
    // To the stock scheduler the node with cards is the emptiest, and this pod's.
    world.cluster.apply(&pod("batch", &["cpu: 40"]).yaml())?;
    assert_eq!(world.until_placed("batch")?.node, "plain");
    world
        .cluster
        .apply(&pod("train", &["aliyun.com/gpu-mem: 8138, cpu: 60"]).yaml())?;
    assert_eq!(
        world.until_placed("train")?,
        Placed {
            node: "cards".into(),
            card: "0".into()
        }
    );
    let metrics = world.page("/metrics")?;
    let bound = "sublet_binds_total{outcome=\"bound\"} 3\n";
    assert!(metrics.contains(bound), "all three by us:\n{metrics}");
    Ok(())
}

#[test]
fn pods_that_look_alike_wait_for_each_other_where_the_node_cannot_tell_them_apart() -> Result<()> {
    let Some(world) = World::lease()? else {
        return Ok(());
    };
    let amounts = [
        ("aliyun.com/gpu-mem", "32552"),
        ("aliyun.com/gpu-count", "2"),
    ];
    world.cluster.apply(&kwok_node("n1", &[], &amounts))?;
    report(
        &world,
        "n1",
        &inventory("memory", "size-and-order", &[16_276; 2]),
    )?;
    world
        .cluster
        .apply(&pod("first", &["aliyun.com/gpu-mem: 100"]).yaml())?;
    world.until_placed("first")?;
    world
        .cluster
        .apply(&pod("other", &["aliyun.com/gpu-mem: 101"]).yaml())?;
    world.until_placed("other")?;
    world
        .cluster
        .apply(&pod("second", &["aliyun.com/gpu-mem: 100"]).yaml())?;
    let words = world.until_refused("second")?;
    assert!(
        words.contains("a pod that looks the same is still starting"),
        "{words}"
    );

    world.annotate_as_agent("first", &[("sublet.dev/assigned", r#"["c0"]"#)])?;
    world.until_placed("second")?;
    Ok(())
}

#[test]
fn what_a_pod_without_its_card_may_use_is_given_to_nobody() -> Result<()> {
    let Some(world) = World::lease()? else {
        return Ok(());
    };
    let amounts = [
        ("aliyun.com/gpu-mem", "32552"),
        ("aliyun.com/gpu-count", "2"),
    ];
    world.cluster.apply(&kwok_node("n1", &[], &amounts))?;
    report(&world, "n1", &inventory("memory", "none", &[16_276; 2]))?;
    // Bound by another tool, with an allocation that nobody can read.
    let lost = pod(
        "lost",
        &["aliyun.com/gpu-mem: 8138", "aliyun.com/gpu-mem: 100"],
    )
    .yaml();
    world
        .cluster
        .apply(&lost.replace("sublet-scheduler", "nobody"))?;
    let garbage = json!({ "sublet.dev/allocation": "{" });
    world.bind_by_hand("lost", "n1", &garbage)?;
    let event = world.until_event("lost", "it does not say which GPU it has")?;
    for part in [
        "annotation `sublet.dev/allocation` cannot be read",
        "8238 MiB of each GPU of node n1 is kept free",
        "delete the pod",
    ] {
        assert!(event.contains(part), "{event}");
    }
    let (code, _, note) = world.sublet(&["inspect"])?;
    assert!(
        code == 0 && note.contains("pod default/lost does not say which GPU of node n1 it has"),
        "{note}"
    );
    // What is left on either card is 8,038: whichever it has, neither is overfilled.
    for name in ["a", "b"] {
        world
            .cluster
            .apply(&pod(name, &["aliyun.com/gpu-mem: 8038"]).yaml())?;
    }
    let cards = [world.until_placed("a")?.card, world.until_placed("b")?.card];
    assert_ne!(cards[0], cards[1]);
    world
        .cluster
        .apply(&pod("c", &["aliyun.com/gpu-mem: 8138"]).yaml())?;
    assert!(
        world
            .until_refused("c")?
            .contains("no GPU has 8138 MiB free")
    );
    world.until_event(
        "c",
        "8238 MiB more are kept for pods that do not say which GPU",
    )?;
    // The agent has handed over the second card, and says so: the first has room.
    let uid = world.get(&["pod", "lost"])?["metadata"]["uid"].clone();
    let uid = uid.as_str().context("no UID")?;
    let handed = json!({ uid: [{ "index": 1, "uuid": "GPU-1" }] }).to_string();
    world.annotate_node_as_agent("n1", "sublet.dev/handed-over", &handed)?;
    assert_eq!(world.until_placed("c")?.card, "0");
    let (_, text, _) = world.sublet(&["explain", "pod", "lost"])?;
    assert!(
        text.contains("whose agent has handed GPU 1 to it"),
        "{text}"
    );
    Ok(())
}

#[test]
fn an_api_server_that_goes_away_costs_no_pod_and_no_memory() -> Result<()> {
    let Some(world) = World::start()? else {
        return Ok(());
    };
    let nodes: String = (0..4)
        .map(|n| yaml::share_node(&format!("n{n}"), 4, 65_104))
        .collect();
    world.cluster.apply(&nodes)?;
    let recorder = Recorder::start(&world.cluster.kubeconfig("admin")?)?;
    for round in 0..3 {
        let name = format!("round{round}");
        let deployment = pod(&name, &["aliyun.com/gpu-mem: 4069"]).deployment(12);
        world.cluster.apply(&deployment)?;
        // In the middle of their Bindings.
        eventually(|| {
            let bound = recorder.so_far().bound.len();
            ensure!(bound > round * 12, "{bound} pods bound");
            Ok(())
        })?;
        world.cluster.restart_apiserver()?;
    }
    eventually(|| {
        let pods = world.get(&["pods"])?;
        let pods = pods["items"].as_array().context("no list")?.clone();
        let bound = pods
            .iter()
            .filter(|pod| !pod["spec"]["nodeName"].is_null())
            .count();
        ensure!(
            bound == 36 && pods.len() == 36,
            "{bound} of {} pods bound",
            pods.len()
        );
        let page: serde_json::Value =
            serde_json::from_str(&world.page("/gpushare-scheduler/inspect")?)?;
        let nodes = page["nodes"].as_array().context("no nodes")?;
        let used: u64 = nodes
            .iter()
            .filter_map(|node| node["usedGPU"].as_u64())
            .sum();
        ensure!(used == 36 * 4069, "the ledger has {used} MiB in use");
        Ok(())
    })?;
    let seen = recorder.stop()?;
    assert_eq!(seen.broken, Vec::<String>::new());
    Ok(())
}
