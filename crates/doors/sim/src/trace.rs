//! Lists of nodes, of pods and of quotas: CSV with a header line, or JSON with the same names.
//!
//! The columns are those of Alibaba's openb trace and of the Philly jobs; more can be given,
//! unknown ones are passed over. The columns of a node are in `nodes`, those of a pod in `pods`.
//! JSON is an array of objects, or one object on each line; a number may stand in a string, and a
//! field that is missing or null counts as empty. The first byte that is not blank tells the form.
//! Rows are read one by one, so that a list need not fit into memory twice.
//!
//! If cards have no memory given, each has 1000 MiB, so that one thousandth of a card and
//! one MiB are the same: the engine divides cards by memory.

mod bad;
mod csv;
mod json;
mod nodes;
mod pods;
mod quotas;
mod row;
mod rows;

pub use self::bad::{At, Bad, BadLines, TraceError};
pub use self::nodes::{NodeList, read_nodes};
pub(crate) use self::pods::claim;
pub use self::pods::{PodList, PodRow, read_pods};
pub use self::quotas::{QuotaRow, read_quotas};

#[cfg(test)]
mod tests;
