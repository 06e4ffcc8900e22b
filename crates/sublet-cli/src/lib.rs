//! Commands for people. For a cluster: `sublet inspect`, `sublet plan`, `sublet explain`. For one
//! machine: `sublet run`, `sublet ps`, `sublet top`, `sublet limit`.
//!
//! Each command is a pure function from objects to text, and a shell of a few lines that fetches
//! the objects. Commands for a cluster decide with the scheduler's own engine and change nothing.
//! Commands for a machine leave all decisions to its arbiter.

mod align;
mod answer;
mod compute;
pub mod explain;
pub mod inspect;
pub mod install;
mod jobs;
pub mod limit;
pub mod machine;
mod paste;
pub mod plan;
pub mod ps;
pub mod queue;
pub mod quota;
mod refusals;
pub mod run;
pub mod simulate;
pub mod standalone;
pub mod top;
mod verdict;

use clap::ValueEnum;
use sublet_model::Unit;

pub use answer::{Answer, BAD_INPUT, DONE, Format, NOT_DONE, error_text, print_error};

/// The unit of `aliyun.com/gpu-mem` on the command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum MemoryUnit {
    /// One MiB.
    #[default]
    #[value(name = "MiB")]
    MiB,
    /// One GiB.
    #[value(name = "GiB")]
    GiB,
}

impl From<MemoryUnit> for Unit {
    fn from(unit: MemoryUnit) -> Unit {
        match unit {
            MemoryUnit::MiB => Unit::MiB,
            MemoryUnit::GiB => Unit::GiB,
        }
    }
}
