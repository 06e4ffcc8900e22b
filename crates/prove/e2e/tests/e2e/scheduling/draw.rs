//! Nodes and pods drawn by chance, with every wish and limit that the stock scheduler looks at,
//! each small enough that it decides now and then.

use fastrand::Rng;
use serde_json::{Map, Value, json};

const ZONES: [&str; 3] = ["a", "b", "c"];
const MODELS: [&str; 3] = ["T4", "V100", "A100"];
const CARD_MIB: u64 = 16_276;
/// Requests of a part of a card. The last is more than any card has.
const PARTS: [u64; 6] = [1024, 2048, 4069, 8138, 16_276, 16_277];

/// The runtime class whose overhead some pods have.
pub(crate) fn runtime_class() -> Value {
    json!({
        "apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass",
        "metadata": { "name": "sandboxed" }, "handler": "sandboxed",
        "overhead": { "podFixed": { "cpu": "250m", "memory": "128Mi" } },
    })
}

fn one<'a, T: ?Sized>(chance: &mut Rng, of: &[&'a T]) -> &'a T {
    of[chance.usize(..of.len())]
}

/// One in so many.
fn rarely(chance: &mut Rng, of: u32) -> bool {
    chance.u32(..of) == 0
}

/// A node that KWOK plays.
pub(crate) fn node(chance: &mut Rng, name: &str) -> Value {
    let mut has = Map::new();
    has.insert("cpu".into(), json!(one(chance, &["4", "8", "16"])));
    has.insert(
        "memory".into(),
        json!(one(chance, &["8Gi", "16Gi", "64Gi"])),
    );
    has.insert("pods".into(), json!(one(chance, &["5", "12", "110"])));
    if rarely(chance, 2) {
        has.insert("ephemeral-storage".into(), json!("20Gi"));
    }
    if rarely(chance, 3) {
        has.insert("example.com/nic".into(), json!("4"));
    }
    let (parts, whole) = match chance.u32(..10) {
        0 => (0, 0),
        1..=6 => (chance.u64(1..=4), 0),
        _ => (0, chance.u64(1..=4)),
    };
    if parts > 0 {
        has.insert("aliyun.com/gpu-count".into(), json!(parts.to_string()));
        has.insert(
            "aliyun.com/gpu-mem".into(),
            json!((parts * CARD_MIB).to_string()),
        );
    }
    if whole > 0 {
        has.insert("nvidia.com/gpu".into(), json!(whole.to_string()));
    }
    let mut allocatable = has.clone();
    // The device plugin is gone: the cards are still there.
    if rarely(chance, 12) && parts > 0 {
        allocatable.insert("aliyun.com/gpu-mem".into(), json!("0"));
    }
    let mut labels = Map::new();
    labels.insert("type".into(), json!("kwok"));
    labels.insert("kubernetes.io/hostname".into(), json!(name));
    labels.insert("kubernetes.io/os".into(), json!("linux"));
    labels.insert("zone".into(), json!(one(chance, &ZONES)));
    labels.insert("cores".into(), has["cpu"].clone());
    if rarely(chance, 2) {
        labels.insert("disk".into(), json!(one(chance, &["ssd", "hdd"])));
    }
    if parts + whole > 0 {
        labels.insert("nvidia.com/gpu.product".into(), json!(one(chance, &MODELS)));
    }
    if whole > 0 {
        labels.insert("nvidia.com/gpu.memory".into(), json!(CARD_MIB.to_string()));
    }
    let mut taints = Vec::new();
    if rarely(chance, 6) {
        taints.push(json!({ "key": "gpu", "value": "yes", "effect": "NoSchedule" }));
    }
    if rarely(chance, 4) {
        taints.push(json!({ "key": "slow", "effect": "PreferNoSchedule" }));
    }
    json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {
            "name": name, "labels": labels, "annotations": { "kwok.x-k8s.io/node": "fake" },
        },
        "spec": { "taints": taints, "unschedulable": rarely(chance, 10) },
        "status": { "capacity": has, "allocatable": allocatable },
    })
}

/// A pod of the scheduler that asks Sublet. `nodes`: names that it may wish for.
pub(crate) fn pod(chance: &mut Rng, name: &str, nodes: &[String]) -> Value {
    let mut spec = json!({
        "schedulerName": "sublet-scheduler",
        "terminationGracePeriodSeconds": 1,
        "automountServiceAccountToken": false,
    });
    let mut containers = vec![container(chance, "main")];
    ask_gpu(chance, &mut containers[0]);
    if rarely(chance, 4) {
        containers.push(container(chance, "side"));
    }
    spec["containers"] = json!(containers);
    if rarely(chance, 5) {
        let mut init = vec![container(chance, "init")];
        if rarely(chance, 2) {
            init.insert(0, container(chance, "sidecar"));
            init[0]["restartPolicy"] = json!("Always");
        }
        spec["initContainers"] = json!(init);
    }
    if rarely(chance, 15) {
        spec["runtimeClassName"] = json!("sandboxed");
        spec["overhead"] = runtime_class()["overhead"]["podFixed"].clone();
    }
    if rarely(chance, 20) {
        spec["resources"] = json!({ "requests": { "cpu": "9", "memory": "12Gi" } });
    }
    if rarely(chance, 12) {
        spec["hostNetwork"] = json!(true);
    }
    ports(chance, &mut spec);
    wishes(chance, &mut spec, nodes);
    let labels = json!({ "app": one(chance, &["web", "db"]) });
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": name, "namespace": "default", "labels": labels },
        "spec": spec,
    })
}

fn container(chance: &mut Rng, name: &str) -> Value {
    let mut requests = Map::new();
    let mut ask = |resource: &str, amounts: &[&str], of: u32, chance: &mut Rng| {
        if rarely(chance, of) {
            requests.insert(resource.into(), json!(one(chance, amounts)));
        }
    };
    ask("cpu", &["100m", "500m", "1500m", "3"], 2, chance);
    ask("memory", &["100Mi", "1Gi", "5Gi"], 2, chance);
    ask("ephemeral-storage", &["1Gi", "6Gi"], 12, chance);
    let mut limits = Map::new();
    if rarely(chance, 12) {
        limits.insert("example.com/nic".into(), json!(one(chance, &["1", "2"])));
    }
    if !requests.contains_key("cpu") && rarely(chance, 4) {
        limits.insert("cpu".into(), json!("1"));
    }
    json!({
        "name": name, "image": "sublet.test/busybox:1", "imagePullPolicy": "Never",
        "resources": { "requests": requests, "limits": limits },
    })
}

fn ask_gpu(chance: &mut Rng, container: &mut Value) {
    let (resource, amount) = match chance.u32(..10) {
        0 | 1 => return,
        2..=7 => ("aliyun.com/gpu-mem", PARTS[chance.usize(..PARTS.len())]),
        _ => ("nvidia.com/gpu", chance.u64(1..=2)),
    };
    container["resources"]["limits"][resource] = json!(amount.to_string());
}

fn ports(chance: &mut Rng, spec: &mut Value) {
    if !rarely(chance, 6) {
        return;
    }
    let number = 8080 + chance.u32(..2);
    let mut port = json!({ "containerPort": number, "hostPort": number });
    if rarely(chance, 3) {
        port["hostIP"] = json!(one(chance, &["10.0.0.1", "10.0.0.2"]));
    }
    if rarely(chance, 4) {
        port["protocol"] = json!("UDP");
    }
    spec["containers"][0]["ports"] = json!([port]);
}

fn wishes(chance: &mut Rng, spec: &mut Value, nodes: &[String]) {
    if rarely(chance, 3) {
        spec["tolerations"] = json!([toleration(chance)]);
    }
    if rarely(chance, 8) {
        let selector = match chance.u32(..3) {
            0 => json!({ "disk": "ssd" }),
            1 => json!({ "zone": one(chance, &ZONES) }),
            _ => json!({ "nvidia.com/gpu.product": one(chance, &MODELS) }),
        };
        spec["nodeSelector"] = selector;
    }
    if rarely(chance, 4) {
        let n_terms = chance.usize(1..=2);
        let terms: Vec<Value> = (0..n_terms).map(|_| term(chance, nodes)).collect();
        spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"] =
            json!({ "nodeSelectorTerms": terms });
    }
    if rarely(chance, 10) {
        let preference = json!({ "matchExpressions": [expression(chance)] });
        spec["affinity"]["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"] =
            json!([{ "weight": chance.u32(1..=100), "preference": preference }]);
    }
    others(chance, spec);
}

/// Rules that depend on other pods, or on volumes: not modelled, but for the soft half.
fn others(chance: &mut Rng, spec: &mut Value) {
    let selector = json!({ "matchLabels": { "app": "web" } });
    let term = json!({ "topologyKey": "zone", "labelSelector": selector });
    let spread = |how: &str| {
        json!([{ "maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": how,
                 "labelSelector": selector }])
    };
    match chance.u32(..80) {
        0 => {
            spec["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"] = json!([{ "topologyKey": "kubernetes.io/hostname",
                         "labelSelector": { "matchLabels": { "app": "none" } } }]);
        }
        1 => {
            spec["affinity"]["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"] =
                json!([term]);
        }
        2 => {
            spec["affinity"]["podAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"] =
                json!([{ "weight": 50, "podAffinityTerm": term }]);
        }
        3 => spec["topologySpreadConstraints"] = spread("DoNotSchedule"),
        4 => spec["topologySpreadConstraints"] = spread("ScheduleAnyway"),
        5 => {
            spec["volumes"] =
                json!([{ "name": "data", "persistentVolumeClaim": { "claimName": "absent" } }]);
        }
        6..=8 => spec["volumes"] = json!([{ "name": "tmp", "emptyDir": {} }]),
        _ => {}
    }
}

/// Takes the wishes of a pod away that are not modelled.
pub(crate) fn without_others(pod: &mut Value) {
    let Some(spec) = pod["spec"].as_object_mut() else {
        return;
    };
    spec.remove("topologySpreadConstraints");
    spec.remove("volumes");
    if let Some(affinity) = spec.get_mut("affinity").and_then(Value::as_object_mut) {
        affinity.remove("podAffinity");
        affinity.remove("podAntiAffinity");
    }
}

fn toleration(chance: &mut Rng) -> Value {
    match chance.u32(..4) {
        0 => json!({ "operator": "Exists" }),
        1 => json!({ "key": "gpu", "operator": "Equal", "value": "yes", "effect": "NoSchedule" }),
        2 => json!({ "key": "gpu", "value": "no" }),
        _ => json!({ "key": "slow", "operator": "Exists", "effect": "PreferNoSchedule" }),
    }
}

fn term(chance: &mut Rng, nodes: &[String]) -> Value {
    if rarely(chance, 8) {
        let name = &nodes[chance.usize(..nodes.len())];
        let operator = one(chance, &["In", "NotIn"]);
        let field = json!({ "key": "metadata.name", "operator": operator, "values": [name] });
        return json!({ "matchFields": [field] });
    }
    if rarely(chance, 12) {
        // It matches nothing.
        return json!({});
    }
    let n_wishes = chance.usize(1..=2);
    let wishes: Vec<Value> = (0..n_wishes).map(|_| expression(chance)).collect();
    json!({ "matchExpressions": wishes })
}

fn expression(chance: &mut Rng) -> Value {
    match chance.u32(..7) {
        0 => json!({ "key": "zone", "operator": "In", "values": ["a", one(chance, &ZONES)] }),
        1 => json!({ "key": "zone", "operator": "NotIn", "values": [one(chance, &ZONES)] }),
        2 => json!({ "key": "disk", "operator": one(chance, &["Exists", "DoesNotExist"]) }),
        3 => json!({ "key": "disk", "operator": "NotIn", "values": ["hdd"] }),
        4 => json!({ "key": "cores", "operator": "Gt", "values": ["4"] }),
        5 => json!({ "key": "cores", "operator": "Lt", "values": ["16"] }),
        _ => json!({ "key": "nvidia.com/gpu.product", "operator": "In", "values": ["T4", "A100"] }),
    }
}
