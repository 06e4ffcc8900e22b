//! Pods of a list: `name`, `cpu_milli`, `memory_mib`, `num_gpu` (or `num_gpus`), `gpu_milli` or
//! `gpu_memory_mib` (of each GPU), `gpu_spec` (`A|B`: models accepted), `priority`,
//! `creation_time` (or `timestamp`), `duration` or `deletion_time`, and `tenant` (or `cluster`).
//!
//! Only the number of GPUs is needed. Without a name a pod is called by its row, without CPU
//! and memory it asks none, and without a portion it asks whole GPUs.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::sync::Arc;

use sublet_model::{
    Ask, Claim, ContainerClaim, ContainerName, Count, Demand, Host, MiB, Models, Role,
};

use super::bad::{Bad, BadLines, TraceError};
use super::nodes::{CARD, NodeList};
use super::row::{Layout, Row};
use super::rows::rows;
use crate::snapshot::Reach;

const NAME: usize = 0;
const CPU: usize = 1;
const MEMORY: usize = 2;
const GPUS: usize = 3;
const GPU_MILLI: usize = 4;
const GPU_MEMORY: usize = 5;
const SPEC: usize = 6;
const PRIORITY: usize = 7;
const COMES: usize = 8;
const ENDS: usize = 9;
const LASTS: usize = 10;
const TENANT: usize = 11;

static LAYOUT: Layout = Layout {
    fields: &[
        &["name"],
        &["cpu_milli"],
        &["memory_mib"],
        &["num_gpu", "num_gpus"],
        &["gpu_milli"],
        &["gpu_memory_mib"],
        &["gpu_spec"],
        &["priority"],
        &["creation_time", "timestamp"],
        &["deletion_time"],
        &["duration"],
        &["tenant", "cluster"],
    ],
    required: &[GPUS],
    together: &[CPU, MEMORY],
};

/// A pod of a trace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodRow {
    /// Its name.
    pub name: Arc<str>,
    /// Its claim. Pods with equal claims share it.
    pub claim: Arc<Claim>,
    /// Higher goes first when pods wait.
    pub priority: i32,
    /// When it comes, in seconds since some moment that is the same for the whole list.
    pub comes: Option<u64>,
    /// Run time, in seconds.
    pub lasts: Option<u64>,
    /// The tenant. Pods of one tenant share the name.
    pub tenant: Option<Arc<str>>,
    /// The nodes that are open to it; `None` for all.
    pub reach: Option<Reach>,
}

/// A list of pods.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PodList {
    /// In the order of the list.
    pub rows: Vec<PodRow>,
}

/// Reads a list of pods for those nodes; with [`BadLines::Count`] also the rows that were left out.
///
/// # Errors
/// No such list, a column missing, or a row that cannot be used.
pub fn read_pods(
    text: impl Read,
    nodes: &NodeList,
    bad: BadLines,
) -> Result<(PodList, Vec<Bad>), TraceError> {
    let mut shared = Shared::default();
    let (rows, left_out) = rows(text, &LAYOUT, bad, |row| {
        pod(row, nodes.by_memory, &mut shared)
    })?;
    Ok((PodList { rows }, left_out))
}

/// The key of a claim: two claims with the same key are equal.
pub(crate) type ClaimKey = (Host, Ask, Models);

/// Values that many rows share.
#[derive(Default)]
struct Shared {
    claims: BTreeMap<ClaimKey, Arc<Claim>>,
    tenants: BTreeSet<Arc<str>>,
}

impl Shared {
    fn tenant(&mut self, row: &Row) -> Result<Option<Arc<str>>, TraceError> {
        if row.text(TENANT).is_empty() {
            return Ok(None);
        }
        let known = self.tenants.get(row.text(TENANT));
        if let Some(known) = known {
            return Ok(Some(Arc::clone(known)));
        }
        let name = row.name(TENANT)?;
        self.tenants.insert(Arc::clone(&name));
        Ok(Some(name))
    }
}

fn pod(row: &Row, by_memory: bool, shared: &mut Shared) -> Result<PodRow, TraceError> {
    let name = if row.is_given(NAME) {
        row.name(NAME)?
    } else {
        Arc::from(row.number().to_string())
    };
    let host = row.host(CPU, MEMORY)?;
    let ask = ask(row, by_memory)?;
    let models = if ask == Ask::Nothing {
        Models::default()
    } else {
        let words = row.text(SPEC).split('|').map(str::trim);
        Models::new(words.filter(|word| !word.is_empty()).map(Arc::from))
    };
    let key = (host, ask, models);
    let claim = shared
        .claims
        .entry(key)
        .or_insert_with_key(|key| Arc::new(claim(key)));
    let priority = match row.text(PRIORITY) {
        "" => 0,
        text => {
            let priority = text.parse();
            priority.map_err(|_| row.bad(PRIORITY, "a priority, a whole number"))?
        }
    };
    let comes = row.moment(COMES)?;
    let lasts = match (row.span(LASTS)?, row.moment(ENDS)?) {
        (Some(lasts), _) => Some(lasts),
        (None, Some(end)) => {
            let lasts = end.checked_sub(comes.unwrap_or(0));
            Some(lasts.ok_or_else(|| row.bad(ENDS, "a time after creation_time"))?)
        }
        (None, None) => None,
    };
    Ok(PodRow {
        name,
        claim: claim.clone(),
        priority,
        comes,
        lasts,
        tenant: shared.tenant(row)?,
        reach: None,
    })
}

fn ask(row: &Row, by_memory: bool) -> Result<Ask, TraceError> {
    let gpus = row.whole(GPUS, 4096, "a number of GPUs, at most 4096")? as u32;
    if gpus == 0 {
        return Ok(Ask::Nothing);
    }
    let whole = Ok(Ask::WholeCards(Count::new(gpus)));
    let (field, other) = if by_memory {
        (GPU_MEMORY, GPU_MILLI)
    } else {
        (GPU_MILLI, GPU_MEMORY)
    };
    if row.text(field).is_empty() {
        // Whole ones need no unit.
        return match (other, row.text(other)) {
            (_, "") | (GPU_MILLI, "1000") => whole,
            _ => Err(TraceError::Units),
        };
    }
    if by_memory {
        let mib = row.whole(field, u64::from(u32::MAX), "MiB of each GPU's memory")? as u32;
        return match (gpus, mib) {
            (_, 0) => Err(row.bad(field, "MiB of a GPU above 0").into()),
            (1, mib) => Ok(Ask::of_memory(MiB::from(mib))),
            _ => {
                let expected = "empty, as it must be with several GPUs (whole ones)";
                Err(row.bad(field, expected).into())
            }
        };
    }
    let milli = row.whole(field, u64::from(u32::MAX), "thousandths of each GPU")? as u32;
    match (gpus, milli.min(CARD)) {
        (_, 0) => {
            let expected = "thousandths of each GPU, above 0 where num_gpu is";
            Err(row.bad(field, expected).into())
        }
        (_, CARD) => whole,
        (1, milli) => Ok(Ask::of_memory(MiB::from(milli))),
        _ => {
            let expected = "1000, as it must be with several GPUs";
            Err(row.bad(field, expected).into())
        }
    }
}

/// The claim of a pod of one container.
pub(crate) fn claim((host, ask, models): &ClaimKey) -> Claim {
    let demand = match ask {
        Ask::Nothing => return Claim::host_only(*host),
        Ask::Parts(parts) => Demand::of_memory(parts.first().memory),
        Ask::WholeCards(count) => Demand::of_cards(*count),
    };
    let container = ContainerClaim {
        name: ContainerName::new("main").expect("a fixed name that is right"),
        position: 0,
        role: Role::Main,
        demand,
    };
    Claim::new(None, vec![container], true)
        .expect("one container that asks something")
        .with_host(*host)
        .with_models(models.clone())
}
