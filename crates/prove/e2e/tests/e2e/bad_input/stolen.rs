//! Attacks with the stolen token of a node's agent, and attacks by callers of the extender.

use std::fs;
use std::net::{Ipv4Addr, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use sublet_e2e::{World, yaml};
use sublet_testbed::deployed;

use super::{Attack, all_refused, patched, pod, refused};

const OWN_FIELDS: &str = "writes to pods only the annotations that say they are assigned";
/// Two policies refuse these, and either may be the first.
const RESULTS: &str = "annotations";
const OWN_NODE: &str = "this agent belongs to node n1";
const OWN_PART: &str = "writes to a node only annotations under sublet.dev/";
const NO_NODE: &str = "this token names no node";

/// The token of an agent that runs on n1, as the API server makes it for the agent's pod.
fn token_of_a_pod(world: &World) -> Result<PathBuf> {
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": "agent-n1", "namespace": "sublet-system" },
        "spec": {
            "serviceAccountName": "sublet-agent", "automountServiceAccountToken": false,
            "nodeName": "n1", "containers": [{ "name": "agent", "image": "sublet" }],
        },
    });
    world.cluster.apply(&pod.to_string())?;
    let bound = ["--bound-object-kind=Pod", "--bound-object-name=agent-n1"];
    let create = [
        "create",
        "token",
        "sublet-agent",
        "--namespace=sublet-system",
    ];
    let token = world.cluster.kubectl(&[&create[..], &bound].concat())?;
    world.cluster.kubeconfig_of_token("stolen", token.trim())
}

fn annotation(key: &str) -> Value {
    json!({ "metadata": { "annotations": { key: "[]" } } })
}

/// Requests that no agent makes.
fn tries() -> Vec<Attack> {
    let mut tries = tries_on_pods();
    tries.extend(tries_on_nodes());
    tries
}

fn tries_on_pods() -> Vec<Attack> {
    let image = json!({ "spec": { "containers": [{ "name": "c0", "image": "evil" }] } });
    let soon = json!({ "spec": { "activeDeadlineSeconds": 1 } });
    let note = annotation("example.org/note");
    let (own, other) = ("v1 Pod default/own", "v1 Pod default/other");
    vec![
        (
            "moves a pod to another Service",
            own,
            new_label(),
            OWN_FIELDS,
        ),
        ("runs its own image", own, image, OWN_FIELDS),
        ("keeps a pod for ever", own, new_finalizer(), OWN_FIELDS),
        ("writes what others read of a pod", own, note, OWN_FIELDS),
        ("ends a pod", own, soon, OWN_FIELDS),
        (
            "gives a pod cards",
            own,
            annotation("sublet.dev/allocation"),
            RESULTS,
        ),
        (
            "gives it others",
            own,
            annotation("ALIYUN_COM_GPU_MEM_IDX"),
            RESULTS,
        ),
        (
            "marks pods elsewhere",
            other,
            annotation("sublet.dev/assigned"),
            OWN_NODE,
        ),
    ]
}

fn tries_on_nodes() -> Vec<Attack> {
    let taint = json!({ "spec": { "taints": [{ "key": "a", "effect": "NoExecute" }] } });
    let cpu = json!({ "status": { "capacity": { "cpu": "999" } } });
    let note = annotation("example.org/note");
    let (node, status) = ("v1 Node n1", "v1 Node n1 status");
    vec![
        ("draws pods by a label", node, new_label(), OWN_PART),
        ("keeps the node for ever", node, new_finalizer(), OWN_PART),
        ("drives pods off", node, taint, OWN_PART),
        ("writes what others read of the node", node, note, OWN_PART),
        (
            "draws pods by a label of the status",
            status,
            new_label(),
            OWN_PART,
        ),
        ("draws pods by CPUs", status, cpu, OWN_PART),
        (
            "invents cards elsewhere",
            "v1 Node n2",
            annotation("sublet.dev/inventory"),
            OWN_NODE,
        ),
        (
            "draws pods elsewhere",
            "v1 Node n2 status",
            cards(),
            OWN_NODE,
        ),
    ]
}

fn new_label() -> Value {
    json!({ "metadata": { "labels": { "role": "control" } } })
}

fn new_finalizer() -> Value {
    json!({ "metadata": { "finalizers": ["example.org/stay"] } })
}

/// A change to each field of a node's status that is not the agent's. With another port in
/// `daemonEndpoints`, a listener there gets what users type into `kubectl exec` on that node.
fn status_tries() -> Value {
    json!({
        "addresses": [{ "type": "InternalIP", "address": "10.9.9.9" }],
        "conditions": [{ "type": "Ready", "status": "False" }],
        "config": { "error": "none" },
        "daemonEndpoints": { "kubeletEndpoint": { "Port": 666 } },
        "declaredFeatures": ["Example"],
        "features": { "supplementalGroupsPolicy": true },
        "images": [{ "names": ["sublet.test/evil:1"], "sizeBytes": 1 }],
        "nodeInfo": { "kernelVersion": "0" },
        "phase": "Terminated",
        "runtimeHandlers": [{ "name": "evil" }],
        "volumesAttached": [{ "name": "kubernetes.io/nfs/a", "devicePath": "/dev/a" }],
        "volumesInUse": ["kubernetes.io/nfs/a"],
    })
}

/// Tries each field of a status that the API server knows; each try is refused, or does nothing,
/// because the API server drops the field.
fn nothing_else_of_the_status_is_the_agent_s(world: &World, token: &Path) -> Result<()> {
    let schemas = world
        .cluster
        .kubectl(&["get", "--raw", "/openapi/v3/api/v1"])?;
    let schemas: Value = serde_json::from_str(&schemas)?;
    let schema = &schemas["components"]["schemas"]["io.k8s.api.core.v1.NodeStatus"];
    let known = schema["properties"].as_object().context("no properties")?;
    let tries = status_tries();
    let (mut refusals, mut through) = (0, Vec::new());
    for field in known.keys() {
        if ["allocatable", "capacity"].contains(&field.as_str()) {
            continue;
        }
        let other = tries.get(field);
        let other = other.with_context(|| format!("nobody tries status.{field}: add it"))?;
        let change = json!({ "status": { field: other } });
        let before = world.get(&["node", "n1"])?["status"][field].clone();
        match patched(world, token, "v1 Node n1 status", &change, true) {
            Ok(after) => {
                let after: Value = serde_json::from_str(&after)?;
                if after["status"][field] != before {
                    through.push(field);
                }
            }
            Err(error) => {
                let why = format!("{OWN_PART}, ");
                let error = format!("{error:#}");
                let named = error.ends_with(&format!("this would change {field}"));
                ensure!(error.contains(&why) && named, "{field}: {error}");
                refusals += 1;
            }
        }
    }
    ensure!(through.is_empty(), "these were changed: {through:?}");
    ensure!(refusals >= 8, "only {refusals} fields are refused");
    Ok(())
}

fn cards() -> Value {
    json!({ "status": { "capacity": { "aliyun.com/gpu-count": "9" } } })
}

/// Requests that the agent itself makes.
fn own() -> [(&'static str, Value); 3] {
    [
        ("v1 Pod default/own", annotation("sublet.dev/assigned")),
        ("v1 Node n1", annotation("sublet.dev/inventory")),
        ("v1 Node n1 status", cards()),
    ]
}

/// Tells something of an object, as the holder of the token.
fn tell(world: &World, token: &Path, namespace: &str, kind: &str, name: &str) -> Result<String> {
    let event = json!({
        "apiVersion": "v1", "kind": "Event",
        "metadata": { "name": "told", "namespace": namespace },
        "involvedObject": { "kind": kind, "name": name, "namespace": "" },
    });
    let args = ["create", "--dry-run=server", "--filename=-"];
    world
        .cluster
        .kubectl_by(token, &args, Some(&event.to_string()))
}

#[test]
fn a_stolen_agent_token_is_good_for_its_own_node_s_gpus_and_nothing_else() -> Result<()> {
    let Some(world) = World::lease()? else {
        return Ok(());
    };
    let cluster = &world.cluster;
    cluster.apply(&(yaml::share_node("n1", 2, 32_552) + &yaml::share_node("n2", 2, 32_552)))?;
    let on = |name, node| yaml::Pod {
        node,
        ..pod(name, &["aliyun.com/gpu-mem: 100"])
    };
    cluster.apply(&(on("own", "n1").yaml() + &on("other", "n2").yaml()))?;
    world.until_placed("own")?;
    world.until_placed("other")?;
    let token = token_of_a_pod(&world)?;

    all_refused(&world, &token, &tries())?;
    nothing_else_of_the_status_is_the_agent_s(&world, &token)?;
    let pods = "/api/v1/namespaces/default/pods";
    for (verb, path) in [
        ("get", "/api/v1/secrets"),
        ("get", "/api/v1/configmaps"),
        ("get", &format!("{pods}/own")),
        ("delete", &format!("{pods}/own")),
        ("delete", "/api/v1/nodes/n1"),
    ] {
        let error = refused(cluster.kubectl_by(&token, &[verb, "--raw", path], None))?;
        ensure!(error.contains("is forbidden"), "{verb} {path}: {error}");
    }
    // It tells of its node, where such events are, and of nobody else.
    tell(&world, &token, "default", "Node", "n1")?;
    for (namespace, kind, name, why) in [
        (
            "kube-system",
            "Node",
            "n1",
            "cannot create resource \"events\"",
        ),
        ("default", "Node", "n2", OWN_NODE),
        ("default", "Pod", "n1", OWN_NODE),
    ] {
        let error = refused(tell(&world, &token, namespace, kind, name))?;
        ensure!(error.contains(why), "{namespace} {kind} {name}: {error}");
    }

    // A token that no pod was given, as of a Secret, is good for none of what the agent does.
    let unbound = cluster.kubeconfig(&deployed::account("sublet-agent").name)?;
    for (object, change) in own() {
        let error = refused(patched(&world, &unbound, object, &change, true))?;
        ensure!(error.contains(NO_NODE), "{object} {change}: {error}");
    }
    let error = refused(tell(&world, &unbound, "default", "Node", "n1"))?;
    ensure!(error.contains(NO_NODE), "{error}");

    // What the agent itself does goes through, so it was not refused for something else.
    for (object, change) in own() {
        patched(&world, &token, object, &change, false)
            .with_context(|| format!("{object} {change}"))?;
    }
    Ok(())
}

/// A Secret of this type is filled by Kubernetes with a token of the account that it names.
fn token_of_the_controller(name: &str) -> String {
    json!({
        "apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/service-account-token",
        "metadata": {
            "name": name, "namespace": "sublet-system",
            "annotations": { "kubernetes.io/service-account.name": "sublet-controller" },
        },
    })
    .to_string()
}

/// Extender and controller may each read one Secret by its name. Could they make one, they could
/// make that of another account's token, whenever the name is free.
#[test]
fn a_stolen_token_makes_no_secret_and_no_token_of_the_one_it_may_write() -> Result<()> {
    let Some(world) = World::lease()? else {
        return Ok(());
    };
    for (account, own) in [
        ("sublet-scheduler", "sublet-extender-certificates"),
        ("sublet-controller", "sublet-webhook-certificates"),
    ] {
        let whom = format!("--as=system:serviceaccount:sublet-system:{account}");
        let tried = |verb: &[&str], name| {
            let args = [verb, &["--dry-run=server", "--filename", "-", &whom]].concat();
            let manifest = token_of_the_controller(name);
            refused(world.cluster.kubectl_with_input(&args, &manifest))
        };
        for (verb, name, why) in [
            (&["create"][..], "grabbed", "is forbidden"),
            (&["replace"], "grabbed", "is forbidden"),
            (&["apply", "--server-side"], "grabbed", "is forbidden"),
            (&["apply", "--server-side"], own, "is forbidden"),
            (&["replace"], own, "field is immutable"),
        ] {
            let error = tried(verb, name).with_context(|| format!("{account} {verb:?} {name}"))?;
            ensure!(error.contains(why), "{account} {verb:?} {name}: {error}");
        }
    }
    Ok(())
}

/// RBAC cannot name objects that do not exist yet: a policy holds each account to its Lease.
#[test]
fn a_stolen_token_makes_no_lease_but_its_own() -> Result<()> {
    let Some(world) = World::lease()? else {
        return Ok(());
    };
    let tried = |account: &str, name: &str| {
        let whom = format!("--as=system:serviceaccount:sublet-system:{account}");
        let lease = json!({
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
            "metadata": { "name": name, "namespace": "sublet-system" },
        });
        let args = ["create", "--dry-run=server", "--filename", "-", &whom];
        let made = world.cluster.kubectl_with_input(&args, &lease.to_string());
        // One that is there already is the only other obstacle.
        match made.map_err(|error| error.to_string()) {
            Err(error) if !error.contains("already exists") => Err(error),
            _ => Ok(()),
        }
    };
    for (account, own, other) in [
        ("sublet-scheduler", "sublet-extender", "sublet-controller"),
        ("sublet-controller", "sublet-controller", "sublet-extender"),
    ] {
        for name in [other, "sublet-scheduler"] {
            let error = tried(account, name).err().context("it is made")?;
            let words = format!("makes no Lease but its own; this is {name}");
            ensure!(error.contains(&words), "{account} {name}: {error}");
        }
        ensure!(tried(account, own).is_ok(), "{account} {own}");
    }
    Ok(())
}

#[test]
fn only_its_own_pod_reaches_the_extender() -> Result<()> {
    let Some(world) = World::lease()? else {
        return Ok(());
    };
    // What listens on every address answers on both.
    TcpStream::connect((Ipv4Addr::LOCALHOST, world.port))?;
    let elsewhere = TcpStream::connect((Ipv4Addr::new(127, 0, 0, 2), world.port));
    ensure!(elsewhere.is_err(), "{elsewhere:?}");
    // On the node's own network every process of the node reaches the port too.
    let ask = |user: u32, path: &str| -> Result<String> {
        let script = format!(
            "exec 3<>/dev/tcp/127.0.0.1/{}; printf 'POST {path} HTTP/1.1\\r\\nHost: x\\r\\n\
             Content-Length: 2\\r\\nConnection: close\\r\\n\\r\\n{{}}' >&3; cat <&3",
            world.port
        );
        let said = Command::new("bash")
            .args(["-c", &script])
            .uid(user)
            .gid(user)
            .output()?;
        Ok(String::from_utf8(said.stdout)?)
    };
    for path in ["/sublet/bind", "/sublet/filter", "/gpushare-scheduler/bind"] {
        let served = ask(0, path)?;
        let is_read = served.starts_with("HTTP/1.1 ") && !served.starts_with("HTTP/1.1 403 ");
        ensure!(is_read, "{path}: {served}");
        let refused = ask(65_533, path)?;
        ensure!(
            refused.is_empty() || refused.starts_with("HTTP/1.1 403 "),
            "{path}: {refused}"
        );
    }
    // And the manifest has it and its stand-in listen as the testbed does.
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../.."));
    let manifest = fs::read_to_string(root.join("deploy/kubernetes/50-scheduler.yaml"))?;
    let listens: Vec<&str> = manifest.split("--listen=").skip(1).collect();
    ensure!(
        listens.len() == 2 && listens.iter().all(|one| one.starts_with("127.0.0.1:39999")),
        "{listens:?}"
    );
    Ok(())
}
