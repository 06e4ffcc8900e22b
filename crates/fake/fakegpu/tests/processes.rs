//! Several processes on one machine: they share its time and its memory, and nothing of a
//! process outlives it.
#![expect(unsafe_code, reason = "calls the driver as C does")]

mod own_process;

use std::time::{Duration, Instant};

use own_process::{Other, context, elapsed, event, kernel, memory, role, say, spin, stream};
use sublet_fakegpu::FakeMachine;

const MIB: usize = 1 << 20;

fn machine() -> FakeMachine {
    let spec = std::env::var("SUBLET_FAKE_GPU").unwrap();
    FakeMachine::from_text(&spec).unwrap()
}

fn open(spec: &str, root: &std::path::Path) -> FakeMachine {
    let spec = sublet_fakegpu::Spec::parse(spec).unwrap();
    FakeMachine::open_or_create_in(root, &spec).unwrap()
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
    let mut first = Other::start(NAME, SPEC, folder.path(), "x");
    assert_eq!(first.hear(), (98 * MIB).to_string());
    let machine = open(SPEC, folder.path());
    let [process] = machine.processes().unwrap()[..] else {
        panic!("one process");
    };
    assert_eq!((process.pid, process.n_contexts), (first.pid(), 1));
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
    first.kill();
    assert_eq!(machine.usage(0).unwrap().free, 1 << 30, "free at once");
    assert!(machine.processes().unwrap().is_empty());
    // The next one takes its memory and its place without anybody sweeping.
    let mut second = Other::start(NAME, SPEC, folder.path(), "x");
    assert_eq!(second.hear(), (98 * MIB).to_string());
    assert_eq!(machine.processes().unwrap()[0].slot, process.slot);
    assert_eq!(
        machine.processes().unwrap()[0].generation,
        process.generation + 1
    );
    second.kill();
    assert_eq!((machine.sweep().unwrap(), machine.sweep().unwrap()), (1, 0));
}

#[test]
fn kernels_of_two_processes_alternate_and_never_overlap() {
    const NAME: &str = "kernels_of_two_processes_alternate_and_never_overlap";
    const SPEC: &str = "1x1GiB,slice=1ms,switch=50us";
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
    let start = |micros| Other::start(NAME, SPEC, folder.path(), micros);
    let mut processes = ["30000", "100"].map(start);
    release(&mut processes);
    let times: Vec<f32> = processes
        .iter_mut()
        .map(|process| process.hear().parse().unwrap())
        .collect();
    let machine = open(SPEC, folder.path());
    let mut slices = machine.slices(0);
    slices.sort_by_key(|(_, slice)| slice.start);
    assert!(slices.len() > 100);
    let mut total = 0;
    for (_, slice) in &slices {
        assert!(slice.start < slice.end && slice.end - slice.start <= 1_000_000);
        total += slice.end - slice.start;
    }
    for pair in slices.windows(2) {
        let lost = if pair[0].0 == pair[1].0 { 0 } else { 50_000 };
        assert!(
            pair[0].1.end + lost <= pair[1].1.start,
            "{pair:?} overlap, or one cost nothing"
        );
    }
    let total = Duration::from_nanos(total);
    assert!(total >= Duration::from_millis(600), "{total:?}");
    let seen = machine.processes().unwrap();
    let places = [0, 1].map(|which: usize| {
        let found = seen.iter().find(|seen| seen.pid == processes[which].pid());
        found.unwrap().slot as u64
    });
    // They took turns: whoever has long kernels lets the other one in before they end.
    let (mut worked, mut n_within) = (0, 0);
    for pair in slices.windows(2) {
        if pair[0].0 == places[0] {
            worked += pair[0].1.end - pair[0].1.start;
            let is_within = worked % 30_000_000 != 0;
            n_within += u32::from(is_within && pair[1].0 == places[1]);
        }
    }
    assert!(n_within >= 3, "{n_within} turns within a kernel");
    // Events count the other's slices: from the first to the last of one's own.
    for (place, time) in places.into_iter().zip(times) {
        let own = || slices.iter().filter(|(slot, _)| *slot == place);
        let (first, last) = (own().next().unwrap().1, own().next_back().unwrap().1);
        let span = (last.end - first.start) as f32 / 1e6;
        assert!(
            time >= span - 0.1,
            "{time} ms by events, {span} ms by slices"
        );
        assert!(span > 300.1, "{span} ms, as if it were alone");
    }
    processes.into_iter().for_each(Other::end);
}

/// Lets processes go on together that each said that it is ready.
fn release(processes: &mut [Other]) {
    for process in &mut *processes {
        assert_eq!(process.hear(), "ready");
    }
    for process in processes {
        process.tell("go");
    }
}

#[test]
fn a_program_that_becomes_another_one_leaves_nothing() {
    use std::os::unix::process::CommandExt as _;
    const NAME: &str = "a_program_that_becomes_another_one_leaves_nothing";
    const SPEC: &str = "1x1GiB,context=24MiB";
    const LIVES: u32 = 4;
    if let Some(life) = role() {
        // What the life before this one had is free, and this one does not see it.
        context();
        assert_eq!(memory().0, 1000 * MIB, "life {life}");
        let mut address = 0_u64;
        ok!(cuMemAlloc_v2, &raw mut address => *mut u64, 900 * MIB => usize);
        // A thread of the driver is there when the program is replaced.
        let stream = stream();
        spin(kernel("spin"), stream, 1000);
        ok!(cuStreamSynchronize, stream => u64);
        spin(kernel("spin"), stream, 60_000_000);
        let [process] = machine().processes().unwrap()[..] else {
            panic!("one process");
        };
        say(&format!("{} {}", process.pid, process.generation));
        let life: u32 = life.parse().unwrap();
        if life < LIVES {
            let root = std::env::var_os("SUBLET_FAKE_ROOT").unwrap();
            let next = (life + 1).to_string();
            let mut command = own_process::again(NAME, SPEC, root.as_ref(), &next);
            let inherit = std::process::Stdio::inherit;
            panic!("{}", command.stdin(inherit()).stdout(inherit()).exec());
        }
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let mut process = Other::start(NAME, SPEC, folder.path(), "1");
    let machine = open(SPEC, folder.path());
    for generation in 1..=LIVES {
        let pid = process.pid();
        assert_eq!(
            process.hear(),
            format!("{pid} {generation}"),
            "one process and one place"
        );
        let used = machine.usage(0).unwrap().used;
        assert_eq!(used, 926 << 20, "from outside");
        assert_eq!(machine.processes().unwrap().len(), 1);
        if generation < LIVES {
            process.tell("go on");
        }
    }
    process.end();
    assert_eq!(machine.usage(0).unwrap().used, 0);
}

#[test]
fn nothing_works_in_a_forked_child() {
    const NAME: &str = "nothing_works_in_a_forked_child";
    own_process::with_machine(NAME, "1x1GiB,context=24MiB", || {
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
    let start = |_| Other::start(NAME, SPEC, folder.path(), "x");
    let mut processes: Vec<_> = (0..100).map(start).collect();
    release(&mut processes);
    let counts = processes.iter_mut().map(Other::hear);
    let sum: u64 = counts.map(|count| count.parse::<u64>().unwrap()).sum();
    let machine = open(SPEC, folder.path());
    let usage = machine.usage(0).unwrap();
    assert_eq!(machine.processes().unwrap().len(), 100);
    assert_eq!(usage.used, (100 << 20) + sum * (2 << 20));
    assert_eq!(sum, 150);
    processes.iter_mut().for_each(Other::kill);
    assert_eq!(machine.usage(0).unwrap().used, 0);
}

/// The machine's view of a container: another user namespace and another PID namespace.
const CONTAINER: [&str; 5] = [
    "--user",
    "--map-current-user",
    "--pid",
    "--fork",
    "--kill-child",
];

#[test]
fn one_spec_is_one_machine_across_pid_namespaces() {
    use std::process::{Command, Stdio};
    const NAME: &str = "one_spec_is_one_machine_across_pid_namespaces";
    const SPEC: &str = "1x1GiB,context=24MiB";
    if role().is_some() {
        context();
        let mut address = 0_u64;
        ok!(cuMemAlloc_v2, &raw mut address => *mut u64, 100 * MIB => usize);
        let pids: Vec<u32> = machine()
            .processes()
            .unwrap()
            .iter()
            .map(|seen| seen.pid)
            .collect();
        say(&format!(
            "{} {} {pids:?}",
            std::process::id(),
            memory().0 / MIB
        ));
        return;
    }
    let can = Command::new("unshare").args(CONTAINER).arg("true").output();
    if !can.is_ok_and(|output| output.status.success()) {
        eprintln!("skipped: this machine allows no PID namespace");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let mut outside = Other::start(NAME, SPEC, folder.path(), "outside");
    let pid = outside.pid();
    assert_eq!(outside.hear(), format!("{pid} 900 [{pid}]"));
    let inner = own_process::again(NAME, SPEC, folder.path(), "inside");
    let mut command = Command::new("unshare");
    command
        .args(CONTAINER)
        .arg(inner.get_program())
        .args(inner.get_args());
    for (name, value) in inner.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut within = Other::spawn(command);
    // It is number 1 to itself, sees the other's memory, and has no number for it.
    let heard = within.hear();
    assert!(
        ["1 776 [0, 1]", "1 776 [1, 0]"].contains(&heard.as_str()),
        "{heard}"
    );
    // From here each has the number that it has here.
    let machine = open(SPEC, folder.path());
    let pids: Vec<u32> = machine
        .processes()
        .unwrap()
        .iter()
        .map(|seen| seen.pid)
        .collect();
    assert_eq!(
        (pids.len(), pids.contains(&pid), pids.contains(&0)),
        (2, true, false)
    );
    within.kill();
    let deadline = Instant::now() + Duration::from_secs(20);
    while machine.processes().unwrap().len() > 1 {
        assert!(Instant::now() < deadline, "it dies with its parent");
        std::thread::yield_now();
    }
    assert_eq!(machine.usage(0).unwrap().used, 124 << 20);
    outside.end();
}
