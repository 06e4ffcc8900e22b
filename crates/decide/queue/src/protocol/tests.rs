//! One plan of one group of two members, seen at every stage; the due steps are a list of words.

use sublet_model::{Allocation, Claim, Class, Host, PodKey};
use sublet_plan::stock::PodRules;

use super::*;
use crate::group::{Gang, GangRole, GroupPast, MatchPolicy, Member, MemberShape};
use crate::tree::Amounts;

const NOW: Time = Time::from_ms(1_000);

fn uid(name: &str) -> PodUid {
    PodUid::new(name).unwrap()
}

fn node(name: &str) -> NodeName {
    NodeName::new(name).unwrap()
}

fn id() -> GroupId {
    GroupId::new("podgroup/a/g")
}

/// A strict group of `min` workers; `bound` lists those that are bound.
fn group(min: u32, bound: &[&str]) -> Group {
    let claim = Arc::new(Claim::host_only(Host::ZERO));
    let shape = MemberShape {
        claim,
        rules: PodRules::default(),
        unmodelled: Vec::new(),
        amounts: Amounts::new(),
    };
    let member = |(index, name): (u32, &&str)| Member {
        index,
        uid: uid(name),
        node: node("n1"),
        standing: Standing::Bound,
    };
    let role = GangRole {
        name: Arc::from("w"),
        min: 0,
        replicas: min,
        pod: Arc::new(shape),
        members: (0..).zip(bound).map(member).collect(),
    };
    Group {
        id: id(),
        quota: Arc::from("a"),
        priority: 0,
        class: Class::Guaranteed,
        preemptible: true,
        since: NOW,
        not_before: None,
        gangs: vec![Gang {
            name: Arc::from("g"),
            min,
            roles: vec![role],
        }],
        mode: GangMode::Strict,
        matching: MatchPolicy::OnceSatisfied,
        satisfied: false,
        ends: None,
        runs_ms: None,
        started: None,
        past: GroupPast::default(),
    }
}

/// The launcher is of a role of its own.
fn role_of(pod: &str) -> Arc<str> {
    Arc::from(if pod == "launcher" { "l" } else { "w" })
}

/// Facts beside the plan.
struct World {
    group: Group,
    pods: BTreeMap<PodUid, PodSnapshot>,
    waiting: Vec<&'static str>,
    suspended: bool,
    requeued: bool,
    late: BTreeSet<Arc<str>>,
    sized: bool,
    lost: &'static str,
    other: bool,
    fits: bool,
    epoch: u64,
    confirmed: bool,
    now: Time,
}

impl World {
    fn new(waiting: &[&'static str]) -> World {
        let held = |name: &&str| {
            let pod = PodSnapshot {
                held: true,
                ..PodSnapshot::default()
            };
            (uid(name), pod)
        };
        World {
            group: group(2, &[]),
            pods: waiting.iter().map(held).collect(),
            waiting: waiting.to_vec(),
            suspended: false,
            requeued: false,
            late: BTreeSet::new(),
            sized: false,
            lost: "none",
            other: false,
            fits: true,
            epoch: 7,
            confirmed: false,
            now: NOW,
        }
    }

    fn pod(&mut self, name: &str) -> &mut PodSnapshot {
        self.pods.entry(uid(name)).or_default()
    }

    /// The pod was let go with that slot, and is bound if a node is given.
    fn let_go(&mut self, name: &str, index: u32, bound: Option<&str>) {
        let pod = self.pod(name);
        pod.held = false;
        pod.slot = Some(SlotKey {
            plan: Arc::from("p"),
            group: id(),
            role: Arc::from("w"),
            index,
        });
        pod.bound = bound.map(node);
    }

    fn steps(&self, plan: &QueuePlan<()>) -> Vec<PlanStep<()>> {
        let waiting = self.waiting.iter();
        let seen = GroupSnapshot {
            group: &self.group,
            suspended: self.suspended,
            waiting: waiting.map(|name| (role_of(name), uid(name))).collect(),
            requeued_by: self.requeued.then(|| plan.name.clone()),
            late: &self.late,
            is_sized: self.sized,
        };
        let groups = BTreeMap::from([(id(), seen)]);
        next_steps(
            plan,
            &PlanSnapshot {
                epoch: self.epoch,
                is_confirmed: self.confirmed,
                now: self.now,
                pods: &self.pods,
                groups: &groups,
                is_usable: &|node| node.as_str() != self.lost,
                has_other_plan: &|_| self.other,
                fits: self.fits,
            },
        )
    }

    /// The steps in words.
    fn says(&self, plan: &QueuePlan<()>) -> String {
        let word = |step: PlanStep<()>| match step {
            PlanStep::Rewrite(plan) => {
                let slots = plan.groups.iter().flat_map(|part| &part.slots);
                let pods = slots.map(|slot| slot.pod.as_ref().map_or("-", PodUid::as_str));
                format!("{}:{}", plan.epoch, pods.collect::<Vec<_>>().join(","))
            }
            PlanStep::Evict(pod) => format!("evict {pod}"),
            PlanStep::Release(_) => "release".to_owned(),
            PlanStep::Free(pod, mark) => format!("free {pod} {}", mark.key.index),
            PlanStep::Steer(pod, mark) => format!("steer {pod} {}", mark.key.index),
            PlanStep::Requeue(_) => "requeue".to_owned(),
            PlanStep::Delete => "delete".to_owned(),
        };
        let words = self.steps(plan).into_iter().map(word);
        words.collect::<Vec<_>>().join("; ")
    }
}

/// A plan with a slot on n1 and one on n2, for these pods.
fn plan(pods: [&str; 2]) -> QueuePlan<()> {
    let slot = |(index, pod): (u32, &str)| Slot {
        role: Arc::from("w"),
        index,
        node: node(["n1", "n2"][index as usize]),
        allocation: Allocation::default(),
        pod: (!pod.is_empty()).then(|| uid(pod)),
    };
    QueuePlan {
        name: Arc::from("p"),
        version: Arc::from(""),
        epoch: 7,
        deadline: NOW.plus_ms(1_000),
        groups: vec![PlannedGroup {
            id: id(),
            quota: Arc::from("a"),
            roles: Vec::new(),
            slots: (0..).zip(pods).map(slot).collect(),
            victims: Vec::new(),
        }],
    }
}

#[test]
fn a_group_is_let_go_step_by_step() {
    let mut world = World::new(&[]);
    let mut with_victim = plan(["", ""]);
    with_victim.groups[0].victims = vec![Victim {
        pod: PodKey::new("b", "v").unwrap(),
        uid: uid("v"),
    }];
    world.suspended = true;
    world.pod("v");
    assert_eq!(world.says(&with_victim), "evict v");
    world.pod("v").going = true;
    assert_eq!(world.says(&with_victim), "");
    world.pods.clear();
    assert_eq!(world.says(&with_victim), "release");
    world.suspended = false;
    assert_eq!(world.says(&with_victim), "");

    // Pods come; each has its slot in the plan before it is let go.
    let mut world = World::new(&["a", "b"]);
    assert_eq!(world.says(&plan(["", ""])), "7:a,b");
    assert_eq!(world.says(&plan(["a", "b"])), "free a 0; free b 1");
    world.let_go("a", 0, None);
    assert_eq!(world.says(&plan(["a", "b"])), "free b 1");
    world.let_go("b", 1, Some("n2"));
    world.group = group(2, &["b"]);
    assert_eq!(world.says(&plan(["a", "b"])), "");
    world.let_go("a", 0, Some("n1"));
    world.group = group(2, &["a", "b"]);
    assert_eq!(world.says(&plan(["a", "b"])), "delete");
}

/// A plan of many groups is rewritten whenever one of them ends, or a pod of one comes.
#[test]
fn a_group_that_stays_as_it_is_does_not_wait_for_the_rewriting_of_others() {
    let with_gone = |pods: [&str; 2]| {
        let mut plan = plan(pods);
        let mut gone = plan.groups[0].clone();
        gone.id = GroupId::new("podgroup/a/gone");
        plan.groups.push(gone);
        plan
    };
    let mut world = World::new(&["a", "b"]);
    assert_eq!(
        world.says(&with_gone(["a", "b"])),
        "7:a,b; free a 0; free b 1"
    );
    // What is said on a pod stands in the plan before.
    assert_eq!(world.says(&with_gone(["", "b"])), "7:a,b");
    world.suspended = true;
    world.waiting.clear();
    world.pods.clear();
    assert_eq!(world.says(&with_gone(["", ""])), "7:-,-; release");
    // Of another leadership nothing is done before it is taken over.
    world.epoch = 8;
    assert_eq!(world.says(&with_gone(["", ""])), "8:-,-");
}

#[test]
fn who_leads_next_takes_over_or_gives_up() {
    let mut world = World::new(&["a", "b"]);
    world.epoch = 8;
    assert_eq!(world.says(&plan(["a", "b"])), "8:a,b");
    world.fits = false;
    assert_eq!(world.says(&plan(["a", "b"])), "delete");
    // Of its own it knows that they fit.
    world.epoch = 7;
    assert_eq!(world.says(&plan(["a", "b"])), "free a 0; free b 1");
    world.other = true;
    assert_eq!(world.says(&plan(["a", "b"])), "delete");
    world.epoch = 6;
    assert_eq!(world.says(&plan(["a", "b"])), "");
    // Nobody else leads, so nobody would ever touch it.
    world.confirmed = true;
    assert_eq!(world.says(&plan(["a", "b"])), "delete");
}

#[test]
fn a_slot_of_a_pod_that_went_is_for_the_next_one() {
    let mut world = World::new(&["c", "b"]);
    assert_eq!(world.says(&plan(["a", "b"])), "7:c,b");
    world.pod("c").going = true;
    assert_eq!(world.says(&plan(["a", "b"])), "7:-,b");
    assert_eq!(world.says(&plan(["", "b"])), "free b 1");
}

/// A Job with more completions than pods at a time: its pods may have ended before anybody has looked.
#[test]
fn a_plan_whose_pods_have_ended_keeps_no_pod_that_comes_after_them() {
    let mut world = World::new(&["c"]);
    world.sized = true;
    world.let_go("a", 0, Some("n1"));
    world.pod("a").ended = true;
    world.let_go("b", 1, Some("n2"));
    // The other one runs, and the gang is not whole: the next pod takes the place.
    world.group = group(2, &["b"]);
    assert_eq!(world.says(&plan(["a", "b"])), "7:c,b");
    assert_eq!(world.says(&plan(["c", "b"])), "free c 0");
    // One that nobody has is taken first.
    world.pods.remove(&uid("b"));
    world.group = group(2, &[]);
    assert_eq!(world.says(&plan(["a", ""])), "7:a,c");
    // All have ended: the plan is over, and its members queue again.
    world.let_go("b", 1, Some("n2"));
    world.pod("b").ended = true;
    assert_eq!(world.says(&plan(["a", "b"])), "delete");
    // One that goes back is not over before that is noted on its group.
    world.now = NOW.plus_ms(1_000);
    assert_eq!(world.says(&plan(["a", "b"])), "requeue");
}

#[test]
fn a_pod_that_was_let_go_before_is_told_anew() {
    let mut world = World::new(&["a", "b"]);
    for name in ["a", "b"] {
        world.let_go(name, 9, None);
    }
    assert_eq!(world.says(&plan(["a", "b"])), "steer a 0; steer b 1");
}

#[test]
fn too_few_at_the_deadline_all_go_back_and_that_is_noted_before_the_plan_goes() {
    let mut world = World::new(&["b"]);
    world.let_go("a", 0, Some("n1"));
    world.group = group(2, &["a"]);
    world.now = NOW.plus_ms(1_000);
    assert_eq!(world.says(&plan(["a", "b"])), "evict a");
    world.pod("a").going = true;
    assert_eq!(world.says(&plan(["a", "b"])), "");
    world.pods.remove(&uid("a"));
    world.group = group(2, &[]);
    assert_eq!(world.says(&plan(["a", "b"])), "requeue");
    world.requeued = true;
    assert_eq!(world.says(&plan(["a", "b"])), "delete");

    // Who keeps what came, or had enough once, loses nothing.
    for keep in [0, 1] {
        let mut world = World::new(&["b"]);
        world.let_go("a", 0, Some("n1"));
        world.group = group(2, &["a"]);
        world.now = NOW.plus_ms(1_000);
        if keep == 0 {
            world.group.mode = GangMode::NonStrict;
        } else {
            world.group.satisfied = true;
        }
        assert_eq!(world.says(&plan(["a", "b"])), "delete");
    }
}

#[test]
fn slots_on_a_lost_node_are_planned_anew() {
    let mut world = World::new(&["a", "b"]);
    world.lost = "n2";
    // Nobody has come: all of it.
    assert_eq!(world.says(&plan(["a", "b"])), "delete");
    world.let_go("a", 0, Some("n1"));
    world.group = group(2, &["a"]);
    assert_eq!(world.says(&plan(["a", "b"])), "7:a");
    let mut rest = plan(["a", "b"]);
    rest.groups[0].slots.truncate(1);
    // The plan stays, and with it the deadline, until there are enough.
    assert_eq!(world.says(&rest), "");
    world.now = rest.deadline;
    assert_eq!(world.says(&rest), "evict a");
    world.lost = "n1";
    world.now = NOW;
    world.group = group(1, &["a"]);
    assert_eq!(world.says(&rest), "delete");
}

#[test]
fn members_without_a_plan_do_not_stay_as_a_part_of_a_gang() {
    let mut world = World::new(&[]);
    world.let_go("a", 0, Some("n1"));
    world.pod("x").bound = Some(node("n1"));
    let go = |world: &World| {
        let seen = GroupSnapshot {
            group: &world.group,
            suspended: false,
            waiting: Vec::new(),
            requeued_by: None,
            late: &world.late,
            is_sized: false,
        };
        stranded(&seen, &world.pods)
    };
    // Who came by no plan is left alone.
    world.group = group(3, &["a", "x"]);
    assert_eq!(go(&world), [uid("a")]);
    world.group = group(2, &["a", "x"]);
    assert_eq!(go(&world), []);
    world.group = group(3, &["a", "x"]);
    world.group.satisfied = true;
    assert_eq!(go(&world), []);
}

/// A launcher that comes when the workers run: they are not taken for a part of a gang meanwhile, and
/// it finds its place whenever it comes.
#[test]
fn who_comes_later_is_not_waited_for_and_has_its_place_for_as_long_as_it_takes() {
    let mut world = World::new(&[]);
    world.late.insert(Arc::from("l"));
    let with_launcher = |bound: &[&str]| {
        let mut group = group(2, bound);
        let mut launcher = group.gangs[0].roles[0].clone();
        launcher.name = Arc::from("l");
        (launcher.min, launcher.replicas) = (1, 1);
        launcher.members.clear();
        group.gangs[0].roles.push(launcher);
        group.gangs[0].min = 3;
        group
    };
    let mut whole = plan(["a", "b"]);
    let mut launcher = whole.groups[0].slots[0].clone();
    (launcher.role, launcher.pod) = (Arc::from("l"), None);
    whole.groups[0].slots.push(launcher);
    let mut rest = whole.clone();
    rest.groups[0].slots.drain(..2);

    world.let_go("a", 0, Some("n1"));
    world.group = with_launcher(&["a"]);
    world.now = whole.deadline;
    assert_eq!(world.says(&whole), "evict a", "a worker is missing");
    world.let_go("b", 1, Some("n2"));
    world.group = with_launcher(&["a", "b"]);
    assert_eq!(world.says(&whole), "7:-");
    assert_eq!(world.says(&rest), "");
    let seen = GroupSnapshot {
        group: &world.group,
        suspended: false,
        waiting: Vec::new(),
        requeued_by: None,
        late: &world.late,
        is_sized: true,
    };
    assert_eq!(stranded(&seen, &world.pods), [], "without its plan, too");

    world.now = whole.deadline.plus_ms(1_000_000);
    world.waiting = vec!["launcher"];
    world.pod("launcher").held = true;
    assert_eq!(world.says(&rest), "7:launcher");
    rest.groups[0].slots[0].pod = Some(uid("launcher"));
    assert_eq!(world.says(&rest), "free launcher 0");
    world.pod("launcher").bound = Some(node("n1"));
    assert_eq!(world.says(&rest), "delete");
    // Nobody else has a place for ever.
    world.late.clear();
    world.pods.remove(&uid("launcher"));
    world.waiting.clear();
    rest.groups[0].slots[0].pod = None;
    assert_eq!(world.says(&rest), "evict a; evict b");
}

/// A job that is made smaller gives back what nobody comes for any more, and no more than that.
#[test]
fn what_a_smaller_job_has_no_member_for_is_given_back() {
    let mut world = World::new(&[]);
    world.let_go("a", 0, Some("n1"));
    for (sized, replicas, waiting, expected) in [
        (true, 2, "", ""),
        (true, 1, "", "delete"),
        // How many pods a gang has is known when they are there.
        (false, 1, "", ""),
        // A pod that is there has its slot until it goes.
        (true, 1, "b", "free b 1"),
    ] {
        world.group = group(1, &["a"]);
        world.group.gangs[0].roles[0].replicas = replicas;
        world.sized = sized;
        world.pods.remove(&uid("b"));
        if waiting == "b" {
            world.pod("b").held = true;
        }
        let said = world.says(&plan(["a", waiting]));
        assert_eq!(said, expected, "{sized} {replicas} {waiting}");
    }
    // Where nobody has come yet, all of it is planned anew.
    world.pods.clear();
    world.group = group(1, &[]);
    assert_eq!(world.says(&plan(["", ""])), "delete");
}
