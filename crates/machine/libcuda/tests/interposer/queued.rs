//! Work that a process has queued on a card, of all its threads together: never more than the
//! arbiter allows, but for one launch that is longer.

use sublet_abi::GateState;

use crate::gate::{LAUNCH, begun, closed};
use crate::support::Program;
use crate::support::arbiter::FakeArbiter;

/// From now on the gate has this state, and this bound.
fn allow(arbiter: &FakeArbiter, state: GateState, queue_us: u32) {
    closed(arbiter);
    arbiter.set_gate_rules(1000, queue_us);
    arbiter.set_gate(state);
}

/// The longest queue of a program that never waits, in microseconds: it makes these calls while
/// nothing is queued, and has made them before.
fn longest_us(program: &mut Program, each_us: u64, calls: &str) -> u64 {
    program.call(&format!("fake_each {each_us}"));
    program.call(calls);
    program.call("fake_drain");
    program.call(calls);
    let longest = program.call("fake_deepest").parse().expect("a number");
    program.call("fake_drain");
    longest
}

/// The most that may be queued. Beside others, launches that become up to four times as long are
/// taken for as long as before, for some seconds.
fn most_us(state: GateState, queue_us: u32, each_us: u64) -> u64 {
    let seems = if state == GateState::Free { 1 } else { 4 };
    seems * u64::from(queue_us) + each_us
}

#[test]
fn no_more_is_queued_than_the_arbiter_allows_at_a_free_gate_too() {
    for state in [GateState::Free, GateState::Open, GateState::Contended] {
        let (arbiter, mut program) = begun();
        // Shorter and shorter, for a thousand launches that become longer pass.
        for (queue_us, each_us, times) in [
            (10_000, 40_000, 10),
            (250_000, 10_000, 60),
            (2000, 1500, 40),
            (250_000, 1000, 600),
            (10_000, 1000, 60),
            (10_000, 100, 1500),
            (2000, 10, 2000),
        ] {
            allow(&arbiter, state, queue_us);
            let calls = format!("repeat {times} {LAUNCH}");
            let longest = longest_us(&mut program, each_us, &calls);
            let most = most_us(state, queue_us, each_us);
            let bounds = u64::from(queue_us) / 3..=most;
            assert!(
                bounds.contains(&longest),
                "{state:?}: {longest} us of {queue_us} us, {each_us} us each"
            );
        }
        // What is recorded is not queued, and no mark is put in it.
        program.play(None, "cuStreamBeginCapture_v2 s 0");
        program.call(&format!("repeat 2000 {LAUNCH}"));
        assert_eq!(program.call("fake_disturbed"), "0");
    }
}

#[test]
fn threads_that_never_wait_have_one_bound_together() {
    let (arbiter, mut program) = begun();
    for state in [GateState::Free, GateState::Contended] {
        for (queue_us, each_us, stream) in [
            (250_000, 10_000, "0"),
            (250_000, 2000, "s"),
            (10_000, 2000, "0"),
            (10_000, 2000, "s"),
        ] {
            allow(&arbiter, state, queue_us);
            let calls = format!("fake_threads 32 16 ctx {stream}");
            let longest = longest_us(&mut program, each_us, &calls);
            let most = most_us(state, queue_us, each_us);
            assert!(
                longest <= most,
                "{state:?}: {longest} us of {queue_us} us, {each_us} us each"
            );
        }
    }
}

#[test]
fn a_thread_for_each_launch_is_bounded_as_others_are() {
    let (arbiter, mut program) = begun();
    for (state, queue_us) in [(GateState::Free, 250_000), (GateState::Contended, 10_000)] {
        allow(&arbiter, state, queue_us);
        let longest = longest_us(&mut program, 2000, "repeat 40 fake_threads 8 1 ctx 0");
        assert!(longest <= u64::from(queue_us) + 2000, "{longest} us");
    }
}

#[test]
fn a_smaller_bound_holds_from_the_next_launches_on() {
    let (arbiter, mut program) = begun();
    allow(&arbiter, GateState::Free, 250_000);
    let calls = format!("repeat 3000 {LAUNCH}");
    assert!(longest_us(&mut program, 100, &calls) > 50_000);
    // Of the chunk of a job alone, some hundred launches are left.
    program.call(&format!("repeat 20 {LAUNCH}"));
    program.call("fake_drain");
    arbiter.set_gate_rules(1000, 2000);
    arbiter.set_gate(GateState::Contended);
    closed(&arbiter);
    arbiter.set_gate(GateState::Contended);
    program.call(&format!("repeat 300 {LAUNCH}"));
    let longest: u64 = program.call("fake_deepest").parse().expect("a number");
    assert!(longest <= 2100, "{longest} us");
}

#[test]
fn launches_that_become_longer_are_noticed_and_graphs_have_a_time_of_their_own() {
    let (arbiter, mut program) = begun();
    allow(&arbiter, GateState::Contended, 10_000);
    let short = format!("repeat 3000 {LAUNCH}");
    longest_us(&mut program, 10, &short);
    // At most what was allowed of the short ones.
    program.call("fake_each 2000");
    program.call(&format!("repeat 1000 {LAUNCH}"));
    program.call("fake_drain");
    program.call(&format!("repeat 100 {LAUNCH}"));
    let longest: u64 = program.call("fake_deepest").parse().expect("a number");
    assert!(longest <= 12_000, "{longest} us");
    let longest = longest_us(&mut program, 40_000, "repeat 30 cuGraphLaunch 1 s");
    assert!(longest <= 50_000, "{longest} us");
}

/// Each mark is reached before the next one is made, so the card rests between any two.
#[test]
fn launches_with_which_the_card_keeps_up_are_seldom_marked() {
    for calls in [LAUNCH, "cuGraphLaunch 1 s"] {
        let (arbiter, mut program) = begun();
        program.call("fake_each 0");
        program.call("fake_drain");
        let mut marks_of = |times: u32| {
            let marks = |program: &mut Program| -> u32 {
                let marks = program.call("fake_recorded");
                marks.parse().expect("a number")
            };
            let before = marks(&mut program);
            program.call(&format!("repeat {times} {calls}"));
            marks(&mut program) - before
        };
        for (state, queue_us) in [(GateState::Contended, 2000), (GateState::Free, 250_000)] {
            allow(&arbiter, state, queue_us);
            marks_of(3000);
            let made = marks_of(1000);
            assert!(made <= 10, "{state:?}: {made} marks of {calls}");
        }
    }
}

#[test]
fn nobody_waits_for_ever_and_nothing_is_asked_of_a_context_that_is_gone() {
    let (arbiter, mut program) = begun();
    allow(&arbiter, GateState::Contended, 2000);
    // A kernel that waits for one that comes later.
    program.play(None, &format!("fake_run s -> 0\nfake_each 10000\n{LAUNCH}"));
    let start = std::time::Instant::now();
    // Two are let in before the time of one is known.
    for _ in 0..3 {
        assert_eq!(program.call(LAUNCH), "0");
    }
    assert!(start.elapsed() > std::time::Duration::from_millis(500));
    program.play(None, "fake_finish s -> 0");
    program.play(
        None,
        &format!(
            "cuCtxCreate_v2 &own 0 0\ncuStreamCreate &t 1\nset s t\n{LAUNCH}\n{LAUNCH}\n\
             cuCtxDestroy_v2 own\ncuCtxSetCurrent ctx\ncuStreamCreate &s 1\n{LAUNCH}\n{LAUNCH}"
        ),
    );
    assert_eq!(program.call("fake_disturbed"), "0");
}
