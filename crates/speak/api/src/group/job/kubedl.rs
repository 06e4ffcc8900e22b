//! KubeDL's jobs (`training.kubedl.io/v1alpha1`).
//!
//! Source: `apis/training/v1alpha1` and `pkg/job_controller/api/v1` of v0.5.0. They have no field
//! that holds them back: their pods are held by our scheduling gate. Roles come in stages, one when
//! that before it runs (`setDefaultDAG`), and the master of AI jobs is in no gang.

use super::kubeflow::{policy_of, roles_of};
use super::shape::{JobApi, JobKind, JobMember, JobShape, made_by, numbered};
use crate::group::field::{Field, GroupError};
use crate::object::Pod;

const REPLICA_TYPE: &str = "replica-type";
const REPLICA_INDEX: &str = "replica-index";

/// The role that stands above the others and is in no gang.
const AI_MASTER: &str = "aimaster";

/// A framework.
pub(super) struct Framework {
    word: &'static str,
    kind: &'static str,
    plural: &'static str,
    /// The field with its roles.
    roles: &'static str,
    /// Pairs of roles: the first comes after the second, if the job has the second.
    after: &'static [(&'static str, &'static str)],
}

pub(super) const PYTORCH_JOB: Framework = Framework {
    word: "kubedl-pytorchjob",
    kind: "PyTorchJob",
    plural: "pytorchjobs",
    roles: "pytorchReplicaSpecs",
    after: &[("master", AI_MASTER), ("worker", "master")],
};

pub(super) const TF_JOB: Framework = Framework {
    word: "kubedl-tfjob",
    kind: "TFJob",
    plural: "tfjobs",
    roles: "tfReplicaSpecs",
    after: &[("worker", "ps"), ("chief", "ps"), ("master", "ps")],
};

pub(super) const MPI_JOB: Framework = Framework {
    word: "kubedl-mpijob",
    kind: "MPIJob",
    plural: "mpijobs",
    roles: "mpiReplicaSpecs",
    after: &[("launcher", "worker")],
};

pub(super) const XGBOOST_JOB: Framework = Framework {
    word: "kubedl-xgboostjob",
    kind: "XGBoostJob",
    plural: "xgboostjobs",
    roles: "xgbReplicaSpecs",
    after: &[("worker", "master")],
};

pub(super) const XDL_JOB: Framework = Framework {
    word: "kubedl-xdljob",
    kind: "XDLJob",
    plural: "xdljobs",
    roles: "xdlReplicaSpecs",
    after: &[],
};

pub(super) const MARS_JOB: Framework = Framework {
    word: "kubedl-marsjob",
    kind: "MarsJob",
    plural: "marsjobs",
    roles: "marsReplicaSpecs",
    after: &[("worker", "scheduler"), ("webservice", "scheduler")],
};

pub(super) const ELASTIC_DL_JOB: Framework = Framework {
    word: "kubedl-elasticdljob",
    kind: "ElasticDLJob",
    plural: "elasticdljobs",
    roles: "elasticdlReplicaSpecs",
    after: &[],
};

impl JobKind for Framework {
    fn api(&self) -> JobApi {
        JobApi {
            group: "training.kubedl.io",
            version: "v1alpha1",
            kind: self.kind,
            plural: self.plural,
        }
    }

    fn word(&self) -> &'static str {
        self.word
    }

    fn suspend(&self) -> Option<&'static [&'static str]> {
        None
    }

    fn shape(&self, job: &Field<'_>) -> Result<JobShape, GroupError> {
        let spec = job.get("spec")?;
        // Most kinds have the policy's fields in the spec itself.
        let policy = match spec.get("runPolicy")? {
            policy if policy.is_there() => policy,
            _ => spec.clone(),
        };
        let mut shape = policy_of(&policy, job)?;
        shape.roles = roles_of(&spec.get(self.roles)?, job)?;
        let names: Vec<String> = shape.roles.iter().map(|role| role.name.clone()).collect();
        let mut masters = 0;
        for role in &mut shape.roles {
            let before = self.after.iter().filter(|(later, _)| *later == role.name);
            let mut before = before.map(|(_, first)| first);
            role.is_late = before.any(|first| names.iter().any(|name| name == first));
            if role.name == AI_MASTER {
                role.min = Some(0);
                masters = role.replicas;
            }
        }
        shape.min = shape.min.or(Some(shape.all() - masters));
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
