//! Memory that the driver keeps for later, and the charge for it.
//!
//! For pools and for graphs, the driver takes memory in pieces and keeps freed memory. Both are
//! charged the amount in use, as the program asked for it, or the amount that the driver reports as
//! reserved, whichever is more. Before the driver is called, the most that it could take is
//! reserved; afterwards it reports the amount that it took.

use sublet_abi::Units;

use super::tenant::Tenant;
use crate::link::Budget;

/// The account of one pool, or of one card's graphs.
#[derive(Debug)]
pub struct DriverCache {
    budget: Budget,
    /// Amount in use, as asked for.
    live: Units,
    /// Charged amount: never less than `live`.
    charged: Units,
}

impl DriverCache {
    /// Nothing yet.
    #[must_use]
    pub fn new(budget: impl Into<Budget>) -> Self {
        Self {
            budget: budget.into(),
            live: Units::ZERO,
            charged: Units::ZERO,
        }
    }

    /// Returns the budget that pays for it.
    #[must_use]
    pub fn budget(&self) -> Budget {
        self.budget
    }

    /// True if more is charged than is in use.
    #[must_use]
    pub fn has_unused(&self) -> bool {
        self.charged > self.live
    }

    /// Reserves room for `amount` more; the driver takes `growth` at most for it. Only the driver
    /// knows whether unused memory can serve the request, so none of that counts. False if the
    /// limit does not allow it; then nothing is taken.
    #[must_use]
    pub fn make_room(&mut self, tenant: &Tenant, amount: Units, growth: Units) -> bool {
        let Some(live) = self.live.checked_add(amount) else {
            return false;
        };
        let most = self.charged.checked_add(growth).map(|most| most.max(live));
        if !most.is_some_and(|most| self.raise_to(tenant, most)) {
            return false;
        }
        self.live = live;
        true
    }

    /// Counts `amount` of the unused memory as in use. False if there is not that much.
    #[must_use]
    pub fn use_unused(&mut self, amount: Units) -> bool {
        let live = self.live.checked_add(amount);
        let live = live.filter(|live| *live <= self.charged);
        self.live = live.unwrap_or(self.live);
        live.is_some()
    }

    /// After an allocation: all memory that the driver reports must be paid for. False if the limit
    /// does not allow it; else a reservation that was not needed is given back.
    #[must_use]
    pub fn take_growth(&mut self, tenant: &Tenant, reserved: Units) -> bool {
        let fits = self.raise_to(tenant, reserved);
        if fits {
            self.settle(tenant, reserved);
        }
        fits
    }

    /// `amount` is no longer in use.
    pub fn freed(&mut self, amount: Units) {
        self.live = self.live.saturating_sub(amount);
    }

    /// Charges the current amount, as the driver reports it. An increase is charged whatever the
    /// limit: the memory exists. True if the charge is less than before.
    pub fn settle(&mut self, tenant: &Tenant, reserved: Units) -> bool {
        let now = reserved.max(self.live);
        let before = std::mem::replace(&mut self.charged, now);
        match before.checked_sub(now) {
            Some(Units::ZERO) => false,
            Some(less) => {
                tenant.link.release(self.budget, less);
                true
            }
            None => {
                tenant.link.charge(self.budget, now.saturating_sub(before));
                false
            }
        }
    }

    fn raise_to(&mut self, tenant: &Tenant, wanted: Units) -> bool {
        let missing = wanted.saturating_sub(self.charged);
        if missing > Units::ZERO && tenant.link.reserve(self.budget, missing).is_err() {
            return false;
        }
        self.charged = self.charged.max(wanted);
        true
    }
}
