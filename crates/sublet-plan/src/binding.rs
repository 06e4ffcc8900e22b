//! What to do when the API server's answer to a Binding is missing or in doubt.
//!
//! One write binds a pod and records its allocation, so the only question is whether that write
//! took effect. A refusal is certain. A lost answer is not: the request may still be on its way.
//! So the reservation is kept and the pod is read. An unbound pod proves that nothing was written
//! only after the server's own deadline for the request has passed.
//!
//! This is a state machine without a clock or a socket. `sublet-scheduler` performs its steps. Its
//! `simulation` performs them against a server that misbehaves in every way.

use sublet_model::Time;

/// What to do next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BindingStep {
    /// Send the Binding.
    Post,
    /// Read the pod, not before that moment.
    Read(Time),
    /// The pod is bound as it should be.
    Bound,
    /// It is not and will not be: give the place back and say why.
    Failed(String),
}

/// What came back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ApiAnswer {
    /// The Binding was accepted.
    Accepted,
    /// The answer was an error. HTTP 4xx is a refusal: certainly nothing was written by this
    /// request. 5xx, and 408 from a proxy, say no more than [`ApiAnswer::Unanswered`].
    Refused {
        /// HTTP status.
        code: u16,
        /// The API server's words.
        message: String,
    },
    /// A time-out or a broken connection: it may have been written.
    Unanswered(String),
    /// The pod as it is now.
    Pod(PodState),
    /// It could not be read.
    Unreadable(String),
}

/// How a pod that was read compares with the Binding.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PodState {
    /// On the node and with the allocation that the Binding said.
    AsAsked,
    /// Bound, but not so.
    Elsewhere(String),
    /// Not bound.
    Unbound,
    /// Deleted, or another pod of the same name.
    Gone,
}

/// One try to bind one pod.
#[derive(Debug, Clone)]
pub struct Binding {
    settled_at: Time,
    pause_ms: u64,
    trouble: String,
}

impl Binding {
    /// Starts a try. After `settle_ms` a request without an answer can take effect no more:
    /// the API server's own deadline for it, its journey there, and what etcd may have in hand.
    #[must_use]
    pub fn start(now: Time, settle_ms: u64) -> (Binding, BindingStep) {
        (
            Binding {
                settled_at: now.plus_ms(settle_ms),
                pause_ms: 50,
                trouble: String::new(),
            },
            BindingStep::Post,
        )
    }

    /// Takes in what came back and says what to do next. For a pod that was read, `now` is the
    /// moment when the read began: what it shows may be as old as that.
    pub fn apply(&mut self, now: Time, seen: ApiAnswer) -> BindingStep {
        match seen {
            ApiAnswer::Accepted | ApiAnswer::Pod(PodState::AsAsked) => BindingStep::Bound,
            // "Already bound" may be the echo of our own earlier write.
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
                self.pause_ms = (self.pause_ms * 2).min(1_000);
                BindingStep::Read(now.plus_ms(self.pause_ms))
            }
        }
    }
}

#[cfg(test)]
mod simulation;
#[cfg(test)]
mod tests;
