//! Messages to people: the status of groups and quotas, and reasons for waiting. Pure.
//!
//! A reason is an event on the group's own object, and on some of its pods, because that is where
//! people look. A group that starts soon has none, and another position in the line is no news. Figures
//! change with every pod, so they are written every few seconds at most.

mod problems;

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use kube::core::{ApiResource, GroupVersionKind};
use serde_json::{Map, Value, json};
use sublet_api::group::{GangName, JobFacts, PodGroupFacts, QueuedGroup, gang_of};
use sublet_api::object::Pod;
use sublet_api::{ElasticQuota, QueueState, QuotaFigures, keys, of_quota};
use sublet_client::{Act, ObjectAddress, Write, event, pod_reference, reference};
use sublet_model::Standing;
use sublet_queue::{Amounts, QueueDecision, QueueReason, QueueVictim, quantity};

use super::QUEUE;
use super::memory::{FIGURES_MS, Memory, STATUS_MS};
use super::round::QueueLook;
use super::watched_state::{Address, WatchedPodGroup};
use super::watching::PLUGINS;

/// So many pods of a group say why it waits.
const TELLING_PODS: usize = 8;

/// Input of the messages.
pub(crate) struct ReportInputs<'a> {
    pub(crate) look: &'a QueueLook<'a>,
    pub(crate) state: &'a QueueState,
    pub(crate) decisions: &'a [QueueDecision],
}

/// Writes for people.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct StatusReport {
    /// Events.
    pub(crate) events: Vec<Write>,
    /// The status of groups and quotas.
    pub(crate) status: Vec<Write>,
}

/// Returns the messages about a decision that are due and were not told yet, as far as there is
/// room. The rest is found again later, except for things that happen only once. A look that decides
/// nothing tells nothing: its messages would take the room of the reasons of the next look.
pub(crate) fn status_report(inputs: &ReportInputs<'_>, memory: &mut Memory) -> StatusReport {
    let mut report = StatusReport::default();
    memory.is_behind = false;
    inputs.problems(memory, &mut report.events);
    inputs.reasons(memory, &mut report.events);
    match inputs.look.room.status {
        true => {
            inputs.pod_groups(memory, &mut report.status);
            inputs.quotas(memory, &mut report);
        }
        false => memory.is_behind = true,
    }
    report
}

impl ReportInputs<'_> {
    /// Tells why groups wait, which groups were let start, and which pods go for them.
    fn reasons(&self, memory: &mut Memory, writes: &mut Vec<Write>) {
        let groups: BTreeMap<&str, &QueuedGroup> = self
            .state
            .gathered
            .groups
            .iter()
            .map(|queued| (queued.group.id.as_str(), queued))
            .collect();
        let objects = self.pod_groups_by_gang();
        for decision in self.decisions {
            if !matches!(decision, QueueDecision::Explain { .. }) && !self.look.room.news {
                continue;
            }
            let (id, reason, text) = match decision {
                QueueDecision::Explain {
                    group,
                    position,
                    reason,
                    ..
                } => {
                    if let Some(&queued) = groups.get(group.as_str()) {
                        let told = (queued, *position, reason);
                        self.explain(told, &objects, memory, writes);
                    }
                    continue;
                }
                QueueDecision::Admit { group, slots } => {
                    let text = format!("{} pods have their places and may start", slots.len());
                    (group, "Admitted", text)
                }
                QueueDecision::Evict { group, victims, .. } => {
                    self.victims(group.as_str(), victims, writes);
                    let text = format!("{} pods are evicted to make room for it", victims.len());
                    (group, "MakingRoom", text)
                }
                QueueDecision::Hold(hold) => {
                    let text = format!("{} nodes are kept free for it", hold.nodes.len());
                    (&hold.group, "NodesHeld", text)
                }
            };
            let Some(queued) = groups.get(id.as_str()) else {
                continue;
            };
            if !matches!(decision, QueueDecision::Hold(_)) {
                memory.starts(id.as_str());
            }
            if memory.tells(id.as_str(), reason, &text, self.look.now) {
                // The stock scheduler says on each pod where it goes.
                let pods = match decision {
                    QueueDecision::Admit { .. } => 1,
                    _ => TELLING_PODS,
                };
                writes.extend(
                    self.about(queued, &objects, pods)
                        .map(|about| self.event(&about, "Normal", reason, &text)),
                );
            }
        }
    }

    /// Tells why a group waits, if it is due and there is room.
    fn explain(
        &self,
        (queued, position, reason): (&QueuedGroup, u32, &QueueReason),
        objects: &BTreeMap<&GangName, Vec<&WatchedPodGroup>>,
        memory: &mut Memory,
        writes: &mut Vec<Write>,
    ) {
        let (id, now) = (queued.group.id.as_str(), self.look.now);
        if !queued.waits() {
            return;
        }
        // Nothing but a change of its own or of its quota starts it.
        if !memory.has_waited(id, queued.group.since, now) && !reason.is_lasting() {
            memory.is_behind = true;
            return;
        }
        if memory.is_silent(id, reason.word(), now) {
            return;
        }
        if writes.len() >= self.look.room.reasons {
            memory.is_behind = true;
            return;
        }
        // Where it stands in the line is no news by itself.
        let news = match reason {
            QueueReason::Behind { .. } => String::new(),
            reason => reason.to_string(),
        };
        if memory.tells(id, reason.word(), &news, now) {
            let why = queued.waits_because(reason);
            let (kind, text) = match queued.group.satisfied {
                true => ("Normal", why),
                false => {
                    let position = position + 1;
                    (
                        "Warning",
                        format!("position {position} in its quota: {why}"),
                    )
                }
            };
            let about = self.about(queued, objects, TELLING_PODS);
            writes.extend(about.map(|about| self.event(&about, kind, reason.word(), &text)));
        }
    }

    /// PodGroups by the gangs that they are about.
    fn pod_groups_by_gang(&self) -> BTreeMap<&GangName, Vec<&WatchedPodGroup>> {
        let mut by_gang: BTreeMap<&GangName, Vec<&WatchedPodGroup>> = BTreeMap::new();
        for group in self.look.watched.pod_groups.values() {
            by_gang.entry(&group.facts.gang).or_default().push(group);
        }
        by_gang
    }

    /// The objects that tell of a group: its own, and so many of its pods. `objects`: PodGroups.
    fn about(
        &self,
        queued: &QueuedGroup,
        objects: &BTreeMap<&GangName, Vec<&WatchedPodGroup>>,
        pods: usize,
    ) -> impl Iterator<Item = Value> {
        let groups = queued.gangs.iter().filter_map(|gang| objects.get(gang));
        let groups = groups
            .flatten()
            .map(|group| pod_group_reference(&group.facts));
        let job = queued
            .job
            .as_ref()
            .and_then(|job| self.look.watched.jobs.get(job));
        let job = job.map(job_reference);
        let waiting = queued.pods.iter().filter(|pod| !pod.is_bound).take(pods);
        let pods =
            waiting.map(|pod| reference("v1", "Pod", &pod.namespace, &pod.name, pod.uid.as_str()));
        let all: Vec<Value> = groups.chain(job).chain(pods).collect();
        all.into_iter()
    }

    fn victims(&self, group: &str, victims: &[QueueVictim], writes: &mut Vec<Write>) {
        for victim in victims {
            let Some(pod) = self.look.watched.pods.get(victim.uid.as_str()) else {
                continue;
            };
            let text = format!("evicted to make room for {group}, whose quota is entitled to it");
            writes.push(self.event(&pod_reference(pod), "Normal", "Reclaimed", &text));
        }
    }

    /// The status of each PodGroup of Koordinator and scheduler-plugins.
    fn pod_groups(&self, memory: &mut Memory, writes: &mut Vec<Write>) {
        let mut pods: BTreeMap<GangName, Vec<&Pod>> = BTreeMap::new();
        for pod in self.look.watched.pods.values() {
            if let Ok(Some(found)) = gang_of(pod) {
                pods.entry(found.gang).or_default().push(pod);
            }
        }
        let planned = self.state.gathered.groups.iter().filter(|queued| {
            let roles = queued.group.roles();
            let mut members = roles.flat_map(|role| &role.members);
            members.any(|member| member.standing != Standing::Bound)
        });
        let planned: BTreeSet<&GangName> = planned.flat_map(|queued| &queued.gangs).collect();
        for (at, group) in &self.look.watched.pod_groups {
            let facts = &group.facts;
            let api = facts.api_group;
            if !api.ends_with("sigs.k8s.io") && api != PLUGINS {
                continue;
            }
            let of_group = pods.get(&facts.gang).map_or(&[][..], Vec::as_slice);
            let status = self.status(group, of_group, planned.contains(&facts.gang));
            let place = format!("{} {}/{}", at.0, at.1, at.2);
            if memory.writes(&place, (&status, &group.status), STATUS_MS, self.look.now) {
                let to = address(
                    api,
                    "PodGroup",
                    "podgroups",
                    &facts.gang.namespace,
                    &facts.gang.name,
                );
                writes.push(status_of(to, api, &json!({ "uid": facts.uid }), &status));
            }
        }
    }

    fn status(&self, group: &WatchedPodGroup, pods: &[&Pod], planned: bool) -> Value {
        let is_there = |pod: &&&Pod| pod.metadata.deletion_timestamp.is_none();
        let number =
            |is: &dyn Fn(&Pod) -> bool| pods.iter().filter(is_there).filter(|pod| is(pod)).count();
        let in_phase = |phase: &'static str| number(&move |pod: &Pod| pod.status.phase == phase);
        let (running, succeeded, failed) = (
            in_phase("Running"),
            in_phase("Succeeded"),
            in_phase("Failed"),
        );
        let bound = number(&|pod| !pod.spec.node_name.is_empty());
        let (all, min) = (number(&|_| true), group.facts.terms.min as usize);
        let min = min.max(1);
        let phase = match () {
            () if succeeded >= min => "Finished",
            () if failed > 0 && running + succeeded + failed >= min && running == 0 => "Failed",
            () if running + succeeded >= min => "Running",
            () if bound >= min => "Scheduled",
            () if planned => "Scheduling",
            () if all >= min => "PreScheduling",
            () => "Pending",
        };
        let mut status = group.status.as_object().cloned().unwrap_or_default();
        let mut set = |key: &str, value: Value| drop(status.insert(key.to_owned(), value));
        set("phase", phase.into());
        set("running", running.into());
        set("succeeded", succeeded.into());
        set("failed", failed.into());
        if group.facts.api_group != PLUGINS {
            set("scheduled", bound.into());
        }
        if planned && group.status["scheduleStartTime"].is_null() {
            set(
                "scheduleStartTime",
                seconds(self.look.now.ms()).to_string().into(),
            );
        }
        Value::Object(status)
    }

    /// Tells the amounts that quotas use, and the amounts that they are entitled to.
    fn quotas(&self, memory: &mut Memory, report: &mut StatusReport) {
        let figures = self.state.figures(self.decisions);
        for (at, quota) in &self.look.watched.quotas {
            let (group, namespace, name) = at;
            let place = format!("{group} quota {namespace}/{name}");
            self.quota_problem((&place, at, quota), memory, &mut report.events);
            let Some(own) = of_quota(&figures, &quota.metadata) else {
                continue;
            };
            let figures = written(quota, own, group == PLUGINS);
            let seen = as_seen(quota, group == PLUGINS);
            if memory.writes(&place, (&figures, &seen), FIGURES_MS, self.look.now) {
                let to = address(group, "ElasticQuota", "elasticquotas", namespace, name);
                let metadata = match group == PLUGINS {
                    true => json!({ "uid": quota.metadata.uid }),
                    false => json!({
                        "uid": quota.metadata.uid, "annotations": figures["annotations"],
                    }),
                };
                report.status.push(status_of(
                    to,
                    group,
                    &metadata,
                    &json!({ "used": figures["used"] }),
                ));
            }
        }
    }

    /// Tells the fault of a quota. `place`: its name in the memory.
    fn quota_problem(
        &self,
        (place, at, quota): (&str, &Address, &ElasticQuota),
        memory: &mut Memory,
        writes: &mut Vec<Write>,
    ) {
        let (group, namespace, name) = at;
        let problem = of_quota(&self.state.quotas.troubles, &quota.metadata);
        let place = format!("{place} problem");
        let problem = problem.map(|problem| (problem.word, problem.to_string()));
        let Some((word, problem)) =
            problem.filter(|(word, problem)| memory.tells(&place, word, problem, self.look.now))
        else {
            return;
        };
        let (version, uid) = (format!("{group}/v1alpha1"), &quota.metadata.uid);
        let about = reference(&version, "ElasticQuota", namespace, name, uid);
        writes.push(self.event(&about, "Warning", word, &problem));
    }

    fn event(&self, about: &Value, kind: &'static str, reason: &'static str, text: &str) -> Write {
        event(
            QUEUE,
            about,
            kind,
            reason,
            text,
            seconds(self.look.now.ms()),
        )
    }
}

fn seconds(ms: u64) -> Timestamp {
    let seconds = i64::try_from(ms / 1_000).unwrap_or(i64::MAX);
    Timestamp::from_second(seconds).unwrap_or(Timestamp::MAX)
}

/// A status of ours. Koordinator's kinds have no subresource for it.
fn status_of(to: ObjectAddress, group: &str, metadata: &Value, status: &Value) -> Write {
    let object = json!({ "metadata": metadata, "status": status });
    let act = match group == PLUGINS {
        true => Act::ApplyStatus(object),
        false => Act::Apply(object),
    };
    Write { to, act }
}

fn address(group: &str, kind: &str, plural: &str, namespace: &str, name: &str) -> ObjectAddress {
    let kind = GroupVersionKind::gvk(group, "v1alpha1", kind);
    ObjectAddress {
        kind: ApiResource::from_gvk_with_plural(&kind, plural),
        namespace: Some(namespace.to_owned()),
        name: name.to_owned(),
    }
}

fn pod_group_reference(facts: &PodGroupFacts) -> Value {
    let gang = &facts.gang;
    reference(
        &facts.api_version,
        "PodGroup",
        &gang.namespace,
        &gang.name,
        &facts.uid,
    )
}

fn job_reference(facts: &JobFacts) -> Value {
    let (api, name) = (facts.api, &facts.job);
    let version = format!("{}/{}", api.group, api.version);
    reference(&version, api.kind, &name.namespace, &name.name, &facts.uid)
}

/// The figures of a quota as they are written: of the resources that it names.
fn written(quota: &ElasticQuota, figures: &QuotaFigures, is_of_plugins: bool) -> Value {
    let named = quota.spec.max.keys().chain(quota.spec.min.keys());
    let named: BTreeSet<&String> = named.collect();
    let list = |amounts: &Amounts| -> Map<String, Value> {
        let amount = |key: &&String| amounts.get(key.as_str()).copied().unwrap_or(0);
        let pair = |key: &String| (key.clone(), Value::from(quantity(key, amount(&key))));
        named.iter().map(|key| pair(key)).collect()
    };
    let used = Value::Object(list(&figures.used));
    if is_of_plugins {
        return json!({ "used": used });
    }
    let text = |amounts: &Amounts| Value::Object(list(amounts)).to_string();
    json!({
        "used": used,
        "annotations": {
            keys::QUOTA_ENTITLEMENT: text(&figures.entitlement),
            keys::QUOTA_REQUEST: text(&figures.request),
        },
    })
}

/// The same as it stands there now.
fn as_seen(quota: &ElasticQuota, is_of_plugins: bool) -> Value {
    let used = quota.status.used.iter();
    let used: BTreeMap<&String, &String> = used.map(|(key, amount)| (key, &amount.0)).collect();
    if is_of_plugins {
        return json!({ "used": used });
    }
    let annotation = |key: &str| quota.metadata.annotations.get(key);
    json!({
        "used": used,
        "annotations": {
            keys::QUOTA_ENTITLEMENT: annotation(keys::QUOTA_ENTITLEMENT),
            keys::QUOTA_REQUEST: annotation(keys::QUOTA_REQUEST),
        },
    })
}
