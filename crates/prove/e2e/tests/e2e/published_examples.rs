//! The examples that GPUShare published, as Deployments through a stock kube-scheduler, and those of its
//! peers that ask for whole cards.

mod whole_cards;

use anyhow::Result;
use serde_json::json;
use sublet_e2e::{Placed, World, eventually, yaml};

fn placed(node: &str, card: &str) -> Placed {
    Placed {
        node: node.to_owned(),
        card: card.to_owned(),
    }
}

/// Puts a pod of that size on that card before the test begins.
fn occupy(world: &World, node: &str, card: u32, memory: u64) -> Result<()> {
    let name = format!("{node}-{card}");
    let limits = format!("aliyun.com/gpu-mem: {memory}");
    let pod = yaml::Pod {
        name: &name,
        limits: &[&limits],
        ..yaml::Pod::default()
    };
    // Nobody schedules it: it is bound by hand, as another tool might.
    world
        .cluster
        .apply(&pod.yaml().replace("sublet-scheduler", "nobody"))?;
    world.bind_by_hand(
        &name,
        node,
        &json!({ "ALIYUN_COM_GPU_MEM_IDX": card.to_string() }),
    )
}

/// The name of a Deployment's only pod.
fn pod_of(world: &World, deployment: &str) -> Result<String> {
    eventually(|| {
        let label = format!("app={deployment}");
        let pods = world.get(&["pods", "-l", &label])?;
        let name = pods["items"][0]["metadata"]["name"].as_str();
        name.map(str::to_owned)
            .ok_or_else(|| anyhow::anyhow!("no pod of {deployment} yet"))
    })
}

fn until_ledger(world: &World, node: &str, used: u64) -> Result<()> {
    eventually(|| {
        let page = world.page(&format!("/gpushare-scheduler/inspect/{node}"))?;
        let wanted = format!("\"usedGPU\":{used},\"devs\"");
        anyhow::ensure!(page.contains(&wanted), "no {wanted} in {page}");
        Ok(())
    })
}

#[test]
fn three_nodes_and_a_request_that_only_one_can_take() -> Result<()> {
    let Some(world) = World::lease()? else {
        return Ok(());
    };
    let nodes: String = ["n1", "n2", "n3"]
        .map(|node| yaml::share_node(node, 2, 32_552))
        .concat();
    world.cluster.apply(&nodes)?;
    for (node, cards) in [
        ("n1", [16_276, 16_276]),
        ("n2", [12_207, 12_207]),
        ("n3", [8_138, 16_276]),
    ] {
        for (card, memory) in (0..).zip(cards) {
            occupy(&world, node, card, memory)?;
        }
        until_ledger(&world, node, cards.iter().sum())?;
    }
    let limits = ["aliyun.com/gpu-mem: 8138"];
    let binpack = yaml::Pod {
        name: "binpack",
        limits: &limits,
        ..yaml::Pod::default()
    };
    world.cluster.apply(&binpack.deployment(1))?;
    let first = pod_of(&world, "binpack")?;
    assert_eq!(world.until_placed(&first)?, placed("n3", "0"));

    it_has_what_the_original_wrote(&world, &first)?;

    // A second one fits in sum on n2, but on no card: it waits, and is told why.
    let late = yaml::Pod {
        name: "late",
        ..binpack
    };
    world.cluster.apply(&late.deployment(1))?;
    let second = pod_of(&world, "late")?;
    it_waits_and_is_told_why(&world, &second)?;

    // Room appears, and the pod is placed without anybody's help.
    world.cluster.kubectl(&["delete", "pod", "n2-1"])?;
    assert_eq!(world.until_placed(&second)?, placed("n2", "1"));

    let (code, table, error) = world.sublet(&["inspect"])?;
    assert_eq!(code, 0, "{error}");
    let n3 = table
        .lines()
        .find(|line| line.starts_with("n3 "))
        .unwrap_or_default();
    assert!(
        n3.contains("16276/16276") && n3.ends_with("32552/32552"),
        "{table}"
    );
    assert!(
        table.contains("Allocated/Total GPU Memory In Cluster:\n85449/97656 (87%)"),
        "{table}"
    );
    Ok(())
}

/// Everything in the Binding's one write, and nothing but what the original wrote beside ours.
fn it_has_what_the_original_wrote(world: &World, pod: &str) -> Result<()> {
    let pod = world.get(&["pod", pod])?;
    let annotations = &pod["metadata"]["annotations"];
    assert_eq!(annotations["ALIYUN_COM_GPU_MEM_POD"], "8138");
    assert_eq!(annotations["ALIYUN_COM_GPU_MEM_DEV"], "16276");
    assert_eq!(annotations["ALIYUN_COM_GPU_MEM_ASSIGNED"], "false");
    assert_eq!(
        annotations["sublet.dev/allocation"],
        r#"[{"container":"c0","index":0,"memoryMiB":8138}]"#
    );
    Ok(())
}

fn it_waits_and_is_told_why(world: &World, pod: &str) -> Result<()> {
    let words = world.until_refused(pod)?;
    assert!(words.contains("no GPU has 8138 MiB free"), "{words}");
    let event = world.until_event(pod, "n2: GPU 0 lacks 4069 MiB")?;
    assert!(
        event.contains("the largest hole on this node is 4069 MiB"),
        "{event}"
    );
    let (code, text, error) = world.sublet(&["explain", "pod", pod])?;
    assert_eq!(code, 0, "{error}");
    assert!(text.contains("GPU 0 lacks 4069 MiB"), "{text}");
    Ok(())
}

#[test]
fn four_cards_and_the_one_with_the_least_room_that_fits() -> Result<()> {
    let Some(world) = World::lease()? else {
        return Ok(());
    };
    world.cluster.apply(&yaml::share_node("n1", 4, 65_104))?;
    // Free: 12,207 / 8,138 / 4,069 / 16,276.
    for (card, memory) in [(0, 4_069), (1, 8_138), (2, 12_207)] {
        occupy(&world, "n1", card, memory)?;
    }
    until_ledger(&world, "n1", 24_414)?;
    let limits = ["aliyun.com/gpu-mem: 8138"];
    let pod = yaml::Pod {
        name: "binpack",
        limits: &limits,
        ..yaml::Pod::default()
    };
    world.cluster.apply(&pod.deployment(1))?;
    let name = pod_of(&world, "binpack")?;
    assert_eq!(world.until_placed(&name)?, placed("n1", "1"));
    Ok(())
}
