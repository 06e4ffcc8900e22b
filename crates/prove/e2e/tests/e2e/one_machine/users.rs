//! Several users of one machine: root's arbiter serves all of them, and they wait in one line.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use sublet_e2e::one_machine::{Ended, Machine, Running, mib, until};

/// Two users without rights.
const ANNE: u32 = 61_001;
const BERT: u32 = 61_002;

/// The command as that user, with a home of its own.
fn as_user(machine: &Machine, user: u32, mut command: Command) -> Result<Command> {
    let home = machine.path().join(format!("home-{user}"));
    fs::create_dir_all(&home)?;
    std::os::unix::fs::chown(&home, Some(user), Some(user))?;
    command.env("HOME", &home).uid(user).gid(user);
    Ok(command)
}

/// A job of that user that holds its part until it is told to end.
fn job(machine: &Machine, user: u32, flags: &str) -> Result<Running> {
    let mut command = machine.run(flags);
    command.args(["sh", "-c", "echo '{}'; cat"]);
    Running::start(&mut as_user(machine, user, command)?)
}

fn told(machine: &Machine, user: u32, words: &str) -> Result<Ended> {
    Running::start(&mut as_user(machine, user, machine.sublet(words))?)?.end()
}

/// The line as `sublet queue` shows it: `USER NAME` of each, in order.
fn line(machine: &Machine) -> Result<Vec<String>> {
    let queue: Value = told(machine, BERT, "queue -o json")?.document()?;
    let waiting = queue["waiting"].as_array().context("no list")?;
    let one = |job: &Value| {
        let name = job["name"].as_str().unwrap_or_default();
        format!("{} {name}", job["uid"])
    };
    Ok(waiting.iter().map(one).collect())
}

fn waits_as(machine: &Machine, expected: &[(u32, &str)]) -> Result<()> {
    let expected: Vec<String> = expected
        .iter()
        .map(|(user, name)| format!("{user} {name}"))
        .collect();
    until("the line", || {
        let line = line(machine)?;
        ensure!(line == expected, "{line:?} in place of {expected:?}");
        Ok(())
    })
}

#[test]
fn who_has_less_of_the_cards_goes_first() -> Result<()> {
    let Some(machine) = Machine::of_everybody("2x16GiB,context=0MiB")? else {
        return Ok(());
    };
    let arbiter = Running::start(&mut machine.sublet("agent --standalone --shared"))?;
    until("the arbiter to listen", || machine.arbiter())?;

    let mut first = job(&machine, ANNE, "--memory 12GiB --name first")?;
    first.report()?;
    let mut second = job(&machine, ANNE, "--memory 12GiB --name second")?;
    second.report()?;
    let third = job(&machine, ANNE, "--memory 12GiB --name third")?;
    waits_as(&machine, &[(ANNE, "third")])?;
    let mut own = job(&machine, BERT, "--memory 12GiB --name own")?;
    waits_as(&machine, &[(BERT, "own"), (ANNE, "third")])?;
    let later = job(&machine, BERT, "--memory 1GiB --priority -1 --name later")?;
    waits_as(&machine, &[(BERT, "own"), (ANNE, "third"), (BERT, "later")])?;
    let queue: Value = told(&machine, ANNE, "queue -o json")?.document()?;
    let when = &queue["waiting"][0]["startsWhen"];
    assert_eq!(when, "one of the jobs 1, 2 ends", "{queue}");
    let anne = &queue["users"][0];
    ensure!(anne["user"].is_string(), "{anne}");
    let figures = ["uid", "gpus", "running", "waiting"].map(|key| &anne[key]);
    assert_eq!(json!(figures), json!([ANNE, 1.5, 2, 1]), "{anne}");

    // Nobody goes before others by saying so, and nobody touches what is another's.
    let refused = told(&machine, BERT, "run --priority 1 --memory 1GiB -- true")?;
    assert_eq!(refused.code, Some(1), "{refused:?}");
    assert!(
        refused.errors.contains("priority 1 is above 0")
            && refused.errors.contains("hint: leave out --priority"),
        "{refused:?}"
    );
    let refused = told(&machine, BERT, "limit 1 --memory 1GiB")?;
    assert!(
        refused.errors.contains("job 1 is not yours")
            && refused.errors.contains("hint: its owner can change it"),
        "{refused:?}"
    );

    assert_eq!(first.end()?.code, Some(0));
    own.report()?;
    waits_as(&machine, &[(ANNE, "third"), (BERT, "later")])?;
    for job in [second, own, third, later] {
        assert_eq!(job.end()?.code, Some(0));
    }
    arbiter.signal(rustix::process::Signal::TERM)?;
    assert_eq!(arbiter.end()?.code, Some(0));
    Ok(())
}

/// Root's arbiter serves root alone unless it is told otherwise. Others may look at the cards.
#[test]
fn who_may_not_ask_the_arbiter_sees_the_cards() -> Result<()> {
    let Some(machine) = Machine::of_everybody("2x16GiB,context=0MiB")? else {
        return Ok(());
    };
    let arbiter = Running::start(&mut machine.sublet("agent --standalone"))?;
    until("the arbiter to listen", || machine.arbiter())?;
    for (words, part) in [
        ("ps", "16384 MiB"),
        ("top --once", "16384 MiB"),
        ("queue", "no job waits"),
    ] {
        let seen = told(&machine, ANNE, words)?;
        assert_eq!(seen.code, Some(0), "{words}: {seen:?}");
        assert!(seen.lines.join("\n").contains(part), "{words}: {seen:?}");
        assert!(seen.errors.contains("no arbiter is asked"), "{seen:?}");
        assert!(seen.errors.contains("ermission denied"), "{seen:?}");
    }
    let refused = told(&machine, ANNE, "run --memory 1GiB -- true")?;
    assert_eq!(refused.code, Some(1), "{refused:?}");
    arbiter.signal(rustix::process::Signal::TERM)?;
    assert_eq!(arbiter.end()?.code, Some(0));
    Ok(())
}

/// A job of root's may drop to another user before it loads a library.
#[test]
fn a_job_that_drops_to_another_user_keeps_its_libraries_and_its_limit() -> Result<()> {
    let Some(machine) = Machine::of_everybody("1x16GiB,context=0MiB")? else {
        return Ok(());
    };
    machine.report("--memory 1GiB", "info")?;
    // Everybody may use a card's device file.
    let state = machine.state()?;
    fs::set_permissions(&state, fs::Permissions::from_mode(0o777))?;
    fs::set_permissions(state.join("machine"), fs::Permissions::from_mode(0o666))?;
    for arbiter in ["agent --standalone", "agent --standalone --shared"] {
        let old = machine.arbiter()?;
        machine.kill_arbiter()?;
        let arbiter = Running::start(&mut machine.sublet(arbiter))?;
        until("the arbiter to listen", || {
            ensure!(machine.arbiter()? != old, "it is the old one");
            Ok(())
        })?;
        let mut command = machine.run("--memory 1GiB --name dropped");
        let [user, group] = ["--reuid", "--regid"].map(|flag| format!("{flag}={ANNE}"));
        command.args(["setpriv", &user, &group, "--clear-groups"]);
        command.arg(machine.built("sublet-workload"));
        command.args(["alloc", "--until-oom", "--hold", "stdin"]);
        let mut job = Running::start(&mut command)?;
        let report = job.report()?;
        assert_eq!(report["bytes"], mib(1024), "{report}");
        until("what it has", || {
            let row = machine.tenant("dropped")?;
            ensure!(row["usedMiB"] == 1024, "{row}");
            Ok(())
        })?;
        let ended = job.end()?;
        assert_eq!(ended.code, Some(0), "{ended:?}");
        // Others can pass through its folders, and put nothing there.
        for folder in [machine.folder()?, machine.path().join("run/libraries")] {
            let tried = machine
                .command("touch")
                .arg(folder.join("theirs"))
                .uid(BERT)
                .output()?;
            ensure!(!tried.status.success(), "{} is open", folder.display());
        }
        arbiter.signal(rustix::process::Signal::TERM)?;
        assert_eq!(arbiter.end()?.code, Some(0));
        machine.report("--memory 1GiB", "info")?;
    }
    Ok(())
}
