//! The node agent's side. The agent runs the arbiter in a thread of its process and tells it,
//! by a [`Handle`], about containers that the cluster has given cards. Each container has a
//! folder of its own, mounted into it; the socket in that folder is the container's identity.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use rustix::event::EventfdFlags;
use rustix::net::SocketType;
use sublet_abi::{MAX_DEVICES, Mode};
use sublet_model::{Class, Count, MiB, SliceLength};
use sublet_share::{Amount, ComputeRange, Event, Holding, JobAsk, JobId, Promise};

use super::admin_requests::NO_NUMBER_LEFT;
use super::jobs::Root;
use super::listeners::Door;
use super::sources::Source;
use super::{Arbiter, now_ms};
use crate::admin::{Reply, Request, Snapshot};
use crate::closers::Owner;
use crate::job_pages::JobPages;
use crate::socket::{Access, Listener};

/// Longest wait for an answer, which takes a millisecond: the runtime cuts off a plugin that
/// makes it wait for 2 s.
const ANSWER_MAX: Duration = Duration::from_secs(1);

/// Longest silence of the arbiter, five beats, before callers stop waiting: callers that ask one
/// after the other would together wait for as many times [`ANSWER_MAX`].
const SILENT_MAX: Duration = Duration::from_secs(1);

/// Ways in which a command to the arbiter can fail.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HandleError {
    /// The arbiter has ended.
    #[error("the arbiter has ended")]
    Ended,
    /// It does not answer in time. It will not carry the command out later, except that it
    /// forgets a container that is gone.
    #[error("the arbiter does not answer")]
    Late,
    /// It said no.
    #[error("{0}")]
    Refused(String),
}

/// A card of a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainerCard {
    /// The card's UUID, as the driver prints it.
    pub uuid: String,
    /// The container's limit there.
    pub limit: MiB,
}

/// A container of the cluster, to be held to its limits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainerJob {
    /// Its number, if it had one before the agent was restarted.
    pub id: Option<u64>,
    /// Name for people.
    pub name: String,
    /// A folder that exists and is mounted into this container alone: a process that connects
    /// to `tenant.sock` in it belongs to the container.
    pub dir: PathBuf,
    /// Its cards.
    pub cards: Vec<ContainerCard>,
    /// Limit of pinned host memory; `None` for no limit.
    pub pinned_limit: Option<MiB>,
    /// Its compute time of each card.
    pub compute: ComputeRange,
    /// Class: decides which job gives way when compute time is short.
    pub class: Class,
    /// Length of its turns while others wait; the usual one unless it is there.
    pub slice: Option<SliceLength>,
    /// Behaviour of its programs without an arbiter.
    pub mode: Mode,
    /// Its pod, and its turn in it.
    pub promise: Promise,
    /// Were its programs told to be clients of MPS?
    pub mps: bool,
}

impl ContainerJob {
    /// Request that it stands for.
    fn ask(&self) -> JobAsk {
        let largest = self.cards.iter().map(|card| card.limit).max();
        let memory = Amount::Memory(largest.unwrap_or(MiB::ZERO));
        JobAsk {
            name: self.name.as_str().into(),
            memory,
            request: memory,
            pinned: self.pinned_limit,
            compute: self.compute,
            class: self.class,
            slice: self.slice.map(SliceLength::time),
            gpus: Count::new(self.cards.len() as u32), // at most 16
            cards: None,
            user: None,
            priority: 0,
            may_wait: true,
        }
    }
}

type Answer<T> = Sender<Result<T, HandleError>>;

/// A command from another thread.
#[derive(Debug)]
pub(super) enum Command {
    Add {
        container: Box<ContainerJob>,
        answer: Answer<u64>,
    },
    Remove {
        id: u64,
        answer: Answer<()>,
    },
    Snapshot {
        answer: Answer<Snapshot>,
    },
    Read {
        request: Box<Request>,
        answer: Answer<Reply>,
    },
    Stop,
}

/// A command, and how it stands.
type Sent = (Command, Arc<Standing>);

/// State of a question: answered or given up, by the side that comes first.
#[derive(Debug, Default)]
struct Standing(AtomicU8);

impl Standing {
    const ASKED: u8 = 0;
    const ANSWERED: u8 = 1;
    const GIVEN_UP: u8 = 2;

    fn is_given_up(&self) -> bool {
        self.0.load(Ordering::Acquire) == Standing::GIVEN_UP
    }

    /// Settles that the answer is sent. Returns false if the caller has given up.
    fn answer(&self) -> bool {
        self.settle(Standing::ANSWERED)
    }

    /// Settles that the caller has given up. Returns false if the answer was sent.
    fn give_up(&self) -> bool {
        self.settle(Standing::GIVEN_UP)
    }

    fn settle(&self, to: u8) -> bool {
        let (before, order) = (Standing::ASKED, Ordering::AcqRel);
        let settled = self
            .0
            .compare_exchange(before, to, order, Ordering::Acquire);
        settled.is_ok()
    }
}

/// A way to talk to an arbiter from other threads.
#[derive(Debug, Clone)]
pub struct Handle {
    commands: Sender<Sent>,
    wake: Arc<OwnedFd>,
    /// When it last beat, in milliseconds of the clock that the pages are written with.
    beat_ms: Arc<AtomicU64>,
}

impl Handle {
    /// Looks after a container from now on, and returns its number. There is room for it: the
    /// cluster has counted that, and is believed.
    ///
    /// # Errors
    /// A card is unknown, the number is taken, or the socket cannot be made; or it does not answer.
    pub fn add_container(&self, container: ContainerJob) -> Result<u64, HandleError> {
        let container = Box::new(container);
        self.ask(|answer| Command::Add { container, answer })
    }

    /// The container is gone. Its memory is free when its last process is.
    ///
    /// # Errors
    /// The arbiter has ended, does not know it, or will do it later.
    pub fn remove_container(&self, id: u64) -> Result<(), HandleError> {
        self.ask(|answer| Command::Remove { id, answer })
    }

    /// Everything there is to see.
    ///
    /// # Errors
    /// The arbiter has ended, or does not answer.
    pub fn snapshot(&self) -> Result<Snapshot, HandleError> {
        self.ask(|answer| Command::Snapshot { answer })
    }

    /// Takes the first [`Handle::snapshot`], which the caller needs to begin: waits as long as
    /// it takes.
    ///
    /// # Errors
    /// The arbiter has ended.
    pub fn first_snapshot(&self) -> Result<Snapshot, HandleError> {
        loop {
            match self.snapshot() {
                Err(HandleError::Late) => std::thread::sleep(ANSWER_MAX / 10),
                other => return other,
            }
        }
    }

    /// Returns the answer that `admin.sock` would give to a request that changes nothing and
    /// asks once.
    ///
    /// # Errors
    /// The request changes something or asks more than once, or the arbiter has ended.
    pub fn read(&self, request: Request) -> Result<Reply, HandleError> {
        let request = Box::new(request);
        self.ask(|answer| Command::Read { request, answer })
    }

    /// Ends the arbiter in order; [`Arbiter::run`] then returns.
    pub fn stop(&self) {
        let _ = self.commands.send((Command::Stop, Arc::default()));
        self.wake();
    }

    /// Time since the arbiter's thread last said that it works, which it does five times a
    /// second.
    #[must_use]
    pub fn silent_for(&self) -> Duration {
        let beat = self.beat_ms.load(Ordering::Relaxed);
        Duration::from_millis(now_ms().saturating_sub(beat))
    }

    fn ask<T>(&self, command: impl FnOnce(Answer<T>) -> Command) -> Result<T, HandleError> {
        let (answer, answered) = channel();
        let standing = Arc::<Standing>::default();
        let sent = (command(answer), Arc::clone(&standing));
        self.commands.send(sent).map_err(|_| HandleError::Ended)?;
        self.wake();
        let limit = match self.silent_for() > SILENT_MAX {
            true => Duration::ZERO,
            false => ANSWER_MAX,
        };
        match answered.recv_timeout(limit) {
            Ok(answer) => answer,
            Err(RecvTimeoutError::Disconnected) => Err(HandleError::Ended),
            Err(RecvTimeoutError::Timeout) if standing.give_up() => Err(HandleError::Late),
            // It came in this moment.
            Err(RecvTimeoutError::Timeout) => answered.recv().map_err(|_| HandleError::Ended)?,
        }
    }

    fn wake(&self) {
        let _ = rustix::io::write(&*self.wake, &1u64.to_ne_bytes());
    }
}

/// The arbiter's end.
#[derive(Debug)]
pub(super) struct Commands {
    sender: Sender<Sent>,
    receiver: Receiver<Sent>,
    wake: Arc<OwnedFd>,
    beat_ms: Arc<AtomicU64>,
}

impl Commands {
    pub(super) fn new() -> io::Result<Commands> {
        let (sender, receiver) = channel();
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        Ok(Commands {
            sender,
            receiver,
            wake: Arc::new(rustix::event::eventfd(0, flags)?),
            beat_ms: Arc::new(AtomicU64::new(now_ms())),
        })
    }

    /// Says that the arbiter's thread works.
    pub(super) fn beat(&self, now_ms: u64) {
        self.beat_ms.store(now_ms, Ordering::Relaxed);
    }

    pub(super) fn handle(&self) -> Handle {
        Handle {
            commands: self.sender.clone(),
            wake: Arc::clone(&self.wake),
            beat_ms: Arc::clone(&self.beat_ms),
        }
    }
}

impl AsFd for Commands {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}

impl Arbiter {
    pub(super) fn take_commands(&mut self) {
        let _ = rustix::io::read(&*self.commands.wake, &mut [0; 8]);
        while let Ok((command, standing)) = self.commands.receiver.try_recv() {
            self.take_command(command, &standing);
        }
    }

    /// Carries out the command, unless its caller has given up.
    fn take_command(&mut self, command: Command, standing: &Standing) {
        match command {
            Command::Add { .. } | Command::Snapshot { .. } | Command::Read { .. }
                if standing.is_given_up() => {}
            Command::Add { container, answer } => {
                let added = self.add_container(*container);
                if standing.answer() {
                    let _ = answer.send(added.map_err(HandleError::Refused));
                } else if let Ok(id) = added {
                    // Nobody knows of it.
                    self.apply(Event::Left(JobId(id)));
                }
            }
            Command::Remove { id, answer } => {
                let known = self.machine.job(JobId(id)).is_some();
                self.apply(Event::Left(JobId(id)));
                let unknown = HandleError::Refused(format!("there is no job {id}"));
                let removed = known.then_some(()).ok_or(unknown);
                let _ = standing.answer() && answer.send(removed).is_ok();
            }
            Command::Snapshot { answer } => {
                self.take_use();
                let snapshot = self.snapshot();
                let _ = standing.answer() && answer.send(Ok(snapshot)).is_ok();
            }
            Command::Read { request, answer } => {
                let refused = HandleError::Refused("only questions are answered here".into());
                let reply = self.read(&request).ok_or(refused);
                let _ = standing.answer() && answer.send(reply).is_ok();
            }
            Command::Stop => self.lifetime.stop(),
        }
    }

    fn add_container(&mut self, container: ContainerJob) -> Result<u64, String> {
        let cards = container.cards.iter();
        let parts = self.parts_of(cards.map(|card| (card.uuid.as_str(), card.limit)))?;
        let job = match container.id {
            Some(id) => {
                self.identity.skip_job(JobId(id));
                JobId(id)
            }
            None => {
                let next = self.identity.next_job();
                next.ok_or_else(|| NO_NUMBER_LEFT.to_owned())?
            }
        };
        if self.machine.job(job).is_some() {
            return Err(format!("there is a job {job} already"));
        }
        let path = container.dir.join("tenant.sock");
        // The container's processes have any user; the folder is in their container alone.
        let (kind, owner) = (SocketType::SEQPACKET, Some(Owner::Job(job)));
        let listener = Listener::open(&path, kind, Access::Everybody, owner, &self.closers);
        let listener = listener.map_err(|error| error.to_string())?;
        let source = Source::ProcessListener(Door::Container(job));
        let key = self.sources.add(&listener, "a container's socket", source);
        let key = key.map_err(|error| error.to_string())?;
        let ask = container.ask();
        let comes_back = container.id.is_some() && !self.lifetime.is_settled();
        let pages = JobPages::new(job.0, container.mode, comes_back);
        let root = Root::Container {
            listener,
            key,
            socket: path,
        };
        // A refusal takes the job away again.
        if let Err(root) = self.jobs.insert(job, pages, root) {
            root.close(&mut self.sources);
            return Err(format!("there is a job {job} already"));
        }
        self.enter_mps(job, container.mps);
        self.apply(Event::Declared {
            job,
            ask,
            parts,
            promise: Some(container.promise),
        });
        self.identity.write();
        match self.machine.job(job) {
            Some(_) => Ok(job.0),
            None => {
                Err("the container cannot have its limits; the arbiter's log says why".to_owned())
            }
        }
    }

    /// Cards by UUID as parts of this machine.
    pub(super) fn parts_of<'a>(
        &self,
        cards: impl Iterator<Item = (&'a str, MiB)>,
    ) -> Result<Vec<Holding>, String> {
        let gpus = self.machine.inventory().gpus();
        let find = |uuid: &str| {
            gpus.iter()
                .position(|gpu| gpu.uuid.as_ref().is_some_and(|own| own.as_str() == uuid))
        };
        let parts = cards.map(|(uuid, limit)| {
            let card = find(uuid).ok_or_else(|| format!("this machine has no GPU {uuid}"))?;
            Ok(Holding::of_memory(card, limit))
        });
        let parts: Vec<Holding> = parts.collect::<Result<_, String>>()?;
        if parts.is_empty() || parts.len() > MAX_DEVICES {
            let n = parts.len();
            return Err(format!("a job has 1 to {MAX_DEVICES} GPUs, not {n}"));
        }
        Ok(parts)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use sublet_model::Role;

    use super::*;

    #[test]
    fn who_asks_a_standing_arbiter_waits_for_a_second_and_the_next_not_at_all() {
        let commands = Commands::new().unwrap();
        let handle = commands.handle();
        let begun = Instant::now();
        assert_eq!(handle.snapshot(), Err(HandleError::Late));
        assert!(begun.elapsed() >= ANSWER_MAX && begun.elapsed() < 2 * ANSWER_MAX);
        // It has not beaten since.
        while handle.silent_for() <= SILENT_MAX {
            std::thread::yield_now();
        }
        let begun = Instant::now();
        assert_eq!(handle.remove_container(1), Err(HandleError::Late));
        assert!(begun.elapsed() < ANSWER_MAX / 2, "{:?}", begun.elapsed());
        commands.beat(now_ms());
        assert!(handle.silent_for() < SILENT_MAX);
        // Both were given up, which the arbiter sees when it comes to them.
        let sent: Vec<Sent> = commands.receiver.try_iter().collect();
        assert_eq!(sent.len(), 2);
        for (_, standing) in sent {
            assert!(standing.is_given_up() && !standing.answer());
        }
        drop(commands);
        assert_eq!(handle.snapshot(), Err(HandleError::Ended));
    }

    #[test]
    fn a_container_has_the_turns_that_its_pod_asks_for() {
        for (slice, expected) in [(None, None), (Some("3ms"), Some(Duration::from_millis(3)))] {
            let container = ContainerJob {
                id: None,
                name: "ns/pod/main".to_owned(),
                dir: PathBuf::new(),
                cards: Vec::new(),
                pinned_limit: None,
                compute: ComputeRange::ANY,
                class: Class::Guaranteed,
                slice: slice.map(|text| text.parse().unwrap()),
                mode: Mode::Strict,
                promise: Promise {
                    pod: "pod".into(),
                    role: Role::Main,
                    position: 0,
                },
                mps: false,
            };
            assert_eq!(container.ask().slice, expected);
        }
    }

    #[test]
    fn a_question_is_answered_or_given_up_and_never_both() {
        let standing = Standing::default();
        assert!(standing.answer() && !standing.give_up() && !standing.is_given_up());
        let standing = Standing::default();
        assert!(standing.give_up() && !standing.answer() && standing.is_given_up());
    }
}
