//! The two sockets at which everybody may connect, and the descriptor in reserve that turns
//! somebody away where no other is left.

use std::path::PathBuf;

use rustix::net::SocketType;
use sublet_share::JobId;

use super::Arbiter;
use super::jobs::Root;
use super::sources::{Source, Sources};
use crate::closers::Closers;
use crate::error::ArbiterError;
use crate::poller::Key;
use crate::runtime::{Audience, Folder};
use crate::socket::{Connection, Listener, Spare};

/// How many connections are accepted in one turn.
pub(super) const ACCEPTS_A_TURN: usize = 64;

/// A socket at which somebody comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Door {
    /// `admin.sock`.
    Admin,
    /// `tenant.sock` of a container, or of everybody below a `sublet run`.
    Processes(Option<JobId>),
}

/// The sockets of the arbiter's folder.
#[derive(Debug)]
pub(super) struct Listeners {
    /// For people's commands: `admin.sock`.
    pub(super) admin: Listener,
    admin_key: Key,
    /// For processes below a `sublet run`: `tenant.sock`. Containers have sockets of their own.
    pub(super) processes: Listener,
    processes_key: Key,
    pub(super) spare: Spare,
    /// Those at which nobody is let in before the next tick.
    paused: Vec<Door>,
}

impl Listeners {
    pub(super) fn open(
        folder: &Folder,
        audience: Audience,
        sources: &mut Sources,
        closers: &Closers,
    ) -> Result<Listeners, ArbiterError> {
        let mode = match audience {
            Audience::Owner => 0o600,
            Audience::Everybody => 0o666,
        };
        let open = |path: PathBuf, kind| Listener::open(&path, kind, mode, None, closers);
        let admin = open(folder.admin_socket(), SocketType::STREAM)?;
        let processes = open(folder.tenant_socket(), SocketType::SEQPACKET)?;
        let admin_key = sources.add(&admin, "admin.sock", Source::AdminListener)?;
        let source = Source::ProcessListener(None);
        let processes_key = sources.add(&processes, "tenant.sock", source)?;
        Ok(Listeners {
            admin,
            admin_key,
            processes,
            processes_key,
            spare: Spare::new(),
            paused: Vec::new(),
        })
    }
}

impl Arbiter {
    /// Where whoever comes is let in; nothing where the job of the door is gone.
    pub(super) fn listener(&self, door: Door) -> Option<(&Listener, Key)> {
        match door {
            Door::Admin => Some((&self.listeners.admin, self.listeners.admin_key)),
            Door::Processes(None) => {
                Some((&self.listeners.processes, self.listeners.processes_key))
            }
            Door::Processes(Some(job)) => match self.jobs.root(job) {
                Some(Root::Container { listener, key, .. }) => Some((listener, *key)),
                _ => None,
            },
        }
    }

    /// Turns the next one away for want of descriptors, with some last words.
    pub(super) fn shed(&mut self, door: Door, farewell: impl FnOnce(&Connection)) {
        let mut spare = std::mem::take(&mut self.listeners.spare);
        if let Some((listener, _)) = self.listener(door) {
            spare.shed(listener, farewell);
        }
        self.listeners.spare = spare;
    }

    /// True if nobody may be let in, because too much of those who came waits to be closed. It is
    /// looked at again at the next tick; until then they wait in the kernel, unseen.
    pub(super) fn pauses(&mut self, door: Door) -> bool {
        let Some((listener, key)) = self.listener(door) else {
            return true;
        };
        let is_stuck = listener.is_stuck();
        if is_stuck {
            self.sources.set_interest(listener, key, false, false);
            self.listeners.paused.push(door);
        }
        is_stuck
    }

    /// A tick: where nobody was let in, somebody may be now.
    pub(super) fn listen_again(&mut self) {
        for door in std::mem::take(&mut self.listeners.paused) {
            if let Some((listener, key)) = self.listener(door) {
                self.sources.set_interest(listener, key, true, false);
            }
        }
    }
}
