//! The arbiter's wait: an epoll instance with a number for each descriptor. With a thousand
//! processes to watch, handing the kernel a list at every turn would cost more than all the rest.
//!
//! While the kernel checks a descriptor for news, it holds the file (`epi_fget` of
//! `fs/eventpoll.c`, since Linux 6.9). If another thread closes the descriptor in that moment, the
//! file ends in the thread that waits here, with all its unread contents. So a descriptor is taken
//! out before another thread may close it.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{Timespec, epoll};

use crate::error::{ArbiterError, at};

/// A descriptor's number.
pub(crate) type Key = u64;

/// An epoll instance. Another one can wait for it: it can be read while it has news.
pub(crate) struct Poller(OwnedFd);

/// Maximum number of descriptors looked at in one turn; the others follow in the next.
const READY_MAX: usize = 256;

impl AsFd for Poller {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Poller {
    pub(crate) fn new() -> Result<Poller, ArbiterError> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(at("making", "epoll"))?;
        Ok(Poller(epoll))
    }

    /// Waits for a descriptor, by this number, until [`Poller::remove`].
    pub(crate) fn add(&self, source: impl AsFd, key: Key, what: &str) -> Result<(), ArbiterError> {
        let data = epoll::EventData::new_u64(key);
        epoll::add(&self.0, source, data, epoll::EventFlags::IN).map_err(at("waiting for", what))
    }

    /// Waits until it can be read, written, or both; that it was closed is always told.
    pub(crate) fn set_interest(&self, source: impl AsFd, key: Key, reading: bool, writing: bool) {
        let mut flags = epoll::EventFlags::empty();
        flags.set(epoll::EventFlags::IN, reading);
        flags.set(epoll::EventFlags::OUT, writing);
        // It can only fail for a descriptor that is not there, which is about to be dropped.
        let _ = epoll::modify(&self.0, source, epoll::EventData::new_u64(key), flags);
    }

    /// Waits no more; the descriptor stays open.
    pub(crate) fn remove(&self, source: impl AsFd) {
        let _ = epoll::delete(&self.0, source);
    }

    /// Waits, at most for `limit`. Returns the numbers of the descriptors with news.
    pub(crate) fn wait(&self, limit: Duration) -> Result<Vec<Key>, ArbiterError> {
        let limit = Timespec {
            tv_sec: i64::try_from(limit.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(limit.subsec_nanos()),
        };
        let mut ready = [const { MaybeUninit::uninit() }; READY_MAX];
        match epoll::wait(&self.0, &mut ready, Some(&limit)) {
            Ok((ready, _)) => Ok(ready.iter().map(|event| event.data.u64()).collect()),
            Err(rustix::io::Errno::INTR) => Ok(Vec::new()),
            Err(error) => Err(at("waiting for", "sockets and processes")(error)),
        }
    }
}
