//! A program of a job that sets variables of CUDA, NVML, MPS, NVIDIA's container toolkit and the
//! loader to get more: no limit of ours moves. `rows` has the variables, as SECURITY.md does.
//!
//! The fake driver obeys those that change what a program sees or may take: `CUDA_VISIBLE_DEVICES`,
//! `CUDA_DEVICE_ORDER`, `CUDA_SCALE_LAUNCH_QUEUES`, `CUDA_INJECTION64_PATH` and MPS's. The others are tried all the same: our
//! own code must not obey them either.

mod rows;

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;
use serde_json::{Value, json};
use sublet_e2e::MpsControl;
use sublet_e2e::one_machine::{Machine, Running, mib, number, until};

use self::rows::{ROWS, Row};
use super::{EXACT, end};
use crate::one_machine::mps::World;
use crate::tenants::{driver, may_mount, with_own_run};

const LIMIT: u64 = mib(256);

/// A workload of a job, with these variables on top of what the job has; `-u NAME` takes one away.
fn start(
    machine: &Machine,
    flags: &str,
    set: impl IntoIterator<Item = String>,
    words: &str,
) -> Result<Running> {
    let mut run = machine.run(flags);
    run.arg("env").args(set);
    run.arg(machine.built("sublet-workload"));
    Running::start(run.args(words.split_whitespace()))
}

fn settings(set: &[(&str, &str)]) -> Vec<String> {
    let texts = set.iter().map(|(name, value)| format!("{name}={value}"));
    texts.collect()
}

/// A job of 256 MiB whose program takes all that it gets has its limit, by its own account, by the
/// arbiter's and by NVML's, and nothing of another card.
fn holds_memory(machine: &Machine, name: &str, set: Vec<String>, path: &str) -> Result<()> {
    let flags = format!("--memory 256MiB --name {name}");
    // Managed memory without a limit would take the machine's.
    let words = format!("alloc --path {path} --count 600 --until-oom --hold stdin");
    let mut job = start(machine, &flags, set, &words)?;
    is_at_its_limit(machine, name, &job.report()?, LIMIT)?;
    let ended = job.end()?;
    ensure!(ended.code == Some(0), "{ended:?}");
    Ok(())
}

fn is_at_its_limit(machine: &Machine, name: &str, report: &Value, bytes: u64) -> Result<()> {
    let refused = &report["refused"]["name"];
    ensure!(refused == "CUDA_ERROR_OUT_OF_MEMORY", "{report}");
    ensure!(report["bytes"] == bytes, "{report}");
    ensure!(report["totalMem"] == LIMIT, "{report}");
    let used = machine.card(0)?.used + machine.card(1)?.used;
    ensure!(used == LIMIT, "NVML counts {used}: {report}");
    let row = machine.tenant(name)?;
    ensure!(mib(number(&row["usedMiB"])?) == LIMIT, "{row}");
    ensure!(row["pids"] == json!([report["pid"]]), "{row}");
    Ok(())
}

/// The rows that are one job each: not those that load code, which have tests of their own.
fn plain_rows() -> impl Iterator<Item = (usize, &'static Row)> {
    let all = ROWS.iter().enumerate();
    all.filter(|(_, row)| !row.loads_code)
}

#[test]
fn no_variable_lifts_a_limit_of_memory() -> Result<()> {
    let Some(machine) = Machine::new(EXACT)? else {
        return Ok(());
    };
    for (at, row) in plain_rows() {
        let held = holds_memory(&machine, &format!("row{at}"), settings(row.set), row.path);
        held.with_context(|| format!("{:?}", row.set))?;
    }
    Ok(())
}

/// Each has a limit of compute time, and would fill the card.
#[test]
fn no_variable_lifts_a_limit_of_compute_time() -> Result<()> {
    let Some(machine) = Machine::new(EXACT)? else {
        return Ok(());
    };
    let rows: Vec<(usize, &Row)> = plain_rows().collect();
    for rows in rows.chunks(10) {
        let mut jobs = Vec::new();
        for (at, row) in rows {
            let flags = format!("--memory 64MiB --compute 0%..4% --name row{at}");
            let job = start(&machine, &flags, settings(row.set), "steady --seconds 60")?;
            jobs.push(job);
        }
        until("all of them to wait", || {
            let top = machine.top()?;
            let jobs = top["jobs"].as_array().context("no jobs")?;
            for (at, row) in rows {
                let name = format!("row{at}");
                let job = jobs.iter().find(|job| job["name"] == name);
                let job = job.with_context(|| format!("no {name} in {top}"))?;
                let percent = |key: &str| job[key].as_f64().unwrap_or(0.0);
                let (used, waiting) = (percent("computeUsedPercent"), percent("turnWaitPercent"));
                let is_held = used > 0.0 && used <= 12.0 && waiting >= 60.0;
                ensure!(is_held, "{:?}: {job}", row.set);
            }
            Ok(())
        })?;
        for job in &jobs {
            job.signal(Signal::TERM)?;
        }
        for job in jobs {
            job.end()?;
        }
    }
    Ok(())
}

fn injected(machine: &Machine) -> Result<PathBuf> {
    let arguments = ["-shared", "-fPIC", "-O1", "-ldl", "-pthread"];
    machine.compile_as("inject.so", "inject.c", &arguments)
}

/// Its code runs inside of the driver's `cuInit`, where every call was once taken for the driver's
/// own: it had the whole card, and whatever it looked up there went past the limit for ever.
#[test]
fn a_library_that_the_driver_loads_is_held_to_the_limit() -> Result<()> {
    let Some(machine) = Machine::new(EXACT)? else {
        return Ok(());
    };
    let library = injected(&machine)?;
    let set = [format!("CUDA_INJECTION64_PATH={}", library.display())];
    let words = "alloc --until-oom --hold stdin";
    let mut job = start(&machine, "--memory 256MiB --name job", set, words)?;
    let report = job.report()?;
    job.until_error("injected 256 MiB, refused with 2")?;
    is_at_its_limit(&machine, "job", &report, 0)?;
    let ended = job.end()?;
    assert_eq!(ended.code, Some(0), "{ended:?}");
    Ok(())
}

/// The cost of a context is measured before the first job, and charged in advance. The driver's own
/// count finds what a variable makes the driver take beyond that.
#[test]
fn a_context_that_a_variable_makes_larger_is_charged_within_two_readings() -> Result<()> {
    let Some(machine) = Machine::new("1x16GiB")? else {
        return Ok(());
    };
    let set = settings(&[("CUDA_SCALE_LAUNCH_QUEUES", "4x")]);
    let words = "alloc --until-oom --hold stdin";
    let mut job = start(&machine, "--memory 2GiB --name job", set, words)?;
    job.report()?;
    let begin = Instant::now();
    let used = machine.card(0)?.used;
    assert_eq!(used, mib(2048 + 120));
    until("it to be found", || {
        let row = machine.tenant("job")?;
        ensure!(mib(number(&row["usedMiB"])?) == used, "{row}");
        ensure!(row["state"] == "over", "{row}");
        Ok(())
    })?;
    // Two readings are 400 ms; the rest is the time that `top` takes.
    let time = begin.elapsed();
    assert!(time < Duration::from_secs(2), "{time:?}");
    job.end()?;
    Ok(())
}

/// All jobs are charged for their contexts by what is measured once: it is measured without what
/// the operator's shell holds.
#[test]
fn what_contexts_cost_is_measured_without_the_operator_s_variables() -> Result<()> {
    let Some(machine) = Machine::new("1x16GiB")? else {
        return Ok(());
    };
    let library = injected(&machine)?;
    let mut arbiter = machine.sublet("agent --standalone");
    arbiter.env("CUDA_INJECTION64_PATH", library);
    let arbiter = Running::start(&mut arbiter)?;
    until("the arbiter", || machine.arbiter())?;
    let top = until("its answer", || machine.top())?;
    assert_eq!(top["gpus"][0]["contextMiB"], 480, "{top}");
    arbiter.signal(Signal::TERM)?;
    assert_eq!(arbiter.end()?.code, Some(0));
    Ok(())
}

/// With MPS v3, a variable that names a GPU which the program does not see drops every limit that
/// NVIDIA keeps. The fake driver does the same, and ours holds.
#[test]
fn where_mps_serves_no_variable_lifts_a_limit_of_memory() -> Result<()> {
    let Some(world) = World::new(&MpsControl::StandIn)? else {
        return Ok(());
    };
    let machine = &world.machine;
    let pipe = machine.folder()?.join("mps/pipe");
    for (limits, bytes) in [("0=256M", LIMIT), ("0=256M,7=256M", mib(16 << 10))] {
        let mut direct = machine.direct("alloc --size 64MiB --until-oom");
        direct.env("CUDA_MPS_PIPE_DIRECTORY", &pipe);
        direct.env("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", limits);
        let report = end(&mut direct)?.report()?;
        assert_eq!(report["bytes"], bytes, "{limits}: {report}");
    }
    let limits = ["0=256M,7=256M", "7=1M", "0=64G", "all", ""];
    let limits = limits.map(|limits| format!("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT={limits}"));
    for (at, set) in limits.into_iter().enumerate() {
        let held = holds_memory(machine, &format!("limit{at}"), vec![set.clone()], "plain");
        held.context(set)?;
    }
    let rows = plain_rows().filter(|(_, row)| row.is_of_mps());
    for (at, row) in rows {
        let held = holds_memory(machine, &format!("row{at}"), settings(row.set), "plain");
        held.with_context(|| format!("{:?}", row.set))?;
    }
    world.end()
}

/// MPS has a client's limit from the client's environment. Our library tells the driver the job's,
/// or a lower one of the program's own.
#[test]
fn where_mps_serves_no_variable_lifts_a_limit_of_compute_time() -> Result<()> {
    let Some(world) = World::new(&MpsControl::StandIn)? else {
        return Ok(());
    };
    let machine = &world.machine;
    let whole = end(&mut machine.direct("info"))?.report()?;
    let whole = number(&whole["devices"][0]["multiprocessors"])?;
    let (percent, pipe) = (
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE",
        "CUDA_MPS_PIPE_DIRECTORY",
    );
    for (compute, set, part) in [
        ("0%..30%", String::new(), 30),
        ("0%..30%", format!("{percent}=100"), 30),
        ("0%..30%", format!("{percent}="), 30),
        ("0%..30%", format!("-u {percent}"), 30),
        ("0%..30%", format!("{pipe}=/nowhere"), 30),
        ("0%..30%", format!("-u {pipe}"), 30),
        ("0%..30%", format!("-u {pipe} -u {percent}"), 30),
        ("0%..30%", format!("{percent}=10"), 10),
        // Without a limit of ours the program may have what MPS gives.
        ("0%..100%", format!("{percent}=50"), 50),
        ("0%..100%", format!("-u {percent}"), 100),
    ] {
        let flags = format!("--memory 256MiB --compute {compute}");
        let words = set.split_whitespace().map(str::to_owned);
        let report = start(machine, &flags, words, "info")?.end()?.report()?;
        let found = &report["devices"][0]["multiprocessors"];
        assert_eq!(*found, whole * part / 100, "{compute} {set}: {report}");
    }
    world.end()
}

/// In root's `sublet run` our libraries are mounted over the driver's files, as a container has
/// them by `/etc/ld.so.preload`: no variable of the loader takes them away.
#[test]
fn no_variable_of_the_loader_lifts_a_limit_that_root_keeps() -> Result<()> {
    let Some(machine) = Machine::new(EXACT)? else {
        return Ok(());
    };
    if !may_mount() {
        println!("skipped: this user may not mount (it takes root)");
        return Ok(());
    }
    let folder = driver(&machine)?;
    let reach = folder.join("libcuda.so.1");
    let row = ROWS.iter().find(|row| row.set.iter().any(is_of_loader));
    let row = row.context("no row of the loader")?;
    let all = settings(row.set).into_iter().map(OsString::from).collect();
    let mut tries: Vec<Vec<OsString>> = vec![vec!["-u".into(), "LD_PRELOAD".into()], all];
    for name in ["LD_PRELOAD", "LD_LIBRARY_PATH"] {
        let mut setting = OsString::from(format!("{name}="));
        setting.push(if name == "LD_PRELOAD" {
            &reach
        } else {
            &folder
        });
        tries.push(vec![setting]);
    }
    for (at, set) in tries.into_iter().enumerate() {
        let name = format!("loader{at}");
        let mut run = machine.run(&format!("--memory 256MiB --name {name}"));
        run.env("LD_LIBRARY_PATH", &folder).arg("env").args(&set);
        run.arg(machine.built("sublet-workload"));
        run.args(["alloc", "--until-oom", "--hold", "stdin", "--reach"]);
        let mut job = Running::start(&mut with_own_run(run.arg(&reach)))?;
        let report = job.report()?;
        let held = is_at_its_limit(&machine, &name, &report, LIMIT);
        held.with_context(|| format!("{set:?}"))?;
        job.end()?;
    }
    Ok(())
}

fn is_of_loader((name, _): &(&str, &str)) -> bool {
    name.starts_with("LD_")
}

/// The variables of SECURITY.md's table.
fn of_page() -> Result<Vec<String>> {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../SECURITY.md");
    let page = fs::read_to_string(page)?;
    let (_, section) = page.split_once("## Variables").context("no heading")?;
    let section = section.split("\n## ").next().unwrap_or_default();
    let rows = section.lines().filter(|line| line.starts_with("| `"));
    let first = rows.filter_map(|row| row.split('|').nth(1));
    let names = first.flat_map(|cell| cell.split('`').skip(1).step_by(2));
    Ok(names.map(str::to_owned).collect())
}

#[test]
fn the_page_and_the_tests_have_the_same_variables() -> Result<()> {
    let page = of_page()?;
    let tried = ROWS.iter().flat_map(|row| row.set);
    let tried: Vec<&str> = tried.map(|(name, _)| *name).collect();
    for (what, n, names) in [
        (
            "SECURITY.md",
            page.len(),
            page.iter().map(String::as_str).collect(),
        ),
        (
            "rows.rs",
            tried.len(),
            tried.iter().copied().collect::<BTreeSet<&str>>(),
        ),
    ] {
        assert_eq!(names.len(), n, "{what} names one twice: {names:?}");
    }
    assert_eq!(page, tried, "SECURITY.md, and rows.rs");
    Ok(())
}
