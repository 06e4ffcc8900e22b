//! The protocol's own code against an API server that is late, drops and repeats. One of two
//! leaders is deposed or dies at any moment. A Lease and plans are deleted, plans come out of the
//! backup of another cluster, nodes come and go, and budgets refuse.
//!
//! Each node has room for one pod. After every step no node has two; every evicted pod was named by
//! a plan, or was let go by one. Whenever the faults end, the cluster becomes quiet without a part
//! of a gang, and no group waits although it has room. `SUBLET_STEPS` and `SUBLET_SEED` say how
//! long, and where the random numbers begin.

mod faults;
mod objects;

use fastrand::Rng;
use sublet_model::{Allocation, PodKey};

use self::objects::{Objects, Owner, group_of, node, snapshot_of};
use super::*;
use crate::test_cluster::asked;

const NODES: u64 = 5;
const GROUPS: u64 = 4;
/// Time that a plan's members have, in steps.
const PATIENCE: u64 = 600;
/// So many steps with faults, then quiet is waited for.
const ROUND: u64 = 400;
/// It is quiet when nothing has changed for so many.
const QUIET: u64 = 1_000;

#[derive(Clone)]
enum Sent {
    Create(QueuePlan<()>),
    Plan(Arc<str>, u64, PlanStep<()>),
    Pod(Arc<str>, PlanStep<()>),
    Satisfied(GroupId),
}

impl Sent {
    /// A step of a plan that was seen in this version.
    fn of(plan: &Arc<str>, version: u64, step: PlanStep<()>) -> Sent {
        match step {
            PlanStep::Rewrite(_) | PlanStep::Delete => Sent::Plan(plan.clone(), version, step),
            _ => Sent::Pod(plan.clone(), step),
        }
    }
}

/// One process that leads, or believes that it does.
#[derive(Clone, Default)]
struct Leader {
    epoch: u64,
    /// When it last renewed the Lease.
    renewed: u64,
    /// Plans of a higher epoch: in which version, and since when.
    outranking: BTreeMap<Arc<str>, (u64, u64)>,
    sees: Objects,
}

/// The source of epochs; and with versions, whether a leader makes sure that nobody else leads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Epochs {
    /// The versions of the API server's objects.
    Versions,
    /// The same, but a plan of a higher one is always a successor's.
    Unsure,
    /// The transitions that the Lease has counted since it was made.
    Transitions,
}

struct Play {
    chance: Rng,
    now: u64,
    version: u64,
    objects: Objects,
    epochs: Epochs,
    transitions: u64,
    leaders: [Leader; 2],
    /// The process that has the Lease.
    holder: usize,
    /// The binder: what it sees, and what it has bound itself.
    sees: Objects,
    own: BTreeMap<PodUid, NodeName>,
    under_way: Vec<(usize, Sent)>,
    victims: BTreeSet<PodUid>,
    faults: bool,
    changed_at: u64,
    bound: u64,
    rolled_back: u64,
    stuck: Option<String>,
}

impl Play {
    fn new(seed: u64, epochs: Epochs) -> Play {
        let mut play = Play {
            chance: Rng::with_seed(seed),
            now: 0,
            version: 0,
            objects: Objects::default(),
            epochs,
            transitions: 0,
            leaders: Default::default(),
            holder: 0,
            sees: Objects::default(),
            own: BTreeMap::new(),
            under_way: Vec::new(),
            victims: BTreeSet::new(),
            faults: true,
            changed_at: 0,
            bound: 0,
            rolled_back: 0,
            stuck: None,
        };
        play.elect(0);
        play
    }

    fn step(&mut self) {
        self.now += 1;
        match self.chance.u64(..10) {
            0 | 1 => {
                let who = self.chance.usize(..2);
                self.leaders[who].sees = self.objects.clone();
            }
            2 | 3 => {
                let who = self.chance.usize(..2);
                self.lead(who);
            }
            4 | 5 => self.deliver(),
            6 => self.sees = self.objects.clone(),
            7 => self.bind(),
            8 => self.owners(),
            _ if self.faults => self.fault(),
            _ => {}
        }
        let mut nodes = BTreeSet::new();
        for (_, pod) in self.objects.pods.values() {
            if let Some(node) = pod.bound.as_ref().filter(|_| !pod.ended) {
                assert!(nodes.insert(node), "two pods on {node}");
            }
        }
    }

    /// A leader looks, and sends the writes that are due.
    fn lead(&mut self, who: usize) {
        // It waits for the answers to what it has sent.
        if self.leaders[who].epoch == 0 || self.under_way.iter().any(|(of, _)| *of == who) {
            return;
        }
        if self.holder == who {
            self.leaders[who].renewed = self.now;
        }
        let confirmed = self.confirmed(who);
        let leader = self.leaders[who].clone();
        let (sees, now) = (&leader.sees, Time::from_ms(self.now));
        let groups: BTreeMap<GroupId, Group> = sees
            .groups
            .iter()
            .map(|(id, owner)| (id.clone(), group_of(id, owner, sees)))
            .collect();
        let nobody = BTreeSet::new();
        let snapshots: BTreeMap<GroupId, GroupSnapshot<'_>> = groups
            .iter()
            .map(|(id, group)| (id.clone(), snapshot_of(id, group, sees, &nobody)))
            .collect();
        let pods: BTreeMap<PodUid, PodSnapshot> = sees
            .pods
            .iter()
            .map(|(uid, (_, pod))| (uid.clone(), pod.clone()))
            .collect();
        let mut planned: BTreeSet<&GroupId> = BTreeSet::new();
        for (name, (version, plan)) in &sees.plans {
            let steps = next_steps(
                plan,
                &PlanSnapshot {
                    epoch: leader.epoch,
                    is_confirmed: confirmed.contains(name),
                    now,
                    pods: &pods,
                    groups: &snapshots,
                    is_usable: &|node| !sees.lost.contains(node),
                    has_other_plan: &|group| {
                        sees.plans.range(..name.clone()).any(|(_, (_, other))| {
                            other.groups.iter().any(|part| part.id == *group)
                        })
                    },
                    fits: true,
                },
            );
            planned.extend(plan.groups.iter().map(|part| &part.id));
            for step in steps {
                self.under_way.push((who, Sent::of(name, *version, step)));
            }
        }
        for (id, snapshot) in &snapshots {
            let enough = has_enough(snapshot);
            if enough && !snapshot.group.satisfied {
                self.under_way.push((who, Sent::Satisfied(id.clone())));
            }
            if planned.contains(id) || enough {
                continue;
            }
            let stranded = stranded(snapshot, &pods);
            if stranded.is_empty() {
                self.plan(who, &leader, snapshot);
            }
            let name: Arc<str> = Arc::from("none");
            let sent = stranded.into_iter();
            let sent = sent.map(|uid| (who, Sent::Pod(name.clone(), PlanStep::Evict(uid))));
            self.under_way.extend(sent);
        }
    }

    /// Places all that are missing, if need be where a group of a later name is.
    fn plan(&mut self, who: usize, leader: &Leader, snapshot: &GroupSnapshot<'_>) {
        let sees = &leader.sees;
        let missing = snapshot.group.gangs[0].min as usize - bound_members(snapshot.group).count();
        let taken = sees.taken();
        let mut nodes: Vec<NodeName> = (0..NODES).map(node).collect();
        nodes.retain(|node| !taken.contains(node) && !sees.lost.contains(node));
        let mut victims = Vec::new();
        for (uid, (group, pod)) in &sees.pods {
            if nodes.len() >= missing {
                break;
            }
            // Whole groups of a later name would go; one pod of each is enough here.
            if *group > snapshot.group.id
                && !pod.ended
                && let Some(node) = pod.bound.clone()
                && !sees.lost.contains(&node)
            {
                victims.push(Victim {
                    pod: PodKey::new("a", uid.as_str()).unwrap(),
                    uid: uid.clone(),
                });
                nodes.push(node);
            }
        }
        if nodes.len() < missing {
            return;
        }
        self.version += 1;
        let slots = (0..).zip(nodes.into_iter().take(missing));
        let slot = |(index, node)| Slot {
            role: Arc::from("w"),
            index,
            node,
            allocation: Allocation::default(),
            pod: None,
        };
        let part = PlannedGroup {
            id: snapshot.group.id.clone(),
            quota: snapshot.group.quota.clone(),
            roles: Vec::new(),
            slots: slots.map(slot).collect(),
            victims,
        };
        let plan = QueuePlan {
            name: Arc::from(format!("p{:08}", self.version)),
            version: Arc::from(""),
            epoch: leader.epoch,
            deadline: Time::from_ms(self.now + PATIENCE),
            groups: vec![part],
        };
        self.under_way.push((who, Sent::Create(plan)));
    }

    /// One of the writes that are under way arrives, is lost, or arrives and comes again.
    fn deliver(&mut self) {
        if self.under_way.is_empty() {
            return;
        }
        let at = self.chance.usize(..self.under_way.len());
        let fate = if self.faults { self.chance.u64(..8) } else { 7 };
        let (_, sent) = self.under_way[at].clone();
        if fate != 0 {
            self.under_way.swap_remove(at);
        }
        if fate != 1 {
            self.write(sent);
        }
    }

    fn write(&mut self, sent: Sent) {
        let objects = &mut self.objects;
        self.version += 1;
        let version = self.version;
        match sent {
            Sent::Create(plan) => {
                let victims = plan.groups.iter().flat_map(|part| &part.victims);
                self.victims
                    .extend(victims.map(|victim| victim.uid.clone()));
                objects
                    .plans
                    .entry(plan.name.clone())
                    .or_insert((version, plan));
            }
            Sent::Plan(name, seen, step) => {
                if objects.plans.get(&name).is_none_or(|(is, _)| *is != seen) {
                    return;
                }
                match step {
                    PlanStep::Rewrite(plan) => drop(objects.plans.insert(name, (version, plan))),
                    _ => drop(objects.plans.remove(&name)),
                }
            }
            Sent::Satisfied(group) => {
                if let Some(owner) = objects.groups.get_mut(&group) {
                    owner.satisfied = true;
                }
            }
            Sent::Pod(plan, step) => match step {
                PlanStep::Evict(uid) => {
                    if let Some((_, pod)) = objects.pods.get_mut(&uid) {
                        let known = self.victims.contains(&uid) || pod.slot.is_some();
                        assert!(known, "nobody has decided that {uid} goes");
                        // A budget may refuse.
                        pod.going |= !self.faults || self.chance.u64(..3) > 0;
                    }
                }
                PlanStep::Free(uid, mark) | PlanStep::Steer(uid, mark) => {
                    if let Some((_, pod)) = objects.pods.get_mut(&uid) {
                        pod.held = false;
                        pod.slot = Some(mark.key);
                    }
                }
                PlanStep::Release(group) => {
                    if let Some(owner) = objects.groups.get_mut(&group) {
                        owner.suspended = false;
                    }
                }
                PlanStep::Requeue(group) => {
                    if let Some(owner) = objects.groups.get_mut(&group) {
                        self.rolled_back += 1;
                        owner.requeued_by = Some(plan);
                    }
                }
                PlanStep::Rewrite(_) | PlanStep::Delete => {}
            },
        }
        self.changed_at = self.now;
    }

    /// The extender binds one pod to its slot, as `State::take_slot` does: by what it sees and what it
    /// has bound itself.
    fn bind(&mut self) {
        let pods = &self.objects.pods;
        let is_there = |uid: &PodUid| pods.get(uid).is_some_and(|(_, pod)| !pod.ended);
        self.own.retain(|uid, _| is_there(uid));
        let newest = self.sees.plans.values().map(|(_, plan)| plan.epoch).max();
        let waiting = self.sees.pods.iter().filter(|(uid, (_, pod))| {
            !pod.held && pod.bound.is_none() && !pod.going && !self.own.contains_key(*uid)
        });
        for (uid, (_, pod)) in waiting {
            let Some(key) = &pod.slot else {
                continue;
            };
            let Some((_, plan)) = self.sees.plans.get(&key.plan) else {
                continue;
            };
            let parts = plan.groups.iter().filter(|part| part.id == key.group);
            let mut slots = parts.flat_map(|part| &part.slots);
            let slot = slots.find(|slot| slot.role == key.role && slot.index == key.index);
            let Some(slot) = slot.filter(|slot| slot.pod.as_ref().is_none_or(|of| of == uid))
            else {
                continue;
            };
            if Some(plan.epoch) != newest || self.now >= plan.deadline.ms() {
                continue;
            }
            let seen = self.sees.pods.values().filter(|(_, pod)| !pod.ended);
            let mut seen = seen.filter_map(|(_, pod)| pod.bound.as_ref());
            let is_free = seen.all(|there| *there != slot.node)
                && self.own.values().all(|there| *there != slot.node)
                && !self.sees.lost.contains(&slot.node);
            let truly = self.objects.pods.get_mut(uid);
            if let Some((_, truly)) = truly.filter(|(_, pod)| is_free && pod.bound.is_none()) {
                truly.bound = Some(slot.node.clone());
                self.own.insert(uid.clone(), slot.node.clone());
                self.bound += 1;
                self.changed_at = self.now;
                return;
            }
        }
    }

    /// Pods that were asked to go have gone, owners make theirs, and groups come and end.
    fn owners(&mut self) {
        let going = self.objects.pods.iter().find(|(_, (_, pod))| pod.going);
        if let Some(uid) = going.map(|(uid, _)| uid.clone()) {
            self.objects.pods.remove(&uid);
            self.changed_at = self.now;
            return;
        }
        let id = GroupId::new(format!("job/a/g{}", self.chance.u64(..GROUPS)));
        let Some(owner) = self.objects.groups.get(&id).cloned() else {
            if self.faults {
                let owner = Owner {
                    size: 1 + self.chance.u64(..3) as u32,
                    suspended: self.chance.u64(..2) == 0,
                    satisfied: false,
                    requeued_by: None,
                };
                self.objects.groups.insert(id, owner);
            }
            return;
        };
        let pods = self.objects.pods.values();
        let own = pods.filter(|(group, pod)| *group == id && !pod.ended);
        if !owner.suspended && own.count() < owner.size as usize {
            self.version += 1;
            let uid = PodUid::new(&format!("u{:08}", self.version)).unwrap();
            let pod = PodSnapshot {
                held: true,
                ..PodSnapshot::default()
            };
            self.objects.pods.insert(uid, (id, pod));
            self.changed_at = self.now;
        } else if self.faults && owner.satisfied && self.chance.u64(..4) == 0 {
            self.objects.groups.remove(&id);
            self.objects.pods.retain(|_, (group, _)| *group != id);
        }
    }
}

#[test]
fn whatever_is_lost_no_card_is_given_twice_and_no_part_of_a_gang_stays() {
    let (steps, seed) = (asked("SUBLET_STEPS"), asked("SUBLET_SEED"));
    let (steps, seed) = (steps.unwrap_or(1_000_000), seed.unwrap_or(1));
    let (mut done, mut bound, mut rolled_back) = (0, 0, 0);
    let mut at = seed;
    while done < steps {
        println!("seed {at}");
        let play = played(at, Epochs::Versions);
        assert_eq!(play.stuck, None);
        done += play.now;
        bound += play.bound;
        rolled_back += play.rolled_back;
        at += 1;
    }
    println!("{done} steps, {bound} pods bound, {rolled_back} groups rolled back");
    assert!(bound > steps / 10_000 && rolled_back > 0);
}

#[test]
fn the_simulation_notices_epochs_that_go_back_and_plans_that_nobody_touches() {
    for epochs in [Epochs::Transitions, Epochs::Unsure] {
        let stuck = (1..40).any(|seed| played(seed, epochs).stuck.is_some());
        assert!(stuck, "{epochs:?} went unnoticed");
    }
}

/// Ten rounds of faults, each until it is quiet again, or until something is stuck.
fn played(seed: u64, epochs: Epochs) -> Play {
    let mut play = Play::new(seed, epochs);
    for _ in 0..10 {
        for _ in 0..ROUND {
            play.step();
        }
        play.calm();
        if play.stuck.is_some() {
            break;
        }
    }
    play
}
