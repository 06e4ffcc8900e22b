//! Requests of people's commands on `admin.sock`, and their effects: one line in, lines out, one
//! connection as a job's life line. The folder keeps other users out. This module refuses
//! requests that a program inside a job may not make, by the rules of `sublet-share`.

use sublet_model::parse_size;
use sublet_share::{Ancestry, Event, JobId, JobRefusal, Pid, UserId};

use super::Arbiter;
use super::admin_connections::{Line, Watch};
use super::identity::BY_ROOT;
use super::job_request::{Objection, ask_of, objection};
use super::jobs::Root;
use super::sources::Source;
use crate::admin::{PROTOCOL, Reply, Request, Submit, parse_amount, parse_compute};
use crate::job_pages::JobPages;
use crate::peer;
use crate::poller::Key;

/// Maximum number of requests of one connection read in one turn.
const REQUESTS_A_TURN: usize = 4;

/// In practice the numbers never run out.
pub(super) const NO_NUMBER_LEFT: &str =
    "every number that a job can have is used up; the arbiter needs a folder of its own anew";

/// Remedy where MPS holds programs to what they were told at their start.
const BY_MPS: &str = "end the job, and start it again with other limits";

/// Remedy where the system lets the arbiter watch no more.
const FULL: &str = "try again when one of the jobs has ended";

/// Maximum number of jobs of one user that may wait: each event looks through the queue, and
/// each answer to `top` says for each of them what it waits for.
const WAITING_MAX: usize = 512;

/// The shortest interval of `watch`.
const WATCH_MS_MIN: u64 = 100;

impl Arbiter {
    pub(super) fn serve_admin(&mut self, key: Key) {
        let Some(connection) = self.admins.get_mut(key) else {
            return;
        };
        connection.read();
        for _ in 0..REQUESTS_A_TURN {
            let Some(connection) = self.admins.get_mut(key) else {
                return;
            };
            if connection.has_request() && !self.admins.may_take(key) {
                self.sources.pass_over(key);
                break;
            }
            let Some(connection) = self.admins.get_mut(key) else {
                return;
            };
            match connection.take_line() {
                Line::None => break,
                Line::TooLong => {
                    self.answer_garbage(key, "a request has at most 64 KiB");
                    break;
                }
                Line::Whole(line) => match serde_json::from_slice(&line) {
                    Ok(request) => self.take_request(key, request),
                    Err(error) => self.answer_garbage(key, &error.to_string()),
                },
            }
        }
        let Some(connection) = self.admins.get_mut(key) else {
            return;
        };
        if connection.has_request() {
            self.sources.serve_again(key);
        }
        self.admins.flush(&self.sources, key);
        if self.admins.get_mut(key).is_some_and(|one| one.is_done()) {
            self.drop_admin(key);
        }
    }

    fn answer_garbage(&mut self, key: Key, why: &str) {
        self.counters.garbage += 1;
        let reason = format!("this is no request: {why}");
        self.tell(key, &Reply::Error { reason });
        self.close_admin(key);
    }

    fn take_request(&mut self, key: Key, request: Request) {
        let Some(connection) = self.admins.get_mut(key) else {
            return;
        };
        connection.has_asked = true;
        let (pid, user) = (connection.pid, connection.user);
        if let Some(reply) = self.read(&request) {
            return self.tell(key, &reply);
        }
        match request {
            Request::Watch { interval_ms } => {
                let interval_ms = interval_ms.max(WATCH_MS_MIN);
                self.admins.set_watch(key, Watch::begun(interval_ms));
                if let Some(first) = self.read(&Request::List) {
                    self.tell(key, &first);
                }
            }
            // What follows changes something.
            _ => match self.machine.permits_change(pid, self.ancestry(pid)) {
                Err(reason) => self.tell(key, &refused(&reason)),
                Ok(()) => match self.objection_to(user, &request) {
                    Some((why, hint)) => match request {
                        Request::Submit(_) | Request::Resume { .. } => {
                            self.refuse_line(key, &why, hint);
                        }
                        _ => self.refuse(key, &why, hint),
                    },
                    None => self.take_change(key, user, request),
                },
            },
        }
    }

    /// The answer to a question that changes nothing and is asked once; nothing for other requests.
    pub(super) fn read(&mut self, request: &Request) -> Option<Reply> {
        match *request {
            Request::Hello => Some(Reply::Hello {
                protocol: PROTOCOL,
                version: env!("CARGO_PKG_VERSION").to_owned(),
                pid: std::process::id(),
                epoch: self.identity.epoch(),
            }),
            Request::List => {
                self.take_use();
                Some(Reply::Snapshot(Box::new(self.snapshot())))
            }
            Request::History { id } => Some(self.history(JobId(id))),
            _ => None,
        }
    }

    fn objection_to(&self, user: UserId, request: &Request) -> Option<Objection> {
        let owner = |job| Some(self.machine.job(job)?.ask.user);
        objection(user, request, owner, self.lifetime.is_settled())
    }

    fn take_change(&mut self, key: Key, user: UserId, request: Request) {
        match request {
            Request::Hello | Request::List | Request::Watch { .. } | Request::History { .. } => {}
            Request::Submit(submit) => self.submit(key, user, &submit),
            Request::Resume { id } => self.resume(key, user, JobId(id)),
            Request::Limit { id, memory } => match parse_amount(&memory) {
                Err(error) => self.refuse(key, &error.to_string(), None),
                Ok(memory) => {
                    let job = JobId(id);
                    if let Some(why) = self.mps_keeps_memory(job, memory) {
                        return self.refuse(key, &why, Some(BY_MPS));
                    }
                    self.apply_for(Some(key), Event::LimitAsked { job, memory });
                    // Read after the limit holds: now it is known whether the job is over.
                    self.take_use();
                }
            },
            Request::LimitPinned { id, memory } => match parse_size(&memory) {
                Err(error) => self.refuse(key, &error.to_string(), None),
                Ok(memory) => {
                    let job = JobId(id);
                    self.apply_for(Some(key), Event::PinnedLimitAsked { job, memory });
                }
            },
            Request::LimitCompute { id, compute } => match parse_compute(&compute) {
                Err(error) => self.refuse(key, &error.to_string(), None),
                Ok(compute) => {
                    let job = JobId(id);
                    if let Some(why) = self.mps_keeps_compute(job, compute) {
                        return self.refuse(key, &why, Some(BY_MPS));
                    }
                    self.apply_for(Some(key), Event::ComputeAsked { job, compute });
                }
            },
            Request::Shutdown if self.machine.is_idle() => {
                self.tell(key, &Reply::Ending);
                self.lifetime.stop();
            }
            Request::Shutdown => {
                let n = self.machine.jobs().count();
                self.refuse(key, &format!("{n} jobs are running or waiting"), None);
            }
        }
    }

    /// The job that a process belongs to by its parents.
    pub(super) fn ancestry(&self, pid: Pid) -> Ancestry {
        match peer::nearest_parent(pid, |parent| self.jobs.rooted_at(parent)) {
            None => Ancestry::Unseen,
            Some(job) => job.map_or(Ancestry::NoJob, Ancestry::Job),
        }
    }

    /// Refuses for good. `hint` is the remedy, if it is not to ask for less.
    fn refuse(&mut self, key: Key, reason: &str, hint: Option<&'static str>) {
        let refused = Reply::Refused {
            reason: reason.to_owned(),
            is_final: true,
            hint: hint.map(str::to_owned),
        };
        self.tell(key, &refused);
    }

    fn submit(&mut self, key: Key, user: UserId, submit: &Submit) {
        if let Some(why) = self.identity.outranked() {
            return self.refuse_line(key, &why, Some(BY_ROOT));
        }
        let ask = match ask_of(submit, user, self.machine.inventory()) {
            Ok(ask) => ask,
            Err(reason) => return self.refuse_line(key, &reason, None),
        };
        if self.machine.waiting_of(user) >= WAITING_MAX {
            let why = format!("{WAITING_MAX} jobs of user {user} wait already");
            let hint = "submit more when some of them have started";
            return self.refuse_line(key, &why, Some(hint));
        }
        let Some(job) = self.identity.next_job() else {
            return self.refuse_line(key, NO_NUMBER_LEFT, None);
        };
        let pages = JobPages::new(job.0, submit.mode, false);
        if self.add_root(key, job, pages) {
            self.enter_mps(job, true);
            self.apply(Event::Submitted { job, ask });
        }
    }

    /// Makes the connection a job's life line, and its process the job's root.
    pub(super) fn add_root(&mut self, key: Key, job: JobId, pages: JobPages) -> bool {
        let stamp = self.stamp_of(key);
        let Some(connection) = self.admins.get_mut(key) else {
            return false;
        };
        let Some(pidfd) = connection.pidfd.take() else {
            self.refuse_line(key, "a connection is one job's life line", None);
            return false;
        };
        let Some(stamp) = stamp else {
            self.refuse_line(key, "the arbiter cannot see the process that asks", None);
            return false;
        };
        let source = Source::Root(job);
        let Ok(root_key) = self.sources.add(&pidfd, "a job's root", source) else {
            self.refuse_line(
                key,
                "the arbiter cannot look after one more job",
                Some(FULL),
            );
            return false;
        };
        let root = Root::Run {
            pid: connection.pid,
            stamp,
            pidfd,
            key: root_key,
            line: Some(key),
        };
        if let Err(root) = self.jobs.insert(job, pages, root) {
            root.unwatch_process(&mut self.sources);
            self.refuse_line(key, &format!("there is a job {job} already"), None);
            return false;
        }
        self.admins.set_job(key, job);
        true
    }

    pub(super) fn refuse_line(&mut self, key: Key, reason: &str, hint: Option<&'static str>) {
        self.counters.refused += 1;
        self.refuse(key, reason, hint);
        self.close_admin(key);
    }

    pub(super) fn send_watches(&mut self, now: u64) {
        let due = self.admins.take_due_watches(now);
        if due.is_empty() {
            return;
        }
        // The states are of the last look at the ledgers, the numbers of this one.
        self.take_use();
        let snapshot = Reply::Snapshot(Box::new(self.snapshot()));
        for key in due {
            self.tell(key, &snapshot);
        }
    }

    pub(super) fn tell(&mut self, key: Key, news: &Reply) {
        self.admins.tell(&mut self.sources, key, news);
    }

    pub(super) fn close_admin(&mut self, key: Key) {
        self.admins.close(&mut self.sources, key);
    }
}

/// A refusal as it is told.
pub(super) fn refused(reason: &JobRefusal) -> Reply {
    Reply::Refused {
        reason: reason.to_string(),
        is_final: reason.is_final(),
        hint: reason.hint().map(str::to_owned),
    }
}
