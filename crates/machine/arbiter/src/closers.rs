//! Threads that close files, which can take long.
//!
//! A tenant can put any file into a message: a TCP connection that lingers, or a file of a FUSE
//! file system that never answers. A thread that closes the last descriptor of such a file waits
//! as long as the tenant likes; and a thread that closes a connection closes its unread files,
//! too. So the arbiter's thread closes neither: it hands them over, together with their owner.
//! Each owner has a few threads and no more, so no owner waits for another's files.
//!
//! A thread that hangs holds no place in the table of descriptors, because the kernel takes the
//! number back first. A descriptor that waits for a thread holds its place. So the arbiter stops
//! listening to an owner with many waiting here ([`Closers::are_stuck`],
//! [`Closers::are_crowded`]).

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::process::Resource;
use sublet_share::{JobId, UserId};
use tracing::warn;

/// Maximum number of threads that close one owner's files at one time: two, so that one file
/// that takes a second to close, as a device's may, does not hold up the owner's others.
const THREADS_AN_OWNER: usize = 2;

/// Maximum number of threads. One takes 64 KiB of address space and some 20 KiB of the
/// kernel's memory.
const THREADS_MAX: usize = 256;

/// Waiting files of an owner at which its threads count as hanging. More than arrive at once from
/// correct programs that end together.
const WAITING_MAX: usize = 64;

/// Part of the process's descriptors that may wait here: one in eight. With more, sockets that
/// several users reach let no client in.
const DESCRIPTORS_A_CROWD: u64 = 8;

/// The same for a socket of one owner, whose own [`WAITING_MAX`] comes long before: the files of
/// others must not shut it, unless the last descriptors are nearly used up.
const DESCRIPTORS_A_FULL: u64 = 2;

/// Longest wait of a thread for more files before it ends.
const IDLE: Duration = Duration::from_secs(2);

/// Stack of a thread, which only calls `close`.
const STACK_BYTES: usize = 64 * 1024;

/// Owner of files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Owner {
    /// A container, for a process that came by its socket.
    Job(JobId),
    /// A user, for a process that came by a socket that many can reach.
    User(UserId),
    /// Several owners: the files that wait at such a socket have not been looked at.
    Anyone,
}

/// The threads, and the files that wait for them. All copies share one state.
#[derive(Debug, Clone)]
pub(crate) struct Closers(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    /// Something waits.
    work: Condvar,
    /// Maximum number of descriptors of the process.
    descriptors: u64,
}

impl Default for Closers {
    fn default() -> Closers {
        let limit = rustix::process::getrlimit(Resource::Nofile).current;
        Closers::among(limit.unwrap_or(u64::MAX))
    }
}

#[derive(Debug, Default)]
struct State {
    owners: BTreeMap<Owner, OwnersFiles>,
    waiting: usize,
    threads: usize,
    /// Threads that have nothing to close, or have just begun.
    idle: usize,
}

#[derive(Debug, Default)]
struct OwnersFiles {
    waiting: VecDeque<OwnedFd>,
    /// Number of threads that close one of the files.
    closing: usize,
}

impl Closers {
    /// The closers of a process with at most this number of descriptors.
    pub(crate) fn among(descriptors: u64) -> Closers {
        Closers(Arc::new(Shared {
            state: Mutex::default(),
            work: Condvar::new(),
            descriptors,
        }))
    }

    /// Closes them, now or later, in another thread.
    pub(crate) fn close(&self, owner: Owner, files: impl IntoIterator<Item = OwnedFd>) {
        let mut state = self.lock();
        let files: Vec<OwnedFd> = files.into_iter().collect();
        if files.is_empty() {
            return;
        }
        let more = files.len();
        let of_owner = state.owners.entry(owner).or_default();
        of_owner.waiting.extend(files);
        let may_have_thread = of_owner.has_next();
        state.waiting += more;
        if may_have_thread {
            Shared::call_thread(&self.0, state);
        }
    }

    /// True if too many of an owner's files wait: no more of them may be taken.
    pub(crate) fn are_stuck(&self, owner: Owner) -> bool {
        let state = self.lock();
        let of_owner = state.owners.get(&owner);
        of_owner.is_some_and(|files| files.waiting.len() >= WAITING_MAX)
    }

    /// True if so many files wait, of all owners together, that many users' may not come.
    pub(crate) fn are_crowded(&self) -> bool {
        self.holds_part(DESCRIPTORS_A_CROWD)
    }

    /// True if so many files wait, of all owners together, that soon no descriptor is left.
    pub(crate) fn are_full(&self) -> bool {
        self.holds_part(DESCRIPTORS_A_FULL)
    }

    fn holds_part(&self, parts: u64) -> bool {
        let waiting = u64::try_from(self.lock().waiting).unwrap_or(u64::MAX);
        waiting >= self.0.descriptors / parts
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock()
    }
}

impl Shared {
    /// Makes sure that a thread takes the waiting file: an idle one, or a new one.
    fn call_thread(shared: &Arc<Shared>, mut state: MutexGuard<'_, State>) {
        if state.idle > 0 {
            shared.work.notify_one();
            return;
        }
        if state.threads >= THREADS_MAX {
            return;
        }
        state.threads += 1;
        state.idle += 1;
        drop(state);
        let own = Arc::clone(shared);
        let thread = std::thread::Builder::new()
            .name("closer".to_owned())
            .stack_size(STACK_BYTES);
        if let Err(error) = thread.spawn(move || Shared::work(&own)) {
            let mut state = shared.lock();
            state.threads -= 1;
            state.idle -= 1;
            // It waits for one of the others, or for the next call.
            warn!(%error, "no thread to close a file with");
        }
    }

    /// A thread's life.
    fn work(shared: &Arc<Shared>) {
        let mut state = shared.lock();
        loop {
            if let Some((owner, file)) = state.next() {
                state.idle -= 1;
                // This may take long, and whoever called may have meant another one too.
                match state.has_next() {
                    true => Shared::call_thread(shared, state),
                    false => drop(state),
                }
                drop(file);
                state = shared.lock();
                state.idle += 1;
                state.is_closed(owner);
                continue;
            }
            let waited = shared.work.wait_timeout(state, IDLE);
            let (awake, waited) = waited.unwrap_or_else(PoisonError::into_inner);
            state = awake;
            if waited.timed_out() && !state.has_next() {
                state.idle -= 1;
                state.threads -= 1;
                return;
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// A file that may be closed now.
    fn next(&mut self) -> Option<(Owner, OwnedFd)> {
        let mut owners = self.owners.iter_mut();
        let (owner, files) = owners.find(|(_, files)| files.has_next())?;
        let file = files.waiting.pop_front()?;
        files.closing += 1;
        self.waiting -= 1;
        Some((*owner, file))
    }

    fn has_next(&self) -> bool {
        self.owners.values().any(OwnersFiles::has_next)
    }

    fn is_closed(&mut self, owner: Owner) {
        if let Some(files) = self.owners.get_mut(&owner) {
            files.closing -= 1;
            if files.closing == 0 && files.waiting.is_empty() {
                self.owners.remove(&owner);
            }
        }
    }
}

impl OwnersFiles {
    fn has_next(&self) -> bool {
        self.closing < THREADS_AN_OWNER && !self.waiting.is_empty()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};
    use std::time::Instant;

    use super::*;

    /// A file that takes a minute to close while its other end is there.
    pub(crate) fn lingering() -> (OwnedFd, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut writer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (reader, _) = listener.accept().unwrap();
        let minute = Some(Duration::from_secs(60));
        rustix::net::sockopt::set_socket_linger(&writer, minute).unwrap();
        writer.set_nonblocking(true).unwrap();
        while writer.write(&[0; 65536]).is_ok() {}
        (writer.into(), reader)
    }

    fn until(is_so: impl Fn() -> bool) {
        let begun = Instant::now();
        while !is_so() {
            assert!(begun.elapsed() < Duration::from_secs(20), "never so");
            std::thread::yield_now();
        }
    }

    #[test]
    fn who_hangs_holds_up_nobody_else() {
        let closers = Closers::default();
        let (bad, good) = (Owner::User(UserId(1)), Owner::Job(JobId(1)));
        let mut readers = Vec::new();
        for _ in 0..THREADS_AN_OWNER + WAITING_MAX {
            assert!(!closers.are_stuck(bad));
            let (file, reader) = lingering();
            readers.push(reader);
            closers.close(bad, [file]);
        }
        until(|| closers.lock().owners[&bad].closing == THREADS_AN_OWNER);
        assert!(closers.are_stuck(bad) && !closers.are_stuck(good));
        for _ in 0..100 {
            closers.close(good, [std::fs::File::open("/dev/null").unwrap().into()]);
        }
        until(|| !closers.lock().owners.contains_key(&good));
        let threads = closers.lock().threads;
        assert!(threads <= 2 * THREADS_AN_OWNER, "{threads}");
        // The other ends go, and nothing lingers any more.
        drop(readers);
        until(|| closers.lock().owners.is_empty());
        assert_eq!(closers.lock().waiting, 0);
        until(|| closers.lock().threads == 0);
    }
}
