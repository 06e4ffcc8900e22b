//! A group of its parts, with the places that its members have.

use std::collections::BTreeSet;
use std::sync::Arc;

use sublet_model::{Class, NodeName, PodUid, Standing, Time};
use sublet_queue::{Gang, GangRole, Group, GroupId, Member, SlotKey};

use super::build::{GangParts, Parts, RoleParts, is_bound};
use super::{MemberPod, PlanSlots, QueuedGroup};
use crate::group::field::moment;
use crate::group::gang::namespace_of;
use crate::group::job::JobProgress;
use crate::object::Pod;
use crate::pod::pod_uid;

impl<'a> Parts<'a> {
    pub(super) fn id(&self) -> &str {
        &self.id
    }

    /// The group, with the places that its members have.
    /// `guess`: milliseconds that it may run, if it does not say it.
    pub(super) fn finish(
        self,
        slots: &PlanSlots<'_>,
        guess: Option<u64>,
        now: Time,
    ) -> QueuedGroup {
        let late = self.roles().filter(|role| role.is_late);
        let late = late.map(|role| Arc::clone(&role.name)).collect();
        let (class, started, pods) = (self.class(), self.started(), self.member_pods());
        let Parts { id, terms, job, .. } = self;
        let id = GroupId::new(id);
        let runs_for = job.and_then(|job| job.shape.runs_for_s);
        let runs_for_ms = runs_for.map(|s| s.saturating_mul(1000));
        // Whoever says both runs no longer than either.
        let declared = [terms.runs_ms, runs_for_ms].into_iter().flatten().min();
        let mut is_satisfied = true;
        let mut gangs = Vec::new();
        for gang in self.gangs {
            let (gang, is_enough) = gang.finish(&id, slots);
            is_satisfied &= is_enough;
            gangs.push(gang);
        }
        QueuedGroup {
            group: Group {
                id,
                quota: self.quota,
                priority: self.priority,
                class,
                preemptible: self.is_preemptible,
                since: self.since.unwrap_or(now),
                not_before: None,
                gangs,
                mode: terms.mode,
                matching: terms.matching,
                satisfied: is_satisfied,
                ends: runs_for_ms.map(|ms| started.unwrap_or(now).plus_ms(ms)),
                runs_ms: declared.or(guess),
                started,
                past: terms.past,
            },
            job: job.map(|job| job.job.clone()),
            gangs: self.named,
            pods,
            waits_s: terms.waits_s,
            late,
            is_suspended: job.is_some_and(|job| job.state == JobProgress::Suspended),
        }
    }

    pub(super) fn roles(&self) -> impl Iterator<Item = &RoleParts<'a>> {
        self.gangs.iter().flat_map(|gang| &gang.roles)
    }

    fn class(&self) -> Class {
        let is_opportunistic =
            |role: &RoleParts<'a>| role.shape.claim.class() == Class::Opportunistic;
        match self.roles().all(is_opportunistic) {
            true => Class::Opportunistic,
            false => Class::Guaranteed,
        }
    }

    /// The moment at which the job says that it started, if a member has; else that of the first
    /// member.
    fn started(&self) -> Option<Time> {
        let bound = self
            .roles()
            .flat_map(|role| &role.pods)
            .filter(|(pod, _)| is_bound(pod));
        let start_of = |pod: &Pod| pod.status.start_time.as_deref().and_then(moment);
        let began = bound.filter_map(|(pod, _)| start_of(pod)).min();
        let of_job = self.job.and_then(|job| job.shape.started);
        began.and(of_job).or(began)
    }

    fn member_pods(&self) -> Vec<MemberPod> {
        let mut members = Vec::new();
        for role in self.roles() {
            let pods = role.pods.iter();
            members.extend(pods.filter_map(|(pod, index)| role.member(pod, *index)));
        }
        members
    }
}

impl GangParts<'_> {
    /// The gang with its members, and whether enough of them are on nodes.
    fn finish(self, group: &GroupId, slots: &PlanSlots<'_>) -> (Gang, bool) {
        let (mut n_bound, mut n_later) = (self.succeeded, 0u32);
        let mut roles = Vec::new();
        for role in self.roles {
            let members = role.members(group, slots);
            let is_there = |member: &&Member| member.standing == Standing::Bound;
            // Who comes when the others run is not waited for.
            match role.is_late {
                true => n_later = n_later.saturating_add(role.min),
                false => n_bound += members.iter().filter(is_there).count() as u32,
            }
            roles.push(GangRole {
                name: role.name,
                min: role.min,
                replicas: role.replicas,
                pod: role.shape,
                members,
            });
        }
        let is_enough = n_bound >= self.min.saturating_sub(n_later) && n_bound > 0;
        let gang = Gang {
            name: self.name,
            min: self.min.saturating_sub(self.succeeded),
            roles,
        };
        (gang, is_enough)
    }
}

impl RoleParts<'_> {
    fn member(&self, pod: &Pod, index: Option<u32>) -> Option<MemberPod> {
        Some(MemberPod {
            namespace: namespace_of(&pod.metadata).to_owned(),
            name: pod.metadata.name.clone(),
            uid: pod_uid(pod).ok()?,
            role: Arc::clone(&self.name),
            index: index.filter(|&index| index < self.replicas),
            is_bound: is_bound(pod),
        })
    }

    /// Members that have a place: pods on nodes, and slots of plans whose pod is not on a node yet.
    fn members(&self, group: &GroupId, slots: &PlanSlots<'_>) -> Vec<Member> {
        let mut wanted: Vec<(Option<u32>, PodUid, NodeName, Standing)> = Vec::new();
        let mut on_nodes = BTreeSet::new();
        for (pod, index) in self.pods.iter().filter(|(pod, _)| is_bound(pod)) {
            if let (Ok(uid), Ok(node)) = (pod_uid(pod), NodeName::new(&pod.spec.node_name)) {
                on_nodes.insert(uid.clone());
                wanted.push((*index, uid, node, Standing::Bound));
            }
        }
        for &(plan, slot) in slots.iter().filter(|(_, slot)| slot.role == self.name) {
            let own = || SlotKey::of(plan, group, slot).uid();
            let uid = slot.pod.clone().map_or_else(own, Ok);
            let Some(uid) = uid.ok().filter(|uid| !on_nodes.contains(uid)) else {
                continue;
            };
            wanted.push((Some(slot.index), uid, slot.node.clone(), Standing::Reserved));
        }
        numbered(wanted, self.replicas)
    }
}

/// Gives each member the index that it wants. A member that wants none, or one that is taken, gets
/// the lowest free index. Members may want an index beyond the replicas if members before them have
/// ended.
fn numbered(wanted: Vec<(Option<u32>, PodUid, NodeName, Standing)>, replicas: u32) -> Vec<Member> {
    let mut taken = BTreeSet::new();
    let mut members = Vec::new();
    let mut others = Vec::new();
    for (index, uid, node, standing) in wanted {
        match index.filter(|&index| index < replicas && taken.insert(index)) {
            Some(index) => members.push(Member {
                index,
                uid,
                node,
                standing,
            }),
            None => others.push((uid, node, standing)),
        }
    }
    let mut free = (0..=u32::MAX).filter(|index| !taken.contains(index));
    for (uid, node, standing) in others {
        members.extend(free.next().map(|index| Member {
            index,
            uid,
            node,
            standing,
        }));
    }
    members.sort_by_key(|member| member.index);
    members
}
