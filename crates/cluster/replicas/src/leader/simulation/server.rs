//! The API server's objects in the simulation: one Lease, pods, and the log that watches read.

use std::collections::BTreeMap;

use fastrand::Rng;
use k8s_openapi::api::coordination::v1::Lease;
use sublet_client::Act;

/// Number of cards and of pods.
pub(super) const CARDS: usize = 6;
pub(super) const PODS: usize = 90;

pub(super) struct Server {
    pub(super) lease: Option<Lease>,
    version: u64,
    /// Memory of each card, and the request of each pod.
    pub(super) cards: [u64; CARDS],
    pub(super) sizes: [u64; PODS],
    /// Each pod, if it is there, and its card, if it is bound.
    pub(super) pods: [Option<Option<usize>>; PODS],
    /// Changes of pods, in order: the card of a bound pod, nothing for a pod that is gone.
    pub(super) log: Vec<(usize, Option<usize>)>,
}

impl Server {
    pub(super) fn new(chance: &mut Rng) -> Server {
        Server {
            lease: None,
            version: 0,
            cards: [16, 16, 16, 24, 24, 8],
            sizes: std::array::from_fn(|_| 4 + 4 * chance.u64(..3)),
            pods: [None; PODS],
            log: Vec::new(),
        }
    }

    /// Answers a write of the Lease as the API server would, with its version.
    pub(super) fn write_lease(&mut self, act: &Act) -> Result<u64, u16> {
        let seen = self.lease.as_ref();
        let version = seen.and_then(|lease| lease.metadata.resource_version.as_deref());
        let object = match (act, version) {
            (Act::Create(object), None) => object,
            (Act::Create(_), Some(_)) => return Err(409),
            (_, None) => return Err(404),
            (Act::Replace(object), Some(now)) if object["metadata"]["resourceVersion"] == now => {
                object
            }
            _ => return Err(409),
        };
        self.version += 1;
        let mut lease: Lease = serde_json::from_value(object.clone()).map_err(|_| 400_u16)?;
        lease.metadata.resource_version = Some(self.version.to_string());
        self.lease = Some(lease);
        Ok(self.version)
    }

    pub(super) fn bound(&self) -> BTreeMap<usize, usize> {
        let pods = self.pods.iter().enumerate();
        pods.filter_map(|(pod, there)| Some((pod, (*there)??)))
            .collect()
    }

    fn used(&self, card: usize) -> u64 {
        let here = |(pod, there): (usize, &Option<Option<usize>>)| {
            (*there == Some(Some(card))).then_some(self.sizes[pod])
        };
        self.pods.iter().enumerate().filter_map(here).sum()
    }

    /// A card that is given away twice.
    pub(super) fn check(&self) -> Option<String> {
        (0..CARDS).find_map(|card| {
            let used = self.used(card);
            let has = self.cards[card];
            (used > has).then(|| format!("card {card} has {has}, and pods on it {used}"))
        })
    }

    /// A pod that waits though some card has room.
    pub(super) fn waits_in_vain(&self) -> Option<usize> {
        (0..PODS).find(|pod| {
            let fits = |card| self.used(card) + self.sizes[*pod] <= self.cards[card];
            self.pods[*pod] == Some(None) && (0..CARDS).any(fits)
        })
    }
}
