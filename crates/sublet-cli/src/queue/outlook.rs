//! What the queue of a cluster would do now: groups made of what is there, and the queue's own
//! engine asked once. Nothing is written.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

use sublet_api::gang_plan::{GangPlan, GangPlanObject};
use sublet_api::group::{
    GroupSources, JobFacts, PodGroupFacts, QueuedGroup, ShapeMemo, gather, is_queued, job_kind,
    read_job, read_pod_group,
};
use sublet_api::object::Pod;
use sublet_api::{
    DEFAULT_QUOTA, QuotaFacts, QuotaIndex, QuotaScope, amounts_of, elastic_quotas, gpu_amounts,
    is_over, pod_uid, scheduler_of, tree_totals,
};
use sublet_model::{MiB, PodUid, Time, Unit};
use sublet_plan::{EngineOptions, Policy};
use sublet_queue::{
    Amounts, Group, QueueDecision, QueueHold, QueueMemo, QueueReason, QueueRules, QueueSnapshot,
    QueueVictim, Quota, QuotaTree, Slot, TreeTotals, plan,
};

use serde::Deserialize;
use serde_json::Value;

use super::promised;
use crate::plan::{Input, Located, Unreadable, name_of, settle};
use crate::quota::books::{Demand, Report, Row, of_demand};
use crate::verdict::{Cluster, Odd, asked};

/// How to look.
#[derive(Debug, Clone)]
pub(crate) struct OutlookOptions {
    /// What one `aliyun.com/gpu-mem` is.
    pub(crate) unit: Unit,
    /// The names of schedulers that ask Sublet.
    pub(crate) schedulers: Vec<String>,
    /// The moment.
    pub(crate) now: Time,
}

/// What is, and what the queue would do now.
#[derive(Default)]
pub(crate) struct Outlook {
    /// What each quota has of each resource.
    pub(crate) quotas: Vec<Row>,
    /// Every group, those that wait in the order in which they are tried.
    pub(crate) groups: Vec<Standing>,
    /// What is kept for a group that has waited long.
    pub(crate) held: Option<QueueHold>,
    pub(crate) unreadable: Vec<Unreadable>,
    /// Lines for people.
    pub(crate) notes: Vec<String>,
    /// Why there is no answer, a line each.
    pub(crate) errors: Vec<String>,
}

/// A group, and what becomes of it.
pub(crate) struct Standing {
    pub(crate) queued: QueuedGroup,
    pub(crate) fate: Fate,
}

/// What becomes of a group now.
pub(crate) enum Fate {
    /// All that must run has a place.
    Runs,
    /// These members start, once the victims are gone.
    Starts {
        slots: Vec<Slot>,
        victims: Vec<QueueVictim>,
    },
    /// It waits: the how manieth of its quota, from 1, and why.
    Waits { position: u32, reason: QueueReason },
}

impl Fate {
    /// Does what the group asks count when what there is is divided?
    fn counts(&self) -> bool {
        let Fate::Waits { reason, .. } = self else {
            return true;
        };
        !matches!(
            reason,
            QueueReason::Infeasible(_)
                | QueueReason::ExceedsEntitlement(_)
                | QueueReason::Incomplete { .. }
                | QueueReason::NoQuota { .. }
                | QueueReason::ParentQuota { .. }
        )
    }
}

/// Objects that only the queue reads.
#[derive(Default)]
struct Objects {
    pod_groups: Vec<PodGroupFacts>,
    jobs: Vec<JobFacts>,
    plans: Vec<GangPlan>,
    /// Numbers of PriorityClasses; "" for that which counts where none is named.
    priorities: BTreeMap<String, i32>,
    /// Labels of namespaces.
    namespaces: BTreeMap<String, BTreeMap<String, String>>,
}

/// Looks at what was read.
pub(crate) fn outlook(mut input: Input, options: &OutlookOptions) -> Outlook {
    let mut outlook = Outlook::default();
    outlook.notes.append(&mut input.notes);
    outlook.errors.append(&mut input.errors);
    settle(&mut input);
    outlook.unreadable.append(&mut input.unreadable);
    let objects = Objects::read(&input.queued, &mut outlook);
    let facts = elastic_quotas(input.quotas.iter().map(|quota| &quota.object));
    let facts: Vec<QuotaFacts> = facts.into_iter().flatten().collect();
    let (mut cluster, nodes) = enter(&input, options, &mut outlook);
    objects.promise(&mut cluster, &input.pods, options.unit, &mut outlook);
    let queued = objects.groups(
        &input,
        &facts,
        largest_card(&cluster),
        options,
        &mut outlook,
    );
    let card = largest_card(&cluster);
    let all = queued.iter().map(|queued| (queued, true));
    let demand = demand_of(&input.pods, all, &facts, card, options);
    let totals = tree_totals(&facts, nodes.as_ref(), |quota| demand.used(quota));
    match tree_of(&facts) {
        Ok(tree) => outlook.decide(&mut cluster, &tree, &totals, queued, options.now),
        Err(error) => outlook.errors.push(error.to_string()),
    }
    if !input.quotas.is_empty() {
        // As the engine divides: who cannot start as things are has no part in it.
        let groups = outlook.groups.iter();
        let groups = groups.map(|one| (&one.queued, one.fate.counts()));
        let demand = demand_of(&input.pods, groups, &facts, card, options);
        let Report {
            rows,
            unreadable,
            notes,
            errors,
        } = of_demand(&input, &demand, nodes.as_ref());
        outlook.quotas = rows;
        outlook.unreadable.extend(unreadable);
        outlook.notes.extend(notes);
        outlook.errors.extend(errors);
    }
    outlook
}

/// All trees, with the quota of those that belong to none.
fn tree_of(facts: &[QuotaFacts]) -> Result<QuotaTree, sublet_queue::TreeError> {
    let members = facts.iter();
    let members = members.filter(|facts| facts.scope == QuotaScope::Tree);
    let default = facts
        .iter()
        .find(|facts| &*facts.quota.name == DEFAULT_QUOTA);
    let default = default.map_or_else(
        || Quota {
            name: DEFAULT_QUOTA.into(),
            lends: true,
            ..Quota::default()
        },
        |facts| facts.quota.clone(),
    );
    QuotaTree::new(
        members
            .map(|facts| facts.quota.clone())
            .chain([default])
            .collect(),
    )
}

/// Nodes and bound pods in the engine, and what all nodes have together.
fn enter(
    input: &Input,
    options: &OutlookOptions,
    outlook: &mut Outlook,
) -> (Cluster, Option<Amounts>) {
    let mut cluster = Cluster::new(EngineOptions {
        unit: options.unit,
        ..EngineOptions::of(Policy::default())
    });
    let mut sum: Option<Amounts> = None;
    for Located { origin, object } in &input.nodes {
        let name = format!("node {}", object.metadata.name);
        let mut tell = |Odd { field, what }: Odd| {
            let odd = Unreadable::of(origin, name.clone(), &field, what);
            outlook.unreadable.push(odd);
        };
        let entered = cluster.enter_node(object, None);
        let gpus = match &entered {
            Ok(node) => cluster.gpus(*node),
            Err(error) => {
                tell(Odd::of_node(error));
                Amounts::new()
            }
        };
        let Ok(mut amounts) = sublet_api::node_amounts(object) else {
            continue;
        };
        amounts.extend(gpus);
        let sum = sum.get_or_insert_default();
        for (resource, amount) in amounts {
            let sum: &mut u64 = sum.entry(resource).or_default();
            *sum = sum.saturating_add(amount);
        }
    }
    for Located { origin, object } in &input.pods {
        if object.spec.node_name.is_empty() {
            continue;
        }
        for Odd { field, what } in cluster.enter_pod(object) {
            let odd = Unreadable::of(origin, name_of(object), &field, what);
            outlook.unreadable.push(odd);
        }
        if let Ok(uid) = pod_uid(object) {
            cluster.start(&uid);
        }
    }
    (cluster, sum)
}

/// With what a whole card counts: as the largest that there is.
fn largest_card(cluster: &Cluster) -> MiB {
    let nodes = cluster.nodes();
    let cards = nodes
        .iter()
        .filter_map(|(node, _)| cluster.largest_card(*node));
    cards.max().unwrap_or(MiB::ZERO)
}

/// What groups and all other pods ask and have, by quota. With each group: does what it asks count
/// beyond what it has?
fn demand_of<'a>(
    pods: &[Located<Pod>],
    queued: impl Iterator<Item = (&'a QueuedGroup, bool)>,
    facts: &[QuotaFacts],
    card: MiB,
    options: &OutlookOptions,
) -> Demand {
    let mut demand = Demand::default();
    let mut in_groups: Vec<&PodUid> = Vec::new();
    for (QueuedGroup { group, pods, .. }, counts) in queued {
        in_groups.extend(pods.iter().map(|pod| &pod.uid));
        for role in group.gangs.iter().flat_map(|gang| &gang.roles) {
            let amounts = &role.pod.amounts;
            let has = role.members.len() as u64;
            let asks = if counts {
                u64::from(role.replicas)
            } else {
                has
            };
            demand.ask(&group.quota, amounts, asks);
            demand.have(&group.quota, amounts, has);
        }
    }
    in_groups.sort_unstable();
    let index = QuotaIndex::new(facts);
    for Located { object: pod, .. } in pods.iter().filter(|pod| !is_over(&pod.object)) {
        let is_grouped = pod_uid(pod).is_ok_and(|uid| in_groups.binary_search(&&uid).is_ok());
        let Ok(mut amounts) = amounts_of(pod) else {
            continue;
        };
        if is_grouped {
            continue;
        }
        if let Ok(claim) = asked(pod, options.unit) {
            amounts.extend(gpu_amounts(&claim, card));
        }
        let quota = index.of_pod(pod).quota;
        demand.ask(&quota, &amounts, 1);
        if !pod.spec.node_name.is_empty() {
            demand.have(&quota, &amounts, 1);
        }
    }
    demand
}

impl Objects {
    fn read(found: &[Located<Value>], outlook: &mut Outlook) -> Objects {
        let mut objects = Objects::default();
        for Located { origin, object } in found {
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            let (api, kind) = (text(&object["apiVersion"]), text(&object["kind"]));
            let name = text(&object["metadata"]["name"]);
            if let Err((field, what)) = objects.add(&api, &kind, object) {
                let odd = Unreadable::of(origin, format!("{kind} {name}"), &field, what);
                outlook.unreadable.push(odd);
            }
        }
        objects
    }

    fn add(&mut self, api: &str, kind: &str, object: &Value) -> Result<(), (String, String)> {
        let odd = |error: sublet_api::group::GroupError| (error.field, error.what);
        let meta = &object["metadata"];
        let name = meta["name"].as_str().unwrap_or_default();
        if name.is_empty() {
            return Err(("metadata.name".to_owned(), "it is missing".to_owned()));
        }
        match kind {
            "PodGroup" => self
                .pod_groups
                .extend(read_pod_group(api, object).map_err(odd)?),
            "GangPlan" => {
                let read = GangPlanObject::deserialize(object);
                let read = read.map_err(|error| ("spec".to_owned(), error.to_string()))?;
                let plan = GangPlan::of(&read).map_err(|error| (error.field, error.why))?;
                self.plans.push(plan);
            }
            "PriorityClass" => {
                let value = object["value"].as_i64();
                let value = value.and_then(|value| i32::try_from(value).ok());
                let wrong = || ("value".to_owned(), "it is no whole number".to_owned());
                let value = value.ok_or_else(wrong)?;
                self.priorities.insert(name.to_owned(), value);
                if object["globalDefault"] == true {
                    self.priorities.insert(String::new(), value);
                }
            }
            "Namespace" => {
                let labels = BTreeMap::deserialize(&meta["labels"]).unwrap_or_default();
                self.namespaces.insert(name.to_owned(), labels);
            }
            _ => {
                if let Some(kind) = job_kind(api, kind) {
                    self.jobs.push(read_job(kind, object).map_err(odd)?);
                }
            }
        }
        Ok(())
    }

    /// What plans have promised is taken.
    fn promise(
        &self,
        cluster: &mut Cluster,
        pods: &[Located<Pod>],
        unit: Unit,
        outlook: &mut Outlook,
    ) {
        let taken = promised::taken(cluster, pods.iter().map(|pod| &pod.object));
        for plan in &self.plans {
            if let Err(error) = promised::enter(cluster, plan, &taken, unit) {
                let name = &plan.name;
                outlook
                    .notes
                    .push(format!("warning: plan {name} reserves nothing: {error}"));
            }
        }
    }

    fn groups(
        &self,
        input: &Input,
        facts: &[QuotaFacts],
        card: MiB,
        options: &OutlookOptions,
        outlook: &mut Outlook,
    ) -> Vec<QueuedGroup> {
        let none = BTreeMap::new();
        let is_queued = |pod: &Pod| {
            let labels = self.namespaces.get(&pod.metadata.namespace);
            let ours = options
                .schedulers
                .iter()
                .any(|one| one == scheduler_of(pod));
            ours && is_queued(pod, labels.unwrap_or(&none))
        };
        let index = QuotaIndex::new(facts);
        let pods: Vec<&Pod> = input.pods.iter().map(|pod| &pod.object).collect();
        let sources = GroupSources {
            pods: &pods,
            pod_groups: &self.pod_groups.iter().collect::<Vec<_>>(),
            jobs: &self.jobs.iter().collect::<Vec<_>>(),
            plans: &self.plans.iter().collect::<Vec<_>>(),
            quotas: &index,
            priority: &|class| self.priorities.get(class).copied(),
            is_queued: &is_queued,
            unit: options.unit,
            card,
            now: options.now,
        };
        let gathered = gather(sources, &mut ShapeMemo::default());
        let said = gathered.problems.iter().map(|problem| {
            let sublet_api::group::GroupProblem { of, error } = problem;
            format!("warning: {of}: {error}")
        });
        outlook.notes.extend(said);
        gathered.groups
    }
}

impl Outlook {
    /// Asks the queue's engine once.
    fn decide(
        &mut self,
        cluster: &mut Cluster,
        tree: &QuotaTree,
        totals: &TreeTotals,
        queued: Vec<QueuedGroup>,
        now: Time,
    ) {
        let groups: Vec<Group> = queued.iter().map(|queued| queued.group.clone()).collect();
        let nodes = cluster.nodes();
        let decisions = plan(
            QueueSnapshot {
                engine: &mut cluster.engine,
                nodes: &nodes,
                tree,
                totals,
                groups: &groups,
                hold: None,
                breaks: &|_| false,
                rules: &QueueRules::default(),
                memo: &mut QueueMemo::default(),
            },
            now,
        );
        let mut fates: BTreeMap<Arc<str>, Fate> = BTreeMap::new();
        for decision in decisions {
            let (group, fate) = match decision {
                QueueDecision::Admit { group, slots } => {
                    let victims = Vec::new();
                    (group, Fate::Starts { slots, victims })
                }
                QueueDecision::Evict {
                    group,
                    slots,
                    victims,
                } => (group, Fate::Starts { slots, victims }),
                QueueDecision::Hold(hold) => {
                    self.held = Some(hold);
                    continue;
                }
                QueueDecision::Explain { group, reason, .. } => {
                    let position = 0;
                    (group, Fate::Waits { position, reason })
                }
            };
            fates.entry(group.as_str().into()).or_insert(fate);
        }
        self.groups = queued
            .into_iter()
            .map(|queued| {
                let fate = fates.remove(queued.group.id.as_str());
                let fate = fate.unwrap_or(Fate::Runs);
                Standing { queued, fate }
            })
            .collect();
        self.groups.sort_by_cached_key(|standing| {
            let group = &standing.queued.group;
            let name = group.id.clone();
            (
                group.quota.clone(),
                Reverse(group.priority),
                group.since,
                name,
            )
        });
        let mut places: BTreeMap<Arc<str>, u32> = BTreeMap::new();
        for Standing { queued, fate } in &mut self.groups {
            if let Fate::Waits { position, .. } = fate {
                let place = places.entry(queued.group.quota.clone()).or_default();
                *place += 1;
                *position = *place;
            }
        }
    }
}
