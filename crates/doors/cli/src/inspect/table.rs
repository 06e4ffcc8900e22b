//! The tables of `kubectl inspect gpushare`, to the last blank, and a wide one of our own.
//!
//! The layout, odd dashes and trailing blanks included, is the original's (device plugin
//! 45fb8b8, cmd/inspect): scripts cut it by position. Its random order of nodes is not kept.

use std::fmt::Write as _;

use sublet_model::{GpuIndex, Health, MiB};

use super::view::{NodeView, Place, View, identity_name, sharing_name};
use crate::align::{align, columns};
use crate::jobs::health;

/// Column of the promised compute time in the wide table, if the table has it.
const WIDE_COMPUTE: usize = 8;

/// Number of columns for cards: one for each index up to the largest.
fn n_columns(node: &NodeView) -> i64 {
    let gpus = node.facts.inventory.gpus();
    gpus.last().map_or(0, |gpu| i64::from(gpu.index.0) + 1)
}

/// A card's total in the node's unit; for a card that pods name but the node lacks, the
/// node's average, as in the original.
fn card_total(node: &NodeView, index: i64) -> u64 {
    let gpus = node.facts.inventory.gpus();
    match gpus.iter().find(|gpu| i64::from(gpu.index.0) == index) {
        Some(gpu) => node.units(gpu.memory),
        None => node.total.checked_div(gpus.len() as u64).unwrap_or(0),
    }
}

/// Calculated in floating point as the original does, so that it rounds alike.
fn percent(used: u64, total: u64) -> u64 {
    if total == 0 {
        return 0;
    }
    (used as f64 / total as f64 * 100.0) as u64
}

/// The unit in the heading is the first node's that has a card.
fn unit(view: &View) -> String {
    let mut shared = view.nodes.iter().filter(|node| node.is_shared());
    let first = shared.find(|node| !node.facts.inventory.gpus().is_empty());
    first.map_or_else(String::new, |node| node.facts.unit.to_string())
}

/// A line per node.
pub(super) fn summary(view: &View) -> String {
    let nodes: Vec<&NodeView> = view.nodes.iter().filter(|node| node.is_shared()).collect();
    let columns = nodes.iter().map(|node| n_columns(node)).max().unwrap_or(0);
    let has_pending = nodes.iter().any(|node| node.has_pending());
    let mut text = "NAME\tIPADDRESS\t".to_owned();
    for index in 0..columns {
        text += &format!("GPU{index}(Allocated/Total)\t");
    }
    if has_pending {
        text += "PENDING(Allocated)\t";
    }
    text += &format!("GPU Memory({})\n", unit(view));
    let mut dashes = 0;
    let (mut used, mut total) = (0, 0);
    for node in nodes {
        let (row, used_here) = summary_row(node, columns, has_pending);
        if dashes == 0 {
            dashes = row.len() + 20;
        }
        text += &row;
        used += used_here;
        total += node.total;
    }
    let share = percent(used, total);
    text += &"-".repeat(dashes);
    text += &format!("\nAllocated/Total GPU Memory In Cluster:\n{used}/{total} ({share}%)\t\n");
    align(&text)
}

/// A node's line before alignment, and its sum. Only amounts that are in a column count.
fn summary_row(node: &NodeView, columns: i64, has_pending: bool) -> (String, u64) {
    let mut row = format!("{}\t{}\t", node.facts.name, node.address);
    let gpus = node.facts.inventory.gpus();
    let mut used = 0;
    for index in 0..columns {
        let here = node.granted(Place::Card(index)).memory;
        let exists = gpus.iter().any(|gpu| i64::from(gpu.index.0) == index);
        if exists || here > MiB::ZERO {
            let here = node.units(here);
            row += &format!("{here}/{}\t", card_total(node, index));
            used += here;
        } else {
            row += "0/0\t";
        }
    }
    if has_pending {
        if node.has_pending() {
            let here = node.units(node.granted(Place::Pending).memory);
            row += &here.to_string();
            used += here;
        }
        row += "\t";
    }
    row += &format!("{used}/{}\n", node.total);
    (row, used)
}

/// A block per node, with a line per pod.
pub(super) fn details(view: &View) -> String {
    let mut text = String::new();
    let mut dashes = 0;
    let (mut used, mut total) = (0, 0);
    for node in view.nodes.iter().filter(|node| node.is_shared()) {
        let gpus = node.facts.inventory.gpus();
        let mut places: Vec<Place> = gpus
            .iter()
            .map(|gpu| Place::Card(i64::from(gpu.index.0)))
            .collect();
        let (name, address) = (&node.facts.name, &node.address);
        text += &format!("\nNAME:\t{name}\nIPADDRESS:\t{address}\n\nNAME\tNAMESPACE\t");
        for gpu in gpus {
            text += &format!("GPU{}(Allocated)\t", gpu.index);
        }
        if node.has_pending() {
            text += "Pending(Allocated)\t";
            places.push(Place::Pending);
        }
        text += "\n";
        let (rows, used_here) = pod_rows(node, &places);
        if dashes == 0 {
            dashes = rows.len() + 10;
        }
        let share = percent(used_here, node.total);
        text += &rows;
        text += &format!("Allocated :\t{used_here} ({share}%)\t\n");
        text += &format!("Total :\t{} \t\n{}\n", node.total, "-".repeat(dashes));
        used += used_here;
        total += node.total;
    }
    let share = percent(used, total);
    text += &format!("\n\nAllocated/Total GPU Memory In Cluster:\t{used}/{total} ({share}%)\t\n");
    align(&text)
}

/// The pods' lines before alignment, and their sum: every card counts, in a column or not.
fn pod_rows(node: &NodeView, places: &[Place]) -> (String, u64) {
    let mut rows = String::new();
    let mut used = 0;
    for pod in &node.pods {
        rows += &format!("{}\t{}\t", pod.key.name(), pod.key.namespace());
        for place in places {
            let here = pod.on.get(place).copied().unwrap_or_default();
            rows += &format!("{}\t", node.units(here.memory));
        }
        rows += "\n";
        used += pod
            .on
            .values()
            .map(|part| node.units(part.memory))
            .sum::<u64>();
    }
    (rows, used)
}

/// Keys of the wide table's columns, with those that only some clusters have.
fn wide_keys(with_compute: bool, with_use: bool) -> Vec<&'static str> {
    let mut keys = vec![
        "name",
        "address",
        "sharing",
        "identity",
        "gpu",
        "health",
        "grantedMiB",
        "memoryMiB",
        "pods",
        "uuid",
    ];
    if with_compute {
        keys.insert(WIDE_COMPUTE, "computeGrantedPercent");
    }
    if with_use {
        keys.insert(keys.len() - 1, "computeUsedPercent");
    }
    keys
}

/// A line per card, whole-card nodes too.
pub(super) fn wide(view: &View) -> String {
    let with_compute = view.has_compute();
    let with_use = view.nodes.iter().any(|node| !node.measured.is_empty());
    let mut rows = Vec::new();
    for node in &view.nodes {
        let facts = &node.facts;
        let dash = || "-".to_owned();
        let mut row = |place, [gpu, health, total, uuid]: [String; 4]| {
            let pods = node.pods.iter().filter(|pod| pod.on.contains_key(&place));
            let granted = node.granted(place);
            let mut row = vec![
                facts.name.to_string(),
                node.address.clone(),
                sharing_name(facts.sharing).to_owned(),
                identity_name(facts.identity).to_owned(),
                gpu,
                health,
                granted.memory.to_string(),
                total,
                pods.count().to_string(),
                uuid,
            ];
            if with_compute {
                row.insert(WIDE_COMPUTE, granted.compute.to_string());
            }
            if with_use {
                let measured = match place {
                    Place::Card(index) => u16::try_from(index).ok().map(GpuIndex),
                    Place::Pending => None,
                };
                let measured = measured.and_then(|index| node.measured.get(&index));
                let busy = measured.map_or_else(dash, |measured| measured.busy.to_string());
                row.insert(row.len() - 1, busy);
            }
            rows.push(row);
        };
        for gpu in facts.inventory.gpus() {
            let problem = match &gpu.health {
                Health::Healthy => None,
                Health::Sick(why) => Some(why.to_string()),
            };
            let health = health(problem.as_deref());
            let uuid = gpu.uuid.as_ref().map_or_else(dash, ToString::to_string);
            let (index, total) = (gpu.index.to_string(), gpu.memory.to_string());
            let place = Place::Card(i64::from(gpu.index.0));
            row(place, [index, health, total, uuid]);
        }
        if node.has_pending() {
            let cells = ["pending".to_owned(), dash(), dash(), dash()];
            row(Place::Pending, cells);
        }
    }
    let mut text = columns(&wide_keys(with_compute, with_use), &rows);
    let _never_fails = writeln!(text, "\n{}", super::json::totals(view));
    text
}
