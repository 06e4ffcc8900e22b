//! An object that cannot be read is told of by an event on that object.

use super::*;

/// Events of one reason: their objects and their messages.
fn told(round: &Round, reason: &str) -> Vec<String> {
    let text = |write: &Write| {
        let Act::Apply(object) = &write.act else {
            return None;
        };
        let about = &object["involvedObject"];
        let at = |field: &str| about[field].as_str().unwrap_or_default().to_owned();
        let message = object["message"].as_str()?;
        (object["reason"] == reason).then(|| format!("{} {}: {message}", at("kind"), at("name")))
    };
    round.report.events.iter().filter_map(text).collect()
}

#[test]
fn a_group_a_job_or_a_quota_that_cannot_be_read_says_so_itself() {
    let mut world = World::new(4);
    let mut object = |api: &str, kind: &str, spec: Value| {
        let object = serde_json::from_value(json!({
            "metadata": {"name": "x", "namespace": "a", "uid": "u-x"}, "spec": spec,
        }));
        world
            .watched
            .object(api, kind, Change::Set(object.unwrap()));
    };
    object("batch/v1", "Job", json!({"parallelism": "many"}));
    object(
        "scheduling.x-k8s.io/v1alpha1",
        "PodGroup",
        json!({"minMember": -1}),
    );
    let quota = serde_json::from_value(json!({
        "apiVersion": "scheduling.sigs.k8s.io/v1alpha1",
        "metadata": {"name": "q", "namespace": "a", "uid": "u-q"}, "spec": {"max": {"cpu": "lots"}},
    }));
    let change = Change::Set(quota.unwrap());
    world.watched.quota("scheduling.sigs.k8s.io", change);
    let round = world.look();
    let number = "it is no whole number from 0 to 2147483647";
    assert_eq!(
        told(&round, "CannotQueue"),
        [
            format!("Job x: field `spec.parallelism`: {number}"),
            format!("PodGroup x: field `spec.minMember`: {number}"),
        ]
    );
    let quota = told(&round, "NotInTree");
    assert_eq!(
        quota,
        ["ElasticQuota q: spec.max[cpu]: \"lots\": it is not a number such as `8138` or `8k`"]
    );
    assert_eq!(told(&world.look(), "CannotQueue"), [""; 0], "once");

    // A quota counts but for the field.
    let quota = serde_json::from_value(json!({
        "apiVersion": "scheduling.sigs.k8s.io/v1alpha1",
        "metadata": {
            "name": "r", "namespace": "a", "uid": "u-r",
            "annotations": {keys::QUOTA_MIN_WITHIN: "soon"},
        },
    }));
    let change = Change::Set(quota.unwrap());
    world.watched.quota("scheduling.sigs.k8s.io", change);
    assert_eq!(
        told(&world.look(), "CannotRead"),
        [
            "ElasticQuota r: metadata.annotations[sublet.dev/min-within]: \"soon\": it is no duration \
             such as `0s`, `1h` or `24h`; the site's counts"
        ]
    );

    // What can be read again is told no more, even to who takes over.
    world.pod_group("x", 1);
    world.memory = Memory::default();
    let again = told(&world.look(), "CannotQueue");
    assert_eq!(again.len(), 1, "{again:?}");
    assert!(again[0].starts_with("Job x: "), "{again:?}");
}

/// Quotas of one name in two namespaces, as users of scheduler-plugins have them.
#[test]
fn each_of_two_quotas_of_one_name_has_its_figures() {
    let mut world = World::new(4);
    for namespace in ["a", "b"] {
        let quota = serde_json::from_value(json!({
            "apiVersion": "scheduling.x-k8s.io/v1alpha1",
            "metadata": {"name": "q", "namespace": namespace, "uid": format!("u-{namespace}")},
            "spec": {"max": {keys::GPU: "4"}},
        }));
        let change = Change::Set(quota.unwrap());
        world.watched.quota("scheduling.x-k8s.io", change);
    }
    world.pod_group("g", 1);
    world.pod("p0", "g");
    for _ in 0..3 {
        let round = world.look();
        world.carry_out(round.steps);
        world.bind();
    }
    world.memory = Memory::default();
    let round = world.look();
    let used = round
        .report
        .status
        .iter()
        .filter_map(|write| match &write.act {
            Act::ApplyStatus(object) if write.to.kind.kind == "ElasticQuota" => {
                let used = object["status"]["used"][keys::GPU].as_str()?;
                Some((write.to.namespace.as_deref()?, used))
            }
            _ => None,
        });
    assert_eq!(used.collect::<Vec<_>>(), [("a", "1"), ("b", "0")]);
}
