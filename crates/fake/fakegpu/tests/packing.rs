//! Packing of allocations into a card. NVML counts whole pieces for small allocations and whole
//! blocks for large ones, after any sequence of calls and for each packing. Shared and held parts
//! of a piece stay right.
#![expect(unsafe_code, reason = "calls the driver as C does")]

mod own_process;

use std::collections::BTreeMap;
use std::ffi::{CString, c_char};
use std::os::fd::{FromRawFd as _, OwnedFd};

use own_process::{Other, cast, context, role, say, with_machine};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use sublet_driver_api::nvml::{NVML_SUCCESS, nvmlDevice_t, nvmlMemory_t, nvmlReturn_t};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const BLOCK: u64 = 2 * MIB;
/// Every part of a piece is a multiple of this.
const PART: u64 = 512;
/// Small enough that sequences fill it.
const CARD: u64 = 192 * MIB;

/// A function of the NVML twin.
fn nvml<F: Copy>(symbol: &str) -> F {
    cast(sublet_fakegpu::nvml::entry(symbol).0.cast())
}

/// Bytes of the card that NVML says are taken.
fn used() -> u64 {
    let start: extern "C" fn() -> nvmlReturn_t = nvml("nvmlInit_v2");
    assert_eq!(start(), NVML_SUCCESS);
    let by_index: extern "C" fn(u32, *mut nvmlDevice_t) -> nvmlReturn_t =
        nvml("nvmlDeviceGetHandleByIndex_v2");
    let mut card = nvmlDevice_t(0);
    assert_eq!(by_index(0, &raw mut card), NVML_SUCCESS);
    let ask: extern "C" fn(nvmlDevice_t, *mut nvmlMemory_t) -> nvmlReturn_t =
        nvml("nvmlDeviceGetMemoryInfo");
    let mut memory = nvmlMemory_t::default();
    assert_eq!(ask(card, &raw mut memory), NVML_SUCCESS);
    memory.used
}

fn allocate(size: u64) -> Option<u64> {
    let mut address = 0_u64;
    match cu!(cuMemAlloc_v2, &raw mut address => *mut u64, size as usize => usize) {
        0 => Some(address),
        code => {
            assert_eq!(code, 2, "{size} bytes");
            None
        }
    }
}

/// The expected content of the card, worked out in another way than the driver does: without a list
/// of free parts, only from the taken ones.
#[derive(Default)]
struct Pieces {
    /// By its start, the parts of a piece that are taken: their starts and ends.
    by_start: BTreeMap<u64, BTreeMap<u64, u64>>,
}

impl Pieces {
    /// Returns the start of the first gap of that size.
    fn gap(&self, size: u64, piece: u64) -> Option<u64> {
        self.by_start.iter().find_map(|(start, parts)| {
            let ends = std::iter::once(*start).chain(parts.values().copied());
            let starts = parts.keys().copied().chain([start + piece]);
            let mut gaps = ends.zip(starts);
            gaps.find_map(|(from, to)| (to - from >= size).then_some(from))
        })
    }

    fn put(&mut self, at: u64, size: u64) {
        let (_, parts) = self.by_start.range_mut(..=at).next_back().unwrap();
        assert_eq!(parts.insert(at, at + size), None);
    }

    fn take(&mut self, at: u64, kept: u64) {
        let (_, parts) = self.by_start.range_mut(..=at).next_back().unwrap();
        parts.remove(&at).unwrap();
        let empty = self.by_start.iter().filter(|(_, parts)| parts.is_empty());
        let empty: Vec<u64> = empty.map(|(start, _)| *start).collect();
        let over = empty.len().saturating_sub(kept.try_into().unwrap());
        for start in &empty[..over] {
            self.by_start.remove(start);
        }
    }
}

/// A machine's packing, and the calls made on the machine.
struct World {
    small: u64,
    piece: u64,
    kept: u64,
    contexts: [u64; 2],
    pieces: [Pieces; 2],
    /// Address, length and context of each allocation.
    live: Vec<(u64, u64, usize)>,
    /// Modules: handle, address of its code and of its variable, length of each, context.
    modules: Vec<(u64, [u64; 2], u64, usize)>,
}

#[derive(Debug, Clone)]
enum Step {
    Allocate(usize, u64),
    Free(usize),
    /// A module whose code and variable are so long.
    Load(usize, u64),
    Unload(usize),
    /// A context goes, and another one takes its place.
    Renew(usize),
}

fn part(size: u64) -> u64 {
    size.next_multiple_of(PART)
}

impl World {
    fn expected(&self) -> u64 {
        let pieces: usize = self.pieces.iter().map(|pieces| pieces.by_start.len()).sum();
        let large = self.live.iter().filter(|(_, size, _)| *size > self.small);
        let large: u64 = large.map(|(_, size, _)| size.next_multiple_of(BLOCK)).sum();
        pieces as u64 * self.piece + large
    }

    fn enter(&self, context: usize) {
        ok!(cuCtxSetCurrent, self.contexts[context] => u64);
    }

    fn step(&mut self, step: &Step) {
        match *step {
            Step::Allocate(context, size) => self.allocate(context, size),
            Step::Free(index) if !self.live.is_empty() => {
                let (at, size, context) = self.live.swap_remove(index % self.live.len());
                self.enter(context);
                ok!(cuMemFree_v2, at => u64);
                if size <= self.small {
                    self.pieces[context].take(at, self.kept);
                }
            }
            Step::Load(context, size) => self.load(context, size),
            Step::Unload(index) if !self.modules.is_empty() => {
                let index = index % self.modules.len();
                let (module, places, _, context) = self.modules.swap_remove(index);
                self.enter(context);
                ok!(cuModuleUnload, module => u64);
                for at in places {
                    self.pieces[context].take(at, self.kept);
                }
            }
            Step::Renew(context) => self.renew(context),
            Step::Free(_) | Step::Unload(_) => {}
        }
        assert_eq!(used(), self.expected(), "after {step:?}");
    }

    fn allocate(&mut self, context: usize, size: u64) {
        self.enter(context);
        let before = self.expected();
        let gap = (size <= self.small)
            .then(|| self.pieces[context].gap(part(size), self.piece))
            .flatten();
        let more = match gap {
            Some(_) => 0,
            None if size <= self.small => self.piece,
            None => size.next_multiple_of(BLOCK),
        };
        let Some(at) = allocate(size) else {
            assert!(before + more > CARD, "{before} and {more} fit");
            return;
        };
        assert!(before + more <= CARD, "{before} and {more} do not fit");
        let (mut start, mut length) = (0_u64, 0_usize);
        ok!(cuMemGetAddressRange_v2, &raw mut start => *mut u64, &raw mut length => *mut usize, at + size - 1 => u64);
        assert_eq!((start, length as u64), (at, size));
        if size <= self.small {
            self.put(context, at, part(size), gap);
        }
        self.live.push((at, size, context));
    }

    /// A part is taken: in a gap that was there, or at the start of a new piece.
    fn put(&mut self, context: usize, at: u64, size: u64, gap: Option<u64>) {
        match gap {
            Some(gap) => assert_eq!(at, gap),
            None => {
                self.pieces[context].by_start.insert(at, BTreeMap::new());
            }
        }
        self.pieces[context].put(at, size);
    }

    fn load(&mut self, context: usize, size: u64) {
        self.enter(context);
        let before = self.expected();
        let gap = self.pieces[context].gap(part(size), self.piece);
        let mut text = format!(".version 8.0\n.global .align 8 .b8 table[{size}];");
        text.extend(std::iter::repeat_n(' ', size as usize - text.len()));
        let text = CString::new(text).unwrap();
        let (mut module, mut table, mut length) = (0_u64, 0_u64, 0_usize);
        let code =
            cu!(cuModuleLoadData, &raw mut module => *mut u64, text.as_ptr() => *const c_char);
        if code != 0 {
            assert_eq!(code, 2);
            assert!(before + self.piece > CARD, "{before} and a piece fit");
            return;
        }
        ok!(cuModuleGetGlobal_v2, &raw mut table => *mut u64, &raw mut length => *mut usize, module => u64, c"table".as_ptr() => *const c_char);
        assert_eq!(length as u64, size);
        // Nobody tells where code is. What the variable is as long as had no room before.
        let code = gap.unwrap_or_else(|| table - part(size));
        self.put(context, code, part(size), gap);
        let gap = self.pieces[context].gap(part(size), self.piece);
        self.put(context, table, part(size), gap);
        self.modules.push((module, [code, table], size, context));
    }

    fn renew(&mut self, context: usize) {
        ok!(cuCtxDestroy_v2, self.contexts[context] => u64);
        self.contexts[context] = new_context();
        self.pieces[context].by_start.clear();
        self.live.retain(|(_, _, of)| *of != context);
        self.modules.retain(|(_, _, _, of)| *of != context);
    }
}

/// Also of a sequence that failed, so that a shorter one can be tried.
impl Drop for World {
    fn drop(&mut self) {
        for context in self.contexts {
            let _ = cu!(cuCtxDestroy_v2, context => u64);
        }
    }
}

fn new_context() -> u64 {
    let mut context = 0_u64;
    ok!(cuCtxCreate_v2, &raw mut context => *mut u64, 0 => u32, 0 => i32);
    context
}

fn steps(small: u64) -> impl Strategy<Value = Vec<Step>> {
    let size = prop_oneof![
        4 => 1..8 * KIB,
        2 => 1..=small,
        1 => small - 2..small + 2,
        1 => small..12 * MIB,
        1 => (1..5_u64, 0..3_u64).prop_map(|(n_blocks, off)| n_blocks * BLOCK + off - 1),
    ];
    let length = prop_oneof![Just(100_u64), Just(PART), 1000..300 * KIB];
    let step = prop_oneof![
        20 => (0..2_usize, size).prop_map(|(context, size)| Step::Allocate(context, size)),
        16 => any::<usize>().prop_map(Step::Free),
        3 => (0..2_usize, length).prop_map(|(context, size)| Step::Load(context, size)),
        3 => any::<usize>().prop_map(Step::Unload),
        1 => (0..2_usize).prop_map(Step::Renew),
    ];
    proptest::collection::vec(step, 1..150)
}

/// Random sequences on a machine with one packing.
fn follow(test: &str, packing: &str, [small, piece, kept]: [u64; 3]) {
    let spec = format!("1x{}MiB,context=0MiB,packing={packing}", CARD / MIB);
    with_machine(test, &spec, || {
        ok!(cuInit, 0 => u32);
        let config = ProptestConfig {
            cases: 24,
            failure_persistence: None,
            ..ProptestConfig::default()
        };
        let tried = TestRunner::new(config).run(&steps(small), |steps| {
            let mut world = World {
                small,
                piece,
                kept,
                contexts: [new_context(), new_context()],
                pieces: Default::default(),
                live: Vec::new(),
                modules: Vec::new(),
            };
            for step in &steps {
                world.step(step);
            }
            drop(world);
            prop_assert_eq!(used(), 0, "with its context everything goes");
            Ok(())
        });
        tried.unwrap_or_else(|error| panic!("{packing}: {error}"));
    });
}

#[test]
fn blocks_are_shared_and_none_is_kept() {
    let packing = [MIB, 2 * MIB, 0];
    follow("blocks_are_shared_and_none_is_kept", "1MiB:2MiB:0", packing);
}

#[test]
fn larger_pieces_are_shared_and_one_is_kept() {
    const NAME: &str = "larger_pieces_are_shared_and_one_is_kept";
    follow(NAME, "512KiB:8MiB:1", [512 * KIB, 8 * MIB, 1]);
}

#[test]
fn pieces_of_pools_size_are_shared_and_all_are_kept() {
    const NAME: &str = "pieces_of_pools_size_are_shared_and_all_are_kept";
    follow(NAME, "3MiB:32MiB:all", [3 * MIB, 32 * MIB, u64::MAX]);
}

/// Without small allocations, each one has its blocks.
#[test]
fn without_small_allocations_each_has_blocks() {
    let spec = "1x64MiB,context=0MiB,packing=0KiB:2MiB:all";
    with_machine("without_small_allocations_each_has_blocks", spec, || {
        context();
        let (first, second) = (allocate(1).unwrap(), allocate(1).unwrap());
        assert_eq!((first.abs_diff(second) >= BLOCK, used()), (true, 2 * BLOCK));
        ok!(cuMemFree_v2, first => u64);
        assert_eq!(used(), BLOCK);
    });
}

#[test]
fn a_piece_that_a_descriptor_holds_stays_until_it_is_closed() {
    const NAME: &str = "a_piece_that_a_descriptor_holds_stays_until_it_is_closed";
    let spec = "1x64MiB,context=0MiB,packing=512KiB:8MiB:1";
    with_machine(NAME, spec, || {
        let hold = |address: u64| {
            let mut descriptor = -1_i32;
            ok!(cuMemGetHandleForAddressRange, &raw mut descriptor => *mut i32, address => u64, 4096 => usize, 1 => u32, 0 => u64);
            // SAFETY: the driver just gave it to us.
            unsafe { OwnedFd::from_raw_fd(descriptor) }
        };
        ok!(cuInit, 0 => u32);
        let own = new_context();
        let parts: Vec<u64> = (0..32).map(|_| allocate(512 * KIB).unwrap()).collect();
        assert_eq!(used(), 16 * MIB, "two pieces");
        let buffers = [hold(parts[0]), hold(parts[31])];
        for part in parts {
            ok!(cuMemFree_v2, part => u64);
        }
        assert_eq!(used(), 16 * MIB, "both are held, and one is kept");
        drop(buffers);
        assert_eq!(used(), 16 * MIB, "nobody has called");
        let part = allocate(4096).unwrap();
        assert_eq!(used(), 8 * MIB, "the piece that was kept is used again");
        let buffer = hold(part);
        ok!(cuCtxDestroy_v2, own => u64);
        assert_eq!(used(), 8 * MIB, "it is held without its context");
        drop(buffer);
        let last = new_context();
        assert_eq!(used(), 0);
        ok!(cuCtxDestroy_v2, last => u64);
    });
}

/// The 64 bytes that C passes by value.
#[repr(C)]
#[derive(Clone, Copy)]
struct Handle([u64; 8]);

/// A part of a piece in another process, and another part in the same place afterwards.
#[test]
fn parts_of_a_piece_are_shared_by_handle() {
    const NAME: &str = "parts_of_a_piece_are_shared_by_handle";
    const SPEC: &str = "1x256MiB,context=0MiB,packing=3MiB:32MiB:all";
    let Some(role) = role() else {
        let folder = tempfile::tempdir().unwrap();
        let mut owner = Other::start(NAME, SPEC, folder.path(), "owner");
        let first = owner.hear();
        let mut guest = Other::start(NAME, SPEC, folder.path(), &first);
        assert_eq!(guest.hear(), format!("7 {}", 3 * MIB));
        owner.tell("again");
        let second = owner.hear();
        guest.tell(&second);
        assert_eq!(guest.hear(), format!("9 {MIB}"));
        owner.end();
        guest.end();
        return;
    };
    context();
    let byte_at = |address: u64| {
        let mut byte = 0_u8;
        ok!(cuMemcpyDtoH_v2, &raw mut byte => *mut u8, address => u64, 1 => usize);
        byte
    };
    if role == "owner" {
        let lend = |size: u64, byte: u8| {
            let (address, mut handle) = (allocate(size).unwrap(), Handle([0; 8]));
            ok!(cuMemsetD8_v2, address => u64, byte => u8, size as usize => usize);
            ok!(cuIpcGetMemHandle, &raw mut handle => *mut Handle, address => u64);
            let words = handle.0.map(|word| word.to_string());
            (address, words.join(" "))
        };
        allocate(MIB).unwrap();
        let (first, text) = lend(3 * MIB, 7);
        say(&text);
        ok!(cuMemFree_v2, first => u64);
        let (second, text) = lend(MIB, 9);
        assert_eq!((second, used()), (first, 32 * MIB), "one piece");
        say(&text);
        return;
    }
    let mut given = role;
    for _ in 0..2 {
        let mut words = given.split(' ').map(|word| word.parse().unwrap());
        let handle = Handle(std::array::from_fn(|_| words.next().unwrap()));
        let (mut address, mut start, mut size) = (0_u64, 0_u64, 0_usize);
        ok!(cuIpcOpenMemHandle_v2, &raw mut address => *mut u64, handle => Handle, 1 => u32);
        ok!(cuMemGetAddressRange_v2, &raw mut start => *mut u64, &raw mut size => *mut usize, address + 1 => u64);
        assert_eq!(start, address);
        let last = byte_at(address + size as u64 - 1);
        given = say(&format!("{last} {size}"));
        ok!(cuIpcCloseMemHandle, address => u64);
    }
}
