//! Row 2: a library stands between programs and `dlsym`. We do not, and a library that does may do
//! so beside us.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::process::{Signal, kill_process};
use sublet_e2e::one_machine::{Calls, Ended, Machine, Running, is_alive, mib};

use crate::known_failures::EXACT;

/// A neighbour's library, from the macro that says what it is.
fn neighbour(machine: &Machine, name: &str, what: &str) -> Result<PathBuf> {
    let arguments = ["-shared", "-fPIC", what, "-ldl"];
    machine.compile_as(name, "neighbour.c", &arguments)
}

fn lookups(machine: &Machine) -> Result<PathBuf> {
    machine.compile("lookups.c", &["-ldl", "-pthread"])
}

/// Number of a system call that no library stands before.
const GETPPID: u32 = 110;

fn end(command: &mut Command) -> Result<Ended> {
    let ended = Running::start(command)?.end()?;
    ensure!(ended.code == Some(0), "{ended:?}");
    Ok(ended)
}

/// A wrong `dlsym` once broke programs that had nothing to do with GPUs: cuDNN called itself until
/// its stack was full (HAMi-core#215), look-ups of the next function gave nothing (HAMi-core#279).
/// We define none, and nothing else that is libc's or a stranger's.
#[test]
fn row_02_none_of_our_libraries_defines_a_look_up() -> Result<()> {
    let Some(machine) = Machine::new(EXACT)? else {
        return Ok(());
    };
    for (library, prefix, others) in [
        (
            "libsublet_cuda.so",
            "cu",
            &["sublet_interposer", "sublet_progress"][..],
        ),
        ("libsublet_nvml.so", "nvml", &["sublet_interposer"]),
        ("libsublet_preload.so", "dlopen", &[]),
    ] {
        let mut nm = Command::new("nm");
        let nm = nm.args(["-D", "--defined-only", "-P"]);
        let ended = end(nm.arg(machine.built(library)))?;
        let names: Vec<&str> = ended
            .lines
            .iter()
            .filter_map(|line| line.split(' ').next())
            .collect();
        assert!(
            names.iter().any(|name| name.starts_with(prefix)),
            "{names:?}"
        );
        let more: Vec<_> = names
            .iter()
            .filter(|name| !name.starts_with(prefix) && !others.contains(name))
            .collect();
        assert!(more.is_empty(), "{library} defines {more:?}");
    }
    Ok(())
}

/// Profilers and other interposers have a `dlsym` of their own. It looks symbols up in its own
/// name: after itself, and so perhaps finds us once more (HAMi-core#315, HAMi#2903).
#[test]
fn row_02_a_neighbour_with_a_dlsym_of_its_own_is_welcome() -> Result<()> {
    let Some(machine) = Machine::new(EXACT)? else {
        return Ok(());
    };
    let other = neighbour(&machine, "dlsym.so", "-DWITH_DLSYM")?;
    let workload = machine.built("sublet-workload").display().to_string();
    let other = other.display();
    for preload in [
        format!("{other}:$LD_PRELOAD"),
        format!("$LD_PRELOAD:{other}"),
    ] {
        for reach in [
            "linked",
            "lookup",
            "libcuda.so",
            "preloaded",
            "/usr/lib64/libcuda.so.1",
        ] {
            let words = format!("alloc --until-oom --reach {reach}");
            let script = format!("LD_PRELOAD={preload} exec {workload} {words}");
            let mut run = machine.run("--memory 256MiB");
            let report = end(run.args(["sh", "-c", &script]))?.report()?;
            assert_eq!(report["bytes"], mib(256), "{preload} {reach}: {report}");
        }
        let script = format!("LD_PRELOAD={preload} exec {workload} info --nvml --memory");
        let mut run = machine.run("--memory 256MiB");
        let report = end(run.args(["sh", "-c", &script]))?.report()?;
        let total = &report["nvml"]["devices"][0]["memory"]["total"];
        assert_eq!(*total, mib(256), "{preload}: {report}");
    }
    Ok(())
}

/// Two preloads that each ask for the next of the same name: each is passed once a call, also
/// the second time (HAMi-core#279), and nobody is its own next (HAMi-core#315, HAMi#2903).
#[test]
fn row_02_the_next_of_a_name_is_found_each_time() -> Result<()> {
    let Some(machine) = Machine::new(EXACT)? else {
        return Ok(());
    };
    let [a, b] = ["a", "b"].map(|name| {
        let what = format!("-DWITH_NEXT={name}");
        neighbour(&machine, &format!("next-{name}.so"), &what)
    });
    let (a, b) = (a?, b?);
    let (a, b) = (a.display(), b.display());
    for preload in [
        format!("{a}:{b}:$LD_PRELOAD"),
        format!("{a}:$LD_PRELOAD:{b}"),
        format!("$LD_PRELOAD:{a}:{b}"),
    ] {
        let script = format!("LD_PRELOAD={preload} exec {}", machine.caller()?);
        let mut run = machine.run("--memory 256MiB");
        let mut calls = Calls::start(run.args(["sh", "-c", &script]))?;
        calls.play("let next dlsym 0 \"getppid")?;
        let parent = calls.call(&format!("syscall {GETPPID}"))?;
        for _ in 0..100 {
            assert_eq!(calls.call("@next")?, parent, "{preload}");
        }
        for name in ["passed_by_a", "passed_by_b"] {
            let passed = format!("let passed dlsym 0 \"{name}\nword passed 0 -> 100");
            calls.play(&passed).context(preload.clone())?;
        }
        calls.play("let tool dlsym 0 \"ompt_start_tool\n@tool 1 -> 2")?;
        calls.end()?;
    }
    Ok(())
}

/// A look-up in one library finds that library's function. The driver on WSL looks up its own
/// `cuInit` and was given the hook's (HAMi-core#326); cuDNN is many libraries that have the same
/// names, and one of them was given for all (HAMi-core#215).
#[test]
fn row_02_a_look_up_in_a_library_stays_in_it() -> Result<()> {
    let Some(machine) = Machine::new(EXACT)? else {
        return Ok(());
    };
    let fake = machine.built("libsublet_fakecuda.so");
    let first = neighbour(&machine, "cudnn-1.so", "-DWITH_NAME=1")?;
    let second = neighbour(&machine, "cudnn-2.so", "-DWITH_NAME=2")?;
    let mut calls = machine.calls("--memory 256MiB")?;
    // The loader's function that a program would call: the preloaded one.
    calls.play("let dlopen dlsym 0 \"dlopen\nlet ours @dlopen \"libcuda.so.1 2")?;
    let fake = fake.display();
    for _ in 0..3 {
        calls.play(&format!(
            "
            let driver @dlopen \"{fake} 2
            let own dlsym driver \"cuInit
            where @own -> {fake}
            let named dlsym ours \"cuInit
            let any dlsym 0 \"cuInit
            "
        ))?;
        assert_eq!(calls.call("print named")?, calls.call("print any")?);
    }
    let named = calls.call("where @named")?;
    assert!(named.ends_with("/libcuda.so.1"), "{named}");
    calls.play(&format!(
        "
        let absent dlsym ours \"cuNothing
        print absent -> 0
        let absent dlsym 0 \"cudnnCreate
        print absent -> 0
        let library @dlopen \"{} 2
        let create dlsym library \"cudnnCreate
        @create \"{} -> 21
        ",
        first.display(),
        second.display()
    ))?;
    calls.end()
}

/// Libraries that are loaded while others look up, and that start the driver as they are loaded.
/// `import torch` stood still for ever, without a GPU too (HAMi#2903).
#[test]
fn row_02_threads_that_load_and_look_up_all_end() -> Result<()> {
    let Some(machine) = Machine::new(EXACT)? else {
        return Ok(());
    };
    let lookups = lookups(&machine)?;
    let library = neighbour(&machine, "constructor.so", "-DWITH_CONSTRUCTOR")?;
    for _ in 0..5 {
        let mut run = machine.run("--memory 256MiB");
        let ended = end(run.arg(&lookups).args(["threads", "12"]).arg(&library))?;
        assert_eq!(ended.lines, ["failures 0"]);
    }
    Ok(())
}

/// The worst order: a thread begins to use the driver and waits for the arbiter, another loads a
/// library that uses the driver as well. It has the loader's lock, and waits for the first; so
/// the first must not need the loader any more (HAMi#2903).
#[test]
fn row_02_a_constructor_may_start_the_driver_while_another_thread_does() -> Result<()> {
    let Some(machine) = Machine::new(EXACT)? else {
        return Ok(());
    };
    let lookups = lookups(&machine)?;
    let library = neighbour(&machine, "constructor.so", "-DWITH_CONSTRUCTOR")?;
    let mut run = machine.run("--memory 256MiB");
    let mut job = Running::start(run.arg(&lookups).arg("constructor").arg(&library))?;
    assert_eq!(job.line()?, "ready 0");
    let arbiter = machine.arbiter()?;
    kill_process(arbiter, Signal::STOP)?;
    let told = ["init", "load"].map(|word| {
        let told = job.say(word);
        std::thread::sleep(Duration::from_millis(300));
        told
    });
    kill_process(arbiter, Signal::CONT)?;
    for told in told {
        told?;
    }
    let mut lines = vec![job.line()?, job.line()?];
    lines.sort();
    assert_eq!(lines, ["initialised 0", "loaded 0"]);
    let ended = job.end()?;
    ensure!(ended.code == Some(0), "{ended:?}");
    machine.top()?;
    ensure!(is_alive(arbiter), "the arbiter has ended");
    Ok(())
}
