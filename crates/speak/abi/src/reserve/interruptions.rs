//! The protocol with one thread stopped, for long or for ever, at each of its steps in turn.
//!
//! Loom tries the actions of threads at the same time, and has no patience for the events of a day.
//! Here one thread sleeps between two steps while another slot does half a million operations, so
//! that the head's number comes round; and long random histories, with deaths in them, are compared
//! with a model that knows no interruptions.

use std::boxed::Box;
use std::collections::BTreeSet;
use std::format;
use std::rc::Rc;
use std::vec::Vec;

use proptest::prelude::*;

use super::rig::{CellWord, Life, Rig, amount, slot};
use super::word::{Change, Head, Number};
use super::{NotReleased, NotReserved, Word, charge, help, reclaim, release, reserve, settle};

type CellRig = Rig<CellWord>;

/// After so many operations of one slot the number in the head is the same again.
const LAP: u32 = 1 << 19;

fn rig(number: u32, units: &[u64]) -> (Rc<CellRig>, Rc<Life>) {
    let life = Rc::new(Life::endless());
    let rig = Rig::new(number, units, |word| CellWord::new(word, &life));
    (Rc::new(rig), life)
}

/// Runs so many operations of slot 2. Each second one undoes the one before.
fn work_of_slot_2(rig: &CellRig, n_operations: u32) {
    for count in 0..n_operations {
        if count % 2 == 0 {
            reserve(rig, slot(2), amount(1), || amount(100)).expect("there is room");
        } else {
            release(rig, slot(2), amount(1)).expect("it has them");
        }
    }
}

/// The same without the work, for even numbers of operations.
fn jump_of_slot_2(rig: &CellRig, n_operations: u32) {
    assert!(n_operations.is_multiple_of(2) && n_operations > 0);
    let (op, used) = &rig.slots[2];
    let number = Number((Number::of_word(used.load()).0 + n_operations) & Number::MASK);
    let before = amount(rig.held(2) + 1).count();
    op.store(Change::Less(amount(1)).word());
    used.store(Change::Less(amount(1)).applied(before, number));
    rig.head
        .store(Head::word(amount(rig.total()), slot(2), number));
}

#[test]
fn a_jump_is_as_good_as_the_work() {
    let start = Number::MASK - 1000;
    let ((worked, _), (jumped, _)) = (rig(start, &[0, 3, 5]), rig(start, &[0, 3, 5]));
    let before = worked.head.load();
    work_of_slot_2(&worked, LAP);
    jump_of_slot_2(&jumped, LAP);
    let words = |rig: &CellRig| {
        let slots = rig
            .slots
            .iter()
            .flat_map(|(op, used)| [op.load(), used.load()]);
        slots.chain([rig.head.load()]).collect::<Vec<_>>()
    };
    assert_eq!(words(&worked), words(&jumped));
    assert_eq!(
        before,
        worked.head.load(),
        "a lap leaves no trace in the head"
    );
}

/// Actions of slot 2 around the sleep of another slot.
struct Story {
    name: &'static str,
    before: fn(&CellRig, &Life),
    meanwhile: fn(&CellRig, &Life),
    afterwards: fn(&CellRig),
    /// Its memory at the end, of 5 units.
    left: u64,
}

const STORIES: &[Story] = &[
    Story {
        name: "one operation",
        before: |_, _| (),
        meanwhile: |rig, _| work_of_slot_2(rig, 1),
        afterwards: |_| (),
        left: 6,
    },
    Story {
        name: "two operations",
        before: |_, _| (),
        meanwhile: |rig, _| work_of_slot_2(rig, 2),
        afterwards: |_| (),
        left: 5,
    },
    Story {
        name: "a lap: the head is the same to the bit",
        before: |_, _| (),
        meanwhile: |rig, _| jump_of_slot_2(rig, LAP),
        afterwards: |_| (),
        left: 5,
    },
    Story {
        name: "a lap but one, and one more announced and refused",
        before: |_, _| (),
        meanwhile: |rig, _| {
            work_of_slot_2(rig, 1);
            release(rig, slot(2), amount(1)).expect("it has them");
            jump_of_slot_2(rig, LAP - 4);
            work_of_slot_2(rig, 1);
            assert!(reserve(rig, slot(2), amount(9), || amount(1)).is_err());
        },
        afterwards: |_| (),
        left: 6,
    },
    Story {
        name: "an account behind at first, and as before after a lap",
        before: |rig, life| stop_before_step_3(rig, life),
        meanwhile: |rig, _| {
            help(rig, rig.head.load());
            release(rig, slot(2), amount(1)).expect("it has them");
            jump_of_slot_2(rig, LAP - 2);
        },
        afterwards: |_| (),
        left: 5,
    },
    Story {
        name: "a lap, at the end of which the slot sleeps itself",
        before: |_, _| (),
        meanwhile: |rig, life| {
            release(rig, slot(2), amount(1)).expect("it has them");
            jump_of_slot_2(rig, LAP - 2);
            stop_before_step_3(rig, life);
        },
        afterwards: |rig| {
            let (op, used) = &rig.slots[2];
            let (change, before) = (Change::of_word(op.load()), used.load());
            if rig.held(2) == 4 {
                let after = change.applied(before, Number::of_word(before).next());
                used.compare_exchange(before, after).expect("it is alone");
            }
        },
        left: 5,
    },
];

/// Slot 2 reserves one unit, and stops when its account alone is still to be changed.
fn stop_before_step_3(rig: &CellRig, life: &Life) {
    let before = (rig.held(2), rig.total());
    let lived = life.end_after(5, || {
        reserve(rig, slot(2), amount(1), || amount(100)).expect("there is room");
    });
    assert!(!lived);
    assert_eq!((rig.held(2), rig.total()), (before.0, before.1 + 1));
}

/// Action of slot 1, which has 3 units, in its sleep, and its memory afterwards.
type Work = (&'static str, fn(&CellRig), u64);

const WORKS: &[Work] = &[
    (
        "reserve",
        |rig| reserve(rig, slot(1), amount(2), || amount(100)).expect("room"),
        5,
    ),
    (
        "release",
        |rig| release(rig, slot(1), amount(1)).expect("it has them"),
        2,
    ),
    (
        "reclaim",
        |rig| assert_eq!(reclaim(rig, slot(1)), Ok(amount(3))),
        0,
    ),
    ("settle", |rig| settle(rig).expect("nobody scribbles"), 3),
];

#[test]
fn a_sleeper_does_no_harm_when_it_wakes() {
    for story in STORIES {
        for (name, work, held) in WORKS {
            let mut steps = 0;
            while wakes_after(steps, story, (name, *work, *held)) {
                steps += 1;
            }
            assert!(steps >= 5, "{name} takes at least five steps");
        }
    }
}

/// False if the work was done before it came to sleep.
fn wakes_after(steps: u32, story: &Story, (name, work, held): Work) -> bool {
    let (rig, life) = rig(Number::MASK - 2, &[0, 3, 5]);
    (story.before)(&rig, &life);
    let meanwhile = {
        let (rig, life, meanwhile) = (Rc::clone(&rig), Rc::downgrade(&life), story.meanwhile);
        Box::new(move || meanwhile(&rig, &life.upgrade().expect("it is asleep")))
    };
    let ((), slept) = life.sleep_after(steps, meanwhile, || work(&rig));
    let at = format!("{name}, asleep after step {steps} during {}", story.name);
    if slept {
        (story.afterwards)(&rig);
        assert_eq!((rig.held(1), rig.held(2)), (held, story.left), "{at}");
        assert!(rig.is_conserved(), "{at}");
    }
    slept
}

/// A helper that read the head a lap ago: the very same word names the slot's next
/// operation, which is announced, refused, and announced with another amount meanwhile.
#[test]
fn a_helper_with_an_old_head_does_what_was_announced_last() {
    for steps in 0..6 {
        let (rig, life) = rig(0, &[0, 3, 5]);
        assert!(reserve(&*rig, slot(2), amount(9), || amount(8)).is_err());
        let old_head = Head::word(amount(9), slot(2), Number(1));
        let meanwhile = {
            let (rig, life) = (Rc::clone(&rig), Rc::downgrade(&life));
            Box::new(move || stop_before_step_3(&rig, &life.upgrade().expect("it is asleep")))
        };
        let ((), slept) = life.sleep_after(steps, meanwhile, || help(&*rig, old_head));
        assert_eq!(
            slept,
            steps < 2,
            "without the operation it sees nothing to do"
        );
        if slept {
            assert_eq!(rig.head.load(), old_head);
            help(&*rig, old_head);
            assert_eq!((rig.held(2), rig.total()), (6, 9), "after step {steps}");
        }
    }
}

/// One thing that happens in a history.
#[derive(Debug, Clone, Copy)]
enum Deed {
    Reserve(u32, u64),
    Release(u32, u64),
    Charge(u32, u64),
    Reclaim(u32),
    Limit(u64),
}

/// A deed, and after how many steps its process, or the arbiter, dies of it.
fn deeds() -> impl Strategy<Value = (Deed, Option<u32>)> {
    let process = 1..4u32;
    let deed = prop_oneof![
        4 => (process.clone(), 0..9u64).prop_map(|(slot, units)| Deed::Reserve(slot, units)),
        3 => (process.clone(), 0..9u64).prop_map(|(slot, units)| Deed::Release(slot, units)),
        1 => (0..4u32, 0..3u64).prop_map(|(slot, units)| Deed::Charge(slot, units)),
        1 => process.prop_map(Deed::Reclaim),
        1 => (0..30u64).prop_map(Deed::Limit),
    ];
    (
        deed,
        prop_oneof![2 => Just(None), 1 => (0..9u32).prop_map(Some)],
    )
}

/// Result of a history if operations cannot be interrupted.
struct Model {
    held: [u64; 4],
    limit: u64,
    /// Processes that died and were not reclaimed yet.
    dead: BTreeSet<u32>,
}

impl Model {
    fn total(&self) -> u64 {
        self.held.iter().sum()
    }

    /// Does a deed by the protocol; `Ok` with its change if it is granted.
    fn perform(&self, rig: &CellRig, deed: Deed) -> Option<(u32, i64)> {
        let (total, limit) = (self.total(), self.limit);
        match deed {
            Deed::Reserve(index, units) => {
                let result = reserve(rig, slot(index), amount(units), || amount(limit));
                let over = NotReserved::OverLimit {
                    total: amount(total),
                    limit: amount(limit),
                };
                let fits = total + units <= limit;
                assert_eq!(result, if fits { Ok(()) } else { Err(over) });
                fits.then_some((index, units as i64))
            }
            Deed::Release(index, units) => {
                let result = release(rig, slot(index), amount(units));
                let held = self.held[index as usize];
                let more = NotReleased::MoreThanHeld { held: amount(held) };
                assert_eq!(result, if units <= held { Ok(()) } else { Err(more) });
                (units <= held).then_some((index, -(units as i64)))
            }
            Deed::Charge(index, units) => {
                assert_eq!(charge(rig, slot(index), amount(units)), Ok(()));
                Some((index, units as i64))
            }
            Deed::Reclaim(index) => {
                let held = self.held[index as usize];
                assert_eq!(reclaim(rig, slot(index)), Ok(amount(held)));
                Some((index, -(held as i64)))
            }
            Deed::Limit(_) => {
                assert_eq!(settle(rig), Ok(()));
                None
            }
        }
    }

    fn change(&mut self, index: u32, units: i64) {
        let held = &mut self.held[index as usize];
        *held = held.strict_add_signed(units);
    }

    /// Does a deed that may be the slot's last.
    fn live_through(&mut self, rig: &CellRig, life: &Life, deed: Deed, death: Option<u32>) {
        let (process, by_arbiter) = match deed {
            Deed::Reserve(index, _) | Deed::Release(index, _) => (index, false),
            Deed::Charge(index, _) => (index, index == 0),
            Deed::Reclaim(index) => (index, true),
            Deed::Limit(limit) => {
                self.limit = limit;
                (0, true)
            }
        };
        if self.dead.remove(&process) && !matches!(deed, Deed::Reclaim(_)) {
            // The arbiter gives the slot to another process.
            self.live_through(rig, life, Deed::Reclaim(process), None);
        }
        let mut change = None;
        let before = rig.total();
        let lived = life.end_after(death.unwrap_or(1000), || {
            change = self.perform(rig, deed);
        });
        if !lived {
            // It happened, or it did not; whoever comes next finds the account exact.
            let happened = rig.total() as i64 - before as i64;
            change = Some((process, happened));
            if !by_arbiter {
                self.dead.insert(process);
            }
        }
        if let Some((index, units)) = change {
            self.change(index, units);
        }
        assert_eq!(rig.total(), self.total());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn histories_with_deaths_add_up(
        number in prop_oneof![Just(0), Just(Number::MASK), Just(LAP - 3), any::<u32>()],
        history in prop::collection::vec(deeds(), 1..60),
    ) {
        let (rig, life) = rig(number, &[0, 0, 0, 0]);
        let mut model = Model { held: [0; 4], limit: 20, dead: BTreeSet::new() };
        for (deed, death) in history {
            model.live_through(&rig, &life, deed, death);
        }
        for index in 0..4 {
            model.live_through(&rig, &life, Deed::Reclaim(index), None);
        }
        prop_assert_eq!(rig.total(), 0);
        prop_assert!(rig.is_conserved());
    }
}
