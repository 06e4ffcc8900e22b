//! Kernels that wait for each other across cards, as collective operations do: one of
//! them ends only when the same kernel on another card has started. Each pair of starts
//! is used once, so a kernel never ends because of a peer that met somebody else before.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering::{Acquire, Relaxed};

use super::layout::set;
use super::registration::Registration;
use super::slots;

/// One process's knowledge of its rendezvous on one card.
#[derive(Debug)]
pub struct Rendezvous {
    card: usize,
    /// By place and card of the others: the number of the last start that we met, or that was over
    /// before we came.
    met: BTreeMap<(usize, usize), u64>,
}

impl Rendezvous {
    /// Starts that have met somebody are over; one that still waits can be met by us, even
    /// if it was before we came.
    #[must_use]
    pub fn new(registration: &Registration, card: usize) -> Rendezvous {
        let mut rendezvous = Rendezvous {
            card,
            met: BTreeMap::new(),
        };
        for peer in others(registration, card) {
            rendezvous.met.insert(peer.place, peer.n_met);
        }
        rendezvous
    }

    /// A kernel with this name (as a hash, not 0) starts on our card.
    pub fn start(&mut self, registration: &Registration, kernel: u64) {
        let held = registration.held(self.card);
        set(&held.rendezvous, kernel);
        set(&held.n_rendezvous, held.n_rendezvous.load(Relaxed) + 1);
    }

    /// Has a peer of that kernel started that we did not meet before?
    pub fn has_met(&mut self, registration: &Registration, kernel: u64) -> bool {
        for peer in others(registration, self.card) {
            let met = self.met.get(&peer.place).copied().unwrap_or(0);
            // A place that was given to a new process counts from the beginning again.
            let met = if met > peer.n_starts { 0 } else { met };
            if peer.kernel == kernel && peer.n_starts > met {
                self.met.insert(peer.place, met + 1);
                let held = registration.held(self.card);
                set(&held.n_met, held.n_rendezvous.load(Relaxed));
                return true;
            }
        }
        false
    }
}

/// Rendezvous of another card of any process.
struct Peer {
    /// Its place and card.
    place: (usize, usize),
    /// The last kernel that waits for others.
    kernel: u64,
    n_starts: u64,
    n_met: u64,
}

/// Every other card of every process.
fn others(registration: &Registration, card: usize) -> Vec<Peer> {
    let machine = registration.machine();
    let n_cards = machine.cards().len();
    let slots = &machine.mapped.shared().slots[..slots::n_slots(machine.mapped)];
    let taken = slots.iter().enumerate();
    taken
        .filter(|(_, slot)| slot.state.load(Acquire) != 0)
        .flat_map(|(index, slot)| {
            let cards = slot.cards.iter().enumerate().take(n_cards);
            cards.map(move |(number, held)| Peer {
                place: (index, number),
                // The count first: a start is counted after its kernel is written.
                n_starts: held.n_rendezvous.load(Acquire),
                n_met: held.n_met.load(Acquire),
                kernel: held.rendezvous.load(Acquire),
            })
        })
        .filter(|peer| peer.place.1 != card)
        .collect()
}
