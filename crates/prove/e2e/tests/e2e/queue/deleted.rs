//! The queue loses something while jobs flow: its Lease, as `helm uninstall` and `install` do, its
//! plans, and a node.

use super::*;

/// Jobs of a namespace that have ended.
fn ended(world: &World) -> Result<usize> {
    let list = world.get(&["jobs", "-n", "flow"])?;
    let jobs = list["items"].as_array().context("no list")?;
    let ended = jobs
        .iter()
        .filter(|job| job["status"]["completionTime"].is_string());
    Ok(ended.count())
}

fn until_ended(world: &World, least: usize) -> Result<()> {
    eventually(|| {
        let ended = ended(world)?;
        ensure!(ended >= least, "{ended} jobs have ended, not {least}");
        Ok(())
    })
}

/// The controller goes, its Lease is deleted, and it comes again: all that time plans of it are there,
/// and the extender has seen them.
#[test]
fn jobs_go_on_after_the_lease_and_the_plans_are_deleted() -> Result<()> {
    const JOBS: usize = 24;
    let Some(world) = World::lease_queueing()? else {
        return Ok(());
    };
    let cluster = &world.cluster;
    nodes(&world, &[("n1", 8), ("n2", 8)])?;
    cluster.apply(&namespace("flow"))?;
    cluster.apply(&elastic_quota("flow", "flow", 16, 16))?;
    let recorder = record(&world)?;
    let lease = ["lease", "sublet-controller", "-n", "sublet-system"];
    // Another leadership, so that a Lease that is made anew has counted fewer.
    let holder = || -> Result<Value> { Ok(world.get(&lease)?["spec"]["holderIdentity"].clone()) };
    let first = eventually(holder)?;
    cluster.kill(deployed::CONTROLLER, Signal::KILL)?;
    cluster.start_again(deployed::CONTROLLER)?;
    eventually(|| {
        let next = holder()?;
        ensure!(next != first, "{next} still leads");
        Ok(())
    })?;
    let jobs: String = (0..JOBS)
        .map(|at| job(&format!("j{at}"), "flow", 1 + at % 4, at % 2 == 0))
        .collect();
    cluster.apply(&jobs)?;
    until_ended(&world, JOBS / 6)?;

    cluster.kill(deployed::CONTROLLER, Signal::KILL)?;
    cluster.kubectl(&[&["delete"], &lease[..]].concat())?;
    cluster.start_again(deployed::CONTROLLER)?;
    until_ended(&world, JOBS / 2)?;

    // Nothing is left but what the extender remembers.
    cluster.kill(deployed::CONTROLLER, Signal::KILL)?;
    cluster.kubectl(&[&["delete"], &lease[..]].concat())?;
    cluster.kubectl(&["delete", "gangplans", "--all"])?;
    cluster.start_again(deployed::CONTROLLER)?;
    eventually(|| {
        let ended = ended(&world)?;
        ensure!(ended == JOBS, "{ended} of {JOBS} jobs have ended");
        let plans = cluster.kubectl(&["get", "gangplans", "-o", "name"])?;
        ensure!(plans.is_empty(), "{plans}");
        Ok(())
    })?;
    let seen = recorder.stop()?;
    assert_eq!(seen.broken, [""; 0]);
    Ok(())
}

/// A plan out of the backup of another cluster has any epoch and is in nobody's hand.
#[test]
fn a_plan_of_another_cluster_is_in_nobodys_way_for_long() -> Result<()> {
    let Some(world) = World::lease_queueing()? else {
        return Ok(());
    };
    let cluster = &world.cluster;
    nodes(&world, &[("n1", 2)])?;
    cluster.apply(
        "---\napiVersion: sublet.dev/v1alpha1\nkind: GangPlan\nmetadata: {name: plan-strange}\n\
         spec: {epoch: 4000000000000, deadline: '2100-01-01T00:00:00Z', groups: []}\n",
    )?;
    cluster.apply(&pod_group("one", 2, ""))?;
    let pods: String = (0..2)
        .map(|at| Gang::new("one").pod(&format!("one-{at}")))
        .collect();
    cluster.apply(&pods)?;
    until_running(&world, &[("one", 2)])?;
    let plans = cluster.kubectl(&["get", "gangplans", "-o", "name"])?;
    ensure!(!plans.contains("strange"), "{plans}");
    Ok(())
}

/// A gang of three runs on two nodes, and one of them is deleted. Its pods come again, and wait for a
/// place beside those that run, before a gang that came later.
#[test]
fn a_gang_whose_node_is_deleted_is_mended() -> Result<()> {
    let Some(world) = World::lease_queueing()? else {
        return Ok(());
    };
    nodes(&world, &[("n1", 2), ("n2", 2)])?;
    world.cluster.apply(&pod_group("whole", 3, ""))?;
    world.cluster.apply(&Gang::new("whole").deployment(3))?;
    until_running(&world, &[("whole", 3)])?;
    let recorder = record(&world)?;
    world.cluster.apply(&pod_group("next", 3, ""))?;
    world.cluster.apply(&Gang::new("next").deployment(3))?;
    until_told(&world, "default", "next", "position 1")?;
    world
        .cluster
        .kubectl(&["delete", "node", "n2", "--wait=false"])?;
    // The pods of a node that is gone are deleted by the stock controllers, after a while.
    eventually(|| {
        let running = running(&world)?;
        let whole = running.get("whole").copied().unwrap_or_default();
        ensure!(whole == 2 && !running.contains_key("next"), "{running:?}");
        Ok(())
    })?;
    until_told(&world, "default", "whole", "it runs, and more of it wait")?;
    nodes(&world, &[("n3", 4)])?;
    until_running(&world, &[("whole", 3), ("next", 3)])?;
    let seen = recorder.stop()?;
    assert_eq!(seen.broken, [""; 0]);
    let gone = seen.log.iter().filter(|(_, what)| *what == Happened::Goes);
    let gone: BTreeSet<String> = gone.map(|(pod, _)| gang_of(pod)).collect();
    // Only those of the node that is gone.
    assert_eq!(gone, BTreeSet::from(["whole".to_owned()]));
    Ok(())
}
