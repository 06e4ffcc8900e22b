//! Amounts as people and other programs write them: memory, compute time, Kubernetes' quantities,
//! PCI addresses, policies.

use sublet_api::whole_number;
use sublet_arbiter::admin::{parse_amount, parse_compute};
use sublet_model::{Bdf, parse_size};
use sublet_plan::Policy;

use crate::{Target, text};

pub(super) const TARGET: Target = Target {
    name: "amount",
    run,
};

fn run(bytes: &[u8]) {
    let Some(text) = text(bytes) else { return };
    let _ = (parse_amount(text), parse_size(text), whole_number(text));
    if let Ok(range) = parse_compute(text) {
        assert!(range.request() <= range.limit(), "{range:?}");
    }
    if let Ok(address) = text.parse::<Bdf>() {
        assert_eq!(address.to_string().parse(), Ok(address));
    }
    if let Ok(policy) = text.parse::<Policy>() {
        let again: Policy = policy.to_string().parse().unwrap();
        assert_eq!(again.to_string(), policy.to_string());
    }
}
