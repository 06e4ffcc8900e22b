//! Jobs that are made larger and smaller while they run, and jobs with pods that come later.

use sublet_api::object::Pod;

use super::*;

/// A quota of so many cards.
pub(super) fn quota(world: &mut World, max: u32) {
    let quota = serde_json::from_value(json!({
        "apiVersion": "scheduling.sigs.k8s.io/v1alpha1",
        "metadata": {"name": "q", "namespace": "a", "uid": "u-q"},
        "spec": {"min": {keys::GPU: "1"}, "max": {keys::GPU: max.to_string()}},
    }));
    let change = Change::Set(quota.unwrap());
    world.watched.quota("scheduling.sigs.k8s.io", change);
}

/// The specification of a pod with a card, and the labels by which it queues.
pub(super) fn template() -> Value {
    json!({
        "metadata": {"labels": {keys::QUOTA_NAME: "q"}},
        "spec": {
            "schedulerName": "sublet-scheduler",
            "containers": [{"name": "c", "resources": {"limits": {"aliyun.com/gpu-mem": "1000"}}}],
        },
    })
}

/// A batch Job of so many pods.
fn job(world: &mut World, parallelism: u32) {
    let object = serde_json::from_value(json!({
        "apiVersion": "batch/v1", "kind": "Job",
        "metadata": {"name": "j", "namespace": "a", "uid": "u-j"},
        "spec": {"parallelism": parallelism, "template": template()},
    }));
    let change = Change::Set(object.unwrap());
    world.watched.object("batch/v1", "Job", change);
}

/// A pod of an owner that is held back.
fn member(world: &mut World, name: &str, owner: (&str, &str, &str), labels: &[(&str, &str)]) {
    let (api, kind, of) = owner;
    let mut pod = template();
    pod["metadata"]["name"] = name.into();
    pod["metadata"]["namespace"] = "a".into();
    pod["metadata"]["uid"] = format!("u-{name}").into();
    pod["metadata"]["ownerReferences"] = json!([{
        "apiVersion": api, "kind": kind, "name": of, "uid": format!("u-{of}"), "controller": true,
    }]);
    for (key, value) in labels {
        pod["metadata"]["labels"][key] = (*value).into();
    }
    pod["spec"]["schedulingGates"] = json!([{"name": keys::SCHEDULING_GATE}]);
    let pod: Pod = serde_json::from_value(pod).unwrap();
    world.watched.pod(Change::Set(pod));
}

pub(super) fn worker_of_job(world: &mut World, name: &str) {
    member(world, name, ("batch/v1", "Job", "j"), &[]);
}

/// Looks, takes the due steps and binds, until nothing is due. Returns the acts, in order.
pub(super) fn settle(world: &mut World) -> Vec<&'static str> {
    let mut done = Vec::new();
    for _ in 0..12 {
        let round = world.look();
        if round.steps.is_empty() {
            return done;
        }
        done.extend(acts(&round.steps));
        world.carry_out(round.steps);
        world.bind();
    }
    panic!("it does not settle: {done:?}");
}

pub(super) fn bound(world: &World) -> Vec<&str> {
    let pods = world.watched.pods.values();
    let there = pods.filter(|pod| !pod.spec.node_name.is_empty());
    there.map(|pod| pod.metadata.name.as_str()).collect()
}

#[test]
fn a_job_that_grows_queues_for_the_rest_and_nobody_goes() {
    for is_successor in [false, true] {
        let mut world = World::new(4);
        quota(&mut world, 3);
        job(&mut world, 2);
        for name in ["j0", "j1"] {
            worker_of_job(&mut world, name);
        }
        settle(&mut world);
        assert_eq!(bound(&world), ["j0", "j1"]);

        // Eight would be more than the quota ever has.
        job(&mut world, 8);
        for name in ["j2", "j3"] {
            worker_of_job(&mut world, name);
        }
        if is_successor {
            world.memory = Memory::default();
        }
        let done = settle(&mut world);
        assert!(!done.contains(&"evict"), "{done:?}");
        assert_eq!(bound(&world), ["j0", "j1", "j2"]);
        world.memory = Memory::default();
        let told = events(&world.after_a_while().report.events);
        let why = "it runs, and more of it wait: it asks 1 of sublet.dev/gpu, and quota q uses 3";
        assert!(told.iter().any(|text| text.starts_with(why)), "{told:?}");

        quota(&mut world, 4);
        let done = settle(&mut world);
        assert!(!done.contains(&"evict"), "{done:?}");
        assert_eq!(bound(&world), ["j0", "j1", "j2", "j3"]);
    }
}

#[test]
fn what_a_job_was_promised_is_free_again_when_it_is_made_smaller() {
    let mut world = World::new(4);
    quota(&mut world, 4);
    job(&mut world, 1);
    worker_of_job(&mut world, "j0");
    settle(&mut world);
    // Three more are promised a place, and their pods never come.
    job(&mut world, 4);
    assert_eq!(settle(&mut world), ["create"]);
    world.pod_group("g", 3);
    for name in ["p0", "p1", "p2"] {
        world.pod(name, "g");
    }
    assert_eq!(settle(&mut world), [""; 0]);
    job(&mut world, 1);
    settle(&mut world);
    assert_eq!(bound(&world), ["j0", "p0", "p1", "p2"]);
}

const MPI: &str = "kubeflow.org/v2beta1";

/// An MPIJob. Its launcher comes when its workers run.
fn mpi_job(world: &mut World, workers: u32) {
    let object = serde_json::from_value(json!({
        "apiVersion": MPI, "kind": "MPIJob",
        "metadata": {"name": "m", "namespace": "a", "uid": "u-m"},
        "spec": {
            "launcherCreationPolicy": "WaitForWorkersReady",
            "mpiReplicaSpecs": {
                "Launcher": {"replicas": 1, "template": template()},
                "Worker": {"replicas": workers, "template": template()},
            },
        },
    }));
    world
        .watched
        .object(MPI, "MPIJob", Change::Set(object.unwrap()));
}

fn mpi_pod(world: &mut World, name: &str, role: &str) {
    let labels = [
        ("training.kubeflow.org/operator-name", "mpi-operator"),
        ("training.kubeflow.org/job-name", "m"),
        ("training.kubeflow.org/job-role", role),
    ];
    member(world, name, (MPI, "MPIJob", "m"), &labels);
}

/// The workers take longer to come up than a plan lasts, one of them is lost meanwhile, and one more is
/// asked for. A gang that would fit in the launcher's place does not get it.
#[test]
fn a_launcher_that_comes_late_has_its_place_and_its_workers_stay() {
    let mut world = World::new(4);
    quota(&mut world, 4);
    mpi_job(&mut world, 2);
    mpi_pod(&mut world, "w0", "worker");
    mpi_pod(&mut world, "w1", "worker");
    settle(&mut world);
    assert_eq!(bound(&world), ["w0", "w1"]);
    world.pod_group("g", 2);
    for name in ["p0", "p1"] {
        world.pod(name, "g");
    }
    world.now += 3_600_000;
    let done = settle(&mut world);
    assert!(!done.contains(&"evict"), "{done:?}");
    assert_eq!(bound(&world), ["w0", "w1"]);

    for gone in ["u-p0", "u-p1"] {
        world.watched.pods.remove(gone);
    }
    mpi_job(&mut world, 3);
    mpi_pod(&mut world, "w2", "worker");
    world.watched.pods.remove("u-w1");
    mpi_pod(&mut world, "w3", "worker");
    let done = settle(&mut world);
    assert!(
        !done.contains(&"evict") && !done.contains(&"create"),
        "the plan that is there is made larger: {done:?}"
    );
    assert_eq!(bound(&world), ["w0", "w2", "w3"]);

    mpi_pod(&mut world, "l0", "launcher");
    settle(&mut world);
    assert_eq!(bound(&world), ["l0", "w0", "w2", "w3"]);
    assert_eq!(world.plans(), [""; 0]);
}
