//! Pods, PodGroups and jobs, made into groups.
//!
//! A pod belongs to its job if the queue manages the job, else to its gang, else to itself. Only
//! present objects are read: the same objects give the same groups, whatever their order.

mod build;
mod finish;
mod run_times;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use sublet_model::{MiB, PodUid, Time, Unit};
use sublet_queue::{Group, GroupId, QueueReason, RunHistory, Slot};

use self::run_times::{Alike, history};
use super::field::GroupError;
use super::gang::{GangName, GangTerms, PodGroupFacts, gang_of, namespace_of};
use super::job::{JOB_KINDS, JobFacts, JobMember, JobName, JobProgress, job_of};
use super::member::ShapeMemo;
use crate::gang_plan::GangPlan;
use crate::object::Pod;
use crate::pod::is_over;
use crate::quota_index::QuotaIndex;

/// The most groups that one job makes: as many pods as a cluster may have.
const MOST_COPIES: u32 = 150_000;

/// Objects and functions from which groups are made.
#[derive(Clone, Copy)]
pub struct GroupSources<'a> {
    /// Every pod.
    pub pods: &'a [&'a Pod],
    /// PodGroups of all APIs.
    pub pod_groups: &'a [&'a PodGroupFacts],
    /// Jobs of all kinds, with the jobs that they make.
    pub jobs: &'a [&'a JobFacts],
    /// Plans that live.
    pub plans: &'a [&'a GangPlan],
    /// Index of the quota of each pod and job.
    pub quotas: &'a QuotaIndex,
    /// The value of a PriorityClass; for "", the value for pods that name no class.
    pub priority: &'a dyn Fn(&str) -> Option<i32>,
    /// Does the queue look after such a pod? Asked about the templates of jobs too.
    pub is_queued: &'a dyn Fn(&Pod) -> bool,
    /// Unit of memory, for dialects without units of their own.
    pub unit: Unit,
    /// The memory that a whole card counts with.
    pub card: MiB,
    /// Present time, for an object that does not say since when it waits.
    pub now: Time,
}

/// A group, and the objects that it is made of.
#[derive(Debug, Clone)]
pub struct QueuedGroup {
    /// As the queue decides about it.
    pub group: Group,
    /// The job that makes its pods.
    pub job: Option<JobName>,
    /// Its gangs' PodGroups, which may not be there.
    pub gangs: Vec<GangName>,
    /// Its pods.
    pub pods: Vec<MemberPod>,
    /// Longest time that members with a place wait for the others, in seconds.
    pub waits_s: Option<u32>,
    /// Roles whose pods come only when others run. The group does not wait for them.
    pub late: BTreeSet<Arc<str>>,
    /// It is held back by a field of its job, and makes no pods before that is changed.
    pub is_suspended: bool,
}

impl QueuedGroup {
    /// Sentence why members of it wait, the same in events and on paper. A group that runs does not
    /// wait as a whole.
    #[must_use]
    pub fn waits_because(&self, reason: &QueueReason) -> String {
        match self.group.satisfied {
            true => format!("it runs, and more of it wait: {reason}"),
            false => reason.to_string(),
        }
    }

    /// Does a member of the group wait for a place? None waits if the group runs as a whole with
    /// all its members, however much its quota is entitled to.
    #[must_use]
    pub fn waits(&self) -> bool {
        let mut roles = self.group.roles();
        !self.group.satisfied || roles.any(|role| role.members.len() < role.replicas as usize)
    }
}

/// A pod of a group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemberPod {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its UID.
    pub uid: PodUid,
    /// The role.
    pub role: Arc<str>,
    /// Index of the member in its role; `None` if any free index will do.
    pub index: Option<u32>,
    /// Is it on a node?
    pub is_bound: bool,
}

/// An object that cannot be read, and its fault.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupProblem {
    /// Name of the object: a pod, a PodGroup or a job.
    pub of: String,
    /// The fault.
    pub error: GroupError,
}

/// Groups and problems that were found.
#[derive(Debug, Clone, Default)]
pub struct Gathered {
    /// Groups, by name.
    pub groups: Vec<QueuedGroup>,
    /// Objects that cannot be read, or not completely.
    pub problems: Vec<GroupProblem>,
}

/// Makes groups of the present objects. `memo`: shapes that were read in earlier passes.
#[must_use]
pub fn gather<'a>(sources: GroupSources<'a>, memo: &'a mut ShapeMemo) -> Gathered {
    memo.begin();
    let mut gathering = Gathering {
        sources,
        memo,
        jobs: sources.jobs.iter().map(|job| (&job.job, *job)).collect(),
        pod_groups: BTreeMap::new(),
        of_jobs: BTreeMap::new(),
        of_gangs: BTreeMap::new(),
        slots: slots_of(sources.plans),
        groups: BTreeMap::new(),
        problems: Vec::new(),
        history: history(sources.jobs),
    };
    gathering.sort_jobs();
    for &pod in sources.pods {
        gathering.sort_pod(pod);
    }
    gathering.build()
}

/// The slots that a group has, each with its plan's name.
type PlanSlots<'a> = Vec<(&'a Arc<str>, &'a Slot)>;

/// A pod of a job, and which member it is.
type JobPods<'a> = Vec<(&'a Pod, JobMember)>;

/// The pods of a gang, and the terms on its oldest pod that has terms.
#[derive(Default)]
struct GangPods<'a> {
    pods: Vec<&'a Pod>,
    terms: Option<(Option<&'a str>, GangTerms)>,
}

struct Gathering<'a> {
    sources: GroupSources<'a>,
    memo: &'a mut ShapeMemo,
    jobs: BTreeMap<&'a JobName, &'a JobFacts>,
    /// By the gang that they are about.
    pod_groups: BTreeMap<&'a GangName, Vec<&'a PodGroupFacts>>,
    /// By the topmost job, and which of its groups.
    of_jobs: BTreeMap<(&'a JobName, Option<u32>), JobPods<'a>>,
    of_gangs: BTreeMap<GangName, GangPods<'a>>,
    /// By group, the slots of plans, each with the plan's name.
    slots: BTreeMap<&'a str, PlanSlots<'a>>,
    groups: BTreeMap<GroupId, QueuedGroup>,
    problems: Vec<GroupProblem>,
    /// Run times of jobs that have completed.
    history: RunHistory<Alike<'a>>,
}

/// The slots of all plans, by group.
fn slots_of<'a>(plans: &[&'a GangPlan]) -> BTreeMap<&'a str, PlanSlots<'a>> {
    let mut slots: BTreeMap<&str, PlanSlots<'_>> = BTreeMap::new();
    for plan in plans {
        for group in &plan.groups {
            let own = group.slots.iter().map(|slot| (&plan.name, slot));
            slots.entry(group.id.as_str()).or_default().extend(own);
        }
    }
    slots
}

impl<'a> Gathering<'a> {
    /// The job above all others that a job was made by; none while one on the way is not there.
    fn top(&self, job: &'a JobFacts) -> Option<&'a JobFacts> {
        let mut top = job;
        // Owners in a circle can be written, and mean nothing.
        for _ in 0..JOB_KINDS.len() {
            match &top.owner {
                Some(owner) => top = self.jobs.get(owner)?,
                None => break,
            }
        }
        Some(top)
    }

    /// The object that says which pods a job makes.
    fn shaped(&self, job: &'a JobFacts) -> Option<&'a JobFacts> {
        let kind = JOB_KINDS.iter().find(|kind| kind.word() == job.job.word)?;
        let Some(word) = kind.made_of() else {
            return Some(job);
        };
        let made = JobName {
            word,
            ..job.job.clone()
        };
        self.jobs.get(&made).copied()
    }

    /// Does the queue look after a job?
    fn is_queued(&self, job: &'a JobFacts) -> bool {
        let shaped = self.shaped(job);
        let roles = shaped.into_iter().flat_map(|job| &job.shape.roles);
        let mut templates = roles.map(|role| &role.template);
        job.state != JobProgress::Over
            && templates.any(|template| (self.sources.is_queued)(template))
    }

    /// Enters the topmost jobs, whether or not they have pods.
    fn sort_jobs(&mut self) {
        for &job in self.sources.jobs {
            let is_topmost = self.top(job).is_some_and(|top| top.job == job.job);
            if !is_topmost || !self.is_queued(job) {
                continue;
            }
            match job.shape.copies {
                None => _ = self.of_jobs.entry((&job.job, None)).or_default(),
                Some(copies) => {
                    for copy in 0..copies.min(MOST_COPIES) {
                        self.of_jobs.entry((&job.job, Some(copy))).or_default();
                    }
                }
            }
        }
    }

    fn sort_pod(&mut self, pod: &'a Pod) {
        let is_bound = !pod.spec.node_name.is_empty();
        if pod.metadata.deletion_timestamp.is_some() && !is_bound {
            return;
        }
        let found = job_of(pod);
        let job = found.as_ref().and_then(|(job, _)| self.jobs.get(job));
        let top = job.and_then(|job| self.top(job)).map(|top| &top.job);
        if let (Some(top), Some((_, member))) = (top, &found)
            && let Some(pods) = self.of_jobs.get_mut(&(top, member.copy))
        {
            if !is_over(pod) {
                pods.push((pod, member.clone()));
            }
            return;
        }
        if !(self.sources.is_queued)(pod) {
            return;
        }
        // Its job may be told of later than the pod, or a job above it. Alone it would start too soon.
        if let (None, Some((job, _))) = (top, found)
            && !is_bound
            && !is_over(pod)
            && pod.metadata.controller().is_some()
        {
            let what = format!("it belongs to {job}, which is not there, or what made that is not");
            let field = "metadata.ownerReferences".to_owned();
            return self.problem(pod_name(pod), GroupError { field, what });
        }
        match gang_of(pod) {
            Ok(None) if is_over(pod) => {}
            Ok(None) => self.lone_pod(pod),
            Ok(Some(found)) => {
                let gang = self.of_gangs.entry(found.gang).or_default();
                let created = pod.metadata.creation_timestamp.as_deref();
                let is_older = |terms: &(Option<&str>, GangTerms)| created < terms.0;
                if let Some(terms) = found
                    .terms
                    .filter(|_| gang.terms.as_ref().is_none_or(is_older))
                {
                    gang.terms = Some((created, terms));
                }
                gang.pods.push(pod);
            }
            Err(error) => self.problem(pod_name(pod), error),
        }
    }

    fn problem(&mut self, of: String, error: GroupError) {
        self.problems.push(GroupProblem { of, error });
    }

    fn build(mut self) -> Gathered {
        for ((job, copy), pods) in std::mem::take(&mut self.of_jobs) {
            let job = self.jobs[job];
            self.job(job, copy, &pods);
        }
        let mut gangs = std::mem::take(&mut self.of_gangs);
        for &facts in self.sources.pod_groups {
            self.pod_groups.entry(&facts.gang).or_default().push(facts);
            // A gang of pods that its operator's job accounts for has none of its own here.
            let Some(gang) = gangs.get_mut(&facts.gang) else {
                continue;
            };
            gang.terms = Some((None, facts.terms.clone()));
        }
        self.gangs(&gangs);
        Gathered {
            groups: self.groups.into_values().collect(),
            problems: self.problems,
        }
    }
}

/// Name of a pod in messages.
fn pod_name(pod: &Pod) -> String {
    format!("pod/{}/{}", namespace_of(&pod.metadata), pod.metadata.name)
}
