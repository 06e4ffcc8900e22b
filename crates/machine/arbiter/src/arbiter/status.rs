//! Everything there is to see, put together for people.

use std::collections::BTreeMap;
use std::time::Duration;

use sublet_abi::SlotIndex;
use sublet_model::{Bytes, MiB};
use sublet_share::{Amount, Ancestry, Holding, JobId, JobState, JobView, MpsStanding, Pid, UserId};

use super::jobs::Root;
use super::mps::Mps;
use super::{Arbiter, now_ms};
use crate::admin::{Counters, GpuRow, RefusalRow, Snapshot, TenantGpuRow, TenantRow, UserRow};
use crate::job_pages::JobPages;
use crate::rows::{self, mib, percent};

/// Note on a job whose programs have lost their MPS.
const LOST: &str = "the MPS daemon that its programs began under is gone: they can do no more CUDA \
                    work; start the job again";

/// Note on a job that MPS does not hold.
const WITHOUT: &str = "a program that began while MPS was gone runs without it: no limit of compute \
                       time holds it";

/// Note on a job of another user than MPS serves.
fn why_mps_waits(UserId(served): UserId) -> String {
    format!(
        "MPS serves one user at a time: a program of it waits in cuInit until the programs of user \
         {served} have ended"
    )
}

/// A request for memory of each card: so many MiB, or a percentage; neither for whole cards.
fn request(amount: Amount) -> (Option<u64>, Option<f64>) {
    match amount {
        Amount::Memory(memory) => (Some(memory.get()), None),
        Amount::Share(share) => (None, Some(percent(share))),
        Amount::Whole => (None, None),
    }
}

/// In seconds, to the microsecond.
fn seconds(time: Duration) -> f64 {
    time.as_micros() as f64 / 1e6
}

/// The largest value measured on a job's cards.
fn most(rows: &[TenantGpuRow], of: impl Fn(&TenantGpuRow) -> Option<f64>) -> Option<f64> {
    rows.iter().filter_map(of).reduce(f64::max)
}

/// A job's pinned memory, for people.
struct Pinned {
    limit_mib: Option<u64>,
    used_mib: Option<u64>,
    last_refusal: Option<RefusalRow>,
}

impl Pinned {
    /// Use above its limit, if there is any.
    fn over_mib(&self) -> Option<u64> {
        let over = self.used_mib?.checked_sub(self.limit_mib?)?;
        (over > 0).then_some(over)
    }
}

/// Makes a refusal's row from its bytes and time in a page.
fn refusal_row((bytes, at_ms): (u64, u64)) -> RefusalRow {
    RefusalRow {
        bytes,
        ago_ms: now_ms().saturating_sub(at_ms),
    }
}

impl Arbiter {
    pub(super) fn snapshot(&self) -> Snapshot {
        let gpus = 0..self.machine.inventory().gpus().len();
        let jobs = self.machine.jobs().map(|job| self.job_row(&job));
        let strangers = self.machine.strangers();
        let strangers = strangers.map(|(pid, on)| self.stranger_row(pid, on));
        Snapshot {
            gpus: gpus.map(|card| self.gpu_row(card)).collect(),
            tenants: jobs.chain(strangers).collect(),
            users: self.user_rows(),
            mps: self.mps.as_ref().map(Mps::row),
            counters: Counters {
                processes: self.processes.len() as u64,
                connections: self.connections.len() as u64,
                ..self.counters
            },
        }
    }

    fn user_rows(&self) -> Vec<UserRow> {
        let mut users: BTreeMap<UserId, UserRow> = BTreeMap::new();
        for job in self.machine.jobs() {
            let Some(user) = job.ask.user else {
                continue;
            };
            let row = users.entry(user).or_insert_with(|| UserRow {
                uid: user.0,
                cards: self.machine.share_of(user) as f64 / 1000.0,
                ..UserRow::default()
            });
            match job.state {
                JobState::Waiting => row.waiting += 1,
                _ => row.running += 1,
            }
        }
        users.into_values().collect()
    }

    fn gpu_row(&self, card: usize) -> GpuRow {
        let figures = self.readings.figures(card);
        GpuRow {
            compute_used_percent: self.compute_used_on(card),
            context_mib: figures.context.map(mib),
            packing: figures.packing.map(Into::into),
            slices: self.turns.slices(card).to_owned(),
            ..rows::gpu_row(&self.machine, card, self.readings.used(card))
        }
    }

    fn job_row(&self, job: &JobView<'_>) -> TenantRow {
        let gpus = self.machine.inventory().gpus();
        let index = |card: usize| gpus[card].index.0;
        let per_gpu: Vec<TenantGpuRow> = job
            .parts
            .iter()
            .map(|part| self.job_gpu_row(job.id, *part))
            .collect();
        let pinned = self.pinned_row(job);
        let over = per_gpu.iter().find(|row| row.used_mib > row.limit_mib);
        let (state, reason) = match (job.state, over, pinned.over_mib()) {
            (JobState::Over, Some(row), _) => (JobState::Over, Some(self.why_over(job, row))),
            (JobState::Running, _, Some(over)) => (
                JobState::Over,
                Some(format!("{over} MiB more pinned than its limit")),
            ),
            (state, ..) => {
                let reason = job.waits.map(|(_, reason)| reason.to_string());
                (state, reason.or_else(|| self.note_on(job)))
            }
        };
        let (request_mib, request_percent) = request(job.ask.request);
        TenantRow {
            id: Some(job.id.0),
            name: job.ask.name.to_string(),
            pids: job.pids.iter().map(|pid| pid.0).collect(),
            uid: job.ask.user.map(|user| user.0),
            user: None,
            priority: job.ask.priority,
            waited_ms: job.waits.map(|_| now_ms().saturating_sub(job.since.ms())),
            starts_when: self
                .machine
                .starts_when(job.id)
                .map(|when| when.to_string()),
            root: match self.jobs.root(job.id) {
                Some(Root::Run { pid, .. }) => Some(pid.0),
                _ => None,
            },
            gpus: job.parts.iter().map(|part| index(part.card)).collect(),
            request_mib,
            request_percent,
            request_gpus: job.ask.gpus.get(),
            allowed_gpus: job.ask.cards.as_ref().map(|cards| {
                let known = cards.iter().filter_map(|card| gpus.get(*card));
                known.map(|gpu| gpu.index.0).collect()
            }),
            memory_limit_mib: job.parts.iter().map(|part| part.limit.memory.get()).max(),
            memory_used_mib: per_gpu.iter().map(|row| row.used_mib).max().unwrap_or(0),
            pinned_limit_mib: pinned.limit_mib,
            pinned_used_mib: pinned.used_mib,
            pinned_last_refusal: pinned.last_refusal,
            class: Some(job.ask.class.word().to_owned()),
            compute_request_percent: Some(percent(job.ask.compute.request())),
            compute_limit_percent: Some(percent(job.ask.compute.limit())),
            compute_used_percent: most(&per_gpu, |row| row.compute_used_percent),
            waiting_percent: most(&per_gpu, |row| row.waiting_percent),
            mini_batch_ms: self
                .turns
                .batch_time(job.id)
                .map(|time| seconds(time) * 1000.0),
            state: state.word().to_owned(),
            mps: self
                .mps_standing(job)
                .map(|standing| standing.word().to_owned()),
            reason,
            position: job.waits.map(|(position, _)| *position),
            per_gpu,
            unknown_names: self.unknown_names(job),
        }
    }

    fn mps_standing(&self, job: &JobView<'_>) -> Option<MpsStanding> {
        self.mps.as_ref()?.standing(job)
    }

    fn why_over(&self, job: &JobView<'_>, row: &TenantGpuRow) -> String {
        let (index, over) = (row.index, row.used_mib - row.limit_mib);
        let mut why = format!("GPU {index}: {over} MiB more than its limit in use");
        if let Some(mismatch) = self.mismatch_on(job) {
            why = format!("{why}; {mismatch}");
        }
        if job.is_evicted {
            why.push_str("; it is being ended");
        }
        why
    }

    /// The card on which a job's figures contradict each other, as a text.
    fn mismatch_on(&self, job: &JobView<'_>) -> Option<String> {
        job.parts.iter().find_map(|part| {
            let mismatch = self.machine.mismatch(job.id, part.card)?;
            let index = self.machine.inventory().gpus()[part.card].index;
            let accounts = mismatch.accounts.map_or(String::new(), |accounts| {
                format!(", its processes' accounts {} MiB", mib(accounts))
            });
            Some(format!(
                "its books were written into: on GPU {index} they say {} MiB{accounts}, \
                 the driver {} MiB",
                mib(mismatch.total),
                mib(mismatch.driver)
            ))
        })
    }

    /// Note for people on a job that has its cards and is within its limits.
    fn note_on(&self, job: &JobView<'_>) -> Option<String> {
        if let Some(mismatch) = self.mismatch_on(job) {
            return Some(mismatch);
        }
        match self.mps_standing(job) {
            None | Some(MpsStanding::Serving) => {}
            Some(MpsStanding::Lost) => return Some(LOST.to_owned()),
            Some(MpsStanding::Without) => return Some(WITHOUT.to_owned()),
            Some(MpsStanding::Waiting(served)) => return Some(why_mps_waits(served)),
        }
        let mut cards = job.parts.iter().map(|part| part.card);
        let overused = cards.find_map(|card| Some((card, self.overuse(job.id, card)?)));
        if let Some((card, (measured, explained))) = overused {
            let index = self.machine.inventory().gpus()[card].index;
            let effect = match (self.is_out_of_turn(job.id, card), job.is_evicted) {
                (false, _) => "it pays for the rest",
                (true, false) => "it works without a turn, and cannot be made to pay",
                (true, true) => "it works without a turn, and is being ended",
            };
            return Some(format!(
                "GPU {index}: its programs were at work for {measured} % of the time, its turns \
                 explain {explained} %; {effect}"
            ));
        }
        let pages = self.jobs.pages(job.id)?;
        if !self.lifetime.is_settled() && pages.expects_ledger && !pages.are_made() {
            let why = "the arbiter was just restarted, and the job's programs are not back yet";
            return Some(why.to_owned());
        }
        job.parts.iter().find_map(|part| {
            let context = self.machine.card(part.card).context;
            let index = self.machine.inventory().gpus()[part.card].index;
            (context > Bytes::from(part.limit.memory)).then(|| {
                format!(
                    "GPU {index}: a context takes {} MiB there, more than the job's limit",
                    mib(context)
                )
            })
        })
    }

    fn job_gpu_row(&self, job: JobId, part: Holding) -> TenantGpuRow {
        let card = part.card;
        let pages = self.jobs.pages(job);
        let device = pages.and_then(|pages| {
            let found = pages.devices().find(|(_, own)| own.card == card)?.0;
            Some((found, pages.ledger()?.page()))
        });
        let total = device.map_or(0, |(device, page)| page.total(device).bytes());
        let used = match self.machine.mismatch(job, card) {
            Some(_) => total.max(self.machine.used(job, card).get()),
            None => total,
        };
        let refusal = device.and_then(|(device, page)| page.last_refusal(device));
        let compute = self.compute_use(job, card);
        TenantGpuRow {
            index: self.machine.inventory().gpus()[card].index.0,
            limit_mib: part.limit.memory.get(),
            used_mib: mib(Bytes::new(used)),
            overhead_mib: mib(self.machine.overhead(job, card)),
            context_mib: mib(self.contexts_of(job, card)),
            compute_request_percent: Some(percent(part.limit.compute)),
            compute_limit_percent: Some(percent(part.compute_limit)),
            compute_used_percent: compute.used_percent,
            waiting_percent: Some(compute.waited_percent),
            is_throttled: Some(compute.is_at_limit),
            compute_used_seconds: compute.used_in_all.map(seconds),
            waited_seconds: Some(seconds(compute.waited_in_all)),
            throttled_seconds: Some(seconds(compute.throttled_in_all)),
            last_refusal: refusal.map(refusal_row),
        }
    }

    /// Memory that a job's processes have reserved for their contexts.
    fn contexts_of(&self, job: JobId, card: usize) -> Bytes {
        let Some(pages) = self.jobs.pages(job) else {
            return Bytes::new(0);
        };
        let pids = self.machine.job(job).map(|view| view.pids);
        let slots = pids.into_iter().flatten().filter_map(|pid| {
            let (_, slot) = self.machine.process(pid)?;
            SlotIndex::of_process(slot)
        });
        let uses = slots.flat_map(|slot| pages.slot_use(slot));
        let contexts = uses.filter(|slot| slot.card == card);
        let sum = contexts.fold(0_u64, |sum, slot| sum.saturating_add(slot.context.get()));
        Bytes::new(sum)
    }

    fn pinned_row(&self, job: &JobView<'_>) -> Pinned {
        let counted = self.jobs.pages(job.id).map(JobPages::pinned);
        Pinned {
            limit_mib: job.ask.pinned.map(MiB::get),
            used_mib: counted.map(|(used, _)| mib(used)),
            last_refusal: counted.and_then(|(_, refusal)| refusal).map(refusal_row),
        }
    }

    fn unknown_names(&self, job: &JobView<'_>) -> u64 {
        let ledger = self.jobs.pages(job.id).and_then(JobPages::ledger);
        let counts = job.pids.iter().filter_map(|pid| {
            let (_, slot) = self.machine.process(*pid)?;
            Some(
                ledger?
                    .page()
                    .slot(SlotIndex::of_process(slot)?)
                    .n_unknown(),
            )
        });
        counts.fold(0, u64::saturating_add)
    }

    fn stranger_row(&self, pid: Pid, on: &BTreeMap<usize, Bytes>) -> TenantRow {
        let job = match self.ancestry(pid) {
            Ancestry::Job(job) => Some(job),
            Ancestry::NoJob | Ancestry::Unseen => None,
        };
        let reason = match job {
            Some(job) => Some(format!("it belongs to job {job} and went past its library")),
            None => self
                .is_of_mps(pid)
                .then(|| "it is the server of MPS".to_owned()),
        };
        rows::stranger_row(&self.machine, pid, on, reason)
    }
}
