//! Processes of the machine as the library tells them: a copy of this test holds memory
//! and works, and is killed.

use std::process::Command;

use nvml_wrapper::Nvml;
use nvml_wrapper::enums::device::UsedGpuMemory;
use sublet_fakegpu::machine::now;

use super::raw::Program;
use super::test_machine::{self, Running};

const HELD: u64 = 3 << 30;

/// Takes memory of the second card and all of its time, until it is killed or nobody is left who
/// could kill it.
fn hold() {
    let registration = test_machine::machine().take_slot().unwrap();
    let mut begin = now();
    registration.worked(1, begin.saturating_sub(500_000_000), begin);
    registration.charge(1, HELD).unwrap();
    loop {
        let mut pipe = libc::pollfd {
            fd: 0,
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: one entry, which outlives the call.
        let n_ready = unsafe { libc::poll(&raw mut pipe, 1, 10) };
        if n_ready != 0 {
            return;
        }
        let end = now();
        registration.worked(1, begin, end);
        begin = end;
    }
}

#[test]
fn a_process_is_seen_until_it_is_killed() {
    let test = "process::a_process_is_seen_until_it_is_killed";
    match test_machine::role().as_deref() {
        None => {
            test_machine::inside(test, "2x16GiB");
            return;
        }
        Some("holder") => return hold(),
        Some(_) => {}
    }
    let mut holder = Running::start(test, "holder");
    let nvml = Nvml::builder()
        .lib_path(test_machine::library().as_os_str())
        .init()
        .unwrap();
    let [first, second] = [0, 1].map(|index| nvml.device_by_index(index).unwrap());
    let running = || second.running_compute_processes().unwrap();
    let seen = test_machine::wait_for("process", || running().pop());
    assert_eq!(seen.pid, holder.0.id());
    assert!(matches!(seen.used_gpu_memory, UsedGpuMemory::Used(HELD)));
    assert_eq!(second.memory_info().unwrap().used, HELD);
    assert!(first.running_compute_processes().unwrap().is_empty());
    assert_eq!(first.memory_info().unwrap().used, 0);

    holder.kill();
    assert_eq!(running().len(), 0);
    assert_eq!(second.memory_info().unwrap().used, 0);
}

#[test]
fn every_kind_of_list_has_the_same_process() {
    let test = "process::every_kind_of_list_has_the_same_process";
    match test_machine::role().as_deref() {
        None => {
            test_machine::inside(test, "2x16GiB");
            return;
        }
        Some("holder") => return hold(),
        Some(_) => {}
    }
    let holder = Running::start(test, "holder");
    let pid = holder.0.id();
    let mut program = Program::with(|_, _| {});
    program.play("nvmlInit_v2\nnvmlDeviceGetHandleByIndex_v2 1 &card\nset count 0");
    let list = "nvmlDeviceGetComputeRunningProcesses card &count null";
    let code = test_machine::wait_for("process", || {
        let code = program.call(list);
        (program.call("print count") != "0").then_some(code)
    });
    assert_eq!(code, "7", "no room");
    program.play(&format!(
        "
        print count -> 1
        {list} -> 2
        set infos struct:48:7,0,7,0,7,0,7
        set count 3
        nvmlDeviceGetComputeRunningProcesses card &count infos
        print count -> 1
        word infos 0 -> {pid}
        word infos 16 -> 7

        set asked struct:24:0x01000018
        nvmlDeviceGetRunningProcessDetailList card asked -> 7
        word asked 8 -> 1
        set details struct:64
        set asked struct:24:0x01000018,0,1,0,$details
        nvmlDeviceGetRunningProcessDetailList card asked
        word details 0 -> {pid}
        word details 16 -> {}
        long details 8 -> {HELD}
        ",
        u32::MAX
    ));
    works(&mut program, pid);
}

/// The holder's share of the card's time is told in both ways.
fn works(program: &mut Program, pid: u32) {
    program.play(&format!(
        "
        set rates struct:8
        nvmlDeviceGetUtilizationRates card rates
        set samples struct:128
        set count 4
        nvmlDeviceGetProcessUtilization card samples &count 0
        print count -> 1
        word samples 0 -> {pid}
        set infos struct:160
        set asked struct:24:0x01000018,4,0,0,$infos
        nvmlDeviceGetProcessesUtilizationInfo card asked
        word asked 4 -> 1
        word infos 8 -> {pid}
        # Nothing is newer than the future.
        nvmlDeviceGetProcessUtilization card samples &count -1 -> 6
        "
    ));
    for share in ["word rates 0", "word samples 16"] {
        let percent = program.number(share);
        assert!((1..=100).contains(&percent), "{share}: {percent} %");
    }
}

/// The machine's view of a container: a process with PID 1 that has another PID here.
const CONTAINER: [&str; 5] = [
    "--user",
    "--map-root-user",
    "--pid",
    "--fork",
    "--kill-child",
];

#[test]
fn a_process_of_another_pid_namespace_has_its_pid_of_ours() {
    let test = "process::a_process_of_another_pid_namespace_has_its_pid_of_ours";
    match test_machine::role().as_deref() {
        None => {
            let can = Command::new("unshare").args(CONTAINER).arg("true").output();
            if !can.is_ok_and(|output| output.status.success()) {
                eprintln!("skipped: this machine allows no PID namespace");
                return;
            }
            test_machine::inside(test, "2x16GiB");
            return;
        }
        Some("holder") => return hold(),
        Some(_) => {}
    }
    let holder = test_machine::copy(test, "holder");
    let mut command = Command::new("unshare");
    command
        .args(CONTAINER)
        .arg(holder.get_program())
        .args(holder.get_args());
    // The user has another number in there, so the SPEC would be another machine.
    command
        .env("SUBLET_TEST_ROLE", "holder")
        .env(test_machine::MACHINE, test_machine::machine().folder());
    test_machine::limit(&mut command);
    let mut running = Running::spawn(command);
    let nvml = Nvml::builder()
        .lib_path(test_machine::library().as_os_str())
        .init()
        .unwrap();
    let card = nvml.device_by_index(1).unwrap();
    let processes = || card.running_compute_processes().unwrap();
    let seen = test_machine::wait_for("process", || processes().pop()).pid;
    let status = std::fs::read_to_string(format!("/proc/{seen}/status")).unwrap();
    let pids = status
        .lines()
        .find_map(|line| line.strip_prefix("NSpid:"))
        .unwrap();
    let pids: Vec<&str> = pids.split_whitespace().collect();
    assert_eq!(pids, [seen.to_string().as_str(), "1"]);
    // It dies with its parent, which is the process that we can kill.
    running.kill();
    test_machine::wait_for("end", || processes().is_empty().then_some(()));
    assert_eq!(card.memory_info().unwrap().used, 0);
}
