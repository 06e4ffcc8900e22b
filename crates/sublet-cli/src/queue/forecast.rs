//! The queue's next actions in a cluster: groups made of the objects that exist, and one question
//! to the queue's own engine. Nothing is written.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::Deserialize;
use serde_json::Value;
use sublet_api::gang_plan::{GangPlan, GangPlanObject};
use sublet_api::group::{
    JobFacts, NamespaceLabels, PodGroupFacts, PriorityClasses, QueueScope, QueueSources,
    QueuedGroup, ShapeMemo, WholeSnapshot, job_kind, queued_groups, read_job, read_pod_group,
};
use sublet_api::object::Pod;
use sublet_api::{ElasticQuota, QuotaDemand, QuotaGround, QuotaTotals, largest_card, pod_uid};
use sublet_model::{MiB, Time, Unit};
use sublet_plan::{EngineOptions, Policy};
use sublet_queue::{
    Amounts, Group, GroupId, MinScaling, QueueDecision, QueueHold, QueueMemo, QueueReason,
    QueueRules, QueueSnapshot, QueueVictim, Slot, plan,
};

use super::promised;
use crate::plan::{Input, Located, Unreadable, name_of, settle};
use crate::quota::books::{Report, Row, add, rows};
use crate::verdict::{Cluster, Odd, asked};

/// Options of a forecast.
#[derive(Debug, Clone)]
pub(crate) struct ForecastOptions {
    /// Pods and jobs that the queue manages.
    pub(crate) scope: QueueScope,
    /// Policy that chooses among places that fit.
    pub(crate) policy: Policy,
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
    Runs,
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
    let pods: Vec<&Pod> = input.pods.iter().map(|pod| &pod.object).collect();
    let bound = pods.iter().filter(|pod| !pod.spec.node_name.is_empty());
    let ground = QuotaGround {
        engine: &cluster.engine,
        nodes: nodes.as_ref(),
        pods: &bound.copied().collect::<Vec<_>>(),
        unit,
    };
    let named = input.quotas.iter();
    let named = named.filter(|quota| !quota.object.metadata.name.is_empty());
    let books = QuotaTotals::of(named.map(|quota| &quota.object), ground);
    let card = largest_card(&cluster.engine);
    let queued = objects.groups(&pods, (&books, card), options, &mut forecast);
    forecast.decide(&mut cluster, &books, queued, options.now);
    forecast.show(&input.quotas, &books);
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
            add(sum.get_or_insert_default(), amounts);
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

    fn groups(
        &self,
        pods: &[&Pod],
        (books, card): (&QuotaTotals, MiB),
        options: &ForecastOptions,
        forecast: &mut QueueForecast,
    ) -> Vec<QueuedGroup> {
        let sources = QueueSources {
            pods,
            pod_groups: &self.pod_groups.iter().collect::<Vec<_>>(),
            jobs: &self.jobs.iter().collect::<Vec<_>>(),
            plans: &self.plans.iter().collect::<Vec<_>>(),
            quotas: &books.index,
            classes: &self.classes,
            namespaces: &self.namespaces,
            scope: &options.scope,
            card,
            now: options.now,
        };
        // As a controller that has just taken over, which has no memory of any group.
        let ran = |_: &str, sight: WholeSnapshot| sight.ran(None);
        let gathered = queued_groups(sources, &mut ShapeMemo::default(), ran);
        let said = gathered.problems.iter().map(|problem| {
            let sublet_api::group::GroupProblem { of, error } = problem;
            format!("warning: {of}: {error}")
        });
        forecast.notes.extend(said);
        gathered.groups
    }
}

impl QueueForecast {
    /// Asks the queue's engine once.
    fn decide(
        &mut self,
        cluster: &mut Cluster,
        books: &QuotaTotals,
        queued: Vec<QueuedGroup>,
        now: Time,
    ) {
        let groups: Vec<Group> = queued.iter().map(|queued| queued.group.clone()).collect();
        let nodes = cluster.nodes();
        let decisions = plan(
            QueueSnapshot {
                engine: &mut cluster.engine,
                nodes: &nodes,
                tree: &books.tree,
                totals: &books.totals,
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
                let fate = fate.filter(|fate| match fate {
                    Fate::Waits { .. } => queued.waits(),
                    _ => true,
                });
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

    /// Shows the quotas' figures and faults.
    fn show(&mut self, quotas: &[Located<ElasticQuota>], books: &QuotaTotals) {
        let mut report = Report::default();
        report.tell(quotas, &books.troubles);
        let nameless = |quota: &&Located<ElasticQuota>| quota.object.metadata.name.is_empty();
        for Located { origin, .. } in quotas.iter().filter(nameless) {
            let (what, why) = ("an ElasticQuota".to_owned(), "it is missing".to_owned());
            let odd = Unreadable::of(origin, what, "metadata.name", why);
            report.unreadable.push(odd);
        }
        if !quotas.is_empty() {
            // As the engine divides: who cannot start as things are has no part in it.
            let idle = self.groups.iter().filter_map(|one| match &one.fate {
                Fate::Waits { reason, .. } if !reason.has_part() => Some(&one.queued.group.id),
                _ => None,
            });
            let idle: BTreeSet<&GroupId> = idle.collect();
            let groups = self.groups.iter().map(|one| &one.queued);
            let counts = |queued: &QueuedGroup| !idle.contains(&queued.group.id);
            let demand = QuotaDemand::of_groups(groups, counts);
            let figures = books.figures(&demand, MinScaling::On);
            let all = books.facts.values();
            let roots = all.filter(|facts| facts.is_root);
            let roots = roots.map(|facts| &facts.quota.name).collect();
            report.warn(&books.tree, &roots);
            report.rows = rows(&books.tree, &books.totals, &figures);
        }
        self.quotas = report.rows;
        self.unreadable.extend(report.unreadable);
        self.notes.extend(report.notes);
    }
}
