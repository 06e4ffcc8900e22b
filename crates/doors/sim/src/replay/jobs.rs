//! The jobs of a trace: their times of arrival, their tenants and their members.
//!
//! A job that fits on one node is one member. A job of more whole GPUs than any node has is a gang:
//! members as large as the largest node, and one for the rest. CPU and memory go with the GPUs.
//! Nothing else is ever divided.

use std::collections::BTreeMap;
use std::sync::Arc;

use sublet_model::{Ask, Bytes, Claim, Count, Host, MilliCpu};
use sublet_queue::{MOST_MEMBERS, QueueRules, Wish, divide};

use crate::TimedError;
use crate::load::Press;
use crate::trace::{NodeList, PodList, QuotaRow, claim};
use crate::world::{Gauge, milli_of};

/// The tenant of jobs that name none.
const NOBODY: &str = "default";

/// The size of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum SizeClass {
    /// It asks no GPU.
    NoGpu,
    /// One GPU, or a part of one.
    One,
    /// Two to four, on one node.
    Few,
    /// Five and more, on one node.
    Many,
    /// More than any node has.
    Gang,
}

impl SizeClass {
    /// All of them, the smallest first.
    pub const ALL: [SizeClass; 5] = [
        SizeClass::NoGpu,
        SizeClass::One,
        SizeClass::Few,
        SizeClass::Many,
        SizeClass::Gang,
    ];

    /// The words for it.
    #[must_use]
    pub fn words(self) -> &'static str {
        match self {
            SizeClass::NoGpu => "no GPU",
            SizeClass::One => "up to 1",
            SizeClass::Few => "2 to 4",
            SizeClass::Many => "5 and more",
            SizeClass::Gang => "gangs",
        }
    }
}

/// Equal members of a job.
#[derive(Debug, Clone)]
pub(super) struct Members {
    pub(super) claim: Arc<Claim>,
    pub(super) count: u32,
    /// Thousandths of cards that each asks.
    pub(super) milli: u64,
}

/// Jobs that differ in nothing that a place depends on.
#[derive(Debug, Clone)]
pub(super) struct Kind {
    pub(super) members: Vec<Members>,
    pub(super) size: SizeClass,
    /// It would have a place if nothing ran.
    is_possible: bool,
}

impl Kind {
    /// Thousandths of cards.
    pub(super) fn milli(&self) -> u64 {
        let each = self.members.iter();
        each.map(|one| one.milli * u64::from(one.count)).sum()
    }

    fn of(claim_of_all: &Arc<Claim>, largest: u32, gauge: Gauge) -> Kind {
        let members = |claim: &Arc<Claim>, count| Members {
            claim: Arc::clone(claim),
            count,
            milli: gauge.milli(claim),
        };
        let milli = gauge.milli(claim_of_all);
        let whole = match claim_of_all.ask() {
            Ask::WholeCards(count) if count.get() > largest && largest > 0 => count.get(),
            _ => {
                return Kind {
                    members: vec![members(claim_of_all, 1)],
                    size: match milli {
                        0 => SizeClass::NoGpu,
                        1..=1000 => SizeClass::One,
                        1001..=4000 => SizeClass::Few,
                        _ => SizeClass::Many,
                    },
                    is_possible: false,
                };
            }
        };
        let part = |cards: u32| Arc::new(part(claim_of_all, cards, whole));
        let mut all = vec![members(&part(largest), whole / largest)];
        if !whole.is_multiple_of(largest) {
            all.push(members(&part(whole % largest), 1));
        }
        Kind {
            members: all,
            size: SizeClass::Gang,
            is_possible: false,
        }
    }
}

/// So many of the cards that a claim asks, with their part of CPU and memory, rounded up.
fn part(all: &Claim, cards: u32, of: u32) -> Claim {
    let (cards64, of) = (u64::from(cards), u64::from(of));
    let share = |amount: u64| amount.saturating_mul(cards64).div_ceil(of);
    let host = Host {
        cpu: MilliCpu::new(share(all.host().cpu.get())),
        memory: Bytes::new(share(all.host().memory.get())),
    };
    claim(&(
        host,
        Ask::WholeCards(Count::new(cards)),
        all.models().clone(),
    ))
}

/// A job by its number, and its kind.
#[derive(Clone, Copy)]
pub(super) struct Numbered<'a> {
    pub(super) number: usize,
    pub(super) kind: &'a Kind,
}

/// The kinds of jobs in a list, and the kind of each row.
pub(super) struct Kinds {
    all: Vec<Kind>,
    of_rows: Vec<usize>,
}

impl Kinds {
    pub(super) fn of(nodes: &NodeList, pods: &PodList) -> Kinds {
        let cards = nodes.rows.iter().map(|row| row.inventory.gpus().len());
        let largest = u32::try_from(cards.max().unwrap_or(0)).unwrap_or(u32::MAX);
        let gauge = Gauge::of(nodes);
        let (mut all, mut known) = (Vec::new(), BTreeMap::new());
        let kind_of = |claim: &Arc<Claim>| {
            // Rows that ask the same share their claim.
            *known.entry(Arc::as_ptr(claim)).or_insert_with(|| {
                all.push(Kind::of(claim, largest, gauge));
                all.len() - 1
            })
        };
        let of_rows = pods.rows.iter().map(|pod| &pod.claim).map(kind_of);
        let of_rows = of_rows.collect();
        Kinds { all, of_rows }
    }

    /// Finds out which of them could start if nothing ran.
    pub(super) fn try_each(&mut self, mut has_room: impl FnMut(Numbered<'_>) -> bool) {
        for kind in &mut self.all {
            let members: u64 = kind.members.iter().map(|one| u64::from(one.count)).sum();
            kind.is_possible =
                members <= MOST_MEMBERS as u64 && has_room(Numbered { number: 0, kind });
        }
    }
}

/// A job.
#[derive(Debug, Clone, Copy)]
pub(super) struct Job {
    pub(super) row: u32,
    /// When it comes, in seconds.
    pub(super) at: u64,
    pub(super) lasts: u64,
    /// Its kind and its tenant, by number.
    pub(super) kind: usize,
    pub(super) tenant: usize,
    pub(super) priority: i32,
}

/// All jobs that can ever start.
pub struct Jobs {
    /// By time of arrival, then by row: a job's number is its position here.
    all: Vec<Job>,
    kinds: Vec<Kind>,
    /// By name.
    tenants: Vec<Arc<str>>,
    /// By tenant: thousandths of cards that are its own.
    minima: Vec<u64>,
    /// Thousandths of cards there are.
    capacity: u64,
    /// Number of jobs that could not start on empty nodes, and the name of the first one.
    impossible: (u32, Option<Arc<str>>),
    rules: QueueRules,
    saves_every: Option<u64>,
    run_times: RunTimes,
}

/// Knowledge of how long jobs run that Sublet's own queue has.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum RunTimes {
    /// None.
    #[default]
    Unknown,
    /// It guesses by how long jobs of the same tenant and the same size ran.
    Learnt,
    /// Each job says it, and it is right.
    Declared,
}

/// Reason why jobs cannot be replayed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReplayError {
    /// Times that are missing, or no load can be made of.
    #[error(transparent)]
    Times(#[from] TimedError),
    /// An empty list, or a list without any job that can ever start.
    #[error("there is no job that could start on these nodes")]
    NoJobs,
    /// A tenant without quota.
    #[error("job {job} is of tenant {tenant}, for whom there is no quota")]
    NoQuota {
        /// The tenant.
        tenant: Arc<str>,
        /// The first job of that tenant.
        job: Arc<str>,
    },
}

impl Jobs {
    /// `load` as for [`crate::Timed::load`].
    pub(super) fn of(
        (nodes, pods): (&NodeList, &PodList),
        quotas: Option<&[QuotaRow]>,
        load: Option<u64>,
        kinds: Kinds,
    ) -> Result<Jobs, ReplayError> {
        let possible: Vec<bool> = kinds.all.iter().map(|kind| kind.is_possible).collect();
        let mut jobs = Jobs {
            all: Vec::with_capacity(pods.rows.len()),
            kinds: kinds.all,
            tenants: tenants(pods, &kinds.of_rows, |kind| possible[kind]),
            minima: Vec::new(),
            capacity: milli_of(nodes),
            impossible: (0, None),
            rules: QueueRules::default(),
            saves_every: None,
            run_times: RunTimes::Unknown,
        };
        for (pod, (row, kind)) in pods.rows.iter().zip((0..).zip(kinds.of_rows)) {
            let (Some(at), Some(lasts)) = (pod.comes, pod.lasts) else {
                return Err(TimedError::NoTimes(Arc::clone(&pod.name)).into());
            };
            if !jobs.kinds[kind].is_possible {
                jobs.impossible.0 += 1;
                jobs.impossible.1.get_or_insert_with(|| pod.name.clone());
                continue;
            }
            let name = pod.tenant.as_deref().unwrap_or(NOBODY);
            let tenant = jobs.tenants.binary_search_by(|known| (**known).cmp(name));
            jobs.all.push(Job {
                row,
                at,
                lasts,
                kind,
                // All tenants of the list are known.
                tenant: tenant.unwrap_or_default(),
                priority: pod.priority,
            });
        }
        if jobs.all.is_empty() {
            return Err(ReplayError::NoJobs);
        }
        jobs.all.sort_unstable_by_key(|job| (job.at, job.row));
        jobs.minima = match quotas {
            Some(quotas) => jobs.stated(quotas, pods)?,
            None => jobs.by_use(),
        };
        if let Some(load) = load {
            let asked = jobs.all.iter().map(|job| jobs.work(job));
            let asked = asked.fold(0, u128::saturating_add);
            let press = Press::new(jobs.window(), asked, (jobs.capacity, load))?;
            for job in &mut jobs.all {
                job.at = press.at(job.at);
            }
        }
        Ok(jobs)
    }

    /// The quotas of a list, in thousandths of cards, by tenant.
    fn stated(&self, quotas: &[QuotaRow], pods: &PodList) -> Result<Vec<u64>, ReplayError> {
        let of = |(number, tenant): (usize, &Arc<str>)| {
            let row = quotas.iter().find(|row| row.tenant == *tenant);
            row.map(|row| row.gpus * 1000).ok_or_else(|| {
                let first = self.all.iter().find(|job| job.tenant == number);
                let job = first.map(|job| pods.rows[job.row as usize].name.clone());
                ReplayError::NoQuota {
                    tenant: Arc::clone(tenant),
                    job: job.unwrap_or_default(),
                }
            })
        };
        self.tenants.iter().enumerate().map(of).collect()
    }

    /// Whole cards by the part that each tenant has of all GPU time, in thousandths.
    fn by_use(&self) -> Vec<u64> {
        let mut work = vec![0_u128; self.tenants.len()];
        for job in &self.all {
            work[job.tenant] = work[job.tenant].saturating_add(self.work(job));
        }
        let cards = self.capacity / 1000;
        let wish = |work: &u128| Wish {
            request: cards,
            // In seconds of cards; who has worked has a part.
            weight: u64::try_from(work.div_ceil(1000)).unwrap_or(u64::MAX),
            ..Wish::default()
        };
        let wishes: Vec<Wish> = work.iter().map(wish).collect();
        let parts = divide(cards, &wishes).into_iter();
        parts.map(|cards| cards * 1000).collect()
    }

    /// Thousandths of cards, times seconds.
    fn work(&self, job: &Job) -> u128 {
        u128::from(self.kinds[job.kind].milli()) * u128::from(job.lasts)
    }

    pub(super) fn all(&self) -> &[Job] {
        &self.all
    }

    pub(super) fn kind(&self, job: usize) -> &Kind {
        &self.kinds[self.all[job].kind]
    }

    pub(super) fn numbered(&self, number: usize) -> Numbered<'_> {
        let kind = self.kind(number);
        Numbered { number, kind }
    }

    pub(super) fn kinds(&self) -> &[Kind] {
        &self.kinds
    }

    pub(super) fn tenants(&self) -> &[Arc<str>] {
        &self.tenants
    }

    pub(super) fn minima(&self) -> &[u64] {
        &self.minima
    }

    pub(super) fn capacity(&self) -> u64 {
        self.capacity
    }

    /// The same jobs, under these settings of Sublet's own queue, with a checkpoint each time so many
    /// seconds of a run have passed.
    pub(super) fn with_rules(
        self,
        rules: QueueRules,
        saves_every: Option<u64>,
        run_times: RunTimes,
    ) -> Jobs {
        Jobs {
            rules,
            saves_every,
            run_times,
            ..self
        }
    }

    /// Knowledge of run times that Sublet's own queue has.
    pub(super) fn run_times(&self) -> RunTimes {
        self.run_times
    }

    /// Settings of Sublet's own queue.
    pub(super) fn rules(&self) -> &QueueRules {
        &self.rules
    }

    /// Seconds of a run between two checkpoints.
    pub(super) fn saves_every(&self) -> Option<u64> {
        self.saves_every
    }

    pub(super) fn impossible(&self) -> &(u32, Option<Arc<str>>) {
        &self.impossible
    }

    /// When the first one comes, and the last.
    pub(super) fn window(&self) -> (u64, u64) {
        let at = |job: Option<&Job>| job.map_or(0, |job| job.at);
        (at(self.all.first()), at(self.all.last()))
    }
}

/// The tenants of those jobs that can start, by name.
fn tenants(pods: &PodList, kinds: &[usize], possible: impl Fn(usize) -> bool) -> Vec<Arc<str>> {
    let rows = pods.rows.iter().zip(kinds);
    let rows = rows.filter(|(_, kind)| possible(**kind));
    let mut names: Vec<&str> = rows
        .map(|(pod, _)| pod.tenant.as_deref().unwrap_or(NOBODY))
        .collect();
    names.sort_unstable();
    names.dedup();
    names.into_iter().map(Arc::from).collect()
}
