//! A bare loop of the writes that the controller makes when it releases Jobs: the patch of each Job, as
//! many plans of the same size, as many events and figures of quotas, so many requests at a time. It
//! decides nothing but which Jobs fit, and leaves out what ours writes on pods.
//!
//! It writes by the controller's own account, because the API server looks at each write of that
//! account by policies, and at the administrator's by none.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Range;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use futures::channel::mpsc::unbounded;
use futures::{Stream, StreamExt, stream};
use k8s_openapi::api::batch::v1::Job;
use kube::ResourceExt;
use kube::core::{ApiResource, DynamicObject, GroupVersionKind};
use serde_json::json;
use sublet_api::gang_plan::{GangPlan, MOST_SLOTS, PlannedRole, plan_to_object};
use sublet_api::group::{JobFacts, job_kind, read_job};
use sublet_api::keys;
use sublet_client::{
    Act, Change, Client, ObjectAddress, Write, connect, event, perform_returning, reference,
    watch_any,
};
use sublet_model::{Allocation, NodeName, Time};
use sublet_queue::protocol::PlannedGroup;
use sublet_queue::{GroupId, Slot};
use sublet_testbed::deployed;

use super::account::Account;
use super::shape::WorkShape;
use super::work::{JobState, asked, state_of};
use crate::world::World;

/// The controller has so many writes under way at a time; so has the loop.
pub(super) const AT_ONCE: usize = 16;

/// Its name as field manager.
const LOOP: &str = "loop";

/// Longest time of a write.
const LIMIT: Duration = Duration::from_secs(30);

/// Writes of ours beside so many releases.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Beside {
    releases: u64,
    plans: u64,
    ended_plans: u64,
    events: u64,
    figures: u64,
}

/// A write, and whether its object is deleted again at once.
struct LoopWrite {
    write: Write,
    is_ended: bool,
}

impl Beside {
    /// The writes of a run of ours.
    pub(super) fn of(ours: &Account, releases: usize) -> Beside {
        let count = |kind: &str| ours.count(|one| one == kind);
        Beside {
            releases: releases as u64,
            plans: count("POST gangplans").max(1),
            ended_plans: count("DELETE gangplans"),
            // The Job controller posts its events, ours applies them.
            events: count("APPLY events"),
            figures: count("APPLY elasticquotas"),
        }
    }

    /// All writes of a release.
    fn writes(&self, number: u64, job: &JobFacts) -> Vec<Result<LoopWrite>> {
        let kept = |write| LoopWrite {
            write,
            is_ended: false,
        };
        let size = self.releases.div_ceil(self.plans.max(1));
        let mut all = Vec::new();
        for plan in due(self.plans, self.releases, number) {
            let made = creation(&format!("loop-{plan}"), job, size);
            all.push(made.map(|write| LoopWrite {
                write,
                is_ended: !due(self.ended_plans, self.plans, plan).is_empty(),
            }));
        }
        all.push(release(job).map(kept));
        let events = due(self.events, self.releases, number);
        all.extend(events.map(|event| Ok(kept(told_of(job, event)))));
        let figures = due(self.figures, self.releases, number);
        all.extend(figures.map(|figure| Ok(kept(figures_of(job, figure)))));
        all
    }
}

/// The numbers of the writes, of so many, that come with one of so many releases: evenly, and the first
/// as early as can be.
fn due(writes: u64, releases: u64, number: u64) -> Range<u64> {
    let until = |number: u64| (writes * number).div_ceil(releases.max(1));
    until(number)..until(number + 1)
}

/// Connects as the controller.
pub(super) async fn controllers_client(world: &World) -> Result<Client> {
    let user = deployed::account("sublet-controller").name;
    connect(Some(&world.cluster.kubeconfig(&user)?)).await
}

/// Releases these Jobs, and makes all other writes beside.
pub(super) async fn write_all(
    client: &Client,
    jobs: impl Stream<Item = JobFacts>,
    beside: Beside,
) -> Result<()> {
    let writes = jobs.enumerate();
    let writes =
        writes.flat_map(move |(number, job)| stream::iter(beside.writes(number as u64, &job)));
    let sent = writes.map(|write| async move { carry_out(client, write?).await });
    let mut sent = pin!(sent.buffer_unordered(AT_ONCE));
    while let Some(sent) = sent.next().await {
        sent?;
    }
    Ok(())
}

/// Releases Jobs as they come, for ever: in each cohort those that fit, the higher priority first.
pub(super) async fn follow(client: Client, mut rooms: Rooms, beside: Beside) -> Result<()> {
    let (send, jobs) = unbounded();
    let watched = client.clone();
    let choosing = async move {
        let kind = ApiResource::erase::<Job>(&());
        let mut changes = pin!(watch_any(&watched, &kind));
        while let Some(change) = changes.next().await {
            let Change::Set(job) = change.context("the loop's watch broke")? else {
                continue;
            };
            for job in rooms.see(&job)? {
                send.unbounded_send(job).ok().context("nobody writes")?;
            }
        }
        anyhow::Ok(())
    };
    tokio::try_join!(choosing, write_all(&client, jobs, beside)).map(drop)
}

/// The Jobs of a cohort that wait, each with its CPUs: by priority, and in the order in which they
/// came.
type Line = BTreeMap<(Reverse<i32>, usize), (u64, JobFacts)>;

/// Jobs that wait, and the CPUs that their cohorts have left.
#[derive(Debug)]
pub(super) struct Rooms {
    /// The cohort of each queue.
    cohorts: HashMap<String, usize>,
    free: Vec<u64>,
    waiting: Vec<Line>,
    /// CPUs of those that run, by UID.
    running: HashMap<String, u64>,
    seen: HashSet<String>,
}

impl Rooms {
    /// All CPUs are free.
    pub(super) fn new(shape: &WorkShape) -> Rooms {
        let cohorts = shape.cohorts();
        let number = |name: &str| cohorts.iter().position(|(cohort, _)| cohort == name);
        let queues = shape.queues().into_iter();
        Rooms {
            cohorts: queues
                .filter_map(|queue| Some((queue.name, number(&queue.cohort)?)))
                .collect(),
            free: cohorts.iter().map(|(_, cpus)| *cpus).collect(),
            waiting: cohorts.iter().map(|_| Line::new()).collect(),
            running: HashMap::new(),
            seen: HashSet::new(),
        }
    }

    /// Returns the Jobs that start now.
    fn see(&mut self, job: &DynamicObject) -> Result<Vec<JobFacts>> {
        let namespace = job.namespace().unwrap_or_default();
        let cohort = self.cohorts.get(&namespace).copied();
        let cohort = cohort.context("a Job of no queue")?;
        let uid = job.uid().unwrap_or_default();
        match state_of(job) {
            JobState::Over => self.free[cohort] += self.running.remove(&uid).unwrap_or(0),
            JobState::Waits if self.seen.insert(uid.clone()) => {
                let (priority, cpus) = asked(job)?;
                let kind = job_kind("batch/v1", "Job").context("no kind of Job")?;
                let facts = read_job(kind, &serde_json::to_value(job)?)?;
                let order = (Reverse(priority), self.seen.len());
                self.waiting[cohort].insert(order, (cpus, facts));
            }
            JobState::Waits | JobState::Runs => {}
        }
        Ok(self.start(cohort))
    }

    fn start(&mut self, cohort: usize) -> Vec<JobFacts> {
        let (free, running) = (&mut self.free[cohort], &mut self.running);
        let starting = self.waiting[cohort].extract_if(.., |_, (cpus, job)| {
            let fits = *cpus <= *free;
            if fits {
                *free -= *cpus;
                running.insert(job.uid.clone(), *cpus);
            }
            fits
        });
        starting.map(|(_, (_, job))| job).collect()
    }
}

async fn carry_out(client: &Client, one: LoopWrite) -> Result<()> {
    let send = |write: Write| async move {
        let answer = perform_returning(client, &write, LOOP, LIMIT).await;
        answer.map_err(|error| anyhow!("a write of the loop: {error:?}"))
    };
    let to = one.write.to.clone();
    let made = send(one.write).await?;
    if one.is_ended {
        let uid = made["metadata"]["uid"]
            .as_str()
            .context("no UID")?
            .to_owned();
        let act = Act::Delete { uid, version: None };
        send(Write { to, act }).await?;
    }
    Ok(())
}

/// A plan of so many groups; its content is that of one Job, because nobody reads it.
fn creation(name: &str, job: &JobFacts, size: u64) -> Result<Write> {
    let node = NodeName::new("node-000")?;
    let role: Arc<str> = "worker".into();
    let template = job.shape.roles.first().map(|role| role.template.clone());
    let planned = PlannedRole::new(&role, &template.unwrap_or_default());
    let groups = (0..size.min(MOST_SLOTS as u64)).map(|at| PlannedGroup {
        id: GroupId::new(format!("{}-{at}", job.job)),
        quota: "koordinator-default-quota".into(),
        roles: vec![planned.clone()],
        slots: vec![Slot {
            role: Arc::clone(&role),
            index: 0,
            node: node.clone(),
            allocation: Allocation { grants: Vec::new() },
            pod: None,
        }],
        victims: Vec::new(),
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
    let mut write = event(LOOP, &about, "Normal", "Admitted", text, now);
    write.to.name = format!("{}.loop-{turn}", name.name);
    write
}

/// The figures of the quota of a Job's queue, each time other ones.
fn figures_of(job: &JobFacts, figure: u64) -> Write {
    let kind = GroupVersionKind::gvk("scheduling.sigs.k8s.io", "v1alpha1", "ElasticQuota");
    let amounts = json!({ "cpu": figure.to_string() });
    Write {
        to: ObjectAddress {
            kind: ApiResource::from_gvk_with_plural(&kind, "elasticquotas"),
            namespace: Some(job.job.namespace.clone()),
            name: job.job.namespace.clone(),
        },
        act: Act::Apply(json!({
            "metadata": { "annotations": {
                keys::QUOTA_ENTITLEMENT: amounts.to_string(), keys::QUOTA_REQUEST: amounts.to_string(),
            }},
            "status": { "used": amounts },
        })),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queue::work;

    const SHAPE: &str = "
- {className: c, count: 1, queuesSets: [{className: q, count: 2, nominalQuota: 2, borrowingLimit: 2,
    reclaimWithinCohort: Any, withinClusterQueue: LowerPriority, workloadsSets: [{count: 1,
    creationIntervalMs: 1, workloads: [{className: w, runtimeMs: 1, priority: 1, request: 1}]}]}]}
";

    fn job(name: &str, priority: i32, request: u64, is_over: bool) -> DynamicObject {
        let kind = work::kind_of(priority, request);
        let mut job = work::job("q-0-0-c-0", name, &kind);
        job["metadata"]["uid"] = name.into();
        job["metadata"]["namespace"] = "q-0-0-c-0".into();
        if is_over {
            job["spec"]["suspend"] = false.into();
            job["status"] = json!({ "conditions": [{ "type": "Complete", "status": "True" }] });
        }
        serde_json::from_value(job).unwrap()
    }

    #[test]
    fn jobs_start_while_their_cohort_has_room_and_the_higher_priority_first() {
        let mut rooms = Rooms::new(&WorkShape::parse(SHAPE, 1).unwrap());
        let mut see = |name: &str, priority, request, is_over| {
            let starting = rooms.see(&job(name, priority, request, is_over)).unwrap();
            starting
                .into_iter()
                .map(|job| job.job.name)
                .collect::<Vec<_>>()
        };
        assert_eq!(see("a", 1, 3, false), ["a"]);
        assert_eq!(see("b", 1, 2, false), [""; 0]);
        assert_eq!(see("c", 2, 4, false), [""; 0]);
        assert_eq!(see("d", 1, 1, false), ["d"], "it fits beside");
        assert_eq!(see("d", 1, 1, false), [""; 0], "once");
        assert_eq!(see("d", 1, 1, true), [""; 0]);
        assert_eq!(see("a", 1, 3, true), ["c"]);
        assert_eq!(see("a", 1, 3, true), [""; 0], "its room came free once");
        assert_eq!(see("c", 2, 4, true), ["b"]);
    }

    #[test]
    fn writes_come_evenly_and_the_plan_first() {
        let beside = Beside {
            releases: 10,
            plans: 2,
            ended_plans: 1,
            events: 5,
            figures: 0,
        };
        let numbers = |writes| (0..10).map(move |at| due(writes, 10, at));
        let counts = |writes| numbers(writes).map(Iterator::count).collect::<Vec<_>>();
        assert_eq!(counts(2), [1, 0, 0, 0, 0, 1, 0, 0, 0, 0]);
        assert!(numbers(25).flatten().eq(0..25));
        let kind = job_kind("batch/v1", "Job").unwrap();
        let one = serde_json::to_value(job("a", 1, 1, false)).unwrap();
        let writes = beside.writes(0, &read_job(kind, &one).unwrap());
        let writes = writes.into_iter().map(Result::unwrap);
        let writes = writes.map(|one| (one.write.to.kind.plural, one.is_ended));
        let wanted = [("gangplans", true), ("jobs", false), ("events", false)];
        assert_eq!(
            writes.collect::<Vec<_>>(),
            wanted.map(|(plural, is_ended)| (plural.to_owned(), is_ended))
        );
    }
}
