//! The protocol under every interleaving of two or three threads that loom can make with a
//! bounded number of forced switches, with the weakest memory order that Rust allows. Loom
//! runs the same generic code as the pages, on words of its own.
//!
//! Each model starts just before the numbers come round, so that both widths of them wrap
//! inside each model.

use std::sync::Arc;
use std::vec::Vec;

use loom::sync::atomic::{AtomicU64, Ordering};
use loom::thread;

use super::rig::{Life, Rig, amount, slot};
use super::word::Number;
use super::{NotReserved, Word, charge, reclaim, release, reserve, settle};

loom::thread_local! {
    static LIFE: Life = Life::endless();
}

/// One of loom's words, which ends its thread when that thread's life is over.
struct LoomWord(AtomicU64);

impl Word for LoomWord {
    fn load(&self) -> u64 {
        LIFE.with(Life::step);
        self.0.load(Ordering::Acquire)
    }

    fn store(&self, value: u64) {
        LIFE.with(Life::step);
        self.0.store(value, Ordering::Relaxed);
    }

    fn compare_exchange(&self, current: u64, new: u64) -> Result<u64, u64> {
        LIFE.with(Life::step);
        self.0
            .compare_exchange(current, new, Ordering::AcqRel, Ordering::Acquire)
    }
}

type LoomRig = Arc<Rig<LoomWord>>;

fn rig(units: &[u64]) -> LoomRig {
    Arc::new(Rig::new(Number::MASK, units, |word| {
        LoomWord(AtomicU64::new(word))
    }))
}

/// Tries all interleavings with at most `switches` forced ones. Each fault that we made on
/// purpose was found with two; three threads with three take ten times as long.
fn check(switches: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(switches);
    builder.check(model);
}

/// Runs `work` on the rig in a thread of its own, which dies after `steps` accesses.
fn mortal(
    rig: &LoomRig,
    steps: u32,
    work: impl FnOnce(&Rig<LoomWord>) + 'static,
) -> thread::JoinHandle<bool> {
    let rig = Arc::clone(rig);
    thread::spawn(move || LIFE.with(|life| life.end_after(steps, || work(&rig))))
}

#[test]
fn racing_reservations_never_pass_the_limit() {
    check(2, || {
        let rig = rig(&[1, 0, 0, 0]);
        let racers: Vec<_> = (1..=2)
            .map(|index| {
                let rig = Arc::clone(&rig);
                thread::spawn(move || reserve(&*rig, slot(index), amount(2), || amount(5)).is_ok())
            })
            .collect();
        let mine = reserve(&*rig, slot(3), amount(2), || amount(5)).is_ok();
        let theirs = racers.into_iter().map(|racer| racer.join().expect("lives"));
        let n_granted = theirs.filter(|granted| *granted).count() + usize::from(mine);
        // Two fit into what is left, and the third one knows it.
        assert_eq!(n_granted, 2);
        assert_eq!(rig.total(), 5);
        assert!(rig.is_conserved());
    });
}

#[test]
fn reservations_and_releases_add_up() {
    check(3, || {
        let rig = rig(&[0, 2, 0]);
        let other = {
            let rig = Arc::clone(&rig);
            thread::spawn(move || {
                release(&*rig, slot(1), amount(2)).expect("it has them");
                reserve(&*rig, slot(1), amount(1), || amount(9)).expect("there is room");
            })
        };
        let granted = reserve(&*rig, slot(2), amount(3), || amount(3));
        if let Err(refusal) = granted {
            let NotReserved::OverLimit { total, .. } = refusal else {
                panic!("nobody scribbles");
            };
            assert!(total == amount(1) || total == amount(2), "{total:?}");
        }
        charge(&*rig, slot(2), amount(4)).expect("no limit");
        other.join().expect("lives");
        assert_eq!(rig.held(1), 1);
        assert_eq!(rig.held(2), 4 + if granted.is_ok() { 3 } else { 0 });
        assert!(rig.is_conserved());
    });
}

/// More accesses than an operation makes that is outrun once, so that the last life tried
/// is not cut short.
const STEPS: u32 = 10;

/// Actions of a process on slot 1 until it dies.
type Work = fn(&Rig<LoomWord>);

#[test]
fn death_at_any_step_leaks_nothing() {
    let works: [Work; 2] = [
        |rig| reserve(rig, slot(1), amount(3), || amount(9)).expect("there is room"),
        |rig| release(rig, slot(1), amount(1)).expect("it has them"),
    ];
    for (work, steps) in works
        .iter()
        .flat_map(|work| (0..=STEPS).map(move |n| (*work, n)))
    {
        check(2, move || {
            let rig = rig(&[0, 2, 0]);
            let dying = mortal(&rig, steps, work);
            let other = {
                let rig = Arc::clone(&rig);
                thread::spawn(move || {
                    reserve(&*rig, slot(2), amount(1), || amount(9)).expect("there is room");
                })
            };
            dying.join().expect("dies in a tidy way");
            // What follows is the arbiter, whose pidfd says that the process is dead.
            let given_back = reclaim(&*rig, slot(1)).expect("nobody scribbles").count();
            assert!([1, 2, 5].contains(&given_back), "{given_back}");
            assert_eq!(rig.held(1), 0);
            // The slot's next process begins where the dead one ended.
            reserve(&*rig, slot(1), amount(4), || amount(9)).expect("there is room");
            other.join().expect("lives");
            assert_eq!((rig.held(1), rig.held(2), rig.total()), (4, 1, 5));
        });
    }
}

#[test]
fn two_helpers_of_one_operation_do_it_once() {
    for steps in 0..=STEPS {
        check(3, move || {
            let rig = rig(&[0, 4, 0, 0]);
            // Dies at each step of a release, so also with the account behind the total.
            let lived = mortal(&rig, steps, |rig| {
                release(rig, slot(1), amount(1)).expect("it has them");
            });
            lived.join().expect("dies in a tidy way");
            let total = rig.total();
            let other = {
                let rig = Arc::clone(&rig);
                thread::spawn(move || {
                    reserve(&*rig, slot(2), amount(1), || amount(9)).expect("there is room");
                })
            };
            reserve(&*rig, slot(3), amount(1), || amount(9)).expect("there is room");
            other.join().expect("lives");
            assert_eq!(rig.held(1), total, "done once, if it happened");
            assert_eq!(rig.total(), total + 2);
            assert!(rig.is_conserved());
        });
    }
}

#[test]
fn an_arbiter_that_dies_in_a_reclaim_leaves_it_to_the_next() {
    for steps in 0..=STEPS {
        check(2, move || {
            let rig = rig(&[0, 2, 0]);
            // The process dies after its swap of the head and before that of its account.
            let lived = mortal(&rig, 5, |rig| {
                reserve(rig, slot(1), amount(3), || amount(9)).expect("there is room");
            });
            assert!(!lived.join().expect("dies in a tidy way"));
            assert_eq!((rig.total(), rig.held(1)), (5, 2), "the account is behind");
            let other = {
                let rig = Arc::clone(&rig);
                thread::spawn(move || {
                    reserve(&*rig, slot(2), amount(1), || amount(9)).expect("there is room");
                })
            };
            let arbiter = mortal(&rig, steps, |rig| {
                reclaim(rig, slot(1)).expect("nobody scribbles");
            });
            arbiter.join().expect("dies in a tidy way");
            reclaim(&*rig, slot(1)).expect("nobody scribbles");
            settle(&*rig).expect("nobody scribbles");
            other.join().expect("lives");
            assert_eq!((rig.held(1), rig.held(2), rig.total()), (0, 1, 1));
        });
    }
}

#[test]
fn after_a_limit_was_lowered_and_settled_the_old_one_is_of_no_use() {
    check(2, || {
        let rig = rig(&[0, 2, 0]);
        let limit = Arc::new(AtomicU64::new(9));
        let racers: Vec<_> = (1..=2)
            .map(|index| {
                let (rig, limit) = (Arc::clone(&rig), Arc::clone(&limit));
                thread::spawn(move || {
                    let limit = || amount(limit.load(Ordering::Relaxed));
                    reserve(&*rig, slot(index), amount(2), limit).is_ok()
                })
            })
            .collect();
        limit.store(3, Ordering::Relaxed);
        settle(&*rig).expect("nobody scribbles");
        let settled = rig.total();
        for racer in racers {
            racer.join().expect("lives");
        }
        // Nothing fits below the new limit, so what came after it is nothing.
        assert_eq!(rig.total(), settled);
        assert!(rig.is_conserved());
    });
}
