//! What `sublet-share` decided, done: pages written, processes welcomed, people told.

use rustix::process::Signal;
use sublet_abi::message::{RefusedCode, Welcome};
use sublet_abi::{Reply as Answer, SlotIndex};
use sublet_model::MiB;
use sublet_share::{Action, Event, Holding, JobId, Pid, Refusal};
use tracing::{debug, info, warn};

use super::guests::Stage;
use super::snapshot::mib;
use super::{Arbiter, Process, Root, Source, now_ms};
use crate::admin::{Placed, PlacedGpu, Reply};
use crate::peer;
use crate::poller::Key;
use crate::socket;
use crate::tenant::{Tenant, TenantCard};

impl Arbiter {
    pub(super) fn perform(&mut self, action: Action) {
        match action {
            Action::Place { job, parts } => self.place(job, &parts),
            Action::Wait {
                job,
                position,
                reason,
            } => {
                let (id, reason) = (job.0, reason.to_string());
                self.tell_job(
                    job,
                    &Reply::Waiting {
                        id,
                        position,
                        reason,
                    },
                );
            }
            Action::Refuse { job, reason } => {
                self.counters.refused += 1;
                info!(%job, %reason, "job refused");
                self.tell_job(job, &refused(&reason));
                self.forget_job(job);
            }
            Action::Limit { job, parts } => self.limit(job, &parts),
            Action::KeepLimit { reason, .. } => {
                if let Some(key) = self.asker {
                    self.tell(key, &refused(&reason));
                }
            }
            Action::Welcome {
                job,
                pid,
                slot,
                again,
            } => self.welcome(job, pid, slot, again),
            Action::SendAway { reason, .. } => {
                if let Some(key) = self.asker {
                    self.send_away(key, code_of(&reason), &reason.to_string());
                }
            }
            Action::Reclaim { job, pid, slot } => {
                self.counters.reclaimed += 1;
                debug!(%job, %pid, slot, "took back what a process held");
                if let (Some(tenant), Some(slot)) =
                    (self.tenants.get(&job), SlotIndex::of_process(slot))
                {
                    tenant.reclaim(slot);
                }
            }
            Action::Overhead { job, card, bytes } => {
                if let Some(tenant) = self.tenants.get(&job) {
                    tenant.set_overhead(card, bytes);
                }
            }
            Action::Stranger(pid) => {
                self.counters.unmanaged += 1;
                warn!(%pid, name = peer::name(pid), "a process uses a GPU without a job");
            }
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

    fn place(&mut self, job: JobId, parts: &[Holding]) {
        let cards: Option<Vec<TenantCard>> = parts
            .iter()
            .map(|part| {
                let account = self.machine.card(part.card);
                Some(TenantCard {
                    card: part.card,
                    uuid: self.uuid_of(part.card)?,
                    capacity: account.capacity,
                    limit: part.limit.memory,
                    figures: self.figures[part.card],
                })
            })
            .collect();
        let Some(tenant) = self.tenants.get_mut(&job) else {
            return;
        };
        // Its pages are made when its first process says what it speaks.
        if let Some(cards) = cards {
            tenant.cards = cards;
        } else {
            let reason = "one of its GPUs has no UUID that the driver would know";
            warn!(%job, reason, "a job cannot have its cards");
            let refused = Reply::Refused {
                reason: reason.to_owned(),
                is_final: false,
                hint: None,
            };
            self.tell_job(job, &refused);
            self.events.push_back(Event::Left(job));
            return;
        }
        self.counters.placed += 1;
        info!(%job, cards = ?parts.iter().map(|part| part.card).collect::<Vec<_>>(), "job placed");
        let placed = self.placed(job, parts);
        self.tell_job(job, &Reply::Placed(placed));
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
        let pinned_limit = self.tenants.get(&job).and_then(Tenant::pinned_limit);
        Placed {
            id: job.0,
            gpus: gpus.collect(),
            pinned_limit_mib: pinned_limit.map(MiB::get),
            dir: self.options.folder.path().display().to_string(),
        }
    }

    fn limit(&mut self, job: JobId, parts: &[Holding]) {
        if let Some(tenant) = self.tenants.get_mut(&job) {
            tenant.set_limits(parts);
        }
        self.tell_limits(job, parts);
    }

    /// Tells the job, and whoever asked for it, what its limits are now.
    pub(super) fn tell_limits(&mut self, job: JobId, parts: &[Holding]) {
        info!(%job, "limits changed");
        let news = Reply::Limited(self.placed(job, parts));
        let line = self.line_of(job);
        let asker = self.asker.filter(|asker| Some(*asker) != line);
        for key in line.into_iter().chain(asker) {
            self.tell(key, &news);
        }
    }

    /// Hands a process its slot and both pages.
    fn welcome(&mut self, job: JobId, pid: Pid, slot: u32, again: bool) {
        let (Some(key), Some(slot)) = (self.asker, SlotIndex::of_process(slot)) else {
            return; // It was taken over with its ledger, and has not come back yet.
        };
        let ready = self.see_to_pages(job, key).and_then(|()| {
            let why = "the arbiter cannot look after one more process";
            self.look_after(key, pid).then_some(()).ok_or(why.into())
        });
        if let Err(why) = ready {
            self.send_away(key, RefusedCode::Full, &why);
            self.events.push_back(Event::Exited(pid));
            return;
        }
        let (Some(tenant), Some(guest)) = (self.tenants.get_mut(&job), self.guests.get_mut(&key))
        else {
            return;
        };
        let generation = if again {
            tenant.generation(slot)
        } else {
            tenant.hand_out(slot, pid)
        };
        if let Some(held) = guest.claims.take() {
            tenant.charge_claims(slot, &held);
        }
        let message = Answer::Welcome(Welcome {
            version: tenant.version().unwrap_or(guest.version),
            mode: tenant.mode(),
            slot,
            generation,
            tenant: tenant.id(),
        });
        let pages = tenant.control().zip(tenant.ledger());
        let sent = pages.is_some_and(|(control, ledger)| {
            let both = [control.memory(), ledger.memory()];
            socket::send(&guest.socket, &message.encode(), &both).is_ok()
        });
        guest.stage = Stage::Welcome;
        debug!(%job, %pid, slot = slot.get(), again, sent, "process welcomed");
        if sent {
            self.counters.joined += 1;
        } else {
            // It is gone, which its pidfd will say, or it does not read.
            self.drop_guest(key);
        }
    }

    /// The job's first process says in which version its pages are.
    fn see_to_pages(&mut self, job: JobId, key: Key) -> Result<(), String> {
        let version = self.guests.get(&key).map(|guest| guest.version);
        match (self.tenants.get_mut(&job), version) {
            (Some(tenant), Some(version)) if !tenant.has_pages() => tenant
                .open(self.epoch, now_ms(), version)
                .map_err(|error| error.to_string()),
            _ => Ok(()),
        }
    }

    /// From now on the process's end is noticed.
    fn look_after(&mut self, key: Key, pid: Pid) -> bool {
        if let Some(process) = self.processes.get_mut(&pid) {
            process.guests.insert(key);
            return true;
        }
        let pidfd = self
            .guests
            .get_mut(&key)
            .and_then(|guest| guest.pidfd.take());
        let Some(pidfd) = pidfd.or_else(|| peer::open(pid).ok()) else {
            return false;
        };
        let Ok(process_key) = self.poller.add(&pidfd, "a process") else {
            return false;
        };
        self.sources.insert(process_key, Source::Process(pid));
        let process = Process {
            pidfd,
            image: peer::stat(pid).and_then(|stat| stat.image),
            key: process_key,
            guests: [key].into(),
        };
        self.processes.insert(pid, process);
        true
    }

    /// Ends a job that has more memory than it may have.
    fn end_processes(&mut self, job: JobId, signal: Signal) {
        let processes = self.machine.job(job).map(|view| view.pids);
        let processes = processes.unwrap_or_default();
        warn!(%job, ?signal, n = processes.len(), "ending a job that exceeds its limit");
        self.counters.evicted += processes.len() as u64 * u64::from(signal == Signal::TERM);
        for pid in processes {
            if let Some(process) = self.processes.get(&pid) {
                // One that is gone needs no signal.
                let _ = rustix::process::pidfd_send_signal(&process.pidfd, signal);
            }
        }
    }

    fn evict(&mut self, pid: Pid) {
        if pid.0 <= 1 || pid.0 == std::process::id() {
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
        if let Some(Root::Run { pidfd, key, .. }) = self.roots.get(&job)
            && self.sources.remove(key).is_some()
        {
            self.poller.remove(pidfd);
        }
        self.apply(Event::Left(job));
        self.take_use();
    }

    /// Nothing of the job is left.
    fn forget_job(&mut self, job: JobId) {
        self.tenants.remove(&job);
        match self.roots.remove(&job) {
            Some(Root::Run {
                pidfd, key, line, ..
            }) => {
                self.sources.remove(&key);
                self.poller.remove(&pidfd);
                if let Some(line) = line {
                    self.close_admin(line);
                }
            }
            Some(Root::Container {
                listener,
                key,
                socket,
            }) => {
                self.sources.remove(&key);
                self.poller.remove(&listener);
                let _ = std::fs::remove_file(socket);
            }
            None => {}
        }
    }

    fn line_of(&self, job: JobId) -> Option<Key> {
        match self.roots.get(&job) {
            Some(Root::Run { line, .. }) => *line,
            _ => None,
        }
    }

    fn tell_job(&mut self, job: JobId, news: &Reply) {
        if let Some(key) = self.line_of(job) {
            self.tell(key, news);
        }
    }
}

/// A refusal as it is told.
pub(super) fn refused(reason: &Refusal) -> Reply {
    Reply::Refused {
        reason: reason.to_string(),
        is_final: reason.is_final(),
        hint: reason.way_out().map(str::to_owned),
    }
}

fn code_of(reason: &Refusal) -> RefusedCode {
    match reason {
        Refusal::NoSlot { .. } => RefusedCode::Full,
        Refusal::Gone(_) => RefusedCode::Closing,
        Refusal::SlotTaken(_) => RefusedCode::Claims,
        _ => RefusedCode::Stranger,
    }
}
