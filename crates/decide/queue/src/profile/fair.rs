//! Fair terms: idle cards are lent to whoever can give them back, little work is lost for that, and
//! a minimum is there within its time.

use super::terms::{Aging, LossLimits, ProfileTerms, QueueProfile};

pub(super) const PROFILE: QueueProfile = QueueProfile::new(
    "fair",
    "idle GPUs are lent beyond entitlements; little work is lost, and each min is there in time",
    &TERMS,
);

pub(super) const TERMS: ProfileTerms = ProfileTerms {
    holds_quota: false,
    limits: Some(LossLimits {
        budget_permille: 10,
        wide_permille: 30,
        loans: 1,
        // What is lost counts double each time, so that others go long before. With a cap of five or
        // ten, gangs of tenants that they are too large for waited for weeks in a trace.
        wide_loans: 50,
        wide_takes: true,
        wide_spared: true,
    }),
    lends_beyond: true,
    aging: Some(Aging {
        cards: 5,
        // With half a day, and with two, large groups waited longer, and small ones not less.
        each_ms: 24 * 60 * 60 * 1000,
    }),
    short_first: Some(10),
};
