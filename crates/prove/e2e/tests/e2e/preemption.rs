//! The controller's own preemption on a real control plane: the sum is free and no card is, so the
//! stock scheduler evicts no pod. The stock scheduler's own evictions are in `scheduling`.

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};
use sublet_e2e::{World, audit, eventually, yaml};
use sublet_testbed::deployed;

use crate::queue::objects::pod_group;

const ACCOUNT: &str = "system:serviceaccount:sublet-system:sublet-controller";
const NOTE: &str = "sublet.dev/preempting";

const CLASSES: &str = "
---
{apiVersion: scheduling.k8s.io/v1, kind: PriorityClass, metadata: {name: low}, value: 1}
---
{apiVersion: scheduling.k8s.io/v1, kind: PriorityClass, metadata: {name: polite}, value: 5,
 preemptionPolicy: Never}
---
{apiVersion: scheduling.k8s.io/v1, kind: PriorityClass, metadata: {name: high}, value: 9}
";

const BUDGET: &str = "
---
{apiVersion: policy/v1, kind: PodDisruptionBudget, metadata: {name: guard},
 spec: {minAvailable: 2, selector: {matchLabels: {app: low}}}}
";

/// A pod that no card has room for, on that node.
fn pod(name: &str, class: &str, node: &str) -> String {
    let spec = format!("priorityClassName: {class}");
    let pod = yaml::Pod {
        name,
        limits: &["aliyun.com/gpu-mem: 14000"],
        node,
        spec: &spec,
        ..yaml::Pod::default()
    };
    pod.yaml()
}

/// A node with two cards, and a Deployment that takes more than half of each.
fn filled(world: &World, node: &str, name: &str) -> Result<Vec<(String, String)>> {
    let low = yaml::Pod {
        name,
        limits: &["aliyun.com/gpu-mem: 9000"],
        node,
        spec: "priorityClassName: low",
        ..yaml::Pod::default()
    };
    let cluster = &world.cluster;
    cluster.apply(&yaml::share_node(node, 2, 32_552))?;
    cluster.apply(&low.deployment(2))?;
    eventually(|| {
        let placed = placed(world, name)?;
        ensure!(placed.len() == 2, "{placed:?}");
        Ok(placed)
    })
}

/// The pods of a Deployment that have a node and stay there, each with its UID.
fn placed(world: &World, app: &str) -> Result<Vec<(String, String)>> {
    let list = world.get(&["pods", "--selector", &format!("app={app}")])?;
    let items = list["items"].as_array().context("no list")?;
    let placed = items.iter().filter(|pod| {
        pod["spec"]["nodeName"].is_string() && pod["metadata"]["deletionTimestamp"].is_null()
    });
    let text = |pod: &Value, field| {
        let text = pod["metadata"][field].as_str();
        text.unwrap_or_default().to_owned()
    };
    Ok(placed
        .map(|pod| (text(pod, "name"), text(pod, "uid")))
        .collect())
}

/// The pods that were evicted, and the accounts that did it.
fn evicted(world: &World) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for request in audit::requests(&world.cluster)? {
        let is_eviction =
            (request.verb.as_str(), request.resource.as_str()) == ("create", "pods/eviction");
        let deletes = request.verb == "delete" && request.resource == "pods";
        if deletes && request.user.ends_with(":sublet-kube-scheduler") {
            bail!("the kube-scheduler has evicted somebody: {request:?}");
        }
        if is_eviction && request.code == 201 && !names.contains(&request.name) {
            ensure!(request.user == ACCOUNT, "{request:?}");
            names.push(request.name);
        }
    }
    Ok(names)
}

/// Notes the victim for a pod: as its administrator, or as another user.
fn note(world: &World, pod: &str, more: &[&str], victim: &(String, String)) -> Result<()> {
    let victims = json!([{"namespace": "default", "name": victim.0, "uid": victim.1}]);
    let seconds = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH)?;
    let text = json!({"node": "n1", "at": seconds.as_secs(), "victims": victims});
    let note = format!("{NOTE}={text}");
    let args = ["annotate", "pod", pod, &note];
    world.cluster.kubectl(&[&args[..], more].concat()).map(drop)
}

#[test]
fn room_on_one_card_is_made_where_only_the_sum_is_free() -> Result<()> {
    let Some(world) = World::start()? else {
        return Ok(());
    };
    let ports = world.start_controller(&[])?;
    world.cluster.apply(CLASSES)?;
    let first = filled(&world, "n1", "low")?;
    // Nobody may go for this one. It would take the room that is made for another.
    world.cluster.apply(&pod("polite", "polite", "n1"))?;
    world.until_refused("polite")?;

    obeys_a_budget(&world)?;
    goes_on_where_another_leader_stopped(&world, ports, &first[0])?;
    let second = chooses_itself(&world)?;
    // What was evicted is made anew and waits, as does the pod for which nobody may go.
    assert_eq!(evicted(&world)?, [first[0].0.clone(), second]);
    assert_eq!(placed(&world, "low")?, [first[1].clone()]);
    world.until_refused("polite").map(drop)
}

/// A member that has come through without the scheduling gate waits for the queue. Its scheduler
/// calls it unschedulable, as one for which others are evicted.
#[test]
fn nobody_is_evicted_for_a_member_that_waits_for_its_group() -> Result<()> {
    let Some(world) = World::lease_queueing()? else {
        return Ok(());
    };
    let cluster = &world.cluster;
    cluster.apply(CLASSES)?;
    let first = filled(&world, "n1", "low")?;
    cluster.apply(&pod_group("gang", 2, ""))?;
    let labels = "labels: {app: member, scheduling.x-k8s.io/pod-group: gang}";
    let member = yaml::Pod {
        name: "member",
        limits: &["aliyun.com/gpu-mem: 14000"],
        node: "n1",
        metadata: labels,
        spec: "priorityClassName: high",
    };
    cluster.apply(&member.yaml())?;
    world.until_refused("member")?;
    // One that came later has been looked at.
    let second = filled(&world, "n2", "base")?;
    cluster.apply(&pod("next", "high", "n2"))?;
    assert_eq!(world.until_placed("next")?.node, "n2");
    assert_eq!(placed(&world, "low")?, first);
    let left = placed(&world, "base")?;
    let gone = second.iter().filter(|pod| !left.contains(pod));
    assert_eq!(gone.count(), 1);
    Ok(())
}

fn obeys_a_budget(world: &World) -> Result<()> {
    let cluster = &world.cluster;
    cluster.apply(BUDGET)?;
    let counted = [
        "wait",
        "pdb/guard",
        "--for=jsonpath={.status.currentHealthy}=2",
    ];
    cluster.kubectl(&counted)?;
    cluster.apply(&pod("high", "high", "n1"))?;
    let fields = "involvedObject.name=high,reason=PreemptionBlocked";
    eventually(|| {
        let events = cluster.kubectl(&["get", "events", "--field-selector", fields])?;
        ensure!(
            events.contains("a PodDisruptionBudget forbids"),
            "events: {events}"
        );
        Ok(())
    })?;
    assert_eq!(evicted(world)?, [""; 0]);
    Ok(())
}

/// A note names the victim. Only the controller may write it, and the next leader evicts that pod,
/// and no other one that would do as well.
fn goes_on_where_another_leader_stopped(
    world: &World,
    ports: deployed::ControllerPorts,
    victim: &(String, String),
) -> Result<()> {
    let cluster = &world.cluster;
    cluster.stop(deployed::CONTROLLER);
    cluster.kubectl(&["delete", "pdb", "guard"])?;
    let forged = note(world, "high", &[], victim);
    let refusal = format!("{:#}", forged.expect_err("anybody may write it"));
    ensure!(refusal.contains("only Sublet writes"), "{refusal}");
    let as_controller = format!("--as={ACCOUNT}");
    note(world, "high", &[&as_controller], victim)?;
    assert_eq!(evicted(world)?, [""; 0]);

    cluster.start_again(deployed::CONTROLLER)?;
    deployed::until_controller_ready(cluster, deployed::CONTROLLER, ports)?;
    assert_eq!(world.until_placed("high")?.node, "n1");
    assert_eq!(evicted(world)?, std::slice::from_ref(&victim.0));
    let events = cluster.kubectl(&["get", "events", "--field-selector", "reason=Preempted"])?;
    ensure!(events.contains(&victim.0), "events: {events}");
    Ok(())
}

/// On another node one of two goes; returns which.
fn chooses_itself(world: &World) -> Result<String> {
    let before = filled(world, "n2", "base")?;
    world.cluster.apply(&pod("next", "high", "n2"))?;
    assert_eq!(world.until_placed("next")?.node, "n2");
    let after = placed(world, "base")?;
    let mut gone = before.iter().filter(|pod| !after.contains(pod));
    let (Some((name, uid)), None) = (gone.next(), gone.next()) else {
        bail!("one of {before:?} was to go; left: {after:?}");
    };
    let note = world.get(&["pod", "next"])?["metadata"]["annotations"][NOTE].clone();
    ensure!(
        note.as_str().is_some_and(|note| note.contains(uid)),
        "{note}"
    );
    Ok(name.clone())
}
