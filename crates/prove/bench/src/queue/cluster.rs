//! A cluster of memory only: nodes, quotas and groups, and what becomes of them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use sublet_model::{
    Bytes, Claim, Class, ContainerClaim, ContainerName, Count, Demand, Entry, Gpu, GpuIndex, Host,
    Inventory, MiB, MilliCpu, NodeFacts, NodeIdx, NodeName, PodKey, Role, Sharing, Standing, Time,
};
use sublet_plan::stock::{NodeRules, PodRules};
use sublet_plan::{Engine, EngineOptions, StockRules};
use sublet_queue::{
    Amounts, Gang, GangMode, GangRole, Group, GroupId, GroupPast, MatchPolicy, Member, MemberShape,
    QueueDecision, QueueMemo, QueueRules, QueueSnapshot, Quota, QuotaTree, Slot, TreeTotals, plan,
};

/// GPUs of a node, and cores and memory for each of them.
const GPUS: u16 = 8;
const CORES: u64 = 12;
const GIB: u64 = 100;

/// Size of the cluster.
#[derive(Debug, Clone, Copy)]
pub(super) struct Scale {
    pub(super) nodes: usize,
    pub(super) groups: usize,
    pub(super) quotas: usize,
}

/// Groups that a row of ticks has started.
#[derive(Debug, Default)]
pub(super) struct Filled {
    pub(super) groups: u64,
    pub(super) slots: u64,
    pub(super) time: Duration,
}

/// All of it.
pub(super) struct Cluster {
    engine: Engine,
    nodes: Vec<(NodeIdx, NodeRules)>,
    tree: QuotaTree,
    totals: TreeTotals,
    groups: Vec<Group>,
    rules: QueueRules,
    memo: QueueMemo,
    sizes: Vec<u32>,
    /// One for each number of GPUs of a pod, as a job's pods are made from one template.
    shapes: BTreeMap<u32, Arc<MemberShape>>,
    quotas: usize,
    made: usize,
    now: u64,
    /// A number that looks like chance and is the same in every run.
    chance: u64,
}

impl Cluster {
    pub(super) fn new(scale: Scale, sizes: &[u32]) -> Result<Cluster> {
        let mut engine = Engine::new(EngineOptions {
            stock: StockRules::Here,
            ..EngineOptions::default()
        });
        let gpus = (0..GPUS).map(|at| Gpu::plain(GpuIndex(at), MiB::from(81_920)));
        let inventory = Inventory::new(gpus.collect(), Vec::new(), Vec::new(), Vec::new())?;
        let inventory = Arc::new(inventory);
        let mut nodes = Vec::new();
        for at in 0..scale.nodes {
            let name = format!("node-{at:04}");
            let facts = NodeFacts {
                sharing: Sharing::Both,
                host: host(u64::from(GPUS) + 1),
                ..NodeFacts::plain(NodeName::new(&name)?, Arc::clone(&inventory))
            };
            let rules = NodeRules {
                name: name.into(),
                labels: BTreeMap::new(),
                taints: Vec::new(),
                unschedulable: false,
            };
            nodes.push((engine.set_node(facts), rules));
        }
        let gpus = scale.nodes as u64 * u64::from(GPUS);
        let mut cluster = Cluster {
            engine,
            nodes,
            tree: tree(scale.quotas, gpus)?,
            totals: [("".into(), amounts(gpus))].into(),
            groups: Vec::new(),
            rules: QueueRules::default(),
            memo: QueueMemo::default(),
            sizes: sizes.to_vec(),
            shapes: BTreeMap::new(),
            quotas: scale.quotas,
            made: 0,
            now: 0,
            chance: 1,
        };
        for _ in 0..scale.groups {
            cluster.come()?;
        }
        Ok(cluster)
    }

    /// Another group comes; its id is the last one.
    fn come(&mut self) -> Result<()> {
        let size = self.sizes[self.made % self.sizes.len()];
        let count = size.div_ceil(u32::from(GPUS));
        let each = size.div_ceil(count.max(1)).max(1);
        let shape = match self.shapes.get(&each) {
            Some(shape) => Arc::clone(shape),
            None => {
                let shape = shape(each)?;
                self.shapes.insert(each, Arc::clone(&shape));
                shape
            }
        };
        let role = GangRole {
            name: "worker".into(),
            min: count,
            replicas: count,
            pod: shape,
            members: Vec::new(),
        };
        // Not in the order of the quotas, so that each has all sizes.
        let quota = self.draw() % self.quotas as u64;
        let group = Group {
            id: GroupId::new(format!("job/team/{:08}", self.made)),
            quota: format!("leaf-{quota:03}").into(),
            priority: i32::try_from(self.draw() % 3)?,
            class: Class::Guaranteed,
            preemptible: true,
            since: Time::from_ms(self.now),
            not_before: None,
            gangs: vec![Gang {
                name: "job".into(),
                min: count,
                roles: vec![role],
            }],
            mode: GangMode::Strict,
            matching: MatchPolicy::OnceSatisfied,
            satisfied: false,
            ends: None,
            runs_ms: None,
            started: None,
            past: GroupPast::default(),
        };
        self.made += 1;
        self.groups.push(group);
        Ok(())
    }

    /// The next number of a linear congruential generator (Knuth's MMIX), its upper half.
    fn draw(&mut self) -> u64 {
        self.chance = self
            .chance
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        self.chance >> 33
    }

    /// Ticks until nobody starts any more; as many groups come as start.
    pub(super) fn fill(&mut self) -> Result<Filled> {
        let mut filled = Filled::default();
        loop {
            let (started, time) = self.tick()?;
            filled.groups += started.0;
            filled.slots += started.1;
            filled.time += time;
            if started.0 == 0 {
                return Ok(filled);
            }
        }
    }

    /// One tick, which is timed; then what it decides is carried out. Groups and slots that start.
    pub(super) fn tick(&mut self) -> Result<((u64, u64), Duration)> {
        self.now += 1;
        let begin = Instant::now();
        let decisions = plan(
            QueueSnapshot {
                engine: &mut self.engine,
                nodes: &self.nodes,
                tree: &self.tree,
                totals: &self.totals,
                groups: &self.groups,
                hold: None,
                breaks: &|_| false,
                rules: &self.rules,
                memo: &mut self.memo,
            },
            Time::from_ms(self.now),
        );
        let time = begin.elapsed();
        let mut started = (0, 0);
        for decision in &decisions {
            if let QueueDecision::Admit { group, slots }
            | QueueDecision::Evict { group, slots, .. } = decision
            {
                started.0 += 1;
                started.1 += slots.len() as u64;
                self.start(group, slots)?;
            }
        }
        Ok((started, time))
    }

    fn start(&mut self, id: &GroupId, slots: &[Slot]) -> Result<()> {
        let at = self.groups.binary_search_by(|group| group.id.cmp(id));
        let group = &mut self.groups[at.ok().context("an unknown group was admitted")?];
        group.started = Some(Time::from_ms(self.now));
        group.satisfied = true;
        for slot in slots {
            let uid = group.slot_uid(&slot.role, slot.index)?;
            let role = &mut group.gangs[0].roles[0];
            role.members.push(Member {
                index: slot.index,
                uid: uid.clone(),
                node: slot.node.clone(),
                standing: Standing::Bound,
            });
            self.engine.observe(Entry {
                pod: PodKey::new("team", "pod")?,
                uid,
                node: slot.node.clone(),
                claim: Arc::clone(&role.pod.claim),
                allocation: Some(slot.allocation.clone()),
                standing: Standing::Bound,
                assigned: true,
                priority: group.priority,
            });
        }
        Ok(())
    }

    /// One of the groups that run ends, and another one comes.
    pub(super) fn end_one(&mut self) {
        let running = (0..self.groups.len()).filter(|&at| self.groups[at].started.is_some());
        let running: Vec<usize> = running.collect();
        let drawn = usize::try_from(self.draw()).unwrap_or(0);
        if let Some(&at) = running.get(drawn % running.len().max(1)) {
            let group = self.groups.remove(at);
            self.gone(&group);
        }
    }

    /// All that run end, and as many come.
    pub(super) fn end_all(&mut self) {
        let groups = std::mem::take(&mut self.groups);
        let (ended, waiting) = groups
            .into_iter()
            .partition::<Vec<_>, _>(|group| group.started.is_some());
        self.groups = waiting;
        for group in &ended {
            self.gone(group);
        }
    }

    fn gone(&mut self, group: &Group) {
        for (_, member) in group.members() {
            self.engine.forget(&member.uid);
        }
        // A shape for this size is there.
        let _ = self.come();
    }
}

fn host(gpus: u64) -> Host {
    Host {
        cpu: MilliCpu::new(gpus * CORES * 1000),
        memory: Bytes::new((gpus * GIB) << 30),
    }
}

/// Amounts of so many GPUs in every dimension.
fn amounts(gpus: u64) -> Amounts {
    let host = host(gpus);
    [
        ("nvidia.com/gpu", gpus),
        ("cpu", host.cpu.get()),
        ("memory", host.memory.get()),
    ]
    .map(|(name, amount)| (Arc::from(name), amount))
    .into()
}

/// Ten branches, and in each its part of the leaves.
fn tree(leaves: usize, gpus: u64) -> Result<QuotaTree> {
    let quota = |name: String, parent: Option<String>, parts: u64| Quota {
        name: name.into(),
        parent: parent.map(Into::into),
        lends: true,
        min: amounts(gpus / parts),
        max: amounts((4 * gpus / parts).min(gpus)),
        ..Quota::default()
    };
    let branches = (0..10).map(|at| quota(format!("branch-{at}"), None, 10));
    let all = leaves.max(1) as u64;
    let leaves = (0..leaves).map(|at| {
        let branch = format!("branch-{}", at % 10);
        quota(format!("leaf-{at:03}"), Some(branch), all)
    });
    Ok(QuotaTree::new(branches.chain(leaves).collect())?)
}

fn shape(gpus: u32) -> Result<Arc<MemberShape>> {
    let container = ContainerClaim {
        name: ContainerName::new("main")?,
        position: 0,
        role: Role::Main,
        demand: Demand::of_cards(Count::new(gpus)),
    };
    let claim = Claim::new(None, vec![container], false)?.with_host(host(gpus.into()));
    Ok(Arc::new(MemberShape {
        claim: Arc::new(claim),
        rules: PodRules::default(),
        unmodelled: Vec::new(),
        amounts: amounts(gpus.into()),
    }))
}
