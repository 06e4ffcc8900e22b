//! Best-effort backfill: all jobs are tried in the order of the line, and each that fits starts.
//! Nothing is kept for jobs that do not fit. Quotas mean nothing.

use super::{Discipline, JobLine};
use crate::line::Line;
use crate::replay::floor::Floor;
use crate::replay::jobs::Jobs;

pub(super) struct Backfill;

impl Discipline for Backfill {
    fn name(&self) -> &'static str {
        "backfill"
    }

    fn about(&self) -> &'static str {
        "by priority and age; whoever fits passes the others"
    }

    fn line<'a>(&self, jobs: &'a Jobs) -> Box<dyn JobLine + 'a> {
        Box::new(BackfillLine {
            jobs,
            line: Line::default(),
            freed: false,
        })
    }
}

struct BackfillLine<'a> {
    jobs: &'a Jobs,
    line: Line,
    /// Something has left since the last moment.
    freed: bool,
}

impl JobLine for BackfillLine<'_> {
    fn join(&mut self, job: usize) {
        let it = self.jobs.all()[job];
        self.line.join(it.kind, it.priority, job);
    }

    fn left(&mut self, _job: usize) {
        self.freed = true;
    }

    fn tick(&mut self, floor: &mut Floor<'_>, _now: u64) -> bool {
        self.line.open(std::mem::take(&mut self.freed));
        while let Some(head) = self.line.first() {
            let placed = floor.start_if_room(head.number);
            self.line.tried(head, placed);
        }
        false
    }
}
