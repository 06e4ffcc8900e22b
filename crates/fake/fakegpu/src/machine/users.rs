//! View of a machine's cards from outside: the processes that use them, the memory in use, and how
//! busy they are.

use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;

use super::slots::{self, Identity, Owner};
use super::{CardUse, FakeMachine, MachineError, ProcessUse, clock, now};

impl FakeMachine {
    /// Returns the memory use of a card. Memory of a process counts as free as soon as the process
    /// has ended.
    ///
    /// # Errors
    /// The machine's file cannot be locked.
    pub fn usage(&self, card: usize) -> Result<CardUse, MachineError> {
        let users = self.processes_on(card)?;
        let used: u64 = users.iter().map(|process| process.bytes).sum();
        let total = self.cards.get(card).map_or(0, |card| card.memory);
        Ok(CardUse {
            total,
            used,
            free: total.saturating_sub(used),
        })
    }

    /// Every living process that has something of a card, one entry per card.
    ///
    /// # Errors
    /// The machine's file cannot be locked.
    pub fn processes(&self) -> Result<Vec<ProcessUse>, MachineError> {
        self.users_of(0..self.cards.len())
    }

    /// The same of one card.
    ///
    /// # Errors
    /// The machine's file cannot be locked.
    pub fn processes_on(&self, card: usize) -> Result<Vec<ProcessUse>, MachineError> {
        self.users_of(card..self.cards.len().min(card + 1))
    }

    fn users_of(&self, cards: Range<usize>) -> Result<Vec<ProcessUse>, MachineError> {
        let own = Identity::own();
        let now = now();
        let mut found = Vec::new();
        // What one process gives and another one takes is not counted twice.
        let _one_moment = self.mapped.glance();
        for index in 0..slots::n_slots(self.mapped) {
            let slot = &self.mapped.shared().slots[index];
            let of_card = |card: usize| {
                let held = &slot.cards[card];
                let (bytes, n_contexts) = (held.bytes.load(Relaxed), held.n_contexts.load(Relaxed));
                (bytes > 0 || n_contexts > 0).then(|| ProcessUse {
                    pid: 0,
                    slot: index,
                    generation: slot.generation.load(Relaxed),
                    card,
                    bytes,
                    context_bytes: held.context_bytes.load(Relaxed),
                    n_contexts,
                    busy: clock::busy(&held.buckets, now),
                })
            };
            let first = found.len();
            found.extend(cards.clone().filter_map(of_card));
            // Only then the system is asked who that is: it costs a call for each process.
            if found.len() == first {
                continue;
            }
            match slots::owner(self.mapped, index, own).map_err(self.failed("look"))? {
                Owner::Alive(pid) => found[first..].iter_mut().for_each(|entry| entry.pid = pid),
                Owner::Nobody | Owner::Dead => found.truncate(first),
            }
        }
        Ok(found)
    }

    /// Does the process that came to a place as number `generation` still have it? One that
    /// cannot be looked at is taken for alive.
    #[must_use]
    pub fn has(&self, place: usize, generation: u32) -> bool {
        let Some(slot) = self.mapped.shared().slots.get(place) else {
            return false;
        };
        let owner = slots::owner(self.mapped, place, Identity::own());
        slot.generation.load(Relaxed) == generation
            && !matches!(owner, Ok(Owner::Nobody | Owner::Dead))
    }

    /// Nanoseconds of the last second in which any kernel had the card.
    #[must_use]
    pub fn busy(&self, card: usize) -> u64 {
        let clocks = &self.mapped.shared().clocks;
        clocks
            .get(card)
            .map_or(0, |time| clock::busy(&time.buckets, now()))
    }
}
