//! Profiles of the queue on a real control plane.

use sublet_e2e::yaml;

use super::objects::in_namespace;
use super::*;

/// Pods for themselves borrow all of two nodes. The owner's pod needs four cards of one node: four of one
/// node go, and no more, at once, because its quota says so.
#[test]
fn an_owner_has_its_minimum_where_small_borrowers_are_on_two_nodes() -> Result<()> {
    let Some(world) = World::lease_queueing()? else {
        return Ok(());
    };
    with_flags(&world, &["--queue-profile", "fair"], take_back_by_node)
}

/// A pod that came later, and says to be short, goes before one that says to be long. The first event
/// about each says that it waits.
#[test]
fn who_says_to_be_short_goes_first() -> Result<()> {
    let Some(world) = World::lease_queueing()? else {
        return Ok(());
    };
    with_flags(&world, &["--queue-profile", "fair"], short_first)
}

fn short_first(world: &World) -> Result<()> {
    nodes(world, &[("n1", 2)])?;
    world.cluster.apply(&namespace("lab"))?;
    world.cluster.apply(&elastic_quota("lab", "lab", 2, 2))?;
    let apply = |name: &str, metadata: &str| {
        let pod = yaml::Pod {
            name,
            limits: &["nvidia.com/gpu: 2, nvidia.com/gpumem: 1000"],
            metadata,
            ..yaml::Pod::default()
        };
        world.cluster.apply(&in_namespace(&pod.yaml(), "lab"))
    };
    apply("busy", "")?;
    until_running(world, &[("busy", 1)])?;
    for (name, time) in [("long", "8h"), ("short", "1m")] {
        apply(
            name,
            &format!("annotations: {{sublet.dev/max-run-time: {time}}}"),
        )?;
        until_told(world, "lab", name, "quota lab")?;
    }
    let pod = ["delete", "pod", "busy", "-n", "lab", "--now"];
    world.cluster.kubectl(&pod)?;
    until_running(world, &[("short", 1)])
}

fn take_back_by_node(world: &World) -> Result<()> {
    nodes(world, &[("n1", 8), ("n2", 4)])?;
    for (name, min) in [("own", 8), ("bor", 4)] {
        world.cluster.apply(&namespace(name))?;
        world.cluster.apply(&elastic_quota(name, name, min, 12))?;
    }
    let within = "sublet.dev/min-within=0s";
    let quota = "elasticquotas.scheduling.sigs.k8s.io/own";
    world
        .cluster
        .kubectl(&["annotate", quota, "-n", "own", within])?;
    let card = yaml::Pod {
        name: "bor",
        limits: &["aliyun.com/gpu-mem: 1000"],
        ..yaml::Pod::default()
    };
    world
        .cluster
        .apply(&in_namespace(&card.deployment(12), "bor"))?;
    until_running(world, &[("bor", 12)])?;
    let recorder = record(world)?;
    let four = yaml::Pod {
        name: "own",
        limits: &["nvidia.com/gpu: 4, nvidia.com/gpumem: 1000"],
        ..yaml::Pod::default()
    };
    world.cluster.apply(&in_namespace(&four.yaml(), "own"))?;
    until_running(world, &[("bor", 8), ("own", 1)])?;
    let seen = recorder.stop()?;
    assert_eq!(seen.broken, [""; 0]);
    let gone = seen.log.iter().filter(|(_, what)| *what == Happened::Goes);
    let gone: BTreeSet<&String> = gone.map(|(pod, _)| pod).collect();
    ensure!(gone.len() == 4, "who went: {gone:?}");
    Ok(())
}
