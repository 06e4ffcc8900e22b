//! A control page has its writer's values, and no other memory is taken for one.

use core::ptr;

use crate::control::{ControlPage, ControlWriter, DeviceTerms, Terms};
use crate::gate::{GateState, GateWord};
use crate::header::{PageError, PageKind};
use crate::ledger::LedgerPage;
use crate::memory::Memory;
use crate::message::Mode;
use crate::packing::Packing;
use crate::units::{DeviceIndex, Units};
use crate::{MAX_DEVICES, VERSION};

const BYTES: usize = ControlPage::BYTES;

fn device(number: u8) -> DeviceTerms {
    DeviceTerms {
        uuid: [number; 16],
        capacity_bytes: 80 << 30,
        limit_bytes: u64::from(number) << 30,
        context_bytes: 480 << 20,
        packing: None,
    }
}

fn create<'a>(memory: &'a mut Memory, devices: &[DeviceTerms]) -> ControlWriter<'a> {
    let terms = Terms {
        tenant: 7,
        epoch: 3,
        mode: Mode::Strict,
        devices,
        host_limit_bytes: Some(3 << 30),
        now_ms: 1000,
    };
    // SAFETY: the memory is zero and lives as long as the writer.
    let writer = unsafe { ControlWriter::create(memory.address(), BYTES, &terms) };
    writer.expect("there is room")
}

fn place(index: u32) -> DeviceIndex {
    DeviceIndex::new(index).expect("in range")
}

#[test]
fn a_page_says_what_was_written() {
    let mut memory = Memory::zeroed(BYTES);
    let address = memory.address();
    let writer = create(&mut memory, &[device(1), device(2)]);
    // SAFETY: as for the writer.
    let page = unsafe { ControlPage::from_ptr(address, 4096) }.expect("a page");
    assert_eq!(
        (page.tenant(), page.epoch(), page.heartbeat_ms()),
        (7, 3, 1000)
    );
    assert_eq!(page.mode(), Mode::Strict);
    assert_eq!(page.devices().count(), 2);
    assert_eq!(page.find(&[2; 16]), Some(place(1)));
    assert_eq!(page.find(&[0; 16]), None, "an empty place is no device");
    let second = page.device(place(1));
    assert_eq!(second.uuid(), [2; 16]);
    assert_eq!(
        (second.capacity_bytes(), second.limit_bytes()),
        (80 << 30, 2 << 30)
    );
    assert_eq!(second.context_bytes(), 480 << 20);
    assert_eq!(
        page.device(place(2)).limit(),
        Units::ZERO,
        "no device, no memory"
    );

    writer.set_limit_bytes(place(1), 1 << 30);
    writer.set_context_bytes(place(1), 500 << 20);
    assert_eq!(second.packing(), Packing::default());
    let packing = Packing {
        small: 512 << 10,
        piece: 8 << 20,
        kept: 1,
        ..Packing::default()
    };
    writer.set_packing(place(1), Some(packing));
    assert_eq!(second.packing(), packing);
    writer.set_packing(place(1), None);
    assert_eq!(second.packing(), Packing::default());
    let gate = page.gate();
    let said = || (gate.word().state(), gate.without_arbiter(), gate.queue_us());
    assert_eq!(said(), (GateState::Free, 1000, None));
    writer.set_gate(GateWord::new(GateState::Contended, 2));
    writer.set_gate_rules(100, 10_000);
    assert_eq!(said(), (GateState::Contended, 100, Some(10_000)));
    assert_eq!(page.mps_percent(), None);
    for (percent, kept) in [(Some(40), Some(40)), (Some(100), None), (None, None)] {
        writer.set_mps_percent(percent);
        assert_eq!(page.mps_percent(), kept);
    }
    writer.set_mode(Mode::Compat);
    writer.beat(1200);
    assert_eq!(second.limit(), Units::allowed_by(1 << 30));
    assert_eq!(
        (second.context_bytes(), page.heartbeat_ms()),
        (500 << 20, 1200)
    );
    assert_eq!(page.mode(), Mode::Compat);
    assert_eq!(
        page.device(place(0)).limit_bytes(),
        1 << 30,
        "the other one is as before"
    );
}

#[test]
fn there_are_no_more_than_sixteen_devices() {
    let devices: [DeviceTerms; 20] = core::array::from_fn(|number| device(number as u8 + 1));
    let mut memory = Memory::zeroed(BYTES);
    let writer = create(&mut memory, &devices);
    assert_eq!(writer.devices().count(), MAX_DEVICES);
    assert_eq!(writer.find(&[16; 16]), Some(place(15)));
    assert_eq!(writer.find(&[17; 16]), None);
}

#[test]
fn what_is_no_page_is_refused() {
    let bytes = BYTES;
    let mut memory = Memory::zeroed(LedgerPage::BYTES);
    let address = memory.address();
    let open = |address: *mut u8, len| {
        // SAFETY: the memory is longer than any length that is tried, and outlives the page.
        unsafe { ControlPage::from_ptr(address, len) }.map(ControlPage::tenant)
    };
    assert_eq!(open(ptr::null_mut(), bytes), Err(PageError::Misaligned));
    assert_eq!(
        open(address.wrapping_add(8), bytes),
        Err(PageError::Misaligned)
    );
    let short = PageError::Short {
        mapped: bytes - 1,
        needed: bytes,
    };
    assert_eq!(
        open(address, bytes),
        Err(PageError::NotA(PageKind::Control))
    );

    create(&mut memory, &[]);
    assert_eq!(open(address, bytes), Ok(7));
    assert_eq!(open(address, bytes - 1), Err(short));
    // SAFETY: as above, and only bytes of the header are written.
    let poke = |at: usize, value: u8| unsafe { address.add(at).write(value) };
    poke(12, VERSION as u8 + 1);
    assert_eq!(open(address, bytes), Err(PageError::Version(VERSION + 1)));
    poke(12, VERSION as u8);
    poke(8, 0);
    let size = PageError::Size {
        stated: (bytes as u32) & !0xff,
        needed: bytes,
    };
    assert_eq!(open(address, bytes), Err(size));

    // SAFETY: as above.
    let ledger = unsafe { LedgerPage::from_ptr(address, LedgerPage::BYTES) };
    assert_eq!(ledger.err(), Some(PageError::NotA(PageKind::Ledger)));
}
