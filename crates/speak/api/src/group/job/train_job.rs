//! TrainJobs of Kubeflow's Trainer 2 (`trainer.kubeflow.org`).
//!
//! Source: `pkg/apis/trainer/v1alpha1/trainjob_types.go` of v2.1.0. The `TrainingRuntime` that
//! the TrainJob names decides about its pods; Trainer writes it into a JobSet of the same name,
//! while the TrainJob is suspended too. So its shape is that JobSet's.

use super::shape::{JobApi, JobKind, JobMember, JobShape};
use crate::group::field::{Field, GroupError};
use crate::object::Pod;

pub(super) struct TrainJob;

impl JobKind for TrainJob {
    fn api(&self) -> JobApi {
        JobApi {
            group: "trainer.kubeflow.org",
            version: "v1alpha1",
            kind: "TrainJob",
            plural: "trainjobs",
        }
    }

    fn word(&self) -> &'static str {
        "trainjob"
    }

    fn suspend(&self) -> Option<&'static [&'static str]> {
        Some(&["spec", "suspend"])
    }

    fn shape(&self, job: &Field<'_>) -> Result<JobShape, GroupError> {
        let conditions = job.at(&["status", "conditions"])?;
        Ok(JobShape {
            is_over: conditions.has_condition(&["Complete", "Failed"])?,
            ..JobShape::default()
        })
    }

    /// Its pods are a JobSet's.
    fn member(&self, _pod: &Pod) -> Option<JobMember> {
        None
    }

    fn made_of(&self) -> Option<&'static str> {
        Some("jobset")
    }
}
