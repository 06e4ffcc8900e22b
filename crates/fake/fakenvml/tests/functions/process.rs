//! Processes of the machine as the library tells them: a copy of this test holds memory
//! and works, and is killed.

use std::process::Command;

use nvml_wrapper::Nvml;
use nvml_wrapper::enums::device::UsedGpuMemory;
use sublet_driver_api::Zeroed;
use sublet_driver_api::nvml::{
    NVML_ERROR_INSUFFICIENT_SIZE, NVML_ERROR_INVALID_ARGUMENT, NVML_ERROR_NOT_FOUND, NVML_SUCCESS,
    nvmlDevice_t, nvmlProcessDetail_v1_t, nvmlProcessDetailList_v1, nvmlProcessDetailList_v1_t,
    nvmlProcessInfo_v1_t, nvmlProcessUtilizationInfo_v1_t, nvmlProcessUtilizationSample_t,
    nvmlProcessesUtilizationInfo_v1, nvmlProcessesUtilizationInfo_v1_t, nvmlReturn_t,
    nvmlUtilization_t,
};
use sublet_fakegpu::machine::now;

use super::raw::Library;
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
    let library = Library::load();
    assert_eq!(library.call("nvmlInit_v2"), NVML_SUCCESS);
    let card = library.card(1);

    type List = extern "C" fn(nvmlDevice_t, *mut u32, *mut nvmlProcessInfo_v1_t) -> nvmlReturn_t;
    let list: List = library.function("nvmlDeviceGetComputeRunningProcesses");
    let mut count = 0;
    let code = test_machine::wait_for("process", || {
        count = 0;
        let code = list(card, &raw mut count, std::ptr::null_mut());
        (count > 0).then_some(code)
    });
    assert_eq!((code, count), (NVML_ERROR_INSUFFICIENT_SIZE, 1));
    assert_eq!(
        list(card, &raw mut count, std::ptr::null_mut()),
        NVML_ERROR_INVALID_ARGUMENT
    );
    let mut infos = [nvmlProcessInfo_v1_t {
        pid: 7,
        usedGpuMemory: 7,
    }; 3];
    count = 3;
    assert_eq!(list(card, &raw mut count, infos.as_mut_ptr()), NVML_SUCCESS);
    assert_eq!((count, infos[0].pid, infos[1].pid), (1, pid, 7));

    let mut details = [nvmlProcessDetail_v1_t::ZERO; 2];
    let mut asked = nvmlProcessDetailList_v1_t {
        version: nvmlProcessDetailList_v1,
        ..Zeroed::ZERO
    };
    type Details = extern "C" fn(nvmlDevice_t, *mut nvmlProcessDetailList_v1_t) -> nvmlReturn_t;
    let detail: Details = library.function("nvmlDeviceGetRunningProcessDetailList");
    assert_eq!(detail(card, &raw mut asked), NVML_ERROR_INSUFFICIENT_SIZE);
    assert_eq!(asked.numProcArrayEntries, 1);
    asked.procArray = details.as_mut_ptr();
    assert_eq!(detail(card, &raw mut asked), NVML_SUCCESS);
    assert_eq!((details[0].pid, details[0].gpuInstanceId), (pid, u32::MAX));
    assert_eq!(details[0].usedGpuMemory, HELD);
    works(&library, card, pid);
}

/// The holder's share of the card's time is told in both ways.
fn works(library: &Library, card: nvmlDevice_t, pid: u32) {
    type Samples = extern "C" fn(
        nvmlDevice_t,
        *mut nvmlProcessUtilizationSample_t,
        *mut u32,
        u64,
    ) -> nvmlReturn_t;
    type Infos =
        extern "C" fn(nvmlDevice_t, *mut nvmlProcessesUtilizationInfo_v1_t) -> nvmlReturn_t;
    let samples: Samples = library.function("nvmlDeviceGetProcessUtilization");
    let infos: Infos = library.function("nvmlDeviceGetProcessesUtilizationInfo");
    let (mut one, mut count) = ([nvmlProcessUtilizationSample_t::ZERO; 4], 4);
    let mut other = [nvmlProcessUtilizationInfo_v1_t::ZERO; 4];
    let mut asked = nvmlProcessesUtilizationInfo_v1_t {
        version: nvmlProcessesUtilizationInfo_v1,
        processSamplesCount: 4,
        lastSeenTimeStamp: 0,
        procUtilArray: other.as_mut_ptr(),
    };
    let (code, rates) = library.ask::<nvmlUtilization_t>("nvmlDeviceGetUtilizationRates", card);
    assert_eq!(code, NVML_SUCCESS);
    assert!((1..=100).contains(&rates.gpu), "{} %", rates.gpu);
    assert_eq!(
        samples(card, one.as_mut_ptr(), &raw mut count, 0),
        NVML_SUCCESS
    );
    assert_eq!((count, one[0].pid), (1, pid));
    assert!((1..=100).contains(&one[0].smUtil), "{} %", one[0].smUtil);
    assert_eq!(infos(card, &raw mut asked), NVML_SUCCESS);
    assert_eq!((asked.processSamplesCount, other[0].pid), (1, pid));
    // Nothing is newer than the future.
    assert_eq!(
        samples(card, one.as_mut_ptr(), &raw mut count, u64::MAX),
        NVML_ERROR_NOT_FOUND
    );
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
