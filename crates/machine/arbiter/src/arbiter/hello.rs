//! Handles a process's hello: finds the owner, checks whether the process can be served, and
//! whether it is new or comes back. Also handles its end.

use std::os::fd::OwnedFd;

use sublet_abi::message::RefusedCode;
use sublet_abi::{Hello, OLDEST, VERSION, agree};
use sublet_share::{Ancestry, Event, JobId, Pid};

use super::Arbiter;
use super::process_connections::Progress;
use crate::poller::Key;

impl Arbiter {
    /// Finds the owner of the process that says hello.
    pub(super) fn greet(&mut self, key: Key, hello: Hello, descriptors: Vec<OwnedFd>) {
        let Some(version) = agree(hello.min_version, hello.max_version) else {
            let why = format!(
                "the library speaks versions {} to {}, the arbiter {OLDEST} to {VERSION}: install \
                 both from one release",
                hello.min_version, hello.max_version
            );
            return self.send_away(key, RefusedCode::Version, &why);
        };
        let Some(connection) = self.connections.get_mut(key) else {
            return;
        };
        connection.version = version;
        let pid = connection.pid;
        let job = match connection.container {
            Some(job) => Some(job),
            None => match self.ancestry(pid) {
                Ancestry::Job(job) => Some(job),
                Ancestry::NoJob => None,
                Ancestry::Unseen => {
                    let why =
                        format!("the arbiter cannot see whose child process {pid} is; try again");
                    return self.send_away(key, RefusedCode::Full, &why);
                }
            },
        };
        if self.may_change_soon(job, &hello) {
            if let Some(connection) = self.connections.get_mut(key) {
                connection.progress = Progress::Early(Box::new(hello), descriptors);
            }
            return;
        }
        match job {
            None => {
                let why = format!(
                    "process {pid} was not started below a `sublet run`, and has no container's socket"
                );
                self.send_away(key, RefusedCode::Stranger, &why);
            }
            Some(job) => match hello.held {
                None => self.join(key, job, pid),
                Some(held) => self.come_back(key, (job, pid), held, descriptors),
            },
        }
    }

    /// Returns true if the answer to a hello may soon be another one: the arbiter has just
    /// restarted, and the process's job, or the job with this ledger, may be about to come back.
    fn may_change_soon(&self, job: Option<JobId>, hello: &Hello) -> bool {
        let is_awaited = |job| {
            let pages = self.jobs.pages(job);
            hello.held.is_none() && pages.is_some_and(|pages| pages.expects_ledger)
        };
        !self.lifetime.is_settled() && job.is_none_or(is_awaited)
    }

    /// A process without a past.
    fn join(&mut self, key: Key, job: JobId, pid: Pid) {
        let is_closed = |key| self.connections.is_closed(key);
        if self.processes.is_another_program(pid, is_closed) {
            // The memory of the program before went with it; nobody writes to its slot.
            self.forget_process(pid);
        }
        self.apply_for(Some(key), Event::Joined { job, pid });
        if self.machine.process(pid).is_some()
            && let Some(mps) = &mut self.mps
        {
            mps.meet(pid);
        }
    }

    /// Looks again at the processes whose hello came too early.
    pub(super) fn greet_again(&mut self) {
        for (key, hello, descriptors) in self.connections.take_early() {
            self.greet(key, hello, descriptors);
        }
    }

    /// Its pidfd says that it is gone.
    pub(super) fn process_is_gone(&mut self, pid: Pid) {
        let began = std::time::Instant::now();
        self.forget_process(pid);
        for key in self.connections.of(pid) {
            self.drop_process_connection(key);
        }
        let took_us = u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX);
        self.counters.reclaim_us_max = self.counters.reclaim_us_max.max(took_us);
    }

    /// The process has its slot no longer.
    pub(super) fn forget_process(&mut self, pid: Pid) {
        self.processes.forget(&mut self.sources, pid);
        if let Some(mps) = &mut self.mps {
            mps.forget(pid);
        }
        self.apply(Event::Exited(pid));
        // Its job may be gone with it, and a waiting one may have got its place.
        self.take_use();
    }
}
