//! People's commands on `admin.sock`: lines in, lines out, one connection as a job's life
//! line. The folder keeps other users out; what a program inside a job may not ask is kept
//! from it here.

use sublet_model::MiB;
use sublet_share::{Event, JobId, Pid, Refusal};
use tracing::debug;

use super::asked::{ask_of, page_mode};
use super::connections::{AdminConnection, Line, REQUEST_MAX};
use super::perform::refused;
use super::{Arbiter, Root, Source, now_ms};
use crate::admin::{PROTOCOL, Reply, Request, Resume, Submit, parse_amount, parse_size};
use crate::peer;
use crate::poller::Key;
use crate::tenant::Tenant;

/// How much may wait to be read by a command before it is given up. A snapshot of a thousand
/// jobs is about half of it.
const UNREAD_MAX: usize = 1024 * 1024;

/// How many requests of one connection are looked at in one turn.
const REQUESTS_A_TURN: usize = 4;

/// The shortest interval of `watch`.
const WATCH_MS_MIN: u64 = 100;

impl Arbiter {
    pub(super) fn serve_admin(&mut self, key: Key) {
        let Some(connection) = self.admins.get_mut(&key) else {
            return;
        };
        connection.read();
        for _ in 0..REQUESTS_A_TURN {
            let Some(connection) = self.admins.get_mut(&key) else {
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
        let Some(connection) = self.admins.get_mut(&key) else {
            return;
        };
        if connection.input.contains(&b'\n') && !connection.closing {
            self.busy.insert(key);
        }
        self.flush(key);
        let gone = |connection: &AdminConnection| {
            let done = connection.ended && !connection.input.contains(&b'\n');
            done || (connection.closing && connection.output.is_empty())
        };
        if self.admins.get(&key).is_some_and(gone) {
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
        let Some(connection) = self.admins.get_mut(&key) else {
            return;
        };
        connection.has_asked = true;
        let pid = connection.pid;
        match request {
            Request::Hello => {
                let hello = Reply::Hello {
                    protocol: PROTOCOL,
                    version: env!("CARGO_PKG_VERSION").to_owned(),
                    pid: std::process::id(),
                    epoch: self.epoch,
                };
                self.tell(key, &hello);
            }
            Request::List => {
                self.take_use();
                let snapshot = Box::new(self.snapshot());
                self.tell(key, &Reply::Snapshot(snapshot));
            }
            Request::Watch { interval_ms } => {
                connection.watch = Some((interval_ms.max(WATCH_MS_MIN), now_ms()));
                self.send_watches(now_ms());
            }
            // What follows changes something, and is not for those inside a job.
            _ => match self.inside(pid) {
                Ok(None) => self.take_change(key, request),
                Ok(Some(job)) => self.tell(key, &refused(&Refusal::Inside(job))),
                Err(()) => {
                    let why = "the arbiter cannot see whose child asks this; try again";
                    self.refuse(key, why);
                }
            },
        }
    }

    fn take_change(&mut self, key: Key, request: Request) {
        match request {
            Request::Hello | Request::List | Request::Watch { .. } => {}
            Request::Submit(submit) => self.submit(key, &submit),
            Request::Resume(resume) => self.resume(key, &resume),
            Request::Limit { id, memory } => match parse_amount(&memory) {
                Err(error) => self.refuse(key, &error.to_string()),
                Ok(memory) => {
                    self.asker = Some(key);
                    let job = JobId(id);
                    self.apply(Event::LimitAsked { job, memory });
                    self.asker = None;
                    // Read after the limit holds: now it is known whether the job is over.
                    self.take_use();
                }
            },
            Request::LimitPinned { id, memory } => match parse_size(&memory) {
                Err(error) => self.refuse(key, &error.to_string()),
                Ok(memory) => self.limit_pinned(key, JobId(id), memory),
            },
            Request::Shutdown if self.machine.is_idle() => {
                self.tell(key, &Reply::Ending);
                self.stopping = true;
            }
            Request::Shutdown => {
                let n = self.machine.jobs().count();
                self.refuse(key, &format!("{n} jobs are running or waiting"));
            }
        }
    }

    /// Every job may pin so much, whatever others do: nothing is to be decided here.
    fn limit_pinned(&mut self, key: Key, job: JobId, memory: MiB) {
        let parts = self.machine.job(job).map(|view| view.parts);
        let (Some(parts), Some(tenant)) = (parts, self.tenants.get_mut(&job)) else {
            return self.refuse(key, &Refusal::NoSuchJob(job).to_string());
        };
        if tenant.pinned().is_none() {
            let why = format!(
                "job {job} has pages of version 1, as its first process had them: nobody counts \
                 what it pins"
            );
            return self.refuse(key, &why);
        }
        tenant.set_pinned_limit(Some(memory));
        self.asker = Some(key);
        self.tell_limits(job, &parts);
        self.asker = None;
    }

    /// The job that a process is inside of; its root is not. An error where that cannot be
    /// seen.
    fn inside(&self, pid: Pid) -> Result<Option<JobId>, ()> {
        if let Some((job, _)) = self.machine.process(pid) {
            return Ok(Some(job));
        }
        let parents = peer::ancestors(pid).ok_or(())?;
        Ok(self.job_above(&parents))
    }

    fn refuse(&mut self, key: Key, reason: &str) {
        let refused = Reply::Refused {
            reason: reason.to_owned(),
            is_final: true,
            hint: None,
        };
        self.tell(key, &refused);
    }

    fn submit(&mut self, key: Key, submit: &Submit) {
        let pinned = submit.pinned_memory.as_deref().map(parse_size).transpose();
        let pinned = pinned.map_err(|error| error.to_string());
        match (ask_of(submit, self.machine.inventory()), pinned) {
            (Err(reason), _) | (_, Err(reason)) => self.refuse_line(key, &reason),
            (Ok(ask), Ok(pinned)) => {
                let job = self.next_job();
                let tenant = Tenant::new(job.0, page_mode(submit.mode), pinned, false);
                if self.root(key, job, tenant) {
                    self.apply(Event::Submitted { job, ask });
                }
            }
        }
    }

    fn resume(&mut self, key: Key, resume: &Resume) {
        let job = JobId(resume.placed.id);
        let limit = |mib: u64| MiB::new(mib).unwrap_or(MiB::MAX);
        let gpus = resume.placed.gpus.iter();
        let parts = self.parts_of(gpus.map(|gpu| (gpu.uuid.as_str(), limit(gpu.limit_mib))));
        // It has its cards, and gets no others: what it named then decides nothing any more.
        let asked = Submit {
            cards: None,
            ..resume.submit.clone()
        };
        let asked = ask_of(&asked, self.machine.inventory());
        match (parts, asked) {
            (Err(reason), _) | (_, Err(reason)) => self.refuse_line(key, &reason),
            _ if self.machine.job(job).is_some() => {
                self.refuse_line(key, &format!("there is a job {job} already"));
            }
            (Ok(parts), Ok(mut ask)) => {
                let cards = || parts.iter().map(|part| part.card);
                ask.cards = resume.submit.cards.as_ref().map(|_| cards().collect());
                self.last_job = self.last_job.max(job.0);
                self.write_record();
                // What it was changed to since then; what was asked is in `submit`.
                let pinned = resume.placed.pinned_limit_mib.map(limit);
                let tenant = Tenant::new(job.0, page_mode(resume.submit.mode), pinned, true);
                if self.root(key, job, tenant) {
                    self.apply(Event::Declared {
                        job,
                        ask,
                        parts,
                        promise: None,
                    });
                    self.greet_again();
                }
            }
        }
    }

    /// Makes the connection a job's life line, and its process the job's root.
    fn root(&mut self, key: Key, job: JobId, tenant: Tenant) -> bool {
        let Some(connection) = self.admins.get_mut(&key) else {
            return false;
        };
        let Some(pidfd) = connection.pidfd.take() else {
            self.refuse_line(key, "a connection is one job's life line");
            return false;
        };
        let pid = connection.pid;
        let Ok(root_key) = self.poller.add(&pidfd, "a job's root") else {
            self.refuse_line(key, "the arbiter cannot look after one more job");
            return false;
        };
        connection.job = Some(job);
        self.sources.insert(root_key, Source::Root(job));
        let root = Root::Run {
            pid,
            pidfd,
            key: root_key,
            line: Some(key),
        };
        self.roots.insert(job, root);
        self.tenants.insert(job, tenant);
        true
    }

    fn refuse_line(&mut self, key: Key, reason: &str) {
        self.counters.refused += 1;
        self.refuse(key, reason);
        self.close_admin(key);
    }

    pub(super) fn send_watches(&mut self, now: u64) {
        let due = |connection: &AdminConnection| {
            // Who still has the last one to read does not get another.
            connection.watch.is_some_and(|(_, next)| next <= now) && connection.output.is_empty()
        };
        let due = self.admins.iter().filter(|(_, connection)| due(connection));
        let due: Vec<Key> = due.map(|(key, _)| *key).collect();
        if due.is_empty() {
            return;
        }
        // The states are of the last look at the ledgers, the numbers of this one.
        self.take_use();
        let snapshot = Reply::Snapshot(Box::new(self.snapshot()));
        for key in due {
            if let Some(connection) = self.admins.get_mut(&key)
                && let Some((every, next)) = &mut connection.watch
            {
                *next = now + *every;
                self.tell(key, &snapshot);
            }
        }
    }

    /// Says something on a connection, or gives it up if it does not read.
    pub(super) fn tell(&mut self, key: Key, news: &Reply) {
        let Some(connection) = self.admins.get_mut(&key) else {
            return;
        };
        let Ok(line) = serde_json::to_vec(news) else {
            return;
        };
        if connection.output.len() + line.len() > UNREAD_MAX {
            debug!(pid = %connection.pid, "a command does not read what it asked for");
            connection.output.clear();
            connection.closing = true;
            connection.ended = true;
            // Dropped at its next turn, which comes at once.
            self.busy.insert(key);
            return;
        }
        connection.output.extend_from_slice(&line);
        connection.output.push(b'\n');
        self.flush(key);
    }

    fn flush(&mut self, key: Key) {
        if let Some(connection) = self.admins.get_mut(&key) {
            connection.write();
            let writing = !connection.output.is_empty();
            // Who is not read any more must not wake the arbiter by writing.
            let reading = !connection.closing && connection.input.len() <= REQUEST_MAX;
            if (reading, writing) != connection.interest {
                connection.interest = (reading, writing);
                self.poller
                    .set_interest(&connection.socket, key, reading, writing);
            }
        }
    }

    /// Closes a connection when everything is written.
    pub(super) fn close_admin(&mut self, key: Key) {
        if let Some(connection) = self.admins.get_mut(&key) {
            connection.closing = true;
            connection.job = None;
            self.busy.insert(key);
        }
    }
}
