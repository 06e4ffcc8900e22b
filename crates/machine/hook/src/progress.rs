//! Progress of a program: units of its work, counted in its slot.
//!
//! A program may report its units itself, by [`tell`]. For all others a unit is a point at which
//! the program waits for its work, or a launch of a graph ([`found`]). A mini-batch has some number
//! of units, which [`Rhythm`] finds from the program's repetitions. Units are counted only while
//! somebody may want the card, and no more once the program has reported its own.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use crate::link::{Link, LinkState};
use crate::process;
use crate::rhythm::Rhythm;

/// The program says how far it is. A child of a fork is the same program.
static IS_TOLD: AtomicBool = AtomicBool::new(false);

/// Observations of a process's mini-batches.
#[derive(Debug, Default)]
pub struct Steps {
    /// Launches since the last step.
    n_launches: AtomicU32,
    rhythm: Mutex<Rhythm>,
}

impl Steps {
    /// Counts a launch. If several threads launch at once, any number of these launches may count.
    pub fn launched(&self) {
        let n = self.n_launches.load(Ordering::Relaxed);
        self.n_launches.store(n.wrapping_add(1), Ordering::Relaxed);
    }

    /// Returns the mark of a step of this kind, and begins a new count of launches.
    fn mark(&self, step: Step) -> u32 {
        let n_launches = self.n_launches.swap(0, Ordering::Relaxed);
        (n_launches.min(0xff_ffff) << 2) | step as u32
    }
}

/// Event that may end a part of a mini-batch.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Step {
    /// The program waited for its work.
    Wait,
    /// It launched a graph.
    Graph,
}

/// The program has done so many units more. Nothing where it has no arbiter.
pub fn tell(units: u64) {
    IS_TOLD.store(true, Ordering::Relaxed);
    if let Some(link) = process::current().known_state().and_then(LinkState::link) {
        link.turns().add_units(units);
        link.turns().set_units_a_batch(1);
    }
}

/// A unit, as far as can be seen from outside.
pub(crate) fn found(link: &Link, steps: &Steps, step: Step) {
    if IS_TOLD.load(Ordering::Relaxed) {
        return;
    }
    link.turns().add_units(1);
    let mark = steps.mark(step);
    // Where threads take their steps at once, one of them is seen: they have no order anyway.
    if let Ok(mut rhythm) = steps.rhythm.try_lock() {
        link.turns().set_units_a_batch(rhythm.step(mark));
    }
}
