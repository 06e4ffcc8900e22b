//! Jobs of the real operators in our queue. Each operator comes when our controller already runs:
//! the kinds that it brings are noticed then. Here are those that cost little to build;
//! `long_operators` has the others.

pub(crate) mod jobs;

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use sublet_e2e::{Happened, Recorder, Seen, World, eventually};
use sublet_testbed::Operators;

use crate::queue::objects::namespace;
use crate::queue::{events, gang_of, nodes};
use jobs::{Ends, JOB_SETS, Kind, LEADER_WORKER_SETS, WITH_CARD, in_the_way, text};

fn operators(kind: &Kind) -> Option<Operators> {
    let found = Operators::from_env().filter(|found| found.has(kind.operator));
    if found.is_none() {
        let name = kind.operator.name;
        println!("skipped: {name} is not in SUBLET_OPERATORS; run `cargo xtask test --all`");
    }
    found
}

/// The names of pods that got a node, by the job that their names begin with.
pub(crate) fn bound(seen: &Seen) -> BTreeMap<String, Vec<String>> {
    let mut bound: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (pod, _) in seen.log.iter().filter(|(_, what)| *what == Happened::Bound) {
        bound.entry(gang_of(pod)).or_default().push(pod.clone());
    }
    bound
}

/// A world with four cards and one operator, and what happens in it.
struct Stage<'a> {
    world: &'a World,
    kind: &'a Kind,
    recorder: Recorder,
}

impl Stage<'_> {
    fn until_bound(&self, job: &str) -> Result<()> {
        let wanted = WITH_CARD + self.kind.others;
        eventually(|| {
            let bound = bound(&self.recorder.so_far());
            let pods = bound.get(job).map_or(&[][..], Vec::as_slice);
            let told = events(self.world, self.kind.namespace, job);
            ensure!(
                pods.len() == wanted,
                "{job} has {pods:?} on nodes: {told:?}"
            );
            Ok(())
        })
    }

    /// The pods of a job, by the beginning of their names.
    fn pods(&self, job: &str) -> Result<Vec<Value>> {
        let list = self.world.get(&["pods", "-n", self.kind.namespace])?;
        let pods = list["items"].as_array().context("no list")?;
        let name = |pod: &Value| gang_of(pod["metadata"]["name"].as_str().unwrap_or_default());
        Ok(pods
            .iter()
            .filter(|pod| name(pod) == job)
            .cloned()
            .collect())
    }

    fn until_condition(&self, job: &str, condition: &str) -> Result<()> {
        let Kind {
            plural, namespace, ..
        } = self.kind;
        eventually(|| {
            let job = self.world.get(&[plural, job, "-n", namespace])?;
            let conditions = job["status"]["conditions"].as_array();
            let mut conditions = conditions.into_iter().flatten();
            let is_so = |one: &Value| one["type"] == condition && one["status"] == "True";
            ensure!(conditions.any(is_so), "not {condition}: {}", job["status"]);
            Ok(())
        })
    }

    /// Says of all pods of a job that they have ended well.
    fn end(&self, job: &str) -> Result<()> {
        for pod in self.pods(job)? {
            let container = &pod["spec"]["containers"][0]["name"];
            let terminated = serde_json::json!({ "exitCode": 0, "reason": "Completed" });
            let status = serde_json::json!({
                "name": container, "image": "", "imageID": "", "ready": false, "restartCount": 0,
                "state": { "terminated": terminated },
            });
            let patch = serde_json::json!({
                "status": { "phase": "Succeeded", "containerStatuses": [status] },
            });
            let name = pod["metadata"]["name"].as_str().context("no name")?;
            let (namespace, patch) = (self.kind.namespace, patch.to_string());
            let args = [
                "patch",
                "pod",
                name,
                "-n",
                namespace,
                "--subresource=status",
            ];
            let patched = [&args[..], &["--type=merge", "-p", &patch]].concat();
            self.world.cluster.kubectl(&patched)?;
        }
        Ok(())
    }

    /// The job waits as a whole, once, and says why.
    fn waits(&self, job: &str) -> Result<()> {
        let Kind {
            namespace,
            word,
            suspends,
            ..
        } = self.kind;
        eventually(|| {
            let told = events(self.world, namespace, job)?;
            let is_told = told.iter().any(|(_, text)| text.contains("position 1"));
            ensure!(is_told, "{told:?}");
            Ok(())
        })?;
        let pods = self.pods(job)?;
        ensure!(
            !suspends || pods.is_empty(),
            "held back, and has pods: {pods:?}"
        );
        let placed = pods.iter().find(|pod| pod["spec"]["nodeName"].is_string());
        ensure!(placed.is_none(), "a part of {job} runs: {placed:?}");
        let (_, shown, notes) = self.world.sublet(&["queue", "--cluster", "-o", "json"])?;
        let shown: Value = serde_json::from_str(&shown).with_context(|| notes.clone())?;
        let groups = shown["groups"].as_array().context("no groups")?;
        let names = groups.iter().filter_map(|group| group["group"].as_str());
        let names: Vec<&str> = names.filter(|name| name.contains(job)).collect();
        let wanted = match *word {
            "leaderworkerset" => format!("{word}/{namespace}/{job}/0"),
            word => format!("{word}/{namespace}/{job}"),
        };
        ensure!(
            names == [wanted.as_str()],
            "it is {names:?} to the queue: {notes}"
        );
        Ok(())
    }
}

/// One job fits, runs as a whole and ends. Another waits until there is room, and then runs.
fn one_runs_and_one_waits(world: &World, kind: &Kind) -> Result<Seen> {
    let recorder = Recorder::start(&world.cluster.kubeconfig("admin")?)?;
    let stage = Stage {
        world,
        kind,
        recorder,
    };
    let create =
        |name: &str, suspended: bool| world.cluster.apply(&text(&(kind.job)(name, suspended)));
    create("one", false)?;
    stage.until_bound("one")?;
    match kind.ends {
        Ends::ByItself(condition) => {
            stage.until_condition("one", condition)?;
            world.cluster.apply(&in_the_way(kind.namespace))?;
            eventually(|| {
                let bound = bound(&stage.recorder.so_far());
                ensure!(
                    bound.get("way").is_some_and(|pods| pods.len() == 2),
                    "{bound:?}"
                );
                Ok(())
            })?;
        }
        Ends::WhenTold(_) | Ends::Never => {}
    }
    create("two", kind.suspends)?;
    stage.waits("two")?;
    let Kind {
        plural, namespace, ..
    } = kind;
    let delete = |what: &[&str]| {
        let args = [&["delete"], what, &["-n", namespace, "--wait=false"]].concat();
        world.cluster.kubectl(&args)
    };
    match kind.ends {
        Ends::ByItself(_) => drop(delete(&["pods", "way-0", "way-1"])?),
        Ends::WhenTold(condition) => {
            stage.end("one")?;
            stage.until_condition("one", condition)?;
        }
        Ends::Never => drop(delete(&[plural, "one"])?),
    }
    stage.until_bound("two")?;
    match kind.ends {
        Ends::ByItself(condition) => stage.until_condition("two", condition)?,
        Ends::WhenTold(condition) => {
            stage.end("two")?;
            stage.until_condition("two", condition)?;
        }
        Ends::Never => {}
    }
    eventually(|| {
        let plans = world.cluster.kubectl(&["get", "gangplans", "-o", "name"])?;
        ensure!(plans.is_empty(), "{plans}");
        Ok(())
    })?;
    let seen = stage.recorder.stop()?;
    delete(&[plural, "--all"])?;
    assert_eq!(seen.broken, [""; 0]);
    for (job, pods) in bound(&seen).iter().filter(|(job, _)| *job != "way") {
        assert_eq!(pods.len(), WITH_CARD + kind.others, "{job}: {pods:?}");
    }
    Ok(seen)
}

/// A world with four cards and the operator, and what they do with two jobs.
pub(crate) fn play(
    kind: &Kind,
    prepare: impl FnOnce(&World, &Operators) -> Result<()>,
) -> Result<Option<Seen>> {
    let Some(operators) = operators(kind) else {
        return Ok(None);
    };
    let Some(world) = World::lease_queueing()? else {
        return Ok(None);
    };
    nodes(&world, &[("n1", 4)])?;
    world.cluster.apply(&namespace(kind.namespace))?;
    prepare(&world, &operators)?;
    let sample = text(&(kind.job)("sample", true));
    operators.start(kind.operator, &world.cluster, &sample)?;
    one_runs_and_one_waits(&world, kind).map(Some)
}

#[test]
fn job_sets_start_as_a_whole() -> Result<()> {
    play(&JOB_SETS, |_, _| Ok(())).map(drop)
}

#[test]
fn each_group_of_a_leader_worker_set_starts_as_a_whole() -> Result<()> {
    play(&LEADER_WORKER_SETS, |_, _| Ok(())).map(drop)
}
