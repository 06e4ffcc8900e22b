//! Best-effort backfill: all jobs are tried in the order of the line, and each that fits starts.
//! Nothing is kept for jobs that do not fit. Quotas mean nothing.

use crate::line::Line;
use crate::replay::floor::Floor;
use crate::replay::jobs::Jobs;
use crate::replay::rule::{Discipline, JobLine};

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
            lines: vec![Freed::default()],
        })
    }
}

/// Lines beside each other: one of all jobs, or one of each tenant, where each has its own nodes.
pub(super) struct BackfillLine<'a> {
    jobs: &'a Jobs,
    lines: Vec<Freed>,
}

#[derive(Default)]
struct Freed {
    line: Line,
    /// Something has left since the last moment.
    freed: bool,
}

impl<'a> BackfillLine<'a> {
    pub(super) fn of_each_tenant(jobs: &'a Jobs) -> BackfillLine<'a> {
        let lines = jobs.tenants().iter().map(|_| Freed::default()).collect();
        BackfillLine { jobs, lines }
    }

    /// The line of a job.
    fn of(&mut self, job: usize) -> &mut Freed {
        let at = match self.lines.len() {
            1 => 0,
            _ => self.jobs.all()[job].tenant,
        };
        &mut self.lines[at]
    }
}

impl JobLine for BackfillLine<'_> {
    fn join(&mut self, job: usize) {
        let it = self.jobs.all()[job];
        self.of(job).line.join(it.kind, it.priority, job);
    }

    fn left(&mut self, job: usize) {
        self.of(job).freed = true;
    }

    fn tick(&mut self, floor: &mut Floor<'_>, _now: u64) -> bool {
        for Freed { line, freed } in &mut self.lines {
            line.open(std::mem::take(freed));
            while let Some(head) = line.first() {
                let placed = floor.start_if_room(head.number);
                line.tried(head, placed);
            }
        }
        false
    }
}
