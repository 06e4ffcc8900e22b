//! Suspended Jobs with the stock Job controller: how fast they are released, beside a bare loop of
//! the same writes.

use std::pin::pin;
use std::sync::Arc;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use futures::StreamExt;
use k8s_openapi::api::batch::v1::Job;
use kube::core::{ApiResource, GroupVersionKind};
use serde_json::json;
use sublet_api::gang_plan::{GangPlan, MOST_SLOTS, PlannedRole, plan_to_object};
use sublet_api::group::{JobFacts, job_kind, read_job};
use sublet_api::{keys, object};
use sublet_client::{
    Act, Change, Client, ObjectAddress, Write, event, perform, reference, watch_any,
};
use sublet_model::{Allocation, NodeName, Time};
use sublet_queue::protocol::PlannedGroup;
use sublet_queue::{GroupId, Slot};
use sublet_testbed::CONTROLLERS;
use sublet_testbed::deployed::{self, CONTROLLER};

use super::account::Account;
use super::api::{Stand, start_queue};
use super::shape::WorkKind;
use super::work;
use crate::objects::ready_node;
use crate::report::{Report, Verdict, short};
use crate::world::{NODES, World, post};

/// Namespace of the Jobs.
const NAMESPACE: &str = "work";

/// The controller has so many writes under way at a time; so has the loop.
const AT_ONCE: usize = 16;

/// If no Job is released for so long, something is wrong.
const STALL: Duration = Duration::from_secs(60);

/// Targets of ours (issue 19).
const OF_LOOP: f64 = 0.7;
const WRITES: f64 = 2.0;

/// One run.
#[derive(Debug)]
struct Found {
    /// From the first release to the last.
    seconds: f64,
    cost: Account,
}

impl Found {
    fn rate(&self, jobs: usize) -> f64 {
        jobs.saturating_sub(1) as f64 / self.seconds.max(1e-3)
    }
}

/// Measures and prints.
pub(super) fn measure(stand: &Stand<'_>, jobs: usize, report: &mut Report) -> Result<()> {
    report.say("## Suspended Jobs with the stock Job controller");
    report.say(&format!(
        "{jobs} suspended Jobs of one pod wait, and there is room for all of them. The stock \
         controller manager runs, and makes a pod of each that is released; no scheduler does. The \
         rate is from the first release to the last, as a watch sees them. The loop makes as many \
         plans of the same size, as many events, and the same patch of each Job, {AT_ONCE} requests \
         at a time, and decides nothing; it also leaves out what ours writes on the pods that \
         come. CPU time is for one Job, until the last is released."
    ));
    eprintln!("bench: {jobs} suspended Jobs, ours");
    let ours = ours(stand, jobs)?;
    eprintln!("bench: {jobs} suspended Jobs, the bare loop");
    let bare = bare(stand, jobs, &ours.cost)?;
    let head = [
        "",
        "releases/s",
        "API server, CPU ms",
        "controller, CPU ms",
        "etcd, CPU ms",
    ];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    let each = |seconds: f64| short(seconds * 1e3 / jobs as f64);
    for (what, found) in [
        ("a bare loop of the same writes", &bare),
        ("**ours**", &ours),
    ] {
        let Account {
            apiserver,
            controller,
            etcd,
            ..
        } = found.cost;
        let own = if what.starts_with('a') {
            "–".to_owned()
        } else {
            each(controller)
        };
        rows.push(vec![
            what.to_owned(),
            short(found.rate(jobs)),
            each(apiserver),
            own,
            each(etcd),
        ]);
    }
    report.table(&rows);
    let steps = |kind: &str| kind.ends_with(" gangplans") || kind == "PATCH jobs";
    let steps = ours.cost.count(steps) as f64 / jobs as f64;
    report.verdicts(&[
        Verdict::at_least_times(
            "releases/s, ours / the loop",
            ours.rate(jobs) / bare.rate(jobs),
            OF_LOOP,
        ),
        Verdict::at_most("writes before a release", steps, WRITES, "for each Job"),
    ]);
    report.say(&format!(
        "All writes at the API server for one Job in that time, the Job controller's own among them: {}.",
        ours.cost.listed(jobs as f64)
    ));
    Ok(())
}

/// A cluster with these Jobs, and with what ours needs.
fn waiting(stand: &Stand<'_>, jobs: usize) -> Result<World> {
    let mut world = World::start(stand.binaries, stand.sublet, false)?;
    deployed::apply(&world.cluster, stand.repository)?;
    deployed::apply_queue(&world.cluster, stand.repository)?;
    let nodes = jobs.div_ceil(50);
    let amounts = json!({ "cpu": "64", "memory": "256Gi", "pods": "500" });
    let ready = (0..nodes).map(|at| ready_node(&format!("node-{at:03}"), &amounts, false));
    world.create("nodes", NODES, ready)?;
    world.wait_untainted(nodes)?;
    let class = json!({
        "apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass",
        "metadata": { "name": "priority-0" }, "value": 0,
    });
    let namespace = json!({
        "apiVersion": "v1", "kind": "Namespace",
        "metadata": { "name": NAMESPACE, "labels": { keys::QUEUE_LABEL: "enabled" } },
    });
    for (path, object) in [
        ("/apis/scheduling.k8s.io/v1/priorityclasses", class),
        ("/api/v1/namespaces", namespace),
    ] {
        world
            .executor
            .block_on(post(&world.client, path, &object))?;
    }
    let kind = WorkKind {
        class_name: "one".to_owned(),
        duration_ms: 0,
        priority: 0,
        request: 1,
    };
    let all = (0..jobs).map(|at| Ok(work::job(&format!("job-{at:05}"), &kind)));
    world.create("suspended Jobs", &work::jobs_of(NAMESPACE), all)?;
    Ok(world)
}

fn ours(stand: &Stand<'_>, jobs: usize) -> Result<Found> {
    let world = waiting(stand, jobs)?;
    let before = Account::now(&world, None)?;
    std::thread::scope(|scope| {
        let (watching, ready) = mpsc::channel();
        let world = &world;
        let watch = scope.spawn(move || world.executor.block_on(follow(world, jobs, &watching)));
        // An error means that the watch failed, which its thread reports below.
        if ready.recv().is_ok() {
            start_queue(world, stand, None)?;
        }
        let seconds = watch
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        let seconds = seconds
            .with_context(|| format!("the controller: {}", world.cluster.log_tail(CONTROLLER)))?;
        let cost = Account::now(world, Some(CONTROLLER))?.since(&before);
        Ok(Found { seconds, cost })
    })
}

fn bare(stand: &Stand<'_>, jobs: usize, as_ours: &Account) -> Result<Found> {
    let world = waiting(stand, jobs)?;
    let before = Account::now(&world, None)?;
    let plans = as_ours.count(|kind| kind == "POST gangplans");
    // The Job controller posts its events, ours applies them.
    let events = as_ours.count(|kind| kind == "APPLY events");
    let seconds = std::thread::scope(|scope| {
        let (watching, ready) = mpsc::channel();
        let world = &world;
        let watch = scope.spawn(move || world.executor.block_on(follow(world, jobs, &watching)));
        if ready.recv().is_ok() {
            world
                .executor
                .block_on(write_all(&world.client, plans.max(1), events))?;
        }
        watch
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })?;
    let cost = Account::now(&world, None)?.since(&before);
    ensure!(
        world.cluster.pid(CONTROLLERS).is_ok(),
        "the controller manager has ended"
    );
    Ok(Found { seconds, cost })
}

/// Follows Jobs until all are released; tells `watching` when the watch has begun. Returns the time
/// from the first release to the last.
async fn follow(world: &World, jobs: usize, watching: &mpsc::Sender<()>) -> Result<f64> {
    let kind = ApiResource::erase::<Job>(&());
    let mut changes = pin!(watch_any(&world.client, &kind));
    let mut released = std::collections::HashSet::new();
    let mut first = None;
    while released.len() < jobs {
        let change = tokio::time::timeout(STALL, changes.next()).await;
        let change = change.ok().flatten();
        let change =
            change.with_context(|| format!("{} of {jobs} Jobs are released", released.len()))?;
        match change.context("the watch broke")? {
            Change::ListEnds => {
                // The receiver waits for the first of these only.
                let _ = watching.send(());
            }
            Change::Set(job) if job.data["spec"]["suspend"] != true => {
                released.insert(job.metadata.name.unwrap_or_default());
                first.get_or_insert_with(Instant::now);
            }
            Change::Gone(job) => bail!("a Job is gone: {:?}", job.metadata.name),
            Change::Set(_) | Change::ListBegins => {}
        }
    }
    Ok(first.context("no Job")?.elapsed().as_secs_f64())
}

/// Every write that ours makes until the last Job is released.
async fn write_all(client: &Client, plans: u64, events: u64) -> Result<()> {
    let path = work::jobs_of(NAMESPACE);
    let list = client
        .request_text(http::Request::get(path).body(Vec::new())?)
        .await?;
    let list: serde_json::Value = serde_json::from_str(&list)?;
    let kind = job_kind("batch/v1", "Job").context("no kind of Job")?;
    let jobs = list["items"].as_array().context("no list")?.iter();
    let jobs: Vec<JobFacts> = jobs
        .map(|job| Ok(read_job(kind, job)?))
        .collect::<Result<_>>()?;
    let size = jobs.len().div_ceil(usize::try_from(plans)?).min(MOST_SLOTS);
    let mut writes = Vec::new();
    for (at, part) in jobs.chunks(size).enumerate() {
        writes.push(creation(&format!("loop-{at}"), part)?);
        for job in part {
            let number = writes.len() as u64;
            writes.push(release(job)?);
            let done = |count: u64| count * events / jobs.len() as u64;
            let told = done(number + 1) - done(number);
            writes.extend((0..told).map(|turn| told_of(job, turn)));
        }
    }
    let limit = Duration::from_secs(30);
    let mut sent = futures::stream::iter(writes)
        .map(|write| async move { perform(client, &write, "loop", limit).await })
        .buffer_unordered(AT_ONCE);
    while let Some(sent) = sent.next().await {
        sent.map_err(|error| anyhow::anyhow!("a write of the loop: {error:?}"))?;
    }
    Ok(())
}

fn creation(name: &str, jobs: &[JobFacts]) -> Result<Write> {
    let node = NodeName::new("node-000")?;
    let role: Arc<str> = "worker".into();
    let groups = jobs.iter().map(|job| {
        let template = job.shape.roles.first().map(|role| role.template.clone());
        PlannedGroup {
            id: GroupId::new(job.job.to_string()),
            quota: "koordinator-default-quota".into(),
            roles: vec![PlannedRole::new(
                &role,
                &template.unwrap_or_else(object::Pod::default),
            )],
            slots: vec![Slot {
                role: Arc::clone(&role),
                index: 0,
                node: node.clone(),
                allocation: Allocation { grants: Vec::new() },
                pod: None,
            }],
            victims: Vec::new(),
        }
    });
    let now = u64::try_from(jiff::Timestamp::now().as_millisecond())?;
    let plan = GangPlan {
        name: name.into(),
        version: "".into(),
        epoch: 1,
        deadline: Time::from_ms(now).plus_ms(600_000),
        groups: groups.collect(),
    };
    let kind = GroupVersionKind::gvk("sublet.dev", "v1alpha1", "GangPlan");
    Ok(Write {
        to: ObjectAddress {
            kind: ApiResource::from_gvk_with_plural(&kind, "gangplans"),
            namespace: None,
            name: name.to_owned(),
        },
        act: Act::Create(plan_to_object(&plan)),
    })
}

fn release(job: &JobFacts) -> Result<Write> {
    Ok(Write {
        to: ObjectAddress::of::<Job>(Some(&job.job.namespace), &job.job.name),
        act: Act::JsonPatch(job.switch(false).context("a Job that cannot be released")?),
    })
}

fn told_of(job: &JobFacts, turn: u64) -> Write {
    let name = &job.job;
    let about = reference("batch/v1", "Job", &name.namespace, &name.name, &job.uid);
    let text = "1 pods have their places and may start";
    let now = jiff::Timestamp::now();
    let mut write = event("loop", &about, "Normal", "Admitted", text, now);
    write.to.name = format!("{}.loop-{turn}", name.name);
    write
}
