//! Quotas of a list: `tenant` (or `cluster`), and `gpus`, the whole GPUs that it has if it asks for
//! them.

use std::collections::BTreeSet;
use std::io::Read;
use std::sync::Arc;

use super::bad::{Bad, BadLines, TraceError};
use super::row::Layout;
use super::rows::rows;

const TENANT: usize = 0;
const GPUS: usize = 1;

static LAYOUT: Layout = Layout {
    fields: &[&["tenant", "cluster"], &["gpus"]],
    required: &[TENANT, GPUS],
    together: &[],
};

/// The quota of a tenant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QuotaRow {
    /// The tenant.
    pub tenant: Arc<str>,
    /// So many GPUs are its own.
    pub gpus: u64,
}

/// Reads a list of quotas; with [`BadLines::Count`] also the rows that were left out.
///
/// # Errors
/// No such list, a column missing, or a row that cannot be used.
pub fn read_quotas(
    text: impl Read,
    bad: BadLines,
) -> Result<(Vec<QuotaRow>, Vec<Bad>), TraceError> {
    let mut names = BTreeSet::new();
    rows(text, &LAYOUT, bad, |row| {
        let tenant = row.name(TENANT)?;
        if names.contains(&tenant) {
            let expected = "a tenant of its own: an earlier row has it";
            return Err(row.bad(TENANT, expected).into());
        }
        // As many as the largest list of nodes has cards, by far.
        let gpus = row.whole(GPUS, 1_000_000_000, "a number of GPUs, at most 10^9")?;
        names.insert(Arc::clone(&tenant));
        Ok(QuotaRow { tenant, gpus })
    })
}
