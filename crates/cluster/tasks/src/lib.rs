//! Tasks that a process cannot do without.
//!
//! A task that panics is gone, and the rest of its process goes on: it renews its Lease, says that
//! it is ready, and does nothing. So [`Vital`] starts each task that must live as long as its
//! process, and the process waits beside its own work for the first that ends unasked
//! ([`Vigil::beside`]). It then ends as by a crash: it gives nothing back, and its starter starts
//! it again. It decides nothing.
//!
//! A task that ends by itself (an event that is posted, a Binding), or that is awaited at once, needs
//! none of this.
//!
//! # Modules
//! Controller, extender, stand-in and agent start tasks that must live as long as they do as
//! *vital tasks*, by name, and wait beside their own work for the first that ends unasked. The
//! process then ends with an error, and gives no Lease back: as by a crash. A connection, an
//! event and a Binding are no vital tasks; the caller gets an answer, or the next look finds the
//! work that is left.

use std::panic::{AssertUnwindSafe, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures::FutureExt;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::{JoinError, JoinHandle};

/// Starts such tasks.
#[derive(Debug, Clone)]
pub struct Vital {
    ended: UnboundedSender<TaskEnded>,
}

/// Hears of the first that ends.
#[derive(Debug)]
pub struct Vigil {
    ended: UnboundedReceiver<TaskEnded>,
}

/// A task has ended without being asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TaskEnded {
    /// It came to its end.
    #[error("{0} has ended, and nothing works without it")]
    ByItself(&'static str),
    /// It panicked; the message stands in the log before.
    #[error("{0} has panicked, and nothing works without it")]
    Panicked(&'static str),
}

/// A vital task. It ends when this is dropped.
#[derive(Debug)]
#[must_use = "the task ends when this is dropped"]
pub struct VitalTask<T> {
    task: JoinHandle<T>,
    asked: Arc<AtomicBool>,
}

/// Both sides: one starts tasks, one waits for their end.
#[must_use]
pub fn vital() -> (Vital, Vigil) {
    let (sender, receiver) = unbounded_channel();
    (Vital { ended: sender }, Vigil { ended: receiver })
}

impl Vital {
    /// Starts a task that lives as long as the process. `name` is for people: a noun with its article.
    pub fn start<F>(&self, name: &'static str, work: F)
    where
        F: Future<Output: Send> + Send + 'static,
    {
        // The end of the process is the first end that it may have.
        let _detached = tokio::spawn(self.watched(name, Arc::default(), work));
    }

    /// Starts a task that lives until the returned value is dropped, or says that it may end.
    pub fn start_for_now<F>(&self, name: &'static str, work: F) -> VitalTask<F::Output>
    where
        F: Future<Output: Send> + Send + 'static,
    {
        let asked: Arc<AtomicBool> = Arc::default();
        VitalTask {
            task: tokio::spawn(self.watched(name, asked.clone(), work)),
            asked,
        }
    }

    fn watched<F: Future>(
        &self,
        name: &'static str,
        asked: Arc<AtomicBool>,
        work: F,
    ) -> impl Future<Output = F::Output> + use<F> {
        let ended = self.ended.clone();
        async move {
            // Nothing of the work is looked at after a panic.
            let outcome = AssertUnwindSafe(work).catch_unwind().await;
            let how = match outcome {
                Ok(_) => TaskEnded::ByItself(name),
                Err(_) => TaskEnded::Panicked(name),
            };
            if !asked.load(Ordering::SeqCst) {
                // Without a receiver the process is at its end.
                let _heard = ended.send(how);
            }
            outcome.unwrap_or_else(|panic| resume_unwind(panic))
        }
    }
}

/// Vital tasks that end together, when this is dropped.
#[derive(Debug)]
pub struct VitalTasks {
    vital: Vital,
    tasks: Vec<VitalTask<()>>,
}

impl VitalTasks {
    /// None yet.
    #[must_use]
    pub fn new(vital: &Vital) -> VitalTasks {
        VitalTasks {
            vital: vital.clone(),
            tasks: Vec::new(),
        }
    }

    /// Starts one more. `name`: as of [`Vital::start`].
    pub fn start(&mut self, name: &'static str, work: impl Future<Output = ()> + Send + 'static) {
        self.tasks.push(self.vital.start_for_now(name, work));
    }
}

impl<T> VitalTask<T> {
    /// From now on its end is no surprise. To be said before the task is told to end.
    pub fn may_end(&self) {
        self.asked.store(true, Ordering::SeqCst);
    }

    /// Waits for its end.
    ///
    /// # Errors
    /// It panicked.
    pub async fn ended(mut self) -> Result<T, JoinError> {
        (&mut self.task).await
    }

    /// Ends the task, and waits until nothing of it runs any more.
    pub async fn end(mut self) {
        self.task.abort();
        let _ended = (&mut self.task).await;
    }
}

impl<T> Drop for VitalTask<T> {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Vigil {
    /// Does the work of the process, as long as every vital task lives.
    ///
    /// # Errors
    /// The first task that ended unasked.
    pub async fn beside<T>(&mut self, work: impl Future<Output = T>) -> Result<T, TaskEnded> {
        tokio::select! {
            // If both are ready, the work may be done only because a task is gone.
            biased;
            Some(ended) = self.ended.recv() => Err(ended),
            done = work => Ok(done),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use super::*;

    #[tokio::test]
    async fn a_task_that_ends_unasked_ends_the_work_beside_it() {
        let (vital, mut vigil) = vital();
        vital.start("the first", pending::<()>());
        assert_eq!(vigil.beside(ready(7)).await, Ok(7));
        vital.start("the second", async {});
        let ended = vigil.beside(pending::<()>()).await;
        assert_eq!(ended, Err(TaskEnded::ByItself("the second")));
        vital.start("the third", async { panic!("a bug") });
        let ended = vigil.beside(pending::<()>()).await;
        assert_eq!(ended, Err(TaskEnded::Panicked("the third")));
        let text = "the third has panicked, and nothing works without it";
        assert_eq!(ended.unwrap_err().to_string(), text);
    }

    #[tokio::test]
    async fn whoever_is_asked_to_end_is_not_missed() {
        let (vital, mut vigil) = vital();
        drop(vital.start_for_now("dropped", pending::<()>()));
        vital.start_for_now("ended", pending::<()>()).end().await;
        let (stop, stopped) = tokio::sync::oneshot::channel();
        let told = vital.start_for_now("told", async move { stopped.await.unwrap_or(0) });
        told.may_end();
        stop.send(7).unwrap();
        assert_eq!(told.ended().await.unwrap(), 7);
        let rest = async {
            for _ in 0..100 {
                tokio::task::yield_now().await;
            }
        };
        assert_eq!(vigil.beside(rest).await, Ok(()));
        // Another one is.
        let held = vital.start_for_now("held", async { panic!("a bug") });
        let ended = vigil.beside(pending::<()>()).await;
        assert_eq!(ended, Err(TaskEnded::Panicked("held")));
        assert!(held.ended().await.unwrap_err().is_panic());
    }

    /// A task may hold others, as a controller and the watches that it opens.
    #[tokio::test]
    async fn a_task_within_a_task_is_heard_of() {
        let (vital, mut vigil) = vital();
        let inner = vital.clone();
        vital.start("outer", async move {
            let mut held = VitalTasks::new(&inner);
            held.start("inner", async { panic!("a bug") });
            pending::<()>().await;
        });
        let ended = vigil.beside(pending::<()>()).await;
        assert_eq!(ended, Err(TaskEnded::Panicked("inner")));
    }
}
