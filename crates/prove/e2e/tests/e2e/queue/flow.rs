//! Jobs that flow: one wave after the other, and while the controller that keeps the queue dies.

use super::*;

/// Plans let both kinds of Job go, those that are held back and those that are not; and the
/// controller that keeps the queue is killed every ten seconds. A successor leads within six.
#[test]
fn jobs_flow_while_the_controller_is_killed() -> Result<()> {
    const JOBS: usize = 200;
    const EVERY: Duration = Duration::from_secs(10);
    let Some(world) = World::lease_queueing()? else {
        return Ok(());
    };
    nodes(&world, &[("n1", 8), ("n2", 8)])?;
    world.cluster.apply(&namespace("flow"))?;
    world
        .cluster
        .apply(&elastic_quota("flow", "flow", 16, 16))?;
    let recorder = record(&world)?;
    let jobs: String = (0..JOBS)
        .map(|at| job(&format!("j{at}"), "flow", 1 + at % 4, at % 2 == 0))
        .collect();
    let ended = || -> Result<usize> {
        let list = world.get(&["jobs", "-n", "flow"])?;
        let jobs = list["items"].as_array().context("no list")?;
        Ok(jobs
            .iter()
            .filter(|job| job["status"]["completionTime"].is_string())
            .count())
    };
    world.cluster.apply(&jobs)?;
    let (began, mut kills) = (Instant::now(), Vec::new());
    loop {
        let ended = ended()?;
        if ended == JOBS {
            break;
        }
        let took = began.elapsed();
        ensure!(
            took < Duration::from_secs(240),
            "{ended} of {JOBS} jobs have ended after {took:?}; killed when so many had: {kills:?}"
        );
        if took >= EVERY * (kills.len() as u32 + 1) {
            world.cluster.kill(deployed::CONTROLLER, Signal::KILL)?;
            world.cluster.start_again(deployed::CONTROLLER)?;
            kills.push(ended);
        }
        std::thread::sleep(Duration::from_millis(300));
    }
    println!(
        "{JOBS} jobs in {:?}, killed when so many had ended: {kills:?}",
        began.elapsed()
    );
    ensure!(kills.len() >= 2, "no controller was killed: {kills:?}");
    eventually(|| {
        let plans = world.cluster.kubectl(&["get", "gangplans", "-o", "name"])?;
        ensure!(plans.is_empty(), "{plans}");
        Ok(())
    })?;
    let seen = recorder.stop()?;
    assert_eq!(seen.broken, [""; 0]);
    // No pod was made for nothing, and none went before its time.
    let mut bound: BTreeMap<String, usize> = BTreeMap::new();
    for (pod, what) in &seen.log {
        ensure!(
            *what != Happened::Goes || seen.log.contains(&(pod.clone(), Happened::Over)),
            "{pod} was evicted"
        );
        if *what == Happened::Bound {
            *bound.entry(gang_of(pod)).or_default() += 1;
        }
    }
    let wanted: BTreeMap<String, usize> =
        (0..JOBS).map(|at| (format!("j{at}"), 1 + at % 4)).collect();
    assert_eq!(bound, wanted);
    Ok(())
}

/// Pods end within moments of their start, so many of them before the queue has seen them run. One Job
/// is held back, one is not, and one is made smaller before it is let go.
#[test]
fn a_job_with_more_completions_than_pods_runs_to_its_end() -> Result<()> {
    let Some(world) = World::lease_queueing()? else {
        return Ok(());
    };
    nodes(&world, &[("n1", 2)])?;
    world.cluster.apply(&namespace("flow"))?;
    world.cluster.apply(&elastic_quota("flow", "flow", 2, 2))?;
    let waves = |name: &str, is_suspended: bool| {
        let job = job(name, "flow", 2, is_suspended);
        job.replace("completions: 2", "completions: 6")
    };
    let blocker = job("first", "flow", 2, true);
    let jobs = [
        blocker,
        waves("held", true),
        waves("free", false),
        waves("smaller", true),
    ];
    world.cluster.apply(&jobs.concat())?;
    let smaller = r#"{"spec": {"parallelism": 1}}"#;
    world
        .cluster
        .kubectl(&["patch", "job", "-n", "flow", "smaller", "-p", smaller])?;
    eventually(|| {
        for name in ["first", "held", "free", "smaller"] {
            let job = world.get(&["job", "-n", "flow", name])?;
            let told = events(&world, "flow", name)?;
            ensure!(
                job["status"]["completionTime"].is_string(),
                "{name}: {} {told:?}",
                job["status"]
            );
        }
        Ok(())
    })
}

/// The one process that leads is killed, and starts again: as long as a successor would take.
#[test]
fn a_killed_controller_costs_the_queue_six_seconds() -> Result<()> {
    const LIMIT: Duration = Duration::from_secs(6);
    let Some(world) = World::lease_queueing()? else {
        return Ok(());
    };
    nodes(&world, &[("n1", 8)])?;
    world.cluster.apply(&namespace("flow"))?;
    world.cluster.apply(&elastic_quota("flow", "flow", 8, 8))?;
    world.cluster.apply(&job("before", "flow", 1, true))?;
    until_released(&world, "before")?;
    let mut took = Vec::new();
    // One of three times, for the machine may be busy.
    for name in ["one", "two", "three"] {
        world.cluster.kill(deployed::CONTROLLER, Signal::KILL)?;
        let killed = Instant::now();
        world.cluster.start_again(deployed::CONTROLLER)?;
        world.cluster.apply(&job(name, "flow", 1, true))?;
        until_released(&world, name)?;
        took.push(killed.elapsed());
        if took.last() <= Some(&LIMIT) {
            return Ok(());
        }
    }
    anyhow::bail!("no group was let go for {took:?}")
}

/// Its Lease is renewed late, and it goes on with what it knows: a server that is slow is not asked
/// for all lists anew, which would make it slower.
#[test]
fn an_api_server_that_stands_still_makes_no_new_leader() -> Result<()> {
    let Some(world) = World::lease_queueing()? else {
        return Ok(());
    };
    nodes(&world, &[("n1", 8)])?;
    world.cluster.apply(&namespace("flow"))?;
    world.cluster.apply(&elastic_quota("flow", "flow", 8, 8))?;
    // The world may have been another test's before.
    let count = |words: &str| -> Result<usize> {
        let log = std::fs::read_to_string(world.cluster.log(deployed::CONTROLLER))?;
        Ok(log.matches(words).count())
    };
    let (late, kept) = ("the Lease is renewed late", "the queue is kept");
    world.cluster.apply(&job("before", "flow", 1, true))?;
    until_released(&world, "before")?;
    let before = (count(late)?, count(kept)?);
    world.cluster.kill(APISERVER, Signal::STOP)?;
    let told = eventually(|| {
        ensure!(count(late)? > before.0, "it is still renewed in time");
        Ok(())
    });
    world.cluster.kill(APISERVER, Signal::CONT)?;
    told?;
    world.cluster.apply(&job("after", "flow", 1, true))?;
    until_released(&world, "after")?;
    assert_eq!(count(kept)?, before.1);
    Ok(())
}

fn until_released(world: &World, name: &str) -> Result<()> {
    eventually(|| {
        let job = world.get(&["job", "-n", "flow", name])?;
        ensure!(job["spec"]["suspend"] == false, "{name} is held back");
        Ok(())
    })
}
