//! The cluster's own scheduler, which pods get that name none: with our extender, set up by
//! the configuration that GPUShare published.

use anyhow::{Result, ensure};
use serde_json::Value;
use sublet_e2e::{Placed, World, eventually, yaml};

/// Starts it; with the lines of extenders.
fn start(world: &World, extenders: &str) -> Result<()> {
    let kubeconfig = world.cluster.kubeconfig("system:kube-scheduler")?;
    let config = format!(
        "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n\
         leaderElection: {{leaderElect: false}}\n\
         clientConnection: {{kubeconfig: {}}}\n{extenders}",
        kubeconfig.display()
    );
    world
        .cluster
        .start_scheduler("kube-scheduler", &kubeconfig, &config, &[])
}

/// The published configuration, with a kube-scheduler that sends whole nodes.
fn published(port: u16) -> String {
    format!(
        "extenders:\n- urlPrefix: http://127.0.0.1:{port}/gpushare-scheduler\n  \
         filterVerb: filter\n  bindVerb: bind\n  enableHTTPS: false\n  \
         nodeCacheCapable: false\n  ignorable: false\n  \
         managedResources:\n  - {{name: aliyun.com/gpu-mem, ignoredByScheduler: false}}\n"
    )
}

/// A pod that names no scheduler.
fn plain(name: &str, memory: u32) -> String {
    let pod = yaml::Pod {
        name,
        limits: &[&format!("aliyun.com/gpu-mem: {memory}")],
        ..yaml::Pod::default()
    };
    pod.yaml()
        .replace("  schedulerName: sublet-scheduler\n", "")
}

#[test]
fn with_the_published_configuration_it_sends_whole_nodes_and_places_pods_by_card() -> Result<()> {
    let Some(world) = World::start()? else {
        return Ok(());
    };
    start(&world, &published(world.port))?;
    let nodes = yaml::share_node("n1", 2, 32_552) + &yaml::share_node("n2", 1, 16_276);
    world.cluster.apply(&nodes)?;
    for (name, memory) in [("a", 12_207), ("b", 12_207), ("c", 12_207)] {
        world.cluster.apply(&plain(name, memory))?;
    }
    let mut places = Vec::new();
    for name in ["a", "b", "c"] {
        let Placed { node, card } = world.until_placed(name)?;
        places.push(format!("{node}/{card}"));
    }
    places.sort();
    assert_eq!(places, ["n1/0", "n1/1", "n2/0"]);
    // The sum of n1 is enough, and no card.
    world.cluster.apply(&plain("d", 8_138))?;
    let words = world.until_refused("d")?;
    assert!(words.contains("no GPU has 8138 MiB free"), "{words}");
    world.cluster.kubectl(&["delete", "pod", "b"])?;
    world.until_placed("d")?;
    eventually(|| {
        let page: Value = serde_json::from_str(&world.page("/gpushare-scheduler/inspect")?)?;
        let nodes = page["nodes"].as_array().cloned().unwrap_or_default();
        let used = nodes.iter().filter_map(|node| node["usedGPU"].as_u64());
        let used: u64 = used.sum();
        ensure!(used == 2 * 12_207 + 8_138, "{used} MiB in use");
        Ok(())
    })
}
