//! Kueue's rule, implemented again: in each cycle one job of each queue is looked at, its head.
//!
//! From the documentation and source of Kueue (`pkg/scheduler`, `BestEffortFIFO` and `StrictFIFO`):
//! a cycle takes the head of each queue, orders them (heads that borrow nothing first, then by
//! priority, then by age), and admits those that fit. With `BestEffortFIFO` a head that does not
//! fit is put aside until something ends; with `StrictFIFO` its queue waits behind it. Each tenant
//! is a queue with its quota; all are one cohort that may borrow everything. Nobody is evicted, as
//! by default. Cycles take no time here, and a place is proven before a job is admitted, which
//! Kueue does only with its topology-aware scheduling: both are in its favour.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use crate::replay::floor::Floor;
use crate::replay::jobs::Jobs;
use crate::replay::rule::{Discipline, JobLine};

pub(super) const HEADS: Heads = Heads { strict: false };
pub(super) const STRICT_HEADS: Heads = Heads { strict: true };

pub(super) struct Heads {
    strict: bool,
}

impl Discipline for Heads {
    fn name(&self) -> &'static str {
        match self.strict {
            true => "heads-strict",
            false => "heads",
        }
    }

    fn about(&self) -> &'static str {
        match self.strict {
            true => "Kueue's StrictFIFO, re-implemented: one head of each queue, nobody passes it",
            false => {
                "Kueue's BestEffortFIFO, re-implemented: one head of each queue in each cycle, put \
                 aside if it does not fit"
            }
        }
    }

    fn line<'a>(&self, jobs: &'a Jobs) -> Box<dyn JobLine + 'a> {
        let queues = vec![BTreeSet::new(); jobs.tenants().len()];
        Box::new(HeadLine {
            jobs,
            strict: self.strict,
            aside: queues.clone(),
            queues,
            no_room: BTreeSet::new(),
        })
    }
}

/// The jobs of a queue by priority, then by age.
type Queue = BTreeSet<(Reverse<i32>, usize)>;

struct HeadLine<'a> {
    jobs: &'a Jobs,
    strict: bool,
    /// By tenant.
    queues: Vec<Queue>,
    /// By tenant, the heads that did not fit.
    aside: Vec<Queue>,
    /// Kinds that found no room. They find none until something ends.
    no_room: BTreeSet<usize>,
}

impl JobLine for HeadLine<'_> {
    fn join(&mut self, job: usize) {
        let it = self.jobs.all()[job];
        self.queues[it.tenant].insert((Reverse(it.priority), job));
    }

    fn left(&mut self, _job: usize) {
        self.no_room.clear();
        for (queue, aside) in self.queues.iter_mut().zip(&mut self.aside) {
            queue.append(aside);
        }
    }

    fn tick(&mut self, floor: &mut Floor<'_>, _now: u64) -> bool {
        while self.cycle(floor) {}
        false
    }
}

impl HeadLine<'_> {
    /// Looks at one head of each queue; false if there is nothing more to look at.
    fn cycle(&mut self, floor: &mut Floor<'_>) -> bool {
        let jobs = self.jobs;
        let heads = self.queues.iter().filter_map(BTreeSet::first);
        let mut heads: Vec<(bool, (Reverse<i32>, usize))> = heads
            .map(|&head| {
                let tenant = jobs.all()[head.1].tenant;
                let with_it = floor.used(tenant) + jobs.kind(head.1).milli();
                (with_it > jobs.minima()[tenant], head)
            })
            .collect();
        heads.sort_unstable();
        let mut goes_on = false;
        for (_, head) in heads {
            let job = jobs.all()[head.1];
            let starts = !self.no_room.contains(&job.kind) && floor.start_if_room(head.1);
            if starts || !self.strict {
                self.queues[job.tenant].remove(&head);
                goes_on = true;
            }
            if !starts {
                self.no_room.insert(job.kind);
            }
            if !starts && !self.strict {
                self.aside[job.tenant].insert(head);
            }
        }
        goes_on
    }
}
