//! Containers of pods, one story a test.

use sublet_model::{MiB, Role};

use super::super::tests::{ask, join, ledger_use, limit, machine, submit, tell, uses};
use super::*;
use crate::event::Event;
use crate::job::{Holding, JobState, Pid};

/// Declares a container: `init-0`, `side-1` or `main-0` of a pod, with this part of card 0.
fn declare(machine: &mut Machine, job: u64, pod: &str, place: &str, mib: u32) -> String {
    let (list, position) = place.split_once('-').unwrap();
    let role = match list {
        "init" => Role::Init,
        "side" => Role::Sidecar,
        _ => Role::Main,
    };
    let event = Event::Declared {
        job: JobId(job),
        ask: ask(mib, 1, true),
        parts: vec![Holding::of_memory(0, MiB::from(mib))],
        promise: Some(Promise {
            pod: Arc::from(pod),
            role,
            position: position.parse().unwrap(),
        }),
    };
    tell(machine, 0, event)
}

fn granted(machine: &Machine) -> u64 {
    machine.card(0).granted.get()
}

fn leave(machine: &mut Machine, job: u64) -> String {
    tell(machine, 0, Event::Left(JobId(job)))
}

#[test]
fn a_pod_takes_what_it_needs_at_its_worst_moment() {
    let mut m = machine(&[100]);
    assert_eq!(declare(&mut m, 1, "a", "init-0", 90), "place 1 0:90");
    // The init container's process is not even gone.
    join(&mut m, 1, 11);
    uses(&mut m, 1, 90);
    assert_eq!(declare(&mut m, 2, "a", "main-0", 100), "place 2 0:100");
    assert_eq!(granted(&m), 100);
    assert_eq!(m.job(JobId(2)).unwrap().state, JobState::Running);
    // A moment in which both have memory is counted as it is.
    uses(&mut m, 2, 30);
    assert_eq!(granted(&m), 120);
    uses(&mut m, 1, 0);
    assert_eq!(granted(&m), 100);
    leave(&mut m, 2);
    assert_eq!(granted(&m), 90);
    tell(&mut m, 0, Event::Exited(Pid(11)));
    assert_eq!(leave(&mut m, 1), "end 1");
    assert_eq!((granted(&m), m.is_idle()), (0, true));
}

#[test]
fn sidecars_count_with_everything_after_them() {
    let mut m = machine(&[100]);
    // In no order: an agent that restarts takes containers back as it finds them.
    declare(&mut m, 1, "a", "main-0", 10);
    declare(&mut m, 2, "a", "init-1", 40);
    assert_eq!(granted(&m), 40);
    declare(&mut m, 3, "a", "side-0", 20);
    assert_eq!(granted(&m), 60);
    declare(&mut m, 4, "a", "init-2", 35);
    assert_eq!(granted(&m), 60);
    declare(&mut m, 5, "a", "main-1", 50);
    assert_eq!(granted(&m), 80);
    // A sidecar that is started again is another process of the same job.
    assert_eq!(join(&mut m, 3, 31), "welcome 31 in 1");
    uses(&mut m, 3, 20);
    tell(&mut m, 0, Event::Exited(Pid(31)));
    assert_eq!(join(&mut m, 3, 32), "welcome 32 in 1");
    assert_eq!(granted(&m), 80);
    assert!(m.is_conserved());
}

#[test]
fn two_pods_have_an_account_each_and_the_first_job_can_go_first() {
    let mut m = machine(&[100]);
    declare(&mut m, 1, "a", "init-0", 30);
    declare(&mut m, 2, "b", "init-0", 40);
    declare(&mut m, 3, "a", "main-0", 20);
    declare(&mut m, 4, "b", "main-0", 10);
    assert_eq!(granted(&m), 70);
    assert_eq!(leave(&mut m, 1), "end 1");
    assert_eq!(granted(&m), 60);
    declare(&mut m, 5, "a", "main-1", 30);
    assert_eq!(granted(&m), 90);
    for job in [2, 3, 4, 5] {
        leave(&mut m, job);
    }
    assert_eq!((granted(&m), m.is_idle()), (0, true));
}

#[test]
fn a_promise_waits_for_no_queue_and_no_job_of_this_machine() {
    let mut m = machine(&[100]);
    assert_eq!(submit(&mut m, 1, ask(70, 1, true)), "place 1 0:70");
    assert!(submit(&mut m, 2, ask(50, 1, true)).starts_with("wait 2 at 1"));
    assert_eq!(
        declare(&mut m, 3, "a", "main-0", 60),
        "place 3 0:60; wait 2 at 1: GPU 0 lacks 50 MiB: 50 MiB asked, and 0 MiB are free there"
    );
    assert_eq!((granted(&m), m.card(0).open), (130, MiB::ZERO));
    // Whoever is beyond the card by the cluster's doing loses nothing, and gains nothing.
    assert!(limit(&mut m, 1, 71).starts_with("keep 1: GPU 0 lacks 1 MiB"));
    assert!(leave(&mut m, 1).starts_with("end 1; wait 2 at 1: GPU 0 lacks 10 MiB"));
    assert_eq!(leave(&mut m, 3), "end 3; place 2 0:50");
}

#[test]
fn a_promised_job_keeps_its_room_and_gets_no_more() {
    let mut m = machine(&[100]);
    declare(&mut m, 1, "a", "main-0", 40);
    assert_eq!(limit(&mut m, 1, 10), "limit 1 0:10");
    uses(&mut m, 1, 5);
    assert_eq!(granted(&m), 40, "the cluster's books have not changed");
    assert!(submit(&mut m, 2, ask(61, 1, false)).starts_with("refuse 2: GPU 0 lacks 1 MiB"));
    assert_eq!(
        limit(&mut m, 1, 41),
        "keep 1: 41 MiB of GPU 0 asked, and the cluster has promised it 40 MiB"
    );
    assert_eq!(limit(&mut m, 1, 40), "limit 1 0:40");
}

#[test]
fn what_makes_no_sense_is_refused_though_it_was_promised() {
    let mut m = machine(&[100]);
    declare(&mut m, 1, "a", "main-0", 40);
    assert_eq!(
        declare(&mut m, 1, "a", "main-0", 40),
        "refuse 1: there is a job 1 already"
    );
    assert!(declare(&mut m, 2, "a", "main-1", 0).starts_with("refuse 2: no memory"));
    assert_eq!(granted(&m), 40);
}

#[test]
fn on_a_clusters_node_there_are_only_promised_jobs() {
    let mut m = machine(&[100]);
    m.local_jobs = false;
    let refused = submit(&mut m, 1, ask(10, 1, true));
    assert!(
        refused.starts_with("refuse 1: this machine's GPUs are a cluster's"),
        "{refused}"
    );
    let back = Event::Declared {
        job: JobId(2),
        ask: ask(10, 1, true),
        parts: vec![Holding::of_memory(0, MiB::from(10))],
        promise: None,
    };
    assert!(tell(&mut m, 0, back).starts_with("refuse 2: this machine's GPUs"));
    assert_eq!(declare(&mut m, 3, "a", "main-0", 100), "place 3 0:100");
    tell(&mut m, 0, Event::Used(vec![ledger_use(3, 0, 1)]));
    assert_eq!(granted(&m), 100);
}
