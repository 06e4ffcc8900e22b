//! The ledger as a page: the protocol's words are at their places, a whole page of nonsense is
//! survived, and real threads agree with loom's findings.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use std::vec::Vec;

use proptest::prelude::*;

use crate::SLOTS;
use crate::ledger::LedgerPage;
use crate::memory::Memory;
use crate::reserve::{NotReleased, NotReserved};
use crate::units::{DeviceIndex, SlotIndex, Units};

const BYTES: usize = LedgerPage::BYTES;

fn create(memory: &mut Memory) -> &LedgerPage {
    // SAFETY: the memory is zero and lives as long as the page.
    let page = unsafe { LedgerPage::create(memory.address(), BYTES, 7) };
    page.expect("there is room")
}

fn slot(index: u32) -> SlotIndex {
    SlotIndex::new(index).expect("in range")
}

fn device(index: u32) -> DeviceIndex {
    DeviceIndex::new(index).expect("in range")
}

fn amount(count: u64) -> Units {
    Units::new(count).expect("in range")
}

#[derive(Debug, Clone, Copy)]
enum Deed {
    Reserve { units: u64, limit: u64 },
    Release(u64),
    Charge(u64),
    Settle,
    Reclaim,
}

fn deeds() -> impl Strategy<Value = (u32, u32, Deed)> {
    let units = || prop_oneof![4 => 0..100u64, 1 => 0..=Units::MAX.count()];
    let deed = prop_oneof![
        4 => (units(), units()).prop_map(|(units, limit)| Deed::Reserve { units, limit }),
        3 => units().prop_map(Deed::Release),
        1 => units().prop_map(Deed::Charge),
        1 => Just(Deed::Settle),
        1 => Just(Deed::Reclaim),
    ];
    let slots = prop::sample::select(std::vec![0, 1, 2, 500, SLOTS as u32]);
    (slots, prop::sample::select(std::vec![0, 7, 15]), deed)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_page_is_as_good_as_a_list(
        history in prop::collection::vec(deeds(), 1..80),
    ) {
        let mut memory = Memory::zeroed(BYTES);
        let page = create(&mut memory);
        let mut list: BTreeMap<(u32, u32), u64> = BTreeMap::new();
        for (who, what, deed) in history {
            let (slot, device) = (slot(who), device(what));
            let total = list.iter().filter(|(key, _)| key.1 == what).map(|(_, held)| held).sum();
            let held = list.entry((who, what)).or_default();
            let room = Units::MAX.count() - total;
            match deed {
                Deed::Reserve { units, limit } => {
                    let result = page.reserve(slot, device, amount(units), || amount(limit));
                    let over = NotReserved::OverLimit { total: amount(total), limit: amount(limit) };
                    let fits = total + units <= limit;
                    prop_assert_eq!(result, if fits { Ok(()) } else { Err(over) });
                    *held += if fits { units } else { 0 };
                }
                Deed::Release(units) => {
                    let result = page.release(slot, device, amount(units));
                    let more = NotReleased::MoreThanHeld { held: amount(*held) };
                    let has = units <= *held;
                    prop_assert_eq!(result, if has { Ok(()) } else { Err(more) });
                    *held -= if has { units } else { 0 };
                }
                Deed::Charge(units) => {
                    let charged = page.charge(slot, device, amount(units)).is_ok();
                    prop_assert_eq!(charged, units <= room);
                    *held += if charged { units } else { 0 };
                }
                Deed::Settle => prop_assert_eq!(page.settle(device), Ok(())),
                Deed::Reclaim => {
                    prop_assert_eq!(page.reclaim(slot, device), Ok(amount(*held)));
                    *held = 0;
                }
            }
        }
        for ((who, what), held) in &list {
            prop_assert_eq!(page.held(slot(*who), device(*what)), amount(*held));
        }
        for what in [0, 7, 15] {
            let total = list.iter().filter(|(key, _)| key.1 == what).map(|(_, held)| held).sum();
            prop_assert_eq!(page.total(device(what)), amount(total));
        }
        prop_assert_eq!(page.total(device(1)), Units::ZERO, "nobody touched it");
    }

    /// A tenant writes nonsense into its ledger and stops; the arbiter then makes every call that
    /// it ever makes on a ledger.
    #[test]
    fn a_page_of_nonsense_is_survived(
        seed: u64,
        kinds in prop::collection::vec(0..5u8, 1..40),
        who in 0..=SLOTS as u32,
        what in 0..16u32,
        units in 0..=Units::MAX.count(),
    ) {
        let mut memory = Memory::zeroed(BYTES);
        create(&mut memory);
        let mut random = seed;
        for (line, kind) in memory.lines().skip(1).zip(kinds.iter().cycle()) {
            for word in line.chunks_exact_mut(8) {
                random = next_random(random);
                let nonsense = match kind {
                    0 => 0,
                    1 => u64::MAX,
                    2 => random,
                    3 => random >> 34,
                    _ => !(random >> 34),
                };
                word.copy_from_slice(&nonsense.to_ne_bytes());
            }
        }
        // SAFETY: the memory was made as a page above, and lives as long as this one.
        let page = unsafe { LedgerPage::from_ptr(memory.address(), BYTES) };
        let page = page.expect("its header is whole");
        let host = page.host();
        let (slot, device) = (slot(who), device(what));
        let most = Units::MAX;
        prop_assert!(page.total(device) <= most && page.held(slot, device) <= most);
        prop_assert_eq!(page.settle(device), Ok(()), "nobody is faster");
        let charged = page.charge(slot, device, amount(units));
        prop_assert!(charged.is_err() || page.total(device) >= amount(units));
        let _ = page.release(slot, device, amount(units));
        let _ = page.reserve(slot, device, amount(units), || amount(units));
        prop_assert!(page.reclaim(slot, device).is_ok(), "nobody is faster");
        prop_assert_eq!(page.held(slot, device), Units::ZERO);
        let _ = page.last_refusal(device);
        prop_assert!(host.total() <= most && host.held(slot) <= most);
        prop_assert_eq!(host.settle(), Ok(()), "nobody is faster");
        let charged = host.charge(slot, amount(units));
        prop_assert!(charged.is_err() || host.total() >= amount(units));
        let _ = host.release(slot, amount(units));
        prop_assert!(host.reclaim(slot).is_ok(), "nobody is faster");
        prop_assert_eq!(host.held(slot), Units::ZERO);
        let _ = host.last_refusal();
        let seen = page.slot(slot);
        let _ = (seen.is_live(), seen.pid(), seen.generation(), seen.context_bytes(device));
        seen.count_unknown();
        seen.hand_out(1, 2);
        prop_assert!(seen.is_live());
        prop_assert_eq!((seen.pid(), seen.generation(), seen.n_unknown()), (1, 2, 0));
    }
}

#[test]
fn slots_and_refusals_are_kept() {
    let mut memory = Memory::zeroed(BYTES);
    let page = create(&mut memory);
    assert_eq!(page.tenant(), 7);
    let last = page.slot(slot(SLOTS as u32));
    assert!(!last.is_live());
    last.hand_out(4711, 3);
    last.set_context_bytes(device(15), 480 << 20);
    last.count_unknown();
    assert_eq!(
        (last.pid(), last.generation(), last.n_unknown()),
        (4711, 3, 1)
    );
    assert_eq!(last.context_bytes(device(15)), 480 << 20);
    assert_eq!(last.context_bytes(device(14)), 0);
    last.take_back();
    assert!(!last.is_live());
    last.hand_out(4712, 4);
    assert_eq!((last.n_unknown(), last.context_bytes(device(15))), (0, 0));
    assert!(!page.slot(slot(SLOTS as u32 - 1)).is_live());

    assert_eq!(page.last_refusal(device(2)), None);
    page.note_refusal(device(2), 5 << 30, 1234);
    assert_eq!(page.last_refusal(device(2)), Some((5 << 30, 1234)));
    assert_eq!(page.last_refusal(device(3)), None);
}

#[test]
fn racing_threads_stay_within_the_limit() {
    const LIMIT: u64 = 10;
    let mut memory = Memory::zeroed(BYTES);
    let page = create(&mut memory);
    let device = device(3);
    let is_over = AtomicBool::new(false);
    let work = |index: u32| {
        let (slot, units) = (slot(index), amount(u64::from(index)));
        let mut n_granted = 0;
        for _ in 0..20_000 {
            if page.reserve(slot, device, units, || amount(LIMIT)).is_ok() {
                n_granted += 1;
                page.release(slot, device, units).expect("it has them");
            }
            if page.total(device) > amount(LIMIT) {
                is_over.store(true, Ordering::Relaxed);
            }
        }
        n_granted
    };
    let n_granted: u32 = thread::scope(|scope| {
        let threads: Vec<_> = (1..=6)
            .map(|index| scope.spawn(move || work(index)))
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().expect("lives"))
            .sum()
    });
    assert!(!is_over.load(Ordering::Relaxed));
    assert!(n_granted > 0);
    assert_eq!(page.total(device), Units::ZERO);
    for index in 0..=6 {
        assert_eq!(page.held(slot(index), device), Units::ZERO);
    }
}

/// The arbiter's calls against threads that write nonsense at full speed. Each call must come back;
/// its answer does not matter.
#[test]
fn the_arbiter_gets_its_calls_done_while_somebody_scribbles() {
    let mut memory = Memory::zeroed(BYTES);
    let page = create(&mut memory);
    let (slot, device) = (slot(1), device(0));
    let enough = AtomicBool::new(false);
    let scribble = |seed: u64| {
        let mut random = seed;
        while !enough.load(Ordering::Relaxed) {
            random = next_random(random);
            let account = &page.slots[(random >> 60) as usize % 3].accounts[0];
            page.heads[0].word.store(random, Ordering::Relaxed);
            account.op.store(random.rotate_left(20), Ordering::Relaxed);
            account
                .used
                .store(random.rotate_left(40), Ordering::Relaxed);
        }
    };
    let deadline = Instant::now() + Duration::from_secs(60);
    // How often a total changed under the arbiter's hands, by a call that changes none.
    let mut n_surprises = 0;
    thread::scope(|scope| {
        for seed in [1, 2] {
            scope.spawn(move || scribble(seed));
        }
        while n_surprises < 1000 && Instant::now() < deadline {
            let before = page.total(device);
            let settled = page.settle(device);
            n_surprises += u32::from(settled.is_ok() && page.total(device) != before);
            let _ = page.charge(SlotIndex::ARBITER, device, amount(1));
            let _ = page.release(SlotIndex::ARBITER, device, amount(1));
            let _ = page.reclaim(slot, device);
        }
        enough.store(true, Ordering::Relaxed);
    });
    assert!(n_surprises >= 1000, "{n_surprises} in a minute");
    assert_eq!(page.settle(device), Ok(()), "and now there is nobody");
}

fn next_random(random: u64) -> u64 {
    // Knuth's constants for a linear congruential generator: enough for nonsense.
    random
        .wrapping_mul(6_364_136_223_846_793_005)
        .wrapping_add(1_442_695_040_888_963_407)
}
