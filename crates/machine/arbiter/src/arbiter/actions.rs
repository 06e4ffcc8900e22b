//! Carries out the decisions of `sublet-share`: writes pages, welcomes processes, tells people.
//! It decides nothing.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;

use rustix::process::Signal;
use sublet_abi::message::{RefusedCode, Welcome};
use sublet_abi::{ArbiterMessage, SlotIndex};
use sublet_model::MiB;
use sublet_share::{Action, Event, Holding, JobId, JobRefusal, Pid};
use tracing::{debug, info, warn};

use super::admin_requests::refused;
use super::{Arbiter, now_ms};
use crate::admin::{Placed, PlacedGpu, Reply};
use crate::job_pages::JobCard;
use crate::peer;
use crate::poller::Key;
use crate::rows::mib;
use crate::socket;

impl Arbiter {
    /// Carries out one action. `asker` is the connection that asked for the change behind it. New
    /// events are added to `events`.
    pub(super) fn perform(
        &mut self,
        action: Action,
        asker: Option<Key>,
        events: &mut VecDeque<Event>,
    ) {
        match action {
            Action::Place { job, parts } => events.extend(self.place(job, &parts)),
            Action::Wait {
                job,
                position,
                reason,
            } => {
                let waiting = Reply::Waiting {
                    id: job.0,
                    position,
                    reason: reason.to_string(),
                };
                self.tell_job(job, &waiting);
            }
            Action::Refuse { job, reason } => self.refuse_job(job, &reason),
            Action::Limit { job, parts } => self.limit(job, &parts, asker),
            Action::LimitPinned { job, memory, parts } => {
                if let Some(pages) = self.jobs.pages(job) {
                    pages.set_pinned_limit(memory);
                }
                self.tell_limits(job, &parts, asker);
            }
            Action::LimitCompute { job, parts } => {
                self.enter_turns(job, &parts);
                self.tell_limits(job, &parts, asker);
            }
            Action::KeepLimit { reason, .. } => {
                if let Some(key) = asker {
                    self.tell(key, &refused(&reason));
                }
            }
            Action::Welcome {
                job,
                pid,
                slot,
                again,
            } => {
                if let Some(slot) = SlotIndex::of_process(slot) {
                    self.turns.add_process(job, pid, slot);
                }
                // Without one it was taken over with its ledger, and has not come back yet.
                if let (Some(key), Some(slot)) = (asker, SlotIndex::of_process(slot)) {
                    events.extend(self.welcome(key, (job, pid), slot, again));
                }
            }
            Action::SendAway { reason, .. } => {
                if let Some(key) = asker {
                    self.send_away(key, code_of(&reason), &reason.to_string());
                }
            }
            Action::Reclaim { job, pid, slot } => self.reclaim(job, pid, slot),
            Action::Overhead { job, card, bytes } => {
                if let Some(pages) = self.jobs.pages(job) {
                    pages.set_overhead(card, bytes);
                }
            }
            Action::Stranger(pid) => self.report(pid),
            Action::Evict(pid) => self.evict(pid),
            Action::Terminate(job) => self.end_processes(job, Signal::TERM),
            Action::Kill(job) => self.end_processes(job, Signal::KILL),
            Action::StrangerGone(pid) => info!(%pid, "an unmanaged process is gone"),
            Action::End(job) => {
                self.counters.ended += 1;
                info!(%job, "job ended");
                self.forget_job(job);
            }
        }
    }

    fn refuse_job(&mut self, job: JobId, reason: &JobRefusal) {
        self.counters.refused += 1;
        info!(%job, %reason, "job refused");
        self.tell_job(job, &refused(reason));
        self.forget_job(job);
    }

    /// Gives a job its cards. Its pages are made when its first process comes.
    fn place(&mut self, job: JobId, parts: &[Holding]) -> Option<Event> {
        let cards: Option<Vec<JobCard>> = parts
            .iter()
            .map(|part| {
                let account = self.machine.card(part.card);
                Some(JobCard {
                    card: part.card,
                    uuid: self.uuid_of(part.card)?,
                    capacity: account.capacity,
                    limit: part.limit.memory,
                    figures: self.readings.figures(part.card),
                })
            })
            .collect();
        let pages = self.jobs.pages_mut(job)?;
        if let Some(cards) = cards {
            pages.cards = cards;
        } else {
            let reason = "one of its GPUs has no UUID that the driver would know";
            warn!(%job, reason, "a job cannot have its cards");
            let refused = Reply::Refused {
                reason: reason.to_owned(),
                is_final: false,
                hint: None,
            };
            self.tell_job(job, &refused);
            return Some(Event::Left(job));
        }
        self.place_in_mps(job, parts);
        self.counters.placed += 1;
        info!(%job, cards = ?parts.iter().map(|part| part.card).collect::<Vec<_>>(), "job placed");
        self.enter_turns(job, parts);
        self.record_job(job);
        self.open_door(job);
        let placed = self.placed(job, parts);
        self.tell_job(job, &Reply::Placed(placed));
        None
    }

    fn placed(&self, job: JobId, parts: &[Holding]) -> Placed {
        let gpus = self.machine.inventory().gpus();
        let gpus = parts.iter().map(|part| PlacedGpu {
            index: gpus[part.card].index.0,
            uuid: gpus[part.card]
                .uuid
                .as_ref()
                .map(ToString::to_string)
                .unwrap_or_default(),
            limit_mib: part.limit.memory.get(),
            context_mib: mib(self.machine.card(part.card).context),
        });
        let asked = self.machine.job(job).map(|job| job.ask);
        let pinned_limit = asked.and_then(|ask| ask.pinned);
        Placed {
            id: job.0,
            gpus: gpus.collect(),
            pinned_limit_mib: pinned_limit.map(MiB::get),
            mps: self.mps.as_ref().and_then(|mps| {
                let job = self.machine.job(job)?;
                mps.placed(&job)
            }),
            compute: asked.map(|ask| ask.compute.to_string()),
            dir: self.folder_of(asked.and_then(|ask| ask.user)),
        }
    }

    fn limit(&mut self, job: JobId, parts: &[Holding], asker: Option<Key>) {
        if let Some(pages) = self.jobs.pages_mut(job) {
            pages.set_limits(parts);
        }
        self.enter_turns(job, parts);
        self.tell_limits(job, parts, asker);
    }

    /// Tells the job, and the connection that asked for the change, the new limits.
    fn tell_limits(&mut self, job: JobId, parts: &[Holding], asker: Option<Key>) {
        info!(%job, "limits changed");
        self.record_job(job);
        let news = Reply::Limited(self.placed(job, parts));
        let line = self.jobs.line(job);
        let asker = asker.filter(|asker| Some(*asker) != line);
        for key in line.into_iter().chain(asker) {
            self.tell(key, &news);
        }
    }

    /// Hands a process its slot and both pages. Returns what happened if that failed.
    fn welcome(
        &mut self,
        key: Key,
        (job, pid): (JobId, Pid),
        slot: SlotIndex,
        again: bool,
    ) -> Option<Event> {
        let ready = self.see_to_pages(job).and_then(|()| {
            let why = "the arbiter cannot look after one more process";
            self.look_after(key, pid).then_some(()).ok_or(why.into())
        });
        if let Err(why) = ready {
            self.send_away(key, RefusedCode::Full, &why);
            return Some(Event::Exited(pid));
        }
        let (pages, connection) = (self.jobs.pages_mut(job), self.connections.get_mut(key));
        let (Some(pages), Some(connection)) = (pages, connection) else {
            return None;
        };
        let generation = if again {
            pages.generation(slot)
        } else {
            pages.hand_out(slot, pid)
        };
        if let Some(held) = connection.claims.take() {
            pages.charge_claims(slot, &held);
        }
        let message = ArbiterMessage::Welcome(Welcome {
            version: connection.version,
            mode: pages.mode(),
            slot,
            generation,
            tenant: pages.tenant(),
        });
        let both = pages.control().zip(pages.ledger());
        let sent = both.is_some_and(|(control, ledger)| {
            let descriptors = [control.memory(), ledger.memory()];
            socket::send(&connection.socket, &message.encode(), &descriptors).is_ok()
        });
        // It has nothing more to bring.
        connection.socket.refuse_descriptors();
        self.sources.let_in(key, &connection.socket);
        self.connections.welcome(key);
        debug!(%job, %pid, slot = slot.get(), again, sent, "process welcomed");
        if sent {
            self.counters.joined += 1;
        } else {
            // It is gone, which its pidfd will say, or it does not read.
            self.drop_process_connection(key);
        }
        None
    }

    /// Has the pages made for the job's first process.
    fn see_to_pages(&mut self, job: JobId) -> Result<(), String> {
        let Some(pages) = self.jobs.pages_mut(job).filter(|pages| !pages.are_made()) else {
            return Ok(());
        };
        let pinned = self.machine.job(job).and_then(|job| job.ask.pinned);
        let made = pages.make(self.identity.epoch(), now_ms(), pinned);
        made.map_err(|error| error.to_string())
    }

    /// From now on the process's end is noticed.
    fn look_after(&mut self, key: Key, pid: Pid) -> bool {
        if self.processes.add_connection(pid, key) {
            return true;
        }
        let connection = self.connections.get_mut(key);
        let own: Option<OwnedFd> = connection.and_then(|connection| connection.pidfd.take());
        let Some(pidfd) = own.or_else(|| peer::open(pid).ok()) else {
            return false;
        };
        self.processes.watch(&mut self.sources, pid, pidfd)
            && self.processes.add_connection(pid, key)
    }

    /// Takes back what a process's slot holds.
    fn reclaim(&mut self, job: JobId, pid: Pid, slot: u32) {
        self.counters.reclaimed += 1;
        self.turns.remove_process(job, pid);
        debug!(%job, %pid, slot, "took back what a process held");
        if let (Some(pages), Some(slot)) = (self.jobs.pages(job), SlotIndex::of_process(slot)) {
            pages.reclaim(slot);
        }
    }

    /// Ends a job that takes more than it may have.
    fn end_processes(&mut self, job: JobId, signal: Signal) {
        let processes = self.machine.job(job).map(|view| view.pids);
        let processes = processes.unwrap_or_default();
        warn!(%job, ?signal, n = processes.len(), "ending a job that takes more than it may have");
        self.counters.evicted += processes.len() as u64 * u64::from(signal == Signal::TERM);
        for pid in processes {
            self.processes.signal(pid, signal);
        }
    }

    /// A process uses a GPU without a job.
    fn report(&mut self, pid: Pid) {
        if self.is_of_mps(pid) {
            return;
        }
        self.counters.unmanaged += 1;
        warn!(%pid, name = peer::name(pid), "a process uses a GPU without a job");
    }

    fn evict(&mut self, pid: Pid) {
        if pid.0 <= 1 || pid.0 == std::process::id() || self.is_of_mps(pid) {
            return;
        }
        let ended = peer::open(pid)
            .and_then(|pidfd| Ok(rustix::process::pidfd_send_signal(&pidfd, Signal::KILL)?));
        match ended {
            Ok(()) => {
                self.counters.evicted += 1;
                warn!(%pid, "ended an unmanaged process");
            }
            Err(error) => warn!(%pid, %error, "cannot end an unmanaged process"),
        }
    }

    /// A job's root is gone: its life line was closed, or its process died.
    pub(super) fn root_is_gone(&mut self, job: JobId) {
        if let Some(root) = self.jobs.root(job) {
            root.unwatch_process(&mut self.sources);
        }
        self.apply(Event::Left(job));
        self.take_use();
    }

    /// Nothing of the job is left.
    fn forget_job(&mut self, job: JobId) {
        self.turns.remove(job);
        self.measures.forget(job);
        self.records.remove(job);
        if let Some(mps) = &mut self.mps {
            mps.remove_job(job);
        }
        let root = self.jobs.remove(job);
        if let Some(line) = root.and_then(|root| root.close(&mut self.sources)) {
            self.close_admin(line);
        }
    }

    /// Tells a waiting job that it gets nothing.
    pub(super) fn refuse_waiting(&mut self, job: JobId, reason: &str, hint: &str) {
        self.counters.refused += 1;
        let refused = Reply::Refused {
            reason: reason.to_owned(),
            is_final: true,
            hint: Some(hint.to_owned()),
        };
        self.tell_job(job, &refused);
    }

    fn tell_job(&mut self, job: JobId, news: &Reply) {
        if let Some(key) = self.jobs.line(job) {
            self.tell(key, news);
        }
    }
}

fn code_of(reason: &JobRefusal) -> RefusedCode {
    match reason {
        JobRefusal::NoSlot { .. } => RefusedCode::Full,
        JobRefusal::Gone(_) => RefusedCode::Closing,
        JobRefusal::SlotTaken(_) => RefusedCode::Claims,
        _ => RefusedCode::Stranger,
    }
}
