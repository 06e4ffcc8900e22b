//! A program at a terminal ends with it, whether by the end of the terminal, a hang-up or SIGTERM,
//! and gives the terminal back as it was.

use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, ExitStatus};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::process::{Signal, kill_process};
use sublet_e2e::one_machine::{Machine, Running, Terminal, until};

const SPEC: &str = "1x4GiB,context=0MiB";

/// Longest time of the end. It takes milliseconds, and a second if the terminal is stuck.
const SOON: Duration = Duration::from_secs(10);

/// Way in which a program is told to end.
#[derive(Debug, Clone, Copy)]
enum Told {
    /// The window was closed.
    Closed,
    Signal(Signal),
    /// A signal, where the terminal takes no more output.
    Stuck(Signal),
}

const ALL: [Told; 6] = [
    Told::Closed,
    Told::Signal(Signal::HUP),
    Told::Signal(Signal::TERM),
    Told::Signal(Signal::INT),
    Told::Stuck(Signal::HUP),
    Told::Stuck(Signal::TERM),
];

impl Told {
    /// The signal that it is, or is like.
    fn signal(self) -> i32 {
        match self {
            Told::Closed => Signal::HUP.as_raw(),
            Told::Signal(signal) | Told::Stuck(signal) => signal.as_raw(),
        }
    }
}

/// Starts a program at a terminal, as the terminal's master or not, waits until the terminal
/// shows `words`, and tells it to end.
fn ended(program: &Command, words: &str, told: Told, is_master: bool) -> Result<ExitStatus> {
    let mut terminal = Terminal::open()?;
    let before = terminal.settings()?;
    let mut command = Command::new(program.get_program());
    if is_master {
        command = Command::new("setsid");
        command.arg("--ctty").arg(program.get_program());
    }
    command.args(program.get_args());
    for (name, value) in program.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    let mut sitting = terminal.start(&mut command)?;
    terminal.shows(words)?;
    let begun = Instant::now();
    match told {
        Told::Closed => drop(terminal),
        Told::Signal(signal) | Told::Stuck(signal) => {
            let is_stuck = matches!(told, Told::Stuck(_));
            if is_stuck {
                terminal.holds_output()?;
            }
            kill_process(sitting.pid(), signal)?;
            until("its end", || {
                if !is_stuck {
                    terminal.shows("")?;
                }
                sitting.has_ended()
            })?;
            let after = terminal.settings()?;
            ensure!(after.local_modes == before.local_modes, "{after:?}");
            ensure!(after.input_modes == before.input_modes, "{after:?}");
        }
    }
    let status = sitting.end()?;
    let time = begun.elapsed();
    ensure!(time < SOON, "{told:?}: {time:?}");
    Ok(status)
}

fn holder(machine: &Machine) -> Result<Running> {
    let hold = "alloc --size 64MiB --hold stdin";
    let mut holder = Running::start(&mut machine.job("--name holder", hold))?;
    holder.report()?;
    Ok(holder)
}

#[test]
fn top_ends_with_its_terminal() -> Result<()> {
    let Some(machine) = Machine::new(SPEC)? else {
        return Ok(());
    };
    let _holder = holder(&machine)?;
    for is_master in [false, true] {
        for told in ALL {
            let status = ended(&machine.sublet("top"), "holder", told, is_master)?;
            assert_eq!(
                status.signal(),
                Some(told.signal()),
                "{told:?}, {is_master}: {status:?}"
            );
        }
    }
    Ok(())
}

#[test]
fn top_is_left_by_keys_and_costs_little_meanwhile() -> Result<()> {
    let Some(machine) = Machine::new(SPEC)? else {
        return Ok(());
    };
    let _holder = holder(&machine)?;
    for keys in ["q", "\x03", "\x1b", "\x1b[B\x1b[5~q"] {
        let mut terminal = Terminal::open()?;
        let before = terminal.settings()?;
        let mut top = terminal.start(&mut machine.sublet("top"))?;
        terminal.shows("scroll")?;
        let (from, since) = (top.work()?, Instant::now());
        while keys == "q" && since.elapsed() < Duration::from_secs(2) {
            terminal.shows("")?;
            std::thread::sleep(Duration::from_millis(20));
        }
        let work = top.work()? - from;
        let time = since.elapsed();
        assert!(work < 60, "{work} hundredths of a second in {time:?}");
        terminal.types(keys)?;
        terminal.shows("\x1b[?1049l")?;
        assert_eq!(top.end()?.code(), Some(0), "{keys:?}");
        assert_eq!(terminal.settings()?.local_modes, before.local_modes);
    }
    Ok(())
}

#[test]
fn top_takes_up_an_arbiter_that_comes_and_goes_on_when_it_ends() -> Result<()> {
    let Some(machine) = Machine::new(SPEC)? else {
        return Ok(());
    };
    let mut terminal = Terminal::open()?;
    let mut top = terminal.start(&mut machine.sublet("top"))?;
    terminal.shows("scroll")?;
    assert!(machine.arbiter().is_err(), "it has started one");
    let first = holder(&machine)?;
    terminal.shows("holder")?;
    assert_eq!(first.end()?.code, Some(0));
    kill_process(machine.arbiter()?, Signal::TERM)?;
    terminal.shows("looking")?;
    let hold = "alloc --size 64MiB --hold stdin";
    let second = Running::start(&mut machine.job("--name second", hold))?;
    terminal.shows("second")?;
    terminal.types("q")?;
    terminal.shows("\x1b[?1049l")?;
    assert_eq!(top.end()?.code(), Some(0));
    assert_eq!(second.end()?.code, Some(0));
    Ok(())
}

#[test]
fn a_wait_ends_with_its_terminal() -> Result<()> {
    let Some(machine) = Machine::new(SPEC)? else {
        return Ok(());
    };
    let holder = holder(&machine)?;
    let mut run = machine.run("--memory 1GiB --name waits");
    run.arg("true");
    for is_master in [false, true] {
        for told in ALL {
            let status = ended(&run, "waiting, next in the queue", told, is_master)?;
            let signal = told.signal();
            let is_so = status.code() == Some(128 + signal) || status.signal() == Some(signal);
            assert!(is_so, "{told:?}, {is_master}: {status:?}");
        }
    }
    until("the queue to be empty", || {
        let top = machine.top()?;
        ensure!(top["jobs"].as_array().map(Vec::len) == Some(1), "{top}");
        Ok(())
    })?;
    assert_eq!(holder.end()?.code, Some(0));
    Ok(())
}

/// As `nohup` has it, and as a shell does that leaves a job behind.
#[test]
fn a_wait_that_was_left_behind_goes_on_without_its_terminal() -> Result<()> {
    let Some(machine) = Machine::new(SPEC)? else {
        return Ok(());
    };
    let sublet = machine.built("sublet").display().to_string();
    let run = |name| {
        format!("{sublet} run --fake-gpu {SPEC} --memory 1GiB --name {name} -- touch ran-{name}")
    };
    for (name, typed) in [
        ("nohup", format!("(trap '' HUP; {})\n", run("nohup"))),
        ("disown", format!("{} & disown\n", run("disown"))),
    ] {
        let holder = holder(&machine)?;
        let mut terminal = Terminal::open()?;
        let mut shell = machine.command("setsid");
        shell.args(["--ctty", "bash", "--norc", "-i"]);
        let mut shell = terminal.start(&mut shell)?;
        terminal.types(&typed)?;
        terminal.shows("waiting, next in the queue")?;
        drop(terminal);
        shell.end()?;
        let row = machine.tenant(name)?;
        assert_eq!(row["state"], "waiting", "{row}");
        // News of the queue is heard, and changes nothing.
        let next = Running::start(&mut machine.job("--memory 1GiB --name next", "info"))?;
        next.until_error("place 2 in the queue")?;
        assert_eq!(holder.end()?.code, Some(0));
        until(name, || {
            let file = machine.path().join(format!("ran-{name}"));
            file.is_file().then_some(()).context("it has not run")
        })?;
        assert_eq!(next.end()?.code, Some(0));
    }
    Ok(())
}

#[test]
fn a_simulation_ends_with_its_terminal() -> Result<()> {
    let Some(machine) = Machine::new(SPEC)? else {
        return Ok(());
    };
    let traces = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../fixtures/traces/openb");
    // Hours of work.
    let mut simulate = machine.sublet("simulate --policy fgd --seed 1-1000");
    for (list, file) in [
        ("--nodes", "openb_node_list_gpu_node.csv.gz"),
        ("--pods", "openb_pod_list_default.csv.gz"),
    ] {
        simulate.arg(list).arg(traces.join(file));
    }
    for told in ALL {
        let status = ended(&simulate, "0 of 1000 runs done", told, false)?;
        assert_eq!(status.signal(), Some(told.signal()), "{told:?}: {status:?}");
    }
    Ok(())
}
