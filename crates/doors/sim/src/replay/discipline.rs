//! The rules for the next job to start. Each discipline has one file, and one line in
//! [`DISCIPLINES`].
//!
//! A discipline sees jobs come and end, and starts the next ones, if the engine finds room for all
//! their members. It sees no run times, because nobody knows them in a cluster; `easy` sees them, to
//! show what they are worth.

mod backfill;
mod easy;
mod fifo;
mod heads;
mod partitions;
mod sublet;

use super::rule::Discipline;

/// Every discipline; ours is the first, and a new one stands last.
pub static DISCIPLINES: &[&dyn Discipline] = &[
    &sublet::Sublet,
    &fifo::Fifo,
    &backfill::Backfill,
    &heads::HEADS,
    &heads::STRICT_HEADS,
    &easy::Easy,
    &partitions::Partitions,
];

/// The discipline that says what a tenant would have alone.
pub(super) static ALONE: &dyn Discipline = &partitions::Partitions;
