//! Code takes memory that no call reports. A job that is over its limit loads no more: it never has
//! more than one module beyond, however fast it loads and by however many processes.

use std::time::Duration;

use anyhow::{Result, ensure};
use sublet_e2e::one_machine::{Calls, Machine, mib};

use super::EXACT;
use crate::known_failures::START;

/// A module with a variable of 300 MiB.
const IMAGE: &str = "\
.version 7.0
.target sm_70
.address_size 64
.visible .global .align 4 .b8 table[314572800];
.visible .entry nothing() { ret; }
";

/// Memory that it takes, in whole blocks: the variable, and the code.
const MODULE: u64 = mib(302);

const LIMIT: u64 = mib(2048);

/// The call that loads it.
fn load(machine: &Machine) -> Result<String> {
    let image = machine.script("module.ptx", IMAGE)?;
    Ok(format!("cuModuleLoadData &m file:{}", image.display()))
}

/// Loads until it is refused. Returns how often it was not, and checks the card after each.
fn load_all(machine: &Machine, calls: &mut Calls, pause: Duration) -> Result<u64> {
    let load = load(machine)?;
    for n in 0..40 {
        let answer = calls.call(&load)?;
        let used = machine.card(0)?.used;
        ensure!(used <= LIMIT + MODULE, "{n} loads, {pause:?}: {used}");
        if answer == "2" {
            return Ok(n);
        }
        ensure!(answer == "0", "{answer}");
        std::thread::sleep(pause);
    }
    anyhow::bail!("40 modules were loaded")
}

#[test]
fn at_any_speed_a_job_has_one_module_beyond_its_limit_at_most() -> Result<()> {
    for pause in [Duration::ZERO, Duration::from_millis(500)] {
        let Some(machine) = Machine::new(EXACT)? else {
            return Ok(());
        };
        let mut calls = machine.calls("--memory 2GiB --name job")?;
        calls.play(START)?;
        let loaded = load_all(&machine, &mut calls, pause)?;
        ensure!(loaded == 7, "{pause:?}: {loaded}");
        // What it has is charged to it and to nobody else: the rest is there for others.
        let row = machine.tenant("job")?;
        let used = machine.card(0)?.used;
        assert_eq!(row["usedMiB"], used >> 20, "{row}");
        let other = machine.report("--memory 8GiB", "alloc --until-oom")?;
        assert_eq!(other["bytes"], mib(8192), "{other}");
        // Every way to take memory is closed, and what it gives back it may take again.
        calls.play("cuMemAlloc_v2 &a 2M -> 2")?;
        calls.play("cuModuleUnload m\ncuMemAlloc_v2 &a 200M\ncuMemFree_v2 a")?;
        calls.play(&load(&machine)?)?;
        calls.end()?;
    }
    Ok(())
}

/// Code that is in no context by itself takes memory when a context first uses it: by a question, or
/// by a launch of its kernel.
#[test]
fn a_library_is_charged_when_it_is_first_used() -> Result<()> {
    let Some(machine) = Machine::new(EXACT)? else {
        return Ok(());
    };
    let image = machine.script("module.ptx", IMAGE)?;
    let mut calls = machine.calls("--memory 500MiB --name job")?;
    calls.play(START)?;
    for name in ["a", "b", "c"] {
        let file = image.display();
        calls.play(&format!(
            "cuLibraryLoadData &{name} file:{file} null null 0 null null 0"
        ))?;
    }
    assert_eq!(machine.card(0)?.used, 0);
    calls.play("cuLibraryGetKernel &k a \"nothing\ncuKernelGetFunction &f k")?;
    assert_eq!(machine.card(0)?.used, MODULE);
    assert_eq!(machine.tenant("job")?["usedMiB"], MODULE >> 20);
    calls.play(
        "
        cuLibraryGetKernel &k b \"nothing
        cuLaunchKernel k 1 1 1 1 1 1 0 null null null
        cuLibraryGetModule &m c -> 2
        ",
    )?;
    // The code of the second has room in the block of the first.
    let both = MODULE + mib(300);
    assert_eq!(machine.card(0)?.used, both);
    assert_eq!(machine.tenant("job")?["usedMiB"], both >> 20);
    // What it gives back it may load again.
    calls.play("cuLibraryUnload b\ncuLibraryGetModule &m c")?;
    calls.end()
}

/// As fast as they can, without a look at the card in between.
#[test]
fn processes_that_load_at_the_same_time_have_one_module_beyond_together() -> Result<()> {
    const PROCESSES: usize = 4;
    let Some(machine) = Machine::new(EXACT)? else {
        return Ok(());
    };
    let mut calls = machine.calls("--memory 2GiB --name job")?;
    for n in 0..PROCESSES {
        calls.play_in(n, START)?;
    }
    let load = load(&machine)?;
    for round in 0..6 {
        for n in 0..PROCESSES {
            calls.call(&format!("to {n} {load}"))?;
        }
        for n in 0..PROCESSES {
            let answer = calls.call(&format!("from {n}"))?;
            ensure!(answer == "0" || answer == "2", "{answer}");
        }
        let used = machine.card(0)?.used;
        ensure!(used <= LIMIT + MODULE, "round {round}: {used}");
        ensure!(
            round == 0 || used > LIMIT - MODULE,
            "round {round}: {used} is too little"
        );
    }
    // The last one first: each holds the inputs of those before it.
    for n in (0..PROCESSES).rev() {
        calls.call(&format!("end {n}"))?;
    }
    calls.end()
}
