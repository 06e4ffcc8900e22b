//! Containers that the runtime itself names (NRI): equal pods of every shape start at once, whatever
//! is killed meanwhile, and no container starts that the agent was not asked about. Their devices are
//! read where nothing of ours can have an opinion: in what runc was given.

use std::collections::BTreeMap;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use sublet_e2e::{AGENT, GpuNode, audit, eventually, yaml};
use sublet_testbed::Signal;

use crate::real_node_isolation::stage;
use crate::real_node_twins::{
    CARD, MEMORY, PODS, bound_after, check, deployment, live, name, seats, until_accounts_are,
    until_all_run, until_bound,
};

/// Pods that stay while kubelet restarts. With four of them, and a machine that does other work, it
/// looked at their devices for 98 s.
const FEW: usize = 2;

/// Checks that all pods have their own shares.
fn check_all(node: &GpuNode, pods: &[Value]) -> Result<BTreeMap<u64, usize>> {
    let mut cards = BTreeMap::new();
    for pod in pods {
        *cards.entry(check(node, pod)?).or_insert(0) += 1;
    }
    Ok(cards)
}

fn container_of(pod: &Value) -> &Value {
    &pod["status"]["containerStatuses"][0]["containerID"]
}

/// Number of pods with a container that was not started anew.
fn stayed(before: &[Value], after: &[Value]) -> usize {
    let same = |one: &&Value| {
        let now = after.iter().find(|pod| name(pod) == name(one));
        now.is_some_and(|now| container_of(now) == container_of(one))
    };
    before.iter().filter(same).count()
}

fn scale(node: &GpuNode, replicas: usize) -> Result<String> {
    let replicas = format!("--replicas={replicas}");
    let scale = ["scale", "deployment", "equal", &replicas];
    node.world.cluster.kubectl(&scale)
}

/// Has only so many pods, and none that failed or that is on its way out.
fn shrink(node: &GpuNode, replicas: usize) -> Result<()> {
    let cluster = &node.world.cluster;
    scale(node, replicas)?;
    let failed = "--field-selector=status.phase=Failed";
    cluster.kubectl(&["delete", "pods", failed])?;
    eventually(|| {
        let pods = node.world.get(&["pods", "-l", "app=equal"])?;
        let there = pods["items"].as_array().map_or(0, Vec::len);
        ensure!(there == replicas, "{there} pods");
        Ok(())
    })
}

#[test]
fn equal_pods_start_at_once_while_everything_is_killed() -> Result<()> {
    let Some(node) = GpuNode::start(&["--isolation", "on"])? else {
        return Ok(());
    };
    node.until_allocatable(MEMORY, 2 * CARD)?;
    node.until_identity("nri")?;
    let (_, table, _) = node.world.sublet(&["inspect", "-o", "wide"])?;
    ensure!(table.contains(" nri "), "{table}");
    let stage = stage(&node)?;
    let cluster = &node.world.cluster;
    let started = Instant::now();
    cluster.apply(&deployment(&stage))?;
    let pods = until_all_run(&node)?;
    let took = started.elapsed().as_secs_f64();
    println!("twenty equal pods, by NRI: {took:.1} s");
    println!("seconds until they were bound: {:?}", bound_after(&pods)?);
    assert_eq!(check_all(&node, &pods)?, BTreeMap::from([(0, 10), (1, 10)]));
    // Nobody was ever in doubt.
    assert_eq!(seats(&node)?, 0);
    until_accounts_are(&node, &pods)?;

    // The agent dies while kubelet asks about new ones.
    let gone: Vec<&str> = pods.iter().step_by(2).map(name).collect();
    let args = ["delete", "pod", "--wait=false"];
    cluster.kubectl(&[&args[..], &gone].concat())?;
    cluster.kill(AGENT, Signal::STOP)?;
    until_bound(&node, &pods)?;
    node.restart_agent()?;
    node.until_allocatable(MEMORY, 2 * CARD)?;
    let now = until_all_run(&node)?;
    check_all(&node, &now)?;
    assert_eq!(stayed(&pods, &now), 10);

    // The runtime and kubelet restart, and the next pods find the agent again. Few stay meanwhile: when
    // a kubelet starts, it looks for minutes at cards that are full of devices (v1.36).
    shrink(&node, FEW)?;
    let few = live(&node)?;
    node.restart_containerd()?;
    node.restart_kubelet()?;
    node.until_allocatable(MEMORY, 2 * CARD)?;
    scale(&node, PODS)?;
    let last = until_all_run(&node)?;
    check_all(&node, &last)?;
    assert_eq!(stayed(&few, &last), FEW);
    until_accounts_are(&node, &last)?;
    assert_eq!(live(&node)?.len(), 20);
    assert_eq!(audit::forbidden(cluster)?, []);
    Ok(())
}

/// Kubelet never has the runtime create this container, because there is no such image.
fn what_a_pod_needs_is_there_before_the_runtime_asks(node: &GpuNode) -> Result<()> {
    let cluster = &node.world.cluster;
    cluster.apply(&obedient("early", 1).replace("busybox", "nothing"))?;
    let folder = eventually(|| {
        let pod = node.world.get(&["pod", "early"])?;
        let uid = pod["metadata"]["uid"].as_str().context("no UID")?;
        let folder = node.state_dir().join("containers").join(uid);
        ensure!(folder.join("main-0/record.json").is_file(), "not yet");
        Ok(folder)
    })?;
    let pod = node.world.get(&["pod", "early"])?;
    assert_eq!(pod["metadata"]["annotations"]["sublet.dev/assigned"], "[]");
    cluster.kubectl(&["delete", "pod", "early"])?;
    eventually(|| {
        ensure!(!folder.exists(), "its folder stays");
        Ok(())
    })
}

/// A pod whose containers end when they are told to, and start again.
fn obedient(name: &str, containers: usize) -> String {
    let containers = (0..containers).map(|number| {
        format!(
            "  - name: c{number}\n    image: sublet.test/busybox:1\n    imagePullPolicy: Never\n    \
             command: [sh, -c, \"trap 'exit 0' TERM; while true; do sleep 1; done\"]\n    \
             resources: {{limits: {{{MEMORY}: 100}}}}\n"
        )
    });
    let containers: String = containers.collect();
    format!(
        "---\napiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec:\n  \
         schedulerName: sublet-scheduler\n  terminationGracePeriodSeconds: 1\n  \
         automountServiceAccountToken: false\n  containers:\n{containers}"
    )
}

/// Waits until a container of the pod does not start, and returns why.
fn until_refused(node: &GpuNode, pod: &str) -> Result<String> {
    eventually(|| {
        let object = node.world.get(&["pod", pod])?;
        let waiting = &object["status"]["containerStatuses"][0]["state"]["waiting"];
        ensure!(
            waiting["reason"] == "CreateContainerError",
            "{}",
            object["status"]
        );
        Ok(waiting["message"].as_str().unwrap_or_default().to_owned())
    })
}

#[test]
fn a_container_that_the_agent_was_not_asked_about_does_not_start() -> Result<()> {
    let Some(node) = GpuNode::start(&[])? else {
        return Ok(());
    };
    node.until_allocatable(MEMORY, 2 * CARD)?;
    node.until_identity("nri")?;
    equal_containers_of_equal_pods_are_told_apart(&node)?;
    what_a_pod_needs_is_there_before_the_runtime_asks(&node)?;
    nothing_starts_while_the_agent_is_away(&node)?;
    nothing_starts_while_the_agent_does_not_answer(&node)?;
    // A pod that somebody else sent here has no card.
    let spec = format!("nodeName: {}", node.name());
    let stray = yaml::Pod {
        name: "stray",
        limits: &["aliyun.com/gpu-mem: 50"],
        spec: &spec,
        ..yaml::Pod::default()
    };
    node.world.cluster.apply(&stray.yaml())?;
    let why = until_refused(&node, "stray")?;
    ensure!(why.contains("default/stray has no card"), "{why}");
    assert_eq!(audit::forbidden(&node.world.cluster)?, []);
    Ok(())
}

/// Three equal pods with two equal containers each, which no other means can tell apart.
fn equal_containers_of_equal_pods_are_told_apart(node: &GpuNode) -> Result<()> {
    let pods = ["a", "b", "c"];
    let yaml: String = pods.map(|name| obedient(name, 2)).concat();
    node.world.cluster.apply(&yaml)?;
    for pod in pods {
        let object = node.until_running(pod)?;
        let text = &object["metadata"]["annotations"]["required-plugins.noderesource.dev"];
        assert_eq!(text, r#"["sublet"]"#);
        for container in ["c0", "c1"] {
            let inside = node.environment(pod, container)?;
            assert_eq!(inside["NVIDIA_VISIBLE_DEVICES"], node.uuids()[0]);
            assert_eq!(inside["ALIYUN_COM_GPU_MEM_CONTAINER"], "100");
        }
        eventually(|| {
            let now = node.world.get(&["pod", pod])?;
            let text = &now["metadata"]["annotations"]["sublet.dev/assigned"];
            ensure!(text == r#"["c0","c1"]"#, "{pod}: {text}");
            Ok(())
        })?;
    }
    Ok(())
}

/// The agent is away, and a container must start again.
fn nothing_starts_while_the_agent_is_away(node: &GpuNode) -> Result<()> {
    let cluster = &node.world.cluster;
    cluster.kill(AGENT, Signal::KILL)?;
    cluster.kubectl(&["exec", "a", "-c", "c0", "--", "sh", "-c", "kill 1"])?;
    let why = until_refused(node, "a")?;
    ensure!(
        why.contains("required plugin \"sublet\" not present"),
        "{why}"
    );
    cluster.start_again(AGENT)?;
    node.until_identity("nri")?;
    let object = node.until_running("a")?;
    let inside = node.environment("a", "c0")?;
    assert_eq!(inside["NVIDIA_VISIBLE_DEVICES"], node.uuids()[0]);
    assert_eq!(object["status"]["containerStatuses"][1]["restartCount"], 0);
    Ok(())
}

/// The agent is there and does not answer: the runtime gives up on it, and its own rule counts the
/// plugin as asked. The container does not start all the same.
fn nothing_starts_while_the_agent_does_not_answer(node: &GpuNode) -> Result<()> {
    let cluster = &node.world.cluster;
    cluster.kill(AGENT, Signal::STOP)?;
    cluster.kubectl(&["exec", "b", "-c", "c0", "--", "sh", "-c", "kill 1"])?;
    let why = eventually(|| {
        let object = node.world.get(&["pod", "b"])?;
        let status = &object["status"]["containerStatuses"][0];
        let last = ["state", "lastState"]
            .map(|key| status[key].to_string())
            .concat();
        ensure!(last.contains("sublet-agent-was-not-asked"), "{status}");
        Ok(last)
    })?;
    ensure!(why.contains("/proc"), "{why}");
    cluster.kill(AGENT, Signal::CONT)?;
    node.until_running("b")?;
    let inside = node.environment("b", "c0")?;
    assert_eq!(inside["NVIDIA_VISIBLE_DEVICES"], node.uuids()[0]);
    Ok(())
}
