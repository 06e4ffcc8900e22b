//! One look at everything, and its results. Pure: the engine decides, and here its decisions become
//! plans, and plans become steps.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sublet_api::gang_plan::{GangPlan, MOST_SLOTS, PlannedRole, plan_to_object};
use sublet_api::group::{NamespaceLabels, QueueScope, QueueSources, QueuedGroup};
use sublet_api::object::Pod;
use sublet_api::{QueueState, add_amounts, has_scheduling_gate, pod_uid};
use sublet_client::{Act, Write};
use sublet_model::{Time, Victim};
use sublet_plan::Engine;
use sublet_queue::protocol::PlannedGroup;
use sublet_queue::{
    Amounts, Group, GroupId, QueueDecision, QueueRules, QueueSnapshot, QueueVictim, Slot, plan,
};
use sublet_scheduler::ClusterSnapshot;

use super::memory::Memory;
use super::reclaims::count_first;
use super::report::{ReportInputs, StatusReport, status_report};
use super::reporter::Room;
use super::steps::{ProtocolSnapshot, Step, Then, plan_address, replacement};
use super::watched_state::{WatchedPlan, WatchedState, counts};

/// Time that members with a place wait for the others by default, as in Koordinator.
const WAITS_S: u32 = 600;

/// Time that a plan with victims lasts longer: the victims' grace, and some more.
const VICTIMS_S: u32 = 120;

/// Without a change everything is looked at again after this time, if something is under way.
const AGAIN: Duration = Duration::from_secs(2);

/// The same if nothing is: a look costs as much whatever it finds. Groups are found within this time to
/// have waited long.
const IDLE: Duration = Duration::from_secs(20);

/// A group's part of a plan that is written.
type Planned = PlannedGroup<PlannedRole>;

/// A pod that may have a slot, and which one if it is to be a certain one.
type Candidate<'a> = (Option<u32>, &'a Arc<Pod>);

/// Input of a look.
pub(crate) struct QueueLook<'a> {
    pub(crate) watched: &'a WatchedState,
    pub(crate) namespaces: &'a NamespaceLabels,
    pub(crate) scope: &'a QueueScope,
    pub(crate) rules: &'a QueueRules,
    /// The leadership that writes.
    pub(crate) epoch: u64,
    /// When is looked, and when a renewal of the Lease was sent that has been confirmed.
    pub(crate) at: (Instant, Instant),
    pub(crate) now: Time,
    /// Room for messages.
    pub(crate) room: Room,
}

/// Output of a look: the writes.
#[derive(Debug, Default)]
pub(crate) struct Round {
    /// Writes that the protocol needs, in any order.
    pub(crate) steps: Vec<Step>,
    /// Messages to people.
    pub(crate) report: StatusReport,
    /// Nothing is under way, and nothing is left to tell: the time of the next look, unless
    /// something changes before.
    pub(crate) idle: Option<Duration>,
}

impl Round {
    /// Longest time until the next look, if nothing changes.
    pub(crate) fn again(&self) -> Duration {
        self.idle.unwrap_or(AGAIN)
    }
}

impl QueueLook<'_> {
    /// Looks at everything once.
    pub(crate) fn round(
        &self,
        mut cluster: ClusterSnapshot<'_>,
        memory: &mut Memory,
        names: &mut u64,
    ) -> Round {
        let mut round = Round::default();
        let state = self.state(cluster.engine, memory);
        let groups = state.gathered.groups.iter();
        let groups: BTreeMap<&str, &QueuedGroup> = groups
            .map(|group| (group.group.id.as_str(), group))
            .collect();
        memory.keep(|group| groups.contains_key(group), self.now);
        memory.keep_plans(|plan| self.watched.plans.contains_key(plan));
        let is_settled = self.follow_plans(&groups, memory, &mut round);
        let version = |name: &str| match &self.watched.plans.get(name)?.plan {
            Ok(plan) => Some(plan.version.to_string()),
            Err(_) => Some(String::new()),
        };
        if !memory.has_all(version, self.now) || !is_settled {
            return round;
        }
        let decisions = self.decide(&mut cluster, &state, memory);
        memory.hold = decisions.iter().find_map(|decision| match decision {
            QueueDecision::Hold(hold) => Some(hold.clone()),
            _ => None,
        });
        let room = decisions.iter().filter_map(|decision| match decision {
            QueueDecision::Explain {
                group, room_since, ..
            } => Some((group.clone(), (*room_since)?)),
            _ => None,
        });
        memory.room_since = room.collect();
        self.write_plans(&decisions, &groups, names, &mut round);
        let inputs = ReportInputs {
            look: self,
            state: &state,
            decisions: &decisions,
        };
        round.report = status_report(&inputs, memory);
        round.idle = self.idle(&round, memory);
        round
    }

    /// Time for which nothing happens by itself; none while something is under way.
    fn idle(&self, round: &Round, memory: &Memory) -> Option<Duration> {
        if !round.steps.is_empty() || memory.is_unsettled() {
            return None;
        }
        let plans = self.watched.plans.values();
        let plans = plans.filter_map(|watched| watched.plan.as_deref().ok());
        let deadlines = plans.map(|plan| plan.deadline);
        let next = deadlines.chain(memory.again(self.now));
        let next = next.filter(|at| *at > self.now).min();
        let left = next.map(|at| Duration::from_millis(at.ms() - self.now.ms()));
        Some(left.map_or(IDLE, |left| left.min(IDLE)))
    }

    fn state(&self, engine: &Engine, memory: &mut Memory) -> QueueState {
        let mut nodes = Amounts::new();
        for node in self.watched.nodes.values() {
            add_amounts(&mut nodes, node, 1);
        }
        let groups = self.watched.pod_groups.values();
        let plans = self.watched.plans.values();
        let plans = plans.filter_map(|watched| watched.plan.as_deref().ok());
        let pods = self.watched.pods.values().map(|pod| &**pod);
        let sources = QueueSources {
            pods: &pods.collect::<Vec<_>>(),
            nodes: Some(&nodes),
            pod_groups: &groups.map(|group| &group.facts).collect::<Vec<_>>(),
            jobs: &self.watched.jobs.values().collect::<Vec<_>>(),
            plans: &plans.collect::<Vec<_>>(),
            quotas: &self.watched.quotas.values().collect::<Vec<_>>(),
            classes: &self.watched.classes,
            namespaces: self.namespaces,
            scope: self.scope,
            now: self.now,
        };
        let mut shapes = std::mem::take(&mut memory.shapes);
        let ran = |group: &str, whole| memory.ran_whole(group, whole);
        let state = QueueState::of(sources, engine, &mut shapes, ran);
        memory.shapes = shapes;
        state
    }

    /// Collects the steps due for all plans. False: one is not as it should be yet, so nothing new
    /// is decided.
    fn follow_plans(
        &self,
        groups: &BTreeMap<&str, &QueuedGroup>,
        memory: &mut Memory,
        round: &mut Round,
    ) -> bool {
        let snapshot = ProtocolSnapshot::new(self.watched, groups, memory, (self.epoch, self.now));
        let mut is_settled = true;
        for (name, WatchedPlan { uid, made, plan }) in &self.watched.plans {
            match plan {
                Err(error) => {
                    tracing::warn!(plan = name, %error, "a plan that cannot be read goes");
                    round.steps.push(deletion(name, uid));
                }
                Ok(plan) => {
                    is_settled &= plan.epoch == self.epoch;
                    let is_confirmed = plan.epoch > self.epoch
                        && memory.outranks_nobody(name, &plan.version, self.at);
                    if is_confirmed {
                        let (theirs, ours) = (plan.epoch, self.epoch);
                        tracing::warn!(plan = name, theirs, ours, "a plan of nobody's goes");
                    }
                    if memory.is_fresh(name, &plan.version) {
                        let mut steps = snapshot.steps((plan, uid), is_confirmed, memory);
                        count_first(&mut steps, (plan, *made), self.watched, groups, memory);
                        round.steps.extend(steps);
                    }
                }
            }
        }
        if is_settled {
            round.steps.extend(snapshot.stranded(memory));
        }
        is_settled
    }

    fn decide(
        &self,
        cluster: &mut ClusterSnapshot<'_>,
        state: &QueueState,
        memory: &mut Memory,
    ) -> Vec<QueueDecision> {
        let group = |queued: &QueuedGroup| {
            let mut group = queued.group.clone();
            group.not_before = memory.not_before(group.id.as_str());
            group.past.room_since = memory.room_since.get(&group.id).copied();
            group
        };
        let groups: Vec<Group> = state.gathered.groups.iter().map(group).collect();
        plan(
            QueueSnapshot {
                engine: cluster.engine,
                nodes: &cluster.nodes,
                tree: &state.quotas.tree,
                totals: &state.quotas.totals,
                groups: &groups,
                hold: memory.hold.as_ref(),
                breaks: cluster.breaks,
                rules: self.rules,
                memo: &mut memory.engine,
            },
            self.now,
        )
    }

    /// Admissions go into plans of as many groups as fit; each eviction has a plan of its own, so that
    /// nobody else waits for its victims.
    fn write_plans(
        &self,
        decisions: &[QueueDecision],
        groups: &BTreeMap<&str, &QueuedGroup>,
        names: &mut u64,
        round: &mut Round,
    ) {
        let mut plans: Vec<(Vec<Planned>, u32)> = Vec::new();
        let mut open: Vec<Planned> = Vec::new();
        let live = self.watched.plans.values();
        let live = live.filter_map(|watched| watched.plan.as_deref().ok());
        let live = live.flat_map(|plan| plan.groups.iter().map(move |part| (&part.id, plan)));
        let live: BTreeMap<&GroupId, &GangPlan> = live.collect();
        let (mut slots_in, mut waits) = (0, WAITS_S);
        for decision in decisions {
            let (id, slots, victims) = match decision {
                QueueDecision::Admit { group, slots } => (group, slots, Vec::new()),
                QueueDecision::Evict {
                    group,
                    slots,
                    victims,
                } => (group, slots, self.victims(victims)),
                _ => continue,
            };
            let Some(queued) = groups.get(id.as_str()) else {
                continue;
            };
            if slots.is_empty() {
                continue;
            }
            let planned = self.planned(queued, slots, victims);
            let waits_s = queued.waits_s.unwrap_or(WAITS_S);
            // A group is in one plan: a second would be given up again at once.
            if let Some(plan) = live.get(id) {
                let until = self.now.plus_ms(u64::from(waits_s) * 1_000);
                let grown = grown(plan, queued, planned, until);
                let is_due = |step: &Step| step.write.to == plan_address(&plan.name);
                if !round.steps.iter().any(is_due) {
                    round.steps.extend(grown.map(|plan| replacement(&plan)));
                }
                continue;
            }
            if !planned.victims.is_empty() {
                plans.push((vec![planned], waits_s.saturating_add(VICTIMS_S)));
                continue;
            }
            if slots_in + slots.len() > MOST_SLOTS {
                plans.push((std::mem::take(&mut open), waits));
                (slots_in, waits) = (0, WAITS_S);
            }
            slots_in += slots.len();
            waits = match open.is_empty() {
                true => waits_s,
                false => waits.max(waits_s),
            };
            open.push(planned);
        }
        if !open.is_empty() {
            plans.push((open, waits));
        }
        for (groups, waits_s) in plans {
            *names += 1;
            let name = format!("plan-{}-{names}", self.epoch);
            round.steps.push(self.creation(name, groups, waits_s));
        }
    }

    fn creation(&self, name: String, groups: Vec<Planned>, waits_s: u32) -> Step {
        let plan = GangPlan {
            name: name.as_str().into(),
            version: "".into(),
            epoch: self.epoch,
            deadline: self.now.plus_ms(u64::from(waits_s) * 1_000),
            groups,
        };
        Step {
            write: Write {
                to: plan_address(&name),
                act: Act::Create(plan_to_object(&plan)),
            },
            then: Then::Planned(name),
        }
    }

    fn victims(&self, victims: &[QueueVictim]) -> Vec<Victim> {
        let pods = victims.iter().filter_map(|victim| {
            let pod = self.watched.pods.get(victim.uid.as_str())?;
            Some(Victim {
                pod: sublet_api::pod_key(pod).ok()?,
                uid: victim.uid.clone(),
            })
        });
        pods.collect()
    }

    /// A group's part of a plan. Pods that are there get their slots at once.
    fn planned(&self, queued: &QueuedGroup, slots: &[Slot], victims: Vec<Victim>) -> Planned {
        let mut roles: BTreeMap<&Arc<str>, PlannedRole> = BTreeMap::new();
        let mut free: BTreeMap<&Arc<str>, Vec<Candidate<'_>>> = BTreeMap::new();
        for member in queued.pods.iter().filter(|member| !member.is_bound) {
            let pod = self.watched.pods.get(member.uid.as_str());
            let Some(pod) = pod.filter(|pod| counts(pod)) else {
                continue;
            };
            free.entry(&member.role)
                .or_default()
                .push((member.index, pod));
        }
        for pods in free.values_mut() {
            // Whoever was made first has the first slot.
            pods.sort_by_key(|(_, pod)| {
                let meta = &pod.metadata;
                (
                    !has_scheduling_gate(pod),
                    meta.creation_timestamp.clone(),
                    meta.name.clone(),
                )
            });
        }
        let mut planned = Vec::new();
        for slot in slots {
            let pods = free.entry(&slot.role).or_default();
            let own = pods
                .iter()
                .position(|(index, _)| *index == Some(slot.index));
            let any = || pods.iter().position(|(index, _)| index.is_none());
            let pod = own.or_else(any).map(|at| pods.remove(at).1);
            if !roles.contains_key(&slot.role) {
                let sample = pod
                    .map(|pod| &**pod)
                    .or_else(|| self.template(queued, &slot.role));
                let role = PlannedRole::new(&slot.role, sample.unwrap_or(&Pod::default()));
                roles.insert(&slot.role, role);
            }
            planned.push(Slot {
                pod: pod.and_then(|pod| pod_uid(pod).ok()),
                ..slot.clone()
            });
        }
        Planned {
            id: queued.group.id.clone(),
            quota: queued.group.quota.clone(),
            roles: roles.into_values().collect(),
            slots: planned,
            victims,
        }
    }

    /// The template for the pods of a role: the job's own, or that of an object that the job makes.
    fn template(&self, queued: &QueuedGroup, role: &str) -> Option<&Pod> {
        let job = queued.job.as_ref()?;
        let own = self.watched.jobs.get(job);
        let made = self
            .watched
            .jobs
            .values()
            .filter(|one| one.owner.as_ref() == Some(job));
        let mut roles = own.into_iter().chain(made).flat_map(|job| &job.shape.roles);
        roles.find(|one| one.name == role).map(|one| &one.template)
    }
}

/// The plan with more slots for a group that runs as a whole; none where the plan has to come to its
/// end first, because somebody has not started by it.
fn grown(plan: &GangPlan, queued: &QueuedGroup, more: Planned, until: Time) -> Option<GangPlan> {
    let mut plan = GangPlan::clone(plan);
    let [part] = &mut plan.groups[..] else {
        return None;
    };
    let is_there = |slot: &Slot| {
        let mut slots = part.slots.iter();
        slots.any(|one| one.role == slot.role && one.index == slot.index)
    };
    let fits = part.slots.len() + more.slots.len() <= MOST_SLOTS;
    if !queued.group.satisfied || !fits || more.slots.iter().any(is_there) {
        return None;
    }
    if !part.victims.is_empty() || !more.victims.is_empty() {
        return None;
    }
    let roles = more.roles.into_iter();
    let new = roles.filter(|role| part.roles.iter().all(|one| one.name != role.name));
    let new: Vec<PlannedRole> = new.collect();
    part.roles.extend(new);
    // Whose they are is said when pods come that have none of the plan's.
    let slots = more.slots.into_iter();
    part.slots
        .extend(slots.map(|slot| Slot { pod: None, ..slot }));
    plan.deadline = plan.deadline.max(until);
    Some(plan)
}

fn deletion(name: &str, uid: &str) -> Step {
    Step {
        write: Write {
            to: plan_address(name),
            act: Act::Delete {
                uid: uid.to_owned(),
                version: None,
            },
        },
        then: Then::Nothing,
    }
}
