//! Forks, an arbiter that comes and goes, and programs that close what is not theirs.

use crate::memory::START;
use crate::support::arbiter::{FakeArbiter, grant};
use crate::support::{Program, eventually, tenant};
use sublet_abi::SlotIndex;

#[test]
fn a_child_takes_a_slot_of_its_own() {
    let arbiter = FakeArbiter::start(&grant(&[(0, 64 << 20)]));
    let mut program = Program::start(&mut tenant(&arbiter));
    program.play(Some(&arbiter), START);
    program.play(
        Some(&arbiter),
        "
        cuMemAlloc_v2 &a 16M
        # The parent's pointer is not the child's to give back.
        in 0 cuMemFree_v2 a
        used 0 16M
        in 0 cuMemAlloc_v2 &b 16M
        used 0 32M
        in 0 cuMemAlloc_v2 &c 40M -> 2
        end 0
        cuMemFree_v2 a
        ",
    );
    let held = |number: u32| {
        let slot = SlotIndex::new(number).expect("a slot");
        arbiter
            .ledger()
            .held(slot, crate::support::arbiter::device(0))
            .bytes()
    };
    // The child is gone; the test's arbiter takes nothing back.
    assert_eq!((held(1), held(2)), (0, 16 << 20));
    assert_eq!(arbiter.hellos().len(), 2);
}

#[test]
fn a_child_forked_before_the_first_call_is_like_any_process() {
    let arbiter = FakeArbiter::start(&grant(&[(0, 64 << 20)]));
    let mut program = Program::start(&mut tenant(&arbiter));
    program.play(
        Some(&arbiter),
        "
        cuDriverGetVersion &v
        in 0 cuInit 0
        in 0 cuDevicePrimaryCtxRetain &ctx 0
        in 0 cuCtxSetCurrent ctx
        in 0 cuMemAlloc_v2 &a 16M
        used 0 16M
        end 0
        ",
    );
    program.play(Some(&arbiter), START);
    program.play(
        Some(&arbiter),
        "cuMemAlloc_v2 &a 50M -> 2\ncuMemAlloc_v2 &a 48M",
    );
}

#[test]
fn a_new_arbiter_is_found_and_its_limits_hold() {
    let arbiter = FakeArbiter::start(&grant(&[(0, 64 << 20)]));
    let mut program = Program::start(&mut tenant(&arbiter));
    program.play(Some(&arbiter), START);
    program.play(Some(&arbiter), "cuMemAlloc_v2 &a 40M");
    let grant = grant(&[(0, 48 << 20)]);
    let arbiter = arbiter.restart(&grant);
    eventually("the process comes back", || arbiter.hellos().len() == 1);
    let hello = &arbiter.hellos()[0];
    let held = hello.held.as_ref().expect("it says what it held");
    assert_eq!(held.slot.get(), 1);
    assert_eq!(held.claims[0].uuid, [0xa0; 16]);
    assert_eq!(held.claims[0].bytes, 40 << 20);
    // The switch is one pointer, right after the answer.
    let mut lowered = false;
    let start = std::time::Instant::now();
    while !lowered && start.elapsed() < crate::support::DEADLINE {
        program.call("cuMemGetInfo_v2 &free &total");
        lowered = program.call("print total") == (48_u64 << 20).to_string();
    }
    assert!(lowered, "the new page counts");
    program.play(
        Some(&arbiter),
        "
        cuMemAlloc_v2 &b 16M -> 2
        cuMemAlloc_v2 &b 8M
        used 0 48M
        ",
    );
}

#[test]
fn while_no_arbiter_is_there_the_last_limits_hold() {
    let mut arbiter = FakeArbiter::start(&grant(&[(0, 64 << 20)]));
    let mut program = Program::start(&mut tenant(&arbiter));
    program.play(Some(&arbiter), START);
    arbiter.stop();
    program.play(
        Some(&arbiter),
        "
        cuMemAlloc_v2 &a 40M
        cuMemAlloc_v2 &b 40M -> 2
        cuMemFree_v2 a
        used 0 0
        ",
    );
}

#[test]
fn a_program_that_closes_all_descriptors_keeps_its_limits() {
    let arbiter = FakeArbiter::start(&grant(&[(0, 64 << 20)]));
    let mut program = Program::start(&mut tenant(&arbiter));
    program.play(Some(&arbiter), START);
    program.play(
        Some(&arbiter),
        "
        close_range 3 999 0
        cuMemAlloc_v2 &a 40M
        cuMemAlloc_v2 &b 40M -> 2
        used 0 40M
        ",
    );
}
