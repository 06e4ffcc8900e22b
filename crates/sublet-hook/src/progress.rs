//! How fast a program gets on: units of its work, counted in its slot.
//!
//! A program may say so itself, by [`tell`]. For all others a unit is a point at which it waits for
//! its work, or a launch of a graph ([`found`]). A mini-batch has some number of these, which
//! nobody knows; but it is the same each time, so units a second rise and fall as mini-batches do,
//! and to compare a program with itself nothing more is needed. They are counted only while
//! somebody may want the card, and no more once the program has spoken.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::link::{Link, LinkState};
use crate::process;

/// The program says how far it is. A child of a fork is the same program.
static IS_TOLD: AtomicBool = AtomicBool::new(false);

/// The program has done so many units more. Nothing where it has no arbiter.
pub fn tell(units: u64) {
    IS_TOLD.store(true, Ordering::Relaxed);
    if let Some(link) = process::current().known_state().and_then(LinkState::link) {
        link.turns().add_units(units);
    }
}

/// A unit, as far as can be seen from outside.
pub(crate) fn found(link: &Link) {
    if !IS_TOLD.load(Ordering::Relaxed) {
        link.turns().add_units(1);
    }
}
