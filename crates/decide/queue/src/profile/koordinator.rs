//! Koordinator's terms: nobody passes what its quota is entitled to, and what was lent comes back
//! at once.

use super::terms::{ProfileTerms, QueueProfile};

pub(super) const PROFILE: QueueProfile = QueueProfile::new(
    "koordinator",
    "nobody beyond its entitlement; who asks for its part gets it at once",
    &ProfileTerms {
        holds_quota: true,
        limits: None,
        lends_beyond: false,
        aging: None,
        short_first: None,
    },
);
