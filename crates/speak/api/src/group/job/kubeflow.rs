//! Jobs of Kubeflow's training operator (`kubeflow.org/v1`): one form for all frameworks.
//!
//! Source: `pkg/apis/kubeflow.org/v1` of training-operator v1.9.3.

use super::shape::{JobApi, JobKind, JobMember, JobRole, JobShape, left_of, made_by, numbered};
use crate::group::field::{Field, GroupError};
use crate::group::priority::AskedPriority;
use crate::object::Pod;

pub(super) const JOB_NAME: &str = "training.kubeflow.org/job-name";
pub(super) const REPLICA_TYPE: &str = "training.kubeflow.org/replica-type";
pub(super) const REPLICA_INDEX: &str = "training.kubeflow.org/replica-index";

/// A framework.
pub(super) struct Framework {
    word: &'static str,
    kind: &'static str,
    plural: &'static str,
    /// The field with its roles.
    roles: &'static str,
}

pub(super) const PYTORCH_JOB: Framework = Framework {
    word: "pytorchjob",
    kind: "PyTorchJob",
    plural: "pytorchjobs",
    roles: "pytorchReplicaSpecs",
};

pub(super) const TF_JOB: Framework = Framework {
    word: "tfjob",
    kind: "TFJob",
    plural: "tfjobs",
    roles: "tfReplicaSpecs",
};

pub(super) const XGBOOST_JOB: Framework = Framework {
    word: "xgboostjob",
    kind: "XGBoostJob",
    plural: "xgboostjobs",
    roles: "xgbReplicaSpecs",
};

pub(super) const PADDLE_JOB: Framework = Framework {
    word: "paddlejob",
    kind: "PaddleJob",
    plural: "paddlejobs",
    roles: "paddleReplicaSpecs",
};

pub(super) const JAX_JOB: Framework = Framework {
    word: "jaxjob",
    kind: "JAXJob",
    plural: "jaxjobs",
    roles: "jaxReplicaSpecs",
};

impl JobKind for Framework {
    fn api(&self) -> JobApi {
        JobApi {
            group: "kubeflow.org",
            version: "v1",
            kind: self.kind,
            plural: self.plural,
        }
    }

    fn word(&self) -> &'static str {
        self.word
    }

    fn suspend(&self) -> Option<&'static [&'static str]> {
        Some(&["spec", "runPolicy", "suspend"])
    }

    fn shape(&self, job: &Field<'_>) -> Result<JobShape, GroupError> {
        let spec = job.get("spec")?;
        let mut shape = policy_of(&spec.get("runPolicy")?, job)?;
        shape.roles = roles_of(&spec.get(self.roles)?, job)?;
        // An elastic PyTorchJob starts with fewer workers.
        let elastic = spec.at(&["elasticPolicy", "minReplicas"])?.count()?;
        let worker = shape.roles.iter_mut().find(|role| role.name == "worker");
        if let (Some(min), Some(worker), None) = (elastic, worker, shape.min) {
            let spared = worker.replicas.saturating_sub(min);
            worker.min = Some(worker.replicas - spared);
            shape.min = Some(shape.all() - spared);
        }
        Ok(shape)
    }

    fn member(&self, pod: &Pod) -> Option<JobMember> {
        let job = made_by(pod, self.api())?;
        Some(JobMember {
            job: job.to_owned(),
            copy: None,
            role: pod.metadata.labels.get(REPLICA_TYPE)?.clone(),
            index: numbered(pod, REPLICA_INDEX),
            within: 0,
        })
    }
}

/// Reads a run policy, and the job's progress.
pub(super) fn policy_of(policy: &Field<'_>, job: &Field<'_>) -> Result<JobShape, GroupError> {
    let scheduling = policy.get("schedulingPolicy")?;
    let status = job.get("status")?;
    let text = |key: &str| Ok::<_, GroupError>(scheduling.get(key)?.text()?.map(str::to_owned));
    let class = match text("priorityClass")? {
        Some(class) => Some(class),
        // KubeDL's name for it.
        None => text("priorityClassName")?,
    };
    let deadline = policy.get("activeDeadlineSeconds")?.count()?;
    let conditions = status.get("conditions")?;
    let completed = match conditions.has_condition(&["Succeeded"])? {
        true => status.get("completionTime")?.time()?,
        false => None,
    };
    Ok(JobShape {
        min: scheduling
            .get("minAvailable")?
            .count()?
            .filter(|&min| min > 0),
        queue: text("queue")?.filter(|queue| !queue.is_empty()),
        priority: AskedPriority {
            number: scheduling.get("priority")?.number()?,
            class,
        },
        waits_s: scheduling.get("scheduleTimeoutSeconds")?.count()?,
        runs_for_s: deadline.map(u64::from),
        started: status.get("startTime")?.time()?,
        completed,
        is_over: conditions.has_condition(&["Succeeded", "Failed"])?,
        ..JobShape::default()
    })
}

/// The roles of a map of replica specs, in the order of their names. Pods have them in small
/// letters.
pub(super) fn roles_of(specs: &Field<'_>, job: &Field<'_>) -> Result<Vec<JobRole>, GroupError> {
    let statuses = job.at(&["status", "replicaStatuses"])?;
    let mut roles = Vec::new();
    for (name, spec) in specs.map()? {
        let replicas = spec.get("replicas")?.count()?.unwrap_or(1);
        roles.push(JobRole {
            name: name.to_ascii_lowercase(),
            replicas: left_of(replicas, &statuses.get(name)?.get("succeeded")?)?,
            each: 1,
            template: spec.get("template")?.read()?,
            ..JobRole::default()
        });
    }
    roles.sort_by(|a, b| a.name.cmp(&b.name));
    roles.dedup_by(|a, b| a.name == b.name);
    Ok(roles)
}
