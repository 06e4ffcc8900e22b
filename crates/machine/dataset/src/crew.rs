//! Threads that work on one thing together: they share a stop, the first fault and a count of what
//! they did. A thread that the source keeps for ever is left behind, and nobody waits for it.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use sublet_cache::{FaultKind, SourceFault};

/// A source that does not answer at all for so long is given up.
pub(crate) const STALL: Duration = Duration::from_secs(60);

/// Interval of the looks at stops and stalls.
const LOOK: Duration = Duration::from_millis(50);

/// A stop that several crews and their owner share.
#[derive(Debug, Clone, Default)]
pub(crate) struct StopFlag(Arc<AtomicBool>);

impl StopFlag {
    pub(crate) fn stop(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// A crew.
#[derive(Debug)]
pub(crate) struct Crew {
    stop: StopFlag,
    /// Stops this crew alone: it failed, or was left behind.
    over: AtomicBool,
    progress: AtomicU64,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    working: usize,
    fault: Option<SourceFault>,
}

/// A member that ends, be it by a panic.
struct Leaves<'a>(&'a Crew);

impl Drop for Leaves<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.fail(SourceFault {
                kind: FaultKind::Passing,
                text: "a thread of the fetch panicked; the log has more".to_owned(),
            });
        }
        self.0.state().working -= 1;
        self.0.changed.notify_all();
    }
}

impl Crew {
    pub(crate) fn new(stop: StopFlag) -> Arc<Crew> {
        Arc::new(Crew {
            stop,
            over: AtomicBool::new(false),
            progress: AtomicU64::new(0),
            state: Mutex::default(),
            changed: Condvar::new(),
        })
    }

    /// Starts a member.
    ///
    /// # Errors
    /// The system has no thread left.
    pub(crate) fn start(
        self: &Arc<Crew>,
        name: &str,
        work: impl FnOnce(&Crew) + Send + 'static,
    ) -> io::Result<()> {
        self.state().working += 1;
        let crew = self.clone();
        let member = std::thread::Builder::new().name(name.to_owned());
        let started = member.spawn(move || {
            let leaves = Leaves(&crew);
            work(leaves.0);
        });
        if started.is_err() {
            self.state().working -= 1;
        }
        started.map(|_never_joined| ())
    }

    /// True once a member should end.
    pub(crate) fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed) || self.stop.is_set()
    }

    /// Something was done.
    pub(crate) fn progressed(&self) {
        self.progress.fetch_add(1, Ordering::Relaxed);
    }

    /// Ends the crew by a fault; the first one counts.
    pub(crate) fn fail(&self, fault: SourceFault) {
        self.state().fault.get_or_insert(fault);
        self.over.store(true, Ordering::Relaxed);
        self.changed.notify_all();
    }

    /// The fault that ended the crew, if one did.
    pub(crate) fn fault(&self) -> Option<SourceFault> {
        let fault = self.state().fault.clone();
        fault.or_else(|| self.stop.is_set().then(stopped))
    }

    /// Waits until every member has ended.
    ///
    /// # Errors
    /// The first fault of a member, the stop, or the stall of all.
    pub(crate) fn wait(&self, stall: Duration) -> Result<(), SourceFault> {
        let mut progress = (self.progress.load(Ordering::Relaxed), Instant::now());
        loop {
            let state = self.state();
            if state.working == 0 {
                break;
            }
            let waited = self.changed.wait_timeout(state, LOOK);
            drop(waited.unwrap_or_else(PoisonError::into_inner));
            let now = self.progress.load(Ordering::Relaxed);
            if now != progress.0 {
                progress = (now, Instant::now());
            } else if progress.1.elapsed() >= stall {
                self.fail(stalled(stall));
                break;
            }
        }
        self.fault().map_or(Ok(()), Err)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A source that did not answer for so long.
pub(crate) fn stalled(time: Duration) -> SourceFault {
    SourceFault {
        kind: FaultKind::Passing,
        text: format!("no answer for {} s", time.as_secs()),
    }
}

/// The end of work that was stopped.
pub(crate) fn stopped() -> SourceFault {
    SourceFault {
        kind: FaultKind::Stopped,
        text: "stopped".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_that_panics_ends_the_crew_with_a_fault() {
        let crew = Crew::new(StopFlag::default());
        crew.start("bad", |_| panic!("on purpose")).unwrap();
        crew.start("good", |crew| {
            while !crew.is_over() {
                std::thread::yield_now();
            }
        })
        .unwrap();
        let fault = crew.wait(STALL).unwrap_err();
        assert!(fault.text.contains("panicked"), "{}", fault.text);
    }

    #[test]
    fn case_18_members_that_hang_are_left_behind() {
        let crew = Crew::new(StopFlag::default());
        let (_open, closed) = std::sync::mpsc::channel::<()>();
        crew.start("stuck", move |_| {
            let _never = closed.recv();
        })
        .unwrap();
        let fault = crew.wait(Duration::from_millis(100)).unwrap_err();
        assert_eq!(
            (fault.kind, fault.text.as_str()),
            (FaultKind::Passing, "no answer for 0 s")
        );
    }

    #[test]
    fn a_stop_is_no_fault_of_the_source() {
        let stop = StopFlag::default();
        let crew = Crew::new(stop.clone());
        crew.start("one", |crew| {
            while !crew.is_over() {
                std::thread::yield_now();
            }
        })
        .unwrap();
        stop.stop();
        assert_eq!(crew.wait(STALL), Err(stopped()));
    }
}
