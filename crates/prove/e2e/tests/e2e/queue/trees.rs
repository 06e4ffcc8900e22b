//! Quotas of several trees on a real control plane: each tree divides what its top says.

use anyhow::{Result, ensure};
use sublet_e2e::{World, eventually};

use super::objects::{Gang, elastic_quota, namespace, pod_group};
use super::{events, nodes, until_running};

/// A tree has two of four cards, and the cluster's own tree has the other two.
#[test]
fn no_tree_has_the_cards_of_another() -> Result<()> {
    let Some(world) = World::lease_queueing()? else {
        return Ok(());
    };
    nodes(&world, &[("n1", 4)])?;
    world
        .cluster
        .apply(&(namespace("pool") + &namespace("team")))?;
    let of_tree = elastic_quota("pool", "pool", 0, 4).replacen(
        "metadata:",
        "metadata:\n  labels: {quota.scheduling.koordinator.sh/tree-id: t1, \
         quota.scheduling.koordinator.sh/is-root: 'true'}\n  annotations: \
         {quota.scheduling.koordinator.sh/total-resource: '{\"sublet.dev/gpu\": 2}'}",
        1,
    );
    world
        .cluster
        .apply(&(of_tree + &elastic_quota("team", "team", 0, 4)))?;
    for (name, namespace, count) in [
        ("in", "pool", 2),
        ("out", "pool", 3),
        ("own", "team", 2),
        ("vast", "team", 3),
    ] {
        let gang = Gang {
            namespace,
            ..Gang::new(name)
        };
        let pods: String = (0..count)
            .map(|at| gang.pod(&format!("{name}-{at}")))
            .collect();
        world
            .cluster
            .apply(&(pod_group(name, count, namespace) + &pods))?;
    }
    until_running(&world, &[("in", 2), ("own", 2)])?;
    for (namespace, name, why) in [
        (
            "pool",
            "out",
            "it asks 3 of sublet.dev/gpu, and tree t1 has 2 in all",
        ),
        (
            "team",
            "vast",
            "it asks 3 of sublet.dev/gpu, and the cluster has 2 in all",
        ),
    ] {
        eventually(|| {
            let events = events(&world, namespace, name)?;
            ensure!(
                events.iter().any(|(_, text)| text.contains(why)),
                "{events:?}"
            );
            Ok(())
        })?;
    }
    let (code, text, notes) = world.sublet(&["queue", "--cluster"])?;
    assert_eq!((code, &*notes), (0, ""), "{text}");
    ensure!(text.contains("pool (t1)"), "{text}");
    Ok(())
}
