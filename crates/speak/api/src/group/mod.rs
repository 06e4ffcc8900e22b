//! Pods that start together: gangs and jobs, read from pods, PodGroups and the objects of
//! operators, and made into the groups that the queue decides about.
//!
//! Suggested reading order: gang, job, gather, scope. Two folders list the known kinds: `gang/` has
//! a file for each way of naming a gang, `job/` one for each kind of job.

mod field;
mod gang;
mod gather;
mod job;
mod member;
mod past;
mod priority;
mod scope;
#[cfg(test)]
mod tests;

pub use field::{Field, GroupError, moment};
pub use gang::{
    GANG_DIALECTS, GangDialect, GangName, GangOfPod, GangTerms, PodGroupFacts, gang_of,
    is_pod_group, read_pod_group,
};
pub use gather::{Gathered, GroupProblem, GroupSources, MemberPod, QueuedGroup, gather};
#[cfg(test)]
pub(crate) use job::shipped as shipped_jobs;
pub use job::{
    JOB_KINDS, JobApi, JobFacts, JobKind, JobMember, JobName, JobProgress, JobRole, JobShape,
    job_kind, job_of, read_job,
};
pub use member::{ShapeMemo, member_shape};
pub use priority::{AskedPriority, PriorityClasses};
pub(crate) use scope::queued_groups;
pub use scope::{
    NamespaceLabels, QueueScope, QueueSources, WholeSnapshot, group_apis, is_in_queue, is_queued,
};
