//! The sockets of the arbiter's folder, and a spare descriptor with which it turns a client away
//! when no other is left.
//!
//! If the arbiter serves all users, each user with jobs also has a socket of their own, as each
//! container has. The processes below a `sublet run` connect there, and messages and connections of
//! other users do not disturb them. A process of a job that has changed its user cannot connect
//! there; a link beside that socket leads it to the shared socket. If the arbiter serves root alone,
//! such processes have a socket of their own in the link's place.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::PathBuf;

use rustix::net::SocketType;
use sublet_share::{JobId, UserId};
use tracing::warn;

use super::Arbiter;
use super::jobs::Root;
use super::sources::{Source, Sources};
use crate::closers::{Closers, Owner};
use crate::error::{ArbiterError, at};
use crate::machine_folder::{Audience, Folder, OTHERS};
use crate::poller::Key;
use crate::socket::{Access, Connection, Listener, Spare};

/// A socket for clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Door {
    /// `admin.sock`.
    Admin,
    /// `tenant.sock`, for processes below a `sublet run`.
    Tenants,
    /// `others.sock`, for those of root's jobs that have become another user's.
    Others,
    /// The same for the processes of one user, if all users are served.
    User(UserId),
    /// A container's.
    Container(JobId),
}

/// The socket of one user's processes.
#[derive(Debug)]
struct UserDoor {
    listener: Listener,
    key: Key,
    /// The user's jobs for which it is there.
    jobs: BTreeSet<JobId>,
}

/// The sockets of the arbiter's folder.
#[derive(Debug)]
pub(super) struct Listeners {
    /// For people's commands: `admin.sock`.
    pub(super) admin: Listener,
    admin_key: Key,
    /// For processes below a `sublet run`: `tenant.sock`.
    processes: Listener,
    processes_key: Key,
    /// For those that have become another user's: `others.sock`.
    others: Option<(Listener, Key)>,
    /// The sockets of single users.
    users: BTreeMap<UserId, UserDoor>,
    audience: Audience,
    pub(super) spare: Spare,
    /// Sockets that accept no connection before the next tick.
    paused: Vec<Door>,
}

impl Listeners {
    /// `has_jobs`: programs may come that are below a `sublet run`.
    pub(super) fn open(
        folder: &Folder,
        audience: Audience,
        has_jobs: bool,
        sources: &mut Sources,
        closers: &Closers,
    ) -> Result<Listeners, ArbiterError> {
        let access = match audience {
            Audience::Owner => Access::Own,
            Audience::Everybody => Access::Everybody,
        };
        let open = |path: PathBuf, kind, access| Listener::open(&path, kind, access, None, closers);
        let admin = open(folder.admin_socket(), SocketType::STREAM, access)?;
        let processes = open(folder.tenant_socket(), SocketType::SEQPACKET, access)?;
        let admin_key = sources.add(&admin, "admin.sock", Source::AdminListener)?;
        let source = Source::ProcessListener(Door::Tenants);
        let processes_key = sources.add(&processes, "tenant.sock", source)?;
        // Only root's processes can become another user's and keep our libraries.
        let is_root = rustix::process::geteuid().is_root();
        let others = match audience {
            Audience::Owner if has_jobs && is_root => {
                let kind = SocketType::SEQPACKET;
                let listener = open(folder.others_socket(), kind, Access::Everybody)?;
                let source = Source::ProcessListener(Door::Others);
                let key = sources.add(&listener, OTHERS, source)?;
                Some((listener, key))
            }
            _ => None,
        };
        Ok(Listeners {
            admin,
            admin_key,
            processes,
            processes_key,
            others,
            users: BTreeMap::new(),
            audience,
            spare: Spare::new(),
            paused: Vec::new(),
        })
    }

    /// The key of the socket for people's commands.
    pub(super) fn admin_key(&self) -> Key {
        self.admin_key
    }

    /// The users who may connect.
    pub(super) fn audience(&self) -> Audience {
        self.audience
    }
}

impl Arbiter {
    /// The listener of a door; nothing if the door's job is gone.
    pub(super) fn listener(&self, door: Door) -> Option<(&Listener, Key)> {
        match door {
            Door::Admin => Some((&self.listeners.admin, self.listeners.admin_key)),
            Door::Tenants => Some((&self.listeners.processes, self.listeners.processes_key)),
            Door::Others => {
                let (listener, key) = self.listeners.others.as_ref()?;
                Some((listener, *key))
            }
            Door::User(user) => {
                let door = self.listeners.users.get(&user)?;
                Some((&door.listener, door.key))
            }
            Door::Container(job) => match self.jobs.root(job) {
                Some(Root::Container { listener, key, .. }) => Some((listener, *key)),
                _ => None,
            },
        }
    }

    /// Turns the next client away for want of descriptors, with a last message.
    pub(super) fn shed(&mut self, door: Door, farewell: impl FnOnce(&Connection)) {
        let mut spare = std::mem::take(&mut self.listeners.spare);
        if let Some((listener, _)) = self.listener(door) {
            spare.shed(listener, farewell);
        }
        self.listeners.spare = spare;
    }

    /// Returns true if no client may be let in, because too many earlier ones wait to be
    /// closed. The next tick looks again; until then clients wait in the kernel, unseen.
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

    /// On a tick: opens the paused doors again.
    pub(super) fn listen_again(&mut self) {
        for door in std::mem::take(&mut self.listeners.paused) {
            if let Some((listener, key)) = self.listener(door) {
                self.sources.set_interest(listener, key, true, false);
            }
        }
    }

    /// Has the socket of its user's processes ready for a job that has its cards.
    pub(super) fn open_door(&mut self, job: JobId) {
        let user = self.machine.job(job).and_then(|job| job.ask.user);
        if let Some(user) = user {
            self.open_door_of(user, job);
        }
    }

    /// After a restart: opens the sockets that the programs of earlier jobs know and look for.
    pub(super) fn open_doors_of_before(&mut self) {
        let before: Vec<(JobId, UserId)> = self.records.users().collect();
        for (job, user) in before {
            self.open_door_of(user, job);
        }
    }

    /// Opens a user's socket. That fails without root; its processes then use the shared socket.
    fn open_door_of(&mut self, user: UserId, job: JobId) {
        if self.listeners.audience == Audience::Owner {
            return;
        }
        if !self.listeners.users.contains_key(&user) {
            match self.new_door(user) {
                Ok(door) => drop(self.listeners.users.insert(user, door)),
                Err(error) => return warn!(%user, %error, "no socket for the user alone"),
            }
        }
        if let Some(door) = self.listeners.users.get_mut(&user) {
            door.jobs.insert(job);
        }
    }

    fn new_door(&mut self, user: UserId) -> Result<UserDoor, ArbiterError> {
        let folder = self.folder.user(user);
        let make = || {
            fs::create_dir_all(&folder)?;
            for folder in [&self.folder.users(), &folder] {
                fs::set_permissions(folder, fs::Permissions::from_mode(0o755))?;
            }
            match symlink(self.folder.tenant_socket(), folder.join(OTHERS)) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
                _ => Ok(()),
            }
        };
        make().map_err(at("making", folder.display()))?;
        let (kind, owner) = (SocketType::SEQPACKET, Some(Owner::User(user)));
        let (path, access) = (folder.join("tenant.sock"), Access::User(user));
        let listener = Listener::open(&path, kind, access, owner, &self.closers)?;
        let source = Source::ProcessListener(Door::User(user));
        let key = self.sources.add(&listener, "a user's socket", source)?;
        Ok(UserDoor {
            listener,
            key,
            jobs: BTreeSet::new(),
        })
    }

    /// On a tick: closes a user's socket when the user has no job left. (Not at once with each job:
    /// a user who runs short jobs again and again would have the socket made each time.)
    pub(super) fn close_unused_doors(&mut self) {
        if !self.lifetime.is_settled() {
            return;
        }
        let jobs = &self.jobs;
        let doors = &mut self.listeners.users;
        for door in doors.values_mut() {
            door.jobs.retain(|job| jobs.root(*job).is_some());
        }
        for (user, door) in doors.extract_if(.., |_, door| door.jobs.is_empty()) {
            self.sources.remove(door.key, &door.listener);
            let _ = fs::remove_dir_all(self.folder.user(user));
        }
    }

    /// The folder in which the processes of a user's jobs find their socket.
    pub(super) fn folder_of(&self, user: Option<UserId>) -> String {
        let own = user.filter(|user| self.listeners.users.contains_key(user));
        let folder = own.map_or(self.folder.path().to_owned(), |user| self.folder.user(user));
        folder.display().to_string()
    }
}
