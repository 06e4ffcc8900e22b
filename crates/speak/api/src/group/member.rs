//! Request of one pod, in every way in which the queue counts.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::sync::Arc;

use sublet_model::{Claim, Host, MiB, Unit};
use sublet_queue::MemberShape;

use super::field::GroupError;
use crate::dialect::{ClaimError, claim_of};
use crate::machine::{amounts_of, gpu_amounts, host_of, stock_ask};
use crate::object::Pod;
use crate::stock::{pod_rules, unmodelled};

/// Resources that a pod, or its template, asks of nodes and takes from quotas. `card`: the memory
/// that a whole card counts with, so that a quota of GPU memory counts whole cards too.
///
/// # Errors
/// A part of the request that cannot be read.
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

/// Shapes of pods and templates that were read before. The queue is read many times a second, and
/// most waiting pods have not changed since.
#[derive(Debug, Default)]
pub struct ShapeMemo {
    known: BTreeMap<String, KnownShape>,
    /// The number of this look.
    look: u64,
}

#[derive(Debug)]
struct KnownShape {
    /// The version of the object that it was read from.
    version: String,
    terms: (Unit, MiB),
    shape: Arc<MemberShape>,
    role: Option<Arc<str>>,
    /// When it was last asked for.
    look: u64,
}

impl ShapeMemo {
    /// Begins another pass, and drops the shapes that the last pass did not use.
    pub(super) fn begin(&mut self) {
        let last = self.look;
        self.known.retain(|_, known| known.look == last);
        self.look += 1;
    }

    /// The shape of the object with this name, in this version. An object without a version is read
    /// anew each time.
    pub(super) fn shape(
        &mut self,
        of: &str,
        version: &str,
        (unit, card): (Unit, MiB),
        pod: &Pod,
    ) -> Result<Arc<MemberShape>, GroupError> {
        let is_same =
            |known: &&mut KnownShape| known.version == version && known.terms == (unit, card);
        if let Some(known) = self.known.get_mut(of).filter(is_same) {
            known.look = self.look;
            return Ok(Arc::clone(&known.shape));
        }
        let shape = Arc::new(member_shape(pod, unit, card)?);
        if !version.is_empty() {
            let known = KnownShape {
                version: version.to_owned(),
                terms: (unit, card),
                shape: Arc::clone(&shape),
                role: None,
                look: self.look,
            };
            self.known.insert(of.to_owned(), known);
        }
        Ok(shape)
    }

    /// Name of the object's role in a gang. `shape`: its shape.
    pub(super) fn role(&mut self, of: &str, shape: &Arc<MemberShape>) -> Arc<str> {
        let is_same = |known: &&mut KnownShape| Arc::ptr_eq(&known.shape, shape);
        match self.known.get_mut(of).filter(is_same) {
            Some(known) => known
                .role
                .get_or_insert_with(|| role_of(shape).into())
                .clone(),
            None => role_of(shape).into(),
        }
    }
}

/// Name of the role of a gang's pods with the same request. It is the same in every process,
/// because plans outlive a process and name it.
fn role_of(shape: &MemberShape) -> String {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(cpu: &str) -> Pod {
        let text = format!(
            "{{spec: {{containers: [{{name: c, resources: {{requests: {{cpu: {cpu}}}}}}}]}}}}"
        );
        serde_saphyr::from_str(&text).unwrap()
    }

    #[test]
    fn a_shape_is_read_again_when_its_object_or_its_terms_change() {
        let mut memo = ShapeMemo::default();
        let terms = (Unit::MiB, MiB::from(1000));
        memo.begin();
        let cpu = |memo: &mut ShapeMemo, version: &str, terms, of: &str| {
            let shape = memo.shape("pod/a/b", version, terms, &pod(of)).unwrap();
            (shape.amounts["cpu"], memo.role("pod/a/b", &shape))
        };
        let (first, role) = cpu(&mut memo, "1", terms, "1");
        assert_eq!(first, 1_000);
        // The object cannot be another in the same version; so this is not read.
        assert_eq!(cpu(&mut memo, "1", terms, "2"), (1_000, role.clone()));
        let (second, other) = cpu(&mut memo, "2", terms, "2");
        assert_eq!(second, 2_000);
        assert_ne!(role, other);
        assert_eq!(cpu(&mut memo, "2", (Unit::GiB, terms.1), "3").0, 3_000);
        assert_eq!(cpu(&mut memo, "2", terms, "4").0, 4_000);
        assert_eq!(cpu(&mut memo, "", terms, "5").0, 5_000);
        assert_eq!(cpu(&mut memo, "", terms, "6").0, 6_000);
        assert_eq!(memo.known.len(), 1);
        memo.begin();
        memo.begin();
        assert!(memo.known.is_empty());
    }
}
