//! Commands for people: `sublet inspect`, `sublet plan`, `sublet explain`.
//!
//! Each command is a pure function from objects to text, and a shell of a few lines that
//! fetches the objects. They decide with the scheduler's own engine and change nothing.

mod align;
mod answer;
pub mod explain;
mod grouped;
pub mod inspect;
pub mod plan;
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
