//! Rows of a snapshot that need no job: a card, and a process outside any job. An arbiter shows them
//! as a command does that found none.

use std::collections::BTreeMap;

use sublet_model::{Bytes, Health, Milli};
use sublet_share::{Machine, Pid};

use crate::admin::{GpuRow, TenantGpuRow, TenantRow};
use crate::peer;

/// So many MiB as hold that.
pub(crate) fn mib(bytes: Bytes) -> u64 {
    bytes.get().div_ceil(1 << 20)
}

/// In percent, which is exact for people and in JSON.
pub(crate) fn percent(share: Milli) -> f64 {
    f64::from(share.get()) / 10.0
}

/// A card by its account, with the memory in use that the driver counts. Nothing is said of its time,
/// nor of what only an arbiter measures.
pub(crate) fn gpu_row(machine: &Machine, card: usize, used: Bytes) -> GpuRow {
    let gpu = &machine.inventory().gpus()[card];
    let account = machine.card(card);
    let sick = match &gpu.health {
        Health::Healthy => None,
        Health::Sick(why) => Some(why.to_string()),
    };
    let health = match sick {
        None => "healthy",
        Some(_) => "unhealthy",
    };
    GpuRow {
        index: gpu.index.0,
        uuid: gpu
            .uuid
            .as_ref()
            .map(ToString::to_string)
            .unwrap_or_default(),
        model: gpu.model.to_string(),
        memory_mib: account.capacity.get(),
        used_mib: mib(used),
        granted_mib: account.granted.get(),
        kept_mib: account.kept.get(),
        free_mib: account.open.get(),
        compute_promised_percent: percent(account.promised),
        health: health.to_owned(),
        sick,
        ..GpuRow::default()
    }
}

/// A process outside any job, with its memory on each card.
pub(crate) fn stranger_row(
    machine: &Machine,
    pid: Pid,
    on: &BTreeMap<usize, Bytes>,
    reason: Option<String>,
) -> TenantRow {
    let gpus = machine.inventory().gpus();
    let rows = on.iter().map(|(card, used)| TenantGpuRow {
        index: gpus[*card].index.0,
        used_mib: mib(*used),
        ..TenantGpuRow::default()
    });
    let rows: Vec<TenantGpuRow> = rows.collect();
    TenantRow {
        id: None,
        name: peer::name(pid),
        pids: vec![pid.0],
        gpus: rows.iter().map(|row| row.index).collect(),
        memory_used_mib: rows.iter().map(|row| row.used_mib).max().unwrap_or(0),
        state: "unmanaged".to_owned(),
        reason,
        per_gpu: rows,
        ..TenantRow::default()
    }
}
