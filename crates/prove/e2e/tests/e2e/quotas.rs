//! HAMi's keys in a ResourceQuota, which the API server keeps and does not count: our extender does.

use anyhow::{Result, ensure};
use sublet_e2e::{World, eventually, yaml};

const QUOTA: &str = "apiVersion: v1
kind: ResourceQuota
metadata: {name: gpus}
spec: {hard: {limits.nvidia.com/gpumem: \"1000\"}}
";

/// A pod of HAMi's form: so much memory of each of so many cards.
fn pod(name: &str, cards: u32, memory_mib: u32) -> String {
    let limit = format!("nvidia.com/gpu: {cards}, nvidia.com/gpumem: {memory_mib}");
    yaml::Pod {
        name,
        limits: &[&limit],
        ..yaml::Pod::default()
    }
    .yaml()
}

/// Memory counts for each card. If pods come together, only as many are bound as the quota allows
/// together, and the next one when another has gone.
#[test]
fn a_namespace_has_no_more_gpu_memory_than_its_quota() -> Result<()> {
    let Some(world) = World::lease()? else {
        return Ok(());
    };
    let (node, inventory) = yaml::agent_node("n1", 4, 16_000)?;
    world.cluster.apply(&node)?;
    world.annotate_node_as_agent("n1", "sublet.dev/inventory", &inventory)?;
    world.cluster.apply(QUOTA)?;
    world.cluster.apply(&pod("too-many", 3, 400))?;
    let why = "1200 MiB of GPU memory asked, and namespace default has 0 MiB of the 1000 MiB that its \
               quota limits.nvidia.com/gpumem allows";
    world.until_event("too-many", why)?;
    assert!(world.until_refused("too-many")?.contains(why));

    let (code, said, _) = world.sublet(&["explain", "pod", "too-many", "-n", "default"])?;
    assert!(
        code == 0 && said.contains(&format!("quota: {why}")),
        "{said}"
    );

    let sizes = [301, 302, 303, 304, 305];
    let pods = sizes.map(|size| pod(&format!("p{size}"), 1, size)).concat();
    world.cluster.apply(&pods)?;
    let bound = || -> Result<Vec<u32>> {
        let placed = |size: &&u32| world.placed(&format!("p{size}")).is_ok();
        Ok(sizes.iter().filter(placed).copied().collect())
    };
    let three = eventually(|| {
        let bound = bound()?;
        ensure!(bound.len() == 3, "bound: {bound:?}");
        Ok(bound)
    })?;
    assert!(three.iter().sum::<u32>() <= 1000);
    for size in sizes.iter().filter(|size| !three.contains(size)) {
        world.until_event(&format!("p{size}"), "namespace default has 9")?;
    }
    assert_eq!(bound()?, three);

    let gone = format!("p{}", three[0]);
    world.cluster.kubectl(&["delete", "pod", &gone, "--now"])?;
    eventually(|| {
        let bound = bound()?;
        ensure!(bound.len() == 3, "bound: {bound:?}");
        Ok(())
    })?;
    world
        .cluster
        .kubectl(&["delete", "resourcequota", "gpus"])
        .map(drop)
}
