//! Row 6: a process is killed while it takes memory. Processes that waited beside it go on at once,
//! and limits still hold.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use sublet_e2e::one_machine::{Machine, Running, is_alive, mib, pid_of, until};

use crate::known_failures::EXACT;

/// Every way to get memory of a card.
const PATHS: [&str; 10] = [
    "plain", "pitch", "managed", "async", "pool", "vmm", "array", "mipmap", "graph", "ipc",
];

/// The next report, past the word of `regain` that it was refused once.
fn report(job: &mut Running) -> Result<Value> {
    loop {
        let line = job.line()?;
        if line != "ready" {
            return serde_json::from_str(&line).with_context(|| line.clone());
        }
    }
}

/// Starts a hammer, and waits until it has an account.
fn hammer(machine: &Machine, job: &mut Running) -> Result<Pid> {
    job.say("hammer")?;
    let pid = pid_of(&serde_json::from_str(&job.line()?)?)?;
    until("it to take memory", || {
        let row = machine.tenant("job")?;
        let pids = row["pids"].as_array().context("no pids")?;
        let is_in = pids.iter().any(|one| *one == pid.as_raw_nonzero().get());
        ensure!(is_in, "{row}");
        Ok(())
    })?;
    Ok(pid)
}

fn killed_on_path(path: &str) -> Result<Option<u128>> {
    let Some(machine) = Machine::new(EXACT)? else {
        return Ok(None);
    };
    let workload = machine.built("sublet-workload").display().to_string();
    let threads = format!("{workload} threads --threads 2 --size 8MiB --hold 2 --path {path}");
    // The shell is told what to start. A hammer runs until it is killed.
    let script = format!(
        "while read verb; do case $verb in \
         hammer) {threads} --rounds 1000000000 > hammer & echo $! ;; \
         neighbour) {threads} --rounds 300 ;; \
         regain) {workload} regain --size 64MiB --seconds 10 ;; \
         all) {workload} alloc --until-oom ;; esac; done"
    );
    let mut run = machine.run("--memory 64MiB --name job");
    let mut job = Running::start(run.args(["sh", "-c", &script]))?;
    let waiting = hammer(&machine, &mut job)?;
    let seed = fastrand::u64(..);
    let mut random = fastrand::Rng::with_seed(seed);
    for _ in 0..3 {
        let hammer = hammer(&machine, &mut job)?;
        std::thread::sleep(Duration::from_micros(random.u64(..30_000)));
        kill_process(hammer, Signal::KILL)?;
    }
    // One that was beside them all the time goes on, and so does one that comes now.
    job.say("neighbour")?;
    let neighbour = report(&mut job)?;
    assert_eq!(
        neighbour["ok"],
        json!(true),
        "{path}, seed {seed}: {neighbour}"
    );
    assert_eq!(
        neighbour["leftBytes"], 0,
        "{path}, seed {seed}: {neighbour}"
    );
    assert!(is_alive(waiting), "{path}, seed {seed}: {}", job.errors());
    kill_process(waiting, Signal::KILL)?;
    let begin = Instant::now();
    job.say("regain")?;
    let regained = report(&mut job)?;
    assert_eq!(
        regained["ok"],
        json!(true),
        "{path}, seed {seed}: {regained}"
    );
    let time = begin.elapsed();
    job.say("all")?;
    let all = report(&mut job)?;
    assert_eq!(all["bytes"], mib(64), "{path}, seed {seed}: {all}");
    let ended = job.end()?;
    ensure!(ended.code == Some(0), "{ended:?}");
    until("nothing to be left", || {
        let used = machine.card(0)?.used;
        ensure!(used == 0, "{used} bytes are in use");
        Ok(())
    })?;
    Ok(Some(time.as_millis()))
}

/// A process that was killed with a lock let all others wait for five minutes, and then run
/// without any limit (HAMi-core#86, HAMi-core#248, HAMi#2500).
#[test]
fn row_06_a_process_killed_on_any_path_to_memory_holds_nobody_up() -> Result<()> {
    let mut wrong = Vec::new();
    for path in PATHS {
        match killed_on_path(path) {
            Ok(None) => return Ok(()),
            Ok(Some(time)) => println!("{path}: all of the limit again after {time} ms"),
            Err(error) => wrong.push(format!("{path}: {error:#}")),
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    Ok(())
}

/// Time in which processes are killed, and the least number of them: fewer prove little.
const BUDGET: Duration = Duration::from_secs(20);
const LEAST: usize = 20;

/// An answer of the stepper: a word and a number.
fn answer(stepper: &mut Running, line: &str) -> Result<Option<(String, u64)>> {
    stepper.say(line)?;
    let answer = stepper.line()?;
    if answer == "not allowed" {
        return Ok(None);
    }
    let parts = answer.split_once(' ').map(|(how, n)| (how, n.parse()));
    match parts {
        Some((how, Ok(n))) if how != "astray" => Ok(Some((how.to_owned(), n))),
        _ => bail!("{line}: {answer}; {}", stepper.errors()),
    }
}

/// The reserve protocol alone is killed at every instruction where it lives, in `sublet-abi`.
/// Here all of the way is under it: the exported name, the hook, the books, the account and the
/// driver. There are too many instructions for each, so they are sampled, spread evenly; a
/// neighbour then gets all of the limit, and not a byte more.
#[test]
fn row_06_a_process_killed_at_any_instruction_of_a_call_leaks_nothing() -> Result<()> {
    let Some(machine) = Machine::new(EXACT)? else {
        return Ok(());
    };
    let stepper = machine.compile("stepper.c", &["-O1", "-ldl"])?;
    let mut run = machine.run("--memory 64MiB --name job");
    let run = run.arg(stepper).arg(mib(64).to_string());
    let mut stepper = Running::start(run)?;
    let mut counts = Vec::new();
    for how in ["cold", "warm"] {
        let Some((count, _)) = answer(&mut stepper, &format!("count {how}"))? else {
            println!("skipped: the system allows no ptrace");
            return Ok(());
        };
        counts.push((how, count.parse::<u64>()?));
    }
    let (begin, mut n_killed, mut slowest) = (Instant::now(), 0, 0);
    // The golden ratio's multiples are spread evenly wherever one ends.
    let mut place = 0.0_f64;
    while begin.elapsed() < BUDGET {
        place = (place + 0.618_033_988_749_895).fract();
        for (how, count) in &counts {
            let at = (place * *count as f64) as u64;
            let killed = answer(&mut stepper, &format!("kill {how} {at}"));
            let killed = killed.with_context(|| format!("{:?}", machine.tenant("job")))?;
            let (fate, time_us) = killed.context("it was allowed before")?;
            n_killed += usize::from(fate == "killed");
            slowest = time_us.max(slowest);
        }
    }
    println!(
        "killed at {n_killed} of {counts:?} instructions; the limit was there again after at \
         most {slowest} us"
    );
    assert!(n_killed >= LEAST, "only {n_killed} in {BUDGET:?}");
    let row = machine.tenant("job")?;
    assert_eq!(row["usedMiB"], 0, "{row}");
    let ended = stepper.end()?;
    ensure!(ended.code == Some(0), "{ended:?}");
    until("nothing to be left", || {
        let top = machine.top()?;
        ensure!(top["jobs"] == json!([]), "{top}");
        ensure!(machine.card(0)?.used == 0, "{top}");
        Ok(())
    })
}
