//! Containers that a cluster placed, counted as the cluster counts them: by the pod, at its
//! worst moment. An init container and the main ones after it have the same memory one after
//! the other, so that the sum of their limits may be more than the card; none of them waits
//! for another's end to be noticed here.
//!
//! A pod has one account with the cards. It bears the number of the first of its jobs that was
//! declared, which no other job ever has.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use sublet_model::{MiB, Milli, Part, Role, peak};

use super::Machine;
use super::job::{HeldCard, Job, mib_for};
use crate::job::{JobId, Promise};

/// A pod with containers here.
#[derive(Debug, Clone)]
pub(super) struct Pod {
    account: JobId,
    jobs: BTreeSet<JobId>,
}

pub(super) type Pods = BTreeMap<Arc<str>, Pod>;

impl Machine {
    /// Notes that a job is one of its pod's.
    pub(super) fn enter_pod(&mut self, id: JobId) {
        if let Some(promise) = self.jobs.get(&id).and_then(|job| job.promise.as_ref()) {
            let pod = self.pods.entry(Arc::clone(&promise.pod));
            let pod = pod.or_insert_with(|| Pod {
                account: id,
                jobs: BTreeSet::new(),
            });
            pod.jobs.insert(id);
        }
    }

    /// A job is gone: its pod's account falls to the use of the rest.
    pub(super) fn leave_account(&mut self, id: JobId, job: &Job) {
        let (promise, class) = (job.promise.as_ref(), job.ask.class);
        let pod = promise.and_then(|promise| self.pods.get_mut(&promise.pod));
        let account = pod.map_or(id, |pod| {
            pod.jobs.remove(&id);
            pod.account
        });
        for held in &job.held {
            let card = held.part.card;
            let rest = self.pod_of(promise).map(|pod| self.takes(pod, card));
            let rest = rest.unwrap_or(Part::ZERO);
            self.cards.charge(card, account, rest, class);
        }
        self.pods.retain(|_, pod| !pod.jobs.is_empty());
    }

    /// Enters the part of a card that a job's account takes now.
    pub(super) fn charge(&mut self, id: JobId, card: usize) {
        let Some(job) = self.jobs.get(&id) else {
            return;
        };
        let class = job.ask.class;
        let (account, part) = match self.pod_of(job.promise.as_ref()) {
            Some(pod) => (pod.account, self.takes(pod, card)),
            None => (id, job.on(card).map_or(Part::ZERO, HeldCard::takes)),
        };
        self.cards.charge(card, account, part, class);
    }

    fn pod_of(&self, promise: Option<&Promise>) -> Option<&Pod> {
        self.pods.get(&promise?.pod)
    }

    /// A pod's part of a card: the promise for its worst moment; or more, if its containers
    /// use more.
    fn takes(&self, pod: &Pod, card: usize) -> Part {
        let jobs = pod.jobs.iter().filter_map(|id| {
            let job = self.jobs.get(id)?;
            Some((job.promise.as_ref()?, job.on(card)?))
        });
        let mut jobs: Vec<(&Promise, &HeldCard)> = jobs.collect();
        jobs.sort_by_key(|(promise, _)| (promise.role == Role::Main, promise.position));
        let amounts = jobs
            .iter()
            .map(|(promise, held)| (promise.role, held.charge.get()));
        let promised = MiB::new(peak(amounts)).unwrap_or(MiB::MAX);
        // Two that should not run at one time may, for a moment.
        let used = jobs.iter().map(|(_, held)| {
            let used = mib_for(held.uses.bytes());
            used.min(held.charge)
        });
        let used: MiB = used.sum();
        let compute = jobs.iter().map(|(promise, held)| {
            // Kept for it, also while it has less by choice.
            let compute = held.promised.unwrap_or(held.part).limit.compute.get();
            (promise.role, u64::from(compute))
        });
        let compute = u16::try_from(peak(compute)).ok().and_then(Milli::new);
        Part {
            memory: promised.max(used),
            compute: compute.unwrap_or(Milli::WHOLE),
            ..Part::ZERO
        }
    }

    /// The sum of all pods' accounts.
    pub(super) fn taken_by_pods(&self) -> MiB {
        let cards = 0..self.cards.inventory().gpus().len();
        let takes = |pod| cards.clone().map(move |card| self.takes(pod, card).memory);
        self.pods.values().flat_map(takes).sum()
    }
}

#[cfg(test)]
mod tests;
