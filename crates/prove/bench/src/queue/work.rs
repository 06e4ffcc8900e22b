//! Work in the form of suspended Jobs, for every queue the same: they come as the shape says, and each
//! ends when it has been released for as long as it runs. Nobody makes pods of them.

use std::collections::HashMap;
use std::pin::pin;
use std::str::FromStr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use futures::StreamExt;
use k8s_openapi::api::batch::v1::Job;
use kube::ResourceExt;
use kube::core::{ApiResource, DynamicObject};
use serde_json::{Value, json};
use sublet_api::keys;
use sublet_client::{Change, Client, watch_any};
use sublet_testbed::Progress;
use tokio::task::JoinSet;

use super::shape::{WorkKind, WorkShape};
use crate::objects::ready_node;
use crate::stats::ms;
use crate::world::{World, post};

/// If nothing happens for so long, something is wrong.
const STALL: Duration = Duration::from_secs(90);

/// Label of a Job with the time that it runs, in milliseconds.
const RUNS: &str = "sublet.test/runs-ms";

/// Label by which Kueue takes a Job into one of its queues. Sublet goes by the namespace.
const KUEUE_LABEL: &str = "kueue.x-k8s.io/queue-name";

/// Namespace of Jobs that are all alike.
pub(super) const NAMESPACE: &str = "work";

/// CPUs of a node.
const NODE_CPUS: u64 = 64;

/// Result of the work.
#[derive(Debug, Clone, Default)]
pub(super) struct Played {
    /// From the first Job that is made until the last has ended.
    pub(super) seconds: f64,
    /// Number of times that a Job was released, and held back again.
    pub(super) releases: u64,
    pub(super) held_back: u64,
    /// Milliseconds until each was released.
    pub(super) waits: Vec<f64>,
}

/// Nodes with twice the CPUs that the queues have together: quotas decide which Jobs wait, and not
/// which node has a hole of the right size.
pub(super) fn nodes(shape: &WorkShape) -> Result<Vec<Value>> {
    let cpus: u64 = shape.cohorts().iter().map(|(_, cpus)| cpus).sum();
    let amounts = json!({ "cpu": NODE_CPUS.to_string(), "memory": "256Gi", "pods": "500" });
    let count = (2 * cpus).div_ceil(NODE_CPUS);
    (0..count)
        .map(|at| ready_node(&format!("node-{at:03}"), &amounts, false))
        .collect()
}

/// Namespaces and priorities, each with the path that it is posted to.
pub(super) fn settings(shape: &WorkShape) -> Vec<(String, Value)> {
    let classes = shape.priorities().into_iter().map(class);
    let queues = shape.queues().into_iter();
    classes
        .chain(queues.map(|queue| namespace(&queue.name)))
        .collect()
}

/// The queues as Sublet has them: a queue is a quota of a namespace, a cohort the quota above it.
pub(super) fn quotas(shape: &WorkShape) -> Vec<(String, Value)> {
    let cohorts = shape.cohorts().into_iter().map(|(name, cpus)| {
        let labels = json!({ keys::QUOTA_IS_PARENT: "true" });
        quota("default", &name, &labels, (cpus, cpus))
    });
    let queues = shape.queues().into_iter().map(|queue| {
        let labels = json!({ keys::QUOTA_PARENT: queue.cohort });
        let amounts = (queue.nominal, queue.most);
        quota(&queue.name, &queue.name, &labels, amounts)
    });
    cohorts.chain(queues).collect()
}

/// The queues as Kueue has them, of one flavor. Nobody is evicted for anybody.
pub(super) fn kueue_queues(shape: &WorkShape) -> Vec<(String, Value)> {
    let api = "kueue.x-k8s.io/v1beta2";
    let path = |of: &str| format!("/apis/{api}/{of}");
    let flavor = json!({
        "apiVersion": api, "kind": "ResourceFlavor", "metadata": { "name": "cpus" },
    });
    let mut all = vec![(path("resourceflavors"), flavor)];
    for queue in shape.queues() {
        let cluster_queue = json!({
            "apiVersion": api, "kind": "ClusterQueue", "metadata": { "name": queue.name },
            "spec": {
                "cohortName": queue.cohort,
                "namespaceSelector": {},
                "preemption": { "reclaimWithinCohort": "Never", "withinClusterQueue": "Never" },
                "resourceGroups": [{
                    "coveredResources": ["cpu"],
                    "flavors": [{ "name": "cpus", "resources": [{
                        "name": "cpu", "nominalQuota": queue.nominal.to_string(),
                        "borrowingLimit": (queue.most - queue.nominal).to_string(),
                    }]}],
                }],
            },
        });
        all.push((path("clusterqueues"), cluster_queue));
        let local = json!({
            "apiVersion": api, "kind": "LocalQueue",
            "metadata": { "name": queue.name, "namespace": queue.name },
            "spec": { "clusterQueue": queue.name },
        });
        let path = path(&format!("namespaces/{}/localqueues", queue.name));
        all.push((path, local));
    }
    all
}

/// Posts all of them.
pub(super) fn post_all(world: &World, objects: &[(String, Value)]) -> Result<()> {
    for (path, object) in objects {
        let posted = world.executor.block_on(post(&world.client, path, object));
        posted.with_context(|| format!("make {}", object["metadata"]["name"]))?;
    }
    Ok(())
}

/// Makes so many suspended Jobs of one pod with one CPU, in a namespace of their own.
pub(super) fn make_alike(world: &mut World, jobs: usize) -> Result<()> {
    post_all(world, &[class(0), namespace(NAMESPACE)])?;
    let kind = kind_of(0, 1);
    let all = (0..jobs).map(|at| Ok(job(NAMESPACE, &format!("job-{at:05}"), &kind)));
    world.create("suspended Jobs", &jobs_of(NAMESPACE), all)
}

/// A workload of this priority with so many CPUs.
pub(super) fn kind_of(priority: i32, request: u64) -> WorkKind {
    WorkKind {
        class_name: "one".to_owned(),
        duration_ms: 0,
        priority,
        request,
    }
}

fn class(priority: i32) -> (String, Value) {
    let object = json!({
        "apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass",
        "metadata": { "name": class_of(priority) }, "value": priority,
    });
    let path = "/apis/scheduling.k8s.io/v1/priorityclasses";
    (path.to_owned(), object)
}

fn namespace(name: &str) -> (String, Value) {
    let object = json!({
        "apiVersion": "v1", "kind": "Namespace",
        "metadata": { "name": name, "labels": { keys::QUEUE_LABEL: "enabled" } },
    });
    ("/api/v1/namespaces".to_owned(), object)
}

fn quota(namespace: &str, name: &str, labels: &Value, (min, max): (u64, u64)) -> (String, Value) {
    let path = "/apis/scheduling.sigs.k8s.io/v1alpha1/namespaces";
    let object = json!({
        "apiVersion": "scheduling.sigs.k8s.io/v1alpha1", "kind": "ElasticQuota",
        "metadata": { "name": name, "namespace": namespace, "labels": labels },
        "spec": { "min": { "cpu": min.to_string() }, "max": { "cpu": max.to_string() } },
    });
    (format!("{path}/{namespace}/elasticquotas"), object)
}

/// Begin of the name of a PriorityClass.
const CLASS: &str = "priority-";

fn class_of(priority: i32) -> String {
    format!("{CLASS}{priority}")
}

/// Path of the Jobs of a namespace.
pub(super) fn jobs_of(namespace: &str) -> String {
    format!("/apis/batch/v1/namespaces/{namespace}/jobs")
}

/// A Job of a queue that is held back, of one pod.
pub(super) fn job(queue: &str, name: &str, kind: &WorkKind) -> Value {
    json!({
        "apiVersion": "batch/v1", "kind": "Job",
        "metadata": {
            "name": name,
            "labels": { RUNS: kind.duration_ms.to_string(), KUEUE_LABEL: queue },
        },
        "spec": {
            "suspend": true, "parallelism": 1, "completions": 1,
            "template": { "spec": {
                "schedulerName": "sublet-scheduler", "restartPolicy": "Never",
                "priorityClassName": class_of(kind.priority),
                "terminationGracePeriodSeconds": 0,
                "automountServiceAccountToken": false,
                "containers": [{
                    "name": "main", "image": "example.internal/work:1.0",
                    "resources": { "requests": { "cpu": kind.request.to_string() } },
                }],
            }},
        },
    })
}

/// State of a Job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum JobState {
    /// It is held back.
    Waits,
    /// It is released.
    Runs,
    /// It has ended.
    Over,
}

/// The state of a Job as it is seen.
pub(super) fn state_of(job: &DynamicObject) -> JobState {
    let conditions = job.data["status"]["conditions"].as_array();
    let is_complete = |one: &Value| one["type"] == "Complete" && one["status"] == "True";
    match conditions.is_some_and(|all| all.iter().any(is_complete)) {
        true => JobState::Over,
        false if job.data["spec"]["suspend"] == true => JobState::Waits,
        false => JobState::Runs,
    }
}

/// The priority of a Job of ours, and its CPUs.
pub(super) fn asked(job: &DynamicObject) -> Result<(i32, u64)> {
    let pod = &job.data["spec"]["template"]["spec"];
    let class = pod["priorityClassName"].as_str();
    let priority = class.and_then(|class| i32::from_str(class.strip_prefix(CLASS)?).ok());
    let cpus = pod["containers"][0]["resources"]["requests"]["cpu"].as_str();
    let cpus = cpus.and_then(|cpus| cpus.parse().ok());
    Ok((priority.context("no priority")?, cpus.context("no CPUs")?))
}

/// State of the Jobs.
#[derive(Debug, Default)]
struct Known {
    jobs: HashMap<String, KnownJob>,
    over: usize,
    played: Played,
}

#[derive(Debug)]
struct KnownJob {
    since: Instant,
    is_released: bool,
    is_over: bool,
}

/// Plays all of it.
pub(super) async fn play(
    client: &Client,
    shape: &WorkShape,
    progress: &mut Progress,
) -> Result<Played> {
    let total = shape.workloads();
    let kind = ApiResource::erase::<Job>(&());
    let mut changes = pin!(watch_any(client, &kind));
    let mut tasks: JoinSet<Result<()>> = JoinSet::new();
    let mut known = Known::default();
    let mut began = None;
    progress.restart();
    while known.over < total {
        let change = tokio::select! {
            change = changes.next() => change.context("the watch has ended")?,
            Some(done) = tasks.join_next() => {
                done.context("a task broke")??;
                continue;
            }
            () = tokio::time::sleep(STALL) => {
                bail!("nothing happens any more: {} of {total} Jobs have ended", known.over)
            }
        };
        match change.context("the watch broke")? {
            Change::ListEnds if began.is_none() => {
                began = Some(Instant::now());
                make(client, shape, &mut tasks);
            }
            Change::Set(job) => {
                if known.see(&job) {
                    tasks.spawn(end(client.clone(), job));
                }
            }
            Change::Gone(job) => bail!("the Job {} is gone", job.name_any()),
            Change::ListBegins | Change::ListEnds => {}
        }
        let (released, over) = (known.played.releases, known.over);
        progress.tick(|| format!("{released} released, {over} of {total} have ended"));
    }
    let seconds = began.map_or(0.0, |began| began.elapsed().as_secs_f64());
    Ok(Played {
        seconds,
        ..known.played
    })
}

impl Known {
    /// True: the Job is released now and was not before.
    fn see(&mut self, job: &DynamicObject) -> bool {
        let name = format!("{}/{}", job.namespace().unwrap_or_default(), job.name_any());
        let of = self.jobs.entry(name).or_insert_with(|| KnownJob {
            since: Instant::now(),
            is_released: false,
            is_over: false,
        });
        let state = state_of(job);
        if state == JobState::Over {
            self.over += usize::from(!std::mem::replace(&mut of.is_over, true));
            return false;
        }
        let is_released = state == JobState::Runs;
        let was = std::mem::replace(&mut of.is_released, is_released);
        self.played.held_back += u64::from(was && !is_released);
        if was || !is_released {
            return false;
        }
        self.played.releases += 1;
        self.played.waits.push(ms(of.since.elapsed()));
        true
    }
}

/// Makes everything, each set of each queue for itself.
fn make(client: &Client, shape: &WorkShape, tasks: &mut JoinSet<Result<()>>) {
    for queue in shape.queues() {
        for (number, set) in queue.sets.iter().enumerate() {
            let (client, set, queue) = (client.clone(), set.clone(), queue.name.clone());
            tasks.spawn(async move {
                for turn in 0..set.count {
                    for (at, kind) in set.workloads.iter().enumerate() {
                        tokio::time::sleep(Duration::from_millis(set.creation_interval_ms)).await;
                        let name = format!("{}-{number}-{turn}-{at}", kind.class_name);
                        let object = job(&queue, &name, kind);
                        let posted = post(&client, &jobs_of(&queue), &object).await;
                        posted.with_context(|| format!("make the Job {name}"))?;
                    }
                }
                Ok(())
            });
        }
    }
}

/// Ends a Job when it has run, as the Job controller would.
async fn end(client: Client, job: DynamicObject) -> Result<()> {
    let runs = job.labels().get(RUNS).and_then(|text| text.parse().ok());
    tokio::time::sleep(Duration::from_millis(runs.context("how long it runs")?)).await;
    let now = jiff::Timestamp::from_second(jiff::Timestamp::now().as_second())?.to_string();
    let condition = |kind: &str| {
        json!({ "type": kind, "status": "True", "reason": "CompletionsReached", "message": "",
            "lastProbeTime": now, "lastTransitionTime": now })
    };
    let patch = json!({ "status": {
        "startTime": now, "completionTime": now, "succeeded": 1,
        "conditions": [condition("SuccessCriteriaMet"), condition("Complete")],
    }});
    let namespace = job.namespace().unwrap_or_default();
    let path = format!("{}/{}/status", jobs_of(&namespace), job.name_any());
    let request = http::Request::patch(path)
        .header("content-type", "application/merge-patch+json")
        .body(serde_json::to_vec(&patch)?)?;
    let patched = client.request_text(request).await;
    patched
        .with_context(|| format!("end the Job {}", job.name_any()))
        .map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_says_what_it_asks_for() {
        let mut object = job("q", "a", &kind_of(-5, 20));
        let read = |object: &Value| asked(&serde_json::from_value(object.clone()).unwrap());
        assert_eq!(read(&object).unwrap(), (-5, 20));
        assert_eq!(object["metadata"]["labels"][KUEUE_LABEL], "q");
        object["spec"]["template"]["spec"]["priorityClassName"] = "other".into();
        read(&object).unwrap_err();
    }

    #[test]
    fn a_job_is_released_once_and_over_once() {
        let mut known = Known::default();
        let mut see = |suspend: bool, complete: &str| {
            let object = json!({
                "apiVersion": "batch/v1", "kind": "Job",
                "metadata": { "name": "a", "namespace": "n" },
                "spec": { "suspend": suspend },
                "status": { "conditions": [{ "type": "Complete", "status": complete }] },
            });
            let is_new = known.see(&serde_json::from_value(object).unwrap());
            let Played {
                releases,
                held_back,
                ..
            } = known.played;
            (is_new, releases, held_back, known.over)
        };
        assert_eq!(see(true, "False"), (false, 0, 0, 0));
        assert_eq!(see(false, "False"), (true, 1, 0, 0));
        assert_eq!(see(false, "False"), (false, 1, 0, 0));
        assert_eq!(see(true, "False"), (false, 1, 1, 0));
        assert_eq!(see(false, "False"), (true, 2, 1, 0));
        assert_eq!(see(false, "True"), (false, 2, 1, 1));
        assert_eq!(see(false, "True"), (false, 2, 1, 1));
    }
}
