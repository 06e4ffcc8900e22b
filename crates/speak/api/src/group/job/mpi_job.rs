//! MPIJobs (`kubeflow.org`) of the MPI operator (v2beta1), and of the training operator (v1).
//!
//! Source: `pkg/apis/kubeflow/v2beta1/types.go` of mpi-operator v0.7.0. Its launcher is a pod of a
//! Job; its workers are pods of the MPIJob itself. With `WaitForWorkersReady` the launcher comes
//! when they run, and is counted for the minimum all the same.

use super::kubeflow::{JOB_NAME, REPLICA_INDEX, REPLICA_TYPE, policy_of, roles_of};
use super::shape::{JobApi, JobKind, JobMember, JobShape, made_by, numbered};
use crate::group::field::{Field, GroupError};
use crate::object::Pod;

const OPERATOR: &str = "training.kubeflow.org/operator-name";
const JOB_ROLE: &str = "training.kubeflow.org/job-role";

pub(super) struct MpiJob;

impl JobKind for MpiJob {
    fn api(&self) -> JobApi {
        JobApi {
            group: "kubeflow.org",
            version: "v2beta1",
            kind: "MPIJob",
            plural: "mpijobs",
        }
    }

    fn other_versions(&self) -> &'static [&'static str] {
        &["v1"]
    }

    fn word(&self) -> &'static str {
        "mpijob"
    }

    fn suspend(&self) -> Option<&'static [&'static str]> {
        Some(&["spec", "runPolicy", "suspend"])
    }

    fn shape(&self, job: &Field<'_>) -> Result<JobShape, GroupError> {
        let spec = job.get("spec")?;
        let mut shape = policy_of(&spec.get("runPolicy")?, job)?;
        shape.roles = roles_of(&spec.get("mpiReplicaSpecs")?, job)?;
        let launched = spec.get("launcherCreationPolicy")?.text()?;
        for role in &mut shape.roles {
            let is_launcher = role.name == "launcher";
            role.is_late = is_launcher && launched == Some("WaitForWorkersReady");
        }
        Ok(shape)
    }

    fn member(&self, pod: &Pod) -> Option<JobMember> {
        let label = |key: &str| pod.metadata.labels.get(key).map(String::as_str);
        let is_operators = label(OPERATOR) == Some("mpi-operator");
        let named = label(JOB_NAME).filter(|_| is_operators);
        let role = label(REPLICA_TYPE).or_else(|| label(JOB_ROLE))?;
        Some(JobMember {
            job: made_by(pod, self.api()).or(named)?.to_owned(),
            copy: None,
            role: role.to_owned(),
            index: numbered(pod, REPLICA_INDEX),
            within: 0,
        })
    }
}
