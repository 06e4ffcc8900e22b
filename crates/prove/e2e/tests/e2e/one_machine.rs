//! Sublet on one machine as its user meets it: programs under their limits in `sublet top`, the
//! queue, exit codes, signals, the terminal, programs that are no job, and bad input.

mod cards;
mod clients;
mod compute;
mod datasets;
mod looks;
pub(crate) mod mps;
mod remains;
mod shares;
mod shortage;
mod terminal;
mod users;

use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::process::{Signal, kill_process};
use serde_json::{Value, json};
use sublet_e2e::one_machine::{
    Ended, Machine, Running, Terminal, is_alive, mib, number, pid_of, until,
};

/// Contexts that cost nothing, so that every byte on a card is one that a program asked for.
const EXACT: &str = "2x16GiB,context=0MiB";

#[test]
fn two_programs_run_under_their_limits() -> Result<()> {
    let Some(machine) = Machine::new(EXACT)? else {
        return Ok(());
    };
    let alloc = "alloc --until-oom --hold stdin";
    let mut small = Running::start(&mut machine.job("--memory 1GiB --name small", alloc))?;
    let mut large = Running::start(&mut machine.job("--memory 3GiB --name large", alloc))?;
    for (job, limit) in [(&mut small, mib(1024)), (&mut large, mib(3072))] {
        let report = job.report()?;
        assert_eq!(report["bytes"], limit, "{report}");
        assert_eq!(report["totalMem"], limit, "{report}");
        assert_eq!(report["memory"], json!({"free": 0, "total": limit}));
    }
    let top = until("both in top", || {
        let top = machine.top()?;
        ensure!(top["gpus"][0]["usedMiB"] == 4096, "{top}");
        Ok(top)
    })?;
    assert_eq!(top["gpus"][0]["memoryMiB"], 16_384, "{top}");
    for (name, limit) in [("small", 1024), ("large", 3072)] {
        let row = tenants(&top).find(|row| row["name"] == name);
        let tenant = row.context("it is not in top")?;
        assert_eq!(tenant["gpus"], json!([0]), "{top}");
        assert_eq!(tenant["limitMiB"], limit, "{top}");
        assert_eq!(tenant["usedMiB"], limit, "{top}");
        assert_eq!(tenant["state"], "running", "{top}");
        assert_eq!(tenant["pids"].as_array().map(Vec::len), Some(1), "{top}");
    }
    assert_eq!(machine.card(0)?.used, mib(4096));
    assert_eq!(machine.card(1)?.used, 0);
    let table = Running::start(&mut machine.sublet("top --once"))?.end()?;
    assert_eq!(table.code, Some(0), "{table:?}");
    let text = table.lines.join("\n");
    assert!(text.contains("small") && text.contains("large"), "{text}");
    for job in [small, large] {
        assert_eq!(job.end()?.code, Some(0));
    }
    until("an empty machine", || {
        let top = machine.top()?;
        ensure!(
            top["jobs"] == json!([]) && top["gpus"][0]["usedMiB"] == 0,
            "{top}"
        );
        Ok(())
    })
}

#[test]
fn the_exit_code_is_the_program_s() -> Result<()> {
    let Some(machine) = Machine::new(EXACT)? else {
        return Ok(());
    };
    let run = |program: &[&str]| Running::start(machine.run("--memory 1GiB").args(program))?.end();
    let shell = |script: &str| run(&["sh", "-c", script]);
    assert_eq!(shell("exit 0")?.code, Some(0));
    let failed = shell("echo out; echo err >&2; exit 3")?;
    assert_eq!(failed.code, Some(3));
    assert_eq!(
        (failed.lines, failed.errors.as_str()),
        (vec!["out".to_owned()], "err\n")
    );
    assert_eq!(shell("kill -TERM $$")?.code, Some(143));
    assert_eq!(shell("kill -KILL $$")?.code, Some(137));
    assert_eq!(run(&["no-such-program"])?.code, Some(127));
    assert_eq!(run(&["/etc/passwd"])?.code, Some(126));
    let mut wrong = machine.sublet("run --memory 1GiB --gpus none -- true");
    assert_eq!(Running::start(&mut wrong)?.end()?.code, Some(2));
    // What a workload itself says.
    let workload = machine.built("sublet-workload").display().to_string();
    assert_eq!(run(&[&workload, "alloc", "--size", "2GiB"])?.code, Some(1));
    Ok(())
}

#[test]
fn signals_reach_the_program() -> Result<()> {
    let Some(machine) = Machine::new(EXACT)? else {
        return Ok(());
    };
    let script = "trap 'echo TERM; exit 9' TERM; echo ready; while :; do sleep 0.05; done";
    let mut job = Running::start(machine.run("--memory 1GiB").args(["sh", "-c", script]))?;
    assert_eq!(job.line()?, "ready");
    job.signal(Signal::TERM)?;
    assert_eq!(job.line()?, "TERM");
    assert_eq!(job.end()?.code, Some(9));
    // One that does not care ends by it, and its memory is back.
    let mut job = Running::start(&mut machine.job("--memory 1GiB", "alloc --until-oom --hold 60"))?;
    let program = pid_of(&job.report()?["pid"])?;
    assert_eq!(machine.card(0)?.used, mib(1024));
    job.signal(Signal::TERM)?;
    assert_eq!(job.end()?.code, Some(128 + 15));
    assert!(!is_alive(program));
    assert_eq!(machine.card(0)?.used, 0);
    Ok(())
}

/// The terminal of the program is one end of a pair, and the test types at the other.
#[test]
fn the_interrupt_key_ends_the_program_and_leaves_the_terminal_usable() -> Result<()> {
    let Some(machine) = Machine::new(EXACT)? else {
        return Ok(());
    };
    let mut terminal = Terminal::open()?;
    // The program turns echo off and counts interrupts; a second would end it by its default.
    let program = machine.script(
        "program",
        "#!/bin/sh\nn=0\ntrap 'n=$((n+1)); echo interrupted $n' INT\nstty -echo\necho ready\n\
         while [ $n = 0 ]; do sleep 0.05; done\nsleep 0.3\necho count $n\ntrap - INT\nkill -INT $$\n",
    )?;
    let mut command = machine.command("setsid");
    command
        .args(["--ctty", "--wait", "sh", "-i"])
        .env_remove("ENV");
    let mut shell = terminal.start(&mut command)?;
    let sublet = machine.built("sublet").display().to_string();
    let job = format!("{sublet} run --fake-gpu {EXACT} -- {}\n", program.display());
    terminal.types(&job)?;
    terminal.shows("ready\r\n")?;
    terminal.types("\x03")?;
    terminal.shows("count 1\r\n")?;
    // The shell sees what it would see of the program alone.
    terminal.types("echo code $?; stty -a; read line; echo got $line\n")?;
    let shown = terminal.shows("code 130\r\n")?;
    assert!(!shown.contains("interrupted 2"), "{shown}");
    terminal.types("hello\n")?;
    let shown = terminal.shows("got hello\r\n")?;
    assert!(shown.contains(" echo "), "echo is still off: {shown}");
    terminal.types("exit\n")?;
    shell.end()?;
    Ok(())
}

#[test]
fn a_job_that_does_not_fit_waits_in_order() -> Result<()> {
    let Some(machine) = Machine::new("1x16GiB,context=0MiB")? else {
        return Ok(());
    };
    let hold = "alloc --size 64MiB --hold stdin";
    let mut first = Running::start(&mut machine.job("--memory 12GiB --name first", hold))?;
    first.report()?;
    let mut second = Running::start(&mut machine.job("--memory 8GiB --name second", hold))?;
    second.until_error("waiting, next in the queue: ")?;
    let mut third = Running::start(&mut machine.job("--memory 8GiB --name third", hold))?;
    third.until_error("waiting, place 2 in the queue: ")?;
    let said = second.errors();
    assert!(
        said.contains("GPU 0") && said.contains("MiB"),
        "no reason: {said}"
    );
    println!("a waiting job says: {}", said.trim());
    let row = machine.tenant("third")?;
    assert_eq!(
        (&row["state"], &row["position"]),
        (&json!("waiting"), &json!(2))
    );
    assert_eq!(row["pids"], json!([]));
    // There is no room now, and whoever will not wait is told so.
    let refused = Running::start(&mut machine.job("--memory 8GiB --no-wait", hold))?.end()?;
    assert_eq!(refused.code, Some(1));
    assert!(refused.errors.contains("is refused: "), "{refused:?}");
    assert!(refused.lines.is_empty(), "{refused:?}");
    let begin = Instant::now();
    assert_eq!(first.end()?.code, Some(0));
    second.report()?;
    third.report()?;
    println!(
        "after the first ended, both ran within {:?}",
        begin.elapsed()
    );
    assert!(
        second.errors().contains("has GPU 0 after"),
        "{}",
        second.errors()
    );
    let order = machine.top()?;
    let names: Vec<&Value> = tenants(&order).map(|row| &row["name"]).collect();
    assert_eq!(names, ["second", "third"]);
    // A small one that came later may not pass a large one that waits.
    let mut large = Running::start(&mut machine.job("--memory 12GiB --name large", hold))?;
    large.until_error("waiting, next")?;
    assert_eq!(second.end()?.code, Some(0));
    assert_eq!(third.end()?.code, Some(0));
    large.report()?;
    assert_eq!(large.end()?.code, Some(0));
    Ok(())
}

fn tenants(top: &Value) -> impl Iterator<Item = &Value> {
    top["jobs"].as_array().into_iter().flatten()
}

#[test]
fn a_waiting_job_can_be_left() -> Result<()> {
    let Some(machine) = Machine::new("1x4GiB,context=0MiB")? else {
        return Ok(());
    };
    let hold = "alloc --size 64MiB --hold stdin";
    let mut first = Running::start(&mut machine.job("--name first", hold))?;
    first.report()?;
    let second = Running::start(&mut machine.job("--memory 1GiB --name second", hold))?;
    second.until_error("waiting, next")?;
    second.signal(Signal::TERM)?;
    let left = second.end()?;
    assert_eq!((left.code, left.lines.len()), (Some(143), 0), "{left:?}");
    until("the queue to be empty", || {
        let top = machine.top()?;
        ensure!(tenants(&top).count() == 1, "{top}");
        Ok(())
    })?;
    assert_eq!(first.end()?.code, Some(0));
    Ok(())
}

/// Without the command above it a program keeps what it has, and nobody else is given that.
#[test]
fn a_program_outlives_the_command_that_started_it() -> Result<()> {
    let Some(machine) = Machine::new("1x16GiB,context=0MiB")? else {
        return Ok(());
    };
    let hold = "alloc --size 64MiB --hold 600";
    let mut job = Running::start(&mut machine.job("--memory 12GiB --name job", hold))?;
    let program = pid_of(&job.report()?["pid"])?;
    job.signal(Signal::KILL)?;
    until("the job to be ending", || {
        let row = machine.tenant("job")?;
        ensure!(row["state"] == "ending", "{row}");
        ensure!(row["usedMiB"] == 64, "{row}");
        Ok(())
    })?;
    assert!(is_alive(program));
    let refused = Running::start(&mut machine.job("--memory 8GiB --no-wait", hold))?.end()?;
    assert_eq!(refused.code, Some(1), "{refused:?}");
    kill_process(program, Signal::KILL)?;
    until("its room to be free", || {
        let top = machine.top()?;
        ensure!(tenants(&top).count() == 0, "{top}");
        Ok(())
    })?;
    machine.report("--memory 16GiB --no-wait", "info")?;
    Ok(())
}

#[test]
fn a_process_that_is_no_job_is_found() -> Result<()> {
    let Some(machine) = Machine::new("1x16GiB")? else {
        return Ok(());
    };
    let mut job = Running::start(&mut machine.job("--memory 1GiB --name job", "info --memory"))?;
    job.report()?;
    assert_eq!(job.end()?.code, Some(0));
    let mut stranger = Running::start(&mut machine.direct("alloc --size 256MiB --hold stdin"))?;
    let pid = stranger.report()?["pid"].clone();
    let begin = Instant::now();
    let row = until("the stranger in top", || {
        let top = machine.top()?;
        let mut rows = tenants(&top).filter(|row| row["state"] == "unmanaged");
        let row = rows.find(|row| row["pids"] == json!([pid]));
        row.cloned().with_context(|| top.to_string())
    })?;
    let time = begin.elapsed();
    println!("a process that is no job was shown after {time:?}");
    // A second, the length of a reading, and a machine that is busy with other tests.
    assert!(time < Duration::from_secs(3), "{time:?}");
    assert_eq!(row["id"], Value::Null);
    assert!(number(&row["usedMiB"])? >= 256, "{row}");
    // What it uses is kept from jobs.
    let top = machine.top()?;
    let kept = number(&top["gpus"][0]["keptMiB"])?;
    assert!(kept >= 256, "{top}");
    let refused = Running::start(&mut machine.job("--memory 100% --no-wait", "info"))?.end()?;
    assert_eq!(refused.code, Some(1), "{refused:?}");
    stranger.end()?;
    until("it to be forgotten", || {
        let top = machine.top()?;
        ensure!(
            tenants(&top).count() == 0 && top["gpus"][0]["keptMiB"] == 0,
            "{top}"
        );
        Ok(())
    })
}

#[test]
fn a_process_that_is_no_job_is_ended_where_the_operator_says_so() -> Result<()> {
    let Some(machine) = Machine::new(EXACT)? else {
        return Ok(());
    };
    let words = "agent --standalone --evict-unmanaged";
    let agent = Running::start(&mut machine.sublet(words))?;
    until("the arbiter", || machine.arbiter())?;
    let hold = "alloc --size 64MiB --hold 600";
    let mut job = Running::start(&mut machine.job("--memory 1GiB --name job", hold))?;
    job.report()?;
    let mut stranger = Running::start(&mut machine.direct(hold))?;
    stranger.report()?;
    let ended = stranger.end()?;
    assert_eq!(ended.signal, Some(9), "{ended:?}");
    let top = machine.top()?;
    assert_eq!(top["counters"]["evicted"], 1, "{top}");
    assert!(!job.has_ended()?);
    job.signal(Signal::TERM)?;
    job.end()?;
    agent.signal(Signal::TERM)?;
    assert_eq!(agent.end()?.code, Some(0));
    Ok(())
}

fn told(command: &mut std::process::Command) -> Result<Ended> {
    let ended = Running::start(command.stdin(Stdio::null()))?.end()?;
    ensure!(
        !ended.errors.contains("panicked") && ended.signal.is_none(),
        "it crashed: {ended:?}"
    );
    Ok(ended)
}

#[test]
fn bad_sizes_and_cards_are_answered() -> Result<()> {
    let Some(machine) = Machine::new(EXACT)? else {
        return Ok(());
    };
    for (flags, code, words) in [
        ("--memory 0", 2, "more than zero"),
        ("--memory -1", 2, "less than nothing"),
        ("--memory 0MiB", 2, "more than zero"),
        ("--memory 0%", 2, "more than zero"),
        ("--memory -1GiB", 2, "less than nothing"),
        ("--memory 4", 2, "no unit"),
        ("--memory 4KB", 2, "is less than 1 MiB"),
        ("--memory 4parsecs", 2, "is not an amount"),
        ("--memory 0.1MiB", 2, "less than 1 MiB"),
        ("--memory 101%", 2, "more than 100 %"),
        (
            "--memory 99999999999999999999GiB",
            2,
            "more memory than any machine has",
        ),
        ("--memory 17GiB", 1, "16384 MiB"),
        ("--gpus 0", 2, "1 to 16 GPUs"),
        ("--gpus 3", 1, "2"),
        ("--gpus 17", 2, "1 to 16 GPUs"),
        ("--name 7", 2, "not a number"),
    ] {
        let ended = told(machine.run(flags).arg("true"))?;
        assert_eq!(ended.code, Some(code), "{flags}: {ended:?}");
        assert!(ended.errors.contains(words), "{flags}: {ended:?}");
        assert!(ended.errors.starts_with("error: "), "{flags}: {ended:?}");
    }
    for spec in ["", "0x1GiB", "2x", "2x16TB", "/nowhere/machine.json"] {
        let mut run = machine.command(machine.built("sublet"));
        let ended = told(run.args(["run", "--fake-gpu", spec, "--", "true"]))?;
        assert_eq!(ended.code, Some(2), "{spec:?}: {ended:?}");
    }
    let mut job =
        Running::start(&mut machine.job("--memory 1GiB --name job", "alloc --hold stdin"))?;
    job.report()?;
    for (words, code, part) in [
        ("limit job --memory 17GiB", 1, "16384 MiB"),
        ("limit job --memory 0GiB", 2, "more than zero"),
        ("limit job --memory -2GiB", 2, "less than nothing"),
        ("limit job --memory lots", 2, "is not an amount"),
        ("limit nobody --memory 1GiB", 1, "there is no job `nobody`"),
        ("limit 4711 --memory 1GiB", 1, "there is no job 4711"),
    ] {
        let ended = told(&mut machine.sublet(words))?;
        assert_eq!(ended.code, Some(code), "{words}: {ended:?}");
        assert!(ended.errors.contains(part), "{words}: {ended:?}");
    }
    assert_eq!(machine.tenant("job")?["limitMiB"], 1024);
    assert_eq!(job.end()?.code, Some(0));
    Ok(())
}

/// The first thing that the CUDA runtime does, and so PyTorch: it asks for a table that only NVIDIA's
/// driver has.
#[test]
fn a_program_on_the_cuda_runtime_hears_why_it_fails() -> Result<()> {
    let Some(machine) = Machine::new(EXACT)? else {
        return Ok(());
    };
    let mut calls = machine.calls("--memory 1GiB")?;
    let table = "cuGetExportTable &table bytes:d4082055bde6704b8d34ba123c66e1f2";
    assert_eq!(calls.call(table)?, "801");
    let ended = calls.into_running().end()?;
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let said = "sublet: CMD uses the CUDA runtime";
    assert_eq!(ended.errors.matches(said).count(), 1, "{ended:?}");
    Ok(())
}

/// On a machine with a real driver the second half does not apply.
#[test]
fn what_is_missing_is_named() -> Result<()> {
    let Some(machine) = Machine::new(EXACT)? else {
        return Ok(());
    };
    let ended = told(&mut machine.sublet("limit 1 --memory 1GiB"))?;
    assert_eq!(ended.code, Some(1), "{ended:?}");
    for part in ["no arbiter runs for", "admin.sock", "hint: "] {
        assert!(ended.errors.contains(part), "{ended:?}");
    }
    // A program that is told of a folder without a socket, as a container would be.
    let driver = machine.built("libsublet_fakecuda.so");
    let empty = machine.path().join("empty");
    std::fs::create_dir(&empty)?;
    for (mode, code) in [("strict", 1), ("compat", 0)] {
        let reach = machine.built("libsublet_cuda.so");
        let mut command = machine.direct(&format!("info --reach {}", reach.display()));
        command
            .env("SUBLET_DIR", &empty)
            .env("SUBLET_MODE", mode)
            .env("SUBLET_DRIVER_CUDA", &driver);
        let ended = told(&mut command)?;
        assert_eq!(ended.code, Some(code), "{mode}: {ended:?}");
        let report = ended.lines.last().context("no report")?;
        assert_eq!(
            report.contains("CUDA_ERROR_NOT_PERMITTED"),
            code == 1,
            "{report}"
        );
    }
    let mut run = machine.command(machine.built("sublet"));
    let ended = told(run.args(["run", "--memory", "1GiB", "--", "true"]))?;
    if ended.code == Some(0) {
        println!("skipped: this machine has a driver");
        return Ok(());
    }
    assert_eq!(ended.code, Some(1), "{ended:?}");
    for part in [
        "libcuda.so.1 is in none of",
        "/usr/lib64",
        "SUBLET_DRIVER_CUDA",
        "--fake-gpu",
    ] {
        assert!(ended.errors.contains(part), "{ended:?}");
    }
    Ok(())
}
