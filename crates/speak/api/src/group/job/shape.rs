//! Pods that a job makes, and the rules of one kind of job.

use sublet_model::Time;

use crate::group::field::{Field, GroupError};
use crate::group::priority::AskedPriority;
use crate::object::Pod;

/// Rules and names of one kind of job.
pub trait JobKind: Sync {
    /// Its API.
    fn api(&self) -> JobApi;

    /// Other versions of it, for clusters that do not have the one that is asked for. They have the
    /// fields that are read here.
    fn other_versions(&self) -> &'static [&'static str] {
        &[]
    }

    /// The first word of its groups' names.
    fn word(&self) -> &'static str;

    /// The field that holds it back, if it has one.
    fn suspend(&self) -> Option<&'static [&'static str]>;

    /// Pods that the job makes, and its progress.
    ///
    /// # Errors
    /// A field that cannot be read.
    fn shape(&self, job: &Field<'_>) -> Result<JobShape, GroupError>;

    /// The job of this kind that a pod belongs to, and as which of its members. It need not be the
    /// topmost one.
    fn member(&self, pod: &Pod) -> Option<JobMember>;

    /// Word of the kind of the one object that it makes under its own name. That object's shape is
    /// its own.
    fn made_of(&self) -> Option<&'static str> {
        None
    }
}

/// The API of a kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JobApi {
    /// Its group.
    pub group: &'static str,
    /// The version that is asked for.
    pub version: &'static str,
    /// The kind.
    pub kind: &'static str,
    /// Its name in paths.
    pub plural: &'static str,
}

/// Pods that a job makes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct JobShape {
    /// Its roles.
    pub roles: Vec<JobRole>,
    /// Number of groups of this shape that the job makes, each for itself; `None` means one group,
    /// the job.
    pub copies: Option<u32>,
    /// Number of members that must start together; `None` means all of them.
    pub min: Option<u32>,
    /// The queue that it names.
    pub queue: Option<String>,
    /// The priority that it asks for, its templates aside.
    pub priority: AskedPriority,
    /// Longest time that members with a place wait for the others, in seconds.
    pub waits_s: Option<u32>,
    /// It is ended after so many seconds.
    pub runs_for_s: Option<u64>,
    /// When it was started.
    pub started: Option<Time>,
    /// When all of it was done; none for one that failed.
    pub completed: Option<Time>,
    /// It has ended, and makes no pods any more.
    pub is_over: bool,
}

/// Equal members of a job.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct JobRole {
    /// Its name, which no other role of the job has.
    pub name: String,
    /// Number of its members that must start together with the others, if its job gives one.
    pub min: Option<u32>,
    /// Number of its members that have not ended well.
    pub replicas: u32,
    /// Number of members that share one index of [`JobMember`].
    pub each: u32,
    /// Its pods come only when the pods of other roles run.
    pub is_late: bool,
    /// Template of its pods.
    pub template: Pod,
}

/// Position of a pod in a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobMember {
    /// The job's name, in the namespace of the pod.
    pub job: String,
    /// Index of the group, in a job that makes several.
    pub copy: Option<u32>,
    /// The role.
    pub role: String,
    /// Index of the member in its role; `None` if any index will do.
    pub index: Option<u32>,
    /// Position among the members with this index.
    pub within: u32,
}

impl JobShape {
    /// Number of members of a group.
    pub(super) fn all(&self) -> u32 {
        let all = self.roles.iter().map(|role| role.replicas);
        all.fold(0, u32::saturating_add)
    }

    /// The priority that the templates ask for: that of the first that asks one.
    pub(super) fn templates_priority(&self) -> AskedPriority {
        let specs = self.roles.iter().map(|role| &role.template.spec);
        specs.fold(AskedPriority::default(), |asked, spec| {
            asked.or(|| AskedPriority {
                number: spec.priority,
                class: Some(spec.priority_class_name.clone()).filter(|name| !name.is_empty()),
            })
        })
    }
}

/// The name of the object of that API that looks after a pod.
pub(super) fn made_by(pod: &Pod, api: JobApi) -> Option<&str> {
    let owner = pod.metadata.controller()?;
    let (group, _) = owner.api_version.split_once('/')?;
    (owner.kind == api.kind && group == api.group).then_some(&owner.name)
}

/// A label that is a number.
pub(super) fn numbered(pod: &Pod, label: &str) -> Option<u32> {
    pod.metadata.labels.get(label)?.parse().ok()
}

/// Number of members left after some have ended well.
pub(super) fn left_of(replicas: u32, succeeded: &Field<'_>) -> Result<u32, GroupError> {
    Ok(replicas.saturating_sub(succeeded.count()?.unwrap_or(0)))
}
