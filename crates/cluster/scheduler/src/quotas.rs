//! The quotas of namespaces: their limits are watched. Every pod is held to them when filter is
//! asked, and again when it is bound, under the lock that takes the place. So two pods that filter
//! let pass cannot have together an amount that only one of them may have.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use sublet_api::ResourceQuota;
use sublet_client::Change;
use sublet_model::{Allocation, Claim, PodKey, PodUid};
use sublet_plan::{GpuQuota, OverQuota, check_quota};

use crate::state::{Listed, Scheduler, State};
use crate::watches::{Listing, list_ended};

/// Limits on the GPUs of namespaces, by namespace and name of the quota. Only quotas that limit
/// GPUs.
#[derive(Default)]
pub(crate) struct Quotas(BTreeMap<(String, String), GpuQuota>);

impl Quotas {
    /// The limit of all the quotas of a namespace together.
    fn of(&self, namespace: &str) -> GpuQuota {
        let from = (namespace.to_owned(), String::new());
        let all = self.0.range(from..);
        let own = all.take_while(|((of, _), _)| of == namespace);
        own.fold(GpuQuota::default(), |both, (_, quota)| both.and(*quota))
    }

    fn set(&mut self, key: (String, String), quota: GpuQuota) {
        if quota == GpuQuota::default() {
            self.0.remove(&key);
        } else {
            self.0.insert(key, quota);
        }
    }
}

impl State {
    /// May the namespace have this pod too?
    pub(crate) fn check_quota(
        &self,
        pod: &PodKey,
        uid: &PodUid,
        claim: &Claim,
        allocation: Option<&Allocation>,
    ) -> Result<(), OverQuota> {
        let quota = self.quotas.of(pod.namespace());
        check_quota(self.engine.ledger(), quota, (pod, uid), claim, allocation)
    }
}

/// A quota was listed, new, changed or gone.
pub(crate) fn quotas(
    scheduler: &Arc<Scheduler>,
    listed: &mut Listing<(String, String)>,
    change: Change<ResourceQuota>,
) {
    let key = |quota: &ResourceQuota| {
        let meta = &quota.metadata;
        (meta.namespace.clone(), meta.name.clone())
    };
    match change {
        Change::ListBegins => *listed = Some(BTreeSet::new()),
        Change::ListEnds => {
            let listed = listed.take().unwrap_or_default();
            let keep = |key: &(String, String)| listed.contains(key);
            scheduler.state().quotas.0.retain(|key, _| keep(key));
            list_ended(scheduler, Listed::Quotas);
        }
        Change::Set(quota) => {
            let key = key(&quota);
            let limits = quota.of_gpus().unwrap_or_else(|(field, cause)| {
                let (namespace, name) = &key;
                tracing::warn!(namespace, name, field, %cause, "quota of GPUs cannot be read and limits nothing");
                GpuQuota::default()
            });
            if let Some(listed) = listed {
                listed.insert(key.clone());
            }
            scheduler.state().quotas.set(key, limits);
            scheduler.freed.send_replace(());
        }
        Change::Gone(quota) => {
            scheduler
                .state()
                .quotas
                .set(key(&quota), GpuQuota::default());
            scheduler.freed.send_replace(());
        }
    }
}
