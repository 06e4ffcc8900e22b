//! Kubernetes' own gangs: PodGroups of `scheduling.k8s.io`, in a cluster that has its feature gates
//! on, with a kube-scheduler that places pod by pod and with one that has its own cycle for gangs.

use std::ops::Range;

use anyhow::{Context, Result, ensure};
use sublet_e2e::audit::requests;
use sublet_e2e::{World, eventually, yaml};
use sublet_testbed::{GANG_FEATURE_GATES, deployed};

use super::{events, gang_of, never_two_at_a_time, nodes, record, running, until_running};

/// A PodGroup of so many, made from a Workload as a controller would make it.
fn pod_group(name: &str, min: usize) -> String {
    let policy = format!("schedulingPolicy: {{gang: {{minCount: {min}}}}}");
    format!(
        "---\n{{apiVersion: scheduling.k8s.io/v1alpha2, kind: Workload, metadata: {{name: {name}}}, \
         spec: {{podGroupTemplates: [{{name: all, {policy}}}]}}}}\n\
         ---\n{{apiVersion: scheduling.k8s.io/v1alpha2, kind: PodGroup, metadata: {{name: {name}}}, \
         spec: {{podGroupTemplateRef: {{workload: {{workloadName: {name}, \
         podGroupTemplateName: all}}}}, {policy}}}}}\n"
    )
}

/// Pods of a gang with these numbers.
fn pods(gang: &str, numbers: Range<usize>, limits: &str) -> String {
    let pod = |at: usize| {
        let pod = yaml::Pod {
            name: &format!("{gang}-{at}"),
            limits: &[limits],
            metadata: &format!("labels: {{gang: {gang}}}"),
            spec: &format!("schedulingGroup: {{podGroupName: {gang}}}"),
            ..yaml::Pod::default()
        };
        pod.yaml()
    };
    numbers.map(pod).collect()
}

const CARD: &str = "aliyun.com/gpu-mem: 1000";

/// Number of times the extender was asked which nodes suit a pod.
fn filtered(world: &World) -> Result<u64> {
    let page = world.page("/metrics")?;
    let line = page
        .lines()
        .find(|line| line.starts_with("sublet_extender_call_seconds_count{verb=\"filter\"}"));
    let number = line.and_then(|line| line.rsplit(' ').next());
    Ok(number.unwrap_or("0").parse()?)
}

/// Number of Bindings that were made for a gang; all of them by the extender.
fn bound_by_the_extender(world: &World, gang: &str) -> Result<usize> {
    let extender = deployed::account(deployed::EXTENDER).name;
    let all = requests(&world.cluster)?;
    let bindings = all.iter().filter(|request| {
        request.resource == "pods/binding" && request.code == 201 && gang_of(&request.name) == gang
    });
    let users: Vec<&str> = bindings.map(|request| &*request.user).collect();
    ensure!(users.iter().all(|user| *user == extender), "{users:?}");
    Ok(users.len())
}

/// Status that the scheduler's own cycle for gangs has given a PodGroup.
fn is_scheduled(world: &World, name: &str) -> Result<String> {
    let group = world.get(&["podgroups.scheduling.k8s.io", name])?;
    let conditions = group["status"]["conditions"].as_array();
    let mut conditions = conditions.into_iter().flatten();
    let condition = conditions.find(|one| one["type"] == "PodGroupScheduled");
    let status = condition.and_then(|one| one["status"].as_str());
    Ok(status.unwrap_or("unsaid").to_owned())
}

fn delete(world: &World, gang: &str) -> Result<()> {
    let label = format!("gang={gang}");
    let args = ["delete", "pods", "--now", "--selector", &label];
    world.cluster.kubectl(&args).map(drop)
}

/// The pods of a gang are held back, planned, let go and bound, all of them, by a scheduler that
/// knows of gangs and by one that does not; of two gangs that do not both fit one waits whole.
#[test]
fn a_gang_of_kubernetes_own_starts_whole_whatever_its_scheduler_knows() -> Result<()> {
    let Some(world) = World::start_with_gangs()? else {
        return Ok(());
    };
    nodes(&world, &[("n1", 8), ("n2", 4)])?;
    let recorder = record(&world)?;
    // One of them asks for no GPU, and queues because of its gang alone.
    let plain = pods("plain", 0..7, CARD) + &pods("plain", 7..8, "cpu: 1");
    world.cluster.apply(&(pod_group("plain", 8) + &plain))?;
    until_running(&world, &[("plain", 8)])?;
    let server = world.get(&["pod", "plain-7"])?;
    ensure!(
        server["metadata"]["annotations"]["sublet.dev/slot"].is_string(),
        "{server}"
    );
    println!(
        "pod by pod: the extender was asked {} times for 8 pods",
        filtered(&world)?
    );
    assert_eq!(is_scheduled(&world, "plain")?, "unsaid");
    delete(&world, "plain")?;

    world.restart_kube_scheduler(&[GANG_FEATURE_GATES])?;
    let before = filtered(&world)?;
    world
        .cluster
        .apply(&(pod_group("one", 8) + &pod_group("two", 8)))?;
    world
        .cluster
        .apply(&(pods("one", 0..8, CARD) + &pods("two", 0..8, CARD)))?;
    let first = eventually(|| {
        let running = running(&world)?;
        let full = running.iter().find(|(_, count)| **count == 8);
        full.map(|(gang, _)| gang.clone())
            .with_context(|| format!("{running:?}"))
    })?;
    let other = if first == "one" { "two" } else { "one" };
    println!(
        "gang by gang: it was asked {} times for 8 pods",
        filtered(&world)? - before
    );
    eventually(|| {
        let events = events(&world, "default", other)?;
        ensure!(
            events.iter().any(|(_, text)| text.contains("position 1")),
            "{events:?}"
        );
        // The scheduler's own cycle has seen the gang whole.
        assert_eq!(is_scheduled(&world, &first)?, "True");
        Ok(())
    })?;
    until_running(&world, &[(&first, 8)])?;
    delete(&world, &first)?;
    until_running(&world, &[(other, 8)])?;
    for gang in ["plain", "one", "two"] {
        assert_eq!(bound_by_the_extender(&world, gang)?, 8, "{gang}");
    }
    let seen = recorder.stop()?;
    assert_eq!(seen.broken, [""; 0]);
    never_two_at_a_time(&seen, ["one", "two"])
}
