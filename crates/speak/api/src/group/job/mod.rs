//! Jobs: which pods an object of an operator makes, read from its spec.
//!
//! Members are counted from the spec, never from pods that are there: a job that is suspended has
//! none yet. A kind is a file here and a line in [`JOB_KINDS`].

mod batch_job;
mod job_set;
mod kubedl;
mod kubeflow;
mod leader_worker_set;
mod mpi_job;
mod shape;
#[cfg(test)]
mod toy;
mod train_job;

use std::fmt;

use serde_json::{Value, json};
use sublet_model::Time;

pub use self::shape::{JobApi, JobKind, JobMember, JobRole, JobShape};
use super::field::{Field, GroupError, moment};
use super::gang::{GangTerms, annotated, namespace_of};
use super::past::{runs_of, saves_of, saves_together};
use crate::keys;
use crate::object::{Meta, OwnerReference, Pod};

/// Every kind of job.
pub const JOB_KINDS: &[&dyn JobKind] = &[
    &batch_job::BatchJob,
    &job_set::JobSet,
    &train_job::TrainJob,
    &mpi_job::MpiJob,
    &kubeflow::PYTORCH_JOB,
    &kubeflow::TF_JOB,
    &kubeflow::XGBOOST_JOB,
    &kubeflow::PADDLE_JOB,
    &kubeflow::JAX_JOB,
    &kubedl::PYTORCH_JOB,
    &kubedl::TF_JOB,
    &kubedl::MPI_JOB,
    &kubedl::XGBOOST_JOB,
    &kubedl::XDL_JOB,
    &kubedl::MARS_JOB,
    &kubedl::ELASTIC_DL_JOB,
    &leader_worker_set::LeaderWorkerSet,
    #[cfg(test)]
    &toy::Toy,
];

/// A job by name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobName {
    /// [`JobKind::word`].
    pub word: &'static str,
    /// Its namespace.
    pub namespace: String,
    /// Its name there.
    pub name: String,
}

impl fmt::Display for JobName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let JobName {
            word,
            namespace,
            name,
        } = self;
        write!(f, "{word}/{namespace}/{name}")
    }
}

/// Progress of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JobProgress {
    /// It makes no pods until it is released.
    Suspended,
    /// It makes pods.
    Released,
    /// It has ended.
    Over,
}

/// Facts in a job's object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobFacts {
    /// Its name.
    pub job: JobName,
    /// Its API.
    pub api: JobApi,
    /// Its UID.
    pub uid: String,
    /// Its version; empty for one that no API server has.
    pub version: String,
    /// When it was made.
    pub created: Option<Time>,
    /// The job that made it.
    pub owner: Option<JobName>,
    /// Its progress.
    pub state: JobProgress,
    /// Terms on which it starts. The minimum is that of one group.
    pub terms: GangTerms,
    /// The quotas that it may mean, its label's first.
    pub quotas: Vec<String>,
    /// May it be evicted for others?
    pub is_preemptible: bool,
    /// Pods that it makes.
    pub shape: JobShape,
}

/// The kinds that users have: all but that of the tests.
#[cfg(test)]
pub(crate) fn shipped() -> impl Iterator<Item = &'static dyn JobKind> {
    let all = JOB_KINDS.iter().copied();
    all.filter(|kind| kind.word() != "toyjob")
}

/// Finds the kind of an object; any version of it, as the API server converts them.
#[must_use]
pub fn job_kind(api_version: &str, kind: &str) -> Option<&'static dyn JobKind> {
    let (group, _) = api_version.split_once('/')?;
    let mut kinds = JOB_KINDS.iter().copied();
    kinds.find(|one| one.api().kind == kind && one.api().group == group)
}

/// Every API of a kind, the one that is asked for first.
pub(super) fn apis_of(kind: &dyn JobKind) -> impl Iterator<Item = JobApi> {
    let api = kind.api();
    let others = kind.other_versions().iter();
    std::iter::once(api).chain(others.map(move |&version| JobApi { version, ..api }))
}

/// The API of a kind in the version that an object has.
fn served(kind: &dyn JobKind, api_version: Option<&str>) -> JobApi {
    let version = api_version.and_then(|text| text.split_once('/'));
    let version = version.map(|(_, version)| version);
    let found = apis_of(kind).find(|api| Some(api.version) == version);
    found.unwrap_or_else(|| kind.api())
}

/// Reads a job.
///
/// # Errors
/// A field that cannot be read.
pub fn read_job(kind: &dyn JobKind, object: &Value) -> Result<JobFacts, GroupError> {
    let root = Field::root(object);
    let meta: Meta = root.get("metadata")?.read()?;
    let mut shape = kind.shape(&root)?;
    let namespace = namespace_of(&meta);
    for role in &mut shape.roles {
        namespace.clone_into(&mut role.template.metadata.namespace);
        // Operators name pods themselves, whatever a template says.
        role.template.metadata.name.clear();
        role.min = minimum(&role.template.metadata)?.or(role.min);
    }
    let suspended = match kind.suspend() {
        Some(path) => root.at(path)?.flag()?,
        None => false,
    };
    let min = minimum(&meta)?.or(shape.min);
    let min = min.map_or_else(|| shape.all(), |min| min.min(shape.all()));
    share_minimum(&mut shape.roles, min);
    let mut terms = annotated(&meta, min, kind.word());
    terms.with.clear();
    terms.waits_s = shape.waits_s.or(terms.waits_s);
    terms.priority = shape.priority.clone().or(|| shape.templates_priority());
    let mut templates_run = None;
    for role in &shape.roles {
        let saves = saves_of(&role.template.metadata, &mut terms.odd);
        terms.past.saves = saves_together(terms.past.saves, saves);
        templates_run = templates_run.max(runs_of(&role.template.metadata, &mut terms.odd));
    }
    terms.runs_ms = terms.runs_ms.or(templates_run);
    let label = |meta: &Meta, key: &str| meta.labels.get(key).cloned();
    let templates = || shape.roles.iter().map(|role| &role.template.metadata);
    let labelled =
        |key: &str| label(&meta, key).or_else(|| templates().find_map(|m| label(m, key)));
    let quotas = [labelled(keys::QUOTA_NAME), shape.queue.clone()];
    Ok(JobFacts {
        job: JobName {
            word: kind.word(),
            namespace: namespace.to_owned(),
            name: meta.name.clone(),
        },
        api: served(kind, root.get("apiVersion")?.text()?),
        uid: meta.uid.clone(),
        version: meta.resource_version.clone(),
        created: meta.creation_timestamp.as_deref().and_then(moment),
        owner: meta.controller().and_then(|owner| owning(owner, namespace)),
        state: match (shape.is_over, suspended) {
            (true, _) => JobProgress::Over,
            (false, true) => JobProgress::Suspended,
            (false, false) => JobProgress::Released,
        },
        is_preemptible: labelled(keys::QUOTA_PREEMPTIBLE).as_deref() != Some("false"),
        quotas: quotas.into_iter().flatten().collect(),
        terms,
        shape,
    })
}

/// The job that a pod belongs to, and as which member: that of the kind that knows most of it.
#[must_use]
pub fn job_of(pod: &Pod) -> Option<(JobName, JobMember)> {
    let namespace = namespace_of(&pod.metadata);
    // What makes pods through other kinds stands after those.
    let mut kinds = JOB_KINDS.iter().rev();
    kinds.find_map(|kind| {
        let member = kind.member(pod)?;
        let job = JobName {
            word: kind.word(),
            namespace: namespace.to_owned(),
            name: member.job.clone(),
        };
        Some((job, member))
    })
}

impl JobFacts {
    /// The JSON patch that lets the job make its pods, or holds it back; `None` if its kind has no
    /// such field. It fails if another job has the same name now.
    #[must_use]
    pub fn switch(&self, suspend: bool) -> Option<Value> {
        let kind = JOB_KINDS.iter().find(|kind| kind.word() == self.job.word)?;
        let path = format!("/{}", kind.suspend()?.join("/"));
        Some(json!([
            {"op": "test", "path": "/metadata/uid", "value": self.uid},
            {"op": "add", "path": path, "value": suspend},
        ]))
    }
}

/// The job that an owner reference means, if it is one.
fn owning(owner: &OwnerReference, namespace: &str) -> Option<JobName> {
    Some(JobName {
        word: job_kind(&owner.api_version, &owner.kind)?.word(),
        namespace: namespace.to_owned(),
        name: owner.name.clone(),
    })
}

/// The minimum that an annotation says.
fn minimum(meta: &Meta) -> Result<Option<u32>, GroupError> {
    let Some(text) = meta.annotations.get(keys::GANG_MIN) else {
        return Ok(None);
    };
    let wanted = "how many pods must start together, a whole number";
    let min = text.parse().ok().filter(|&min| min <= i32::MAX as u32);
    let min = min.ok_or_else(|| GroupError::of_key("annotations", keys::GANG_MIN, text, wanted))?;
    Ok(Some(min))
}

/// Gives each role without a minimum of its own one: all its members if all must start, else one
/// member, so that no group starts without its master.
fn share_minimum(roles: &mut [JobRole], min: u32) {
    let all = roles.iter().map(|role| role.replicas);
    let is_whole = min >= all.fold(0, u32::saturating_add);
    let mut left = min;
    for role in roles {
        let own = match role.min {
            Some(min) => min.min(role.replicas),
            None if is_whole => role.replicas,
            None => role.replicas.min(1).min(left),
        };
        left = left.saturating_sub(own);
        role.min = Some(own);
    }
}
