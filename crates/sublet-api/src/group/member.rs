//! What one pod asks, in every way in which the queue counts.

use std::fmt::{self, Write as _};
use std::sync::Arc;

use sublet_model::{Claim, Host, MiB, Unit};
use sublet_queue::MemberShape;

use super::field::GroupError;
use crate::dialect::{ClaimError, claim_of};
use crate::machine::{amounts_of, gpu_amounts, host_of, stock_ask};
use crate::object::Pod;
use crate::stock::{pod_rules, unmodelled};

/// What a pod, or the template of one, asks of nodes and takes from quotas. `card`: the memory that
/// a whole card counts with, so that a quota of GPU memory counts whole cards too.
///
/// # Errors
/// What cannot be read of it.
pub fn member_shape(pod: &Pod, unit: Unit, card: MiB) -> Result<MemberShape, GroupError> {
    let of_claim = |error: ClaimError| GroupError {
        field: error.field(pod),
        what: error.to_string(),
    };
    let claim = claim_of(pod, unit).map_err(of_claim)?;
    let claim = claim.unwrap_or_else(|| Claim::host_only(Host::ZERO));
    let claim = claim.with_host(host_of(pod).map_err(of_claim)?);
    let claim = claim.with_stock(Arc::new(stock_ask(pod).map_err(of_claim)?));
    let rules = pod_rules(pod).map_err(|error| GroupError {
        field: error.field,
        what: error.what,
    })?;
    let mut amounts = amounts_of(pod).map_err(of_claim)?;
    amounts.extend(gpu_amounts(&claim, card));
    Ok(MemberShape {
        claim: Arc::new(claim),
        rules,
        unmodelled: unmodelled(pod),
        amounts,
    })
}

/// The name of the role of those pods of a gang that ask the same. It is the same in every process,
/// because plans that outlive one name it.
pub(super) fn role_of(shape: &MemberShape) -> String {
    let mut hash = Fnv(0xcbf2_9ce4_8422_2325);
    let MemberShape {
        claim,
        rules,
        unmodelled,
        amounts,
    } = shape;
    let _never_fails = write!(hash, "{claim:?} {rules:?} {unmodelled:?} {amounts:?}");
    format!("pods-{:08x}", (hash.0 >> 32) ^ (hash.0 & 0xffff_ffff))
}

/// The hash FNV-1a: the standard library's may change.
struct Fnv(u64);

impl fmt::Write for Fnv {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for byte in text.bytes() {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
        Ok(())
    }
}
