//! One group of its parts: roles with shapes, members with places.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use sublet_model::Time;
use sublet_queue::MemberShape;

use super::run_times::alike;
use super::{GangPods, Gathering, GroupSources, JobPods, pod_name};
use crate::gang_plan::slot_of;
use crate::group::field::{GroupError, moment};
use crate::group::gang::{GangName, GangTerms, namespace_of};
use crate::group::job::JobFacts;
use crate::group::past::{joined, runs_of, saves_of, saves_together};
use crate::group::priority::AskedPriority;
use crate::keys;
use crate::object::Pod;
use crate::pod::{is_over, pod_uid};

/// The role of a pod that is a group of one.
const LONE: &str = "pod";

/// Parts of a group.
pub(super) struct Parts<'a> {
    pub(super) id: Arc<str>,
    pub(super) quota: Arc<str>,
    pub(super) priority: i32,
    pub(super) is_preemptible: bool,
    pub(super) since: Option<Time>,
    pub(super) terms: GangTerms,
    pub(super) gangs: Vec<GangParts<'a>>,
    /// The queue's own object, if it is a job.
    pub(super) job: Option<&'a JobFacts>,
    pub(super) named: Vec<GangName>,
}

/// A gang of it.
pub(super) struct GangParts<'a> {
    pub(super) name: Arc<str>,
    pub(super) min: u32,
    /// Members that have ended well.
    pub(super) succeeded: u32,
    pub(super) roles: Vec<RoleParts<'a>>,
}

/// Equal members.
pub(super) struct RoleParts<'a> {
    pub(super) name: Arc<str>,
    pub(super) min: u32,
    pub(super) replicas: u32,
    pub(super) is_late: bool,
    pub(super) shape: Arc<MemberShape>,
    /// Pods, and which one of the role each is.
    pub(super) pods: Vec<(&'a Pod, Option<u32>)>,
}

impl<'a> Gathering<'a> {
    /// A pod that starts for itself.
    pub(super) fn lone_pod(&mut self, pod: &'a Pod) {
        let id = pod_name(pod);
        let Some(shape) = self.shape(&id, &pod.metadata.resource_version, pod) else {
            return;
        };
        let quota = self.quota_of(&id, pod.metadata.labels.get(keys::QUOTA_NAME), pod);
        let role = RoleParts {
            name: LONE.into(),
            min: 1,
            replicas: 1,
            is_late: false,
            shape,
            pods: vec![(pod, Some(0))],
        };
        let parts = Parts {
            quota,
            priority: self.priority_of(&id, &AskedPriority::default(), &[pod]),
            is_preemptible: is_preemptible(pod),
            since: created(pod),
            terms: GangTerms::default(),
            gangs: vec![GangParts {
                name: LONE.into(),
                min: 1,
                succeeded: 0,
                roles: vec![role],
            }],
            job: None,
            named: Vec::new(),
            id: id.into(),
        };
        self.enter(parts);
    }

    /// Makes groups of gangs. Gangs that start together are in one group.
    pub(super) fn gangs(&mut self, gangs: &BTreeMap<GangName, GangPods<'a>>) {
        let mut done: BTreeSet<&GangName> = BTreeSet::new();
        for (name, gang) in gangs {
            let Some((_, terms)) = &gang.terms else {
                let what = format!(
                    "it starts with {name}, which is not there: create the PodGroup, or say the \
                     minimum on the pods"
                );
                let of = gang
                    .pods
                    .first()
                    .map_or_else(String::new, |pod| pod_name(pod));
                let field = "metadata".to_owned();
                self.problem(of, GroupError { field, what });
                continue;
            };
            if !done.insert(name) {
                continue;
            }
            for odd in &terms.odd {
                self.problem(name.to_string(), odd.clone());
            }
            let with: Vec<&GangName> = match terms.with.contains(name) {
                true => terms.with.iter().collect(),
                false => vec![name],
            };
            done.extend(with.iter().copied());
            self.gangs_together(&with, gangs, terms);
        }
    }

    fn gangs_together(
        &mut self,
        names: &[&GangName],
        gangs: &BTreeMap<GangName, GangPods<'a>>,
        terms: &GangTerms,
    ) {
        let mut id = names[0].to_string();
        for other in &names[1..] {
            id = format!("{id}+{}/{}", other.namespace, other.name);
        }
        let mut all: Vec<&'a Pod> = Vec::new();
        let mut parts = Vec::new();
        for &name in names {
            let known = gangs.get(name);
            let terms = known.and_then(|gang| gang.terms.as_ref());
            let pods = known.map_or(&[][..], |gang| &gang.pods);
            let succeeded = pods.iter().filter(|pod| has_succeeded(pod)).count();
            let prefix = match names.len() {
                1 => String::new(),
                _ => format!("{}/{}/", name.namespace, name.name),
            };
            parts.push(GangParts {
                name: format!("{}/{}", name.namespace, name.name).into(),
                // Of a gang that is not there yet at least one must come.
                min: terms.map_or(1, |(_, terms)| terms.min),
                succeeded: u32::try_from(succeeded).unwrap_or(u32::MAX),
                roles: self.roles(&prefix, pods),
            });
            all.extend(pods.iter().filter(|pod| !is_over(pod)));
        }
        if all.is_empty() {
            return;
        }
        let objects = names.iter().filter_map(|name| self.pod_groups.get(name));
        let objects: Vec<_> = objects.flatten().copied().collect();
        let labels = all
            .iter()
            .filter_map(|pod| pod.metadata.labels.get(keys::QUOTA_NAME));
        let named = objects.iter().filter_map(|facts| facts.quota.as_ref());
        let named = named.chain(labels).next();
        let made = objects.iter().filter_map(|facts| facts.created).min();
        let known = names.iter().filter_map(|&name| gangs.get(name));
        let known = known.filter_map(|gang| Some(&gang.terms.as_ref()?.1));
        let pasts = known.clone().map(|terms| &terms.past);
        let parts = Parts {
            quota: self.quota_of(&id, named, all[0]),
            priority: self.priority_of(&id, &terms.priority, &all),
            is_preemptible: all.iter().all(|pod| is_preemptible(pod)),
            since: made.or_else(|| all.iter().filter_map(|pod| created(pod)).min()),
            terms: GangTerms {
                past: pasts.fold(terms.past.clone(), |all, past| joined(&all, past)),
                runs_ms: known.fold(terms.runs_ms, |all, terms| all.max(terms.runs_ms)),
                ..terms.clone()
            },
            gangs: parts,
            job: None,
            named: names.iter().map(|&name| name.clone()).collect(),
            id: id.into(),
        };
        self.enter(parts);
    }

    /// The roles of pods. Pods with the same request have one role. A pod with a slot has the
    /// slot's role, because its request includes its node.
    fn roles(&mut self, prefix: &str, pods: &[&'a Pod]) -> Vec<RoleParts<'a>> {
        let mut roles: BTreeMap<Arc<str>, RoleParts<'a>> = BTreeMap::new();
        let with_slot = |pod: &&&Pod| slot_of(pod).is_some();
        let (slotted, free): (Vec<&&Pod>, Vec<&&Pod>) =
            pods.iter().filter(|pod| !is_over(pod)).partition(with_slot);
        for &pod in free.into_iter().chain(slotted) {
            let of = pod_name(pod);
            let Some(shape) = self.shape(&of, &pod.metadata.resource_version, pod) else {
                continue;
            };
            let (name, index) = match slot_of(pod) {
                Some(slot) => (slot.key.role.to_string(), Some(slot.key.index)),
                None => (format!("{prefix}{}", self.memo.role(&of, &shape)), None),
            };
            let name: Arc<str> = name.into();
            let role = roles.entry(Arc::clone(&name)).or_insert_with(|| RoleParts {
                name,
                min: 0,
                replicas: 0,
                is_late: false,
                shape,
                pods: Vec::new(),
            });
            role.replicas += 1;
            role.pods.push((pod, index));
        }
        roles.into_values().collect()
    }

    /// A job, or one of the groups that it makes.
    pub(super) fn job(&mut self, job: &'a JobFacts, copy: Option<u32>, pods: &JobPods<'a>) {
        let id = match copy {
            None => job.job.to_string(),
            Some(copy) => format!("{}/{copy}", job.job),
        };
        let Some(shaped) = self.shaped(job) else {
            return;
        };
        let of_shape = Some(&shaped.terms.odd).filter(|_| shaped.job != job.job);
        for odd in job.terms.odd.iter().chain(of_shape.into_iter().flatten()) {
            self.problem(id.clone(), odd.clone());
        }
        let mut roles = Vec::new();
        for role in &shaped.shape.roles {
            let of = format!("{}, role {}", shaped.job, role.name);
            let Some(shape) = self.shape(&of, &shaped.version, &role.template) else {
                return;
            };
            let own = pods.iter().filter(|(_, member)| member.role == role.name);
            let own = own.map(|(pod, member)| {
                let index = member.index.map(|index| {
                    let before = index.saturating_mul(role.each.max(1));
                    before.saturating_add(member.within)
                });
                let slot = slot_of(pod).filter(|slot| *slot.key.role == *role.name);
                (*pod, slot.map(|slot| slot.key.index).or(index))
            });
            roles.push(RoleParts {
                name: role.name.as_str().into(),
                min: role.min.unwrap_or(role.replicas),
                replicas: role.replicas,
                is_late: role.is_late,
                shape,
                pods: own.collect(),
            });
        }
        let quotas = self.sources.quotas;
        let named = job.quotas.iter().chain(&shaped.quotas);
        let asked = job.terms.priority.clone();
        let asked = asked.or(|| shaped.terms.priority.clone());
        let parts = Parts {
            quota: quotas.of(named, &job.job.namespace).quota,
            priority: self.priority_of(&id, &asked, &[]),
            is_preemptible: job.is_preemptible && shaped.is_preemptible,
            since: job.created,
            terms: GangTerms {
                mode: job.terms.mode,
                matching: job.terms.matching,
                waits_s: job.terms.waits_s.or(shaped.terms.waits_s),
                past: joined(&job.terms.past, &shaped.terms.past),
                runs_ms: job.terms.runs_ms.or(shaped.terms.runs_ms),
                ..shaped.terms.clone()
            },
            gangs: vec![GangParts {
                name: job.job.name.as_str().into(),
                min: shaped.terms.min,
                succeeded: 0,
                roles,
            }],
            job: Some(job),
            named: Vec::new(),
            id: id.into(),
        };
        self.enter(parts);
    }

    fn shape(&mut self, of: &str, version: &str, pod: &Pod) -> Option<Arc<MemberShape>> {
        let GroupSources { unit, card, .. } = self.sources;
        let shape = self.memo.shape(of, version, (unit, card), pod);
        let shape = shape.and_then(|shape| {
            // What has a place is known by its UID.
            let is_template = pod.metadata.name.is_empty();
            let uid = pod_uid(pod).map_err(|error| GroupError {
                field: "metadata.uid".to_owned(),
                what: error.to_string(),
            });
            (is_template || uid.is_ok())
                .then_some(shape)
                .ok_or_else(|| uid.unwrap_err())
        });
        match shape {
            Ok(shape) => Some(shape),
            Err(error) => {
                self.problem(of.to_owned(), error);
                None
            }
        }
    }

    fn quota_of(&mut self, of: &str, named: Option<&String>, pod: &Pod) -> Arc<str> {
        let found = self.sources.quotas.of(named, namespace_of(&pod.metadata));
        if let Some(unknown) = found.unknown {
            let what = format!(
                "it names the quota {unknown}, which is not there; it counts as if it had no label"
            );
            let field = format!("metadata.labels.{}", keys::QUOTA_NAME);
            self.problem(of.to_owned(), GroupError { field, what });
        }
        found.quota
    }

    /// Priority of a group: its own request, else the priority of its pods, else the default.
    fn priority_of(&mut self, of: &str, asked: &AskedPriority, pods: &[&Pod]) -> i32 {
        let class = self.sources.priority;
        let of_pod = |pod: &&Pod| {
            let spec = &pod.spec;
            spec.priority.or_else(|| class(&spec.priority_class_name))
        };
        let of_pods = || pods.iter().filter_map(of_pod).max();
        match asked.resolve(class) {
            Ok(priority) => priority.or_else(of_pods).or_else(|| class("")).unwrap_or(0),
            Err(name) => {
                let what = format!("there is no PriorityClass {name}: it counts as 0");
                let field = "priorityClassName".to_owned();
                self.problem(of.to_owned(), GroupError { field, what });
                0
            }
        }
    }

    fn enter(&mut self, mut parts: Parts<'_>) {
        self.look_at_pods(&mut parts);
        let slots = self.slots.remove(parts.id()).unwrap_or_default();
        let job = parts.job.map(|job| &job.job);
        let guess = job.and_then(|job| self.history.guess(&alike(job)));
        let group = parts.finish(&slots, guess, self.sources.now);
        self.groups.insert(group.group.id.clone(), group);
    }

    /// Looks which work its running pods have saved, and how long its pods say that they run. Of those
    /// that cannot be read one is told: they come from one template.
    fn look_at_pods(&mut self, parts: &mut Parts<'_>) {
        let (mut saves, mut runs) = (parts.terms.past.saves, None);
        let mut first = None;
        for (pod, _) in parts.roles().flat_map(|role| &role.pods) {
            let mut odd = Vec::new();
            runs = runs.max(runs_of(&pod.metadata, &mut odd));
            if is_bound(pod) {
                saves = saves_together(saves, saves_of(&pod.metadata, &mut odd));
            }
            first = first.or_else(|| Some((pod_name(pod), odd.into_iter().next()?)));
        }
        parts.terms.past.saves = saves;
        parts.terms.runs_ms = parts.terms.runs_ms.or(runs);
        if let Some((pod, error)) = first {
            self.problem(pod, error);
        }
    }
}

pub(super) fn is_bound(pod: &Pod) -> bool {
    !pod.spec.node_name.is_empty()
}

fn has_succeeded(pod: &Pod) -> bool {
    is_over(pod) && pod.status.phase == "Succeeded"
}

fn is_preemptible(pod: &Pod) -> bool {
    let label = pod.metadata.labels.get(keys::QUOTA_PREEMPTIBLE);
    label.is_none_or(|label| label != "false")
}

fn created(pod: &Pod) -> Option<Time> {
    pod.metadata.creation_timestamp.as_deref().and_then(moment)
}
