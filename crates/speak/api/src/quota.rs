//! ResourceQuotas (`v1`), as far as they are about GPUs.
//!
//! The API server stores such keys and does not enforce them: of extended resources it counts only
//! `requests.` (`isExtendedResourceNameForQuota` in Kubernetes). HAMi's scheduler enforces them,
//! and multiplies the memory of each card by the number of cards.

use std::collections::BTreeMap;

use serde::Deserialize;
use sublet_model::MiB;
use sublet_plan::GpuQuota;

use crate::keys;
use crate::object::{Meta, Quantity, or_default};
use crate::quantity::{QuantityError, whole_number};

/// A ResourceQuota.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct ResourceQuota {
    /// Its metadata.
    pub metadata: Meta,
    /// Wanted state.
    #[serde(deserialize_with = "or_default")]
    pub spec: QuotaSpec,
}

/// Wanted state of a quota.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct QuotaSpec {
    /// The most of each thing.
    #[serde(deserialize_with = "or_default")]
    pub hard: BTreeMap<String, Quantity>,
}

impl ResourceQuota {
    /// Limits on GPUs. An amount that is too large to count is no limit.
    ///
    /// # Errors
    /// The key whose amount cannot be read.
    pub fn of_gpus(&self) -> Result<GpuQuota, (&'static str, QuantityError)> {
        let amount = |key: &'static str| {
            let hard = self.spec.hard.get(key);
            let amount = hard.map(|amount| whole_number(&amount.0)).transpose();
            amount.map_err(|cause| (key, cause))
        };
        Ok(GpuQuota {
            memory: amount(keys::QUOTA_MEMORY)?.and_then(MiB::new),
            compute: amount(keys::QUOTA_CORES)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(hard: &str) -> Result<GpuQuota, String> {
        let text = format!(r#"{{"metadata":{{"name":"q"}},"spec":{{"hard":{hard}}}}}"#);
        let quota: ResourceQuota = serde_json::from_str(&text).unwrap();
        quota
            .of_gpus()
            .map_err(|(key, cause)| format!("{key}: {cause}"))
    }

    #[test]
    fn keys_of_gpus_are_read_and_others_left_to_the_api_server() {
        for (hard, memory, compute) in [
            (r#"{"limits.nvidia.com/gpumem":"1k"}"#, Some(1000), None),
            (
                r#"{"limits.nvidia.com/gpucores":"150","pods":"3"}"#,
                None,
                Some(150),
            ),
            (r#"{"limits.nvidia.com/gpumem":"0"}"#, Some(0), None),
            (r#"{"requests.nvidia.com/gpumem":"1"}"#, None, None),
            ("null", None, None),
        ] {
            let memory = memory.map(MiB::from);
            assert_eq!(read(hard), Ok(GpuQuota { memory, compute }), "{hard}");
        }
        let wrong = read(r#"{"limits.nvidia.com/gpumem":"1500m"}"#).unwrap_err();
        assert!(wrong.starts_with("limits.nvidia.com/gpumem: "), "{wrong}");
    }
}
