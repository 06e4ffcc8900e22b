//! Several trees of quotas.

use super::*;

impl World {
    /// A quota of a tree, which has so many cards where the quota says it.
    fn quota(&mut self, name: &str, tree: &str, total: Option<u64>) {
        let mut quota = json!({
            "apiVersion": "scheduling.sigs.k8s.io/v1alpha1",
            "metadata": {
                "name": name, "namespace": "a", "uid": format!("u-{name}"),
                "labels": {keys::QUOTA_TREE: tree},
            },
            "spec": {"max": {keys::GPU: 9}},
        });
        if let Some(total) = total {
            let text = format!("{{\"{}\": {total}}}", keys::GPU);
            quota["metadata"]["annotations"][keys::QUOTA_TOTAL] = text.into();
        }
        let quota = serde_json::from_value(quota).unwrap();
        self.watched.quota(KOORDINATOR, Change::Set(quota));
    }
}

/// A tree of quotas divides the amount that it declares, and the cluster's own has the rest.
#[test]
fn no_tree_of_quotas_has_the_cards_of_another() {
    let mut world = World::new(4);
    world.quota("team", "", None);
    world.quota("pool", "t", Some(1));
    world.quota("lost", "u", None);
    for (gang, quota, count) in [
        ("in", "pool", 1),
        ("out", "pool", 2),
        ("own", "team", 3),
        ("vast", "team", 4),
    ] {
        world.pod_group(gang, count);
        for at in 0..count {
            let name = format!("{gang}{at}");
            world.pod(&name, gang);
            let pod = world.watched.pods.get_mut(&format!("u-{name}")).unwrap();
            let labels = &mut Arc::make_mut(pod).metadata.labels;
            labels.insert(keys::QUOTA_NAME.to_owned(), quota.to_owned());
        }
    }
    let told = events(&world.look().report.events);
    for wanted in [
        "1 pods have their places and may start",
        "3 pods have their places and may start",
        "it asks 2 of sublet.dev/gpu, and tree t has 1 in all",
        "it asks 4 of sublet.dev/gpu, and the cluster has 3 in all",
        "to its quota at the top",
    ] {
        assert!(
            told.iter().any(|text| text.ends_with(wanted)),
            "{wanted}: {told:?}"
        );
    }
}
