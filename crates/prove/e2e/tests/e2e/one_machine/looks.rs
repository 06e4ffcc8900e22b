//! `ps`, `top` and `queue` look, and start nothing: without an arbiter they show what one would show.
//! And arbiters that are refused, because another one runs.

use std::process::Command;

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;
use serde_json::{Value, json};
use sublet_e2e::one_machine::{Ended, Machine, Running, is_alive, until};

use crate::one_machine::EXACT;

const LOOKS: [&str; 4] = ["ps", "top --once", "queue", "ps -o json"];

fn end(command: &mut Command) -> Result<Ended> {
    Running::start(command)?.end()
}

/// Starts an arbiter by hand.
fn agent(machine: &Machine) -> Result<Running> {
    let agent = Running::start(&mut machine.sublet("agent --standalone"))?;
    until("the arbiter", || {
        ensure!(machine.arbiter()? == agent.pid(), "it is another one");
        Ok(())
    })?;
    Ok(agent)
}

#[test]
fn a_look_leaves_nothing_and_an_arbiter_starts_at_once() -> Result<()> {
    let Some(machine) = Machine::new(EXACT)? else {
        return Ok(());
    };
    for words in LOOKS {
        let seen = end(&mut machine.sublet(words))?;
        assert_eq!((seen.code, &*seen.errors), (Some(0), ""), "{words}");
        // No socket, no log, no lock, and so nobody who listens.
        assert!(!machine.path().join("run").exists(), "{words}");
    }
    let agent = agent(&machine)?;
    agent.signal(Signal::TERM)?;
    assert_eq!(agent.end()?.code, Some(0));
    for words in LOOKS {
        let seen = end(&mut machine.sublet(words))?;
        assert_eq!((seen.code, &*seen.errors), (Some(0), ""), "{words}");
        assert!(machine.arbiter().is_err(), "{words}");
    }
    Ok(())
}

#[test]
fn a_look_works_where_no_folder_can_be_made() -> Result<()> {
    let Some(machine) = Machine::new(EXACT)? else {
        return Ok(());
    };
    let nowhere = ("SUBLET_RUNTIME_DIR", "/proc/sublet");
    for words in LOOKS {
        let seen = end(machine.sublet(words).env(nowhere.0, nowhere.1))?;
        assert_eq!((seen.code, &*seen.errors), (Some(0), ""), "{words}");
    }
    let refused = end(machine
        .run("--memory 1GiB")
        .arg("true")
        .env(nowhere.0, nowhere.1))?;
    assert_eq!(refused.code, Some(1), "{refused:?}");
    Ok(())
}

#[test]
fn a_look_shows_what_an_arbiter_would_show() -> Result<()> {
    let Some(machine) = Machine::new(EXACT)? else {
        return Ok(());
    };
    let mut stranger = Running::start(&mut machine.direct("alloc --size 256MiB --hold stdin"))?;
    let pid = stranger.report()?["pid"].clone();
    let table = end(&mut machine.sublet("ps"))?;
    let row = table.lines.get(1).context("no row")?;
    assert!(table.lines[0].starts_with("ID  NAME"), "{table:?}");
    assert!(
        row.contains("unmanaged") && row.contains("256 MiB"),
        "{row}"
    );
    let alone = machine.top()?;
    assert_eq!(alone["jobs"][0]["pids"], json!([pid]), "{alone}");
    let unmeasured = &alone["gpus"][0];
    assert_eq!(unmeasured.get("contextMiB"), None, "{unmeasured}");
    assert!(machine.arbiter().is_err());
    let agent = agent(&machine)?;
    let names = |value: &Value| {
        let names = value.as_object().map(|fields| fields.keys().cloned());
        names.into_iter().flatten().collect::<Vec<_>>()
    };
    until("the same of an arbiter", || {
        let arbiters = machine.top()?;
        ensure!(names(&arbiters) == names(&alone), "{arbiters}");
        ensure!(arbiters["jobs"] == alone["jobs"], "{arbiters}");
        for card in 0..2_usize {
            let (mut its, mut ours) = (arbiters["gpus"][card].clone(), alone["gpus"][card].clone());
            // Only an arbiter measures them.
            for measured in ["packing", "contextMiB", "computeUsedPercent"] {
                its[measured] = Value::Null;
                ours[measured] = Value::Null;
            }
            ensure!(its == ours, "{its} and without an arbiter {ours}");
        }
        Ok(())
    })?;
    stranger.end()?;
    agent.signal(Signal::TERM)?;
    assert_eq!(agent.end()?.code, Some(0));
    Ok(())
}

/// The command in a message that ends an arbiter.
fn ending(said: &str) -> Result<&str> {
    let mut commands = said.split('`').skip(1).step_by(2);
    let kill = commands.find(|words| words.starts_with("kill "));
    kill.with_context(|| said.to_owned())
}

#[test]
fn a_refused_arbiter_names_the_command_that_ends_the_other() -> Result<()> {
    let Some(machine) = Machine::new(EXACT)? else {
        return Ok(());
    };
    machine.report("--memory 1GiB", "info")?;
    let first = machine.arbiter()?;
    let mut second = machine.sublet("agent --standalone");
    let refused = end(&mut second)?;
    assert_eq!(refused.code, Some(1), "{refused:?}");
    let process = format!("process {} of user ", first.as_raw_nonzero());
    for part in [&*process, "hint: `sublet run` started it"] {
        assert!(refused.errors.contains(part), "{refused:?}");
    }
    let kill = ending(&refused.errors)?;
    let killed = end(machine.command("bash").args(["-c", kill]))?;
    assert_eq!(killed.code, Some(0), "{kill}: {killed:?}");
    until("its end", || {
        ensure!(!is_alive(first), "it lives");
        Ok(())
    })?;
    let agent = agent(&machine)?;
    let refused = end(&mut second)?;
    assert_eq!(refused.code, Some(1), "{refused:?}");
    let hint = "hint: it is `sublet agent --standalone`; `kill ";
    assert!(refused.errors.contains(hint), "{refused:?}");
    // It serves jobs: nobody needs another one for them.
    machine.report("--memory 1GiB", "info")?;
    assert_eq!(machine.arbiter()?, agent.pid());
    let kill = ending(&refused.errors)?;
    let killed = end(machine.command("bash").args(["-c", kill]))?;
    assert_eq!(killed.code, Some(0), "{kill}: {killed:?}");
    assert_eq!(agent.end()?.code, Some(0));
    Ok(())
}

/// Another folder, a job around it and a network of its own are what any user's program can have.
#[test]
fn one_machine_has_one_arbiter_in_whatever_folder_and_from_within_a_job() -> Result<()> {
    let (Some(machine), Some(other)) = (Machine::new(EXACT)?, Machine::new(EXACT)?) else {
        return Ok(());
    };
    let agent_of = agent(&machine)?;
    let elsewhere = format!("SUBLET_RUNTIME_DIR={}/elsewhere", machine.path().display());
    let starts = machine.sublet("agent --standalone");
    let refuses = |mut command: Command, apart: &[&str]| -> Result<()> {
        let start = command.args(apart).args(["env", &elsewhere]);
        let refused = end(start.arg(starts.get_program()).args(starts.get_args()))?;
        assert_eq!(refused.code, Some(1), "{refused:?}");
        let why = "an arbiter looks after these GPUs already: ";
        ensure!(refused.errors.contains(why), "{refused:?}");
        Ok(())
    };
    let alone = || {
        let mut command = machine.command("env");
        command.arg(format!("SUBLET_FAKE_GPU={}", machine.spec()));
        command
    };
    refuses(alone(), &[])?;
    refuses(machine.run("--memory 1GiB"), &[])?;
    if rustix::process::geteuid().is_root() {
        refuses(alone(), &["unshare", "--net"])?;
        refuses(machine.run("--memory 1GiB"), &["unshare", "--net"])?;
    }
    let (name, folder) = elsewhere.split_once('=').context("no value")?;
    let refused = end(machine.run("--memory 1GiB").arg("true").env(name, folder))?;
    assert_eq!(refused.code, Some(1), "{refused:?}");
    let why = format!("process {} of user ", agent_of.pid().as_raw_nonzero());
    ensure!(refused.errors.contains(&why), "{refused:?}");
    // An equal machine is another one.
    let agent_of_other = agent(&other)?;
    for agent in [agent_of, agent_of_other] {
        agent.signal(Signal::TERM)?;
        assert_eq!(agent.end()?.code, Some(0));
    }
    Ok(())
}
