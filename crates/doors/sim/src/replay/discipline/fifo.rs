//! First come, first served: while the first job finds no room, all behind it wait. Quotas mean
//! nothing.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use crate::replay::floor::Floor;
use crate::replay::jobs::Jobs;
use crate::replay::rule::{Discipline, JobLine};

pub(super) struct Fifo;

impl Discipline for Fifo {
    fn name(&self) -> &'static str {
        "fifo"
    }

    fn about(&self) -> &'static str {
        "by priority and age; nobody passes the first"
    }

    fn line<'a>(&self, jobs: &'a Jobs) -> Box<dyn JobLine + 'a> {
        let waiting = BTreeSet::new();
        Box::new(FifoLine { jobs, waiting })
    }
}

struct FifoLine<'a> {
    jobs: &'a Jobs,
    waiting: BTreeSet<(Reverse<i32>, usize)>,
}

impl JobLine for FifoLine<'_> {
    fn join(&mut self, job: usize) {
        let priority = self.jobs.all()[job].priority;
        self.waiting.insert((Reverse(priority), job));
    }

    fn left(&mut self, _job: usize) {}

    fn tick(&mut self, floor: &mut Floor<'_>, _now: u64) -> bool {
        while let Some(&first) = self.waiting.first() {
            if !floor.start_if_room(first.1) {
                break;
            }
            self.waiting.remove(&first);
        }
        false
    }
}
