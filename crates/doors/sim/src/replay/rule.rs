//! The form of a rule that says which job starts next. The rules themselves are in `discipline/`.

use std::collections::BTreeMap;

use super::figures::WithinMin;
use super::floor::Floor;
use super::jobs::Jobs;

/// A rule that says which job starts next.
pub trait Discipline: Send + Sync {
    /// Its name on the command line.
    fn name(&self) -> &'static str;

    /// A description in a few words. It says so if it is another project's rule, implemented again.
    fn about(&self) -> &'static str;

    /// Has each tenant nodes of its own, in place of its part of a cluster that all use?
    fn is_apart(&self) -> bool {
        false
    }

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

    /// As [`crate::ReplayOutcome::within_min`].
    fn within_min(&self) -> Option<WithinMin> {
        None
    }
}
