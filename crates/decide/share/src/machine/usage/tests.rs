//! Ledgers that agree with the driver, ledgers that were written into, and the effects of each on
//! the job and on others.

use std::collections::BTreeSet;

use super::super::tests::{ask, join, limit, machine, submit, tell, uses};
use super::super::*;
use crate::event::{LedgerUse, Reading, SlotUse};

const M: u64 = 1 << 20;

/// One job of 40 MiB on a card of 100, with one process, and contexts that cost 5.
fn one_job(evict_over: bool) -> Machine {
    let mut m = Machine {
        evict_over,
        ..machine(&[100])
    };
    m.set_context(0, Bytes::new(5 * M));
    submit(&mut m, 1, ask(40, 1, true));
    join(&mut m, 1, 11);
    m
}

/// The figures of the page, its accounts (if they are known) and the driver, in MiB.
type Figures = (u64, Option<u64>, u64);

/// A reading of the only job, which takes and gives nothing. Returns the actions, and the new
/// state.
fn look(m: &mut Machine, at_ms: u64, figures: Figures) -> String {
    look_at(m, at_ms, figures, true)
}

fn look_at(
    m: &mut Machine,
    at_ms: u64,
    (total, accounts, driver): Figures,
    is_quiet: bool,
) -> String {
    let bytes = |mib: u64| Bytes::new(mib * M);
    let ledger = LedgerUse {
        job: JobId(1),
        card: 0,
        total: bytes(total),
        accounts: accounts.map(bytes),
    };
    let reading = Reading {
        processes: vec![(Pid(11), bytes(driver))],
    };
    let slot = SlotUse {
        job: JobId(1),
        pid: Pid(11),
        card: 0,
        used: bytes(driver),
        is_quiet,
        has_asked: false,
    };
    let event = Event::Read {
        cards: vec![Some(reading)],
        slots: vec![slot],
        ledgers: vec![ledger],
        may_return: BTreeSet::new(),
    };
    let done = tell(m, at_ms, event);
    let state = m.job(JobId(1)).unwrap().state.word();
    let mismatch = m.mismatch(JobId(1), 0).is_some();
    let says = format!(
        "{state} {} of {}{}",
        m.used(JobId(1), 0).get() / M,
        m.card(0).granted.get(),
        if mismatch { ", mismatch" } else { "" }
    );
    [says, done].join("; ").trim_end_matches("; ").to_owned()
}

#[test]
fn ledgers_are_compared_three_ways_within_two_readings() {
    for (readings, expected) in [
        // Honest: reserved before it is allocated.
        ([(30, Some(30), 20), (30, Some(30), 30)], "running 30 of 40"),
        // The page's sum was zeroed; the accounts were not.
        (
            [(0, Some(38), 38), (0, Some(38), 38)],
            "running 38 of 40, mismatch",
        ),
        (
            [(5, Some(95), 95), (5, Some(95), 95)],
            "over 95 of 95, mismatch",
        ),
        // All of the page was zeroed, and nothing of it could be read at rest.
        (
            [(0, Some(0), 60), (0, Some(0), 60)],
            "over 60 of 60, mismatch",
        ),
        ([(0, None, 60), (0, None, 60)], "over 60 of 60, mismatch"),
        // Memory that is taken while the ledgers are read is no lie.
        ([(10, Some(10), 12), (12, Some(12), 12)], "running 12 of 40"),
        // A lie that makes the job look large is its own trouble.
        (
            [(90, Some(20), 20), (90, Some(20), 20)],
            "over 90 of 40, mismatch",
        ),
        // So is one in which everything fits together.
        ([(90, Some(90), 20), (90, Some(90), 20)], "over 90 of 40"),
    ] {
        let mut m = one_job(false);
        look(&mut m, 200, readings[0]);
        assert_eq!(look(&mut m, 400, readings[1]), expected, "{readings:?}");
    }
}

/// Threads take and give memory between the two readings, so that the driver's figure and the
/// page's sum are never of one moment.
#[test]
fn memory_that_is_gone_when_the_ledger_is_read_is_not_hidden() {
    let mut m = one_job(false);
    for at in [200, 400, 600] {
        let said = look_at(&mut m, at, (22, Some(22), 38), false);
        assert_eq!(said, "running 22 of 40");
    }
    // What the job took since is all that it has.
    assert_eq!(
        look_at(&mut m, 800, (40, Some(40), 20), false),
        "running 40 of 40"
    );
    // Somebody who keeps busy to hide memory is found, if later.
    let mut m = one_job(false);
    let found = (1..40).find(|n| {
        let driver = 60 + n % 3;
        let said = look_at(&mut m, 200 * n, (20, None, driver), false);
        said.ends_with("mismatch")
    });
    assert!(found.is_some_and(|n| n > 5), "{found:?}");
    assert_eq!(m.used(JobId(1), 0).get() / M, 60);
    // What the accounts say is of the same moment as the sum.
    let mut m = one_job(false);
    look_at(&mut m, 200, (0, Some(38), 38), false);
    let said = look_at(&mut m, 400, (0, Some(38), 38), false);
    assert_eq!(said, "running 38 of 40, mismatch");
}

#[test]
fn ledgers_that_are_right_again_are_believed_again() {
    let mut m = one_job(false);
    for at in [200, 400] {
        look(&mut m, at, (0, Some(30), 30));
    }
    assert!(m.mismatch(JobId(1), 0).is_some());
    for at in [600, 800] {
        look(&mut m, at, (30, Some(30), 30));
    }
    assert_eq!(m.mismatch(JobId(1), 0), None);
}

#[test]
fn a_job_that_has_more_than_it_may_have_is_ended_where_the_operator_says_so() {
    for evict in [false, true] {
        let mut m = one_job(evict);
        look(&mut m, 200, (0, Some(0), 90));
        let expected = match evict {
            false => "over 90 of 90, mismatch",
            true => "over 90 of 90, mismatch; Terminate(JobId(1))",
        };
        assert_eq!(look(&mut m, 400, (0, Some(0), 90)), expected);
        assert_eq!(m.job(JobId(1)).unwrap().is_evicted, evict);
        // Once, and then by force.
        assert!(!look(&mut m, 600, (0, Some(0), 90)).contains("Terminate"));
        assert!(!look(&mut m, 10_200, (0, Some(0), 90)).contains("Kill"));
        let late = look(&mut m, 10_400, (0, Some(0), 90));
        assert_eq!(late.contains("Kill(JobId(1))"), evict, "{late}");
    }
}

#[test]
fn a_job_that_works_without_a_turn_is_ended_by_a_flag_of_its_own() {
    for (evict_over, evict_overuse) in [(true, false), (false, true)] {
        let mut m = Machine {
            evict_overuse,
            ..one_job(evict_over)
        };
        let mut said = Vec::new();
        for at in [200, 1200] {
            m.apply(Time::from_ms(at), Event::OutOfTurn(JobId(1)), &mut said);
        }
        let ends = [Action::Terminate(JobId(1))];
        assert_eq!(said, ends[usize::from(!evict_overuse)..], "once, or never");
        let late = look(&mut m, 10_200, (0, Some(0), 0));
        assert_eq!(late.contains("Kill(JobId(1))"), evict_overuse, "{late}");
        m.apply(Time::from_ms(11_000), Event::OutOfTurn(JobId(7)), &mut said);
    }
}

#[test]
fn nobody_is_ended_for_a_context_or_for_a_limit_that_was_lowered() {
    let mut m = one_job(true);
    // A context that costs twice what was measured.
    for at in [200, 400, 600] {
        let said = look(&mut m, at, (44, Some(44), 45));
        assert!(
            said.starts_with("over 4") && !said.contains("Terminate"),
            "{said}"
        );
    }
    // Its limit is lowered under it: what it has it may keep, and no more.
    let mut m = one_job(true);
    look(&mut m, 200, (40, Some(40), 40));
    assert_eq!(limit(&mut m, 1, 20), "limit 1 0:20");
    for at in [400, 600, 800] {
        assert_eq!(look(&mut m, at, (40, Some(40), 40)), "over 40 of 40");
    }
    look(&mut m, 1000, (30, Some(30), 30));
    look(&mut m, 1200, (38, Some(38), 38));
    let said = look(&mut m, 1400, (38, Some(38), 38));
    assert!(said.ends_with("Terminate(JobId(1))"), "{said}");
    // What a context costs is not known: then nobody can say that it is not that.
    let mut m = one_job(true);
    m.set_context(0, Bytes::new(0));
    for at in [200, 400, 600] {
        assert_eq!(
            look(&mut m, at, (0, Some(0), 90)).split(';').count(),
            1,
            "shown, and not ended"
        );
    }
}

#[test]
fn a_job_that_was_there_before_may_keep_what_it_had() {
    let mut m = Machine {
        evict_over: true,
        ..machine(&[100])
    };
    m.set_context(0, Bytes::new(5 * M));
    let (job, parts) = (JobId(1), vec![Holding::of_memory(0, MiB::from(40))]);
    let ask = ask(40, 1, true);
    tell(
        &mut m,
        0,
        Event::Declared {
            job,
            ask,
            parts,
            promise: None,
        },
    );
    join(&mut m, 1, 11);
    for at in [200, 400, 600] {
        assert_eq!(look(&mut m, at, (80, Some(80), 80)), "over 80 of 80");
    }
}

#[test]
fn a_spoiled_page_takes_nothing_from_others() {
    let mut m = one_job(false);
    // A page that says more than the card has; then all of it is granted to another job.
    uses(&mut m, 1, 6_880);
    look(&mut m, 200, (6_880, Some(10), 10));
    assert_eq!(submit(&mut m, 2, ask(60, 1, false)), "place 2 0:60");
    // It keeps what it was granted when its limit is lowered: until two readings have shown
    // that its ledger is wrong.
    limit(&mut m, 1, 20);
    uses(&mut m, 1, 6_880);
    assert_eq!(m.card(0).granted, MiB::from(100));
    look(&mut m, 400, (6_880, Some(10), 10));
    assert_eq!(m.card(0).granted, MiB::from(80));
}
