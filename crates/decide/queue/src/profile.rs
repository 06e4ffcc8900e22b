//! Profiles of the queue: who may start, who goes for whom, and what is kept.
//!
//! All profiles share the tree of quotas, the proof of places and the ticks. The points at which
//! they differ are the fields of [`ProfileTerms`] (`profile/terms.rs`); each profile is one file with its
//! values. To add one, write such a file, and add a line to [`QUEUE_PROFILES`].

mod fair;
mod koordinator;
mod strict;
mod terms;

use std::str::FromStr;

use crate::site_rule::{SiteRule, SiteRuleError};

pub(crate) use self::terms::LossLimits;
pub use self::terms::{ProfileTerms, QueueProfile};

/// Every profile.
pub const QUEUE_PROFILES: &[QueueProfile] = &[fair::PROFILE, strict::PROFILE, koordinator::PROFILE];

impl Default for QueueProfile {
    fn default() -> QueueProfile {
        fair::PROFILE
    }
}

impl FromStr for QueueProfile {
    type Err = SiteRuleError;

    fn from_str(name: &str) -> Result<QueueProfile, SiteRuleError> {
        SiteRule::named(QUEUE_PROFILES, name)
    }
}
