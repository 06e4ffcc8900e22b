//! The node agent's side: it runs the arbiter in a thread of its process and tells it, by a
//! [`Handle`], of containers whose cards the cluster has chosen. Each container has a folder
//! that is mounted into it; the socket in that folder is the container's identity.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use rustix::event::EventfdFlags;
use rustix::net::SocketType;
use sublet_abi::{MAX_DEVICES, Mode};
use sublet_model::{Class, Count, MiB};
use sublet_share::{Amount, ComputeRange, Event, Holding, JobAsk, JobId, Promise};

use super::Arbiter;
use super::admin_requests::NO_NUMBER_LEFT;
use super::jobs::Root;
use super::sources::Source;
use crate::admin::{Reply, Request, Snapshot};
use crate::job_pages::JobPages;
use crate::socket;

/// Why a command to the arbiter came to nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HandleError {
    /// The arbiter has ended.
    #[error("the arbiter has ended")]
    Ended,
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

/// A container of the cluster's, to be held to what it was promised.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainerJob {
    /// Its number, if it had one before the agent was restarted.
    pub id: Option<u64>,
    /// What people call it.
    pub name: String,
    /// A folder that exists and is mounted into this container alone: whoever connects to
    /// `tenant.sock` in it is the container's process.
    pub dir: PathBuf,
    /// Its cards.
    pub cards: Vec<ContainerCard>,
    /// What it may pin of the host's memory; `None` for no limit.
    pub pinned_limit: Option<MiB>,
    /// Its compute time of each card.
    pub compute: ComputeRange,
    /// Who gives way where compute time is short.
    pub class: Class,
    /// What its programs do without an arbiter.
    pub mode: Mode,
    /// Its pod, and its turn in it.
    pub promise: Promise,
    /// Were its programs told to be clients of MPS?
    pub mps: bool,
}

type Answer<T> = Sender<Result<T, HandleError>>;

/// What other threads want.
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

/// A way to talk to an arbiter from other threads.
#[derive(Debug, Clone)]
pub struct Handle {
    commands: Sender<Command>,
    wake: Arc<OwnedFd>,
}

impl Handle {
    /// Looks after a container from now on, and returns its number. There is room for it: the
    /// cluster has counted that, and is believed.
    ///
    /// # Errors
    /// A card is unknown, the number is taken, or the socket cannot be made.
    pub fn add_container(&self, container: ContainerJob) -> Result<u64, HandleError> {
        let container = Box::new(container);
        self.ask(|answer| Command::Add { container, answer })
    }

    /// The container is gone. Its memory is free when its last process is.
    ///
    /// # Errors
    /// The arbiter has ended, or does not know it.
    pub fn remove_container(&self, id: u64) -> Result<(), HandleError> {
        self.ask(|answer| Command::Remove { id, answer })
    }

    /// Everything there is to see.
    ///
    /// # Errors
    /// The arbiter has ended.
    pub fn snapshot(&self) -> Result<Snapshot, HandleError> {
        self.ask(|answer| Command::Snapshot { answer })
    }

    /// What `admin.sock` would answer, if the request changes nothing and asks once.
    ///
    /// # Errors
    /// It does, or the arbiter has ended.
    pub fn read(&self, request: Request) -> Result<Reply, HandleError> {
        let request = Box::new(request);
        self.ask(|answer| Command::Read { request, answer })
    }

    /// Ends the arbiter in order; [`Arbiter::run`] then returns.
    pub fn stop(&self) {
        let _ = self.commands.send(Command::Stop);
        self.wake();
    }

    fn ask<T>(&self, command: impl FnOnce(Answer<T>) -> Command) -> Result<T, HandleError> {
        let (answer, answered) = channel();
        let sent = self.commands.send(command(answer));
        sent.map_err(|_| HandleError::Ended)?;
        self.wake();
        answered.recv().map_err(|_| HandleError::Ended)?
    }

    fn wake(&self) {
        let _ = rustix::io::write(&*self.wake, &1u64.to_ne_bytes());
    }
}

/// The arbiter's end.
#[derive(Debug)]
pub(super) struct Commands {
    sender: Sender<Command>,
    receiver: Receiver<Command>,
    wake: Arc<OwnedFd>,
}

impl Commands {
    pub(super) fn new() -> io::Result<Commands> {
        let (sender, receiver) = channel();
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        Ok(Commands {
            sender,
            receiver,
            wake: Arc::new(rustix::event::eventfd(0, flags)?),
        })
    }

    pub(super) fn handle(&self) -> Handle {
        Handle {
            commands: self.sender.clone(),
            wake: Arc::clone(&self.wake),
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
        while let Ok(command) = self.commands.receiver.try_recv() {
            match command {
                Command::Add { container, answer } => {
                    let added = self.add_container(*container);
                    let _ = answer.send(added.map_err(HandleError::Refused));
                }
                Command::Remove { id, answer } => {
                    let known = self.machine.job(JobId(id)).is_some();
                    self.apply(Event::Left(JobId(id)));
                    let unknown = HandleError::Refused(format!("there is no job {id}"));
                    let _ = answer.send(known.then_some(()).ok_or(unknown));
                }
                Command::Snapshot { answer } => {
                    self.take_use();
                    let _ = answer.send(Ok(self.snapshot()));
                }
                Command::Read { request, answer } => {
                    let refused = HandleError::Refused("only questions are answered here".into());
                    let _ = answer.send(self.read(&request).ok_or(refused));
                }
                Command::Stop => self.lifetime.stop(),
            }
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
        let listener = socket::listen(&path, SocketType::SEQPACKET, 0o666);
        let listener = listener.map_err(|error| error.to_string())?;
        let source = Source::ProcessListener(Some(job));
        let key = self.sources.add(&listener, "a container's socket", source);
        let key = key.map_err(|error| error.to_string())?;
        let largest = parts.iter().map(|part| part.limit.memory).max();
        let ask = JobAsk {
            name: container.name.into(),
            memory: Amount::Memory(largest.unwrap_or(MiB::ZERO)),
            pinned: container.pinned_limit,
            compute: container.compute,
            class: container.class,
            gpus: Count::new(parts.len() as u32), // at most 16
            cards: None,
            user: None,
            priority: 0,
            may_wait: true,
        };
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
