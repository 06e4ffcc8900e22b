//! The gate: launches that pass it or wait, and the process's report on its work.

use std::time::{Duration, Instant};

use sublet_abi::{GateState, GateWord};

use crate::memory::START;
use crate::support::arbiter::{FakeArbiter, grant};
use crate::support::{DEADLINE, Program, eventually, gated_rows, tenant};

pub(crate) const LAUNCH: &str = "cuLaunchKernel 1 1 1 1 1 1 1 1 s 1 1";

/// So long it is watched that something does not happen.
const A_WHILE: Duration = Duration::from_millis(60);

/// A program with a context and a stream `s`, and an arbiter whose heart beats.
pub(crate) fn begun() -> (FakeArbiter, Program) {
    let mut arbiter = FakeArbiter::start(&grant(&[(0, 64 << 20)]));
    arbiter.keep_beating();
    let mut program = Program::start(&mut tenant(&arbiter));
    program.play(Some(&arbiter), START);
    program.play(None, "cuStreamCreate &s 1");
    eventually("it follows", || arbiter.report(1).follows());
    (arbiter, program)
}

/// The same, behind a closed gate: the process knows that the gate is free no longer. Work that was
/// launched at a free gate is looked for later, when the gate is not free, and in a stream that
/// records it cannot be found.
fn held() -> (FakeArbiter, Program) {
    let (arbiter, program) = begun();
    closed(&arbiter);
    (arbiter, program)
}

fn stays(what: &str, check: impl Fn() -> bool) {
    let start = Instant::now();
    while start.elapsed() < A_WHILE {
        assert!(check(), "{what}, after {:?}", start.elapsed());
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn is_answered(arbiter: &FakeArbiter, word: GateWord) -> bool {
    arbiter.report(1).answered() == word.turn()
}

/// Closes the gate, and sees that the process has nothing that runs.
pub(crate) fn closed(arbiter: &FakeArbiter) -> GateWord {
    let word = arbiter.set_gate(GateState::Closed);
    eventually("an answer", || is_answered(arbiter, word));
    assert!(!arbiter.report(1).is_at_work());
    word
}

/// Closes the gate, and sees that the answer comes when something has ended and not before.
fn answers_only_after(arbiter: &FakeArbiter, program: &mut Program, end: &str) {
    let word = arbiter.set_gate(GateState::Closed);
    stays("nothing is answered", || !is_answered(arbiter, word));
    assert_eq!(program.call(end), "0");
    eventually("an answer", || is_answered(arbiter, word));
    assert!(!arbiter.report(1).is_at_work());
    assert_eq!(program.call("fake_disturbed"), "0");
}

/// Starts a thread whose launch stays inside the driver, until `fake_hold 0`.
fn inside(program: &mut Program) {
    let before = program.call("fake_arrived");
    program.play(None, &format!("fake_hold 1 -> 0\nstart 1 {LAUNCH}"));
    let start = Instant::now();
    while program.call("fake_arrived") == before {
        assert!(start.elapsed() < DEADLINE, "it does not arrive");
    }
}

#[test]
fn every_row_of_the_table_that_makes_work_waits_at_a_closed_gate() {
    let (arbiter, mut program) = begun();
    let rows = gated_rows();
    assert!(rows.len() > 120, "{}", rows.len());
    for row in rows {
        arbiter.set_gate(GateState::Open);
        let result = program.call(row);
        let before: u64 = program.call("fake_arrived").parse().expect("a number");
        closed(&arbiter);
        program.send(row);
        eventually(row, || arbiter.report(1).is_at_gate());
        arbiter.set_gate(GateState::Open);
        assert_eq!(program.read(), result, "{row}");
        let after: u64 = program.call("fake_arrived").parse().expect("a number");
        assert!(
            after == before + 1 || row.starts_with("cuMemPrefetch"),
            "{row}"
        );
        eventually(row, || !arbiter.report(1).is_at_gate());
    }
    assert!(arbiter.n_knocks() > 100, "{} knocks", arbiter.n_knocks());
}

#[test]
fn an_answer_comes_when_the_work_of_all_streams_has_ended() {
    let (arbiter, mut program) = begun();
    // What was launched while the gate was free is not known, and is waited for too: in a stream
    // of the program's, in the default one, and in the one of a thread.
    for state in [GateState::Free, GateState::Open, GateState::Contended] {
        for (set, launch) in [
            ("set t s", LAUNCH),
            ("set t 1", "cuMemsetD8Async 0 0 0 0"),
            ("set t 1", "cuMemsetD8_v2 0 0 0"),
            ("set t 2", "cuMemsetD8Async_ptsz 0 0 0 0"),
            ("set t 2", "start 1 cuMemsetD8_v2_ptds 0 0 0"),
        ] {
            arbiter.set_gate(state);
            if state != GateState::Free {
                eventually("nothing runs", || !arbiter.report(1).is_at_work());
            }
            program.call(set);
            assert_eq!(program.call("fake_run t"), "0");
            assert_eq!(program.call(launch), "0", "{launch}");
            if launch.starts_with("start") {
                assert_eq!(program.call("join 1"), "0");
            }
            if state != GateState::Free {
                assert!(arbiter.report(1).is_at_work(), "{state:?} {launch}");
            }
            answers_only_after(&arbiter, &mut program, "fake_finish t");
        }
    }
    assert!(arbiter.report(1).gpu_ns() > 10 * A_WHILE.as_nanos() as u64);
}

#[test]
fn an_answer_comes_when_no_thread_is_inside_a_launch_any_more() {
    let (arbiter, mut program) = begun();
    for state in [GateState::Free, GateState::Open] {
        arbiter.set_gate(state);
        inside(&mut program);
        answers_only_after(&arbiter, &mut program, "fake_hold 0");
        assert_eq!(program.call("join 1"), "0");
    }
}

#[test]
fn a_kernel_of_any_length_does_not_keep_the_gate_from_opening() {
    let (arbiter, mut program) = held();
    arbiter.set_gate(GateState::Contended);
    program.play(None, &format!("fake_run s -> 0\n{LAUNCH}"));
    let word = arbiter.set_gate(GateState::Closed);
    // The first ones may come before the process has seen that its gate is closed.
    let start = Instant::now();
    while program.is_answered(LAUNCH, A_WHILE) {
        assert!(start.elapsed() < DEADLINE, "the gate stays open");
    }
    assert!(arbiter.report(1).is_at_gate());
    arbiter.set_gate(GateState::Contended);
    assert_eq!(program.read(), "0");
    stays("it works", || arbiter.report(1).is_at_work());
    assert!(!is_answered(&arbiter, word));
    answers_only_after(&arbiter, &mut program, "fake_finish s");
}

#[test]
fn what_is_destroyed_is_not_asked_and_still_waited_for() {
    let (arbiter, mut program) = held();
    arbiter.set_gate(GateState::Open);
    program.play(
        None,
        &format!("fake_run s -> 0\n{LAUNCH}\ncuStreamDestroy_v2 s"),
    );
    answers_only_after(&arbiter, &mut program, "fake_finish s");
    // With its context a stream's work is gone.
    arbiter.set_gate(GateState::Open);
    program.play(
        None,
        &format!(
            "cuCtxCreate_v2 &own 0 0\ncuStreamCreate &s 1\nfake_run s -> 0\n{LAUNCH}\n\
             cuCtxDestroy_v2 own"
        ),
    );
    closed(&arbiter);
    assert_eq!(program.call("fake_disturbed"), "0");
}

#[test]
fn what_is_recorded_passes_a_closed_gate_and_is_not_disturbed() {
    let (arbiter, mut program) = held();
    arbiter.set_gate(GateState::Open);
    program.play(None, "cuStreamCreate &other 1");
    program.play(None, &format!("fake_run s -> 0\n{LAUNCH}"));
    // What was launched before the recording is waited for.
    program.play(None, "cuStreamBeginCapture_v2 s 0");
    assert_eq!(program.call(LAUNCH), "0");
    answers_only_after(&arbiter, &mut program, "fake_finish s");
    for _ in 0..3 {
        assert_eq!(program.call(LAUNCH), "0");
        assert!(!arbiter.report(1).is_at_work() && !arbiter.report(1).is_at_gate());
        program.send("cuLaunchKernel 1 1 1 1 1 1 1 1 other 1 1");
        eventually("others wait", || arbiter.report(1).is_at_gate());
        arbiter.set_gate(GateState::Open);
        assert_eq!(program.read(), "0");
        closed(&arbiter);
    }
    assert_eq!(program.call("fake_disturbed"), "0");
}

#[test]
fn all_threads_wait_and_all_are_woken() {
    let (arbiter, mut program) = begun();
    let knocks = arbiter.n_knocks();
    closed(&arbiter);
    for thread in 0..16 {
        assert_eq!(program.call(&format!("start {thread} {LAUNCH}")), "0");
    }
    eventually("they wait", || arbiter.report(1).is_at_gate());
    assert_eq!(program.call("fake_arrived"), "0");
    eventually("it knocks", || arbiter.n_knocks() >= knocks + 2);
    stays("they wait", || arbiter.report(1).is_at_gate());
    arbiter.set_gate(GateState::Open);
    for thread in 0..16 {
        assert_eq!(program.call(&format!("join {thread}")), "0");
    }
    assert_eq!(program.call("fake_arrived"), "16");
    assert!(!arbiter.report(1).is_at_gate());
    assert!(arbiter.report(1).waited_ns() >= A_WHILE.as_nanos() as u64);
    // Their records are given back: nobody is inside.
    closed(&arbiter);
}

#[test]
fn a_process_says_when_it_works_and_when_it_has_waited_for_its_work() {
    let (arbiter, mut program) = held();
    arbiter.set_gate(GateState::Contended);
    let mut counted = 0;
    for round in 0..3 {
        let knocks = arbiter.n_knocks();
        program.play(None, &format!("fake_run s -> 0\n{LAUNCH}"));
        assert!(arbiter.report(1).is_at_work());
        stays("it works", || arbiter.report(1).is_at_work());
        program.call("fake_finish s");
        if round == 0 {
            // Nobody looks any more often because the program does not synchronise.
            eventually("it is noticed", || !arbiter.report(1).is_at_work());
        } else {
            program.play(None, "cuStreamSynchronize s");
            assert!(!arbiter.report(1).is_at_work());
        }
        eventually("it knocks", || arbiter.n_knocks() >= knocks + 2);
        let now = arbiter.report(1).gpu_ns();
        assert!(now - counted >= A_WHILE.as_nanos() as u64, "{now}");
        counted = now;
    }
}

#[test]
fn a_child_is_not_held_by_what_its_parent_had() {
    let (arbiter, mut program) = begun();
    // In the memory that the child gets, a thread is inside, and the gate is closed.
    inside(&mut program);
    let word = arbiter.set_gate(GateState::Closed);
    stays("a thread is inside", || !is_answered(&arbiter, word));
    assert_eq!(program.call("in 0 fake_hold 0"), "0");
    // Without an arbiter of its own it is not held.
    assert_eq!(program.call(&format!("in 0 {LAUNCH}")), "0");
    for call in [
        "cuInit 0",
        "cuDevicePrimaryCtxRetain &ctx 0",
        "cuCtxSetCurrent ctx",
    ] {
        assert_eq!(program.call(&format!("in 0 {call}")), "0");
    }
    eventually("the child answers", || {
        arbiter.report(2).answered() == word.turn()
    });
    program.call(&format!("to 0 {LAUNCH}"));
    eventually("the child waits", || arbiter.report(2).is_at_gate());
    assert_eq!(program.call("fake_hold 0"), "0");
    arbiter.set_gate(GateState::Open);
    assert_eq!(program.call("from 0"), "0");
    assert_eq!(program.call("join 1"), "0");
    assert_eq!(program.call("end 0"), "0");
}

#[test]
fn without_an_arbiter_a_gate_opens_and_some_jobs_launch_a_part_of_the_time() {
    let (mut arbiter, mut program) = begun();
    closed(&arbiter);
    arbiter.stop_beating();
    let start = Instant::now();
    assert_eq!(program.call(LAUNCH), "0");
    assert!(
        start.elapsed() < Duration::from_secs(3),
        "{:?}",
        start.elapsed()
    );
    // Once more, with a tenth of the time.
    arbiter.keep_beating();
    arbiter.set_gate_rules(100, 0);
    closed(&arbiter);
    arbiter.stop_beating();
    assert_eq!(program.call(LAUNCH), "0");
    let (start, before) = (Instant::now(), arbiter.report(1).waited_ns());
    while start.elapsed() < Duration::from_secs(1) {
        assert_eq!(program.call(LAUNCH), "0");
    }
    let waited = arbiter.report(1).waited_ns() - before;
    let share = waited as f64 / start.elapsed().as_nanos() as f64;
    assert!(
        (0.5..0.97).contains(&share),
        "it waited {share} of the time"
    );
    // An arbiter that is back is followed again, and told what nobody noted meanwhile.
    assert_eq!(program.call("fake_run s"), "0");
    assert_eq!(program.call(LAUNCH), "0");
    arbiter.keep_beating();
    answers_only_after(&arbiter, &mut program, "fake_finish s");
}

#[test]
fn a_successors_gate_counts() {
    let (arbiter, mut program) = begun();
    closed(&arbiter);
    let mut arbiter = arbiter.restart(&grant(&[(0, 64 << 20)]));
    arbiter.keep_beating();
    program.send(LAUNCH);
    assert_eq!(program.read(), "0", "its gate is free");
    eventually("it is back", || arbiter.hellos().len() == 1);
    closed(&arbiter);
    eventually("it knocks", || arbiter.n_knocks() > 0);
}

#[test]
fn a_programs_progress_is_counted_until_it_says_itself_how_far_it_is() {
    let (arbiter, mut program) = begun();
    let mini_batch = format!("{LAUNCH} ; cuGraphLaunch 1 s ; {LAUNCH} ; cuStreamSynchronize s");
    // Nobody wants the card.
    program.call(&format!("repeat 10 {mini_batch}"));
    assert_eq!(arbiter.report(1).n_units(), 0);
    closed(&arbiter);
    arbiter.set_gate(GateState::Open);
    for round in 1..4 {
        assert_eq!(program.call(&format!("repeat 10 {mini_batch}")), "10");
        assert_eq!(arbiter.report(1).n_units(), 20 * round);
        // It must have repeated itself for long enough.
        let known = (round >= 2).then_some(2);
        assert_eq!(arbiter.report(1).units_a_batch(), known, "{round}");
    }
    program.play(None, "let nothing sublet_progress 3");
    assert_eq!(program.call(&format!("repeat 10 {mini_batch}")), "10");
    program.play(None, "let nothing sublet_progress 4");
    assert_eq!(arbiter.report(1).n_units(), 67);
    assert_eq!(arbiter.report(1).units_a_batch(), Some(1));
}
