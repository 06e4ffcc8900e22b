//! EASY, implemented again: aggressive backfill with run times (Lifka, *The ANL/IBM SP Scheduling
//! System*, 1995).
//!
//! The first of the line is promised the earliest moment at which enough of the running jobs have
//! ended for it. Others pass it if they end before that moment, or if it still has a place then. The
//! run time of each job is the one of the list: nobody guesses wrong here, which is in its favour.
//! Quotas mean nothing.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use sublet_model::NodeIdx;

use crate::replay::floor::Floor;
use crate::replay::ground::Beside;
use crate::replay::jobs::Jobs;
use crate::replay::rule::{Discipline, JobLine};

pub(super) struct Easy;

impl Discipline for Easy {
    fn name(&self) -> &'static str {
        "easy"
    }

    fn about(&self) -> &'static str {
        "EASY backfill, re-implemented: others pass the first only if it starts no later for them; \
         it alone knows how long each job runs"
    }

    fn line<'a>(&self, jobs: &'a Jobs) -> Box<dyn JobLine + 'a> {
        Box::new(EasyLine {
            jobs,
            waiting: BTreeSet::new(),
            of_kinds: vec![0; jobs.kinds().len()],
            promise: None,
        })
    }
}

/// A job by priority, then by age.
type Turn = (Reverse<i32>, usize);

struct EasyLine<'a> {
    jobs: &'a Jobs,
    waiting: BTreeSet<Turn>,
    /// By kind, the number of waiting jobs.
    of_kinds: Vec<usize>,
    promise: Option<Promise>,
}

/// Promise to the first of the line.
struct Promise {
    job: usize,
    /// When it starts.
    at: u64,
    /// Its nodes.
    nodes: BTreeSet<NodeIdx>,
}

/// Facts about a kind at one moment, while jobs only start.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Room {
    Unknown,
    /// Only for jobs that end before the first of the line starts.
    Short,
    None,
}

impl JobLine for EasyLine<'_> {
    fn join(&mut self, job: usize) {
        let it = self.jobs.all()[job];
        self.waiting.insert((Reverse(it.priority), job));
        self.of_kinds[it.kind] += 1;
    }

    fn left(&mut self, _job: usize) {}

    fn tick(&mut self, floor: &mut Floor<'_>, now: u64) -> bool {
        while let Some(&first) = self.waiting.first() {
            if !floor.start_if_room(first.1) {
                break;
            }
            self.started(first);
            // It may be where the next one should start.
            self.promise = None;
        }
        let Some(&(_, first)) = self.waiting.first() else {
            return false;
        };
        let known = self.promise.take();
        let known = known.filter(|promise| promise.job == first && promise.at > now);
        let Some(mut promise) = known.or_else(|| earliest(first, floor)) else {
            return false;
        };
        for turn in self.pass(&mut promise, floor, now) {
            self.started(turn);
        }
        self.promise = Some(promise);
        false
    }
}

impl EasyLine<'_> {
    fn started(&mut self, turn: Turn) {
        self.waiting.remove(&turn);
        self.of_kinds[self.jobs.all()[turn.1].kind] -= 1;
    }

    /// Starts those that may pass the first of the line, and tells which.
    fn pass(&self, promise: &mut Promise, floor: &mut Floor<'_>, now: u64) -> Vec<Turn> {
        let mut rooms = vec![Room::Unknown; self.of_kinds.len()];
        let mut untried = self.of_kinds.iter().filter(|count| **count > 0).count();
        rooms[self.jobs.all()[promise.job].kind] = Room::None;
        untried -= 1;
        let mut passed = Vec::new();
        for &turn in self.waiting.iter().skip(1) {
            if untried == 0 {
                break;
            }
            let job = self.jobs.all()[turn.1];
            let is_short = now.saturating_add(job.lasts) <= promise.at;
            let starts = match (rooms[job.kind], is_short) {
                (Room::None, _) | (Room::Short, false) => continue,
                (_, true) => {
                    let starts = floor.start_if_room(turn.1);
                    if !starts {
                        rooms[job.kind] = Room::None;
                    }
                    starts
                }
                (Room::Unknown, false) => {
                    rooms[job.kind] = long(turn.1, promise, floor);
                    rooms[job.kind] == Room::Unknown
                }
            };
            untried -= usize::from(rooms[job.kind] == Room::None);
            if starts {
                passed.push(turn);
            }
        }
        passed
    }
}

/// Starts a job that runs past the promised moment, if the first of the line has a place then. Tells
/// what is known of its kind: nothing if it started.
fn long(job: usize, promise: &mut Promise, floor: &mut Floor<'_>) -> Room {
    if floor.start_if_room_off(job, &promise.nodes) {
        return Room::Unknown;
    }
    let gone: Vec<usize> = floor.ending_until(promise.at).collect();
    match floor.start_if_room_beside(job, promise.job, &gone) {
        Beside::NoRoom => Room::None,
        Beside::InTheWay => Room::Short,
        Beside::Room(_, nodes) => {
            promise.nodes = nodes;
            Room::Unknown
        }
    }
}

/// The earliest moment at which a job has a place, if nothing else starts.
fn earliest(job: usize, floor: &mut Floor<'_>) -> Option<Promise> {
    let ends: Vec<(u64, usize)> = floor.ends().collect();
    let gone: Vec<usize> = ends.iter().map(|(_, job)| *job).collect();
    // Of so many ended jobs it is known that they are too few; for those it is tried.
    let (mut few, mut tried) = (0, 1);
    let mut nodes = loop {
        let enough = floor.nodes_without(job, gone.get(..tried)?);
        match enough {
            Some(nodes) => break nodes,
            None if tried == gone.len() => return None,
            None => (few, tried) = (tried, (2 * tried).min(gone.len())),
        }
    };
    while few + 1 < tried {
        let middle = few + (tried - few) / 2;
        match floor.nodes_without(job, &gone[..middle]) {
            Some(found) => (tried, nodes) = (middle, found),
            None => few = middle,
        }
    }
    let at = ends[tried - 1].0;
    Some(Promise { job, at, nodes })
}
