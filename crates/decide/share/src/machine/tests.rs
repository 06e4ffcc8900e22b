//! Lives of jobs, one story per test.

use std::collections::BTreeSet;

use sublet_model::{Class, Gpu, GpuIndex};
use sublet_plan::Policy;

use super::*;
use crate::event::{LedgerUse, Reading, SlotUse};
use crate::job::{ComputeRange, JobState};

pub(super) fn machine(sizes_mib: &[u32]) -> Machine {
    let gpus = (0u16..).zip(sizes_mib);
    let gpus = gpus.map(|(index, size)| Gpu::plain(GpuIndex(index), MiB::from(*size)));
    let inventory = Inventory::new(gpus.collect(), vec![], vec![], vec![]).unwrap();
    Machine::new(MachineOptions {
        inventory: Arc::new(inventory),
        policy: Policy::binpack(),
        reserved: MiB::ZERO,
        settled_at: Time::from_ms(0),
        local_jobs: true,
        evict: false,
        evict_over: false,
        evict_overuse: false,
    })
}

pub(super) fn ask(mib: u32, gpus: u32, may_wait: bool) -> JobAsk {
    JobAsk {
        name: Arc::from("job"),
        memory: Amount::Memory(MiB::from(mib)),
        request: Amount::Memory(MiB::from(mib)),
        pinned: None,
        compute: ComputeRange::ANY,
        class: Class::Guaranteed,
        slice: None,
        gpus: Count::new(gpus),
        cards: None,
        user: None,
        priority: 0,
        may_wait,
    }
}

/// The actions after one event, as text.
pub(super) fn tell(machine: &mut Machine, at_ms: u64, event: Event) -> String {
    let mut out = Vec::new();
    machine.apply(Time::from_ms(at_ms), event, &mut out);
    let limits = |parts: &[Holding]| {
        let parts = parts
            .iter()
            .map(|part| format!(" {}:{}", part.card, part.limit.memory.get()));
        parts.collect::<String>()
    };
    let words = out.iter().map(|action| match action {
        Action::Place { job, parts } => format!("place {job}{}", limits(parts)),
        Action::Limit { job, parts } => format!("limit {job}{}", limits(parts)),
        Action::Wait {
            job,
            position,
            reason,
        } => format!("wait {job} at {position}: {reason}"),
        Action::Refuse { job, reason } => format!("refuse {job}: {reason}"),
        Action::LimitPinned { job, memory, parts } => {
            format!("pinned {job} {}{}", memory.get(), limits(parts))
        }
        Action::LimitCompute { job, parts } => {
            let parts = parts.iter();
            let each = parts.map(|part| format!(" {}: {}", part.card, part.compute()));
            format!("compute {job}{}", each.collect::<String>())
        }
        Action::KeepLimit { job, reason } => format!("keep {job}: {reason}"),
        Action::Welcome {
            pid, slot, again, ..
        } => format!(
            "welcome {pid} in {slot}{}",
            if *again { " again" } else { "" }
        ),
        Action::SendAway { pid, reason } => format!("send {pid} away: {reason}"),
        Action::Reclaim { job, pid, slot } => format!("reclaim {job}/{slot} of {pid}"),
        Action::End(job) => format!("end {job}"),
        other => format!("{other:?}"),
    });
    words.collect::<Vec<_>>().join("; ")
}

pub(super) fn submit(machine: &mut Machine, job: u64, ask: JobAsk) -> String {
    let job = JobId(job);
    tell(machine, 0, Event::Submitted { job, ask })
}

pub(super) fn join(machine: &mut Machine, job: u64, pid: u32) -> String {
    let (job, pid) = (JobId(job), Pid(pid));
    tell(machine, 0, Event::Joined { job, pid })
}

pub(super) fn limit(machine: &mut Machine, job: u64, mib: u32) -> String {
    let (job, memory) = (JobId(job), Amount::Memory(MiB::from(mib)));
    tell(machine, 0, Event::LimitAsked { job, memory })
}

/// A job's ledger on card 0, with sum and accounts that agree.
pub(super) fn ledger_use(job: u64, card: usize, mib: u64) -> LedgerUse {
    let total = Bytes::new(mib << 20);
    LedgerUse {
        job: JobId(job),
        card,
        total,
        accounts: Some(total),
    }
}

pub(super) fn uses(machine: &mut Machine, job: u64, mib: u64) -> String {
    tell(machine, 0, Event::Used(vec![ledger_use(job, 0, mib)]))
}

#[test]
fn jobs_wait_in_order_and_are_told_why() {
    let mut m = machine(&[100]);
    assert_eq!(submit(&mut m, 1, ask(60, 1, true)), "place 1 0:60");
    assert_eq!(
        submit(&mut m, 2, ask(50, 1, true)),
        "wait 2 at 1: GPU 0 lacks 10 MiB: 50 MiB asked, and 40 MiB are free there"
    );
    assert_eq!(
        submit(&mut m, 3, ask(10, 1, true)),
        "wait 3 at 2: 1 job waits before it",
        "it would fit, and does not overtake"
    );
    assert_eq!(
        submit(&mut m, 4, ask(10, 1, false)),
        "refuse 4: 2 jobs wait before it"
    );
    assert_eq!(m.job(JobId(3)).unwrap().state, JobState::Waiting);
    assert_eq!(
        tell(&mut m, 1, Event::Left(JobId(1))),
        "end 1; place 2 0:50; place 3 0:10"
    );
    assert_eq!(
        submit(&mut m, 2, ask(1, 1, true)),
        "refuse 2: there is a job 2 already"
    );
}

#[test]
fn the_next_moves_up_when_one_that_waits_gives_up() {
    let mut m = machine(&[100]);
    submit(&mut m, 1, ask(100, 1, true));
    submit(&mut m, 2, ask(90, 1, true));
    submit(&mut m, 3, ask(10, 1, true));
    assert_eq!(
        tell(&mut m, 1, Event::Left(JobId(2))),
        "end 2; wait 3 at 1: GPU 0 lacks 10 MiB: 10 MiB asked, and 0 MiB are free there"
    );
    let small = Amount::Memory(MiB::from(200));
    let event = Event::LimitAsked {
        job: JobId(3),
        memory: small,
    };
    assert_eq!(
        tell(&mut m, 1, event),
        "keep 3: 200 MiB asked, but GPU 0 has 100 MiB in all (100 MiB too few)"
    );
    assert_eq!(limit(&mut m, 1, 95), "limit 1 0:95");
    assert_eq!(
        uses(&mut m, 1, 0),
        "wait 3 at 1: GPU 0 lacks 5 MiB: 10 MiB asked, and 5 MiB are free there"
    );
    assert_eq!(limit(&mut m, 3, 5), "limit 3; place 3 0:5");
}

#[test]
fn a_limit_below_use_is_over_and_gives_nothing_away() {
    let mut m = machine(&[100]);
    submit(&mut m, 1, ask(80, 1, true));
    uses(&mut m, 1, 70);
    assert_eq!(limit(&mut m, 1, 50), "limit 1 0:50");
    assert_eq!(uses(&mut m, 1, 70), "");
    assert_eq!(m.job(JobId(1)).unwrap().state, JobState::Over);
    assert_eq!(
        submit(&mut m, 2, ask(40, 1, false)),
        "refuse 2: GPU 0 lacks 10 MiB: 40 MiB asked, and 30 MiB are free there",
        "what is still in use is not given twice"
    );
    assert_eq!(
        submit(&mut m, 3, ask(40, 1, true)).split(':').next(),
        Some("wait 3 at 1")
    );
    assert_eq!(uses(&mut m, 1, 45), "place 3 0:40");
    assert_eq!(m.job(JobId(1)).unwrap().state, JobState::Running);
    assert_eq!(
        limit(&mut m, 1, 70),
        "keep 1: GPU 0 lacks 10 MiB: 70 MiB asked, where the limit is 50 MiB and 10 MiB are free"
    );
    assert_eq!(limit(&mut m, 1, 60), "limit 1 0:60");
    assert_eq!(limit(&mut m, 9, 60), "keep 9: there is no job 9");
    assert_eq!(
        limit(&mut m, 1, 0),
        "keep 1: no memory or no GPU was asked; ask for some"
    );
}

#[test]
fn what_a_job_uses_beyond_its_limit_is_not_made_its_own() {
    let mut m = machine(&[60]);
    submit(&mut m, 1, ask(1, 1, true));
    submit(&mut m, 2, ask(24, 1, true));
    // A context that cost more than anybody knew, by the driver's count.
    join(&mut m, 1, 11);
    let event = Event::Read {
        cards: vec![Some(Reading {
            processes: vec![(Pid(11), Bytes::new(37 << 20))],
        })],
        slots: vec![],
        ledgers: vec![ledger_use(1, 0, 37)],
        may_return: BTreeSet::new(),
    };
    tell(&mut m, 0, event);
    assert_eq!(
        limit(&mut m, 1, 37),
        "keep 1: GPU 0 lacks 1 MiB: 37 MiB asked, where the limit is 1 MiB and 35 MiB are free"
    );
    assert_eq!(limit(&mut m, 1, 36), "limit 1 0:36");
}

#[test]
fn a_number_that_is_taken_changes_nothing_for_whose_it_is() {
    let mut machine = machine(&[1024]);
    assert_eq!(submit(&mut machine, 1, ask(100, 1, false)), "place 1 0:100");
    assert!(submit(&mut machine, u64::MAX, ask(1024, 1, true)).starts_with("wait "));
    let before = format!("{machine:?}");
    for id in [1, u64::MAX] {
        let (job, ask) = (JobId(id), ask(200, 1, true));
        let declared = Event::Declared {
            job,
            ask: ask.clone(),
            parts: vec![Holding::of_memory(0, MiB::from(200))],
            promise: None,
        };
        for event in [Event::Submitted { job, ask }, declared] {
            let said = tell(&mut machine, 0, event);
            assert_eq!(said, format!("refuse {id}: there is a job {id} already"));
            assert_eq!(format!("{machine:?}"), before);
        }
    }
}

#[test]
fn a_job_ends_when_its_root_and_all_its_processes_are_gone() {
    let mut m = machine(&[100]);
    submit(&mut m, 1, ask(60, 1, true));
    assert_eq!(join(&mut m, 1, 11), "welcome 11 in 1");
    assert_eq!(join(&mut m, 1, 12), "welcome 12 in 2");
    assert_eq!(join(&mut m, 1, 11), "welcome 11 in 1 again");
    assert_eq!(tell(&mut m, 0, Event::Exited(Pid(11))), "reclaim 1/1 of 11");
    assert_eq!(tell(&mut m, 0, Event::Left(JobId(1))), "");
    assert_eq!(m.job(JobId(1)).unwrap().state, JobState::Ending);
    assert_eq!(join(&mut m, 1, 13), "send 13 away: job 1 is ending");
    assert_eq!(
        tell(&mut m, 0, Event::Exited(Pid(12))),
        "reclaim 1/2 of 12; end 1"
    );
    assert_eq!(tell(&mut m, 0, Event::Exited(Pid(12))), "");
    assert!(m.is_idle());
}

#[test]
fn a_process_is_one_jobs_and_slots_run_out() {
    let mut m = machine(&[100]);
    submit(&mut m, 1, ask(60, 1, true));
    submit(&mut m, 2, ask(40, 1, true));
    submit(&mut m, 3, ask(40, 1, true));
    join(&mut m, 1, 1);
    assert_eq!(
        join(&mut m, 2, 1),
        "send 1 away: the process belongs to job 1"
    );
    assert_eq!(
        join(&mut m, 3, 9),
        "send 9 away: job 3 waits and has no GPU yet"
    );
    for pid in 2..=SLOTS {
        assert_eq!(join(&mut m, 1, pid), format!("welcome {pid} in {pid}"));
    }
    assert_eq!(
        join(&mut m, 1, 2000),
        "send 2000 away: job 1 has 1024 processes on GPUs, and there is no room for one more"
    );
    tell(&mut m, 0, Event::Exited(Pid(700)));
    assert_eq!(join(&mut m, 1, 2000), "welcome 2000 in 700");
}

#[test]
fn after_a_restart_the_jobs_of_before_come_first() {
    let mut m = machine(&[100]);
    m.settled_at = Time::from_ms(1000);
    assert_eq!(m.wake_at(), None.or(Some(Time::from_ms(1000))));
    let settling = "the arbiter was just restarted, and its jobs of before come back first";
    m.settled = false;
    let new = Event::Submitted {
        job: JobId(8),
        ask: ask(50, 1, true),
    };
    assert_eq!(tell(&mut m, 10, new), format!("wait 8 at 1: {settling}"));
    let hasty = Event::Submitted {
        job: JobId(9),
        ask: ask(50, 1, false),
    };
    assert_eq!(tell(&mut m, 20, hasty), format!("refuse 9: {settling}"));
    let declare = |job, limit| Event::Declared {
        job: JobId(job),
        ask: ask(limit, 1, true),
        parts: vec![Holding::of_memory(0, MiB::from(limit))],
        promise: None,
    };
    assert_eq!(tell(&mut m, 30, declare(3, 70)), "place 3 0:70");
    assert_eq!(
        tell(&mut m, 40, declare(4, 40)),
        "refuse 4: GPU 0 lacks 10 MiB: 40 MiB asked, and 30 MiB are free there"
    );
    let back = Event::Returned {
        job: JobId(3),
        pid: Pid(5),
        slot: 9,
    };
    assert_eq!(tell(&mut m, 50, back), "welcome 5 in 9 again");
    let twice = Event::Returned {
        job: JobId(3),
        pid: Pid(6),
        slot: 9,
    };
    assert_eq!(tell(&mut m, 50, twice), "send 6 away: slot 9 is not free");
    let none = Event::Returned {
        job: JobId(3),
        pid: Pid(6),
        slot: 0,
    };
    assert_eq!(tell(&mut m, 50, none), "send 6 away: slot 0 is not free");
    assert_eq!(
        tell(&mut m, 1000, Event::Tick),
        "wait 8 at 1: GPU 0 lacks 20 MiB: 50 MiB asked, and 30 MiB are free there"
    );
    // Then it has waited for so long that it goes by its age.
    assert_eq!(m.wake_at(), Some(Time::from_ms(10 + PATIENCE_MS)));
}

#[test]
fn a_strangers_memory_is_not_granted() {
    let mut m = machine(&[100]);
    let read = |mib: u64| Event::Read {
        cards: vec![Some(Reading {
            processes: vec![(Pid(77), Bytes::new(mib << 20))],
        })],
        slots: vec![],
        ledgers: vec![],
        may_return: BTreeSet::new(),
    };
    tell(&mut m, 0, read(30));
    assert_eq!(tell(&mut m, 600, read(30)), "Stranger(Pid(77))");
    assert_eq!(m.card(0).kept, MiB::from(30));
    assert_eq!(
        submit(&mut m, 1, ask(80, 1, true)),
        "wait 1 at 1: GPU 0 lacks 10 MiB: 80 MiB asked, and 70 MiB are free there; 30 MiB of it are kept from jobs"
    );
    assert_eq!(
        tell(
            &mut m,
            800,
            Event::Read {
                cards: vec![Some(Reading::default())],
                slots: vec![],
                ledgers: vec![],
                may_return: BTreeSet::new(),
            }
        ),
        "StrangerGone(Pid(77)); place 1 0:80"
    );
    tell(&mut m, 900, read(5));
    assert_eq!(join(&mut m, 1, 77), "welcome 77 in 1");
    let slots = vec![SlotUse {
        job: JobId(1),
        pid: Pid(77),
        card: 0,
        used: Bytes::new(0),
        is_quiet: true,
        has_asked: false,
    }];
    let read = |mib: u64| Event::Read {
        cards: vec![Some(Reading {
            processes: vec![(Pid(77), Bytes::new(mib << 20))],
        })],
        slots: slots.clone(),
        ledgers: vec![],
        may_return: BTreeSet::new(),
    };
    tell(&mut m, 1000, read(5));
    assert!(tell(&mut m, 1200, read(5)).starts_with("Overhead"));
    assert_eq!(m.overhead(JobId(1), 0), Bytes::new(5 << 20));
}
