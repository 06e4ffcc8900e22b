//! Quotas: ResourceQuotas, ElasticQuotas, and the trees of these.

use serde_json::Value;
use sublet_api::dialect::koordinator::device::unhealthy_in;
use sublet_api::{ElasticQuota, QuotaFacts, QuotaIndex, ResourceQuota, tree_totals};

use crate::{Target, text};

pub(super) const TARGET: Target = Target { name: "quota", run };

/// Each line is an object, or the whole is one of YAML.
fn run(bytes: &[u8]) {
    let Some(text) = text(bytes) else { return };
    let read = |line: &str| serde_json::from_str::<Value>(line).ok();
    let mut objects: Vec<Value> = text.lines().filter_map(read).collect();
    if objects.is_empty() {
        objects.extend(serde_saphyr::from_str::<Value>(text).ok());
    }
    let mut all: Vec<QuotaFacts> = Vec::new();
    for object in &objects {
        if let Ok(quota) = serde_json::from_value::<ResourceQuota>(object.clone()) {
            let _ = quota.of_gpus();
        }
        if let Ok(quota) = serde_json::from_value::<ElasticQuota>(object.clone()) {
            all.extend(quota.facts());
        }
        let _ = unhealthy_in(object);
    }
    let totals = tree_totals(&all, None, |_| Default::default());
    assert!(
        all.iter()
            .all(|facts| facts.total.is_none() || totals.contains_key(&facts.quota.tree))
    );
    let _ = QuotaIndex::new(&all);
}
