//! Contexts of a process, and the cost of each card's contexts.
//!
//! A card is paid for once, with its first context, and paid back with its last. Contexts that
//! are just being made count, so that two threads which make one each pay once.

use std::collections::HashMap;

use super::limits::Limits;
use crate::cuda::c::*;
use crate::cuda::tenant::{MemoryCharge, Need, OverLimit, Place, Tenant};
use crate::link::Budget;

/// The contexts of the process.
#[derive(Debug, Default)]
pub struct Contexts {
    /// Contexts that the program made.
    pub(super) made: HashMap<CUcontext, Made>,
    /// Green ones. Each retains the primary one, in which its memory is.
    pub(super) green: HashMap<CUgreenCtx, CUdevice>,
    /// The primary ones that are retained.
    primary: HashMap<CUdevice, Primary>,
    /// By card: the number of contexts, those under way included, and their cost.
    cards: HashMap<CUdevice, Card>,
    /// Cost of raised limits.
    pub(super) limits: Limits,
}

/// A context that the program made.
#[derive(Debug, Clone, Copy)]
pub(super) struct Made {
    pub(super) device: CUdevice,
    /// Number of times that the program must detach from it before it goes.
    pub(super) usage: usize,
}

#[derive(Debug, Default)]
struct Primary {
    retained: usize,
    /// False after a reset, until somebody retains it again.
    is_there: bool,
    /// Null while only green contexts have retained it.
    context: CUcontext,
}

#[derive(Debug)]
struct Card {
    contexts: usize,
    charge: MemoryCharge,
}

impl Contexts {
    /// Returns all contexts with a handle that the program has.
    pub fn handles(&self) -> Vec<CUcontext> {
        let primary = self.primary.values().filter(|primary| primary.is_there);
        let primary = primary.map(|primary| primary.context);
        self.made.keys().copied().chain(primary).collect()
    }

    /// One more context on a card; the first is paid for.
    pub(super) fn begin(&mut self, tenant: &Tenant, device: CUdevice) -> Result<(), OverLimit> {
        if let Some(card) = self.cards.get_mut(&device) {
            card.contexts += 1;
            return Ok(());
        }
        let place = tenant.place(device);
        let bytes = match place {
            Place::Listed(index) => tenant.link.control().device(index).context_bytes(),
            Place::Host | Place::Unlisted => 0,
        };
        let charge = tenant.take(Need { place, bytes })?;
        say(tenant, charge, charge.amount.bytes());
        let contexts = 1;
        self.cards.insert(device, Card { contexts, charge });
        Ok(())
    }

    /// One context less; the last is paid back. True if it was that.
    pub(super) fn end(&mut self, tenant: &Tenant, device: CUdevice) -> bool {
        let Some(card) = self.cards.get_mut(&device) else {
            return false;
        };
        card.contexts = card.contexts.saturating_sub(1);
        if card.contexts > 0 {
            return false;
        }
        if let Some(card) = self.cards.remove(&device) {
            say(tenant, card.charge, 0);
            tenant.give(card.charge);
        }
        true
    }

    /// The program made a context.
    pub(super) fn made(&mut self, context: CUcontext, device: CUdevice) {
        let usage = 1;
        self.made.insert(context, Made { device, usage });
    }

    /// A primary context was retained, by the program if its handle is known. One that was
    /// there already is not one more.
    pub(super) fn retained(
        &mut self,
        tenant: &Tenant,
        device: CUdevice,
        context: Option<CUcontext>,
    ) {
        let primary = self.primary.entry(device).or_default();
        primary.retained += 1;
        primary.context = context.unwrap_or(primary.context);
        if std::mem::replace(&mut primary.is_there, true) {
            self.end(tenant, device);
        }
    }

    /// Retained once less. The context that ends with that.
    pub(super) fn released(&mut self, device: CUdevice) -> Option<CUcontext> {
        let primary = self.primary.get_mut(&device)?;
        primary.retained = primary.retained.saturating_sub(1);
        if primary.retained > 0 {
            return None;
        }
        let primary = self.primary.remove(&device)?;
        primary.is_there.then_some(primary.context)
    }

    /// It is gone, however often it is retained: each of those has to release it still.
    pub(super) fn was_reset(&mut self, device: CUdevice) -> Option<CUcontext> {
        let primary = self.primary.get_mut(&device)?;
        let was_there = std::mem::replace(&mut primary.is_there, false);
        was_there.then(|| std::mem::take(&mut primary.context))
    }
}

/// Says in the slot how much of its use is an estimate, so that the arbiter can correct it.
fn say(tenant: &Tenant, charge: MemoryCharge, bytes: u64) {
    if let Budget::Device(device) = charge.budget {
        let ledger = tenant.link.ledger();
        let slot = ledger.slot(tenant.link.slot());
        slot.set_context_bytes(device, bytes);
    }
}
