//! Any order of events: limits stay within the card, the queue keeps its order, and nothing is
//! left when all jobs are gone.

use std::collections::BTreeSet;

use proptest::prelude::*;
use sublet_model::{Class, Milli, Part};

use super::tests::{ask, ledger_use, machine};
use super::*;
use crate::event::{Reading, SlotUse};
use crate::job::{ComputeRange, Promise};

#[derive(Debug, Clone)]
enum Step {
    Submit {
        mib: u32,
        gpus: u32,
        wait: bool,
        compute: u16,
        class: Class,
    },
    Share {
        milli: u16,
        gpus: u32,
    },
    Whole {
        gpus: u32,
    },
    Named {
        mib: u32,
        gpus: u32,
        cards: Vec<usize>,
    },
    Declare {
        card: usize,
        mib: u32,
    },
    Promise {
        place: u8,
        card: usize,
        mib: u32,
    },
    Leave(usize),
    Limit {
        job: usize,
        mib: u32,
    },
    LimitPinned {
        job: usize,
        mib: u32,
    },
    LimitCompute {
        job: usize,
        request: u16,
        limit: u16,
    },
    Join {
        job: usize,
        pid: u32,
    },
    Exit(u32),
    JobUsage {
        job: usize,
        card: usize,
        mib: u32,
    },
    Read(Vec<(usize, u32, u32)>),
    Sick(u16),
}

fn step() -> impl Strategy<Value = Step> {
    let job = 0..12usize;
    let card = 0..3usize;
    let pid = 1..20u32;
    let class = prop_oneof![2 => Just(Class::Guaranteed), 1 => Just(Class::Opportunistic)];
    prop_oneof![
        4 => (0..130u32, 0..5u32, any::<bool>(), prop_oneof![Just(0), 0..=1000u16], class)
            .prop_map(|(mib, gpus, wait, compute, class)| {
                Step::Submit { mib, gpus, wait, compute, class }
            }),
        2 => (job.clone(), prop_oneof![Just(0), 0..=1000u16], 0..=1000u16)
            .prop_map(|(job, request, limit)| Step::LimitCompute { job, request, limit }),
        1 => (0..=1000u16, 1..4u32).prop_map(|(milli, gpus)| Step::Share { milli, gpus }),
        1 => (1..3u32).prop_map(|gpus| Step::Whole { gpus }),
        1 => (0..130u32, 1..4u32, prop::collection::vec(0..5usize, 0..3))
            .prop_map(|(mib, gpus, cards)| Step::Named { mib, gpus, cards }),
        1 => (0..5usize, 0..130u32).prop_map(|(card, mib)| Step::Declare { card, mib }),
        2 => (any::<u8>(), 0..5usize, 0..130u32)
            .prop_map(|(place, card, mib)| Step::Promise { place, card, mib }),
        3 => job.clone().prop_map(Step::Leave),
        2 => (job.clone(), 0..130u32).prop_map(|(job, mib)| Step::Limit { job, mib }),
        2 => (job.clone(), 0..130u32).prop_map(|(job, mib)| Step::LimitPinned { job, mib }),
        3 => (job.clone(), pid.clone()).prop_map(|(job, pid)| Step::Join { job, pid }),
        2 => pid.clone().prop_map(Step::Exit),
        2 => (job, card.clone(), 0..150u32)
            .prop_map(|(job, card, mib)| Step::JobUsage { job, card, mib }),
        2 => prop::collection::vec((card, pid, 0..60u32), 0..6).prop_map(Step::Read),
        1 => (0..4u16).prop_map(Step::Sick),
    ]
}

/// The machine's cards, one of which is sick.
fn sick(index: u16) -> Event {
    let out = BTreeSet::from([sublet_model::GpuIndex(index)]);
    let all = machine(&[100, 100, 60]).inventory().with_sick(&out, "test");
    Event::Inventory(Arc::new(all))
}

/// A promise, and a limit of at least that.
fn range(request: u16, limit: u16) -> ComputeRange {
    let milli = |value| Milli::new(value).unwrap();
    ComputeRange::new(milli(request), milli(limit.max(request).max(1))).unwrap()
}

/// One of three pods, and one of six places in it.
fn promise(place: u8) -> Promise {
    use sublet_model::Role;
    let pod = ["a", "b", "c"][usize::from(place % 3)];
    let (role, position) = match place / 3 % 6 {
        0 => (Role::Init, 0),
        1 => (Role::Sidecar, 1),
        2 => (Role::Init, 2),
        3 => (Role::Sidecar, 3),
        n => (Role::Main, usize::from(n)),
    };
    Promise {
        pod: Arc::from(pod),
        role,
        position,
    }
}

struct World {
    machine: Machine,
    next: u64,
    now: u64,
    /// Jobs that wait, in the order in which they came.
    waiting: Vec<JobId>,
    alive: BTreeSet<JobId>,
    /// Jobs that a cluster declared.
    promised: BTreeSet<JobId>,
}

impl World {
    fn new() -> World {
        World {
            machine: machine(&[100, 100, 60]),
            next: 1,
            now: 0,
            waiting: Vec::new(),
            alive: BTreeSet::new(),
            promised: BTreeSet::new(),
        }
    }

    fn job(&self, at: usize) -> JobId {
        JobId(self.next.saturating_sub(1 + at as u64))
    }

    /// A new job, and its request.
    fn newcomer(&mut self, memory: Amount, gpus: u32, may_wait: bool) -> (JobId, JobAsk) {
        let job = JobId(self.next);
        self.next += 1;
        let ask = JobAsk {
            memory,
            ..ask(1, gpus, may_wait)
        };
        (job, ask)
    }

    /// A new job that has this memory of one card already.
    fn declared(&mut self, card: usize, mib: u32, promise: Option<Promise>) -> Event {
        let memory = MiB::from(mib);
        let (job, ask) = self.newcomer(Amount::Memory(memory), 1, true);
        Event::Declared {
            job,
            ask,
            parts: vec![Holding::of_memory(card, memory)],
            promise,
        }
    }

    fn event(&mut self, step: &Step) -> Event {
        match step {
            Step::Submit {
                mib,
                gpus,
                wait,
                compute,
                class,
            } => {
                let (job, ask) = self.newcomer(Amount::Memory(MiB::from(*mib)), *gpus, *wait);
                let ask = JobAsk {
                    compute: range(*compute, 1000),
                    class: *class,
                    ..ask
                };
                Event::Submitted { job, ask }
            }
            Step::Share { milli, gpus } => {
                let share = Milli::new(*milli).unwrap();
                let (job, ask) = self.newcomer(Amount::Share(share), *gpus, true);
                Event::Submitted { job, ask }
            }
            Step::Whole { gpus } => {
                let (job, ask) = self.newcomer(Amount::Whole, *gpus, true);
                Event::Submitted { job, ask }
            }
            Step::Named { mib, gpus, cards } => {
                let (job, ask) = self.newcomer(Amount::Memory(MiB::from(*mib)), *gpus, true);
                let cards = Some(cards.iter().copied().collect());
                let ask = JobAsk { cards, ..ask };
                Event::Submitted { job, ask }
            }
            Step::Declare { card, mib } => self.declared(*card, *mib, None),
            Step::Promise { place, card, mib } => self.declared(*card, *mib, Some(promise(*place))),
            Step::Leave(job) => Event::Left(self.job(*job)),
            Step::Limit { job, mib } => Event::LimitAsked {
                job: self.job(*job),
                memory: Amount::Memory(MiB::from(*mib)),
            },
            Step::LimitPinned { job, mib } => Event::PinnedLimitAsked {
                job: self.job(*job),
                memory: MiB::from(*mib),
            },
            Step::LimitCompute {
                job,
                request,
                limit,
            } => Event::ComputeAsked {
                job: self.job(*job),
                compute: range(*request, *limit),
            },
            Step::Join { job, pid } => Event::Joined {
                job: self.job(*job),
                pid: Pid(*pid),
            },
            Step::Exit(pid) => Event::Exited(Pid(*pid)),
            Step::JobUsage { job, card, mib } => {
                let job = self.job(*job);
                Event::Used(vec![ledger_use(job.0, *card, u64::from(*mib))])
            }
            Step::Read(processes) => self.reading(processes),
            Step::Sick(index) => sick(*index),
        }
    }

    fn reading(&self, processes: &[(usize, u32, u32)]) -> Event {
        let on = |card| Reading {
            processes: processes
                .iter()
                .filter(|(at, ..)| *at == card)
                .map(|&(_, pid, mib)| (Pid(pid), Bytes::from(MiB::from(mib))))
                .collect(),
        };
        let slots = self.machine.jobs().flat_map(|job| {
            let (id, parts) = (job.id, job.parts.clone());
            job.pids.into_iter().flat_map(move |pid| {
                parts.clone().into_iter().map(move |part| SlotUse {
                    job: id,
                    pid,
                    card: part.card,
                    used: Bytes::new(10 << 20),
                    is_quiet: true,
                    has_asked: false,
                })
            })
        });
        // Some of them lie.
        let ledgers = self.machine.jobs().flat_map(|job| {
            let id = job.id.0;
            let parts = job.parts.into_iter();
            parts.map(move |part| ledger_use(id, part.card, id * 37 % 90))
        });
        Event::Read {
            cards: (0..3).map(|card| Some(on(card))).collect(),
            slots: slots.collect(),
            ledgers: ledgers.collect(),
            may_return: BTreeSet::new(),
        }
    }

    fn take(&mut self, step: &Step) -> Result<(), TestCaseError> {
        self.now += 250;
        let event = self.event(step);
        let submitted = match &event {
            Event::Submitted { job, .. } => Some(*job),
            _ => None,
        };
        let before: Vec<_> = (0..3).map(|card| self.machine.card(card)).collect();
        let limited = matches!(event, Event::LimitAsked { .. });
        let declared = matches!(event, Event::Declared { .. });
        let n_promised = self.promised.len();
        if let Event::Declared {
            job,
            promise: Some(_),
            ..
        } = &event
        {
            self.promised.insert(*job);
        }
        let placed_before: BTreeSet<JobId> = self.placed();
        let pinned_before = self.pinned_limits();
        let mut out = Vec::new();
        self.machine.apply(Time::from_ms(self.now), event, &mut out);
        prop_assert!(self.machine.is_conserved());
        prop_assert!(self.machine.is_line_current(Time::from_ms(self.now)));
        if let Some(job) = submitted {
            self.waiting.push(job);
        }
        for action in &out {
            self.check(action)?;
        }
        self.check_pinned(step, &pinned_before, &before, &out)?;
        // A page takes nothing from others. Excepted are containers of one pod that should not run at
        // one time and do: their pod has what both use, which is at most what both may have.
        if matches!(step, Step::JobUsage { job, .. } if !self.promised.contains(&self.job(*job))) {
            for (card, was) in before.iter().enumerate() {
                let is = self.machine.card(card);
                prop_assert!(is.open >= was.open || !out.is_empty(), "card {card}");
            }
        }
        // Whoever got more than before, got it from what was free.
        let newcomers = self.placed().difference(&placed_before).count();
        if limited || declared || newcomers > 0 {
            for (card, was) in before.iter().enumerate() {
                let is = self.machine.card(card);
                let grew = is.granted > was.granted;
                prop_assert!(!grew || is.granted.plus(is.kept) <= is.capacity || declared);
                // Only a cluster's promise may go beyond the card.
                let by_promise = self.promised.len() > n_promised;
                prop_assert!(!grew || is.granted <= is.capacity || by_promise);
            }
        }
        for card in 0..3 {
            let local = self
                .machine
                .jobs()
                .filter(|job| !self.promised.contains(&job.id));
            let limits = local.flat_map(|job| job.parts);
            let limits = limits.filter(|part| part.card == card);
            let sum = limits.fold(Part::ZERO, |sum, part| sum.plus(part.limit));
            let all = Part::whole(self.machine.card(card).capacity);
            prop_assert!(sum.fits_in(all), "card {card}: {sum}");
            self.check_compute(card)?;
        }
        Ok(())
    }

    /// Checks the promised time of each job on a card: it is the request, within the job's limit
    /// and only if the job is guaranteed. A job that is promised all of it is the only guaranteed
    /// one.
    fn check_compute(&self, card: usize) -> Result<(), TestCaseError> {
        let local = self.machine.jobs();
        let local = local.filter(|job| !self.promised.contains(&job.id));
        let mut guaranteed = Vec::new();
        for job in local {
            for part in job.parts.iter().filter(|part| part.card == card) {
                let compute = part.compute();
                prop_assert_eq!(compute, job.ask.compute);
                prop_assert!(compute.request() <= compute.limit());
                if job.ask.class == Class::Guaranteed {
                    guaranteed.push(compute.request());
                } else {
                    prop_assert_eq!(compute.request(), Milli::ZERO);
                }
            }
        }
        let is_alone = guaranteed.len() == 1;
        prop_assert!(
            is_alone || !guaranteed.contains(&Milli::WHOLE),
            "{:?}",
            guaranteed
        );
        Ok(())
    }

    /// Each job's limit of pinned memory.
    fn pinned_limits(&self) -> BTreeMap<JobId, Option<MiB>> {
        let jobs = self.machine.jobs();
        jobs.map(|job| (job.id, job.ask.pinned)).collect()
    }

    /// A limit of pinned memory is changed by a request for that job alone, in full or not at all,
    /// and takes nothing from a card.
    fn check_pinned(
        &self,
        step: &Step,
        before: &BTreeMap<JobId, Option<MiB>>,
        cards: &[CardView],
        out: &[Action],
    ) -> Result<(), TestCaseError> {
        let asked = match step {
            Step::LimitPinned { job, mib } => Some((self.job(*job), MiB::from(*mib))),
            _ => None,
        };
        let mut accepted = None;
        for action in out {
            match action {
                Action::LimitPinned { job, memory, .. } => accepted = Some((*job, *memory)),
                Action::KeepLimit { .. } if asked.is_some() => {}
                _ => prop_assert!(asked.is_none(), "{:?}", action),
            }
        }
        prop_assert!(accepted.is_none() || accepted == asked);
        for (job, limit) in self.pinned_limits() {
            let was = before.get(&job).copied().unwrap_or_default();
            let new = accepted
                .filter(|(of, _)| *of == job)
                .map(|(_, memory)| memory);
            prop_assert_eq!(limit, new.or(was), "job {}", job);
        }
        let is: Vec<_> = (0..3).map(|card| self.machine.card(card)).collect();
        prop_assert!(asked.is_none() || is == cards);
        Ok(())
    }

    fn placed(&self) -> BTreeSet<JobId> {
        let jobs = self.machine.jobs().filter(|job| !job.parts.is_empty());
        jobs.map(|job| job.id).collect()
    }

    fn check(&mut self, action: &Action) -> Result<(), TestCaseError> {
        match action {
            Action::Place { job, parts } => {
                prop_assert!(!parts.is_empty());
                // First come, first served. A declared job never waited.
                if self.waiting.contains(job) {
                    prop_assert_eq!(self.waiting.first(), Some(job));
                    self.waiting.remove(0);
                }
                prop_assert!(self.alive.insert(*job), "placed twice");
                let ask = self.machine.job(*job).map(|view| view.ask.clone());
                let is_allowed = |card| ask.as_ref().is_none_or(|ask| ask.allows(card));
                prop_assert!(parts.iter().all(|part| is_allowed(part.card)), "{:?}", ask);
            }
            Action::Refuse { job, reason } => {
                prop_assert!(!reason.to_string().is_empty());
                self.waiting.retain(|waiting| waiting != job);
            }
            Action::End(job) => {
                let waited = self.waiting.contains(job);
                self.waiting.retain(|waiting| waiting != job);
                prop_assert!(self.alive.remove(job) || waited);
            }
            Action::Wait { job, position, .. } => {
                prop_assert_eq!(self.waiting.get(*position as usize - 1), Some(job));
            }
            Action::Reclaim { pid, .. } => {
                prop_assert_eq!(self.machine.process(*pid), None);
            }
            _ => {}
        }
        Ok(())
    }
}

proptest! {
    #[test]
    fn limits_stay_within_the_card_and_nothing_leaks(
        steps in prop::collection::vec(step(), 0..60),
    ) {
        let mut world = World::new();
        for step in &steps {
            world.take(step)?;
        }
        for pid in 0..20 {
            world.take(&Step::Exit(pid))?;
        }
        for at in 0..world.next as usize {
            world.take(&Step::Leave(at))?;
        }
        world.take(&Step::Read(vec![]))?;
        prop_assert!(world.machine.is_idle());
        prop_assert!(world.alive.is_empty() && world.waiting.is_empty());
        for card in 0..3 {
            let card = world.machine.card(card);
            prop_assert_eq!((card.granted, card.kept), (MiB::ZERO, MiB::ZERO));
        }
    }
}
