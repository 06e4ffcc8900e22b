//! Readings one after another, and the findings.

use super::*;

const M: u64 = 1 << 20;

fn slot(pid: u32, used: u64) -> SlotUse {
    SlotUse {
        job: JobId(1),
        pid: Pid(pid),
        card: 0,
        used: Bytes::new(used * M),
        is_quiet: true,
        has_asked: false,
    }
}

fn reading(processes: &[(u32, u64)]) -> Vec<Option<Reading>> {
    let processes = processes
        .iter()
        .map(|&(pid, mib)| (Pid(pid), Bytes::new(mib * M)));
    vec![Some(Reading {
        processes: processes.collect(),
    })]
}

#[test]
fn the_first_look_at_a_process_on_a_card_is_told() {
    let mut state = Reconciliation::new(1, false);
    let mut look = |processes: &[(u32, u64)], slots: &[SlotUse]| {
        state.measure(&reading(processes), slots, &mut Vec::new())
    };
    assert!(!look(&[], &[slot(7, 0)]), "it has no context yet");
    assert!(look(&[(7, 300)], &[slot(7, 0)]));
    assert!(!look(&[(7, 400)], &[slot(7, 0)]));
    assert!(!look(&[(7, 400)], &[slot(7, 0)]));
    assert!(look(&[(7, 400), (8, 400)], &[slot(7, 0), slot(8, 400)]));
}

/// One reading; returns the findings as text.
fn measure(state: &mut Reconciliation, processes: &[(u32, u64)], slots: &[SlotUse]) -> String {
    let mut out = Vec::new();
    state.measure(&reading(processes), slots, &mut out);
    let words = out.iter().map(|action| match action {
        Action::Overhead { bytes, .. } => format!("overhead {}", bytes.get() / M),
        other => format!("{other:?}"),
    });
    words.collect::<Vec<_>>().join(" ")
}

#[test]
fn a_difference_counts_when_it_was_there_twice() {
    let mut state = Reconciliation::new(1, false);
    assert_eq!(measure(&mut state, &[(7, 500)], &[slot(7, 100)]), "");
    assert_eq!(
        measure(&mut state, &[(7, 450)], &[slot(7, 100)]),
        "overhead 350"
    );
    assert_eq!(measure(&mut state, &[(7, 900)], &[slot(7, 100)]), "");
    assert_eq!(
        measure(&mut state, &[(7, 450)], &[slot(7, 400)]),
        "overhead 50",
        "less counts at once, and one high reading does not count"
    );
    assert_eq!(state.overhead(JobId(1), 0).get(), 50 * M);
}

#[test]
fn a_card_that_cannot_be_read_changes_nothing() {
    let mut state = Reconciliation::new(1, false);
    for _ in 0..2 {
        measure(&mut state, &[(7, 300)], &[slot(7, 0)]);
    }
    let mut out = Vec::new();
    state.measure(&[None], &[slot(7, 0)], &mut out);
    assert_eq!(out, []);
    assert_eq!(state.overhead(JobId(1), 0).get(), 300 * M);
    assert_eq!(measure(&mut state, &[], &[]), "overhead 0");
}

#[test]
fn what_one_reserved_too_much_does_not_hide_anothers_overhead() {
    let mut state = Reconciliation::new(1, false);
    let slots = [slot(7, 100), slot(8, 480)];
    assert_eq!(measure(&mut state, &[(7, 150)], &slots), "");
    assert_eq!(measure(&mut state, &[(7, 150)], &slots), "overhead 50");
}

#[test]
fn what_is_found_of_a_job_changes_its_own_charge_alone() {
    // 3-MiB pieces of an innocent job were once read as contexts of 2,480 MiB.
    let mut state = Reconciliation::new(1, false);
    state.set_context(0, Bytes::new(480 * M));
    for _ in 0..3 {
        measure(&mut state, &[(7, 2960)], &[slot(7, 480)]);
    }
    assert_eq!(state.overhead(JobId(1), 0).get(), 2480 * M);
    assert_eq!(state.context(0).get(), 480 * M);
}

/// One reading at a time; returns the findings as text.
fn look(state: &mut Reconciliation, at_ms: u64, processes: &[(u32, u64)], returns: bool) -> String {
    let mut out = Vec::new();
    let ours = |pid| pid == Pid(1);
    let now = Time::from_ms(at_ms);
    let returns = |_| returns;
    state.look_for_strangers(now, &reading(processes), ours, returns, &mut out);
    format!("{out:?}")
}

#[test]
fn a_stranger_is_reported_within_a_second_and_once() {
    let mut state = Reconciliation::new(1, true);
    assert_eq!(look(&mut state, 0, &[(1, 10), (5, 10)], false), "[]");
    assert_eq!(look(&mut state, 400, &[(1, 10), (5, 10)], false), "[]");
    assert_eq!(
        look(&mut state, 600, &[(1, 10), (5, 30), (5, 20)], false),
        "[Stranger(Pid(5)), Evict(Pid(5))]"
    );
    assert_eq!(state.use_of_strangers(), [Bytes::new(30 * M)]);
    assert_eq!(look(&mut state, 800, &[(5, 30)], false), "[]");
    let mut out = Vec::new();
    let no = |_| false;
    state.look_for_strangers(Time::from_ms(900), &[None], no, no, &mut out);
    assert_eq!((out.len(), state.strangers().count()), (0, 1));
    assert_eq!(look(&mut state, 1000, &[], false), "[StrangerGone(Pid(5))]");
}

#[test]
fn who_had_a_slot_before_a_restart_has_time_to_come_back() {
    let mut state = Reconciliation::new(1, false);
    assert_eq!(look(&mut state, 0, &[(5, 10)], true), "[]");
    assert_eq!(look(&mut state, 2000, &[(5, 10)], true), "[]");
    assert_eq!(look(&mut state, 2200, &[(5, 10)], false), "[]");
    let mut out = Vec::new();
    state.adopt(Pid(5), &mut out);
    assert_eq!(out, [], "it was never reported");
    assert_eq!(look(&mut state, 9000, &[(5, 10)], false), "[]");
}

/// The overhead that is charged after each of these readings of one process: the driver's figure,
/// its reservation, and whether it was quiet. In MiB.
fn overheads(readings: &[(u64, u64, bool)]) -> Vec<u64> {
    let mut state = Reconciliation::new(1, false);
    let look = |&(real, used, is_quiet): &(u64, u64, bool)| {
        let slot = SlotUse {
            is_quiet,
            ..slot(7, used)
        };
        state.measure(&reading(&[(7, real)]), &[slot], &mut Vec::new());
        state.overhead(JobId(1), 0).get() / M
    };
    readings.iter().map(look).collect()
}

#[test]
fn what_a_busy_process_seems_to_have_is_not_believed_at_once() {
    let (quiet, busy) = (true, false);
    // It takes 60 MiB and gives them back between the two readings at its slot, each time.
    assert_eq!(overheads(&[(60, 0, busy); 10]), [0; 10]);
    assert_eq!(overheads(&[(60, 0, quiet); 3]), [0, 60, 60]);
    // What is known of it stays, and can become less.
    let readings = [
        (5, 0, quiet),
        (5, 0, quiet),
        (65, 0, busy),
        (65, 0, busy),
        (3, 0, busy),
        (65, 0, busy),
        (5, 0, quiet),
        (5, 0, quiet),
    ];
    assert_eq!(overheads(&readings), [0, 5, 5, 5, 3, 3, 3, 5]);
}

#[test]
fn what_a_process_asks_about_is_charged_at_once_and_only_that() {
    let mut state = Reconciliation::new(1, false);
    let asking = |pid, used| SlotUse {
        has_asked: true,
        ..slot(pid, used)
    };
    let first = measure(&mut state, &[(7, 150)], &[asking(7, 100)]);
    assert_eq!(first, "overhead 50");
    // It loads more, while another process of the job has something that may be gone in a moment.
    let both = [(7, 400), (8, 90)];
    let slots = [asking(7, 100), slot(8, 0)];
    assert_eq!(measure(&mut state, &both, &slots), "overhead 300");
    let slots = [slot(7, 100), slot(8, 0)];
    assert_eq!(measure(&mut state, &both, &slots), "overhead 390");
    // Part of a load was seen already by a reading that nobody asked for.
    let slots = [slot(7, 100), slot(8, 0)];
    let some = measure(&mut state, &[(7, 450), (8, 90)], &slots);
    assert_eq!(some, "");
    let slots = [asking(7, 100), slot(8, 0)];
    let all = measure(&mut state, &[(7, 500), (8, 90)], &slots);
    assert_eq!(all, "overhead 490");
    // It unloads.
    let (fewer, slots) = ([(7, 120), (8, 90)], [asking(7, 100), slot(8, 0)]);
    assert_eq!(measure(&mut state, &fewer, &slots), "overhead 110");
    // A thread of it goes on to take and give: then it is as without a question.
    let busy = SlotUse {
        is_quiet: false,
        ..asking(7, 100)
    };
    let seen = [(7, 500), (8, 90)];
    assert_eq!(measure(&mut state, &seen, &[busy, slot(8, 0)]), "");
}

#[test]
fn a_process_that_is_never_quiet_is_measured_by_its_least() {
    let mut readings = vec![(70, 0, false); BUSY_READINGS as usize];
    readings[3] = (8, 0, false);
    readings.extend([(70, 0, false), (70, 0, false)]);
    let found = overheads(&readings);
    let (before, after) = found.split_at(BUSY_READINGS as usize);
    assert!(before.iter().all(|bytes| *bytes == 0), "{before:?}");
    assert_eq!(after, [8, 8]);
}
