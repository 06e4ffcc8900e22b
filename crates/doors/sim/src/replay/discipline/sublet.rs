//! Sublet's own queue: the engine that decides in a cluster (`sublet_queue::plan`), by a profile
//! and otherwise with its rules as shipped.
//!
//! Each tenant is a quota without limit, which lends the part that it does not ask for. Every job
//! may be evicted. A decision is carried out at once: there are no pods that take time to end.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use sublet_model::{Class, Standing};
use sublet_plan::stock::PodRules;
use sublet_queue::{
    Amounts, Gang, GangMode, GangRole, Group, GroupId, GroupPast, MatchPolicy, Member, MemberShape,
    QueueDecision, QueueHold, QueueMemo, QueueReason, QueueRules, QueueSnapshot, Quota, QuotaTree,
    RunHistory, Saves, Slot, TreeTotals, plan,
};

use crate::replay::figures::WithinMin;
use crate::replay::floor::Floor;
use crate::replay::ground::{ROLES, moment, uid};
use crate::replay::jobs::{Job, Jobs, RunTimes, SizeClass};
use crate::replay::rule::{Discipline, JobLine};

/// The resource of the quotas: thousandths of cards.
const RESOURCE: &str = "gpu-milli";

pub(super) struct Sublet;

impl Discipline for Sublet {
    fn name(&self) -> &'static str {
        "sublet"
    }

    fn about(&self) -> &'static str {
        "this queue: quotas lent and taken back, many heads, room kept for who has waited long"
    }

    fn line<'a>(&self, jobs: &'a Jobs) -> Box<dyn JobLine + 'a> {
        Box::new(SubletLine::new(jobs))
    }
}

struct SubletLine<'a> {
    jobs: &'a Jobs,
    tree: QuotaTree,
    totals: TreeTotals,
    /// By kind, the shape of each of its members.
    shapes: Vec<Vec<Arc<MemberShape>>>,
    roles: [Arc<str>; 2],
    /// Jobs that wait or run, by number, and their numbers.
    groups: Vec<Group>,
    numbers: Vec<usize>,
    hold: Option<QueueHold>,
    rules: QueueRules,
    memo: QueueMemo,
    /// Run times by tenant and kind.
    history: RunHistory<(usize, usize)>,
    saves: Saves,
    why: Why,
    roomy: Roomy,
}

/// Waits while the minimum of a job's tenant has room for it.
#[derive(Debug, Default)]
struct Roomy {
    /// Since when, of each group.
    since: Vec<Option<u64>>,
    longest: u64,
    /// Jobs that have waited for too long.
    late: BTreeSet<usize>,
}

/// Seconds that a job may wait so beyond the time that its tenant has set.
const GRACE: u64 = 30 * 60;

/// The reasons for which gangs wait.
#[derive(Debug, Default)]
struct Why {
    /// Since when.
    since: u64,
    /// Reason of each waiting gang.
    now: Vec<&'static str>,
    /// Seconds until then.
    before: BTreeMap<&'static str, u64>,
}

impl Why {
    /// The reasons are told anew.
    fn anew(&mut self, now: u64) {
        for reason in self.now.drain(..) {
            *self.before.entry(reason).or_default() += now - self.since;
        }
        self.since = now;
    }
}

fn amounts(milli: u64) -> Amounts {
    [(Arc::from(RESOURCE), milli)].into()
}

impl<'a> SubletLine<'a> {
    fn new(jobs: &'a Jobs) -> SubletLine<'a> {
        let quota = |(name, min): (&Arc<str>, &u64)| Quota {
            name: Arc::clone(name),
            lends: true,
            min: amounts(*min),
            ..Quota::default()
        };
        let quotas = jobs.tenants().iter().zip(jobs.minima());
        let shapes = jobs.kinds().iter().map(|kind| {
            let members = kind.members.iter().map(|members| MemberShape {
                claim: Arc::clone(&members.claim),
                rules: PodRules::default(),
                unmodelled: Vec::new(),
                amounts: amounts(members.milli),
            });
            members.map(Arc::new).collect()
        });
        SubletLine {
            jobs,
            tree: QuotaTree::new(quotas.map(quota).collect())
                .expect("names that differ, no parents"),
            totals: [("".into(), amounts(jobs.capacity()))].into(),
            shapes: shapes.collect(),
            roles: ROLES.map(Arc::from),
            groups: Vec::new(),
            numbers: Vec::new(),
            hold: None,
            rules: jobs.rules().clone(),
            memo: QueueMemo::default(),
            history: RunHistory::default(),
            saves: jobs
                .saves_every()
                .map_or(Saves::Unknown, |s| Saves::Every(s * 1000)),
            why: Why::default(),
            roomy: Roomy::default(),
        }
    }

    fn group(&self, number: usize) -> Group {
        let (job, kind) = (self.jobs.all()[number], self.jobs.kind(number));
        let shapes = self.shapes[job.kind].iter().zip(&self.roles);
        let roles = kind.members.iter().zip(shapes);
        let roles = roles.map(|(members, (shape, role))| GangRole {
            name: Arc::clone(role),
            min: members.count,
            replicas: members.count,
            pod: Arc::clone(shape),
            members: Vec::new(),
        });
        Group {
            id: id(number),
            quota: Arc::clone(&self.jobs.tenants()[job.tenant]),
            priority: job.priority,
            class: Class::Guaranteed,
            preemptible: true,
            since: moment(job.at),
            not_before: None,
            gangs: vec![Gang {
                name: Arc::from("job"),
                min: kind.members.iter().map(|members| members.count).sum(),
                roles: roles.collect(),
            }],
            mode: GangMode::Strict,
            matching: MatchPolicy::OnceSatisfied,
            satisfied: false,
            ends: None,
            runs_ms: self.runs_ms(job),
            started: None,
            past: GroupPast {
                saves: self.saves,
                ..GroupPast::default()
            },
        }
    }

    /// Learns how long a job ran that has ended.
    fn learn(&mut self, ended: Job) {
        if self.jobs.run_times() != RunTimes::Learnt {
            return;
        }
        let like = |job: Job| (job.tenant, job.kind);
        self.history.ended(like(ended), ms(ended.lasts));
        let guess = self.history.guess(&like(ended));
        for (group, number) in self.groups.iter_mut().zip(&self.numbers) {
            if group.started.is_none() && like(self.jobs.all()[*number]) == like(ended) {
                group.runs_ms = guess;
            }
        }
    }

    /// Time that a job is taken to run, as far as anybody knows.
    fn runs_ms(&self, job: Job) -> Option<u64> {
        match self.jobs.run_times() {
            RunTimes::Unknown => None,
            RunTimes::Learnt => self.history.guess(&(job.tenant, job.kind)),
            RunTimes::Declared => Some(ms(job.lasts)),
        }
    }

    /// Its position among the jobs that wait or run.
    fn position(&self, id: &GroupId) -> Option<usize> {
        self.groups.binary_search_by(|group| group.id.cmp(id)).ok()
    }

    fn start(&mut self, id: &GroupId, slots: &[Slot], floor: &mut Floor<'_>, now: u64) {
        let Some(at) = self.position(id) else { return };
        let (group, number) = (&mut self.groups[at], self.numbers[at]);
        floor.start(number, slots);
        group.started = Some(moment(now));
        let roles = group.gangs.iter_mut().flat_map(|gang| &mut gang.roles);
        for role in roles {
            let of_role = slots.iter().filter(|slot| slot.role == role.name);
            role.members = of_role
                .map(|slot| Member {
                    index: slot.index,
                    uid: uid(number, &slot.role, slot.index),
                    node: slot.node.clone(),
                    standing: Standing::Bound,
                })
                .collect();
        }
    }

    /// A gang goes whole: none of these has members that it could miss.
    fn evict(&mut self, id: &GroupId, floor: &mut Floor<'_>, now: u64) {
        let Some(at) = self.position(id) else { return };
        floor.evict(self.numbers[at]);
        let group = &mut self.groups[at];
        group.started = None;
        group.past.reclaims += 1;
        group.past.reclaimed = Some(moment(now));
        let roles = group.gangs.iter_mut().flat_map(|gang| &mut gang.roles);
        roles.for_each(|role| role.members.clear());
    }
}

fn ms(seconds: u64) -> u64 {
    seconds.saturating_mul(1000)
}

/// A name. Names have the same order as the numbers.
fn id(number: usize) -> GroupId {
    GroupId::new(format!("job/trace/{number:020}"))
}

impl JobLine for SubletLine<'_> {
    fn join(&mut self, job: usize) {
        // Jobs come in the order of their numbers.
        self.groups.push(self.group(job));
        self.numbers.push(job);
        self.roomy.since.push(None);
    }

    fn left(&mut self, job: usize) {
        self.learn(self.jobs.all()[job]);
        if let Ok(at) = self.numbers.binary_search(&job) {
            self.groups.remove(at);
            self.numbers.remove(at);
            self.roomy.since.remove(at);
        }
    }

    fn tick(&mut self, floor: &mut Floor<'_>, now: u64) -> bool {
        loop {
            let Tick {
                starts,
                evicts,
                behind,
            } = self.once(floor, now);
            // Who was not looked at, for so many were before it, may be looked at now.
            if evicts || !(starts && behind) {
                self.count_within_min(floor, now);
                return evicts;
            }
        }
    }

    fn gangs_waited_for(&self) -> BTreeMap<&'static str, u64> {
        self.why.before.clone()
    }

    fn within_min(&self) -> Option<WithinMin> {
        Some(WithinMin {
            longest: self.roomy.longest,
            late: self.roomy.late.len(),
        })
    }
}

/// The content of one decision.
#[derive(Debug, Clone, Copy, Default)]
struct Tick {
    /// Somebody starts.
    starts: bool,
    /// Somebody goes.
    evicts: bool,
    /// Somebody was not looked at.
    behind: bool,
}

impl SubletLine<'_> {
    /// Counts for how long jobs wait that the minimum of their tenant has room for.
    fn count_within_min(&mut self, floor: &Floor<'_>, now: u64) {
        let Roomy {
            since,
            longest,
            late,
        } = &mut self.roomy;
        let too_long = self.rules.min_within_ms / 1000 + GRACE;
        for ((since, group), number) in since.iter_mut().zip(&self.groups).zip(&self.numbers) {
            let tenant = self.jobs.all()[*number].tenant;
            let has_room = || {
                let used = floor.used(tenant) + self.jobs.kind(*number).milli();
                used <= self.jobs.minima()[tenant]
            };
            if let Some(since) = since {
                *longest = (now - *since).max(*longest);
                late.extend((now - *since > too_long).then_some(*number));
            }
            *since = match group.started.is_none() && has_room() {
                true => Some(since.unwrap_or(now)),
                false => None,
            };
        }
    }

    /// Lets the engine decide once, and carries it out.
    fn once(&mut self, floor: &mut Floor<'_>, now: u64) -> Tick {
        let (engine, nodes) = floor.ground();
        let snapshot = QueueSnapshot {
            engine,
            nodes,
            tree: &self.tree,
            totals: &self.totals,
            groups: &self.groups,
            hold: self.hold.as_ref(),
            breaks: &|_| false,
            rules: &self.rules,
            memo: &mut self.memo,
        };
        let decisions = plan(snapshot, moment(now));
        self.hold = None;
        self.why.anew(now);
        let mut tick = Tick::default();
        let (mut starts, mut next) = (Vec::new(), 0);
        for decision in decisions {
            match decision {
                QueueDecision::Admit { group, slots } => starts.push((group, slots)),
                QueueDecision::Evict {
                    group,
                    slots,
                    victims,
                } => {
                    let of = victims.into_iter().map(|victim| victim.group);
                    for victim in of.collect::<BTreeSet<GroupId>>() {
                        self.evict(&victim, floor, now);
                    }
                    starts.push((group, slots));
                    tick.evicts = true;
                }
                QueueDecision::Hold(hold) => self.hold = Some(hold),
                QueueDecision::Explain {
                    group,
                    reason,
                    room_since,
                    ..
                } => {
                    tick.behind |= matches!(reason, QueueReason::Behind { .. });
                    // They come in the order of the groups.
                    let mut rest = self.groups.iter().skip(next);
                    let Some(more) = rest.position(|one| one.id == group) else {
                        continue;
                    };
                    let at = next + more;
                    next = at + 1;
                    self.groups[at].past.room_since = room_since;
                    // Of a group that runs it may be said, too, that it exceeds what it is entitled to.
                    let gang = self.jobs.kind(self.numbers[at]).size == SizeClass::Gang;
                    if gang && self.groups[at].started.is_none() {
                        self.why.now.push(reason.word());
                    }
                }
            }
        }
        // Last: what one group does not need of the room that its victims leave, another may have
        // got in the same plan.
        tick.starts = !starts.is_empty();
        for (group, slots) in starts {
            self.start(&group, &slots, floor, now);
        }
        tick
    }
}
