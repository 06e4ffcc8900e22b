//! The thread in which the node's arbiter runs, and its end.

use std::path::Path;
use std::thread::JoinHandle;

use sublet_arbiter::{Arbiter, ArbiterError};
use tokio::sync::watch;

use super::IsolationError;

/// Becomes the reason when the arbiter has ended.
pub(super) type Ended = watch::Receiver<Option<String>>;

/// Tells it, whatever the thread dies of.
struct EndNotice(watch::Sender<Option<String>>);

impl EndNotice {
    fn write(&self, outcome: Result<(), ArbiterError>) {
        let why = match outcome {
            Ok(()) => "it was told to".to_owned(),
            Err(error) => error.to_string(),
        };
        self.0.send_replace(Some(why));
    }
}

impl Drop for EndNotice {
    fn drop(&mut self) {
        self.0.send_if_modified(|why| {
            let is_untold = why.is_none();
            if is_untold {
                *why = Some("its thread has panicked".to_owned());
            }
            is_untold
        });
    }
}

/// Runs the arbiter in a thread of its own.
pub(super) fn run(arbiter: Arbiter) -> Result<(Ended, JoinHandle<()>), IsolationError> {
    run_body(move || arbiter.run())
}

fn run_body(
    body: impl FnOnce() -> Result<(), ArbiterError> + Send + 'static,
) -> Result<(Ended, JoinHandle<()>), IsolationError> {
    let (tell, ended) = watch::channel(None);
    let notice = EndNotice(tell);
    let thread = std::thread::Builder::new().name("arbiter".to_owned());
    let thread = thread
        .spawn(move || notice.write(body()))
        .map_err(IsolationError::io(
            "starting",
            Path::new("the arbiter's thread"),
        ))?;
    Ok((ended, thread))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_the_thread_is_told_whatever_it_dies_of() {
        let end = |body: fn() -> Result<(), ArbiterError>| {
            let (ended, thread) = run_body(body).unwrap();
            let _panicked = thread.join();
            let why = ended.borrow().clone();
            why.unwrap()
        };
        assert_eq!(end(|| Ok(())), "it was told to");
        let refused = || Err(ArbiterError::Setting("no such card".to_owned()));
        assert_eq!(end(refused), "no such card");
        assert_eq!(end(|| panic!("a test does it")), "its thread has panicked");
    }
}
