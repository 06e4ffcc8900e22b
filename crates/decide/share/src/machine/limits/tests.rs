//! The right to change a limit, and the effects of a change of the limit of pinned memory.

use std::sync::Arc;

use sublet_model::{Class, Milli, Role};

use super::super::tests::{ask, join, limit, machine, submit, tell};
use super::*;
use crate::event::Event;
use crate::job::Promise;

/// Asks for this limit of job 1's pinned memory.
fn limit_pinned(machine: &mut Machine, job: u64, mib: u32) -> String {
    let (job, memory) = (JobId(job), MiB::from(mib));
    tell(machine, 0, Event::PinnedLimitAsked { job, memory })
}

fn pinned(machine: &Machine) -> Option<u64> {
    let job = machine.job(JobId(1)).unwrap();
    job.ask.pinned.map(MiB::get)
}

#[test]
fn a_limit_of_pinned_memory_is_raised_lowered_and_set_where_none_was() {
    let mut m = machine(&[100]);
    submit(&mut m, 1, ask(40, 1, true));
    assert_eq!(pinned(&m), None);
    // None takes anything from the card.
    for mib in [50, 70, 20, 0, 9000] {
        let before = m.card(0);
        assert_eq!(limit_pinned(&mut m, 1, mib), format!("pinned 1 {mib} 0:40"));
        assert_eq!(pinned(&m), Some(u64::from(mib)));
        assert_eq!(m.card(0), before);
    }
    // The limit of the card and that of pinned memory do not move each other.
    assert_eq!(limit(&mut m, 1, 60), "limit 1 0:60");
    assert_eq!(pinned(&m), Some(9000));
    assert_eq!(limit_pinned(&mut m, 2, 10), "keep 2: there is no job 2");
}

#[test]
fn a_job_that_waits_has_its_new_limit_when_its_turn_comes() {
    let mut m = machine(&[100]);
    submit(&mut m, 2, ask(100, 1, true));
    submit(&mut m, 1, ask(40, 1, true));
    assert_eq!(limit_pinned(&mut m, 1, 5), "pinned 1 5");
    assert_eq!(
        tell(&mut m, 0, Event::Left(JobId(2))),
        "end 2; place 1 0:40"
    );
    assert_eq!(pinned(&m), Some(5));
}

#[test]
fn what_a_cluster_promised_of_a_card_binds_no_pinned_memory() {
    let mut m = machine(&[100]);
    let declared = Event::Declared {
        job: JobId(1),
        ask: JobAsk {
            pinned: Some(MiB::from(10)),
            ..ask(40, 1, true)
        },
        parts: vec![Holding::of_memory(0, MiB::from(40))],
        promise: Some(Promise {
            pod: Arc::from("a"),
            role: Role::Main,
            position: 0,
        }),
    };
    assert_eq!(tell(&mut m, 0, declared), "place 1 0:40");
    assert_eq!(
        limit(&mut m, 1, 41),
        "keep 1: 41 MiB of GPU 0 asked, and the cluster has promised it 40 MiB"
    );
    assert_eq!(limit_pinned(&mut m, 1, 500), "pinned 1 500 0:40");
}

/// `30..80` percent.
fn range(text: &str) -> ComputeRange {
    let (request, limit) = text.split_once("..").unwrap();
    let percent = |text: &str| Milli::new(text.parse::<u16>().unwrap() * 10).unwrap();
    ComputeRange::new(percent(request), percent(limit)).unwrap()
}

/// A job of 10 MiB that asks for that compute time.
fn shared(compute: &str, class: Class) -> JobAsk {
    JobAsk {
        compute: range(compute),
        class,
        ..ask(10, 1, false)
    }
}

/// Asks for other compute time for a job.
fn limit_compute(machine: &mut Machine, job: u64, compute: &str) -> String {
    let (job, compute) = (JobId(job), range(compute));
    tell(machine, 0, Event::ComputeAsked { job, compute })
}

#[test]
fn promises_of_compute_time_move_within_what_is_promised_to_nobody() {
    use Class::{Guaranteed, Opportunistic};
    let mut m = machine(&[100]);
    assert_eq!(
        submit(&mut m, 1, shared("30..100", Guaranteed)),
        "place 1 0:10"
    );
    assert_eq!(
        submit(&mut m, 2, shared("50..60", Guaranteed)),
        "place 2 0:10"
    );
    assert_eq!(
        submit(&mut m, 3, shared("30..100", Guaranteed)),
        "refuse 3: GPU 0 lacks 10 % of its compute time: 30 % asked, and 20 % is left there"
    );
    assert_eq!(
        limit_compute(&mut m, 1, "50..100"),
        "compute 1 0: 50 %..100 %"
    );
    assert_eq!(
        limit_compute(&mut m, 1, "51..100"),
        "keep 1: GPU 0 lacks 1 % of its compute time: 51 % asked, and 50 % is left there"
    );
    assert_eq!(m.card(0).promised, Milli::WHOLE);
    // A limit takes nothing from others, and a promise falls at any time.
    assert_eq!(
        limit_compute(&mut m, 2, "50..100"),
        "compute 2 0: 50 %..100 %"
    );
    assert_eq!(limit_compute(&mut m, 2, "0..5"), "compute 2 0: 0 %..5 %");
    assert_eq!(m.card(0).promised.get(), 500);
    assert_eq!(
        limit_compute(&mut m, 1, "100..100"),
        "keep 1: a guaranteed job that asks for all of a GPU's compute time shares GPU 0 with no \
         other guaranteed job"
    );
    assert_eq!(
        submit(&mut m, 4, shared("0..30", Opportunistic)),
        "place 4 0:10"
    );
    assert_eq!(
        limit_compute(&mut m, 4, "1..30"),
        "keep 4: an opportunistic job is promised no compute time, and 1 % is asked"
    );
    assert_eq!(
        submit(&mut m, 5, shared("10..30", Opportunistic)),
        "refuse 5: an opportunistic job is promised no compute time, and 10 % is asked"
    );
    tell(&mut m, 0, Event::Left(JobId(2)));
    assert_eq!(
        limit_compute(&mut m, 1, "100..100"),
        "compute 1 0: 100 %..100 %"
    );
    assert!(submit(&mut m, 6, shared("0..100", Guaranteed)).contains("no other guaranteed job"));
    assert_eq!(
        limit_compute(&mut m, 9, "1..2"),
        "keep 9: there is no job 9"
    );
}

#[test]
fn a_job_that_waits_for_compute_time_has_it_when_another_asks_for_less() {
    let mut m = machine(&[100]);
    submit(&mut m, 1, shared("80..100", Class::Guaranteed));
    let waits = JobAsk {
        may_wait: true,
        ..shared("30..100", Class::Guaranteed)
    };
    assert_eq!(
        submit(&mut m, 2, waits),
        "wait 2 at 1: GPU 0 lacks 10 % of its compute time: 30 % asked, and 20 % is left there"
    );
    assert_eq!(
        limit_compute(&mut m, 1, "70..100"),
        "compute 1 0: 70 %..100 %; place 2 0:10"
    );
    submit(&mut m, 3, ask(100, 1, true));
    assert_eq!(limit_compute(&mut m, 3, "5..6"), "compute 3");
}

#[test]
fn a_job_of_before_comes_back_with_its_compute_time_where_it_is_free() {
    let mut m = machine(&[100]);
    let declare = |job, ask| Event::Declared {
        job: JobId(job),
        ask,
        parts: vec![Holding::of_memory(0, MiB::from(10))],
        promise: None,
    };
    let back = declare(1, shared("60..80", Class::Guaranteed));
    assert_eq!(tell(&mut m, 0, back), "place 1 0:10");
    assert_eq!(m.job(JobId(1)).unwrap().parts[0].compute(), range("60..80"));
    let other = declare(2, shared("50..100", Class::Guaranteed));
    assert_eq!(
        tell(&mut m, 0, other),
        "refuse 2: GPU 0 lacks 10 % of its compute time: 50 % asked, and 40 % is left there"
    );
    let wrong = declare(3, shared("10..100", Class::Opportunistic));
    assert!(tell(&mut m, 0, wrong).contains("is promised no compute time"));
}

#[test]
fn a_cluster_s_job_has_at_most_the_compute_time_that_it_was_promised() {
    let mut m = machine(&[100]);
    let declared = Event::Declared {
        job: JobId(1),
        ask: shared("40..60", Class::Guaranteed),
        parts: vec![Holding::of_memory(0, MiB::from(10))],
        promise: Some(Promise {
            pod: Arc::from("a"),
            role: Role::Main,
            position: 0,
        }),
    };
    assert_eq!(tell(&mut m, 0, declared), "place 1 0:10");
    assert_eq!(
        limit_compute(&mut m, 1, "10..20"),
        "compute 1 0: 10 %..20 %"
    );
    // It is kept for it.
    assert_eq!(m.card(0).promised.get(), 400);
    assert_eq!(
        limit_compute(&mut m, 1, "40..60"),
        "compute 1 0: 40 %..60 %"
    );
    for more in ["41..60", "40..61"] {
        let kept = limit_compute(&mut m, 1, more);
        let why = "of the compute time of GPU 0 asked, and the cluster has promised it 40 %..60 %";
        assert!(kept.ends_with(why), "{kept}");
    }
}

#[test]
fn only_those_outside_of_every_job_change_anything() {
    let mut m = machine(&[100]);
    submit(&mut m, 1, ask(40, 1, true));
    join(&mut m, 1, 11);
    let inside = Err(JobRefusal::Inside(JobId(1)));
    let below = Ancestry::Job(JobId(1));
    for (pid, ancestry, expected) in [
        (99, Ancestry::NoJob, Ok(())),
        (99, below, inside.clone()),
        (99, Ancestry::Unseen, Err(JobRefusal::Unseen)),
        // A process with a slot is inside, wherever it seems to come from.
        (11, Ancestry::NoJob, inside.clone()),
        (11, Ancestry::Unseen, inside.clone()),
        (11, Ancestry::Job(JobId(7)), inside),
    ] {
        assert_eq!(
            m.permits_change(Pid(pid), ancestry),
            expected,
            "{pid} {ancestry:?}"
        );
    }
    assert!(JobRefusal::Unseen.is_final() && JobRefusal::Inside(JobId(1)).is_final());
}
