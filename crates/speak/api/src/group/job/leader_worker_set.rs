//! LeaderWorkerSets, which serve models in groups of pods (`leaderworkerset.x-k8s.io/v1`).
//!
//! Source: `api/leaderworkerset/v1/leaderworkerset_types.go` of v0.7.0. Each of its replicas, a
//! leader and its workers, starts for itself. It has no field that holds it back.

use super::shape::{JobApi, JobKind, JobMember, JobRole, JobShape, numbered};
use crate::group::field::{Field, GroupError};
use crate::object::Pod;

const NAME: &str = "leaderworkerset.sigs.k8s.io/name";
const GROUP_INDEX: &str = "leaderworkerset.sigs.k8s.io/group-index";
const WORKER_INDEX: &str = "leaderworkerset.sigs.k8s.io/worker-index";

pub(super) struct LeaderWorkerSet;

impl JobKind for LeaderWorkerSet {
    fn api(&self) -> JobApi {
        JobApi {
            group: "leaderworkerset.x-k8s.io",
            version: "v1",
            kind: "LeaderWorkerSet",
            plural: "leaderworkersets",
        }
    }

    fn word(&self) -> &'static str {
        "leaderworkerset"
    }

    fn suspend(&self) -> Option<&'static [&'static str]> {
        None
    }

    fn shape(&self, job: &Field<'_>) -> Result<JobShape, GroupError> {
        let spec = job.get("spec")?;
        let template = spec.get("leaderWorkerTemplate")?;
        let size = template.get("size")?.count()?.unwrap_or(1);
        let workers = template.get("workerTemplate")?;
        let leader = match template.get("leaderTemplate")? {
            leader if leader.is_there() => leader,
            _ => workers.clone(),
        };
        let late = spec.get("startupPolicy")?.text()? == Some("LeaderReady");
        let role = |name: &str, replicas: u32, is_late: bool, template: Pod| JobRole {
            name: name.to_owned(),
            min: None,
            replicas,
            each: 1,
            is_late,
            template,
        };
        let mut roles = vec![role("leader", size.min(1), false, leader.read()?)];
        if size > 1 {
            roles.push(role("worker", size - 1, late, workers.read()?));
        }
        Ok(JobShape {
            roles,
            copies: Some(spec.get("replicas")?.count()?.unwrap_or(1)),
            ..JobShape::default()
        })
    }

    fn member(&self, pod: &Pod) -> Option<JobMember> {
        let labels = &pod.metadata.labels;
        let at = numbered(pod, WORKER_INDEX)?;
        let (role, index) = match at.checked_sub(1) {
            None => ("leader", 0),
            Some(worker) => ("worker", worker),
        };
        Some(JobMember {
            job: labels.get(NAME)?.clone(),
            copy: Some(numbered(pod, GROUP_INDEX)?),
            role: role.to_owned(),
            index: Some(index),
            within: 0,
        })
    }
}
