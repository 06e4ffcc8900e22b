//! `sublet controller`: what looks after objects of the cluster beside the scheduler.
//!
//! Suggested reading order: leader, shell.

pub mod leader;
pub mod shell;
