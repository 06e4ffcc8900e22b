//! Decides the next step when the API server's answer to a Binding is missing or in doubt.
//!
//! One write binds a pod and records its allocation, so the only question is whether that write
//! took effect. A refusal is certain. A lost answer is not: the request may still be on its way.
//! So the reservation is kept and the pod is read. An unbound pod proves that nothing was written
//! only after the server's own deadline for the request has passed.
//!
//! This is a state machine without a clock or a socket. `sublet-scheduler` performs its steps. Its
//! `simulation` performs them against a server that misbehaves in every way.

use std::time::Duration;

use sublet_model::{Pauses, Time};

/// The next step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BindingStep {
    /// Send the Binding.
    Post,
    /// Read the pod, at this moment or later.
    Read(Time),
    /// The pod is bound to the node and with the allocation that we asked for.
    Bound,
    /// The pod is not bound as we asked, and will not be: free the place and report the reason.
    Failed(String),
}

/// An answer from the API server, or the lack of one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ApiAnswer {
    /// The Binding was accepted.
    Accepted,
    /// The answer was an error. With HTTP 4xx this request certainly wrote nothing. HTTP 5xx, and
    /// 408 from a proxy, tell no more than [`ApiAnswer::Unanswered`].
    Refused {
        /// HTTP status.
        code: u16,
        /// The API server's message.
        message: String,
    },
    /// A time-out or a broken connection: the Binding may have been written.
    Unanswered(String),
    /// The pod as it is now.
    Pod(PodState),
    /// The pod could not be read.
    Unreadable(String),
}

/// The result of comparing a pod that was read with the Binding.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PodState {
    /// Bound to the node and with the allocation that the Binding names.
    AsAsked,
    /// Bound in another way.
    Elsewhere(String),
    /// Not bound.
    Unbound,
    /// Deleted, or replaced by another pod of the same name.
    Gone,
}

/// The pauses before the pod is read again.
const PAUSES: Pauses = Pauses::new(Duration::from_millis(100), Duration::from_secs(1));

/// One try to bind one pod.
#[derive(Debug, Clone)]
pub struct Binding {
    settled_at: Time,
    /// The number of reads of the pod that told nothing.
    failures: u32,
    trouble: String,
}

impl Binding {
    /// Starts a try. After `settle_ms`, a request without an answer can no longer take effect. The
    /// time covers its way to the API server, the server's own deadline for it, and writes that
    /// etcd has not finished.
    #[must_use]
    pub fn start(now: Time, settle_ms: u64) -> (Binding, BindingStep) {
        (
            Binding {
                settled_at: now.plus_ms(settle_ms),
                failures: 0,
                trouble: String::new(),
            },
            BindingStep::Post,
        )
    }

    /// Takes an answer and returns the next step. `now` is the moment of the answer; but for a pod
    /// that was read, it is the moment when the read began, because the pod may be as old as that.
    pub fn apply(&mut self, now: Time, seen: ApiAnswer) -> BindingStep {
        match seen {
            ApiAnswer::Accepted | ApiAnswer::Pod(PodState::AsAsked) => BindingStep::Bound,
            // The server may say "already bound" because an earlier request of ours was written.
            ApiAnswer::Refused { code: 409, message } => {
                self.trouble = message;
                self.settled_at = now;
                BindingStep::Read(now)
            }
            ApiAnswer::Refused { code, message } if code == 408 || code >= 500 => {
                self.trouble = format!("{message} ({code})");
                BindingStep::Read(now)
            }
            ApiAnswer::Refused { code, message } => {
                BindingStep::Failed(format!("{message} ({code})"))
            }
            ApiAnswer::Unanswered(why) => {
                self.trouble = why;
                BindingStep::Read(now)
            }
            ApiAnswer::Pod(PodState::Elsewhere(how)) => BindingStep::Failed(how),
            ApiAnswer::Pod(PodState::Gone) => BindingStep::Failed("the pod is gone".to_owned()),
            ApiAnswer::Pod(PodState::Unbound) if now >= self.settled_at => {
                BindingStep::Failed(std::mem::take(&mut self.trouble))
            }
            ApiAnswer::Pod(PodState::Unbound) | ApiAnswer::Unreadable(_) => {
                self.failures = self.failures.saturating_add(1);
                BindingStep::Read(now.plus(PAUSES.after(self.failures)))
            }
        }
    }
}

#[cfg(test)]
mod simulation;
#[cfg(test)]
mod tests;
