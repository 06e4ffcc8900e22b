//! A program is held to the limit of its own job whatever way it takes to the driver, and
//! whatever it changes about itself: names and paths, its environment, its family.

use std::ffi::OsStr;
use std::path::PathBuf;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use sublet_e2e::one_machine::{Ended, Machine, Running, mib, number, pid_of, until};

/// Contexts that cost nothing, so that every byte on a card is one that a program asked for.
const EXACT: &str = "2x16GiB,context=0MiB";

/// The folder of a driver that is not there: only the names count.
const NOWHERE: &str = "/usr/lib/x86_64-linux-gnu";

fn end(command: &mut Command) -> Result<Ended> {
    Running::start(command)?.end()
}

#[test]
fn every_way_to_the_driver_meets_the_limit() -> Result<()> {
    let Some(machine) = Machine::new(EXACT)? else {
        return Ok(());
    };
    let absolute = format!("{NOWHERE}/libcuda.so.1");
    let other = format!("{NOWHERE}/libcuda.so");
    for reach in [
        "linked",
        "lookup",
        "global",
        "preloaded",
        "libcuda.so",
        "libcuda.so.1",
        "lookup=libcuda.so",
        "global=libcuda.so",
        &absolute,
        &other,
    ] {
        for more in ["", " --per-thread"] {
            let words = format!("alloc --until-oom --reach {reach}{more}");
            let report = machine.report("--memory 256MiB", &words)?;
            assert_eq!(report["bytes"], mib(256), "{reach}{more}: {report}");
            assert_eq!(report["totalMem"], mib(256), "{reach}{more}: {report}");
        }
    }
    Ok(())
}

/// A folder with the two libraries as a driver installs them: files with a version, and links.
fn driver(machine: &Machine) -> Result<PathBuf> {
    let folder = machine.path().join("driver");
    std::fs::create_dir(&folder)?;
    for (built, name) in [
        ("libsublet_fakecuda.so", "libcuda.so"),
        ("libsublet_fakenvml.so", "libnvidia-ml.so"),
    ] {
        let file = format!("{name}.580.95.05");
        std::fs::copy(machine.built(built), folder.join(&file))?;
        for link in [format!("{name}.1"), name.to_owned()] {
            std::os::unix::fs::symlink(&file, folder.join(link))?;
        }
    }
    Ok(folder)
}

/// Our libraries are mounted over the driver's files, for the job alone: neither `LD_PRELOAD`
/// nor any name is needed.
#[test]
fn mounts_reach_a_program_without_any_preload() -> Result<()> {
    let Some(machine) = Machine::new(EXACT)? else {
        return Ok(());
    };
    let may_mount = Command::new("unshare").args(["-m", "true"]).output();
    if !may_mount.is_ok_and(|output| output.status.success()) {
        println!("skipped: this user may not mount (it takes root)");
        return Ok(());
    }
    let folder = driver(&machine)?;
    let workload = machine.built("sublet-workload").display().to_string();
    for name in ["libcuda.so.1", "libcuda.so", "libcuda.so.580.95.05"] {
        let reach = folder.join(name).display().to_string();
        let words = ["alloc", "--until-oom", "--reach", &reach];
        let mut run = machine.run("--memory 256MiB");
        run.env("LD_LIBRARY_PATH", &folder)
            .args(["env", "-u", "LD_PRELOAD", &workload])
            .args(words);
        let report = end(&mut run)?.report()?;
        assert_eq!(report["bytes"], mib(256), "{name}: {report}");
        let library = report["library"].as_str().context("no library")?;
        assert!(
            library.starts_with(folder.to_str().context("path")?),
            "{report}"
        );
    }
    // Outside of the job nothing has changed.
    let reach = folder.join("libcuda.so.1").display().to_string();
    let report = end(&mut machine.direct(&format!("info --reach {reach}")))?.report()?;
    assert_eq!(
        report["devices"].as_array().map(Vec::len),
        Some(2),
        "{report}"
    );
    Ok(())
}

/// What `nvidia-smi` would show a job: its own limit, its own processes.
#[test]
fn the_management_library_shows_the_job_s_part() -> Result<()> {
    let Some(machine) = Machine::new(EXACT)? else {
        return Ok(());
    };
    let hold = "alloc --size 512MiB --hold stdin";
    let mut other = Running::start(&mut machine.job("--memory 1GiB --name other", hold))?;
    other.report()?;
    let report = machine.report("--memory 2GiB", "info --nvml --memory")?;
    let devices = report["nvml"]["devices"].as_array().context("no devices")?;
    assert_eq!(devices.len(), 1, "{report}");
    assert_eq!(devices[0]["memory"]["total"], mib(2048), "{report}");
    assert_eq!(devices[0]["uuid"], report["devices"][0]["uuid"], "{report}");
    let pids = devices[0]["processes"].as_array().context("no list")?;
    assert!(
        pids.iter().all(|row| row["pid"] == report["pid"]),
        "{report}"
    );
    other.end()?;
    Ok(())
}

/// Where NVIDIA's runtime is: named, or beside the headers that `cargo xtask test` fetches.
fn runtime() -> Option<PathBuf> {
    if let Some(file) = std::env::var_os("SUBLET_TEST_LIBCUDART") {
        return Some(PathBuf::from(file));
    }
    let list = std::env::var_os("SUBLET_HEADERS")?;
    let beside = |folder: PathBuf| folder.join("../lib/libcudart.so.13");
    std::env::split_paths(&list)
        .map(beside)
        .find(|file| file.is_file())
}

#[test]
fn nvidia_s_own_runtime_meets_the_limit() -> Result<()> {
    let Some(machine) = Machine::new(EXACT)? else {
        return Ok(());
    };
    let Some(runtime) = runtime() else {
        println!("skipped: neither SUBLET_TEST_LIBCUDART nor SUBLET_HEADERS leads to libcudart");
        return Ok(());
    };
    let folder = driver(&machine)?;
    let opened = machine.compile("cudart.c", &["-ldl"])?;
    let mut programs = vec![vec![opened, runtime.clone()]];
    let archive = runtime.with_file_name("libcudart_static.a");
    if archive.is_file() {
        let archive = archive.to_str().context("path")?;
        let flags = [
            "-DLINKED",
            archive,
            "-ldl",
            "-lpthread",
            "-lrt",
            "-lm",
            "-lstdc++",
        ];
        programs.push(vec![machine.compile("cudart.c", &flags)?]);
    } else {
        println!("skipped: no {}", archive.display());
    }
    for program in programs {
        let mut alone = machine.command("env");
        alone
            .env("SUBLET_FAKE_GPU", "1x1GiB,context=0MiB")
            .env("LD_LIBRARY_PATH", &folder);
        let alone = end(alone.args(&program))?.report()?;
        let inside = end(machine.run("--memory 512MiB").args(&program))?.report()?;
        println!("alone: {alone}; in a job of 512 MiB: {inside}");
        ensure!(alone["info"] == inside["info"], "{alone}, {inside}");
        if alone["info"] == 801 {
            // The runtime wants proof that the driver is NVIDIA's, which the fake is not.
            println!("skipped: the runtime goes no further on a driver that is not NVIDIA's");
            continue;
        }
        ensure!(inside["total"] == mib(512), "{inside}");
        let bytes = number(&inside["bytes"])?;
        // The runtime's own kernels may take a little.
        ensure!((mib(448)..=mib(512)).contains(&bytes), "{inside}");
        ensure!(inside["result"] == 2, "{inside}");
    }
    Ok(())
}

#[test]
fn nobody_takes_a_job_s_identity_by_its_environment() -> Result<()> {
    let Some(machine) = Machine::new(EXACT)? else {
        return Ok(());
    };
    let hold = "alloc --size 64MiB --hold stdin";
    let mut job = Running::start(&mut machine.job("--memory 8GiB --name large", hold))?;
    let holder = pid_of(&job.report()?["pid"])?;
    // All that the job's programs find in their environment, in a program outside of it.
    let environment = std::fs::read(format!("/proc/{}/environ", holder.as_raw_nonzero()))?;
    let text = String::from_utf8_lossy(&environment).into_owned();
    let own: Vec<(&str, &str)> = text
        .split('\0')
        .filter_map(|entry| entry.split_once('='))
        .filter(|(name, _)| {
            name.starts_with("SUBLET_") || matches!(*name, "LD_PRELOAD" | "CUDA_VISIBLE_DEVICES")
        })
        .collect();
    assert!(own.iter().any(|(name, _)| *name == "SUBLET_DIR"), "{own:?}");
    let before = machine.top()?["counters"]["sentAway"].clone();
    let mut outside = machine.direct("alloc --until-oom --reach linked");
    let outside = end(outside.envs(own.clone()))?;
    assert_eq!(outside.code, Some(1), "{outside:?}");
    let report = outside.lines.last().context("no report")?;
    assert!(report.contains("CUDA_ERROR_NOT_PERMITTED"), "{report}");
    let top = machine.top()?;
    assert!(
        number(&top["counters"]["sentAway"])? > number(&before)?,
        "{top}"
    );
    // In a program of another job: it stays that job's.
    let workload = machine.built("sublet-workload").display().to_string();
    let mut small = machine.run("--memory 256MiB --name small");
    small.arg("env");
    for (name, value) in &own {
        small.arg(format!("{name}={value}"));
    }
    let small = small.args([&workload, "alloc", "--until-oom", "--hold", "stdin"]);
    let mut small = Running::start(small)?;
    let report = small.report()?;
    assert_eq!(report["bytes"], mib(256), "{report}");
    let row = machine.tenant("small")?;
    assert_eq!(row["pids"], json!([report["pid"]]), "{row}");
    let row = machine.tenant("large")?;
    assert_eq!(row["pids"], json!([holder.as_raw_nonzero().get()]), "{row}");
    small.end()?;
    job.end()?;
    Ok(())
}

#[test]
fn a_program_that_leaves_its_family_stays_in_its_job() -> Result<()> {
    let Some(machine) = Machine::new(EXACT)? else {
        return Ok(());
    };
    let workload = machine.built("sublet-workload").display().to_string();
    // A session of its own, and its parent is gone: only the subreaper is left above it.
    let script = format!(
        "mkfifo gate; (setsid {workload} alloc --until-oom --hold stdin < gate > told &); \
         exec 3> gate; echo ready; read line"
    );
    let mut job = machine.run("--memory 256MiB --name job");
    let mut job = Running::start(job.args(["sh", "-c", &script]))?;
    job.line()?;
    let report: Value = until("the daemon's report", || {
        Ok(serde_json::from_str(&std::fs::read_to_string(
            machine.path().join("told"),
        )?)?)
    })?;
    assert_eq!(report["bytes"], mib(256), "{report}");
    assert_eq!(machine.tenant("job")?["pids"], json!([report["pid"]]));
    job.end()?;
    Ok(())
}

#[test]
fn a_program_cannot_change_its_limit() -> Result<()> {
    let Some(machine) = Machine::new(EXACT)? else {
        return Ok(());
    };
    let sublet = machine.built("sublet").display().to_string();
    let ask = |words: &str| -> Result<Ended> {
        let mut run = machine.run("--memory 256MiB --name job");
        end(run.args(["sh", "-c", &format!("{sublet} {words}")]))
    };
    let raised = ask("limit job --memory 8GiB")?;
    assert_eq!(raised.code, Some(1), "{raised:?}");
    assert!(raised.errors.contains("inside job"), "{raised:?}");
    let nested = ask("run --memory 8GiB -- true")?;
    assert_eq!(nested.code, Some(1), "{nested:?}");
    assert!(nested.errors.contains("inside job"), "{nested:?}");
    // To look is allowed.
    assert_eq!(ask("top --once")?.code, Some(0));
    Ok(())
}

/// `SUBLET_DIR` with nothing in it is no way out either: strict programs are refused.
#[test]
fn a_program_that_changes_its_environment_gains_nothing() -> Result<()> {
    let Some(machine) = Machine::new(EXACT)? else {
        return Ok(());
    };
    let workload = machine.built("sublet-workload").display().to_string();
    let words = ["alloc", "--until-oom", "--hold", "stdin"];
    let mut run = machine.run("--memory 256MiB --name job");
    let run = run
        .args(["env", "CUDA_VISIBLE_DEVICES=0,1", &workload])
        .args(words);
    let report = end(run)?.report()?;
    assert_eq!(report["bytes"], mib(256), "{report}");
    let empty = machine.path().join("empty");
    std::fs::create_dir(&empty)?;
    let directory = format!("SUBLET_DIR={}", empty.display());
    let mut run = machine.run("--memory 256MiB --name job");
    let ended = end(run.args(["env", &directory, &workload]).args(words))?;
    assert_eq!(ended.code, Some(1), "{ended:?}");
    // Without any of it the program gets past its library; then it is seen, and said whose it is.
    let driver = machine.built("libsublet_fakecuda.so");
    let mut run = machine.run("--memory 256MiB --name job");
    run.args([
        "env",
        "-u",
        "SUBLET_DIR",
        "-u",
        "LD_PRELOAD",
        "-u",
        "CUDA_VISIBLE_DEVICES",
    ]);
    run.arg(&workload)
        .args(["alloc", "--size", "1GiB", "--hold", "stdin"]);
    run.args([OsStr::new("--reach"), driver.as_os_str()]);
    let mut past = Running::start(&mut run)?;
    let pid = past.report()?["pid"].clone();
    let begin = Instant::now();
    let row = until("it to be seen", || {
        let top = machine.top()?;
        let mut rows = top["tenants"].as_array().into_iter().flatten();
        let row = rows.find(|row| row["state"] == "unmanaged" && row["pids"] == json!([pid]));
        row.cloned().with_context(|| top.to_string())
    })?;
    println!(
        "a program past its library was seen after {:?}",
        begin.elapsed()
    );
    let reason = row["reason"].as_str().context("no reason")?;
    assert!(reason.contains("went past its library"), "{row}");
    past.end()?;
    Ok(())
}
