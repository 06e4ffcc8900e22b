//! One small job of each kind, as its operator's documentation writes them: three pods with a card
//! each, and what else the kind has.

use serde_json::{Value, json};
use sublet_testbed::{
    JOB_SET, KUBEDL, LEADER_WORKER_SET, MPI_OPERATOR, Operator, TRAINER, TRAINING_OPERATOR,
};

/// Number of pods of each job that have a card.
pub(crate) const WITH_CARD: usize = 3;

/// A kind of job.
pub(crate) struct Kind {
    pub(crate) operator: &'static Operator,
    /// The first word of its groups.
    pub(crate) word: &'static str,
    pub(crate) plural: &'static str,
    /// Its namespace here.
    pub(crate) namespace: &'static str,
    /// Pods without a card.
    pub(crate) others: usize,
    /// It has a field that holds it back.
    pub(crate) suspends: bool,
    pub(crate) ends: Ends,
    /// The object, and if it is held back.
    pub(crate) job: fn(&str, bool) -> Value,
}

/// End of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ends {
    /// The played kubelet ends pods of Jobs at once.
    ByItself(&'static str),
    /// When its pods are said to have ended.
    WhenTold(&'static str),
    /// Never.
    Never,
}

pub(crate) const JOB_SETS: Kind = Kind {
    operator: &JOB_SET,
    word: "jobset",
    plural: "jobsets.jobset.x-k8s.io",
    namespace: "jobsets",
    others: 1,
    suspends: true,
    ends: Ends::ByItself("Completed"),
    job: |name, suspended| {
        let role = |role: &str, replicas: usize, spec: Value| {
            json!({ "name": role, "replicas": replicas, "template": { "spec": {
                "parallelism": 1, "completions": 1, "backoffLimit": 0,
                "template": { "spec": spec },
            }}})
        };
        let roles = [
            role("driver", 1, pod("main", false)),
            role("worker", WITH_CARD, pod("main", true)),
        ];
        let spec = json!({ "suspend": suspended, "replicatedJobs": roles });
        object("jobset.x-k8s.io/v1alpha2", "JobSet", "jobsets", name, &spec)
    },
};

pub(crate) const LEADER_WORKER_SETS: Kind = Kind {
    operator: &LEADER_WORKER_SET,
    word: "leaderworkerset",
    plural: "leaderworkersets.leaderworkerset.x-k8s.io",
    namespace: "served",
    others: 0,
    suspends: false,
    ends: Ends::Never,
    job: |name, _| {
        let mut worker = pod("main", true);
        worker["restartPolicy"] = json!("Always");
        let template = json!({ "size": WITH_CARD, "workerTemplate": { "spec": worker } });
        let spec = json!({ "replicas": 1, "leaderWorkerTemplate": template });
        object(
            "leaderworkerset.x-k8s.io/v1",
            "LeaderWorkerSet",
            "served",
            name,
            &spec,
        )
    },
};

pub(crate) const MPI_JOBS: Kind = Kind {
    operator: &MPI_OPERATOR,
    word: "mpijob",
    plural: "mpijobs.kubeflow.org",
    namespace: "mpi",
    others: 1,
    suspends: true,
    ends: Ends::ByItself("Succeeded"),
    job: |name, suspended| {
        let role = |replicas: usize, spec: Value| json!({ "replicas": replicas, "template": { "spec": spec } });
        let spec = json!({
            "slotsPerWorker": 1,
            "launcherCreationPolicy": "WaitForWorkersReady",
            "runPolicy": { "suspend": suspended, "cleanPodPolicy": "Running" },
            "mpiReplicaSpecs": {
                "Launcher": role(1, pod("launcher", false)),
                "Worker": role(WITH_CARD, pod("worker", true)),
            },
        });
        object("kubeflow.org/v2beta1", "MPIJob", "mpi", name, &spec)
    },
};

pub(crate) const PYTORCH_JOBS: Kind = Kind {
    operator: &TRAINING_OPERATOR,
    word: "pytorchjob",
    plural: "pytorchjobs.kubeflow.org",
    namespace: "pytorch",
    others: 0,
    suspends: true,
    ends: Ends::WhenTold("Succeeded"),
    job: |name, suspended| {
        let spec = json!({
            "runPolicy": { "suspend": suspended },
            "pytorchReplicaSpecs": {
                "Master": replicas(1, &pod("pytorch", true)),
                "Worker": replicas(WITH_CARD - 1, &pod("pytorch", true)),
            },
        });
        object("kubeflow.org/v1", "PyTorchJob", "pytorch", name, &spec)
    },
};

pub(crate) const TF_JOBS: Kind = Kind {
    operator: &TRAINING_OPERATOR,
    word: "tfjob",
    plural: "tfjobs.kubeflow.org",
    namespace: "tensorflow",
    others: 2,
    suspends: true,
    ends: Ends::WhenTold("Succeeded"),
    job: |name, suspended| {
        let spec = json!({
            "runPolicy": { "suspend": suspended },
            "tfReplicaSpecs": {
                "PS": replicas(2, &pod("tensorflow", false)),
                "Worker": replicas(WITH_CARD, &pod("tensorflow", true)),
            },
        });
        object("kubeflow.org/v1", "TFJob", "tensorflow", name, &spec)
    },
};

pub(crate) const TRAIN_JOBS: Kind = Kind {
    operator: &TRAINER,
    word: "trainjob",
    plural: "trainjobs.trainer.kubeflow.org",
    namespace: "trained",
    others: 0,
    suspends: true,
    ends: Ends::ByItself("Complete"),
    job: |name, suspended| {
        let runtime = json!({
            "apiGroup": "trainer.kubeflow.org", "kind": "TrainingRuntime", "name": "plain",
        });
        let spec = json!({
            "suspend": suspended, "runtimeRef": runtime, "trainer": { "numNodes": WITH_CARD },
        });
        object(
            "trainer.kubeflow.org/v1alpha1",
            "TrainJob",
            "trained",
            name,
            &spec,
        )
    },
};

pub(crate) const KUBEDL_JOBS: Kind = Kind {
    operator: &KUBEDL,
    word: "kubedl-pytorchjob",
    plural: "pytorchjobs.training.kubedl.io",
    namespace: "kubedl",
    others: 0,
    suspends: false,
    ends: Ends::WhenTold("Succeeded"),
    job: |name, _| {
        let spec = json!({
            "pytorchReplicaSpecs": {
                "Master": replicas(1, &pod("pytorch", true)),
                "Worker": replicas(WITH_CARD - 1, &pod("pytorch", true)),
            },
        });
        object(
            "training.kubedl.io/v1alpha1",
            "PyTorchJob",
            "kubedl",
            name,
            &spec,
        )
    },
};

/// The `TrainingRuntime` that TrainJobs here name.
pub(crate) fn training_runtime() -> Value {
    let role = json!({
        "name": "node",
        "template": {
            "metadata": { "labels": { "trainer.kubeflow.org/trainjob-ancestor-step": "trainer" } },
            "spec": { "template": { "spec": pod("node", true) } },
        },
    });
    let spec = json!({
        "mlPolicy": { "numNodes": 1 }, "template": { "spec": { "replicatedJobs": [role] } },
    });
    object(
        "trainer.kubeflow.org/v1alpha1",
        "TrainingRuntime",
        "trained",
        "plain",
        &spec,
    )
}

/// Two pods for themselves, which leave too little for another job.
pub(crate) fn in_the_way(namespace: &str) -> String {
    let pods = ["way-0", "way-1"].map(|name| {
        let mut spec = pod("main", true);
        spec["restartPolicy"] = json!("Always");
        text(&object("v1", "Pod", namespace, name, &spec))
    });
    pods.concat()
}

/// A manifest. JSON is YAML.
pub(crate) fn text(object: &Value) -> String {
    format!("---\n{object}\n")
}

fn object(api: &str, kind: &str, namespace: &str, name: &str, spec: &Value) -> Value {
    let metadata = json!({ "name": name, "namespace": namespace });
    json!({ "apiVersion": api, "kind": kind, "metadata": metadata, "spec": spec })
}

fn replicas(count: usize, spec: &Value) -> Value {
    json!({ "replicas": count, "restartPolicy": "OnFailure", "template": { "spec": spec } })
}

fn pod(container: &str, with_card: bool) -> Value {
    let limits = match with_card {
        true => json!({ "aliyun.com/gpu-mem": "1000" }),
        false => json!({ "cpu": "1" }),
    };
    json!({
        "schedulerName": "sublet-scheduler",
        "automountServiceAccountToken": false,
        "terminationGracePeriodSeconds": 0,
        "restartPolicy": "Never",
        "containers": [{
            "name": container, "image": "sublet.test/busybox:1", "command": ["sleep", "1000"],
            "resources": { "limits": limits },
        }],
    })
}
