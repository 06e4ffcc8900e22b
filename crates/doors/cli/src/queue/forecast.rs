//! The queue's next actions in a cluster: groups made of the objects that exist, and one question
//! to the queue's own engine. Nothing is written.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::Value;
use sublet_api::gang_plan::{GangPlan, GangPlanObject};
use sublet_api::group::{
    GroupProblem, JobFacts, NamespaceLabels, PodGroupFacts, PriorityClasses, QueueScope,
    QueueSources, QueuedGroup, ShapeMemo, WholeSnapshot, job_kind, read_job, read_pod_group,
};
use sublet_api::object::Pod;
use sublet_api::{
    DisruptionBudget, ElasticQuota, QueueState, QuotaTotals, add_amounts, is_guarded, pod_uid,
};
use sublet_model::{Entry, Time, Unit};
use sublet_plan::{EngineOptions, Policy};
use sublet_queue::{
    Amounts, Group, GroupId, QueueDecision, QueueHold, QueueMemo, QueueReason, QueueRules,
    QueueSnapshot, QueueVictim, Slot, plan,
};

use super::promised;
use crate::plan::{Input, Located, Unreadable, name_of, settle};
use crate::quota::report::{Report, Row, rows};
use crate::verdict::{Cluster, Odd, asked};

/// Options of a forecast.
#[derive(Debug, Clone)]
pub(crate) struct ForecastOptions {
    /// Pods and jobs that the queue manages.
    pub(crate) scope: QueueScope,
    /// Policy that chooses among places that fit.
    pub(crate) policy: Policy,
    /// Settings of the site.
    pub(crate) rules: QueueRules,
    /// The moment.
    pub(crate) now: Time,
}

/// Present state, and the queue's next actions.
#[derive(Default)]
pub(crate) struct QueueForecast {
    /// Figures of each quota for each resource.
    pub(crate) quotas: Vec<Row>,
    /// Every group; the waiting ones are in the order in which they are tried.
    pub(crate) groups: Vec<Standing>,
    /// Room held for a group that has waited long.
    pub(crate) held: Option<QueueHold>,
    pub(crate) unreadable: Vec<Unreadable>,
    /// Lines for people.
    pub(crate) notes: Vec<String>,
    /// Reasons why there is no answer, a line each.
    pub(crate) errors: Vec<String>,
}

/// A group, and its outcome.
pub(crate) struct Standing {
    pub(crate) queued: QueuedGroup,
    pub(crate) fate: Fate,
}

/// Present outcome of a group.
pub(crate) enum Fate {
    /// All that must run has a place.
    Runs {
        /// Reason why members beyond that wait.
        more: Option<QueueReason>,
        /// Number of its pods that go for another group, and the group.
        goes: Option<(usize, GroupId)>,
    },
    /// These members start, once the victims are gone.
    Starts {
        slots: Vec<Slot>,
        victims: Vec<QueueVictim>,
    },
    /// It waits: its position in its quota, from 1, and the reason.
    Waits { position: u32, reason: QueueReason },
}

/// Objects that only the queue reads.
#[derive(Default)]
struct Objects {
    pod_groups: Vec<PodGroupFacts>,
    jobs: Vec<JobFacts>,
    plans: Vec<GangPlan>,
    budgets: Vec<DisruptionBudget>,
    classes: PriorityClasses,
    namespaces: NamespaceLabels,
}

/// Makes the forecast of the input.
pub(crate) fn forecast(mut input: Input, options: &ForecastOptions) -> QueueForecast {
    let mut forecast = QueueForecast::default();
    input.pass_over_workloads();
    forecast.notes.append(&mut input.notes);
    forecast.errors.append(&mut input.errors);
    settle(&mut input);
    forecast.unreadable.append(&mut input.unreadable);
    let objects = Objects::read(&input.queued, &mut forecast);
    let (mut cluster, nodes) = enter(&input, options, &mut forecast);
    let unit = options.scope.unit;
    objects.promise(&mut cluster, &input.pods, unit, &mut forecast);
    // As a controller that has just taken over.
    cluster.engine.relearn();
    let named = input.quotas.iter().map(|quota| &quota.object);
    let named = named.filter(|quota| !quota.metadata.name.is_empty());
    let sources = QueueSources {
        pods: &input.pods.iter().map(|pod| &pod.object).collect::<Vec<_>>(),
        nodes: nodes.as_ref(),
        pod_groups: &objects.pod_groups.iter().collect::<Vec<_>>(),
        jobs: &objects.jobs.iter().collect::<Vec<_>>(),
        plans: &objects.plans.iter().collect::<Vec<_>>(),
        quotas: &named.collect::<Vec<_>>(),
        classes: &objects.classes,
        namespaces: &objects.namespaces,
        scope: &options.scope,
        now: options.now,
    };
    // As a controller that has just taken over, which has no memory of any group.
    let ran = |_: &str, whole: WholeSnapshot| whole.ran(None);
    let memo = &mut ShapeMemo::default();
    let state = QueueState::of(sources, &cluster.engine, memo, ran);
    let problems = state.gathered.problems.iter();
    let problems = problems.map(|GroupProblem { of, error }| format!("warning: {of}: {error}"));
    forecast.notes.extend(problems);
    let breaks = guards(&objects.budgets, &input.pods);
    let decisions = decide(&mut cluster, &state, &breaks, options);
    forecast.show(&input.quotas, &state, &decisions);
    forecast.enter(state.gathered.groups, decisions, &options.rules);
    forecast
}

/// Enters nodes and bound pods into the engine. Returns the sum of all nodes, too.
fn enter(
    input: &Input,
    options: &ForecastOptions,
    forecast: &mut QueueForecast,
) -> (Cluster, Option<Amounts>) {
    let mut cluster = Cluster::new(EngineOptions {
        unit: options.scope.unit,
        ..EngineOptions::of(options.policy.clone())
    });
    let mut sum: Option<Amounts> = None;
    for Located { origin, object } in &input.nodes {
        let name = format!("node {}", object.metadata.name);
        let mut tell = |Odd { field, what }: Odd| {
            let odd = Unreadable::of(origin, name.clone(), &field, what);
            forecast.unreadable.push(odd);
        };
        if let Err(error) = cluster.enter_node(object, None) {
            tell(Odd::of_node(&error));
        }
        if let Ok(amounts) = sublet_api::node_amounts(object) {
            add_amounts(sum.get_or_insert_default(), &amounts, 1);
        }
    }
    for Located { origin, object } in &input.pods {
        if object.spec.node_name.is_empty() {
            // Policies that learn have seen it, as in a cluster.
            if let Ok(claim) = asked(object, options.scope.unit) {
                cluster.engine.learn(&claim);
            }
            continue;
        }
        for Odd { field, what } in cluster.enter_pod(object) {
            let odd = Unreadable::of(origin, name_of(object), &field, what);
            forecast.unreadable.push(odd);
        }
        if let Ok(uid) = pod_uid(object) {
            cluster.start(&uid);
        }
    }
    (cluster, sum)
}

impl Objects {
    fn read(found: &[Located<Value>], forecast: &mut QueueForecast) -> Objects {
        let mut objects = Objects::default();
        for Located { origin, object } in found {
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            let (api, kind) = (text(&object["apiVersion"]), text(&object["kind"]));
            let name = text(&object["metadata"]["name"]);
            if let Err((field, what)) = objects.add(&api, &kind, object) {
                let odd = Unreadable::of(origin, format!("{kind} {name}"), &field, what);
                forecast.unreadable.push(odd);
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
                let plan = read.read().map_err(|error| (error.field, error.why))?;
                self.plans.push(plan);
            }
            "PodDisruptionBudget" => {
                let read = DisruptionBudget::deserialize(object);
                let mut budget = read.map_err(|error| ("spec".to_owned(), error.to_string()))?;
                if budget.metadata.namespace.is_empty() {
                    budget.metadata.namespace = "default".to_owned();
                }
                self.budgets.push(budget);
            }
            "PriorityClass" => {
                self.classes.enter(name, object).map_err(odd)?;
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

    /// Takes the places that plans have promised.
    fn promise(
        &self,
        cluster: &mut Cluster,
        pods: &[Located<Pod>],
        unit: Unit,
        forecast: &mut QueueForecast,
    ) {
        let taken = promised::taken(cluster, pods.iter().map(|pod| &pod.object));
        for plan in &self.plans {
            if let Err(error) = promised::enter(cluster, plan, &taken, unit) {
                let name = &plan.name;
                forecast
                    .notes
                    .push(format!("warning: plan {name} reserves nothing: {error}"));
            }
        }
    }
}

/// Tells whether the eviction of these would break a budget, as the controller asks.
fn guards<'a>(
    budgets: &'a [DisruptionBudget],
    pods: &'a [Located<Pod>],
) -> impl Fn(&[&Entry]) -> bool + 'a {
    let pods = pods.iter().map(|pod| &pod.object.metadata);
    let labels: BTreeMap<&str, &BTreeMap<String, String>> =
        pods.map(|meta| (&*meta.uid, &meta.labels)).collect();
    move |entries| {
        let of = |entry: &&'_ Entry| labels.get(entry.uid.as_str()).copied();
        let pods = entries.iter().map(|entry| (&entry.pod, of(entry)));
        is_guarded(&budgets.iter(), &pods.collect::<Vec<_>>())
    }
}

/// Asks the queue's engine once.
fn decide(
    cluster: &mut Cluster,
    state: &QueueState,
    breaks: &dyn Fn(&[&Entry]) -> bool,
    options: &ForecastOptions,
) -> Vec<QueueDecision> {
    let groups = state.gathered.groups.iter();
    let groups: Vec<Group> = groups.map(|queued| queued.group.clone()).collect();
    let nodes = cluster.nodes();
    plan(
        QueueSnapshot {
            engine: &mut cluster.engine,
            nodes: &nodes,
            tree: &state.quotas.tree,
            totals: &state.quotas.totals,
            groups: &groups,
            hold: None,
            breaks,
            rules: &options.rules,
            memo: &mut QueueMemo::default(),
        },
        options.now,
    )
}

impl QueueForecast {
    /// Enters each group with its outcome.
    fn enter(
        &mut self,
        queued: Vec<QueuedGroup>,
        decisions: Vec<QueueDecision>,
        rules: &QueueRules,
    ) {
        let mut fates: BTreeMap<Arc<str>, Fate> = BTreeMap::new();
        let mut going: BTreeMap<GroupId, (usize, GroupId)> = BTreeMap::new();
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
                } => {
                    for victim in &victims {
                        let goes = going.entry(victim.group.clone());
                        goes.or_insert_with(|| (0, group.clone())).0 += 1;
                    }
                    (group, Fate::Starts { slots, victims })
                }
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
                let fate = match fates.remove(queued.group.id.as_str()) {
                    Some(Fate::Waits { reason, .. }) if queued.group.satisfied => Fate::Runs {
                        more: queued.waits().then_some(reason),
                        goes: going.remove(&queued.group.id),
                    },
                    Some(fate) => fate,
                    None => Fate::Runs {
                        more: None,
                        goes: going.remove(&queued.group.id),
                    },
                };
                Standing { queued, fate }
            })
            .collect();
        self.groups.sort_by_cached_key(|standing| {
            let group = &standing.queued.group;
            let name = group.id.clone();
            (group.quota.clone(), rules.turn(group), name)
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

    /// Shows the quotas' figures and faults.
    fn show(
        &mut self,
        quotas: &[Located<ElasticQuota>],
        state: &QueueState,
        decisions: &[QueueDecision],
    ) {
        let QuotaTotals {
            facts,
            tree,
            totals,
            troubles,
            ..
        } = &state.quotas;
        let mut report = Report::default();
        report.tell(quotas, troubles);
        let nameless = |quota: &&Located<ElasticQuota>| quota.object.metadata.name.is_empty();
        for Located { origin, .. } in quotas.iter().filter(nameless) {
            let (what, why) = ("an ElasticQuota".to_owned(), "it is missing".to_owned());
            let odd = Unreadable::of(origin, what, "metadata.name", why);
            report.unreadable.push(odd);
        }
        if !quotas.is_empty() {
            let roots = facts.values().filter(|facts| facts.is_root);
            report.warn(tree, &roots.map(|facts| &facts.quota.name).collect());
            report.rows = rows(tree, totals, &state.figures(decisions));
        }
        self.quotas = report.rows;
        self.unreadable.extend(report.unreadable);
        self.notes.extend(report.notes);
    }
}
