//! Messages for a command that was refused memory and failed. The commands in the hints can be
//! pasted.

use anyhow::{Context, Result};
use rustix::process::Signal;
use sublet_e2e::one_machine::{Ended, Machine, Running, mib};

use crate::one_machine::EXACT;

/// Runs what somebody has pasted.
fn paste(machine: &Machine, line: &str) -> Result<Ended> {
    Running::start(machine.command("bash").args(["-c", line]))?.end()
}

#[test]
fn a_failure_at_the_limit_ends_with_the_command_that_asks_for_more() -> Result<()> {
    let Some(machine) = Machine::new("2x4GiB,context=0MiB")? else {
        return Ok(());
    };
    let workload = machine.built("sublet-workload");
    // With a word that a shell would take apart.
    let script = r#"echo "it is: $2"; exec "$0" alloc --size "$1""#;
    let job = |flags: &str, size: &str| {
        let mut run = machine.run(flags);
        run.args(["sh", "-c", script])
            .arg(&workload)
            .args([size, "a  b'c"]);
        run
    };
    for (flags, variable, told) in [
        (
            "--memory 1G",
            None,
            "out of memory: 1536 MiB asked of GPU 0, 0 s before the end, at the limit of 1024 MiB; for more: ",
        ),
        (
            "--memory 25% --allowed-gpus 1",
            None,
            "1536 MiB asked of GPU 1, 0 s before the end, at the limit of 1024 MiB; for more: ",
        ),
        (
            "--memory 1.25GiB",
            Some("1"),
            "1536 MiB asked of GPU 1, 0 s before the end, at the limit of 1280 MiB; for more: CUDA_VISIBLE_DEVICES=1 ",
        ),
    ] {
        let mut run = job(flags, "1536MiB");
        if let Some(variable) = variable {
            run.env("CUDA_VISIBLE_DEVICES", variable);
        }
        let ended = Running::start(&mut run)?.end()?;
        assert_eq!(
            (ended.code, ended.lines.len()),
            (Some(1), 2),
            "{flags}: {ended:?}"
        );
        let mut ours = ended
            .errors
            .lines()
            .filter(|line| line.starts_with("sublet: "));
        let line = ours.next().with_context(|| format!("{ended:?}"))?;
        assert_eq!(ours.next(), None, "{flags}: {ended:?}");
        assert!(line.contains(told), "{flags}: {line}");
        assert_eq!(ended.errors.lines().last(), Some(line), "{ended:?}");
        let (_, again) = line.split_once("; for more: ").context("no command")?;
        let ended = paste(&machine, again)?;
        assert_eq!(ended.code, Some(0), "{again}: {ended:?}");
        assert_eq!(ended.lines[0], "it is: a  b'c", "{again}");
        assert_eq!(ended.report()?["bytes"], mib(1536), "{again}");
        assert_eq!(ended.errors, "", "{again}");
    }
    // All there is.
    let ended = Running::start(&mut job("", "5GiB"))?.end()?;
    let last = ended.errors.lines().last().unwrap_or_default();
    assert!(
        last.ends_with("at the limit of 4096 MiB, which is all there is"),
        "{ended:?}"
    );
    Ok(())
}

#[test]
fn nothing_is_said_where_memory_was_not_the_reason() -> Result<()> {
    let Some(machine) = Machine::new(EXACT)? else {
        return Ok(());
    };
    let workload = machine.built("sublet-workload").display().to_string();
    let refused = format!("{workload} alloc --size 2GiB >&2");
    for (script, code) in [
        // Nothing was refused.
        ("exit 3".to_owned(), 3),
        ("kill -ABRT $$".to_owned(), 134),
        // It was, and did not matter.
        (format!("{refused}; exit 0"), 0),
        (format!("{workload} alloc --until-oom"), 0),
        // Somebody ended it.
        (format!("{refused}; kill -TERM $$"), 143),
        (format!("{refused}; kill -KILL $$"), 137),
    ] {
        let mut run = machine.run("--memory 1GiB");
        let ended = Running::start(run.args(["sh", "-c", &script]))?.end()?;
        assert_eq!(ended.code, Some(code), "{script}: {ended:?}");
        assert!(!ended.errors.contains("sublet: "), "{script}: {ended:?}");
    }
    // It was, and the program broke down over it.
    let mut run = machine.run("--memory 1GiB");
    let script = format!("{refused}; kill -ABRT $$");
    let ended = Running::start(run.args(["sh", "-c", &script]))?.end()?;
    assert_eq!(ended.code, Some(134), "{ended:?}");
    assert!(
        ended.errors.contains("sublet: out of memory: 2048 MiB"),
        "{ended:?}"
    );
    // Without an arbiter there is nothing to tell, and nobody waits for it.
    let script = format!("{refused}; echo ready; read line; exit 5");
    let mut run = machine.run("--memory 1GiB");
    let mut job = Running::start(run.args(["sh", "-c", &script]))?;
    assert_eq!(job.line()?, "ready");
    rustix::process::kill_process(machine.arbiter()?, Signal::STOP)?;
    job.say("")?;
    let ended = job.end()?;
    rustix::process::kill_process(machine.arbiter()?, Signal::CONT)?;
    assert_eq!(ended.code, Some(5), "{ended:?}");
    Ok(())
}

/// The commands between backquotes in a message.
fn commands(said: &str) -> impl Iterator<Item = &str> {
    said.split('`').skip(1).step_by(2)
}

#[test]
fn hints_can_be_pasted() -> Result<()> {
    let Some(machine) = Machine::new("1x4GiB,context=0MiB,name=It's a card")? else {
        return Ok(());
    };
    let sublet = machine.built("sublet").display().to_string();
    let mut tried = 0;
    let mut check = |ended: &Ended| -> Result<()> {
        assert_ne!(ended.code, Some(0), "{ended:?}");
        for command in commands(&ended.errors).filter(|words| words.starts_with(&sublet)) {
            let pasted = paste(&machine, command)?;
            assert_eq!(pasted.code, Some(0), "{command}: {pasted:?}");
            tried += 1;
        }
        Ok(())
    };
    let run = |command: &mut std::process::Command| Running::start(command)?.end();
    // Before any arbiter, and then with one.
    check(&run(&mut machine.sublet("limit 1 --memory 1G"))?)?;
    check(&run(machine.run("--memory 5G").arg("true"))?)?;
    check(&run(machine.run("--allowed-gpus 3").arg("true"))?)?;
    check(&run(&mut machine.sublet("limit 99 --memory 1G"))?)?;
    let mut holder = Running::start(&mut machine.job("--name holder", "alloc --hold stdin"))?;
    holder.report()?;
    check(&run(&mut machine.sublet("limit nobody --memory 1G"))?)?;
    check(&run(&mut machine.sublet("limit holder --memory 5G"))?)?;
    holder.end()?;
    assert!(tried >= 6, "{tried}");
    Ok(())
}
