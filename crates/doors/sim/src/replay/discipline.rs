//! The rules for the next job to start. Each discipline has one file, and one line in
//! [`DISCIPLINES`].
//!
//! A discipline sees jobs come and end, and starts the next ones, if the engine finds room for all
//! their members. It sees no run times: nobody knows them in a cluster.

mod backfill;
mod fifo;
mod heads;
mod sublet;

use std::collections::BTreeMap;

use super::floor::Floor;
use super::jobs::Jobs;

/// Every discipline; ours is the first, and a new one stands last.
pub static DISCIPLINES: &[&dyn Discipline] = &[
    &sublet::Sublet,
    &fifo::Fifo,
    &backfill::Backfill,
    &heads::HEADS,
    &heads::STRICT_HEADS,
];

/// A rule that says which job starts next.
pub trait Discipline: Send + Sync {
    /// Its name on the command line.
    fn name(&self) -> &'static str;

    /// A description in a few words. It says so if it is another project's rule, implemented again.
    fn about(&self) -> &'static str;

    /// An empty line for these jobs.
    fn line<'a>(&self, jobs: &'a Jobs) -> Box<dyn JobLine + 'a>;
}

impl std::fmt::Debug for dyn Discipline {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// The jobs that wait, in one replay.
pub trait JobLine {
    /// The job of that number has come.
    fn join(&mut self, job: usize);

    /// It has run to its end.
    fn left(&mut self, job: usize);

    /// Starts the jobs that may start now. True if there may be more to do although nothing comes
    /// and nothing ends.
    fn tick(&mut self, floor: &mut Floor<'_>, now: u64) -> bool;

    /// The reasons for which gangs have waited, as [`crate::ReplayOutcome::gangs_waited_for`].
    fn gangs_waited_for(&self) -> BTreeMap<&'static str, u64> {
        BTreeMap::new()
    }
}
