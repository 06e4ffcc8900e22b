//! Strict terms: as fair ones, and nobody passes what its quota is entitled to.

use super::fair;
use super::terms::{ProfileTerms, QueueProfile};

pub(super) const PROFILE: QueueProfile = QueueProfile::new(
    "strict",
    "as fair, and nobody beyond its entitlement",
    &ProfileTerms {
        lends_beyond: false,
        ..fair::TERMS
    },
);
