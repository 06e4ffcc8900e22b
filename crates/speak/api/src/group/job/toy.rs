//! A kind of job as small as one can be, as CONTRIBUTING's recipe says: this file, and its line in
//! [`JOB_KINDS`](super::JOB_KINDS). Only the tests of this crate have it.

use super::shape::{JobApi, JobKind, JobMember, JobRole, JobShape, made_by};
use crate::group::field::{Field, GroupError};
use crate::object::Pod;

/// The one role.
const ROLE: &str = "toy";

/// A job of equal pods.
pub(super) struct Toy;

impl JobKind for Toy {
    fn api(&self) -> JobApi {
        JobApi {
            group: "toy.dev",
            version: "v1",
            kind: "ToyJob",
            plural: "toyjobs",
        }
    }

    fn word(&self) -> &'static str {
        "toyjob"
    }

    fn suspend(&self) -> Option<&'static [&'static str]> {
        Some(&["spec", "suspend"])
    }

    fn shape(&self, job: &Field<'_>) -> Result<JobShape, GroupError> {
        let spec = job.get("spec")?;
        Ok(JobShape {
            roles: vec![JobRole {
                name: ROLE.to_owned(),
                replicas: spec.get("replicas")?.count()?.unwrap_or(1),
                each: 1,
                template: spec.get("template")?.read()?,
                ..JobRole::default()
            }],
            ..JobShape::default()
        })
    }

    fn member(&self, pod: &Pod) -> Option<JobMember> {
        Some(JobMember {
            job: made_by(pod, self.api())?.to_owned(),
            copy: None,
            role: ROLE.to_owned(),
            index: None,
            within: 0,
        })
    }
}
