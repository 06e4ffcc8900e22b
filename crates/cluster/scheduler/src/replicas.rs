//! Several extenders: decides which of them binds a pod, and hands its Bind over.
//!
//! Each answers filter, prioritize and preempt from its own watch. One leads and binds; the others
//! hand a Bind over to it and wait for its answer. A leader begins when no Binding of an earlier
//! one can be on its way, and its ledger has all that they wrote (docs/decisions/0006). If the
//! answer to a Bind is lost, the Bind goes to the next leader, which knows its outcome.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use axum::body::Bytes;
use axum::http::{Method, StatusCode};
use sublet_api::extender::from_str;
use sublet_api::pod_uid;
use sublet_client::{Pods, list, read_pod};
use sublet_model::Pauses;
use sublet_replicas::leader::{Leadership, SWIFT, SWIFT_DEADLINE};
use sublet_telemetry::metrics::OutcomeLabel;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::bind::{BindOrder, NotBound, bind_here};
use crate::peers::Links;
use crate::state::{Patience, Scheduler};

/// Time limits of a Binding if a successor waits for it.
pub(crate) const PATIENCE: Patience = Patience {
    deadline: SWIFT_DEADLINE,
    settle: Duration::from_secs(10),
};

/// Time that a Bind waits for a leader. The kube-scheduler waits 15 s.
const LEADER_LIMIT: Duration = Duration::from_secs(13);
/// Pause between checks whether another process leads, if nothing tells.
const LOOK: Duration = Duration::from_millis(50);

/// The pauses of a new leader whose list of bound pods fails. Others wait for it, and an ill API
/// server needs a full list least of all.
const PAUSES: Pauses = Pauses::new(Duration::from_millis(50), Duration::from_secs(5));

/// A replica's knowledge of the others.
pub(crate) struct Replicas {
    /// This process's name in the Lease.
    pub(crate) me: Holder,
    pub(crate) leadership: Leadership,
    /// The tenure in which this process binds.
    pub(crate) office: watch::Sender<Option<u64>>,
    pub(crate) links: Links,
    /// It is to end, and leads no more.
    pub(crate) resigned: watch::Sender<bool>,
}

/// The name of a process in the Lease, and where it takes Binds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Holder {
    /// It differs from process to process.
    pub(crate) name: String,
    /// Address where it listens.
    pub(crate) address: SocketAddr,
}

impl std::fmt::Display for Holder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}@{}", self.name, self.address)
    }
}

impl std::str::FromStr for Holder {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Holder> {
        let (name, address) = text
            .rsplit_once('@')
            .with_context(|| format!("`{text}` is no NAME@ADDRESS"))?;
        Ok(Holder {
            name: name.to_owned(),
            address: address
                .parse()
                .with_context(|| format!("`{address}` in `{text}` is no address"))?,
        })
    }
}

/// The process that binds now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Turn {
    /// This process, in that tenure.
    Here(u64),
    /// Another one.
    There(SocketAddr),
    /// Nobody that is known.
    Nobody,
}

/// Decides which process binds. `office`: the tenure in which this process may bind. `holder`: the
/// holder of the Lease, as it was last read; it may have changed since.
pub(crate) fn turn(me: &Holder, office: Option<u64>, holder: &str) -> Turn {
    if let Some(tenure) = office {
        return Turn::Here(tenure);
    }
    match holder.parse::<Holder>() {
        Ok(other) if other != *me => Turn::There(other.address),
        // It is ours, and this process does not bind yet, or no more.
        _ => Turn::Nobody,
    }
}

/// Another extender's answer to a Bind.
enum Handed {
    /// It is done, in one way or the other.
    Answer(Result<(), String>),
    /// It does not lead.
    NotLeader,
    /// Nothing: the pod may have been bound.
    Lost,
}

impl Replicas {
    /// A process that does not bind yet.
    pub(crate) fn new(me: Holder, leadership: Leadership, links: Links) -> Replicas {
        Replicas {
            me,
            leadership,
            office: watch::Sender::new(None),
            links,
            resigned: watch::Sender::new(false),
        }
    }

    fn turn(&self) -> Turn {
        let office = *self.office.borrow();
        let office = office.filter(|number| self.leadership.left(*number).is_some());
        turn(&self.me, office, &self.leadership.holder().borrow())
    }

    /// Binds here if this process leads.
    pub(crate) async fn bind_if_leading(
        &self,
        scheduler: &Arc<Scheduler>,
        order: BindOrder,
    ) -> Result<(), NotBound> {
        match self.turn() {
            Turn::Here(number) => {
                let office = Some((self.leadership.clone(), number));
                bind_here(scheduler, order, office).await
            }
            Turn::There(_) | Turn::Nobody => Err(NotBound::Deposed),
        }
    }

    /// Binds here, or has the leader do it, also after a change of the leader.
    pub(crate) async fn bind(
        &self,
        scheduler: &Arc<Scheduler>,
        order: BindOrder,
        body: Bytes,
    ) -> Result<(), String> {
        let until = Instant::now() + LEADER_LIMIT;
        let mut office = self.office.subscribe();
        let mut holder = self.leadership.holder();
        while Instant::now() < until {
            office.mark_unchanged();
            holder.mark_unchanged();
            match self.turn() {
                Turn::Here(_) => {
                    match self.bind_if_leading(scheduler, order.clone()).await {
                        Err(NotBound::Deposed) => {}
                        Err(NotBound::Why(why)) => return Err(why),
                        Ok(()) => return Ok(()),
                    };
                }
                Turn::There(address) => {
                    // An answer is waited for until somebody else leads.
                    let handed = tokio::select! {
                        handed = self.hand_over(address, body.clone()) => handed,
                        _ = holder.changed() => Handed::Lost,
                        () = tokio::time::sleep_until(until) => Handed::Lost,
                    };
                    let outcome = match &handed {
                        Handed::Answer(_) => "answered",
                        Handed::NotLeader => "refused",
                        Handed::Lost => "lost",
                    };
                    let metrics = &scheduler.metrics;
                    let label = OutcomeLabel { outcome };
                    metrics.forwarded.get_or_create(&label).inc();
                    if let Handed::Answer(answer) = handed {
                        return answer;
                    }
                }
                Turn::Nobody => {}
            }
            tokio::select! {
                () = tokio::time::sleep(LOOK) => {}
                _ = office.changed() => {}
                _ = holder.changed() => {}
            }
        }
        // The last word may have been lost.
        let pod = read_pod(&scheduler.client, &order.pod).await;
        match pod {
            Ok(Some(pod))
                if pod_uid(&pod).as_ref() == Ok(&order.uid)
                    && pod.spec.node_name == order.node.as_str() =>
            {
                Ok(())
            }
            _ => Err("no extender leads, so nobody may bind; it is tried again".to_owned()),
        }
    }

    async fn hand_over(&self, to: SocketAddr, body: Bytes) -> Handed {
        let Some(link) = self.links.borrow().clone() else {
            return Handed::NotLeader;
        };
        let called = link
            .call(to, Method::POST, "/sublet/bind", body, true)
            .await;
        match called {
            Ok((StatusCode::OK, body)) => match outcome_of(&body) {
                Ok(outcome) => Handed::Answer(outcome),
                Err(error) => {
                    tracing::warn!(%to, %error, "the leader's answer cannot be read");
                    Handed::Lost
                }
            },
            Ok((StatusCode::MISDIRECTED_REQUEST, _)) => Handed::NotLeader,
            Ok((status, _)) => {
                tracing::warn!(%to, %status, "the leader does not answer as it should");
                Handed::Lost
            }
            Err(error) => {
                let error = format!("{error:#}");
                tracing::warn!(%to, error, "the leader does not answer");
                Handed::Lost
            }
        }
    }

    /// This process binds no more; it may have others bind.
    pub(crate) fn resign(&self) {
        self.resigned.send_replace(true);
        self.office.send_replace(None);
    }
}

/// The outcome in a `BindResult`.
fn outcome_of(body: &[u8]) -> anyhow::Result<Result<(), String>> {
    #[derive(serde::Deserialize)]
    #[serde(rename_all = "PascalCase")]
    struct Answer {
        #[serde(default)]
        error: String,
    }
    let answer: Answer = from_str(std::str::from_utf8(body)?)?;
    Ok(if answer.error.is_empty() {
        Ok(())
    } else {
        Err(answer.error)
    })
}

/// Opens and closes the office, for ever: after each election this process waits until nothing of
/// an earlier leader is on its way, and reads that leader's writes.
pub(crate) async fn take_office(scheduler: Arc<Scheduler>, replicas: Arc<Replicas>) {
    let mut leadership = replicas.leadership.clone();
    let mut failures: u32 = 0;
    loop {
        let tenure = leadership.inaugurated().await;
        if let Some(at) = tenure.quiet_at(&SWIFT) {
            tokio::time::sleep_until(at.into()).await;
        }
        // Not from the watch, which may be behind: a list without a version is as new as etcd.
        scheduler.state().begin_list();
        let pods = list::<Pods>(&scheduler.client, Some("spec.nodeName!=")).await;
        match pods {
            Err(error) => {
                failures = failures.saturating_add(1);
                let pause = PAUSES.after(failures);
                tracing::warn!(%error, ?pause, "bound pods cannot be listed");
                tokio::time::sleep(pause).await;
                continue;
            }
            Ok(pods) => scheduler.state().end_list(&pods),
        }
        failures = 0;
        if *replicas.resigned.borrow() {
            return;
        }
        replicas.office.send_replace(Some(tenure.number));
        tracing::info!(tenure = tenure.number, "binds");
        leadership.lost(tenure.number).await;
        replicas.office.send_replace(None);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn holder(name: &str, port: u16) -> Holder {
        Holder {
            name: name.to_owned(),
            address: SocketAddr::from(([10, 0, 0, 1], port)),
        }
    }

    #[test]
    fn whoever_holds_the_lease_binds_and_this_process_only_in_office() {
        let me = holder("a", 1);
        let mine = me.to_string();
        let other = holder("b", 2);
        for (office, lease, wanted) in [
            (Some(3), mine.as_str(), Turn::Here(3)),
            // It has the Lease, and looks still what others wrote.
            (None, mine.as_str(), Turn::Nobody),
            (None, "b@10.0.0.1:2", Turn::There(other.address)),
            (None, "", Turn::Nobody),
            (None, "somebody", Turn::Nobody),
            (None, "b@nowhere", Turn::Nobody),
        ] {
            assert_eq!(turn(&me, office, lease), wanted, "{lease}");
        }
    }

    proptest! {
        #[test]
        fn a_holder_is_read_as_it_was_written(name in "[a-z0-9._@-]{0,30}", port: u16, text in ".{0,40}") {
            let one = holder(&name, port);
            prop_assert_eq!(one.to_string().parse::<Holder>().unwrap(), one);
            if let Ok(read) = text.parse::<Holder>() {
                prop_assert_eq!(read.to_string().parse::<Holder>().unwrap(), read);
            }
        }
    }
}
