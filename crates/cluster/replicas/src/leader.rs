//! The right to write: held by the one replica that holds the Lease.
//!
//! A leader writes for a while after each confirmed renewal of its Lease, counted from the moment
//! the renewal was sent. Another replica takes the Lease only after it has stood still, by that
//! replica's own clock, for longer than that. So clocks need not agree, and a leader that was
//! frozen or cut off has stopped writing before its successor begins. Only the clock of a whole
//! suspended machine can deceive it; the version in each write is the last guard then. A leader whose
//! renewal was late, because the API server was slow, writes nothing meanwhile and then goes on in the
//! same tenure: as long as it finds the Lease its own, nobody else has led. Else a slow server would be
//! asked for all lists anew, which makes it slower. `Election`
//! decides the next step for the Lease and does nothing itself; `campaign` does it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use serde_json::json;
use sublet_client::{Act, WriteError};
use tokio::sync::watch;

mod campaign;

use crate::secret::kept;

pub use campaign::{campaign, process_name};

/// The times of an election.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeaseTiming {
    /// Time that a Lease must stand still until another replica takes it; whole seconds.
    pub lasts: Duration,
    /// Time that a leader writes after its last renewal. The rest of `lasts` is for a write that
    /// the API server has begun.
    pub writes: Duration,
    /// Interval of reading and renewing the Lease.
    pub retry: Duration,
}

/// The times of every leader of ours, because others wait for all of them: pods for the extender, groups for
/// the queue. Kubernetes' own controllers take three times as long (15 s). A successor writes within 6 s
/// of a leader's death: one look to see its last renewal, `lasts`, one look more, and the lists that it
/// begins with. The rest of `lasts` after `writes` is [`SWIFT_DEADLINE`] and [`SWIFT_JOURNEY`].
pub const SWIFT: LeaseTiming = LeaseTiming {
    lasts: Duration::from_secs(4),
    writes: Duration::from_millis(1_500),
    retry: Duration::from_millis(400),
};

/// Longest time that the API server works on a write of such a leader.
pub const SWIFT_DEADLINE: Duration = Duration::from_secs(2);

/// Longest time of such a write to the API server, if the clocks of two machines drift apart by no
/// more than one part in a hundred. If not, the node's agent is the second line.
pub const SWIFT_JOURNEY: Duration = Duration::from_millis(400);

/// One leadership of this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tenure {
    /// Tells it from earlier and later ones of this process.
    pub number: u64,
    /// Tells it from all others of this Lease: each is higher than those of all that began before
    /// it, in any process, whatever became of the Lease in between. It is the version that the API
    /// server gave the Lease when the tenure began. Versions are whole numbers that only grow
    /// (KEP-5504), also over a deletion. If a server's versions are not numbers, the epoch is zero.
    pub epoch: u64,
    /// Send time of its last confirmed renewal: no other replica led then.
    pub renewed: Instant,
    /// Nothing is written after this time, until the Lease has been renewed.
    pub until: Instant,
    /// Time at which the Lease was made, if there was none before: it cannot tell then whether an
    /// earlier leader still writes. A Lease that was taken has stood still, or was given back.
    pub made: Option<Instant>,
}

impl Tenure {
    /// Time from which it may write without meeting writes of an earlier leader: at once, unless
    /// it is unknown whether there was one.
    #[must_use]
    pub fn quiet_at(&self, timing: &LeaseTiming) -> Option<Instant> {
        self.made.map(|made| made + timing.lasts)
    }
}

/// Knowledge of this process about its leadership.
#[derive(Debug, Clone)]
pub struct Leadership {
    tenure: watch::Receiver<Option<Tenure>>,
    holder: watch::Receiver<String>,
    open: Arc<AtomicUsize>,
}

impl Leadership {
    /// Waits until this process leads; returns the number of its tenure. Waits for ever if the
    /// campaign is over.
    pub async fn won(&mut self) -> u64 {
        self.inaugurated().await.number
    }

    /// The same, with all that is known of the tenure.
    pub async fn inaugurated(&mut self) -> Tenure {
        loop {
            if let Some(tenure) = *self.tenure.borrow_and_update()
                && Instant::now() < tenure.until
            {
                return tenure;
            }
            if self.tenure.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    /// The holder of the Lease, as last read; empty if there is none.
    #[must_use]
    pub fn holder(&self) -> watch::Receiver<String> {
        self.holder.clone()
    }

    /// The state of that tenure; `None` once another has begun or this process holds the Lease no
    /// longer.
    #[must_use]
    pub fn tenure(&self, number: u64) -> Option<Tenure> {
        (*self.tenure.borrow()).filter(|tenure| tenure.number == number)
    }

    /// Time that the tenure may still write; `None` if it is over, or its renewal is late.
    #[must_use]
    pub fn left(&self, number: u64) -> Option<Duration> {
        let until = self.tenure(number)?.until;
        let left = until.saturating_duration_since(Instant::now());
        (!left.is_zero()).then_some(left)
    }

    /// Is no write open? One that was given up without an answer stays open.
    #[must_use]
    pub fn all_answered(&self) -> bool {
        self.open.load(Ordering::SeqCst) == 0
    }

    /// Sends a write and waits for its answer, if that tenure still may write; `None` if not, and
    /// nothing is sent. `posting` gives the API server [`SWIFT_DEADLINE`] at most. Nothing stands
    /// between this look and the write: a successor counts on it. While a write is open, also because
    /// it was given up, the Lease is not given back early: a successor could be overtaken by it.
    pub async fn write(
        &self,
        number: u64,
        posting: impl Future<Output = Result<(), WriteError>>,
    ) -> Option<Result<(), WriteError>> {
        self.left(number)?;
        self.open.fetch_add(1, Ordering::SeqCst);
        let answer = posting.await;
        if !matches!(answer, Err(WriteError::Unanswered(_))) {
            self.open.fetch_sub(1, Ordering::SeqCst);
        }
        Some(answer)
    }

    /// Waits until that tenure is over. One whose renewal is late is not.
    pub async fn lost(&mut self, number: u64) {
        while let Some(tenure) = self.tenure(number) {
            // Its sender gone means that nobody renews: then the time decides.
            if self.tenure.changed().await.is_err() {
                return tokio::time::sleep_until(tenure.until.into()).await;
            }
        }
    }

    /// Waits until that tenure may write, and returns its state; `None` if it is over.
    pub async fn may_write(&mut self, number: u64) -> Option<Tenure> {
        loop {
            let tenure = self.tenure(number)?;
            if Instant::now() < tenure.until {
                return Some(tenure);
            }
            self.tenure.changed().await.ok()?;
        }
    }
}

/// Next step for the Lease.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Step {
    /// There is none.
    Make,
    /// It is free, or its holder has let it stand still for too long.
    Take,
    /// It is ours.
    Renew,
    /// Another replica holds it.
    Wait,
}

/// A Lease as it was first seen in this version.
#[derive(Debug)]
struct Observed {
    version: String,
    /// Metadata that a write keeps: labels and annotations are others', such as helm's.
    metadata: ObjectMeta,
    holder: String,
    lasts: Duration,
    transitions: i32,
    since: Instant,
}

/// The state of one candidate.
#[derive(Debug)]
struct Election {
    me: String,
    timing: LeaseTiming,
    observed: Option<Observed>,
    tenure: Option<Tenure>,
    tenures: u64,
    made: Option<Instant>,
}

impl Election {
    fn new(me: String, timing: LeaseTiming) -> Election {
        Election {
            me,
            timing,
            observed: None,
            tenure: None,
            tenures: 0,
            made: None,
        }
    }

    /// Takes the Lease as read; returns the next step.
    fn read(&mut self, lease: Option<&Lease>, now: Instant) -> Step {
        let Some(lease) = lease else {
            self.observed = None;
            self.tenure = None;
            self.made = Some(now);
            return Step::Make;
        };
        let version = lease.metadata.resource_version.clone().unwrap_or_default();
        let spec = lease.spec.clone().unwrap_or_default();
        let seconds = spec.lease_duration_seconds.unwrap_or(0);
        let observed = match self.observed.take() {
            Some(same) if same.version == version => same,
            _ => Observed {
                version,
                metadata: kept(&lease.metadata),
                holder: spec.holder_identity.unwrap_or_default(),
                lasts: Duration::from_secs(u64::try_from(seconds).unwrap_or(0)),
                transitions: spec.lease_transitions.unwrap_or(0),
                since: now,
            },
        };
        let step = if observed.holder == self.me {
            Step::Renew
        } else if observed.holder.is_empty()
            || now.saturating_duration_since(observed.since) >= observed.lasts
        {
            Step::Take
        } else {
            Step::Wait
        };
        self.observed = Some(observed);
        if step != Step::Renew {
            self.tenure = None;
            self.made = None;
        }
        step
    }

    /// Time until the next look at the Lease: it is taken as soon as it has stood still.
    fn pause(&self, now: Instant) -> Duration {
        let retry = self.timing.retry;
        let others = self.observed.as_ref().filter(|seen| seen.holder != self.me);
        let still = others.map(|seen| (seen.since + seen.lasts).saturating_duration_since(now));
        let still = still.filter(|left| !left.is_zero());
        still.map_or(retry, |left| left.min(retry))
    }

    /// The write of a step; nothing for [`Step::Wait`].
    fn act(&self, step: &Step, at: jiff::Timestamp) -> Option<Act> {
        let at = MicroTime(at);
        let seen = self.observed.as_ref();
        let transitions = seen.map_or(0, |seen| seen.transitions);
        let mut object = json!({
            "metadata": {},
            "spec": {
                "holderIdentity": self.me,
                "leaseDurationSeconds": self.timing.lasts.as_secs(),
                "leaseTransitions": transitions,
                "renewTime": at,
            },
        });
        let spec = &mut object["spec"];
        match step {
            Step::Wait => return None,
            Step::Renew => {}
            Step::Make => spec["acquireTime"] = json!(at),
            Step::Take => {
                spec["acquireTime"] = json!(at);
                spec["leaseTransitions"] = json!(transitions.saturating_add(1));
            }
        }
        let Some(seen) = seen else {
            return Some(Act::Create(object));
        };
        object["metadata"] = json!(seen.metadata);
        Some(Act::Replace(object))
    }

    /// The write that was sent at that time was answered; with the version that it made, if it was
    /// written.
    fn written(&mut self, sent: Instant, answer: &Result<u64, WriteError>) {
        match answer {
            Ok(version) => {
                // One that was late goes on: the Lease was its own when it was read just before, and
                // nobody else gives it to this process.
                let old = self.tenure;
                if old.is_none() {
                    self.tenures += 1;
                }
                self.tenure = Some(Tenure {
                    number: old.map_or(self.tenures, |tenure| tenure.number),
                    epoch: old.map_or(*version, |tenure| tenure.epoch),
                    renewed: sent,
                    until: sent + self.timing.writes,
                    made: self.made,
                });
            }
            // Somebody else has written, or may.
            Err(WriteError::Refused { .. }) => self.tenure = None,
            // Until the time is over, nobody else can have taken it.
            Err(WriteError::Unanswered(_)) => {}
        }
    }

    /// Gives the Lease back as it was just read, so that a successor need not wait; nothing if it
    /// is not ours.
    fn release(&self) -> Option<Act> {
        let seen = self.observed.as_ref()?;
        (seen.holder == self.me).then(|| {
            Act::Replace(json!({
                "metadata": seen.metadata,
                "spec": { "holderIdentity": "", "leaseDurationSeconds": 1,
                          "leaseTransitions": seen.transitions },
            }))
        })
    }
}

/// The side of a campaign that tells the writers.
#[derive(Debug)]
pub struct Campaigner {
    tenure: watch::Sender<Option<Tenure>>,
    holder: watch::Sender<String>,
    open: Arc<AtomicUsize>,
}

impl Campaigner {
    /// Has every write been answered?
    fn all_answered(&self) -> bool {
        self.open.load(Ordering::SeqCst) == 0
    }

    fn tell_holder(&self, holder: String) {
        self.holder.send_if_modified(|known| {
            let changed = *known != holder;
            *known = holder;
            changed
        });
    }
}

/// The two sides of a campaign: its own, and that of the writers.
#[must_use]
pub fn candidacy() -> (Campaigner, Leadership) {
    let (sender, tenure) = watch::channel(None);
    let (names, holder) = watch::channel(String::new());
    let open = Arc::new(AtomicUsize::new(0));
    let campaigner = Campaigner {
        tenure: sender,
        holder: names,
        open: open.clone(),
    };
    let leadership = Leadership {
        tenure,
        holder,
        open,
    };
    (campaigner, leadership)
}

#[cfg(test)]
mod simulation;
#[cfg(test)]
mod tests;
