//! After a restart: finds the processes on the cards that have an earlier ledger open, with which
//! they may come back.
//!
//! The kernel lists a process's files by holding each for a moment. The last one to let a file go
//! closes it, which can take as long as its process likes (`crate::closers`). So a separate thread
//! looks at each process once, and nothing waits for it. Until it is known, a process may come
//! back; that time is short.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use std::thread;

use sublet_share::Pid;

use crate::peer;

/// Maximum number of processes looked at. Others are called strangers only after the time to come
/// back is over.
const LOOKS_MAX: usize = 256;

/// Stack of a thread that reads one folder.
const STACK_BYTES: usize = 128 * 1024;

/// Whether each process has such a ledger, as far as it is known.
#[derive(Debug, Default)]
pub(super) struct Returning(BTreeMap<Pid, Arc<OnceLock<bool>>>);

impl Returning {
    /// May that process come back?
    pub(super) fn may(&mut self, pid: Pid) -> bool {
        if self.0.len() >= LOOKS_MAX && !self.0.contains_key(&pid) {
            return true;
        }
        let answer = self.0.entry(pid).or_insert_with(|| {
            look(move |has| {
                let _first = has.set(peer::may_hold_ledger(pid));
            })
        });
        answer.get().copied().unwrap_or(true)
    }
}

fn look(at: impl FnOnce(&OnceLock<bool>) + Send + 'static) -> Arc<OnceLock<bool>> {
    let answer = Arc::new(OnceLock::new());
    let own = Arc::clone(&answer);
    let thread = thread::Builder::new()
        .name("looker".to_owned())
        .stack_size(STACK_BYTES);
    // Without a thread it stays unknown.
    let _ = thread.spawn(move || at(&own));
    answer
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn who_cannot_be_looked_at_yet_may_come_back() {
        let (end, wait) = std::sync::mpsc::channel::<()>();
        let hangs = look(move |_| {
            let _ended = wait.recv();
        });
        let mut returning = Returning::default();
        returning.0.insert(Pid(1), hangs);
        assert!(returning.may(Pid(1)));
        drop(end);
        // Nobody has that number, and so no ledger.
        let nobody = Pid(u32::MAX);
        let deadline = Instant::now() + Duration::from_secs(20);
        while returning.may(nobody) {
            assert!(Instant::now() < deadline, "it is not known");
            thread::yield_now();
        }
        let full = (2..).map(Pid).take(LOOKS_MAX);
        returning.0.extend(full.map(|pid| (pid, Arc::default())));
        assert!(returning.may(Pid(u32::MAX - 1)), "it is not looked at");
    }
}
