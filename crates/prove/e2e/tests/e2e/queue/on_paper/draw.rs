//! Quotas and groups drawn by chance, each kind of oddity often enough that it decides now and then.

use fastrand::Rng;
use serde_json::{Value, json};

/// The namespace of all groups.
pub(super) const NAMESPACE: &str = "on-paper";

/// Requests of a member on a card, in MiB; a card has 1,000.
const PARTS: [u32; 5] = [250, 400, 500, 700, 1_000];

/// Priorities by name; the last is that of groups that name none.
pub(super) const CLASSES: [(&str, i32); 3] = [
    ("on-paper-high", 1_000),
    ("on-paper-low", -10),
    ("on-paper-usual", 100),
];

fn one<'a, T: ?Sized>(chance: &mut Rng, of: &[&'a T]) -> &'a T {
    of[chance.usize(..of.len())]
}

/// One in so many.
fn rarely(chance: &mut Rng, of: u32) -> bool {
    chance.u32(..of) == 0
}

/// The numbers of cards of a few nodes.
pub(super) fn nodes(chance: &mut Rng) -> Vec<u16> {
    let count = chance.usize(2..=4);
    (0..count).map(|_| chance.u16(1..=5)).collect()
}

/// PriorityClasses.
pub(super) fn classes() -> Vec<Value> {
    let class = |(name, value): (&str, i32)| {
        json!({
            "apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass",
            "metadata": { "name": name }, "value": value,
            "globalDefault": name.ends_with("usual"),
        })
    };
    CLASSES.map(class).into()
}

/// Quotas with these names: trees, and now and then a parent that is not there, or a circle.
pub(super) fn quotas(chance: &mut Rng, names: &[String]) -> Vec<Value> {
    let quota = |(at, name): (usize, &String)| {
        let parent = match chance.u32(..10) {
            0 => "nobody".to_owned(),
            1 => name.clone(),
            2..=5 if at > 0 => names[chance.usize(..at)].clone(),
            _ => String::new(),
        };
        let min = chance.u32(0..=4);
        let max = min + chance.u32(0..=6);
        let lends = !rarely(chance, 4);
        json!({
            "apiVersion": "scheduling.sigs.k8s.io/v1alpha1", "kind": "ElasticQuota",
            "metadata": {
                "name": name, "namespace": NAMESPACE,
                "labels": {
                    "quota.scheduling.koordinator.sh/parent": parent,
                    "quota.scheduling.koordinator.sh/allow-lent-resource": lends.to_string(),
                },
            },
            "spec": { "min": { "sublet.dev/gpu": min }, "max": { "sublet.dev/gpu": max } },
        })
    };
    names.iter().enumerate().map(quota).collect()
}

/// A group of one of these quotas: a gang and its pods, a job that is held back, or a lone pod.
pub(super) fn group(chance: &mut Rng, name: &str, quotas: &[String]) -> Vec<Value> {
    let quota = match rarely(chance, 12) {
        true => "nobody",
        false => &quotas[chance.usize(..quotas.len())],
    };
    let count = chance.u32(1..=5);
    match chance.u32(..10) {
        0 | 1 => vec![pod(chance, name, quota, None)],
        2..=4 => vec![job(chance, name, quota, count)],
        _ => {
            // One that waits for members now and then.
            let min = match rarely(chance, 8) {
                true => count + 1,
                false => chance.u32(1..=count),
            };
            let first = pod(chance, &format!("{name}-0"), quota, Some(name));
            let mut objects = vec![json!({
                "apiVersion": "scheduling.x-k8s.io/v1alpha1", "kind": "PodGroup",
                "metadata": { "name": name, "namespace": NAMESPACE },
                "spec": { "minMember": min },
            })];
            for at in 0..count {
                let mut pod = match rarely(chance, 6) {
                    true => pod(chance, name, quota, Some(name)),
                    false => first.clone(),
                };
                pod["metadata"]["name"] = json!(format!("{name}-{at}"));
                // A gang has one priority.
                pod["spec"]["priorityClassName"] = first["spec"]["priorityClassName"].clone();
                objects.push(pod);
            }
            objects
        }
    }
}

fn spec(chance: &mut Rng) -> Value {
    let part = PARTS[chance.usize(..PARTS.len())];
    let mut spec = json!({
        "schedulerName": "sublet-scheduler",
        "terminationGracePeriodSeconds": 1,
        "automountServiceAccountToken": false,
        "containers": [{
            "name": "c", "image": "sublet.test/busybox:1", "imagePullPolicy": "Never",
            "resources": { "limits": { "aliyun.com/gpu-mem": part } },
        }],
    });
    if rarely(chance, 2) {
        let names = CLASSES.map(|(name, _)| name);
        spec["priorityClassName"] = json!(one(chance, &names));
    }
    spec
}

/// A pod that is held back by the scheduling gate, which the webhook would put there.
fn pod(chance: &mut Rng, name: &str, quota: &str, gang: Option<&str>) -> Value {
    let mut pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": name, "namespace": NAMESPACE,
            "labels": { "quota.scheduling.koordinator.sh/name": quota },
        },
        "spec": spec(chance),
    });
    if let Some(gang) = gang {
        pod["metadata"]["labels"]["scheduling.x-k8s.io/pod-group"] = json!(gang);
    }
    if rarely(chance, 6) {
        let label = "quota.scheduling.koordinator.sh/preemptible";
        pod["metadata"]["labels"][label] = json!("false");
    }
    pod["spec"]["schedulingGates"] = json!([{ "name": "sublet.dev/queue" }]);
    pod
}

/// A job that is held back, and whose pods nobody makes: what it gets stays a plan.
fn job(chance: &mut Rng, name: &str, quota: &str, pods: u32) -> Value {
    let mut spec = spec(chance);
    spec["restartPolicy"] = json!("Never");
    json!({
        "apiVersion": "batch/v1", "kind": "Job",
        "metadata": { "name": name, "namespace": NAMESPACE },
        "spec": {
            "suspend": true, "parallelism": pods, "completions": pods,
            "managedBy": "example.internal/nobody",
            "template": {
                "metadata": { "labels": { "quota.scheduling.koordinator.sh/name": quota } },
                "spec": spec,
            },
        },
    })
}
