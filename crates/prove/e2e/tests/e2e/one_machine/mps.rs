//! MPS by the operator's choice. There is no server of MPS behind these tests, which would need a
//! card: a stand-in for NVIDIA's control program writes down what it was told, and with `cargo
//! xtask test --all` they run with NVIDIA's own too (`long_real_drivers`). So they show what our
//! side does: what programs are told, that the daemon's end is seen and told, that it comes back,
//! and that it never stays.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context, Result, ensure};
use rustix::process::{Signal, kill_process};
use serde_json::{Value, json};
use sublet_e2e::MpsControl;
use sublet_e2e::one_machine::{Machine, Running, is_alive, pid_of, until};

const TWO: &str = "2x16GiB,context=0MiB";
const HOLD: &str = "alloc --size 64MiB --hold stdin";

/// An arbiter with MPS.
pub(crate) struct World {
    pub(crate) machine: Machine,
    arbiter: Running,
    control: PathBuf,
    /// The stand-in's.
    record: PathBuf,
}

impl World {
    pub(crate) fn new(control: &MpsControl) -> Result<Option<World>> {
        let Some(machine) = Machine::new(TWO)? else {
            return Ok(None);
        };
        let record = machine.path().join("record");
        let script = control.script(&machine.built("sublet-workload"), &record);
        World::with(machine, &script).map(Some)
    }

    /// With that control program on that machine.
    pub(crate) fn with(machine: Machine, script: &str) -> Result<World> {
        let record = machine.path().join("record");
        let control = machine.script("mps-control", script)?;
        let words = format!("agent --standalone --mps={}", control.display());
        let mut arbiter = machine.sublet(&words);
        // What an operator's shell may have set is not for all tenants.
        arbiter.env("CUDA_VISIBLE_DEVICES", "1");
        arbiter.env("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "7");
        arbiter.env("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "0=1M");
        let arbiter = Running::start(&mut arbiter)?;
        until("the arbiter", || machine.arbiter())?;
        Ok(World {
            machine,
            arbiter,
            control,
            record,
        })
    }

    /// State of MPS, as `sublet top` says.
    pub(crate) fn mps(&self) -> Result<Value> {
        Ok(self.machine.top()?["mps"].clone())
    }

    /// A job of 1 GiB that holds its place, and has met the driver.
    fn start(&self, flags: &str) -> Result<Running> {
        let mut job = Running::start(&mut self.machine.job(flags, HOLD))?;
        job.report()?;
        Ok(job)
    }

    /// Standing of a job with MPS.
    fn standing(&self, name: &str) -> Result<Value> {
        Ok(self.machine.tenant(name)?["mps"].clone())
    }

    /// The first line that the stand-in has written down.
    fn started(&self) -> Result<Value> {
        let text = fs::read_to_string(&self.record)?;
        Ok(serde_json::from_str(
            text.lines().next().context("nothing")?,
        )?)
    }

    /// The daemon's answer to words, by its own client.
    fn ask(&self, words: &str, pipe: &Path) -> Result<String> {
        let file = self.machine.path().join("words");
        fs::write(&file, format!("{words}\n"))?;
        let mut client = self.machine.command(&self.control);
        client.env("CUDA_MPS_PIPE_DIRECTORY", pipe);
        let said = client.stdin(Stdio::from(fs::File::open(file)?)).output()?;
        ensure!(said.status.success(), "{words}: {said:?}");
        Ok(String::from_utf8_lossy(&said.stdout).trim().to_owned())
    }

    /// Ends the arbiter as Ctrl-C does; its daemon is gone with it.
    pub(crate) fn end(self) -> Result<()> {
        let daemon = pid_of(&self.mps()?["pid"])?;
        assert!(is_alive(daemon));
        self.arbiter.signal(Signal::INT)?;
        assert_eq!(self.arbiter.end()?.code, Some(0));
        assert!(!is_alive(daemon), "the daemon is left");
        Ok(())
    }
}

/// The variables of MPS that a program finds in a job.
fn variables(machine: &Machine, flags: &str) -> Result<BTreeMap<String, String>> {
    let mut job = machine.run(flags);
    let ended = Running::start(job.arg("env"))?.end()?;
    ensure!(ended.code == Some(0), "{ended:?}");
    let pairs = ended.lines.iter().filter_map(|line| line.split_once('='));
    let ours = pairs.filter(|(name, _)| name.starts_with("CUDA_MPS_"));
    Ok(ours
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect())
}

#[test]
fn programs_are_told_their_limits_and_the_daemon_its_folders() -> Result<()> {
    limits_and_folders(&MpsControl::StandIn)
}

pub(crate) fn limits_and_folders(control: &MpsControl) -> Result<()> {
    let Some(world) = World::new(control)? else {
        return Ok(());
    };
    let machine = &world.machine;
    assert_eq!(world.mps()?["state"], "serving");
    let pipe = machine.folder()?.join("mps/pipe").display().to_string();
    for (flags, percent, limits) in [
        ("--memory 1GiB", "100", "0=1024M"),
        ("--memory 50% --compute 20%..30%", "30", "0=8192M"),
        (
            "--memory 2GiB --gpus 2 --class opportunistic --compute 0%..40.5%",
            "40",
            "0=2048M,1=2048M",
        ),
    ] {
        let found = variables(machine, flags)?;
        let expected = [
            ("CUDA_MPS_PIPE_DIRECTORY", pipe.as_str()),
            ("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", percent),
            ("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", limits),
        ];
        let expected = expected.map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(found, BTreeMap::from(expected), "{flags}");
    }
    // Its own environment names its folders, and narrows nothing.
    match control {
        MpsControl::StandIn => {
            let started = world.started()?;
            assert_eq!(started["is"], "a stand-in for nvidia-cuda-mps-control");
            let log = machine.folder()?.join("mps/log").display().to_string();
            assert_eq!(
                started["environment"],
                json!({"CUDA_MPS_PIPE_DIRECTORY": pipe, "CUDA_MPS_LOG_DIRECTORY": log})
            );
        }
        MpsControl::Nvidias(_) => {
            for (words, answer) in [
                ("get_default_active_thread_percentage", "100.0"),
                ("get_default_device_pinned_mem_limit 0", ""),
                ("get_default_device_pinned_mem_limit 1", ""),
                ("get_server_list", ""),
            ] {
                assert_eq!(world.ask(words, Path::new(&pipe))?, answer, "{words}");
            }
        }
    }
    world.end()
}

#[test]
fn a_daemon_that_dies_is_told_and_comes_back_without_its_old_clients() -> Result<()> {
    death_and_restart(&MpsControl::StandIn)
}

pub(crate) fn death_and_restart(control: &MpsControl) -> Result<()> {
    let Some(world) = World::new(control)? else {
        return Ok(());
    };
    let old = world.start("--memory 1GiB --name old")?;
    assert_eq!(world.standing("old")?, "serving");
    let first = world.mps()?;
    kill_process(pid_of(&first["pid"])?, Signal::KILL)?;
    let gone = until("the end to be told", || {
        let mps = world.mps()?;
        ensure!(mps["state"] == "gone", "{mps}");
        Ok(mps)
    })?;
    assert_eq!(gone["reason"], "signal: 9 (SIGKILL)");
    assert_eq!(world.standing("old")?, "lost");
    let ps = Running::start(&mut world.machine.sublet("ps"))?.end()?;
    let ps = ps.lines.join("\n");
    let why = "the MPS daemon that its programs began under is gone";
    assert!(ps.starts_with("mps: ") && ps.contains(why), "{ps}");
    let again = until("another daemon", || {
        let mps = world.mps()?;
        ensure!(mps["state"] == "serving", "{mps}");
        Ok(mps)
    })?;
    assert_ne!(again["pid"], first["pid"]);
    assert_eq!(again["pipe"], first["pipe"]);
    // Who began under the first is still told apart from who begins now.
    let new = world.start("--memory 1GiB --name new")?;
    assert_eq!(world.standing("old")?, "lost");
    assert_eq!(world.standing("new")?, "serving");
    let row = world.machine.tenant("new")?;
    assert_eq!(row["usedMiB"], 64, "the accounts go on: {row}");
    for job in [old, new] {
        assert_eq!(job.end()?.code, Some(0));
    }
    world.end()
}

/// MPS reads limits when a program begins: nobody is told that it has others now.
#[test]
fn limits_that_mps_keeps_are_not_changed() -> Result<()> {
    let Some(world) = World::new(&MpsControl::StandIn)? else {
        return Ok(());
    };
    let job = world.start("--memory 1GiB --name job --compute 0%..50%")?;
    let limit = |words: &str| {
        let words = format!("limit job {words}");
        Running::start(&mut world.machine.sublet(&words))?.end()
    };
    for (words, why) in [
        ("--memory 512MiB", None),
        ("--memory 1GiB", None),
        ("--compute 20%..50%", None),
        ("--memory 1025MiB", Some("MPS gives its programs no more")),
        (
            "--memory 50%",
            Some("began under MPS with 1024 MiB of GPU 0"),
        ),
        ("--compute 20%..60%", Some("at most 50 % of compute time")),
    ] {
        let ended = limit(words)?;
        let code = i32::from(why.is_some());
        assert_eq!(ended.code, Some(code), "{words}: {ended:?}");
        let why = why.unwrap_or_default();
        assert!(ended.errors.contains(why), "{words}: {ended:?}");
    }
    assert_eq!(job.end()?.code, Some(0));
    world.end()
}

/// Side by side unless a promise needs turns; then the job's limit is not held a second time.
#[test]
fn turns_are_only_where_mps_keeps_no_promise() -> Result<()> {
    let Some(world) = World::new(&MpsControl::StandIn)? else {
        return Ok(());
    };
    let busy = |flags: &str| {
        let flags = format!("--memory 1GiB --gpus 1 {flags}");
        Running::start(&mut world.machine.job(&flags, "steady --seconds 60"))
    };
    // On the fake card nothing holds a program to its part of the multiprocessors.
    let side = busy("--name side --compute 0%..20%")?;
    until("all of the card", || {
        let row = world.machine.tenant("side")?;
        let used = row["computeUsedPercent"].as_f64().unwrap_or(0.0);
        let is_free = row["turnWaitPercent"] == 0.0 && used >= 90.0;
        ensure!(is_free, "{row}");
        Ok(())
    })?;
    let promised = busy("--name promised --compute 60%..90%")?;
    until("turns", || {
        let row = world.machine.tenant("promised")?;
        let used = row["computeUsedPercent"].as_f64().context("no figure")?;
        ensure!((60.0..=95.0).contains(&used), "{row}");
        let row = world.machine.tenant("side")?;
        let waited = row["turnWaitPercent"].as_f64().context("no figure")?;
        ensure!(waited >= 40.0, "{row}");
        Ok(())
    })?;
    for (name, job) in [("side", side), ("promised", promised)] {
        let pid = pid_of(&world.machine.tenant(name)?["pids"][0])?;
        kill_process(pid, Signal::KILL)?;
        assert_ne!(job.end()?.code, Some(0));
    }
    world.end()
}

#[test]
fn an_arbiter_without_its_mps_does_not_start_and_leaves_nothing() -> Result<()> {
    let Some(machine) = Machine::new(TWO)? else {
        return Ok(());
    };
    let ends = machine.script("ends", "#!/bin/sh\nexit 3\n")?;
    let plain = machine.path().join("plain");
    fs::write(&plain, "")?;
    for (program, why) in [
        ("/nowhere/control".to_owned(), "No such file or directory"),
        (plain.display().to_string(), "Permission denied"),
        (ends.display().to_string(), "exit status: 3"),
    ] {
        let words = format!("agent --standalone --mps={program}");
        let ended = Running::start(&mut machine.sublet(&words))?.end()?;
        assert_eq!(ended.code, Some(1), "{ended:?}");
        let what = format!("MPS cannot be used: `{program}` does not serve: {why}");
        assert!(ended.errors.contains(&what), "{ended:?}");
        assert!(ended.errors.contains("hint: "), "{ended:?}");
        assert!(machine.arbiter().is_err());
    }
    let words = "agent --standalone --mps --exclusive-slices";
    let ended = Running::start(&mut machine.sublet(words))?.end()?;
    assert_eq!(ended.code, Some(2), "{ended:?}");
    Ok(())
}

/// Words by the folder that clients have, from the daemon's own user, as which root in a container
/// comes. The stand-in takes all words.
pub(crate) fn words_of_a_client(control: &MpsControl) -> Result<()> {
    let Some(world) = World::new(control)? else {
        return Ok(());
    };
    let first = world.mps()?;
    let pipe = world.machine.folder()?.join("mps/pipe");
    let refused = world.ask("quit -t 0", &pipe)?;
    assert_eq!(refused, "Not enough privilege to execute quit command");
    let said = world.ask("set_default_active_thread_percentage 10", &pipe)?;
    let takes_defaults =
        matches!(control, MpsControl::Nvidias(driver) if driver.version().starts_with("535."));
    let percentage = if takes_defaults { "10.0" } else { "100.0" };
    let now = world.ask("get_default_active_thread_percentage", &pipe)?;
    assert_eq!(now, percentage, "{said}");
    let mps = world.mps()?;
    assert_eq!(mps["state"], "serving", "{mps}");
    assert_eq!(mps["pid"], first["pid"], "{mps}");
    world.end()
}

#[test]
fn an_arbiter_that_is_killed_leaves_no_daemon() -> Result<()> {
    killed_arbiter(&MpsControl::StandIn)
}

pub(crate) fn killed_arbiter(control: &MpsControl) -> Result<()> {
    let Some(world) = World::new(control)? else {
        return Ok(());
    };
    let daemon = pid_of(&world.mps()?["pid"])?;
    world.machine.kill_arbiter()?;
    until("the end of the daemon", || {
        ensure!(!is_alive(daemon), "it is there");
        Ok(())
    })?;
    assert_ne!(world.arbiter.end()?.code, Some(0));
    Ok(())
}
