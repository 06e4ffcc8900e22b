//! A small cluster for tests of this crate: groups and quotas from lines of text, and a world in
//! which every decision is carried out at once.

use std::sync::Arc;

use sublet_model::{
    Claim, Class, ContainerClaim, ContainerName, Count, Demand, Entry, Gpu, GpuIndex, Host,
    Inventory, MiB, NodeFacts, NodeIdx, NodeName, PodKey, Role, Sharing, Standing, Time,
};
use sublet_plan::stock::{NodeRules, PodRules};
use sublet_plan::{Engine, EngineOptions};

use crate::need::together;
use crate::place::{Ground, Places};
use crate::{
    Gang, GangRole, Group, GroupId, GroupPast, MatchPolicy, Member, MemberShape, QueueDecision,
    QueueHold, QueueMemo, QueueRules, QueueSnapshot, QueueVictim, Quota, QuotaTree, Saves, Slot,
    TreeTotals, plan,
};

pub(crate) const GPU: &str = "gpu";

/// Cards have so many MiB in a cluster.
const CARD: u32 = 1000;

/// Nodes, quotas, groups, and the decisions.
pub(crate) struct TestCluster {
    pub(crate) engine: Engine,
    pub(crate) nodes: Vec<(NodeIdx, NodeRules)>,
    pub(crate) tree: QuotaTree,
    pub(crate) totals: TreeTotals,
    pub(crate) groups: Vec<Group>,
    pub(crate) hold: Option<QueueHold>,
    pub(crate) rules: QueueRules,
    pub(crate) memo: QueueMemo,
    /// Pods that a disruption budget guards, by a part of their uid.
    pub(crate) guarded: Vec<&'static str>,
}

impl std::fmt::Debug for TestCluster {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(f, "{} nodes", self.nodes.len())?;
        for (quota, _) in self.tree.quotas() {
            let parent = quota.parent.as_deref().unwrap_or("-");
            let (min, max) = (quota.min[GPU], quota.max[GPU]);
            writeln!(f, "{} {parent} {min} {max}", quota.name)?;
        }
        for group in &self.groups {
            let Group {
                id,
                quota,
                priority,
                since,
                class,
                ..
            } = group;
            let has = group.members().count();
            write!(
                f,
                "{id} {quota} p{priority} t{} {}",
                since.ms(),
                class.word()
            )?;
            for role in group.roles() {
                let each = role.pod.amounts[GPU];
                write!(f, " | {} {} {} {each}x", role.name, role.min, role.replicas)?;
            }
            writeln!(f, ", {has} have a place")?;
        }
        Ok(())
    }
}

impl TestCluster {
    /// Makes so many nodes with so many cards, all in the cluster's own tree, and
    /// `name parent min max` for each quota: `-` for no parent, a `!` behind the name of one that
    /// lends nothing, and `@tree` behind that of one in another tree.
    pub(crate) fn new(nodes: usize, cards: u16, quotas: &[&str]) -> TestCluster {
        let mut engine = Engine::new(EngineOptions::default());
        let gpus = (0..cards).map(|at| Gpu::plain(GpuIndex(at), MiB::from(CARD)));
        let inventory = Inventory::new(gpus.collect(), vec![], vec![], vec![]).unwrap();
        let inventory = Arc::new(inventory);
        let node = |at: usize| {
            let name = format!("n{at}");
            let facts = NodeFacts {
                sharing: Sharing::Both,
                ..NodeFacts::plain(NodeName::new(&name).unwrap(), inventory.clone())
            };
            let rules = NodeRules {
                name: name.into(),
                labels: [(Arc::from("number"), Arc::from(at.to_string()))].into(),
                taints: Vec::new(),
                unschedulable: false,
            };
            (engine.set_node(facts), rules)
        };
        let known: Vec<_> = (0..nodes).map(node).collect();
        let mut cluster = TestCluster {
            engine,
            nodes: known,
            tree: QuotaTree::new(quotas.iter().map(|line| quota(line)).collect()).unwrap(),
            totals: TreeTotals::new(),
            groups: Vec::new(),
            hold: None,
            rules: QueueRules {
                profile: "koordinator".parse().unwrap(),
                ..QueueRules::default()
            },
            memo: QueueMemo::default(),
            guarded: Vec::new(),
        };
        cluster.there_is("", nodes as u64 * u64::from(cards));
        cluster
    }

    /// A tree has so many cards to divide.
    pub(crate) fn there_is(&mut self, tree: &str, cards: u64) {
        let total = [(Arc::from(GPU), cards)].into();
        self.totals.insert(tree.into(), total);
    }

    /// Adds what [`group`] reads.
    pub(crate) fn add(&mut self, lines: &[&str]) -> &mut TestCluster {
        self.groups.extend(lines.iter().map(|line| group(line)));
        self.groups.sort_by(|a, b| a.id.cmp(&b.id));
        self
    }

    pub(crate) fn group(&mut self, name: &str) -> &mut Group {
        let id = GroupId::new(format!("job/t/{name}"));
        self.groups.iter_mut().find(|group| group.id == id).unwrap()
    }

    pub(crate) fn remove(&mut self, name: &str) {
        let id = self.group(name).id.clone();
        let at = self.groups.iter().position(|group| group.id == id).unwrap();
        for (_, member) in self.groups.remove(at).members() {
            self.engine.forget(&member.uid);
        }
    }

    pub(crate) fn plan(&mut self, now: u64) -> Vec<QueueDecision> {
        let before: Vec<Entry> = self.engine.ledger().entries().cloned().collect();
        let guarded = self.guarded.clone();
        let decisions = plan(
            QueueSnapshot {
                engine: &mut self.engine,
                nodes: &self.nodes,
                tree: &self.tree,
                totals: &self.totals,
                groups: &self.groups,
                hold: self.hold.as_ref(),
                breaks: &|all| {
                    let is = |one: &&Entry| guarded.iter().any(|g| one.uid.as_str().contains(g));
                    all.iter().any(is)
                },
                rules: &self.rules,
                memo: &mut self.memo,
            },
            Time::from_ms(now),
        );
        let after = self.engine.ledger().entries();
        assert!(after.eq(&before), "a plan changes nothing");
        assert!(self.engine.ledger().is_conserved());
        decisions
    }

    /// Plans once, carries everything out, and says what it was, but for explanations.
    pub(crate) fn tick(&mut self, now: u64) -> Vec<String> {
        let decisions = self.plan(now);
        self.apply(&decisions, now);
        let told = decisions.iter().filter_map(tell);
        told.collect()
    }

    /// Reason why a group waits, by the last plan of it.
    pub(crate) fn why(&mut self, name: &str, now: u64) -> String {
        let id = self.group(name).id.clone();
        let reasons = self
            .plan(now)
            .into_iter()
            .find_map(|decision| match decision {
                QueueDecision::Explain { group, reason, .. } if group == id => {
                    Some(reason.to_string())
                }
                _ => None,
            });
        reasons.unwrap_or_default()
    }

    pub(crate) fn apply(&mut self, decisions: &[QueueDecision], now: u64) {
        self.hold = None;
        for decision in decisions {
            match decision {
                QueueDecision::Admit { group, slots } => self.start(group, slots, now),
                QueueDecision::Evict {
                    group,
                    slots,
                    victims,
                } => {
                    for victim in victims {
                        self.engine.forget(&victim.uid);
                        let id = &victim.group;
                        let of = self
                            .groups
                            .iter_mut()
                            .find(|group| group.id == *id)
                            .unwrap();
                        let roles = of.gangs.iter_mut().flat_map(|gang| &mut gang.roles);
                        for role in roles {
                            role.members.retain(|member| member.uid != victim.uid);
                        }
                        if of.members().next().is_none() {
                            of.started = None;
                            of.past.reclaims += 1;
                            of.past.reclaimed = Some(Time::from_ms(now));
                        }
                    }
                    self.start(group, slots, now);
                }
                QueueDecision::Hold(hold) => self.hold = Some(hold.clone()),
                QueueDecision::Explain {
                    group, room_since, ..
                } => {
                    let mut groups = self.groups.iter_mut();
                    let of = groups.find(|of| of.id == *group).unwrap();
                    of.past.room_since = *room_since;
                }
            }
        }
    }

    pub(crate) fn evict(&mut self, victim: &QueueVictim) {
        self.engine.forget(&victim.uid);
        let id = &victim.group;
        let of = self.groups.iter_mut().find(|group| group.id == *id);
        let of = of.unwrap();
        let roles = of.gangs.iter_mut().flat_map(|gang| &mut gang.roles);
        for role in roles {
            role.members.retain(|member| member.uid != victim.uid);
        }
        if of.members().next().is_none() {
            of.started = None;
        }
    }

    /// Starts a group if the nodes have room, whatever the quotas say.
    pub(crate) fn force(&mut self, name: &str) {
        let nodes = self.nodes.clone();
        let group = self.group(name).clone();
        let mut places = Places::new(self.engine.trial(Time::from_ms(0)), &nodes);
        let slots = places.take(&group, &together(&group).unwrap(), Ground::Free);
        drop(places);
        if let Ok(slots) = slots {
            self.start(&group.id, &slots, 0);
        }
    }

    /// The same cluster once more.
    pub(crate) fn again(&self) -> TestCluster {
        TestCluster {
            engine: self.engine.clone(),
            nodes: self.nodes.clone(),
            tree: self.tree.clone(),
            totals: self.totals.clone(),
            groups: self.groups.clone(),
            hold: self.hold.clone(),
            rules: self.rules.clone(),
            memo: QueueMemo::default(),
            guarded: self.guarded.clone(),
        }
    }

    fn start(&mut self, id: &GroupId, slots: &[Slot], now: u64) {
        let of = self
            .groups
            .iter_mut()
            .find(|group| group.id == *id)
            .unwrap();
        of.started.get_or_insert(Time::from_ms(now));
        for slot in slots {
            let uid = of.slot_uid(&slot.role, slot.index).unwrap();
            let roles = of.gangs.iter_mut().flat_map(|gang| &mut gang.roles);
            let role = roles
                .into_iter()
                .find(|role| role.name == slot.role)
                .unwrap();
            role.members.push(Member {
                index: slot.index,
                uid: uid.clone(),
                node: slot.node.clone(),
                standing: Standing::Bound,
            });
            self.engine.observe(Entry {
                pod: PodKey::new("t", "p").unwrap(),
                uid,
                node: slot.node.clone(),
                claim: role.pod.claim.clone(),
                allocation: Some(slot.allocation.clone()),
                standing: Standing::Bound,
                assigned: true,
                priority: of.priority,
            });
        }
    }

    /// Places of a group: `role 0@n1 1@n2`.
    pub(crate) fn places(&mut self, name: &str) -> String {
        let group = self.group(name);
        let members = group.members();
        let words = members.map(|(role, one)| format!("{}{}@{}", role.name, one.index, one.node));
        words.collect::<Vec<_>>().join(" ")
    }
}

fn quota(line: &str) -> Quota {
    let words: Vec<&str> = line.split_whitespace().collect();
    let [name, parent, min, max] = words[..] else {
        panic!("four words: {line}");
    };
    let amounts = |word: &str| [(Arc::from(GPU), word.parse().unwrap())].into();
    let (name, tree) = name.split_once('@').unwrap_or((name, ""));
    Quota {
        tree: tree.into(),
        name: name.trim_end_matches('!').into(),
        parent: (parent != "-").then(|| parent.into()),
        lends: !name.ends_with('!'),
        min: amounts(min),
        max: amounts(max),
        ..Quota::default()
    }
}

/// Reads `name quota word.. | role min replicas ask | ..`. Words: `p5` (priority), `t9` (since), `low`
/// (opportunistic), `firm` (must not be evicted), `min=3` (of the gang, instead of the sum of its
/// roles), `loose` (its roles have no minimum), `next` (a new gang begins with the next role),
/// `ends=9`, `runs=9` (time that it says to run), `saves=9` (time between checkpoints). An ask is cards as `2x`, a part of one as `500`, or nothing as `0`.
pub(crate) fn group(line: &str) -> Group {
    let mut parts = line.split('|').map(str::trim);
    let mut head = parts.next().unwrap().split_whitespace();
    let name = head.next().unwrap();
    let mut group = Group {
        id: GroupId::new(format!("job/t/{name}")),
        quota: head.next().unwrap().into(),
        priority: 0,
        class: Class::Guaranteed,
        preemptible: true,
        since: Time::from_ms(0),
        not_before: None,
        gangs: Vec::new(),
        mode: crate::GangMode::Strict,
        matching: MatchPolicy::OnceSatisfied,
        satisfied: false,
        ends: None,
        runs_ms: None,
        started: None,
        past: GroupPast::default(),
    };
    let mut min = None;
    for word in head {
        let number = |from: usize| word[from..].parse::<u64>().unwrap();
        match word {
            "low" => group.class = Class::Opportunistic,
            "firm" => group.preemptible = false,
            "satisfied" => group.satisfied = true,
            "only-waiting" => group.matching = MatchPolicy::OnlyWaiting,
            "waiting-and-running" => group.matching = MatchPolicy::WaitingAndRunning,
            _ if word.starts_with("min=") => min = Some(number(4) as u32),
            _ if word.starts_with("saves=") => group.past.saves = Saves::Every(number(6)),
            _ if word.starts_with("runs=") => group.runs_ms = Some(number(5)),
            _ if word.starts_with("ends=") => group.ends = Some(Time::from_ms(number(5))),
            _ if word.starts_with('t') => group.since = Time::from_ms(number(1)),
            _ if word.starts_with('p') => group.priority = word[1..].parse().unwrap(),
            other => panic!("`{other}` is not a word for a group"),
        }
    }
    for part in parts {
        if part == "next" || group.gangs.is_empty() {
            let name = format!("g{}", group.gangs.len());
            group.gangs.push(Gang {
                name: name.into(),
                min: 0,
                roles: Vec::new(),
            });
        }
        if part != "next" {
            let gang = group.gangs.last_mut().unwrap();
            let role = role(part, group.class);
            gang.min += role.min;
            gang.roles.push(role);
        }
    }
    if let Some(min) = min {
        group.gangs[0].min = min;
    }
    group
}

fn role(text: &str, class: Class) -> GangRole {
    let words: Vec<&str> = text.split_whitespace().collect();
    let [name, min, replicas, ask] = words[..] else {
        panic!("four words: {text}");
    };
    let cards = match ask.strip_suffix('x') {
        Some(cards) => cards.parse().unwrap(),
        None => u64::from(ask != "0"),
    };
    let shape = MemberShape {
        claim: Arc::new(claim(ask).with_class(class).unwrap()),
        rules: PodRules::default(),
        unmodelled: Vec::new(),
        amounts: [(Arc::from(GPU), cards)].into(),
    };
    GangRole {
        name: name.into(),
        min: min.parse().unwrap(),
        replicas: replicas.parse().unwrap(),
        pod: Arc::new(shape),
        members: Vec::new(),
    }
}

fn claim(ask: &str) -> Claim {
    let demand = match ask.strip_suffix('x') {
        Some(cards) => Demand::of_cards(Count::new(cards.parse().unwrap())),
        None if ask == "0" => return Claim::host_only(Host::ZERO),
        None => Demand::of_memory(MiB::from(ask.parse::<u32>().unwrap())),
    };
    let container = ContainerClaim {
        name: ContainerName::new("c").unwrap(),
        position: 0,
        role: Role::Main,
        demand,
    };
    Claim::new(None, vec![container], false).unwrap()
}

/// A decision in a line; an explanation is none.
pub(crate) fn tell(decision: &QueueDecision) -> Option<String> {
    let name = |group: &GroupId| group.object().to_owned();
    Some(match decision {
        QueueDecision::Admit { group, slots } => format!("admit {} {}", name(group), slots.len()),
        QueueDecision::Evict {
            group,
            slots,
            victims,
        } => {
            let mut of: Vec<String> = victims.iter().map(|one| name(&one.group)).collect();
            of.dedup();
            let of = of.join(" ");
            format!("evict {of} for {} {}", name(group), slots.len())
        }
        QueueDecision::Hold(hold) => format!("hold {} for {}", hold.nodes.len(), name(&hold.group)),
        QueueDecision::Explain { .. } => return None,
    })
}

/// A number that `cargo xtask soak` says by a variable.
pub(crate) fn asked(variable: &str) -> Option<u64> {
    let text = std::env::var_os(variable)?.into_string().ok()?;
    text.parse().ok()
}
