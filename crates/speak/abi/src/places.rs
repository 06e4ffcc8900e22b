//! The words of both pages are at their places.
//!
//! The places are written down as numbers. They are the interface with libraries that were
//! built long ago, so a test that computed them from our structs would prove nothing.

use std::vec::Vec;

use crate::control::{ControlPage, ControlWriter, DeviceTerms, Terms};
use crate::gate::{GateState, GateWord};
use crate::header::PageError;
use crate::ledger::LedgerPage;
use crate::memory::Memory;
use crate::message::Mode;
use crate::reserve::NotReserved;
use crate::units::{DeviceIndex, SlotIndex, Units};

fn control(memory: &mut Memory, host_limit_bytes: Option<u64>) -> ControlWriter<'_> {
    const DEVICES: &[DeviceTerms] = &[DeviceTerms {
        uuid: [7; 16],
        capacity_bytes: 80 << 30,
        limit_bytes: 5 << 30,
        context_bytes: 480 << 20,
        packing: None,
    }];
    let terms = Terms {
        tenant: 11,
        epoch: 3,
        mode: Mode::Strict,
        devices: DEVICES,
        host_limit_bytes,
        now_ms: 1000,
    };
    // SAFETY: the memory is zero, long enough, and lives as long as the writer.
    let writer = unsafe { ControlWriter::create(memory.address(), ControlPage::BYTES, &terms) };
    writer.expect("there is room")
}

fn ledger(memory: &mut Memory) -> &LedgerPage {
    // SAFETY: the memory is zero, long enough, and lives as long as the page.
    let ledger = unsafe { LedgerPage::create(memory.address(), LedgerPage::BYTES, 11) };
    ledger.expect("there is room")
}

fn words(memory: &mut Memory) -> Vec<u64> {
    let words = memory.lines().flat_map(|line| {
        let word = |eight: &[u8]| u64::from_ne_bytes(eight.try_into().expect("eight bytes"));
        line.chunks_exact(8).map(word).collect::<Vec<_>>()
    });
    words.collect()
}

/// The places of words that are not zero, in bytes, and their values.
fn written(memory: &mut Memory) -> Vec<(usize, u64)> {
    let all = words(memory).into_iter().enumerate();
    let written = all.filter(|(_, word)| *word != 0);
    written.map(|(at, word)| (at * 8, word)).collect()
}

fn slot(index: u32) -> SlotIndex {
    SlotIndex::new(index).expect("in range")
}

fn amount(count: u64) -> Units {
    Units::new(count).expect("in range")
}

const fn header(magic: [u8; 8], size: u64) -> [(usize, u64); 2] {
    [
        (0, u64::from_ne_bytes(magic)),
        (8, size | 2 << 32), // and the version, as a little-endian machine reads both
    ]
}

#[test]
fn control_pages_have_their_words_at_these_places() {
    let mut memory = Memory::zeroed(4096);
    let writer = control(&mut memory, Some(6 << 30));
    writer.set_gate(GateWord::new(GateState::Closed, 5));
    writer.set_gate_rules(100, 10_000);
    writer.set_mps_percent(Some(30));
    let mut expected = header(*b"SubletC\n", 1216).to_vec();
    expected.extend([
        (16, 11),
        (24, 3),
        (32, 1 | 1 << 32),
        (40, 3 | 5 << 2 | 100 << 32),
        (48, 10_000),
        (56, 30),
        (64, 1000),
        (128, 0x0707_0707_0707_0707),
        (136, 0x0707_0707_0707_0707),
        (144, 80 << 30),
        (152, 5 << 30),
        (160, 480 << 20),
        (1152, 6 << 30),
    ]);
    assert_eq!(written(&mut memory), expected);
}

#[test]
fn ledger_pages_have_their_words_at_these_places() {
    let device = DeviceIndex::new(3).expect("in range");
    let mut memory = Memory::zeroed(700_000);
    let page = ledger(&mut memory);
    page.slot(slot(2)).hand_out(4711, 9);
    page.charge(slot(2), device, amount(5)).expect("room");
    let turns = page.slot(slot(2)).turns();
    turns.follow();
    turns.set_at_gate(true);
    turns.answer(GateWord::new(GateState::Closed, 6));
    turns.add_units(21);
    turns.add_gpu_ns(22);
    turns.add_waited_ns(23);
    assert!(turns.must_knock());
    page.note_refusal(device, 77, 88);
    page.host().charge(slot(2), amount(6)).expect("room");
    page.host().note_refusal(99, 111);
    let mut expected = header(*b"SubletL\n", 657_472).to_vec();
    expected.extend([
        (16, 11),
        // The head of device 3: 5 units, slot 2, operation 1.
        (64 + 3 * 64, 5 | 2 << 34 | 1 << 45),
        (1088 + 3 * 16, 77),
        (1088 + 3 * 16 + 8, 88),
        // Slot 2: its process and generation, its state, its account of device 3.
        (1344 + 2 * 576, 4711 | 9 << 32),
        (1344 + 2 * 576 + 8, 1),
        // Its turns: which it answered, and its flags; units, nanoseconds, a knock.
        (1344 + 2 * 576 + 24, 6 | 5 << 32),
        (1344 + 2 * 576 + 32, 21),
        (1344 + 2 * 576 + 40, 22),
        (1344 + 2 * 576 + 48, 23),
        (1344 + 2 * 576 + 56, 1),
        (1344 + 2 * 576 + 64 + 3 * 32, 5),
        (1344 + 2 * 576 + 64 + 3 * 32 + 8, 5 | 1 << 34),
        // The host: its head, its last refusal, slot 2's account.
        (591_744, 6 | 2 << 34 | 1 << 45),
        (591_808, 99),
        (591_816, 111),
        (591_872 + 2 * 64, 6),
        (591_872 + 2 * 64 + 8, 6 | 1 << 34),
    ]);
    assert_eq!(written(&mut memory), expected);
}

/// The tenant can write the header of its ledger.
#[test]
fn a_ledger_whose_version_was_forged_is_no_page() {
    for forged in [0, 1, 3, 9] {
        let mut memory = Memory::zeroed(LedgerPage::BYTES);
        ledger(&mut memory);
        // SAFETY: a byte of the header.
        unsafe { memory.address().add(12).write(forged) };
        // SAFETY: the memory is long enough and outlives the page.
        let found = unsafe { LedgerPage::from_ptr(memory.address(), LedgerPage::BYTES) };
        assert_eq!(found.err(), Some(PageError::Version(forged.into())));
    }
}

#[test]
fn the_host_s_budget_is_a_limit_like_a_device_s() {
    let (mut above, mut below) = (Memory::zeroed(4096), Memory::zeroed(700_000));
    let writer = control(&mut above, None);
    let limit = writer.page().host();
    let host = ledger(&mut below).host();
    assert_eq!((limit.bytes(), limit.limit()), (None, Units::MAX));
    let take = |index, units| host.reserve(slot(index), amount(units), || limit.limit());
    take(1, 1 << 20).expect("there is no limit");
    writer.set_host_limit_bytes(Some(512 << 20));
    host.settle().expect("nobody scribbles");
    assert_eq!(limit.bytes(), Some(512 << 20));
    let over = NotReserved::OverLimit {
        total: amount(1 << 20),
        limit: amount(1 << 20),
    };
    assert_eq!(take(2, 1), Err(over));
    host.release(slot(1), amount(3)).expect("it has them");
    take(2, 3).expect("there is room");
    assert_eq!(host.held(slot(2)), amount(3));
    assert_eq!(host.reclaim(slot(1)), Ok(amount((1 << 20) - 3)));
    assert_eq!(host.total(), amount(3));
    writer.set_host_limit_bytes(None);
    take(2, 1 << 30).expect("there is no limit again");
}
