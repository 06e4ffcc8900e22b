//! One process's place in the machine: the memory it holds and the time it takes. Only
//! the process itself writes its numbers, so they are right whenever it is killed.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use super::layout::{Slot, Use, set};
use super::slots::{Identity, Owner};
use super::{FakeMachine, MachineError, Slice, clock, slots};

/// The card does not have that much left.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{wanted} bytes were asked of a card that has {free} left")]
pub struct CardFull {
    /// Requested bytes.
    pub wanted: u64,
    /// Free bytes.
    pub free: u64,
}

/// A process's entry in the machine, until it is dropped or the process ends.
pub struct Registration {
    machine: FakeMachine,
    index: usize,
    own: Identity,
    /// The most that this process may have of each card.
    limits: Vec<u64>,
    /// The part of its usual cost that a context costs in addition, in twelfths.
    more_of_contexts: u64,
}

impl FakeMachine {
    /// A place for this process.
    ///
    /// # Errors
    /// There is none left, or the file cannot be locked.
    pub fn take_slot(&self) -> Result<Registration, MachineError> {
        let own = Identity::own();
        let accounts = self.mapped.accounts().map_err(self.failed("lock it"))?;
        let index = slots::claim(self.mapped, own).map_err(self.failed("take a place"))?;
        drop(accounts);
        let index = index.ok_or_else(|| MachineError::NoSlot {
            folder: self.folder.clone(),
        })?;
        self.remove_files_of(index);
        let machine = self.clone();
        Ok(Registration {
            limits: vec![u64::MAX; machine.cards.len()],
            more_of_contexts: 0,
            machine,
            index,
            own,
        })
    }
}

impl Registration {
    /// The machine.
    #[must_use]
    pub fn machine(&self) -> &FakeMachine {
        &self.machine
    }

    /// Its number.
    #[must_use]
    pub fn index(&self) -> usize {
        self.index
    }

    /// Returns the number of processes that had this place before.
    #[must_use]
    pub fn generation(&self) -> u32 {
        self.slot().generation.load(Relaxed)
    }

    /// Makes each context cost so many twelfths more.
    pub(crate) fn enlarge_contexts(&mut self, twelfths: u64) {
        self.more_of_contexts = twelfths;
    }

    /// Holds this process to so many bytes of a card, as MPS holds its clients.
    pub(crate) fn hold_to(&mut self, card: usize, bytes: u64) {
        self.limits[card] = bytes;
    }

    /// Takes `bytes` of a card.
    ///
    /// # Errors
    /// The card does not have them, or this process may not; nothing was taken.
    pub fn charge(&self, card: usize, bytes: u64) -> Result<(), CardFull> {
        let held = self.held(card);
        let full = |free| CardFull {
            wanted: bytes,
            free,
        };
        // A lock that the system refuses means that nobody can be let in.
        let accounts = self.machine.mapped.accounts().map_err(|_| full(0))?;
        let (own, limit) = (held.bytes.load(Relaxed), self.limits[card]);
        if own.saturating_add(bytes) > limit {
            return Err(full(limit.saturating_sub(own)));
        }
        let total = self.machine.cards[card].memory;
        let sum = |machine: &FakeMachine| {
            let slots = &machine.mapped.shared().slots[..slots::n_slots(machine.mapped)];
            let taken = slots.iter().filter(|slot| slot.state.load(Acquire) != 0);
            taken.fold(0_u64, |sum, slot| {
                sum.saturating_add(slot.cards[card].bytes.load(Acquire))
            })
        };
        let mut used = sum(&self.machine);
        if used.saturating_add(bytes) > total {
            // What looks full may be held by the dead.
            self.clean_dead();
            used = sum(&self.machine);
        }
        if used.saturating_add(bytes) > total {
            return Err(full(total.saturating_sub(used)));
        }
        set(&held.bytes, held.bytes.load(Relaxed) + bytes);
        drop(accounts);
        Ok(())
    }

    /// Gives `bytes` of a card back.
    pub fn refund(&self, card: usize, bytes: u64) {
        let held = self.held(card);
        let before = held.bytes.load(Relaxed);
        debug_assert!(before >= bytes, "{bytes} bytes given back of {before}");
        // The lock keeps two threads of this process apart.
        let accounts = self.machine.mapped.accounts();
        let before = held.bytes.load(Relaxed);
        set(&held.bytes, before.saturating_sub(bytes));
        drop(accounts);
    }

    /// Takes the cost of a context: only the first of a process on a card costs anything.
    ///
    /// # Errors
    /// The card does not have it.
    pub fn open_context(&self, card: usize) -> Result<(), CardFull> {
        let held = self.held(card);
        if held.n_contexts.load(Relaxed) == 0 {
            let usual = self.machine.cards[card].context;
            let bytes = usual + usual / 12 * self.more_of_contexts;
            self.charge(card, bytes)?;
            set(&held.context_bytes, bytes);
        }
        held.n_contexts.fetch_add(1, Release);
        Ok(())
    }

    /// Gives back the bytes of [`Registration::open_context`], with the last context.
    pub fn close_context(&self, card: usize) {
        let held = self.held(card);
        if held.n_contexts.load(Relaxed) == 0 {
            return;
        }
        if held.n_contexts.fetch_sub(1, Release) == 1 {
            let bytes = held.context_bytes.swap(0, Relaxed);
            self.refund(card, bytes);
        }
    }

    /// Returns this process's bytes on a card.
    #[must_use]
    pub fn held_bytes(&self, card: usize) -> u64 {
        self.held(card).bytes.load(Relaxed)
    }

    /// The next slice of a card's time, at most `wanted` nanoseconds of work that was
    /// ready at `ready`. A switch to this process is counted as used. The caller sleeps until its end before it asks again.
    #[must_use]
    pub fn slice(&self, card: usize, ready: u64, wanted: u64) -> Slice {
        let time = &self.machine.mapped.shared().clocks[card];
        let slot = self.index as u64;
        let (slice, lost) = clock::take(time, self.machine.time, slot, ready, wanted);
        self.worked(card, slice.start - lost, slice.start);
        slice
    }

    /// Counts a part of a slice as used.
    pub fn worked(&self, card: usize, from: u64, to: u64) {
        let time = &self.machine.mapped.shared().clocks[card];
        clock::count(&time.buckets, from, to);
        clock::count(&self.held(card).buckets, from, to);
    }

    /// Gives back the rest of a slice after `used`.
    pub fn give_back(&self, card: usize, slice: Slice, used: u64) {
        let time = &self.machine.mapped.shared().clocks[card];
        clock::give_back(time, self.index as u64, slice, used);
    }

    pub(super) fn held(&self, card: usize) -> &Use {
        &self.slot().cards[card]
    }

    fn slot(&self) -> &Slot {
        &self.machine.mapped.shared().slots[self.index]
    }

    /// Cleans the slots of the dead. The caller holds the accounts.
    fn clean_dead(&self) {
        for index in 0..slots::n_slots(self.machine.mapped) {
            // A slot that cannot be looked at is taken for alive.
            if matches!(
                slots::owner(self.machine.mapped, index, self.own),
                Ok(Owner::Dead)
            ) {
                slots::clean(self.machine.mapped, index);
            }
        }
    }

    fn leave(&self) -> Result<(), MachineError> {
        let accounts = self.machine.mapped.accounts();
        let accounts = accounts.map_err(self.machine.failed("lock it"))?;
        slots::clean(self.machine.mapped, self.index);
        let result = self.machine.mapped.disclaim(self.index);
        drop(accounts);
        result.map_err(self.machine.failed("leave"))
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        // A child inherits the value but not the place.
        if Identity::own() == self.own {
            // If it fails the kernel does it when the process ends.
            let _ = self.leave();
        }
    }
}
