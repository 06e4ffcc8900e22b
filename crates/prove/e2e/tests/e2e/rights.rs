//! The rights that `deploy/kubernetes/` gives are those that are used: no request of ours is
//! refused, and a rule that no request used has no business in the manifests.
//!
//! The requests are read from the API server's audit log, the rights from the API
//! server's own objects. Built-in roles that ours are bound to are Kubernetes' business.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use sublet_e2e::audit::{Request, forbidden, requests};
use sublet_e2e::{GpuNode, World, eventually, install_device_crd, yaml};
use sublet_testbed::Signal;

/// One thing that one account may do.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Right {
    user: String,
    verb: String,
    group: String,
    resource: String,
    /// Everywhere if empty.
    namespace: String,
    /// Any object if empty.
    name: String,
}

impl Right {
    fn is_used_by(&self, request: &Request) -> bool {
        request.is_allowed
            && request.user == self.user
            && (request.verb == self.verb || self.verb == "create" && request.is_creating_patch())
            && request.group == self.group
            && request.resource == self.resource
            && (self.namespace.is_empty() || request.namespace == self.namespace)
            && (self.name.is_empty() || request.name == self.name)
    }
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// A list of words, or one empty word where there is no list.
fn words(value: &Value) -> Vec<String> {
    let all: Vec<String> = value.as_array().into_iter().flatten().map(text).collect();
    if all.is_empty() {
        vec![String::new()]
    } else {
        all
    }
}

fn items(world: &World, kind: &str) -> Result<Vec<Value>> {
    let list = world.get(&[kind, "-A"])?;
    Ok(list["items"].as_array().cloned().unwrap_or_default())
}

/// Every right of our roles, one by one, as the API server has them.
fn rights(world: &World) -> Result<Vec<Right>> {
    let bindings = items(world, "clusterrolebindings,rolebindings")?;
    let mut rights = Vec::new();
    for role in items(world, "clusterroles,roles")? {
        let name = text(&role["metadata"]["name"]);
        if !name.starts_with("sublet-") {
            continue;
        }
        let same = |binding: &&Value| {
            binding["roleRef"]["kind"] == role["kind"] && binding["roleRef"]["name"] == name
        };
        let binding = bindings.iter().find(same);
        let subject =
            &binding.with_context(|| format!("{name} is bound to nobody"))?["subjects"][0];
        let account = (text(&subject["namespace"]), text(&subject["name"]));
        for rule in role["rules"].as_array().into_iter().flatten() {
            for group in words(&rule["apiGroups"]) {
                for resource in words(&rule["resources"]) {
                    for verb in words(&rule["verbs"]) {
                        for name in words(&rule["resourceNames"]) {
                            rights.push(Right {
                                user: format!("system:serviceaccount:{}:{}", account.0, account.1),
                                verb: verb.clone(),
                                group: group.clone(),
                                resource: resource.clone(),
                                namespace: text(&role["metadata"]["namespace"]),
                                name,
                            });
                        }
                    }
                }
            }
        }
    }
    Ok(rights)
}

/// Asks the extender to bind a pod that there is not: it looks whether the pod is only too
/// new for it.
fn bind_unknown_pod(world: &World, node: &str) -> Result<()> {
    let body = json!({
        "PodName": "nobody", "PodNamespace": "default", "Node": node,
        "PodUID": "2b6f9c1e-0000-4000-8000-000000000000",
    });
    let body = body.to_string();
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, world.port))?;
    let length = body.len();
    write!(
        stream,
        "POST /sublet/bind HTTP/1.0\r\nContent-Length: {length}\r\n\r\n{body}"
    )?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    ensure!(answer.contains("the pod is gone"), "{answer}");
    Ok(())
}

/// Uses every right once: a pod that is placed, one that is refused, one that is not there.
fn use_everything(world: &World, node: &str) -> Result<()> {
    let fits = yaml::Pod {
        name: "fits",
        limits: &["aliyun.com/gpu-mem: 100"],
        ..yaml::Pod::default()
    };
    let too_large = yaml::Pod {
        name: "too-large",
        limits: &["aliyun.com/gpu-mem: 20000"],
        ..yaml::Pod::default()
    };
    // Its certificate is renewed within half a minute.
    world.start_controller(&["--certificate-validity=30s"])?;
    world.cluster.apply(&(fits.yaml() + &too_large.yaml()))?;
    world.until_placed("fits")?;
    world.until_event("too-large", "20000 MiB asked of one GPU")?;
    // A stranger's Binding is looked up once the API server trusts the webhook.
    eventually(|| {
        let tried = world.try_binding_as("admin", "too-large", node);
        let refused = tried
            .err()
            .map(|error| error.to_string())
            .unwrap_or_default();
        ensure!(
            refused.contains("bindings.sublet.dev"),
            "not refused: {refused}"
        );
        Ok(())
    })?;
    bind_unknown_pod(world, node)?;
    // An extender of several; the Secret is repaired by whoever leads.
    world.start_scheduler_pods(1)?;
    let junk = "{\"data\": {\"certificates.json\": \"e30=\"}}";
    eventually(|| {
        let secret = ["secret", "sublet-extender-certificates"];
        let patch = ["--namespace=sublet-system", "--type=merge", "--patch", junk];
        world
            .cluster
            .kubectl(&[&["patch"], &secret[..], &patch[..]].concat())
    })?;
    world.cluster.apply(SHARE_POD)?;
    world.until_placed("shared")?;
    make_room(world)?;
    make_anew(world)
}

/// Has the controller delete a pod that lacks a slot, which its namespace gives only now.
fn make_anew(world: &World) -> Result<()> {
    let lacking = yaml::Pod {
        name: "lacking",
        limits: &["aliyun.com/gpu-mem: 20000"],
        ..yaml::Pod::default()
    };
    world.cluster.apply(&lacking.deployment(1))?;
    let slots = ["label", "namespace", "default", "sublet.dev/add-slots=true"];
    world.cluster.kubectl(&slots)?;
    let mut look = 0;
    eventually(|| {
        // Nothing else of the pod changes.
        look += 1;
        let whom = ["label", "pods", "--selector=app=lacking", "--overwrite"];
        let look = format!("look={look}");
        world.cluster.kubectl(&[&whom[..], &[&look]].concat())?;
        let pods = world.get(&["pods", "--selector=app=lacking"])?.to_string();
        ensure!(pods.contains("sublet.dev/gpu-slot"), "not made anew");
        Ok(())
    })
}

/// A pod is made of it, and its status is written.
const SHARE_POD: &str = "
apiVersion: kubeshare.nthu/v1
kind: SharePod
metadata:
  name: shared
  annotations: {kubeshare/gpu_request: \"0\", kubeshare/gpu_limit: \"1\", kubeshare/gpu_mem: \"1048576\"}
spec: {containers: [{name: c0, image: sublet.test/busybox:1}]}
";

/// Has the controller evict one of two pods. Each of them takes more than half of a card.
fn make_room(world: &World) -> Result<()> {
    let pod = |name, limits, spec| {
        let node = "spare";
        yaml::Pod {
            name,
            limits,
            node,
            spec,
            ..yaml::Pod::default()
        }
        .yaml()
    };
    let node = yaml::share_node("spare", 2, 32_552);
    let half = ["aliyun.com/gpu-mem: 9000"];
    let low = pod("low-0", &half, "") + &pod("low-1", &half, "");
    world.cluster.apply(&(node + &low))?;
    world.until_placed("low-0")?;
    world.until_placed("low-1")?;
    let class = "---\n{apiVersion: scheduling.k8s.io/v1, kind: PriorityClass, \
                 metadata: {name: high}, value: 9}\n";
    let more = ["aliyun.com/gpu-mem: 14000"];
    let high = pod("high", &more, "priorityClassName: high");
    world.cluster.apply(&(class.to_owned() + &high))?;
    world.until_placed("high").map(drop)
}

/// The rights that no request has used until now.
fn unused(world: &World, rights: &[Right]) -> Result<Vec<Right>> {
    let asked = requests(&world.cluster)?;
    let used = |right: &&Right| asked.iter().any(|request| right.is_used_by(request));
    Ok(rights
        .iter()
        .filter(|right| !used(right))
        .cloned()
        .collect())
}

/// Every right of these accounts is used, nothing of ours was refused, and a right too many
/// would be found.
fn check(world: &World, is_checked: impl Fn(&Right) -> bool) -> Result<()> {
    let mut all = rights(world)?;
    all.retain(is_checked);
    ensure!(all.len() >= 9, "these are not all rights: {all:#?}");
    eventually(|| {
        let unused = unused(world, &all)?;
        ensure!(unused.is_empty(), "rights that nobody used: {unused:#?}");
        Ok(())
    })?;
    assert_eq!(forbidden(&world.cluster)?, []);
    println!("{} rights, all used", all.len());

    let rule = ["create", "clusterrole", "sublet-too-much", "--verb=delete"];
    let cluster = &world.cluster;
    cluster.kubectl(&[&rule[..], &["--resource=pods"]].concat())?;
    let binding = ["create", "clusterrolebinding", "sublet-too-much"];
    let whose = ["--clusterrole=sublet-too-much"];
    let who = ["--serviceaccount=sublet-system:sublet-scheduler"];
    cluster.kubectl(&[&binding[..], &whose, &who].concat())?;
    let found = unused(world, &rights(world)?)?;
    let found = found
        .iter()
        .any(|right| right.verb == "delete" && right.resource == "pods");
    assert!(found, "a right too many is not found");
    Ok(())
}

#[test]
fn every_right_is_used_and_none_is_missing() -> Result<()> {
    if let Some(node) = GpuNode::start(&["--koordinator-device"])? {
        // The agent looks for the CRD when it starts.
        install_device_crd(&node.world)?;
        node.restart_agent()?;
        // Koordlet takes the object that the agent has made, and the next one reads it.
        let device = "device.scheduling.koordinator.sh";
        let name = node.name();
        eventually(|| node.world.get(&[device, &name]))?;
        let patch = r#"[{"op": "remove", "path": "/spec/devices/0"}]"#;
        let by = ["--type=json", "--field-manager=koordlet", "-p", patch];
        let cluster = &node.world.cluster;
        cluster.kubectl(&[&["patch", device, &name], &by[..]].concat())?;
        node.restart_agent()?;
        node.until_allocatable("aliyun.com/gpu-mem", 32_552)?;
        use_everything(&node.world, &node.name())?;
        node.until_running("fits")?;
        // Its processes outlive it, so its card is not clean.
        node.signal_kubelet(Signal::STOP)?;
        cluster.kubectl(&["delete", "pod", "fits", "--force", "--grace-period=0"])?;
        return check(&node.world, |_| true);
    }
    // Without a real node nobody is there to use the agent's rights.
    let Some(world) = World::start()? else {
        return Ok(());
    };
    world.cluster.apply(&yaml::share_node("n1", 2, 32_552))?;
    world.report_as_agent("n1", "size-and-order", &[16_276, 16_276])?;
    use_everything(&world, "n1")?;
    check(&world, |right| !right.user.ends_with(":sublet-agent"))
}
