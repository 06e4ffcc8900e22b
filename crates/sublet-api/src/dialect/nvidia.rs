//! NVIDIA: `nvidia.com/gpu`, whole cards. It has no annotations of its own, so what a pod
//! got stands in `sublet.dev/allocation` alone.

use std::collections::BTreeMap;

use sublet_model::{Allocation, Claim, ContainerClaim, Count, Demand, Dialect, NodeFacts, Unit};

use super::Codec;
use crate::allocation::AllocationError;
use crate::keys;
use crate::object::Pod;

pub(super) struct Nvidia;

impl Codec for Nvidia {
    fn dialect(&self) -> Dialect {
        Dialect::Nvidia
    }

    fn resource(&self) -> &'static str {
        keys::NVIDIA_GPU
    }

    fn demand(&self, count: u64, _unit: Unit) -> Option<Demand> {
        let gpus = u32::try_from(count).ok()?;
        Some(Demand::of_cards(Count::new(gpus)))
    }

    fn older_allocation(
        &self,
        _pod: &Pod,
        _claim: &Claim,
    ) -> Result<Option<Allocation>, AllocationError> {
        Ok(None)
    }

    fn results(
        &self,
        _claim: &Claim,
        _allocation: &Allocation,
        _facts: &NodeFacts,
        _now_ns: u64,
    ) -> BTreeMap<String, String> {
        BTreeMap::new()
    }

    fn handed_over(&self, _now_ns: u64) -> BTreeMap<String, String> {
        BTreeMap::new()
    }

    fn environment(
        &self,
        _claim: &Claim,
        _allocation: &Allocation,
        _container: &ContainerClaim,
        _facts: &NodeFacts,
    ) -> BTreeMap<String, String> {
        BTreeMap::new()
    }
}
