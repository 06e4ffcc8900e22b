//! A pod that is not bound yet, as much of it as a Binding needs.

use std::sync::Arc;

use sublet_api::dialect::{self, ClaimError, result_keys};
use sublet_api::object::Pod;
use sublet_api::{host_of, keys, pod_key, pod_uid, stock_ask};
use sublet_model::{Claim, Host, NameError, PodKey, PodUid, Unit};
use sublet_plan::StockRules;

use crate::plans::Membership;

/// A pod's request: cards, or nothing but CPU and memory of its node.
///
/// # Errors
/// The pod's request for cards cannot be read.
pub(crate) fn claim_of(pod: &Pod, unit: Unit) -> Result<Claim, ClaimError> {
    Ok(dialect::claim_of(pod, unit)?.unwrap_or_else(|| {
        // The stock scheduler decides about CPU and memory; here only scores look at them.
        Claim::host_only(host_of(pod).unwrap_or(Host::ZERO))
    }))
}

/// A pod's request, with all that the stock scheduler counts, if nobody else counts it. A part that
/// cannot be read counts as nothing.
pub(crate) fn counted(claim: Claim, pod: &Pod, rules: StockRules) -> Claim {
    match (rules, host_of(pod), stock_ask(pod)) {
        (StockRules::Here, Ok(host), Ok(stock)) => {
            claim.with_host(host).with_stock(Arc::new(stock))
        }
        _ => claim,
    }
}

/// A pod that is not bound yet, as much as a Binding needs.
#[derive(Debug, Clone)]
pub(crate) struct Waiting {
    pub(crate) pod: PodKey,
    pub(crate) uid: PodUid,
    pub(crate) claim: Arc<Claim>,
    pub(crate) priority: i32,
    /// Is it a member of a group, and which slot has it?
    pub(crate) membership: Membership,
    /// Keys of a Binding that somebody has already written on it.
    pub(crate) present: Vec<String>,
}

impl Waiting {
    /// Reads a pod.
    pub(crate) fn of(pod: &Pod, unit: Unit) -> Result<Waiting, Problem> {
        let claim = claim_of(pod, unit)?;
        let present = pod.metadata.annotations.keys().map(String::as_str);
        let is_written =
            |key: &&str| *key == keys::REQUIRED_PLUGINS || result_keys().any(|own| own == *key);
        let present = present.filter(is_written).map(str::to_owned);
        Ok(Waiting {
            pod: pod_key(pod)?,
            uid: pod_uid(pod)?,
            claim: Arc::new(claim),
            priority: pod.spec.priority.unwrap_or(0),
            membership: Membership::of(pod),
            present: present.collect(),
        })
    }

    /// The same with all that the stock scheduler counts, where nobody else counts it.
    pub(crate) fn counted(mut self, pod: &Pod, rules: StockRules) -> Waiting {
        let claim = Arc::unwrap_or_clone(self.claim);
        self.claim = Arc::new(counted(claim, pod, rules));
        self
    }

    /// Does it ask for a GPU?
    pub(crate) fn asks_gpu(&self) -> bool {
        self.claim.has_gpu()
    }
}

/// Reason why a pod cannot be understood.
#[derive(Debug)]
pub(crate) enum Problem {
    /// Its request.
    Claim(ClaimError),
    /// Its name.
    Name(NameError),
}

impl From<ClaimError> for Problem {
    fn from(error: ClaimError) -> Problem {
        Problem::Claim(error)
    }
}

impl From<NameError> for Problem {
    fn from(error: NameError) -> Problem {
        Problem::Name(error)
    }
}

impl std::fmt::Display for Problem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Problem::Claim(error) => error.fmt(f),
            Problem::Name(error) => error.fmt(f),
        }
    }
}
