//! The machine from outside: who may open a machine, refusals, and the sharing of time.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::atomic::Ordering::Release;

use super::registration::Registration;
use super::rendezvous::Rendezvous;
use super::*;

fn machine(base: &Path, spec: &str) -> FakeMachine {
    FakeMachine::open_or_create_in(base, &Spec::parse(spec).unwrap()).unwrap()
}

#[test]
fn one_spec_is_one_machine_and_its_folder_is_another_name_of_it() {
    let base = tempfile::tempdir().unwrap();
    let first = machine(base.path(), "2x1GiB,name=Test");
    let again = machine(base.path(), "2x1024MiB,name=Test");
    assert_eq!(first.folder(), again.folder());
    assert_ne!(first.folder(), machine(base.path(), "2x1GiB").folder());
    let folder = FakeMachine::from_text(first.folder().to_str().unwrap()).unwrap();
    assert_eq!(folder.cards(), first.cards());
    assert_eq!(
        (folder.cards()[1].index, folder.cards()[1].name.as_str()),
        (1, "Test")
    );
    assert_eq!(folder.cards()[0].memory, 1 << 30);
    // What one handle does, the others see: they are one.
    let registration = first.take_slot().unwrap();
    registration.open_context(1).unwrap();
    registration.charge(1, 5 << 20).unwrap();
    let used = (128 << 20) + (5 << 20);
    assert_eq!(
        folder.usage(1).unwrap(),
        CardUse {
            total: 1 << 30,
            used,
            free: (1 << 30) - used,
        }
    );
    let [process] = again.processes().unwrap()[..] else {
        panic!("one process");
    };
    assert_eq!((process.pid, process.card), (std::process::id(), 1));
    drop(registration);
    assert!(again.processes().unwrap().is_empty());
    let path = first.folder().to_owned();
    first.remove().unwrap();
    assert!(!path.exists());
    let error = FakeMachine::open(&path).err().unwrap();
    assert!(
        error.to_string().contains("cannot open the file"),
        "{error}"
    );
}

#[test]
fn a_file_that_is_no_machine_is_refused() {
    let base = tempfile::tempdir().unwrap();
    let path = base.path().join(FILE);
    std::fs::write(&path, "hello").unwrap();
    assert!(FakeMachine::open(base.path()).is_err());
    let file = std::fs::File::create(&path).unwrap();
    file.set_len(size_of::<Shared>() as u64).unwrap();
    let error = FakeMachine::open(base.path()).err().unwrap();
    let cause = std::error::Error::source(&error).unwrap().to_string();
    assert!(cause.contains("no fake machine"), "{cause}");
}

#[test]
fn a_card_gives_no_more_than_it_has() {
    let base = tempfile::tempdir().unwrap();
    let machine = machine(base.path(), "1x16MiB,context=2MiB");
    let (one, two) = (machine.take_slot().unwrap(), machine.take_slot().unwrap());
    assert_ne!(one.index(), two.index());
    one.open_context(0).unwrap();
    one.open_context(0).unwrap();
    assert_eq!(
        one.held_bytes(0),
        2 << 20,
        "the second context costs nothing"
    );
    two.charge(0, 14 << 20).unwrap();
    let full = one.charge(0, 1).unwrap_err();
    assert_eq!((full.wanted, full.free), (1, 0));
    assert!(two.charge(0, u64::MAX).is_err());
    one.close_context(0);
    assert_eq!(one.held_bytes(0), 2 << 20);
    one.close_context(0);
    one.close_context(0);
    two.charge(0, 2 << 20).unwrap();
    two.refund(0, 16 << 20);
    assert_eq!(machine.usage(0).unwrap().used, 0);
}

#[test]
fn slices_follow_each_other_and_what_is_unused_goes_back() {
    let base = tempfile::tempdir().unwrap();
    let machine = machine(base.path(), "1x16MiB,switch=0us");
    let (one, two) = (machine.take_slot().unwrap(), machine.take_slot().unwrap());
    let start = now();
    let first = one.slice(0, start, 5_000_000);
    assert_eq!((first.start, first.end - first.start), (start, 2_000_000));
    let second = two.slice(0, start, 300);
    assert_eq!((second.start, second.end), (first.end, first.end + 300));
    two.give_back(0, second, second.start + 100);
    assert_eq!(one.slice(0, start, 1).start, first.end + 100);
    one.give_back(0, first, first.start);
    assert_eq!(two.slice(0, start, 1).start, first.end + 101, "too late");
    // Work that was ready before the card was free begins when it is; other work later.
    let later = start + 1_000_000_000;
    assert_eq!(one.slice(0, later, 1).start, later);
    assert_eq!(machine.slices(0).len(), 5);
}

#[test]
fn a_slice_is_as_long_as_the_text_says_and_a_switch_costs_time() {
    let base = tempfile::tempdir().unwrap();
    let machine = machine(base.path(), "1x16MiB,slice=500us,switch=100us");
    let (one, two) = (machine.take_slot().unwrap(), machine.take_slot().unwrap());
    one.charge(0, 1).unwrap();
    two.charge(0, 1).unwrap();
    // All of it is within the last second.
    let start = now() - 50_000_000;
    let relative = |slice: Slice| (slice.start - start, slice.end - start);
    // Nobody was there before the first one, and nobody else between its two.
    let slice = one.slice(0, start, 5_000_000);
    assert_eq!(relative(slice), (0, 500_000));
    let slice = one.slice(0, start, 300_000);
    assert_eq!(relative(slice), (500_000, 800_000));
    one.give_back(0, slice, slice.start + 200_000);
    let slice = one.slice(0, start, 100_000);
    assert_eq!(relative(slice), (700_000, 800_000), "still there");
    let slice = two.slice(0, start, 5_000_000);
    assert_eq!(relative(slice), (900_000, 1_400_000));
    two.give_back(0, slice, slice.start);
    let slice = one.slice(0, start, 100_000);
    assert_eq!(relative(slice), (1_000_000, 1_100_000), "and back");
    // After a rest as well. A switch is busy time of whoever came.
    let slice = two.slice(0, start + 9_000_000, 100_000);
    assert_eq!(relative(slice), (9_100_000, 9_200_000));
    let mut used = machine.processes().unwrap();
    used.sort_by_key(|process| process.slot);
    let busy = used.iter().map(|process| process.busy);
    assert_eq!(busy.collect::<Vec<_>>(), [100_000, 200_000]);
    assert_eq!(machine.busy(0), 300_000);
}

#[test]
fn busy_time_is_of_the_last_second() {
    let base = tempfile::tempdir().unwrap();
    let machine = machine(base.path(), "2x16MiB");
    let registration = machine.take_slot().unwrap();
    registration.charge(0, 1).unwrap();
    let end = now();
    registration.worked(0, end - 400_000_000, end - 200_000_000);
    assert_eq!((machine.busy(0), machine.busy(1)), (200_000_000, 0));
    assert_eq!(machine.processes().unwrap()[0].busy, 200_000_000);
    // Two seconds ago is forgotten, and does not come back through the ring.
    registration.worked(1, end - 1_900_000_000, end - 1_500_000_000);
    assert_eq!(machine.busy(1), 0);
}

#[test]
fn a_place_of_the_dead_is_taken_before_one_that_nobody_had() {
    let base = tempfile::tempdir().unwrap();
    let machine = machine(base.path(), "1x16MiB");
    let shared = machine.mapped.shared();
    // They hold no lock, as the dead do not; more than a new process asks about.
    let n_dead = 20;
    for slot in &shared.slots[..n_dead] {
        slot.state.store(1, Release);
    }
    shared.header.n_slots.store(20, Release);
    let alive: Vec<Registration> = (0..5).map(|_| machine.take_slot().unwrap()).collect();
    let taken: BTreeSet<usize> = alive.iter().map(Registration::index).collect();
    assert_eq!(taken.len(), 5, "each has its own");
    assert!(taken.iter().all(|index| *index < n_dead), "{taken:?}");
    // Those that were given back are the next.
    drop(alive);
    let next = machine.take_slot().unwrap();
    assert_eq!(Some(&next.index()), taken.first());
}

#[test]
fn each_start_of_a_peer_is_met_once() {
    let base = tempfile::tempdir().unwrap();
    let machine = machine(base.path(), "2x16MiB");
    let (one, two) = (machine.take_slot().unwrap(), machine.take_slot().unwrap());
    let (mut here, mut there) = (Rendezvous::new(&one, 0), Rendezvous::new(&two, 1));
    here.start(&one, 7);
    assert!(!here.has_met(&one, 7));
    there.start(&two, 8);
    assert!(!here.has_met(&one, 7), "another kernel");
    there.start(&two, 7);
    assert!(here.has_met(&one, 7) && there.has_met(&two, 7));
    // Who comes later does not meet those who met before.
    let three = machine.take_slot().unwrap();
    let mut late = Rendezvous::new(&three, 1);
    late.start(&three, 7);
    assert!(!late.has_met(&three, 7));
    here.start(&one, 7);
    assert!(late.has_met(&three, 7));
    // But who still waits is met even by somebody who comes after it started.
    here.start(&one, 7);
    let four = machine.take_slot().unwrap();
    let mut later = Rendezvous::new(&four, 1);
    later.start(&four, 7);
    assert!(later.has_met(&four, 7));
}
