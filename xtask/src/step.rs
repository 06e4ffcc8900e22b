//! A step of `cargo xtask test`. A task that is also a step makes it, and `test` runs it.

use std::process::Command;

/// One step: its purpose, its time on two idle cores, and its command.
pub(crate) struct Step {
    pub(crate) what: &'static str,
    pub(crate) usual: &'static str,
    pub(crate) command: Command,
}
