//! MPS on this machine, if its operator chose it. The module starts, watches, restarts and ends
//! the daemon. It knows the daemon under which each process began. It gives turns only for
//! promises that MPS does not keep. `sublet-share` decides when each step is due.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use sublet_model::{MiB, Milli, Time};
use sublet_share::{
    Amount, ComputeRange, Holding, JobId, JobView, MpsClient, MpsDaemon, MpsDue, MpsStanding,
    MpsState, Pid, UserId, mps_percent,
};
use tracing::{info, warn};

use super::sources::{Source, Sources};
use super::{Arbiter, now_ms};
use crate::admin::{MpsRow, PlacedMps};
use crate::error::ArbiterError;
use crate::machine_folder::Folder;
use crate::mps_control::{DaemonProcess, MpsControl, Question};
use crate::peer;
use crate::poller::Key;

/// Interval of looks at the first daemon until it serves, or has failed.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// The daemon, and the processes that began under it.
#[derive(Debug)]
pub(super) struct Mps {
    control: MpsControl,
    daemon: MpsDaemon,
    process: Option<DaemonProcess>,
    /// The process that is waited for.
    watched: Option<(Pid, Key)>,
    question: Option<Question>,
    /// The jobs whose programs are or will be its clients, and the memory of each card that they
    /// were told.
    jobs: BTreeMap<JobId, BTreeMap<usize, MiB>>,
    /// Processes that this arbiter has met without a past, and their users.
    met: BTreeMap<Pid, (MpsClient, Option<UserId>)>,
    /// The user of the daemon's server, as it was at the last look.
    served: Option<UserId>,
}

impl Mps {
    /// Starts the daemon, and waits until it serves.
    ///
    /// # Errors
    /// The program is not there, ends at once, or does not answer.
    pub(super) fn start(program: &Path, folder: &Folder) -> Result<Mps, ArbiterError> {
        let control = MpsControl::new(program, folder);
        let refused = |control: &MpsControl, why: String| {
            control.remove_folders();
            let program = control.name();
            ArbiterError::Mps { program, why }
        };
        let process = control.start();
        let process = process.map_err(|why| refused(&control, why))?;
        let mut mps = Mps {
            control,
            daemon: MpsDaemon::started_at(Time::from_ms(now_ms())),
            process: Some(process),
            watched: None,
            question: None,
            jobs: BTreeMap::new(),
            met: BTreeMap::new(),
            served: None,
        };
        loop {
            mps.step(Time::from_ms(now_ms()));
            match mps.daemon.state() {
                MpsState::Serving { .. } => return Ok(mps),
                MpsState::Gone { why, .. } => return Err(refused(&mps.control, why.clone())),
                MpsState::Starting { .. } => {}
            }
            if let Some(process) = &mps.process {
                process.wait(LOOK_EVERY);
            }
        }
    }

    /// Looks at the daemon, and does the step that is due.
    fn step(&mut self, now: Time) {
        if let Some(why) = self.process.as_mut().and_then(DaemonProcess::take_end) {
            self.gone(now, why);
        }
        match self.daemon.due(now) {
            None => {}
            Some(MpsDue::Ask) => self.ask(now),
            Some(MpsDue::GiveUp) => self.gone(now, "it does not answer".to_owned()),
            Some(MpsDue::Start) => match self.control.start() {
                Err(why) => self.gone(now, why),
                Ok(process) => {
                    self.process = Some(process);
                    self.daemon.start(now);
                }
            },
        }
    }

    fn gone(&mut self, now: Time, why: String) {
        warn!(
            why,
            "the daemon of MPS is gone; its clients can do no more CUDA work"
        );
        (self.process, self.question) = (None, None);
        self.daemon.ended(now, why);
    }

    fn ask(&mut self, now: Time) {
        let question = match &mut self.question {
            Some(question) => question,
            None => match self.control.ask() {
                Ok(question) => self.question.insert(question),
                // The next look tries again.
                Err(_) => return,
            },
        };
        if let Some(is_there) = question.answer() {
            self.question = None;
            if is_there {
                if let Err(error) = self.control.hide_privileged() {
                    warn!(%error, "root in a container can end the daemon of MPS");
                }
                self.daemon.answered(now);
                info!(pipe = %self.control.pipe().display(), "the daemon of MPS serves");
            }
        }
    }

    /// Looks at the user who is served: programs of others wait, and are told apart.
    fn look_at_server(&mut self) {
        let served = self.process.as_ref().and_then(DaemonProcess::served);
        if self.served != served {
            self.served = served;
            if let Some(UserId(user)) = served {
                info!(user, "MPS serves this user's programs, and no others");
            }
        }
    }

    /// Waits for the end of the daemon that there is now.
    fn watch(&mut self, sources: &mut Sources) {
        let now = self.process.as_ref().map(DaemonProcess::pid);
        if self.watched.map(|(pid, _)| pid) == now {
            return;
        }
        if let Some((_closed, key)) = self.watched.take() {
            sources.forget(key);
        }
        self.watched = self.process.as_ref().and_then(|process| {
            // Without a place for it, the next tick sees its end.
            let key = sources
                .add(process, "the daemon of MPS", Source::Mps)
                .ok()?;
            Some((process.pid(), key))
        });
    }

    /// The programs of a job were told, or will be, to be clients.
    pub(super) fn add_job(&mut self, job: JobId) {
        self.jobs.insert(job, BTreeMap::new());
    }

    /// A job has its cards: records the amounts that its programs are told.
    fn place(&mut self, job: JobId, parts: &[Holding]) {
        if let Some(told) = self.jobs.get_mut(&job) {
            *told = parts
                .iter()
                .map(|part| (part.card, part.limit.memory))
                .collect();
        }
    }

    pub(super) fn remove_job(&mut self, job: JobId) {
        self.jobs.remove(&job);
    }

    /// A process without a past is there.
    pub(super) fn meet(&mut self, pid: Pid) {
        let serving = self.daemon.serving();
        let client = serving.map_or(MpsClient::OfNone, MpsClient::Of);
        let user = peer::effective_user(pid);
        self.met.entry(pid).or_insert((client, user));
    }

    pub(super) fn forget(&mut self, pid: Pid) {
        self.met.remove(&pid);
    }

    /// State of a job under MPS; nothing for a job that began without MPS.
    pub(super) fn standing(&self, job: &JobView<'_>) -> Option<MpsStanding> {
        let processes = job.pids.iter().map(|pid| {
            let client = self.met.get(pid);
            client.copied().unwrap_or((MpsClient::OfBefore, None))
        });
        let is_its = self.jobs.contains_key(&job.id);
        is_its.then(|| MpsStanding::of(self.daemon.serving(), self.served, processes))
    }

    /// The message about MPS to a job that has its cards.
    pub(super) fn placed(&self, job: &JobView<'_>) -> Option<PlacedMps> {
        self.jobs.contains_key(&job.id).then(|| PlacedMps {
            pipe: self.control.pipe().display().to_string(),
            compute_limit_milli: job.ask.compute.limit().get(),
        })
    }

    /// Is it the daemon, or a server that it has started?
    pub(super) fn is_its(&self, pid: Pid) -> bool {
        let daemon = self.process.as_ref().map(DaemonProcess::pid);
        daemon.is_some_and(|daemon| {
            let is_daemon = |parent| (parent == daemon).then_some(());
            pid == daemon || peer::nearest_parent(pid, is_daemon) == Some(Some(()))
        })
    }

    /// State of the daemon, for people.
    pub(super) fn row(&self) -> MpsRow {
        let now = now_ms();
        let (state, since, reason, again_at) = match self.daemon.state() {
            MpsState::Starting { since, after } => ("starting", since, after.clone(), None),
            MpsState::Serving { since, .. } => ("serving", since, None, None),
            MpsState::Gone {
                since,
                why,
                again_at,
            } => ("gone", since, Some(why.clone()), Some(again_at)),
        };
        MpsRow {
            state: state.to_owned(),
            for_ms: now.saturating_sub(since.ms()),
            reason,
            again_in_ms: again_at.map(|at| at.ms().saturating_sub(now)),
            pid: self.process.as_ref().map(|process| process.pid().0),
            pipe: self.control.pipe().display().to_string(),
        }
    }

    /// Ends the daemon. Its folders stay while jobs exist: containers have them mounted.
    fn end(self, leaves_jobs: bool) {
        if let Some(process) = self.process {
            self.control.quit(process);
        }
        if !leaves_jobs {
            self.control.remove_folders();
        }
    }
}

impl Arbiter {
    /// Looks at the MPS daemon, if there is one.
    pub(super) fn tend_mps(&mut self) {
        if let Some(mps) = &mut self.mps {
            mps.step(Time::from_ms(now_ms()));
            mps.watch(&mut self.sources);
            mps.look_at_server();
            let is_serving = mps.daemon.serving().is_some();
            self.turns.set_beside_mps(is_serving);
        }
    }

    /// Adds a job whose programs were told of MPS, or will be.
    pub(super) fn enter_mps(&mut self, job: JobId, is_told: bool) {
        if let Some(mps) = self.mps.as_mut().filter(|_| is_told) {
            mps.add_job(job);
        }
    }

    /// A job has its cards. If its programs are told of MPS, our library tells them its limit of
    /// compute time too, which a variable of theirs could lift.
    pub(super) fn place_in_mps(&mut self, job: JobId, parts: &[Holding]) {
        let Some(mps) = &mut self.mps else {
            return;
        };
        mps.place(job, parts);
        let placed = self.machine.job(job).and_then(|job| mps.placed(&job));
        let limit = placed.and_then(|placed| Milli::new(placed.compute_limit_milli));
        if let Some(pages) = self.jobs.pages_mut(job) {
            pages.mps_percent = limit.map(mps_percent);
        }
    }

    /// Ends the MPS daemon, if there is one.
    pub(super) fn end_mps(&mut self, leaves_jobs: bool) {
        if let Some(mps) = self.mps.take() {
            mps.end(leaves_jobs);
        }
    }

    /// Reason against a limit of memory: the job's programs were told less when they began.
    pub(super) fn mps_keeps_memory(&self, job: JobId, memory: Amount) -> Option<String> {
        let told = self.mps.as_ref()?.jobs.get(&job)?;
        let (card, told) = told
            .iter()
            .find(|(card, told)| self.machine.amount_on(memory, **card) > **told)?;
        let index = self.machine.inventory().gpus()[*card].index;
        Some(format!(
            "job {job} began under MPS with {told} of GPU {index}, and MPS gives its programs no \
             more; start it again for more"
        ))
    }

    /// Reason against a compute time: the job's programs were told another limit.
    pub(super) fn mps_keeps_compute(&self, job: JobId, compute: ComputeRange) -> Option<String> {
        let told = self.mps.as_ref()?.jobs.get(&job)?;
        let limit: Milli = self.machine.job(job)?.ask.compute.limit();
        (!told.is_empty() && compute.limit() != limit).then(|| {
            format!(
                "job {job} began under MPS with at most {limit} of compute time, and MPS holds its \
                 programs to that; its promise can change (`--compute 10%..{limit}`), for another \
                 limit start it again",
            )
        })
    }

    /// Checks whether a process outside any job belongs to MPS.
    pub(super) fn is_of_mps(&self, pid: Pid) -> bool {
        self.mps.as_ref().is_some_and(|mps| mps.is_its(pid))
    }
}
