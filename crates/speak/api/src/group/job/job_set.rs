//! JobSets: several sets of Jobs that are one (`jobset.x-k8s.io`).
//!
//! Source: `api/jobset/v1alpha2/jobset_types.go` of v0.10.1. A role is a replicated job: its Jobs
//! times their pods.

use super::shape::{JobApi, JobKind, JobMember, JobRole, JobShape, left_of, numbered};
use crate::group::field::{Field, GroupError};
use crate::object::Pod;

const NAME: &str = "jobset.sigs.k8s.io/jobset-name";
const ROLE: &str = "jobset.sigs.k8s.io/replicatedjob-name";
const JOB_INDEX: &str = "jobset.sigs.k8s.io/job-index";
const POD_INDEX: &str = "batch.kubernetes.io/job-completion-index";

pub(super) struct JobSet;

impl JobKind for JobSet {
    fn api(&self) -> JobApi {
        JobApi {
            group: "jobset.x-k8s.io",
            version: "v1alpha2",
            kind: "JobSet",
            plural: "jobsets",
        }
    }

    fn word(&self) -> &'static str {
        "jobset"
    }

    fn suspend(&self) -> Option<&'static [&'static str]> {
        Some(&["spec", "suspend"])
    }

    fn shape(&self, job: &Field<'_>) -> Result<JobShape, GroupError> {
        let (spec, status) = (job.get("spec")?, job.get("status")?);
        let order = spec.at(&["startupPolicy", "startupPolicyOrder"])?.text()?;
        let mut roles = Vec::new();
        for entry in spec.get("replicatedJobs")?.list()? {
            let name = entry.get("name")?.text()?.unwrap_or_default();
            let pods = entry.at(&["template", "spec"])?;
            let each = pods.get("parallelism")?.count()?.unwrap_or(1);
            let completions = pods.get("completions")?.count()?;
            let each = completions.map_or(each, |completions| each.min(completions));
            let mut jobs = entry.get("replicas")?.count()?.unwrap_or(1);
            for ended in status.get("replicatedJobsStatus")?.list()? {
                if ended.get("name")?.text()? == Some(name) {
                    jobs = left_of(jobs, &ended.get("succeeded")?)?;
                }
            }
            let depends = !entry.get("dependsOn")?.list()?.is_empty();
            roles.push(JobRole {
                name: name.to_owned(),
                min: None,
                replicas: jobs.saturating_mul(each),
                each,
                is_late: depends || (order == Some("InOrder") && !roles.is_empty()),
                template: pods.get("template")?.read()?,
            });
        }
        let conditions = status.get("conditions")?;
        Ok(JobShape {
            roles,
            is_over: conditions.has_condition(&["Completed", "Failed"])?,
            ..JobShape::default()
        })
    }

    fn member(&self, pod: &Pod) -> Option<JobMember> {
        let labels = &pod.metadata.labels;
        let annotation = pod.metadata.annotations.get(POD_INDEX);
        let within = annotation.and_then(|index| index.parse().ok());
        Some(JobMember {
            job: labels.get(NAME)?.clone(),
            copy: None,
            role: labels.get(ROLE)?.clone(),
            index: numbered(pod, JOB_INDEX),
            within: within.or_else(|| numbered(pod, POD_INDEX)).unwrap_or(0),
        })
    }
}
