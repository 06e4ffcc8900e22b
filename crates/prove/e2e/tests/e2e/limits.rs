//! Not a byte more than the limit: by every way to get memory, with processes that race, while
//! the limit is lowered, and whatever happens to the processes meanwhile.
//!
//! The referee is the driver's own count, by NVML: whole blocks of 2 MiB, not what programs asked.
//! Any sequence of sizes, on drivers that pack in other ways, is in `limits/packing.rs`; graphs
//! past a driver that tells little are in `limits/graphs.rs`, code in `limits/modules.rs`; pinned
//! memory of the machine is in `limits/pinned.rs`.

mod graphs;
mod modules;
mod packing;
mod pinned;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use rustix::process::{Signal, kill_process};
use serde_json::json;
use sublet_e2e::one_machine::{Ended, Machine, Running, mib, number, pid_of, until};

use crate::known_failures::START;

/// Contexts that cost nothing, so that every byte on a card is one that a program asked for.
const EXACT: &str = "1x16GiB,context=0MiB";

/// Cost of a context if the description does not set it.
const CONTEXT: u64 = mib(480);

/// Every way to get memory of a card, and the size of its blocks in MiB. Managed memory has to be
/// told an end: without a limit it would take the machine's. A descriptor that holds a block is
/// one of the few that a process may have; and of a graph with branches the last block shows
/// whether it was charged for more than its addresses.
const PATHS: [(&str, u64); 19] = [
    ("plain", 2),
    ("pitch", 2),
    ("managed --count 600", 2),
    ("async", 2),
    ("pool", 2),
    ("vmm", 2),
    ("array", 2),
    ("mipmap", 2),
    ("graph", 2),
    ("branches", 256),
    ("capture", 2),
    ("nested", 2),
    ("ipc", 2),
    ("multicast", 2),
    ("descriptor", 16),
    ("dma-buf", 16),
    ("external", 16),
    ("external-array", 16),
    ("sparse", 2),
];

/// Before `cuInit` a program hears that, as from the driver: not that memory is short, since nobody
/// has asked for any, nor that its card is none.
#[test]
fn a_program_that_has_not_started_the_driver_is_told_so() -> Result<()> {
    let Some(machine) = Machine::new(EXACT)? else {
        return Ok(());
    };
    let mut calls = machine.calls("--memory 64MiB")?;
    calls.play(
        "
        cuCtxCreate_v2 &context 0 0 -> 3
        cuDevicePrimaryCtxRetain &context 0 -> 3
        cuMemCreate &handle 2M struct:32:1,0,1,0 0 -> 3
        nvmlDeviceGetHandleByIndex_v2 0 null -> 1
        nvmlSystemGetProcessName 1 &name 8 -> 1
        ",
    )?;
    calls.end()
}

/// One path on a machine of its own: what one does to the estimate of a context must not be
/// seen by the next.
fn check_path(machine: &Machine, path: &str, size_mib: u64) -> Result<()> {
    // The card has room for sixteen times the limit: one that is not stopped is seen.
    let limit = mib(1024);
    let words = format!("alloc --path {path} --until-oom --size {size_mib}MiB --hold stdin");
    let mut job = Running::start(&mut machine.job("--memory 1GiB --name job", &words))?;
    let report = job.report()?;
    let row = machine.tenant("job")?;
    let used = machine.card(0)?.used;
    let bytes = number(&report["bytes"])?;
    println!(
        "{path}: {bytes} bytes of {limit}, the driver counts {used}: {} MiB by its rounding",
        used.saturating_sub(bytes) >> 20
    );
    ensure!(
        report["refused"]["name"] == "CUDA_ERROR_OUT_OF_MEMORY",
        "{report}"
    );
    ensure!(used <= limit, "too much, {used}: {report}");
    ensure!(
        used >= limit - mib(64),
        "stopped too early, {used}: {report}"
    );
    ensure!(report["totalMem"] == limit, "{report}");
    ensure!(report["memory"]["total"] == limit, "{report}");
    let left = number(&report["memory"]["free"])?;
    ensure!(left <= limit - bytes, "{report}");
    ensure!(mib(number(&row["usedMiB"])?) == used, "{row}");
    ensure!(row["perGpu"][0]["overheadMiB"] == 0, "{row}");
    let ended = job.end()?;
    ensure!(ended.code == Some(0), "{ended:?}");
    until("the memory to be back", || {
        let top = machine.top()?;
        ensure!(
            top["gpus"][0]["usedMiB"] == 0 && top["jobs"] == json!([]),
            "{top}"
        );
        Ok(())
    })
}

#[test]
fn every_path_stops_at_the_limit() -> Result<()> {
    let mut wrong = Vec::new();
    for (path, size_mib) in PATHS {
        let Some(machine) = Machine::new(EXACT)? else {
            return Ok(());
        };
        if let Err(error) = check_path(&machine, path, size_mib) {
            wrong.push(format!("{path}: {error:#}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    Ok(())
}

/// The cost of a context is known before the first job of a machine, and is part of its limit.
#[test]
fn contexts_are_charged_before_they_are_made() -> Result<()> {
    let Some(machine) = Machine::new("1x16GiB")? else {
        return Ok(());
    };
    let words = "alloc --until-oom --size 2MiB --hold stdin";
    for round in 0..3 {
        let mut job = Running::start(&mut machine.job("--memory 1GiB --name job", words))?;
        let report = job.report()?;
        let used = machine.card(0)?.used;
        ensure!(used == mib(1024), "round {round}: {used}, {report}");
        let row = machine.tenant("job")?;
        ensure!(
            row["state"] == "running" && row["usedMiB"] == 1024,
            "round {round}: {row}"
        );
        ensure!(row["perGpu"][0]["contextMiB"] == CONTEXT >> 20, "{row}");
        job.end()?;
    }
    assert_eq!(machine.top()?["gpus"][0]["contextMiB"], 480);
    Ok(())
}

/// An innocent job's 3-MiB blocks were once taken for a context of 2,480 MiB, and nobody could
/// start after it. Nothing that a job does changes what others are charged for a context.
#[test]
fn no_job_changes_what_a_context_costs_others() -> Result<()> {
    let Some(machine) = Machine::new("1x16GiB")? else {
        return Ok(());
    };
    for size in ["3MiB", "2100000", "1048577"] {
        let words = format!("alloc --until-oom --size {size} --hold stdin");
        let mut job = Running::start(&mut machine.job("--memory 5GiB --name odd", &words))?;
        job.report()?;
        ensure!(machine.card(0)?.used <= mib(5120), "{size}");
        // Readings of the driver come five times a second.
        let other = machine.report("--memory 1GiB", "alloc --until-oom --hold 1")?;
        assert_eq!(other["bytes"], mib(1024 - 480), "{size}: {other}");
        job.end()?;
        assert_eq!(machine.top()?["gpus"][0]["contextMiB"], 480, "{size}");
    }
    Ok(())
}

#[test]
fn processes_that_race_get_the_limit_and_no_more() -> Result<()> {
    let mixes = [
        ("--path plain --size 2MiB --down-to 512", true),
        ("--path plain --size 3MiB --down-to 512", true),
        ("--path vmm --size 4MiB --down-to 2MiB", true),
        ("--path plain --path vmm --path array --size 2MiB", true),
        (
            "--path async --path pool --path plain --size 1MiB --down-to 512",
            false,
        ),
        ("--path graph --size 2MiB", true),
        (
            "--path plain --path pool --path vmm --path graph --path pitch --path mipmap",
            false,
        ),
    ];
    let mut wrong = Vec::new();
    for (mix, is_exact) in mixes {
        let Some(machine) = Machine::new(EXACT)? else {
            return Ok(());
        };
        let words = format!("race --processes 12 {mix} --hold stdin");
        let begin = Instant::now();
        let mut job = Running::start(&mut machine.job("--memory 768MiB --name race", &words))?;
        let bytes = number(&job.report()?["bytes"])?;
        let used = machine.card(0)?.used;
        job.end()?;
        println!(
            "{mix}: {used} of {} bytes in {:?}, {bytes} as they were asked",
            mib(768),
            begin.elapsed()
        );
        let is_right = used == mib(768) || !is_exact && used <= mib(768) && used > mib(256);
        if !is_right {
            wrong.push(format!("{mix}: {used}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    Ok(())
}

#[test]
fn a_killed_process_s_memory_is_back_within_a_second() -> Result<()> {
    let Some(machine) = Machine::new("1x16GiB")? else {
        return Ok(());
    };
    // The job's shell lives on, so that it is the process's death that is noticed.
    let workload = machine.built("sublet-workload").display().to_string();
    let script = format!("{workload} alloc --size 512MiB --hold stdin; echo over; read line");
    let mut times = Vec::new();
    for _ in 0..5 {
        let mut run = machine.run("--memory 2GiB --name job");
        let mut job = Running::start(run.args(["sh", "-c", &script]))?;
        let pid = pid_of(&job.report()?["pid"])?;
        until("its memory", || {
            let row = machine.tenant("job")?;
            ensure!(number(&row["usedMiB"])? >= 512, "{row}");
            Ok(())
        })?;
        let begin = Instant::now();
        kill_process(pid, Signal::KILL)?;
        until("its memory to be back", || {
            let row = machine.tenant("job")?;
            ensure!(row["usedMiB"] == 0 && row["pids"] == json!([]), "{row}");
            Ok(())
        })?;
        let time = begin.elapsed();
        assert!(time < Duration::from_secs(1), "{time:?}");
        times.push(time.as_millis());
        assert_eq!(job.line()?, "over");
        job.end()?;
    }
    let top = machine.top()?;
    println!(
        "memory back after SIGKILL, by sublet top, ms: {times:?}; by the arbiter's own clock at \
         most {} us",
        top["counters"]["reclaimMaxUs"]
    );
    Ok(())
}

fn limit(machine: &Machine, words: &str) -> Result<Ended> {
    Running::start(&mut machine.sublet(&format!("limit {words}")))?.end()
}

#[test]
fn a_lowered_limit_takes_nothing_and_gives_nothing_new() -> Result<()> {
    let Some(machine) = Machine::new(EXACT)? else {
        return Ok(());
    };
    // Two programs of one job, one after the other.
    let workload = machine.built("sublet-workload").display().to_string();
    let script = format!(
        "{workload} alloc --size 1GiB --hold 600 & read line; \
         {workload} alloc --size 512; read line; \
         {workload} alloc --size 2MiB --until-oom; kill $!; wait $!; \
         {workload} alloc --size 2MiB --until-oom"
    );
    let mut run = machine.run("--memory 2GiB --name job");
    let mut job = Running::start(run.args(["sh", "-c", &script]))?;
    job.report()?;
    let lowered = limit(&machine, "job --memory 512MiB")?;
    assert_eq!(lowered.code, Some(0), "{lowered:?}");
    assert!(lowered.errors.contains("no new memory"), "{lowered:?}");
    let row = machine.tenant("job")?;
    assert_eq!(row["state"], "over", "{row}");
    assert_eq!(row["limitMiB"], 512, "{row}");
    assert_eq!(row["usedMiB"], 1024, "{row}");
    assert_eq!(machine.card(0)?.used, mib(1024));
    job.say("")?;
    let refused = job.report()?;
    assert_eq!(
        refused["error"]["name"], "CUDA_ERROR_OUT_OF_MEMORY",
        "{refused}"
    );
    let row = machine.tenant("job")?;
    assert!(row["perGpu"][0]["lastRefusal"].is_object(), "{row}");
    // The other way.
    let raised = limit(&machine, "job --memory 3GiB")?;
    assert_eq!(
        (raised.code, raised.errors.as_str()),
        (Some(0), ""),
        "{raised:?}"
    );
    assert_eq!(machine.tenant("job")?["state"], "running");
    job.say("")?;
    assert_eq!(job.report()?["bytes"], mib(2048));
    assert_eq!(job.report()?["bytes"], mib(3072));
    let too_much = limit(&machine, "job --memory 17GiB")?;
    assert_eq!(too_much.code, Some(1), "{too_much:?}");
    job.end()?;
    Ok(())
}

/// Threads take and give memory all the time; from the moment at which `sublet limit` has
/// returned, the job's count never rises above the new limit again.
#[test]
fn no_reservation_against_the_old_limit_succeeds() -> Result<()> {
    let Some(machine) = Machine::new(EXACT)? else {
        return Ok(());
    };
    let hammer = "threads --threads 6 --rounds 100000000 --size 64MiB --hold 8";
    let job = Running::start(&mut machine.job("--memory 4GiB --name job", hammer))?;
    until("it to take memory", || {
        let row = machine.tenant("job")?;
        ensure!(number(&row["usedMiB"])? > 1024, "{row}");
        Ok(())
    })?;
    let mut highest_low = 0;
    for round in 0..10 {
        let low = 256 + 64 * round;
        let lowered = limit(&machine, &format!("job --memory {low}MiB"))?;
        assert_eq!(lowered.code, Some(0), "{lowered:?}");
        // It has at most what it had; once below, it never comes above.
        until("it to come below", || {
            let row = machine.tenant("job")?;
            let used = number(&row["usedMiB"])?;
            ensure!(used <= low, "{row}");
            Ok(())
        })?;
        for _ in 0..10 {
            let used = number(&machine.tenant("job")?["usedMiB"])?;
            assert!(
                used <= low,
                "round {round}: {used} MiB in use, {low} are allowed"
            );
            highest_low = highest_low.max(used);
        }
        assert_eq!(limit(&machine, "job --memory 4GiB")?.code, Some(0));
        until("it to use the room", || {
            let row = machine.tenant("job")?;
            ensure!(number(&row["usedMiB"])? > 1024, "{row}");
            Ok(())
        })?;
    }
    println!("under limits from 256 to 832 MiB it used at most {highest_low} MiB");
    job.signal(Signal::TERM)?;
    assert_eq!(job.end()?.code, Some(143));
    Ok(())
}

/// A process that only ever takes. Its memory when `sublet limit` returns is at most the old limit,
/// and no block comes after that.
#[test]
fn a_process_that_only_takes_is_stopped_by_a_lowered_limit() -> Result<()> {
    let Some(machine) = Machine::new(EXACT)? else {
        return Ok(());
    };
    let mut stopped_at = Vec::new();
    for _ in 0..5 {
        let words = "alloc --size 512 --until-oom --hold stdin";
        let mut job = Running::start(&mut machine.job("--memory 12GiB --name job", words))?;
        until("it to take memory", || {
            let row = machine.tenant("job")?;
            ensure!(number(&row["usedMiB"])? > 0, "{row}");
            Ok(())
        })?;
        let lowered = limit(&machine, "job --memory 1MiB -o json")?.document()?;
        let bytes = number(&lowered["usedMiB"])?;
        let report = job.report()?;
        let got = number(&report["bytes"])?;
        assert!(
            got <= mib(bytes),
            "{got} bytes, after it had {bytes} MiB when limit returned"
        );
        stopped_at.push(got);
        job.end()?;
    }
    println!("stopped at, bytes: {stopped_at:?}");
    Ok(())
}

#[test]
fn forks_execs_and_threads_are_held_to_the_limit() -> Result<()> {
    let Some(machine) = Machine::new(EXACT)? else {
        return Ok(());
    };
    // Each has 8 MiB if it gets any: the parent and the two children that may use the driver.
    let mut calls = machine.calls("--memory 24MiB")?;
    calls.play_in(0, START)?;
    calls.play_in(0, "cuMemAlloc_v2 &a 8M")?;
    calls.play("cuDriverGetVersion &version")?;
    calls.play_in(1, START)?;
    calls.play_in(1, "cuMemAlloc_v2 &a 8M")?;
    calls.play(START)?;
    calls.play("cuMemAlloc_v2 &a 8M\ncuMemAlloc_v2 &b 2M -> 2")?;
    // A child that was forked after the parent's cuInit has no driver.
    calls.play_in(2, "cuInit 0 -> 3")?;
    calls.end()?;

    // What a life before exec had is free again: each life has the whole limit.
    let mut calls = machine.calls("--memory 128MiB")?;
    let (program, pid) = (machine.caller()?, calls.call("getpid")?);
    for _ in 0..4 {
        calls.play(START)?;
        calls.play("cuMemAlloc_v2 &a 128M\ncuMemAlloc_v2 &b 2M -> 2")?;
        calls.tell(&format!("execl \"{program} \"{program} null"))?;
        assert_eq!(calls.call("getpid")?, pid);
    }
    calls.end()?;

    for path in ["plain", "vmm", "async", "pool"] {
        let words = format!("threads --threads 8 --rounds 300 --size 8MiB --path {path}");
        let report = machine.report("--memory 64MiB", &words)?;
        let highest = number(&report["highestBytes"])?;
        let refusals = number(&report["refusals"])?;
        println!(
            "threads, {path}: highest {highest} of {}, {refusals} refusals",
            mib(64)
        );
        assert!(highest <= mib(64) && refusals > 0, "{path}: {report}");
        assert_eq!(report["leftBytes"], 0, "{path}: {report}");
    }
    Ok(())
}

/// Jobs side by side, each racing for all it can get, while `sublet top` looks on.
#[test]
fn no_job_is_ever_seen_above_its_limit() -> Result<()> {
    let Some(machine) = Machine::new(EXACT)? else {
        return Ok(());
    };
    let race = "race --processes 6 --path plain --path vmm --size 1MiB --down-to 512";
    let is_over = AtomicBool::new(false);
    let (mut looks, mut highest) = (0, 0);
    std::thread::scope(|scope| -> Result<()> {
        let jobs = scope.spawn(|| -> Result<()> {
            let run = || -> Result<()> {
                for _ in 0..3 {
                    let names =
                        ["a", "b", "c"].map(|name| format!("--memory 512MiB --name {name}"));
                    let start = |flags: &String| Running::start(&mut machine.job(flags, race));
                    let jobs: Result<Vec<_>> = names.iter().map(start).collect();
                    for job in jobs? {
                        let report = job.end()?.report()?;
                        // At the first refusal each other one may have held a piece back.
                        let bytes = number(&report["bytes"])?;
                        ensure!(bytes <= mib(512) && bytes >= mib(512 - 5 * 2), "{report}");
                    }
                }
                Ok(())
            };
            let outcome = run();
            is_over.store(true, Ordering::SeqCst);
            outcome
        });
        while !is_over.load(Ordering::SeqCst) {
            let Ok(top) = machine.top() else { continue };
            for row in top["jobs"].as_array().into_iter().flatten() {
                let used = number(&row["usedMiB"])?;
                highest = highest.max(used);
                assert!(used <= 512, "{row}");
            }
            assert!(machine.card(0)?.used <= mib(3 * 512));
            looks += 1;
        }
        jobs.join()
            .map_err(|_| anyhow::anyhow!("a thread panicked"))?
    })?;
    println!("{looks} looks, the highest use was {highest} of 512 MiB");
    assert!(looks > 0);
    Ok(())
}
