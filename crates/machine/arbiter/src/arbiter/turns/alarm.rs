//! A clock that wakes the arbiter at a moment, to the microsecond: slices are too short for the
//! whole milliseconds in which an epoll waits.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};

use crate::error::{ArbiterError, at};

/// The clock, and the time it is set to.
#[derive(Debug)]
pub(super) struct Alarm {
    timer: OwnedFd,
    set_to: Option<Duration>,
}

impl Alarm {
    pub(super) fn new() -> Result<Alarm, ArbiterError> {
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let timer = timerfd_create(TimerfdClockId::Monotonic, flags);
        Ok(Alarm {
            timer: timer.map_err(at("making", "a timer"))?,
            set_to: None,
        })
    }

    /// Wakes the arbiter at `due` and at no other time; never if nothing is due.
    pub(super) fn set(&mut self, due: Option<Duration>) {
        if self.set_to == due {
            return;
        }
        self.set_to = due;
        // Zero would stop the timer.
        let due = due.map(|due| due.max(Duration::from_nanos(1)));
        let due = due.unwrap_or_default();
        let value = Itimerspec {
            it_interval: Timespec::default(),
            it_value: Timespec {
                tv_sec: i64::try_from(due.as_secs()).unwrap_or(i64::MAX),
                tv_nsec: i64::from(due.subsec_nanos()),
            },
        };
        // It fails for values that are no time, and this is one.
        let _ = timerfd_settime(&self.timer, TimerfdTimerFlags::ABSTIME, &value);
    }

    /// It has rung.
    pub(super) fn take(&mut self) {
        let _ = rustix::io::read(&self.timer, &mut [0; 8]);
        self.set_to = None;
    }
}

impl AsFd for Alarm {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.timer.as_fd()
    }
}
