//! The arbiter's wait: an epoll instance with a number for each descriptor. With a thousand
//! processes to watch, handing the kernel a list at every turn would cost more than all the rest.
//!
//! While the kernel checks a descriptor for news, it holds the file (`epi_fget` of
//! `fs/eventpoll.c`, since Linux 6.9). If another thread closes the descriptor in that moment, the
//! file ends in the thread that waits here, with all its unread contents. So a descriptor is taken
//! out before another thread may close it.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::event::{Timespec, epoll};

use crate::error::{ArbiterError, at};

/// A descriptor's number. It is never used twice.
pub(crate) type Key = u64;

pub(crate) struct Poller {
    epoll: OwnedFd,
    last: Key,
}

/// Maximum number of descriptors looked at in one turn; the others follow in the next.
const READY_MAX: usize = 256;

impl Poller {
    pub(crate) fn new() -> Result<Poller, ArbiterError> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(at("making", "epoll"))?;
        Ok(Poller { epoll, last: 0 })
    }

    /// Waits for a descriptor until [`Poller::remove`].
    pub(crate) fn add(&mut self, source: impl AsFd, what: &str) -> Result<Key, ArbiterError> {
        self.last += 1;
        let data = epoll::EventData::new_u64(self.last);
        epoll::add(&self.epoll, source, data, epoll::EventFlags::IN)
            .map_err(at("waiting for", what))?;
        Ok(self.last)
    }

    /// Waits until it can be read, written, or both; that it was closed is always told.
    pub(crate) fn set_interest(&self, source: impl AsFd, key: Key, reading: bool, writing: bool) {
        let mut flags = epoll::EventFlags::empty();
        flags.set(epoll::EventFlags::IN, reading);
        flags.set(epoll::EventFlags::OUT, writing);
        // It can only fail for a descriptor that is not there, which is about to be dropped.
        let _ = epoll::modify(&self.epoll, source, epoll::EventData::new_u64(key), flags);
    }

    /// Waits no more; the descriptor stays open.
    pub(crate) fn remove(&self, source: impl AsFd) {
        let _ = epoll::delete(&self.epoll, source);
    }

    /// Waits, at most for `limit`. Returns the numbers of the descriptors with news.
    pub(crate) fn wait(&mut self, limit: Duration) -> Result<Vec<Key>, ArbiterError> {
        let limit = Timespec {
            tv_sec: i64::try_from(limit.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(limit.subsec_nanos()),
        };
        let mut ready = [const { MaybeUninit::uninit() }; READY_MAX];
        match epoll::wait(&self.epoll, &mut ready, Some(&limit)) {
            Ok((ready, _)) => Ok(ready.iter().map(|event| event.data.u64()).collect()),
            Err(rustix::io::Errno::INTR) => Ok(Vec::new()),
            Err(error) => Err(at("waiting for", "sockets and processes")(error)),
        }
    }
}
