//! Accounts to test the protocol on: a few slots of one device, made of any kind of word.

use std::boxed::Box;
use std::cell::Cell;
use std::panic::{self, AssertUnwindSafe};
use std::rc::Rc;
use std::vec::Vec;

use super::word::{Change, Head, Number};
use super::{Accounts, Word, held, total};
use crate::units::{SlotIndex, Units};

/// One device's words. Slot 0 is the arbiter's, as on a page.
pub(super) struct Rig<W> {
    pub(super) head: W,
    /// *op* and *used* of each slot.
    pub(super) slots: Vec<(W, W)>,
}

impl<W: Word> Rig<W> {
    /// Slots that hold `units` each and have done `number` operations, and a head that names
    /// the last one of the last slot.
    pub(super) fn new(number: u32, units: &[u64], word: impl Fn(u64) -> W) -> Rig<W> {
        let number = Number(number & Number::MASK);
        let slots = units.iter().map(|units| {
            let done = Change::More(amount(*units));
            (
                word(done.word()),
                word(done.applied(number.in_word(), number)),
            )
        });
        let last = slot(units.len() as u32 - 1);
        Rig {
            head: word(Head::word(amount(units.iter().sum()), last, number)),
            slots: slots.collect(),
        }
    }

    pub(super) fn total(&self) -> u64 {
        total(self).count()
    }

    pub(super) fn held(&self, index: u32) -> u64 {
        held(self, slot(index)).count()
    }

    /// Nothing lost and nothing invented: the total is the sum of the accounts.
    pub(super) fn is_conserved(&self) -> bool {
        let sum: u64 = (0..self.slots.len() as u32)
            .map(|index| self.held(index))
            .sum();
        self.total() == sum
    }
}

impl<W: Word> Accounts for Rig<W> {
    type Word = W;

    fn head(&self) -> &W {
        &self.head
    }

    fn op(&self, slot: SlotIndex) -> &W {
        &self.slots[slot.place() % self.slots.len()].0
    }

    fn used(&self, slot: SlotIndex) -> &W {
        &self.slots[slot.place() % self.slots.len()].1
    }
}

pub(super) fn slot(index: u32) -> SlotIndex {
    SlotIndex::new(index).expect("a slot of a page")
}

pub(super) fn amount(count: u64) -> Units {
    Units::new(count).expect("fits a word")
}

/// The rest of a thread's life, in accesses to shared words, and the action that follows it.
pub(super) struct Life {
    steps: Cell<u32>,
    then: Cell<Option<Meanwhile>>,
}

/// Actions of others while a thread sleeps.
pub(super) type Meanwhile = Box<dyn FnOnce()>;

/// Payload of a panic that ends a thread in the middle of an operation.
struct Death;

impl Life {
    pub(super) const fn endless() -> Life {
        Life {
            steps: Cell::new(u32::MAX),
            then: Cell::new(None),
        }
    }

    /// One access is about to be made.
    pub(super) fn step(&self) {
        match self.steps.get() {
            0 => {
                self.steps.set(u32::MAX);
                match self.then.take() {
                    Some(meanwhile) => meanwhile(),
                    // The unwinding is how a thread of a test stops where SIGKILL would
                    // stop it: nothing of the protocol runs any more.
                    None => panic::resume_unwind(Box::new(Death)),
                }
            }
            u32::MAX => {}
            left => self.steps.set(left - 1),
        }
    }

    /// Does `work` for `steps` accesses, and says whether it lived to the end.
    pub(super) fn end_after(&self, steps: u32, work: impl FnOnce()) -> bool {
        self.steps.set(steps);
        let result = panic::catch_unwind(AssertUnwindSafe(work));
        self.steps.set(u32::MAX);
        match result {
            Ok(()) => true,
            Err(cause) if cause.is::<Death>() => false,
            Err(cause) => panic::resume_unwind(cause),
        }
    }

    /// Does `work`, with `meanwhile` between two accesses of it, and says whether it got so
    /// far.
    pub(super) fn sleep_after<R>(
        &self,
        steps: u32,
        meanwhile: Meanwhile,
        work: impl FnOnce() -> R,
    ) -> (R, bool) {
        self.then.set(Some(meanwhile));
        self.steps.set(steps);
        let result = work();
        self.steps.set(u32::MAX);
        (result, self.then.take().is_none())
    }
}

/// A word for one thread, which counts accesses of the life it is given.
pub(super) struct CellWord {
    value: Cell<u64>,
    life: Rc<Life>,
}

impl CellWord {
    pub(super) fn new(value: u64, life: &Rc<Life>) -> CellWord {
        CellWord {
            value: Cell::new(value),
            life: Rc::clone(life),
        }
    }
}

impl Word for CellWord {
    fn load(&self) -> u64 {
        self.life.step();
        self.value.get()
    }

    fn store(&self, value: u64) {
        self.life.step();
        self.value.set(value);
    }

    fn compare_exchange(&self, current: u64, new: u64) -> Result<u64, u64> {
        self.life.step();
        let found = self.value.get();
        if found == current {
            self.value.set(new);
            Ok(found)
        } else {
            Err(found)
        }
    }
}
