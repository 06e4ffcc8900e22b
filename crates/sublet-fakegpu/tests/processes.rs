//! Several processes on one machine: they share its time and its memory, and nothing of a
//! process outlives it.
#![expect(unsafe_code, reason = "calls the driver as C does")]

mod inside;

use std::io::{BufReader, Write as _};
use std::time::{Duration, Instant};

use inside::{context, elapsed, event, hear, kernel, memory, role, spin, start, stream};
use sublet_fakegpu::Machine;
use sublet_fakegpu::machine::QUANTUM;

const MIB: usize = 1 << 20;

fn machine() -> Machine {
    let spec = std::env::var("SUBLET_FAKE_GPU").unwrap();
    Machine::from_text(&spec).unwrap()
}

fn open(spec: &str, root: &std::path::Path) -> Machine {
    let spec = sublet_fakegpu::Spec::parse(spec).unwrap();
    Machine::open_or_create_in(root, &spec).unwrap()
}

/// Tells the parent something, and waits for its answer.
fn say(word: &str) {
    println!("said {word}");
    std::io::stdout().flush().unwrap();
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
}

#[test]
fn a_killed_process_leaves_nothing() {
    const NAME: &str = "a_killed_process_leaves_nothing";
    const SPEC: &str = "1x1GiB,context=24MiB";
    if role().is_some() {
        context();
        let mut address = 0_u64;
        ok!(cuMemAlloc_v2, &raw mut address => *mut u64, 900 * MIB => usize);
        spin(kernel("spin"), stream(), 60_000_000);
        say(&memory().0.to_string());
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let mut first = start(NAME, SPEC, folder.path(), "x");
    let mut voice = BufReader::new(first.stdout.take().unwrap());
    assert_eq!(hear(&mut voice, "said "), (98 * MIB).to_string());
    let machine = open(SPEC, folder.path());
    let [process] = machine.processes().unwrap()[..] else {
        panic!("one process");
    };
    assert_eq!((process.pid, process.n_contexts), (first.id(), 1));
    assert_eq!(
        (process.bytes, process.context_bytes),
        (926 << 20, 24 << 20)
    );
    assert_eq!(machine.usage(0).unwrap().free, 98 << 20);
    let deadline = Instant::now() + Duration::from_secs(20);
    while machine.busy(0) < 50_000_000 || machine.processes().unwrap()[0].busy < 50_000_000 {
        assert!(Instant::now() < deadline, "it does not get the card");
        std::thread::yield_now();
    }
    first.kill().unwrap();
    first.wait().unwrap();
    assert_eq!(machine.usage(0).unwrap().free, 1 << 30, "free at once");
    assert!(machine.processes().unwrap().is_empty());
    // The next one takes its memory and its place without anybody sweeping.
    let mut second = start(NAME, SPEC, folder.path(), "x");
    let mut voice = BufReader::new(second.stdout.take().unwrap());
    assert_eq!(hear(&mut voice, "said "), (98 * MIB).to_string());
    assert_eq!(machine.processes().unwrap()[0].slot, process.slot);
    assert_eq!(
        machine.processes().unwrap()[0].generation,
        process.generation + 1
    );
    second.kill().unwrap();
    second.wait().unwrap();
    assert_eq!((machine.sweep().unwrap(), machine.sweep().unwrap()), (1, 0));
}

#[test]
fn kernels_of_two_processes_alternate_and_never_overlap() {
    const NAME: &str = "kernels_of_two_processes_alternate_and_never_overlap";
    const SPEC: &str = "1x1GiB";
    if let Some(micros) = role() {
        let micros: u64 = micros.parse().unwrap();
        context();
        let (spinner, stream, first, last) = (kernel("spin"), stream(), event(), event());
        say("ready");
        ok!(cuEventRecord, first => u64, stream => u64);
        for _ in 0..300_000 / micros {
            spin(spinner, stream, micros);
        }
        ok!(cuEventRecord, last => u64, stream => u64);
        ok!(cuStreamSynchronize, stream => u64);
        say(&elapsed(first, last).to_string());
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    // One with few long kernels, one with many short ones.
    let mut processes = ["30000", "100"].map(|micros| start(NAME, SPEC, folder.path(), micros));
    let mut voices: Vec<_> = processes
        .iter_mut()
        .map(|process| BufReader::new(process.stdout.take().unwrap()))
        .collect();
    for voice in &mut voices {
        assert_eq!(hear(voice, "said "), "ready");
    }
    for process in &mut processes {
        process.stdin.as_mut().unwrap().write_all(b"go\n").unwrap();
    }
    let times: Vec<f32> = voices
        .iter_mut()
        .map(|voice| hear(voice, "said ").parse().unwrap())
        .collect();
    let machine = open(SPEC, folder.path());
    let mut slices = machine.slices(0);
    slices.sort_by_key(|(_, slice)| slice.start);
    assert!(slices.len() > 100);
    let mut total = 0;
    for (_, slice) in &slices {
        assert!(slice.start < slice.end && slice.end - slice.start <= QUANTUM);
        total += slice.end - slice.start;
    }
    for pair in slices.windows(2) {
        assert!(pair[0].1.end <= pair[1].1.start, "{pair:?} overlap");
    }
    let total = Duration::from_nanos(total);
    assert!(total >= Duration::from_millis(600), "{total:?}");
    // They took turns: whoever has long kernels does not keep the other one out.
    let turns = slices
        .windows(2)
        .filter(|pair| pair[0].0 != pair[1].0)
        .count();
    assert!(turns > 50, "{turns} turns in {} slices", slices.len());
    // Each had 300 ms of work, and events count the other's slices.
    assert!(times[0].max(times[1]) > 450.0, "{times:?}");
    for mut process in processes {
        process.stdin.take().unwrap().write_all(b"end\n").unwrap();
        assert!(process.wait().unwrap().success());
    }
}

#[test]
fn memory_is_shared_by_handle_and_by_descriptor() {
    const NAME: &str = "memory_is_shared_by_handle_and_by_descriptor";
    const SPEC: &str = "1x1GiB,context=24MiB";
    let Some(role) = role() else {
        let folder = tempfile::tempdir().unwrap();
        let mut owner = start(NAME, SPEC, folder.path(), "owner");
        let mut voice = BufReader::new(owner.stdout.take().unwrap());
        let handle = hear(&mut voice, "said ");
        let mut guest = start(NAME, SPEC, folder.path(), &handle);
        let mut guest_voice = BufReader::new(guest.stdout.take().unwrap());
        assert_eq!(hear(&mut guest_voice, "said "), "77 950");
        owner.stdin.as_mut().unwrap().write_all(b"look\n").unwrap();
        assert_eq!(hear(&mut voice, "said "), "78");
        for mut process in [owner, guest] {
            process.stdin.take().unwrap().write_all(b"end\n").unwrap();
            assert!(process.wait().unwrap().success());
        }
        return;
    };
    context();
    let mut address = 0_u64;
    let mut handle = [0_u8; 64];
    if role == "owner" {
        ok!(cuMemAlloc_v2, &raw mut address => *mut u64, 1000 => usize);
        ok!(cuMemsetD8_v2, address => u64, 77 => u8, 1000 => usize);
        ok!(cuIpcGetMemHandle, handle.as_mut_ptr() => *mut u8, address + 10 => u64);
        let text: String = handle.iter().map(|byte| format!("{byte:02x}")).collect();
        say(&text);
        let mut byte = 0_u8;
        ok!(cuMemcpyDtoH_v2, &raw mut byte => *mut u8, address => u64, 1 => usize);
        say(&byte.to_string());
    } else {
        for (place, byte) in handle.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&role[place * 2..place * 2 + 2], 16).unwrap();
        }
        #[repr(C)]
        #[derive(Clone, Copy)]
        struct Handle([u8; 64]);
        let handle = Handle(handle);
        assert_eq!(
            cu!(cuIpcOpenMemHandle_v2, &raw mut address => *mut u64, Handle([7; 64]) => Handle, 1 => u32),
            1
        );
        ok!(cuIpcOpenMemHandle_v2, &raw mut address => *mut u64, handle => Handle, 1 => u32);
        let mut byte = 0_u8;
        ok!(cuMemcpyDtoH_v2, &raw mut byte => *mut u8, address + 999 => u64, 1 => usize);
        ok!(cuMemsetD8_v2, address => u64, 78 => u8, 1 => usize);
        let (free, _) = memory();
        say(&format!("{byte} {}", free / MIB - 24));
        ok!(cuIpcCloseMemHandle, address => u64);
        assert_eq!(cu!(cuIpcCloseMemHandle, address => u64), 1);
    }
}

#[test]
fn nothing_works_in_a_forked_child() {
    const NAME: &str = "nothing_works_in_a_forked_child";
    inside::with_machine(NAME, "1x1GiB,context=24MiB", || {
        context();
        // SAFETY: the child only calls functions that take no lock there, and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let mut count = 0_i32;
            let codes = [
                cu!(cuInit, 0 => u32),
                cu!(cuDeviceGetCount, &raw mut count => *mut i32),
                cu!(cuCtxSynchronize),
            ];
            let code = i32::from(codes != [3, 3, 3]);
            // SAFETY: ends the child without the test runner's destructors.
            unsafe { libc::_exit(code) };
        }
        let mut status = 0;
        // SAFETY: waits for the child just made.
        unsafe { libc::waitpid(child, &raw mut status, 0) };
        assert_eq!(status, 0);
        // The parent has everything still.
        assert_eq!(memory().0, 1000 * MIB);
        assert_eq!(machine().processes().unwrap().len(), 1);
    });
}

#[test]
fn a_hundred_processes_find_a_place_and_the_last_byte_is_given_once() {
    const NAME: &str = "a_hundred_processes_find_a_place_and_the_last_byte_is_given_once";
    const SPEC: &str = "1x400MiB,context=1MiB";
    if role().is_some() {
        context();
        say("ready");
        // Everybody grabs blocks until there are none.
        let mut n_blocks = 0;
        let mut address = 0_u64;
        while n_blocks < 4
            && cu!(cuMemAlloc_v2, &raw mut address => *mut u64, 2 * MIB => usize) == 0
        {
            n_blocks += 1;
        }
        say(&n_blocks.to_string());
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let mut processes: Vec<_> = (0..100)
        .map(|_| start(NAME, SPEC, folder.path(), "x"))
        .collect();
    let mut voices: Vec<_> = processes
        .iter_mut()
        .map(|process| BufReader::new(process.stdout.take().unwrap()))
        .collect();
    for voice in &mut voices {
        assert_eq!(hear(voice, "said "), "ready");
    }
    for process in &mut processes {
        process.stdin.as_mut().unwrap().write_all(b"go\n").unwrap();
    }
    let counts = voices.iter_mut().map(|voice| hear(voice, "said "));
    let sum: u64 = counts.map(|count| count.parse::<u64>().unwrap()).sum();
    let machine = open(SPEC, folder.path());
    let usage = machine.usage(0).unwrap();
    assert_eq!(machine.processes().unwrap().len(), 100);
    assert_eq!(usage.used, (100 << 20) + sum * (2 << 20));
    assert_eq!(sum, 150);
    for mut process in processes {
        process.kill().unwrap();
        process.wait().unwrap();
    }
    assert_eq!(machine.usage(0).unwrap().used, 0);
}
