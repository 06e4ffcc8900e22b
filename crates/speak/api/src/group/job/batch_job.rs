//! Jobs of Kubernetes itself (`batch/v1`).
//!
//! Source: `batch/v1` of `k8s.io/api` v0.36.3.

use super::shape::{JobApi, JobKind, JobMember, JobRole, JobShape, left_of, made_by};
use crate::group::field::{Field, GroupError};
use crate::object::Pod;

/// The one role.
const ROLE: &str = "worker";

/// The index of a pod of an indexed Job: an annotation, and a label since 1.28.
const INDEX: &str = "batch.kubernetes.io/job-completion-index";

pub(super) struct BatchJob;

impl JobKind for BatchJob {
    fn api(&self) -> JobApi {
        JobApi {
            group: "batch",
            version: "v1",
            kind: "Job",
            plural: "jobs",
        }
    }

    fn word(&self) -> &'static str {
        "job"
    }

    fn suspend(&self) -> Option<&'static [&'static str]> {
        Some(&["spec", "suspend"])
    }

    fn shape(&self, job: &Field<'_>) -> Result<JobShape, GroupError> {
        let (spec, status) = (job.get("spec")?, job.get("status")?);
        let mut replicas = spec.get("parallelism")?.count()?.unwrap_or(1);
        if let Some(completions) = spec.get("completions")?.count()? {
            replicas = replicas.min(left_of(completions, &status.get("succeeded")?)?);
        }
        let conditions = status.get("conditions")?;
        Ok(JobShape {
            roles: vec![JobRole {
                name: ROLE.to_owned(),
                replicas,
                each: 1,
                template: spec.get("template")?.read()?,
                ..JobRole::default()
            }],
            runs_for_s: spec.get("activeDeadlineSeconds")?.count()?.map(u64::from),
            started: status.get("startTime")?.time()?,
            completed: status.get("completionTime")?.time()?,
            is_over: conditions.has_condition(&["Complete", "Failed"])?,
            ..JobShape::default()
        })
    }

    fn member(&self, pod: &Pod) -> Option<JobMember> {
        let job = made_by(pod, self.api())?;
        let index = pod.metadata.annotations.get(INDEX);
        let index = index.or_else(|| pod.metadata.labels.get(INDEX));
        Some(JobMember {
            job: job.to_owned(),
            copy: None,
            role: ROLE.to_owned(),
            index: index.and_then(|index| index.parse().ok()),
            within: 0,
        })
    }
}
