//! Asks the arbiter for a reading of the driver, and waits until what it found is charged.
//!
//! A process cannot count what the driver takes for itself: `cuMemGetInfo` counts the whole card,
//! where others take and give at the same time. The arbiter has the driver's figure of each process
//! alone. So the process asks in its slot, knocks, and waits for the answer in its slot. This is
//! the only call that waits for the arbiter after the first contact, and it waits for a bounded
//! time.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use sublet_abi::{DeviceIndex, ProcessMessage};

use super::{Link, is_arbiter_alive};
use crate::gate::futex;

/// Longest wait for a reading. A knock may be lost; the arbiter then finds the question at a
/// regular reading, 200 ms later at most.
const LONGEST: Duration = Duration::from_millis(500);

impl Link {
    /// Has the arbiter read the driver, and charge the memory that no account explains. False if
    /// the arbiter is gone or does not answer in time. Each device is there once, in order.
    ///
    /// Nothing is taken or given meanwhile on these devices in this process: otherwise the arbiter
    /// could not tell memory that the driver took from memory that comes and goes.
    pub fn read_driver(&self, devices: &[DeviceIndex]) -> bool {
        let own_turn = |device: &DeviceIndex| self.turn((*device).into());
        let _turns: Vec<_> = devices.iter().map(own_turn).collect();
        let slot = self.ledger.slot(self.slot);
        let ask = |device: &DeviceIndex| (*device, slot.ask_reading(*device));
        let asked: Vec<(DeviceIndex, u32)> = devices.iter().map(ask).collect();
        let _ = self.socket().send_at_once(&ProcessMessage::Knock.encode());
        // In a time namespace it never looks alive. It reads nevertheless, and nobody waits.
        if !is_arbiter_alive(self.control()) {
            return false;
        }
        let begin = Instant::now();
        asked.into_iter().all(|(device, number)| {
            let word = slot.finished_reading(device);
            loop {
                let finished = word.load(Ordering::Acquire);
                let left = LONGEST.saturating_sub(begin.elapsed());
                if finished == number || left.is_zero() {
                    return finished == number;
                }
                futex::wait_shared(word.as_ptr(), finished, left);
            }
        })
    }
}
