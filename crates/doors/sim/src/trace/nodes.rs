//! Nodes of a list: `sn` (or `name`), `cpu_milli`, `memory_mib`, `gpu` (or `num_gpu`), `model`,
//! and `gpu_memory_mib` (of each GPU) where cards are rented by memory.

use std::collections::BTreeSet;
use std::io::Read;
use std::sync::Arc;

use sublet_model::{Identity, Inventory, MiB, NodeFacts, NodeName, Sharing, Unit};

use super::bad::{Bad, BadLines, TraceError};
use super::row::{Layout, Row};
use super::rows::rows;
use crate::snapshot::Running;

const NAME: usize = 0;
const CPU: usize = 1;
const MEMORY: usize = 2;
const GPUS: usize = 3;
const MODEL: usize = 4;
const GPU_MEMORY: usize = 5;

static LAYOUT: Layout = Layout {
    fields: &[
        &["sn", "name"],
        &["cpu_milli"],
        &["memory_mib"],
        &["gpu", "num_gpu"],
        &["model"],
        &["gpu_memory_mib"],
    ],
    required: &[NAME, CPU, MEMORY, GPUS],
    together: &[],
};

/// Memory of a card for which none is given, MiB.
pub(super) const CARD: u32 = 1000;

/// A list of nodes, and the pods that run on them before anything arrives.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeList {
    /// In the order of the list.
    pub rows: Vec<NodeFacts>,
    /// Do the nodes say how much memory their cards have?
    pub by_memory: bool,
    /// Pods that run from the start; lists have none.
    pub running: Vec<Running>,
    /// Amount that one `aliyun.com/gpu-mem` stands for; lists ask in MiB.
    pub unit: Unit,
}

/// Reads a list of nodes; with [`BadLines::Count`] also the rows that were left out.
///
/// # Errors
/// No such list, a column missing, or a row that cannot be used.
pub fn read_nodes(text: impl Read, bad: BadLines) -> Result<(NodeList, Vec<Bad>), TraceError> {
    let mut names = BTreeSet::new();
    // The first row with cards says whether the list has the memory of cards.
    let mut by_memory = None;
    let (rows, left_out) = rows(text, &LAYOUT, bad, |row| {
        let name = row.name(NAME)?;
        if names.contains(&name) {
            return Err(row
                .bad(NAME, "a name of its own: an earlier row has it")
                .into());
        }
        let facts = node(row, &name, &mut by_memory)?;
        names.insert(name);
        Ok(facts)
    })?;
    let nodes = NodeList {
        rows,
        by_memory: by_memory.unwrap_or(false),
        ..NodeList::default()
    };
    Ok((nodes, left_out))
}

fn node(row: &Row, name: &str, by_memory: &mut Option<bool>) -> Result<NodeFacts, Bad> {
    let host = row.host(CPU, MEMORY)?;
    let gpus = row.whole(GPUS, 4096, "a number of GPUs, at most 4096")?;
    let mut card = u64::from(CARD);
    if gpus > 0 {
        let given = row.is_given(GPU_MEMORY);
        if given || *by_memory == Some(true) {
            card = row.whole(
                GPU_MEMORY,
                u64::from(u32::MAX),
                "MiB of each GPU's memory, or absent from all nodes",
            )?;
        }
        if given && *by_memory == Some(false) {
            return Err(row.bad(GPU_MEMORY, "absent, as from the nodes before"));
        }
        *by_memory = Some(given);
    }
    let name = NodeName::new(name).expect("names were checked");
    let inventory = Inventory::equal_cards(gpus as usize, MiB::from(card as u32))
        .expect("the number of cards was checked");
    Ok(NodeFacts {
        sharing: Sharing::Both,
        // In a trace there is no doubt whose container it is.
        identity: Identity::Nri,
        host,
        model: Arc::from(row.text(MODEL)),
        ..NodeFacts::plain(name, Arc::new(inventory))
    })
}
