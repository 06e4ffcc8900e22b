//! Jobs that change while they run: more pods, fewer pods, a launcher that comes when its workers
//! run, and a kind that goes. The jobs' operators are played here, on the operators' own definitions.

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use sublet_e2e::{Happened, Lease, Recorder, World, eventually};
use sublet_testbed::{GoModule, KWOK, MPI_JOB_FILES, TRAINING_JOB_FILES, deployed};

use super::objects::{Gang, elastic_quota, job, namespace, pod_group};
use super::{events, nodes, record, running, until_running, until_told};

/// The cluster with a definition of an operator's, and a controller that knows of it.
fn world_with(module: GoModule, file: &str, crd: &str) -> Result<Option<Lease>> {
    let Some(world) = World::lease_queueing()? else {
        return Ok(None);
    };
    let known = ["get", "crd", crd, "--ignore-not-found", "-o", "name"];
    if world.cluster.kubectl(&known)?.is_empty() {
        define(&world, module, file, crd)?;
        // It would notice within half a minute.
        world.cluster.stop(deployed::CONTROLLER);
        world.cluster.start_again(deployed::CONTROLLER)?;
    }
    Ok(Some(world))
}

/// Applies a definition of an operator's.
fn define(world: &World, module: GoModule, file: &str, crd: &str) -> Result<()> {
    let file = module.folder()?.join(file).display().to_string();
    // It is too large for the annotation that a plain apply writes.
    let apply = ["apply", "--server-side", "--filename", &file];
    world.cluster.kubectl(&apply)?;
    world.cluster.until_defined(&["crd", crd])
}

/// The template of a pod with a card.
fn template() -> Value {
    json!({
        "spec": {
            "schedulerName": "sublet-scheduler",
            "terminationGracePeriodSeconds": 1,
            "containers": [{
                "name": "c", "image": "sublet.test/busybox:1",
                "resources": {"limits": {"aliyun.com/gpu-mem": "1000"}},
            }],
        },
    })
}

/// An operator's job, held back until there is room for it.
struct Operated<'a> {
    world: &'a World,
    /// Its kind as kubectl takes it.
    kind: &'a str,
    name: &'a str,
    namespace: &'a str,
}

impl Operated<'_> {
    fn get(&self) -> Result<Value> {
        self.world
            .get(&[self.kind, self.name, "-n", self.namespace])
    }

    fn patch(&self, patch: &Value, more: &[&str]) -> Result<()> {
        let patch = patch.to_string();
        let args = [
            "patch",
            self.kind,
            self.name,
            "-n",
            self.namespace,
            "--type=merge",
            "-p",
            &patch,
        ];
        let args = [&args[..], more].concat();
        self.world.cluster.kubectl(&args).map(drop)
    }

    fn until_released(&self) -> Result<()> {
        eventually(|| {
            let job = self.get()?;
            ensure!(job["spec"]["runPolicy"]["suspend"] == false, "{job}");
            Ok(())
        })
    }

    /// Makes an object that the job looks after, with these labels on its pods.
    fn make(&self, api: (&str, &str), name: &str, labels: &Value, spec: &Value) -> Result<()> {
        let (version, kind) = api;
        let job = self.get()?;
        let owner = json!({
            "apiVersion": job["apiVersion"], "kind": job["kind"], "name": self.name,
            "uid": job["metadata"]["uid"], "controller": true,
        });
        let object = json!({
            "apiVersion": version, "kind": kind, "spec": spec,
            "metadata": {
                "name": name, "namespace": self.namespace, "labels": labels,
                "ownerReferences": [owner],
            },
        });
        self.world
            .cluster
            .apply(&format!("---\n{object}\n"))
            .map(drop)
    }

    fn delete_pods(&self, names: &[&str]) -> Result<()> {
        let args = ["delete", "pods", "-n", self.namespace, "--now"];
        self.world
            .cluster
            .kubectl(&[&args[..], names].concat())
            .map(drop)
    }
}

/// Nobody with a name that begins like this was asked to go before `end`.
fn nobody_went(recorder: Recorder, name: &str) -> Result<Vec<(String, Happened)>> {
    let seen = recorder.stop()?;
    assert_eq!(seen.broken, [""; 0]);
    let went = seen.log.iter().filter(|(pod, what)| {
        let is_its = pod
            .rsplit('/')
            .next()
            .is_some_and(|pod| pod.starts_with(name));
        let over = seen.log.contains(&(pod.clone(), Happened::Over));
        *what == Happened::Goes && is_its && !over
    });
    let went: Vec<_> = went.collect();
    ensure!(went.is_empty(), "{went:?} of {:?}", seen.log);
    Ok(seen.log)
}

fn mpi_job() -> Value {
    json!({
        "apiVersion": "kubeflow.org/v2beta1", "kind": "MPIJob",
        "metadata": {"name": "pi", "namespace": "mpi"},
        "spec": {
            "launcherCreationPolicy": "WaitForWorkersReady",
            "runPolicy": {"suspend": true},
            "mpiReplicaSpecs": {
                "Launcher": {"replicas": 1, "template": template()},
                "Worker": {"replicas": 2, "template": template()},
            },
        },
    })
}

/// Labels that mpi-operator writes on the pods of a role.
fn mpi_labels(role: &str) -> Value {
    json!({
        "training.kubeflow.org/operator-name": "mpi-operator",
        "training.kubeflow.org/job-name": "pi", "training.kubeflow.org/job-role": role,
    })
}

/// The launcher of an MPIJob is made when all its workers run, as mpi-operator does it for
/// `WaitForWorkersReady`. Nobody waits for it, and nobody else gets its place.
#[test]
fn a_launcher_that_comes_after_its_workers_finds_its_place() -> Result<()> {
    let file = "manifests/base/kubeflow.org_mpijobs.yaml";
    let Some(world) = world_with(MPI_JOB_FILES, file, "mpijobs.kubeflow.org")? else {
        return Ok(());
    };
    nodes(&world, &[("n1", 3)])?;
    world.cluster.apply(&namespace("mpi"))?;
    let recorder = record(&world)?;
    world.cluster.apply(&format!("---\n{}\n", mpi_job()))?;
    let job = Operated {
        world: &world,
        kind: "mpijobs.kubeflow.org",
        name: "pi",
        namespace: "mpi",
    };
    job.until_released()?;
    let rival = Gang {
        namespace: "mpi",
        ..Gang::new("rival")
    };
    world
        .cluster
        .apply(&(pod_group("rival", 1, "mpi") + &rival.pod("rival-0")))?;
    until_told(&world, "mpi", "rival", "position 1")?;
    the_workers_run_and_the_launcher_s_place_is_written_down(&job)?;
    the_launcher_comes_and_ends(&job)?;
    let log = nobody_went(recorder, "pi-worker")?;
    the_launcher_was_bound_before_the_rival(&log)?;
    job.delete_pods(&["pi-worker-0", "pi-worker-1"])?;
    until_running(&world, &[("rival", 1)])
}

fn the_workers_run_and_the_launcher_s_place_is_written_down(job: &Operated<'_>) -> Result<()> {
    for at in 0..2 {
        let mut labels = mpi_labels("worker");
        labels["training.kubeflow.org/replica-index"] = at.to_string().into();
        let name = format!("pi-worker-{at}");
        job.make(("v1", "Pod"), &name, &labels, &template()["spec"])?;
    }
    until_running(job.world, &[("pi", 2)])?;
    // Its place stays written down.
    let plan = job.world.get(&["gangplans"])?;
    let slots = &plan["items"][0]["spec"]["groups"][0]["slots"];
    ensure!(
        slots.as_array().is_some_and(|slots| slots.len() == 3),
        "{plan}"
    );
    Ok(())
}

fn the_launcher_comes_and_ends(job: &Operated<'_>) -> Result<()> {
    let mut launcher = template();
    launcher["metadata"] = json!({ "labels": mpi_labels("launcher") });
    launcher["spec"]["restartPolicy"] = "Never".into();
    let spec = json!({ "template": launcher });
    job.make(("batch/v1", "Job"), "pi-launcher", &json!({}), &spec)?;
    eventually(|| {
        let launcher = job.world.get(&["job", "pi-launcher", "-n", "mpi"])?;
        ensure!(
            launcher["status"]["completionTime"].is_string(),
            "{launcher}"
        );
        Ok(())
    })?;
    let ended = json!({"status": {
        "conditions": [{"type": "Succeeded", "status": "True"}],
        "replicaStatuses": {"Launcher": {"succeeded": 1}},
    }});
    job.patch(&ended, &["--subresource=status"])
}

fn the_launcher_was_bound_before_the_rival(log: &[(String, Happened)]) -> Result<()> {
    let bound = |name: &str| {
        let is_it =
            |(pod, what): &(String, Happened)| pod.contains(name) && *what == Happened::Bound;
        log.iter().position(is_it)
    };
    let launched = bound("pi-launcher").with_context(|| format!("{log:?}"))?;
    ensure!(
        bound("rival").is_none_or(|rival| rival > launched),
        "{log:?}"
    );
    Ok(())
}

/// The kind of PyTorchJobs, and its definition in the operator's files.
const PYTORCH: &str = "pytorchjobs.kubeflow.org";
const PYTORCH_FILE: &str = "manifests/base/crds/kubeflow.org_pytorchjobs.yaml";

/// A role of a PyTorchJob.
fn pytorch_role(replicas: u32) -> Value {
    let mut template = template();
    template["spec"]["containers"][0]["name"] = "pytorch".into();
    json!({ "replicas": replicas, "template": template })
}

fn pytorch_job() -> Value {
    json!({
        "apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob",
        "metadata": {"name": "train", "namespace": "torch"},
        "spec": {
            "runPolicy": {"suspend": true},
            "pytorchReplicaSpecs": {"Master": pytorch_role(1), "Worker": pytorch_role(1)},
        },
    })
}

/// Makes a pod of the PyTorchJob, as its operator does.
fn make_pytorch_pod(job: &Operated<'_>, role: &str, at: u32) -> Result<()> {
    let labels = json!({
        "training.kubeflow.org/job-name": "train",
        "training.kubeflow.org/replica-type": role,
        "training.kubeflow.org/replica-index": at.to_string(),
    });
    let name = format!("train-{role}-{at}");
    let wanted = pytorch_role(1);
    job.make(("v1", "Pod"), &name, &labels, &wanted["template"]["spec"])
}

/// Changes the number of workers that the PyTorchJob asks for.
fn ask_workers(job: &Operated<'_>, count: u32) -> Result<()> {
    let specs = json!({ "Worker": {"replicas": count} });
    job.patch(&json!({"spec": {"pytorchReplicaSpecs": specs}}), &[])
}

/// A PyTorchJob gets more workers, one of them without a card yet; then more than its operator
/// makes; and then as few as before. Running workers stay, and nothing is kept for workers that are
/// not wanted any more.
#[test]
fn a_job_that_gets_more_workers_queues_for_them() -> Result<()> {
    let Some(world) = world_with(TRAINING_JOB_FILES, PYTORCH_FILE, PYTORCH)? else {
        return Ok(());
    };
    nodes(&world, &[("n1", 3)])?;
    world.cluster.apply(&namespace("torch"))?;
    let recorder = record(&world)?;
    world.cluster.apply(&format!("---\n{}\n", pytorch_job()))?;
    let job = Operated {
        world: &world,
        kind: PYTORCH,
        name: "train",
        namespace: "torch",
    };
    job.until_released()?;
    two_more_workers_come_and_one_waits_for_a_node(&job)?;
    a_place_is_kept_for_one_more_until_nobody_wants_it(&job)?;
    nobody_went(recorder, "train")?;
    job.delete_pods(&["train-worker-1", "train-worker-2"])?;
    let gang = Gang {
        namespace: "torch",
        ..Gang::new("next")
    };
    let all: String = (0..3).map(|at| gang.pod(&format!("next-{at}"))).collect();
    world
        .cluster
        .apply(&(pod_group("next", 3, "torch") + &all))?;
    until_running(&world, &[("next", 3), ("train", 2)])
}

fn two_more_workers_come_and_one_waits_for_a_node(job: &Operated<'_>) -> Result<()> {
    make_pytorch_pod(job, "master", 0)?;
    make_pytorch_pod(job, "worker", 0)?;
    until_running(job.world, &[("train", 2)])?;
    ask_workers(job, 3)?;
    make_pytorch_pod(job, "worker", 1)?;
    make_pytorch_pod(job, "worker", 2)?;
    until_running(job.world, &[("train", 3)])?;
    until_told(
        job.world,
        "torch",
        "train",
        "it runs, and more of it wait: there is a place for 0 of",
    )?;
    nodes(job.world, &[("n2", 2)])?;
    until_running(job.world, &[("train", 4)])
}

/// The one more never comes.
fn a_place_is_kept_for_one_more_until_nobody_wants_it(job: &Operated<'_>) -> Result<()> {
    ask_workers(job, 4)?;
    let get = ["get", "gangplans", "-o", "name"];
    let plans = || job.world.cluster.kubectl(&get);
    eventually(|| {
        ensure!(!plans()?.is_empty(), "nothing is promised");
        Ok(())
    })?;
    ask_workers(job, 1)?;
    eventually(|| {
        let left = plans()?;
        ensure!(left.is_empty(), "{left}");
        Ok(())
    })
}

/// A batch Job whose parallelism is raised beyond what its quota may ever have, and lowered again.
#[test]
fn a_job_that_grows_beyond_its_quota_keeps_what_runs() -> Result<()> {
    let Some(world) = World::lease_queueing()? else {
        return Ok(());
    };
    nodes(&world, &[("n1", 4)])?;
    world.cluster.apply(&namespace("grow"))?;
    world.cluster.apply(&elastic_quota("grow", "grow", 2, 3))?;
    // The played kubelet would end pods of Jobs at once.
    eventually(|| {
        let node = world.get(&["node", "n1"])?;
        ensure!(node["spec"]["taints"].is_null(), "{node}");
        Ok(())
    })?;
    world.cluster.stop(KWOK);
    let done = grow_and_shrink(&world);
    world.cluster.start_again(KWOK)?;
    done?;
    eventually(|| {
        let job = world.get(&["job", "grown", "-n", "grow"])?;
        ensure!(job["status"]["completionTime"].is_string(), "{job}");
        Ok(())
    })
}

fn grow_and_shrink(world: &World) -> Result<()> {
    let recorder = record(world)?;
    let parallelism = |count: u32| {
        let patch = json!({"spec": {"parallelism": count}}).to_string();
        let args = [
            "patch",
            "job",
            "grown",
            "-n",
            "grow",
            "--type=merge",
            "-p",
            &patch,
        ];
        world.cluster.kubectl(&args).map(drop)
    };
    let manifest = job("grown", "grow", 2, false);
    // So many pods as run at a time, however many there will be.
    world
        .cluster
        .apply(&manifest.replace("  completions: 2\n", ""))?;
    until_running(world, &[("grown", 2)])?;
    parallelism(8)?;
    until_told(
        world,
        "grow",
        "grown",
        "it runs, and more of it wait: it asks 1 of sublet.dev/gpu",
    )?;
    until_running(world, &[("grown", 3)])?;
    // Another team asks for all there is, and what the quota is promised stays.
    world.cluster.apply(&namespace("others"))?;
    world
        .cluster
        .apply(&elastic_quota("others", "others", 0, 4))?;
    let gang = Gang {
        namespace: "others",
        ..Gang::new("large")
    };
    let all: String = (0..3).map(|at| gang.pod(&format!("large-{at}"))).collect();
    world
        .cluster
        .apply(&(pod_group("large", 3, "others") + &all))?;
    until_told(world, "others", "large", "it asks 3 of sublet.dev/gpu")?;
    nobody_went(recorder, "grown")?;
    assert_eq!(running(world)?.get("grown"), Some(&3));

    parallelism(3)?;
    eventually(|| {
        let pods = world.get(&["pods", "-n", "grow"])?;
        let pods = pods["items"].as_array().context("no list")?;
        ensure!(pods.len() == 3, "{} pods", pods.len());
        Ok(())
    })?;
    until_running(world, &[("grown", 3)])
}

/// The definition of PyTorchJobs goes while one of them waits, and comes again. Other jobs go on all
/// the time, and so does a PyTorchJob that comes afterwards.
#[test]
fn jobs_flow_while_a_kind_goes_and_comes_again() -> Result<()> {
    let Some(world) = world_with(TRAINING_JOB_FILES, PYTORCH_FILE, PYTORCH)? else {
        return Ok(());
    };
    world.cluster.apply(&namespace("torch"))?;
    let submit = || world.cluster.apply(&format!("---\n{}\n", pytorch_job()));
    submit()?;
    // There is no node yet.
    until_told(&world, "torch", "train", "a place for 0 of")?;
    world.cluster.kubectl(&["delete", "crd", PYTORCH])?;
    nodes(&world, &[("n1", 3)])?;
    runs_to_its_end(&world, "without")?;
    define(&world, TRAINING_JOB_FILES, PYTORCH_FILE, PYTORCH)?;
    submit()?;
    let train = Operated {
        world: &world,
        kind: PYTORCH,
        name: "train",
        namespace: "torch",
    };
    train.until_released()?;
    runs_to_its_end(&world, "beside")
}

/// A Job of one pod that is held back is released, and ends.
fn runs_to_its_end(world: &World, name: &str) -> Result<()> {
    world.cluster.apply(&job(name, "torch", 1, true))?;
    eventually(|| {
        let job = world.get(&["job", "-n", "torch", name])?;
        let told = events(world, "torch", name)?;
        let is_over = job["status"]["completionTime"].is_string();
        ensure!(is_over, "{name}: {} {told:?}", job["status"]);
        Ok(())
    })
}
