//! Row 7: containers. A process has one number inside and another outside; the driver tells now
//! the one and now the other, and two containers have the same numbers.

use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::process::{Signal, kill_process};
use serde_json::{Value, json};
use sublet_driver_api::NVML;
use sublet_e2e::one_machine::{Calls, Machine, Running, mib, number, pid_of, until};

use crate::known_failures::new_drivers::{OWN_OF_NVML, all_but, driver};
use crate::known_failures::{EXACT, START, TWO};

/// A PID namespace of its own, with its own `/proc`, as a container has.
const CONTAINER: [&str; 5] = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"];

/// False, and a line that says why, where this user can make no namespace.
fn has_namespaces() -> bool {
    let made = Command::new(CONTAINER[0])
        .args(&CONTAINER[1..])
        .arg("true")
        .output();
    let is_made = made.is_ok_and(|output| output.status.success());
    if !is_made {
        println!("skipped: this user can make no PID namespace (it takes root)");
    }
    is_made
}

/// A job whose first process is number 1 of its own namespace.
fn container(machine: &Machine, flags: &str) -> Result<Calls> {
    let mut run = machine.run(flags);
    let mut calls = Calls::start(run.args(CONTAINER).arg(machine.caller()?))?;
    assert_eq!(calls.call("getpid")?, "1");
    calls.play(START)?;
    calls.play(
        "
        nvmlInit_v2
        nvmlDeviceGetHandleByIndex_v2 0 &device
        ",
    )?;
    Ok(calls)
}

/// The list of computing processes as a program in the job gets it: number and bytes.
fn listed(calls: &mut Calls) -> Result<Vec<(u64, u64)>> {
    calls.play(
        "
        set list struct:1024
        set count 32
        nvmlDeviceGetComputeRunningProcesses_v3 device &count list
        ",
    )?;
    let count = calls.number("print count")?;
    let mut rows = Vec::new();
    for row in 0..count {
        let at = row * 24;
        let pid = calls.number(&format!("word list {at}"))?;
        let bytes = calls.number(&format!("long list {}", at + 8))?;
        rows.push((pid, bytes));
    }
    Ok(rows)
}

/// The job's row, whose memory must be this, at every look for as long as several readings take.
fn stays(machine: &Machine, name: &str, used: u64) -> Result<Value> {
    let begin = Instant::now();
    loop {
        let row = machine.tenant(name)?;
        ensure!(row["usedMiB"] == used, "not {used} MiB: {row}");
        ensure!(row["state"] == "running", "{row}");
        if begin.elapsed() > Duration::from_millis(1500) {
            return Ok(row);
        }
    }
}

/// The memory of a process in a container was counted twice, under its two numbers, or under
/// somebody else's, and a card seemed full that was not (HAMi-core#54, HAMi-core#112).
#[test]
fn row_07_a_container_sees_its_own_number_and_is_charged_once() -> Result<()> {
    let Some(machine) = Machine::new(EXACT)? else {
        return Ok(());
    };
    if !has_namespaces() {
        return Ok(());
    }
    let mut calls = container(&machine, "--memory 2GiB --name job")?;
    calls.play("cuMemAlloc_v2 &a 512M")?;
    assert_eq!(listed(&mut calls)?, [(1, mib(512))]);
    let row = stays(&machine, "job", 512)?;
    let pids = row["pids"].as_array().context("no pids")?;
    assert!(pids.len() == 1 && pids[0] != 1, "{row}");
    let top = machine.top()?;
    assert_eq!(top["jobs"].as_array().map(Vec::len), Some(1), "{top}");
    // All of the limit is there, and no more.
    calls.play(
        "
        cuMemAlloc_v2 &b 1536M
        cuMemAlloc_v2 &c 2M -> 2
        cuMemFree_v2 a
        cuMemAlloc_v2 &c 512M
        ",
    )?;
    assert_eq!(listed(&mut calls)?, [(1, mib(2048))]);
    calls.end()
}

/// Two containers; in each of them the program is number 1.
#[test]
fn row_07_containers_with_equal_numbers_are_told_apart() -> Result<()> {
    let Some(machine) = Machine::new(EXACT)? else {
        return Ok(());
    };
    if !has_namespaces() {
        return Ok(());
    }
    let mut first = container(&machine, "--memory 1GiB --name first")?;
    let mut second = container(&machine, "--memory 2GiB --name second")?;
    first.play("cuMemAlloc_v2 &a 300M")?;
    second.play("cuMemAlloc_v2 &a 500M")?;
    assert_eq!(listed(&mut first)?, [(1, mib(300))]);
    assert_eq!(listed(&mut second)?, [(1, mib(500))]);
    stays(&machine, "first", 300)?;
    let row = stays(&machine, "second", 500)?;
    // The end of one is not the end of the other.
    kill_process(pid_of(&row["pids"][0])?, Signal::KILL)?;
    until("the second to be gone", || {
        let top = machine.top()?;
        ensure!(top["jobs"].as_array().map(Vec::len) == Some(1), "{top}");
        ensure!(machine.card(0)?.used == mib(300), "{top}");
        Ok(())
    })?;
    stays(&machine, "first", 300)?;
    assert_eq!(listed(&mut first)?, [(1, mib(300))]);
    first.play("cuMemAlloc_v2 &b 724M\ncuMemAlloc_v2 &c 2M -> 2")?;
    first.end()
}

/// Two namespaces in one job share its limit. A program looks for itself in the list by its own
/// number, and must not find a program of the other namespace with the same number.
#[test]
fn row_07_equal_numbers_in_one_job_are_told_apart() -> Result<()> {
    let Some(machine) = Machine::new(EXACT)? else {
        return Ok(());
    };
    if !has_namespaces() {
        return Ok(());
    }
    let container = CONTAINER.join(" ");
    let workload = machine.built("sublet-workload").display().to_string();
    let script = format!(
        "{container} {workload} alloc --size 300MiB --hold 600 & read line; \
         {workload} info --nvml; exec {container} {}",
        machine.caller()?
    );
    let mut run = machine.run("--memory 1GiB --name job");
    let mut calls = Calls::start(run.args(["sh", "-c", &script]))?;
    let other: Value = serde_json::from_str(&calls.answer()?)?;
    assert_eq!((&other["pid"], &other["ok"]), (&json!(1), &json!(true)));
    let row = machine.tenant("job")?;
    let other = pid_of(&row["pids"][0])?;
    calls.tell("")?;
    // From outside it has the machine's number, as the driver itself would say.
    let outside: Value = serde_json::from_str(&calls.answer()?)?;
    let expected = json!([{"pid": other.as_raw_nonzero().get(), "used": mib(300)}]);
    assert_eq!(
        outside["nvml"]["devices"][0]["processes"], expected,
        "{outside}"
    );
    assert_eq!(calls.call("getpid")?, "1");
    calls.play(START)?;
    calls.play(
        "
        nvmlInit_v2
        nvmlDeviceGetHandleByIndex_v2 0 &device
        cuMemAlloc_v2 &a 200M
        ",
    )?;
    let own: Vec<_> = listed(&mut calls)?;
    let own: Vec<_> = own.into_iter().filter(|(pid, _)| *pid == 1).collect();
    assert_eq!(own, [(1, mib(200))]);
    stays(&machine, "job", 500)?;
    calls.play("cuMemAlloc_v2 &b 524M\ncuMemAlloc_v2 &c 2M -> 2")?;
    kill_process(other, Signal::KILL)?;
    until("its memory to be back", || {
        let row = machine.tenant("job")?;
        ensure!(row["usedMiB"] == 724, "{row}");
        Ok(())
    })?;
    calls.play("cuMemAlloc_v2 &c 300M\ncuMemAlloc_v2 &d 2M -> 2")?;
    calls.end()
}

/// R560 lists processes by their numbers in the container and their utilisation by those of the
/// machine (HAMi-core#112). Number 1 of the machine is in that list too, and is not the program
/// that is number 1 here.
#[test]
fn row_07_utilisation_in_the_machine_s_numbers_is_read_as_such() -> Result<()> {
    let Some(machine) = Machine::new(EXACT)? else {
        return Ok(());
    };
    if !has_namespaces() {
        return Ok(());
    }
    let told = machine.path().join("number");
    fs::write(&told, "0")?;
    let functions = all_but(&NVML, &[&OWN_OF_NVML, &["nvmlDeviceGetProcessUtilization"]]);
    let number_of = format!("-DNUMBER=\"{}\"", told.display());
    let nvml = driver(&machine, "numbers.so", &functions, &[&number_of])?;
    let nvml = format!("SUBLET_DRIVER_NVML={}", nvml.display());
    let mut run = machine.run_told("--memory 1GiB --name job", &nvml);
    let mut calls = Calls::start(run.args(CONTAINER).arg(machine.caller()?))?;
    calls.play(START)?;
    calls.play("cuMemAlloc_v2 &a 2M\nnvmlInit_v2\nnvmlDeviceGetHandleByIndex_v2 0 &device")?;
    let outside = machine.tenant("job")?["pids"][0].clone();
    fs::write(&told, number(&outside)?.to_string())?;
    calls.play(
        "
        set samples struct:320
        set count 10
        nvmlDeviceGetProcessUtilization device samples &count 0
        print count -> 1
        word samples 0 -> 1
        # 90 is what the machine's number 1 uses.
        word samples 16 -> 40
        ",
    )?;
    calls.end()
}

/// The first card of a program need not be the job's first: then a probe looked for the program
/// on the wrong card, never found it, and put its memory on another's account, which was full
/// before its time (HAMi-core#225).
#[test]
fn row_07_a_program_that_takes_the_second_card_first_has_all_of_it() -> Result<()> {
    let Some(machine) = Machine::new(TWO)? else {
        return Ok(());
    };
    for (choice, card) in [("1", 1), ("1,0", 1), ("0", 0), ("0,1", 0)] {
        let mut run = machine.run("--memory 256MiB --gpus 2 --name job");
        run.args(["env", &format!("CUDA_VISIBLE_DEVICES={choice}")]);
        run.arg(machine.built("sublet-workload"));
        run.args("alloc --until-oom --hold stdin".split(' '));
        let mut job = Running::start(&mut run)?;
        let report = job.report()?;
        assert_eq!(report["bytes"], mib(256), "{choice}: {report}");
        let row = stays(&machine, "job", 256)?;
        for index in 0..2 {
            let expected = if index == card { 256 } else { 0 };
            assert_eq!(row["perGpu"][index]["usedMiB"], expected, "{choice}: {row}");
            assert_eq!(machine.card(index)?.used, mib(expected), "{choice}");
        }
        job.end()?;
    }
    Ok(())
}
