//! A cluster's queue as tables, JSON or YAML.
//!
//! The JSON form is a promise to programs: fields are added, never renamed or taken away.

use serde::Serialize;
use sublet_model::{Grant, Time};
use sublet_queue::{QueueReason, Slot, quantity};

use super::forecast::{Fate, QueueForecast, Standing};
use crate::align::columns;
use crate::answer::{Answer, BAD_INPUT, DONE, Format, NOT_DONE, document};
use crate::jobs::duration;
use crate::quota::report::Row;

/// Amounts are whole numbers: CPU in thousandths of a core, all else in its base unit.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct QuotaJson<'a> {
    #[serde(skip_serializing_if = "str::is_empty")]
    tree: &'a str,
    name: &'a str,
    /// Null for one at the top.
    parent: Option<&'a str>,
    resource: &'a str,
    min: u64,
    /// Null if nothing limits it.
    max: Option<u64>,
    entitlement: u64,
    used: u64,
    request: u64,
    /// Part of its minimum that it does not ask for and others may have.
    lent: u64,
    /// Usage beyond its minimum.
    borrowed: u64,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct GroupJson<'a> {
    group: &'a str,
    quota: &'a str,
    priority: i32,
    /// `running`, `starting` or `waiting`.
    state: &'static str,
    /// Number of members, and number of members that have a place.
    members: u64,
    placed: u64,
    /// Its position among the waiting groups of its quota, from 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    position: Option<u32>,
    waited_ms: u64,
    /// A sentence why it waits and what would start it, or what happens now.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    /// The same in a word.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason_label: Option<&'static str>,
    /// Members that have their GPUs, and places where others would start now.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    slots: Vec<SlotJson<'a>>,
    /// Pods that would go for it, by UID.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    victims: Vec<&'a str>,
}

#[derive(Serialize)]
struct SlotJson<'a> {
    role: &'a str,
    index: u32,
    node: &'a str,
    /// `running`, or `starting`.
    state: &'static str,
    /// GPUs of one that starts.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    gpus: Vec<GpuJson<'a>>,
}

/// A card of one container.
#[derive(Serialize)]
struct GpuJson<'a> {
    container: &'a str,
    gpu: u16,
}

impl<'a> SlotJson<'a> {
    fn of(slot: &'a Slot) -> SlotJson<'a> {
        let gpu = |grant: &'a Grant| GpuJson {
            container: grant.container.as_str(),
            gpu: grant.card.index.0,
        };
        SlotJson {
            role: &slot.role,
            index: slot.index,
            node: slot.node.as_str(),
            state: "starting",
            gpus: slot.allocation.grants.iter().map(gpu).collect(),
        }
    }

    /// Slots of a group: its members that run, then those that start.
    fn of_group(standing: &'a Standing) -> Vec<SlotJson<'a>> {
        let gangs = standing.queued.group.gangs.iter();
        let roles = gangs.flat_map(|gang| &gang.roles);
        let members = roles.flat_map(|role| role.members.iter().map(move |member| (role, member)));
        let running = members.map(|(role, member)| SlotJson {
            role: &role.name,
            index: member.index,
            node: member.node.as_str(),
            state: "running",
            gpus: Vec::new(),
        });
        let starting: &[Slot] = match &standing.fate {
            Fate::Starts { slots, .. } => slots,
            Fate::Runs { .. } | Fate::Waits { .. } => &[],
        };
        running.chain(starting.iter().map(SlotJson::of)).collect()
    }
}

#[derive(Serialize)]
struct QueueJson<'a> {
    /// `cluster`: the source of the answer.
    of: &'static str,
    quotas: Vec<QuotaJson<'a>>,
    groups: Vec<GroupJson<'a>>,
    /// The group for which room is kept.
    held: Option<&'a str>,
    unreadable: &'a [crate::plan::Unreadable],
}

/// Form of the answer.
#[derive(Debug, Clone, Copy)]
pub(super) struct Printing<'a> {
    pub(super) format: Format,
    pub(super) now: Time,
    pub(super) shown: Shown<'a>,
}

/// Groups to show.
#[derive(Debug, Clone, Copy)]
pub(super) enum Shown<'a> {
    /// All, with the places of members below the table or without.
    All { places: bool },
    /// The groups of that name, with places. The name may be the whole one or its last part.
    One { namespace: &'a str, name: &'a str },
}

/// The answer.
///
/// # Errors
/// None that can be made by objects of a cluster.
pub(super) fn answer(forecast: &QueueForecast, how: Printing<'_>) -> anyhow::Result<Answer> {
    let shown: Vec<&Standing> = forecast
        .groups
        .iter()
        .filter(|one| is_meant(one, how))
        .collect();
    let quotas: Vec<&Row> = forecast.quotas.iter().collect();
    let quotas: Vec<&Row> = match how.shown {
        Shown::All { .. } => quotas,
        Shown::One { .. } => quotas
            .into_iter()
            .filter(|row| shown.iter().any(|one| one.queued.group.quota == row.name))
            .collect(),
    };
    let mut notes = forecast.notes.clone();
    let odd = forecast.unreadable.iter();
    notes.extend(odd.map(|odd| format!("warning: {odd}")));
    notes.extend(
        forecast
            .errors
            .iter()
            .map(|error| format!("error: {error}")),
    );
    let nothing = forecast.groups.is_empty() && forecast.quotas.is_empty();
    let mut code = match () {
        () if nothing && !(forecast.errors.is_empty() && forecast.unreadable.is_empty()) => {
            BAD_INPUT
        }
        () if forecast.errors.is_empty() && forecast.unreadable.is_empty() => DONE,
        () => NOT_DONE,
    };
    if let (Shown::One { namespace, name }, true) = (how.shown, shown.is_empty()) {
        notes.push(format!(
            "error: no job, gang or pod {namespace}/{name} is queued"
        ));
        notes.push("hint: `sublet queue` lists all; -n gives the namespace".to_owned());
        code = code.max(NOT_DONE);
    }
    let json = || QueueJson {
        of: "cluster",
        quotas: quotas.iter().map(|row| quota_json(row)).collect(),
        groups: shown.iter().map(|one| group_json(one, how.now)).collect(),
        held: forecast.held.as_ref().map(|hold| hold.group.as_str()),
        unreadable: &forecast.unreadable,
    };
    let text = match how.format {
        _ if code == BAD_INPUT => String::new(),
        Format::Table => tables(forecast, &quotas, &shown, how),
        Format::Json => document(&json(), false)?,
        Format::Yaml => document(&json(), true)?,
    };
    Ok(Answer { text, notes, code })
}

fn is_meant(standing: &Standing, how: Printing<'_>) -> bool {
    let Shown::One { namespace, name } = how.shown else {
        return true;
    };
    let id = standing.queued.group.id.as_str();
    if id == name {
        return true;
    }
    // KIND/NAMESPACE/NAME, and more where an object makes several.
    let mut parts = id.splitn(3, '/').skip(1);
    let own = parts.next() == Some(namespace);
    let rest = parts.next().unwrap_or_default();
    let begins = rest.strip_prefix(name);
    own && begins.is_some_and(|more| more.is_empty() || more.starts_with(['/', '+']))
}

fn quota_json(row: &Row) -> QuotaJson<'_> {
    QuotaJson {
        tree: &row.tree,
        name: &row.name,
        parent: row.parent.as_deref(),
        resource: &row.resource,
        min: row.min,
        max: row.max,
        entitlement: row.entitlement,
        used: row.used,
        request: row.request,
        lent: lent(row),
        borrowed: row.used.saturating_sub(row.min),
    }
}

fn lent(row: &Row) -> u64 {
    // One that lends nothing asks for all of its minimum.
    row.min.saturating_sub(row.request.max(row.used))
}

fn group_json(standing: &Standing, now: Time) -> GroupJson<'_> {
    let group = &standing.queued.group;
    let (mut position, mut reason_label, mut victims) = (None, None, Vec::new());
    match &standing.fate {
        Fate::Runs { more, .. } => reason_label = more.as_ref().map(QueueReason::word),
        Fate::Waits {
            position: place,
            reason,
        } => {
            position = Some(*place);
            reason_label = Some(reason.word());
        }
        Fate::Starts { victims: gone, .. } => {
            victims.extend(gone.iter().map(|victim| victim.uid.as_str()));
        }
    }
    let (members, placed) = counts(standing);
    GroupJson {
        group: group.id.as_str(),
        quota: &group.quota,
        priority: group.priority,
        state: state(standing),
        members,
        placed,
        position,
        waited_ms: waited(standing, now),
        reason: reason(standing),
        reason_label,
        slots: SlotJson::of_group(standing),
        victims,
    }
}

/// Sentence about the next event of a group; `None` if it runs and stays, and nobody of it waits.
fn reason(standing: &Standing) -> Option<String> {
    let waits = |reason| standing.queued.waits_because(reason);
    match &standing.fate {
        Fate::Runs {
            goes: Some((pods, group)),
            ..
        } => {
            let pods = if *pods == 1 {
                "1 pod goes".to_owned()
            } else {
                format!("{pods} pods go")
            };
            Some(format!("it runs, and {pods} for {group}"))
        }
        Fate::Runs { more, .. } => more.as_ref().map(waits),
        Fate::Waits { reason, .. } => Some(waits(reason)),
        Fate::Starts { slots, victims } => Some(starts(slots.len(), victims.len())),
    }
}

fn state(standing: &Standing) -> &'static str {
    match standing.fate {
        Fate::Runs { .. } => "running",
        Fate::Starts { .. } => "starting",
        Fate::Waits { .. } => "waiting",
    }
}

/// Counts a group's members, and the members that have a place.
fn counts(standing: &Standing) -> (u64, u64) {
    let roles = standing
        .queued
        .group
        .gangs
        .iter()
        .flat_map(|gang| &gang.roles);
    roles.fold((0, 0), |(all, placed), role| {
        (
            all + u64::from(role.replicas),
            placed + role.members.len() as u64,
        )
    })
}

fn waited(standing: &Standing, now: Time) -> u64 {
    match standing.fate {
        Fate::Runs { .. } => 0,
        _ => now.ms().saturating_sub(standing.queued.group.since.ms()),
    }
}

fn tables(
    forecast: &QueueForecast,
    quotas: &[&Row],
    shown: &[&Standing],
    how: Printing<'_>,
) -> String {
    let mut text = String::new();
    if !quotas.is_empty() {
        text += &quota_table(quotas);
        text.push('\n');
    }
    if shown.is_empty() {
        return text + "nothing is queued\n";
    }
    text += &group_table(shown, how.now);
    let is_all = matches!(how.shown, Shown::All { .. });
    if let Some(hold) = forecast.held.as_ref().filter(|_| is_all) {
        text += &format!("\nroom is kept for {}, which has waited long\n", hold.group);
    }
    if !matches!(how.shown, Shown::All { places: false }) {
        let places: Vec<Vec<String>> = shown.iter().flat_map(|one| places(one)).collect();
        if !places.is_empty() {
            let keys = ["group", "role", "index", "node", "state"];
            text += &format!("\n{}", columns(&keys, &places));
        }
    }
    text
}

fn quota_table(quotas: &[&Row]) -> String {
    let row = |row: &&Row| {
        let amount = |amount: u64| quantity(&row.resource, amount);
        let json = quota_json(row);
        vec![
            row.title(),
            row.resource.to_string(),
            amount(row.min),
            row.max.map_or_else(|| "-".to_owned(), amount),
            amount(row.entitlement),
            amount(row.used),
            amount(row.request),
            amount(json.lent),
            amount(json.borrowed),
        ]
    };
    let keys = [
        "name",
        "resource",
        "min",
        "max",
        "entitlement",
        "used",
        "request",
        "lent",
        "borrowed",
    ];
    let rows: Vec<Vec<String>> = quotas.iter().map(row).collect();
    columns(&keys, &rows)
}

fn group_table(shown: &[&Standing], now: Time) -> String {
    let row = |standing: &&Standing| {
        let group = &standing.queued.group;
        let (members, placed) = counts(standing);
        let position = match &standing.fate {
            Fate::Waits { position, .. } => position.to_string(),
            Fate::Runs { .. } | Fate::Starts { .. } => "-".to_owned(),
        };
        let waited = match waited(standing, now) {
            0 => "-".to_owned(),
            ms => duration(ms),
        };
        vec![
            group.quota.to_string(),
            position,
            group.id.to_string(),
            state(standing).to_owned(),
            group.priority.to_string(),
            format!("{placed}/{members}"),
            waited,
            reason(standing)
                .unwrap_or_default()
                .replace(['\t', '\n'], " "),
        ]
    };
    let keys = [
        "quota", "position", "group", "state", "priority", "placed", "waitedMs", "reason",
    ];
    let rows: Vec<Vec<String>> = shown.iter().map(row).collect();
    columns(&keys, &rows)
}

/// `4 members start now`, and the number of pods that are evicted for them.
fn starts(slots: usize, victims: usize) -> String {
    let members = if slots == 1 {
        "member starts"
    } else {
        "members start"
    };
    match victims {
        0 => format!("{slots} {members} now"),
        1 => format!("{slots} {members} when 1 pod is evicted"),
        n => format!("{slots} {members} when {n} pods are evicted"),
    }
}

/// Places of members, and places where waiting members would start.
fn places(standing: &Standing) -> Vec<Vec<String>> {
    let group = &standing.queued.group;
    let row = |slot: SlotJson<'_>| {
        let SlotJson {
            role,
            index,
            node,
            state,
            ..
        } = slot;
        let cells = [group.id.as_str(), role, &index.to_string(), node, state];
        cells.map(str::to_owned).to_vec()
    };
    SlotJson::of_group(standing).into_iter().map(row).collect()
}
