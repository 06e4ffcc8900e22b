//! Who may change a limit, and what a change of the limit of pinned memory leads to.

use std::sync::Arc;

use sublet_model::{Part, Role};

use super::super::tests::{ask, join, limit, machine, submit, tell};
use super::*;
use crate::event::Event;
use crate::job::Promise;

/// Asks that job 1 may pin so much.
fn limit_pinned(machine: &mut Machine, job: u64, mib: u32) -> String {
    let (job, memory) = (JobId(job), MiB::from(mib));
    tell(machine, 0, Event::PinnedLimitAsked { job, memory })
}

/// The job's first process came, and its pages are made.
fn pages(machine: &mut Machine, counts_pinned: bool) {
    let job = JobId(1);
    let done = tell(machine, 0, Event::PagesMade { job, counts_pinned });
    assert_eq!(done, "");
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
    // Before its pages are made, and after; none takes anything from the card.
    for (mib, with_pages) in [(50, false), (70, true), (20, true), (0, true), (9000, true)] {
        if with_pages {
            pages(&mut m, true);
        }
        let before = m.card(0);
        assert_eq!(limit_pinned(&mut m, 1, mib), format!("pinned 1 {mib} 0:40"));
        assert_eq!(pinned(&m), Some(u64::from(mib)));
        assert_eq!(m.card(0), before);
    }
    // The limit of the card and that of pinned memory do not move each other.
    assert_eq!(limit(&mut m, 1, 60), "limit 1 0:60");
    assert_eq!(pinned(&m), Some(9000));
}

#[test]
fn a_limit_that_nobody_would_keep_is_refused() {
    let mut m = machine(&[100]);
    let asked = JobAsk {
        pinned: Some(MiB::from(30)),
        ..ask(40, 1, true)
    };
    submit(&mut m, 1, asked);
    pages(&mut m, false);
    assert_eq!(
        limit_pinned(&mut m, 1, 10),
        "keep 1: job 1 has pages of version 1, as its first process had them: nobody counts \
         what it pins"
    );
    assert_eq!(pinned(&m), Some(30));
    assert_eq!(limit_pinned(&mut m, 2, 10), "keep 2: there is no job 2");
    assert!(JobRefusal::PinnedNotCounted(JobId(1)).is_final());
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
        parts: vec![Holding {
            card: 0,
            limit: Part::of_memory(MiB::from(40)),
        }],
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
