//! What somebody can do who has the token of a node's agent, and who can call the extender.

use std::fs;
use std::net::{Ipv4Addr, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use sublet_e2e::{World, eventually, yaml};

use super::{pod, refused};

/// Whom the API server takes the holder of such a token for.
const AGENT_OF_N1: [&str; 4] = [
    "--as=system:serviceaccount:sublet-system:sublet-agent",
    "--as-group=system:serviceaccounts",
    "--as-group=system:authenticated",
    "--as-user-extra=authentication.kubernetes.io/node-name=n1",
];

const OWN_FIELDS: &str = "writes to pods only the annotations that say they are assigned";
/// Two policies refuse these, and either may be the first.
const RESULTS: &str = "annotations";
const OWN_NODE: &str = "this agent belongs to node n1";
const OWN_KEYS: &str = "writes to a node's metadata only annotations under sublet.dev/";
const OWN_AMOUNTS: &str = "writes to a node's status only the amounts of GPU resources";

/// Patches an object, `pod/own` or `node/n1/status`, without reading it first as kubectl would:
/// the agent has no right to.
fn patch(world: &World, object: &str, patch: &Value, more: &[&str]) -> Result<String> {
    let mut parts = object.split('/');
    let (kind, name) = (parts.next(), parts.next());
    let file = json!({ "apiVersion": "v1", "kind": kind, "metadata": { "name": name } });
    let patch = patch.to_string();
    let mut args = vec!["patch", "-f", "-", "-p", &patch];
    args.extend(parts.next().map(|_| "--subresource=status"));
    args.extend(AGENT_OF_N1);
    args.extend(more);
    world.cluster.kubectl_with_input(&args, &file.to_string())
}

fn annotation(key: &str) -> Value {
    json!({ "metadata": { "annotations": { key: "[]" } } })
}

/// What no agent does, and what the refusal says.
fn tries() -> Vec<(&'static str, Value, &'static str)> {
    let image = json!({ "spec": { "containers": [{ "name": "c0", "image": "evil" }] } });
    let taint = json!({ "spec": { "taints": [{ "key": "a", "effect": "NoExecute" }] } });
    let label = json!({ "metadata": { "labels": { "role": "control" } } });
    let stays = json!({ "metadata": { "finalizers": ["example.org/stay"] } });
    let cpu = json!({ "status": { "capacity": { "cpu": "999" } } });
    vec![
        ("Pod/own", label.clone(), OWN_FIELDS),
        ("Pod/own", image, OWN_FIELDS),
        ("Pod/own", stays, OWN_FIELDS),
        ("Pod/own", annotation("example.org/note"), OWN_FIELDS),
        ("Pod/own", annotation("sublet.dev/allocation"), RESULTS),
        ("Pod/own", annotation("ALIYUN_COM_GPU_MEM_IDX"), RESULTS),
        ("Pod/other", annotation("sublet.dev/assigned"), OWN_NODE),
        ("Node/n1", label, OWN_KEYS),
        ("Node/n1", taint, OWN_KEYS),
        ("Node/n1", annotation("example.org/note"), OWN_KEYS),
        ("Node/n1/status", cpu, OWN_AMOUNTS),
        ("Node/n2", annotation("sublet.dev/inventory"), OWN_NODE),
        ("Node/n2/status", cards(), OWN_NODE),
    ]
}

fn cards() -> Value {
    json!({ "status": { "capacity": { "aliyun.com/gpu-count": "9" } } })
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

    for (object, change, why) in tries() {
        // The policies take effect within a second or so of being applied.
        eventually(|| {
            let error = refused(patch(&world, object, &change, &["--dry-run=server"]))?;
            ensure!(error.contains(why), "{object} {change}: {error}");
            Ok(())
        })?;
    }
    let pods = "/api/v1/namespaces/default/pods";
    for (verb, path) in [
        ("get", "/api/v1/secrets"),
        ("get", "/api/v1/configmaps"),
        ("get", &format!("{pods}/own")),
        ("delete", &format!("{pods}/own")),
        ("delete", "/api/v1/nodes/n1"),
    ] {
        let args = [&[verb, "--raw", path][..], &AGENT_OF_N1].concat();
        let error = refused(cluster.kubectl(&args))?;
        ensure!(error.contains("is forbidden"), "{verb} {path}: {error}");
    }

    // What the agent itself does goes through, so it was not refused for something else.
    for (object, change) in [
        ("Pod/own", annotation("sublet.dev/assigned")),
        ("Node/n1", annotation("sublet.dev/inventory")),
        ("Node/n1/status", cards()),
    ] {
        patch(&world, object, &change, &[]).with_context(|| format!("{object} {change}"))?;
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
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    let manifest = fs::read_to_string(root.join("deploy/kubernetes/50-scheduler.yaml"))?;
    let listens: Vec<&str> = manifest.split("--listen=").skip(1).collect();
    ensure!(
        listens.len() == 2 && listens.iter().all(|one| one.starts_with("127.0.0.1:39999")),
        "{listens:?}"
    );
    Ok(())
}
