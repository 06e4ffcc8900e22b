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
pub(crate) fn driver(machine: &Machine) -> Result<PathBuf> {
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

/// The same command with a `/run` of its own, where `sublet run` leaves an empty folder.
pub(crate) fn with_own_run(command: &Command) -> Command {
    let script = r#"mount -t tmpfs tmpfs /run && exec "$0" "$@""#;
    let mut own = Command::new("unshare");
    own.args(["--mount", "sh", "-c", script])
        .arg(command.get_program())
        .args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => own.env(name, value),
            None => own.env_remove(name),
        };
    }
    if let Some(folder) = command.get_current_dir() {
        own.current_dir(folder);
    }
    own
}

/// True for a user who may mount in a namespace of its own.
pub(crate) fn may_mount() -> bool {
    let tried = Command::new("unshare").args(["-m", "true"]).output();
    tried.is_ok_and(|output| output.status.success())
}

/// Our libraries are mounted over the driver's files, for the job alone: neither `LD_PRELOAD`
/// nor any name is needed, nor any variable at all.
#[test]
fn mounts_reach_a_program_without_any_preload() -> Result<()> {
    let Some(machine) = Machine::new(EXACT)? else {
        return Ok(());
    };
    if !may_mount() {
        println!("skipped: this user may not mount (it takes root)");
        return Ok(());
    }
    let folder = driver(&machine)?;
    let workload = machine.built("sublet-workload").display().to_string();
    let check = |name: &str, environment: &[&str]| -> Result<()> {
        let reach = folder.join(name).display().to_string();
        let words = ["alloc", "--until-oom", "--reach", &reach];
        let mut run = machine.run("--memory 256MiB");
        run.env("LD_LIBRARY_PATH", &folder)
            .arg("env")
            .args(environment)
            .arg(&workload)
            .args(words);
        let report = end(&mut with_own_run(&run))?.report()?;
        assert_eq!(
            report["bytes"],
            mib(256),
            "{name}, {environment:?}: {report}"
        );
        let library = report["library"].as_str().context("no library")?;
        assert!(
            library.starts_with(folder.to_str().context("path")?),
            "{report}"
        );
        Ok(())
    };
    for name in ["libcuda.so.1", "libcuda.so", "libcuda.so.580.95.05"] {
        check(name, &["-u", "LD_PRELOAD"])?;
    }
    // As sudo and cron start programs, and as a program could wish it. A file that only the job
    // sees says what counts; the fake driver alone goes by its variable.
    let cards = format!("SUBLET_FAKE_GPU={}", machine.state()?.display());
    check("libcuda.so.1", &["-i", &cards])?;
    let empty = machine.path().join("empty");
    std::fs::create_dir(&empty)?;
    let empty = format!("SUBLET_DIR={}", empty.display());
    let elsewhere = [
        "SUBLET_MODE=compat",
        "SUBLET_DRIVER_CUDA=/nowhere/libcuda.so.1",
    ];
    let elsewhere = [&["-u", "LD_PRELOAD", &empty][..], &elsewhere].concat();
    check("libcuda.so.1", &elsewhere)?;
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

/// A job's view in `nvidia-smi`: its own limit, its own processes.
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

/// The slowest card first, the fastest second.
const MIXED: &str = "gpus:\n- {memory: 4GiB, model: NVIDIA T4}\n\
    - {memory: 4GiB, model: NVIDIA B200}\n- {memory: 4GiB, model: NVIDIA A10}\n";

/// The UUIDs of a report's devices, in its order.
fn uuids(devices: &Value) -> Result<Vec<String>> {
    let devices = devices.as_array().context("no devices")?;
    let uuids = devices.iter().map(|device| device["uuid"].as_str());
    let uuids: Option<Vec<&str>> = uuids.collect();
    let uuids = uuids.with_context(|| format!("no UUIDs in {devices:?}"))?;
    Ok(uuids.into_iter().map(str::to_owned).collect())
}

/// The cards that a program of a job sees through both libraries, with these variables for order
/// and choice; `LAST` chooses the last card of the job by its name.
fn seen(
    machine: &Machine,
    n_gpus: usize,
    order: Option<&str>,
    choice: Option<&str>,
) -> Result<Ended> {
    let mut run = machine.run(&format!("--memory 1GiB --gpus {n_gpus}"));
    run.arg("env");
    run.args(order.map(|order| format!("CUDA_DEVICE_ORDER={order}")));
    let last = "CUDA_VISIBLE_DEVICES=${CUDA_VISIBLE_DEVICES##*,} exec \"$0\" \"$@\"";
    match choice {
        Some("LAST") => drop(run.args(["sh", "-c", last])),
        Some(places) => drop(run.arg(format!("CUDA_VISIBLE_DEVICES={places}"))),
        None => {}
    }
    run.arg(machine.built("sublet-workload"));
    end(run.args(["info", "--nvml"]))
}

/// A job has its cards in one order: the driver counts them as the management library does,
/// whatever the program says of order, and its own choice is made from that list.
#[test]
fn both_libraries_count_a_job_s_cards_alike() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("mixed.yaml");
    std::fs::write(&file, MIXED)?;
    let Some(machine) = Machine::new(&file.display().to_string())? else {
        return Ok(());
    };
    let twin = machine.built("libsublet_fakenvml.so");
    let outside = |order: &str| -> Result<(Vec<String>, Vec<String>)> {
        let mut command = machine.direct("info");
        command.arg(format!("--nvml={}", twin.display()));
        let report = end(command.env("CUDA_DEVICE_ORDER", order))?.report()?;
        Ok((
            uuids(&report["devices"])?,
            uuids(&report["nvml"]["devices"])?,
        ))
    };
    // Outside of a job they count alike only if the program asks for it.
    let (fastest, _) = outside("FASTEST_FIRST")?;
    let (by_place, listed) = outside("PCI_BUS_ID")?;
    assert_eq!(by_place, listed);
    assert_eq!(fastest, [1, 2, 0].map(|place| listed[place].clone()));

    for (n_gpus, choice, chosen) in [
        (2, None, &[0, 1][..]),
        (3, None, &[0, 1, 2]),
        (2, Some("1"), &[1]),
        (3, Some("1,0"), &[1, 0]),
        (3, Some("0,9,1"), &[0]),
        (2, Some("LAST"), &[1]),
        (3, Some("LAST"), &[2]),
    ] {
        for order in [None, Some("FASTEST_FIRST"), Some("PCI_BUS_ID")] {
            let report = seen(&machine, n_gpus, order, choice)?.report()?;
            let nvml = uuids(&report["nvml"]["devices"])?;
            assert_eq!(nvml.len(), n_gpus, "{order:?} {choice:?}: {report}");
            // The machine's order, without the cards that are not the job's.
            let mut in_order = listed.iter().filter(|uuid| nvml.contains(uuid));
            assert!(nvml.iter().all(|own| in_order.next() == Some(own)));
            let chosen: Vec<String> = chosen.iter().map(|&place| nvml[place].clone()).collect();
            assert_eq!(uuids(&report["devices"])?, chosen, "{order:?} {choice:?}");
        }
    }
    // No card at all: the driver says so, as it does on a machine without.
    let ended = seen(&machine, 2, None, Some(""))?;
    assert_eq!(ended.code, Some(1), "{ended:?}");
    Ok(())
}

/// Path of NVIDIA's libcudart: named, or beside the headers that `cargo xtask test` fetches.
fn libcudart() -> Option<PathBuf> {
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
fn nvidia_s_own_libcudart_meets_the_limit() -> Result<()> {
    let Some(machine) = Machine::new(EXACT)? else {
        return Ok(());
    };
    let Some(libcudart) = libcudart() else {
        println!("skipped: neither SUBLET_TEST_LIBCUDART nor SUBLET_HEADERS leads to libcudart");
        return Ok(());
    };
    let folder = driver(&machine)?;
    let opened = machine.compile("cudart.c", &["-ldl"])?;
    let mut programs = vec![vec![opened, libcudart.clone()]];
    let archive = libcudart.with_file_name("libcudart_static.a");
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
            // Libcudart wants proof that the driver is NVIDIA's, which the fake is not.
            println!("skipped: libcudart goes no further on a driver that is not NVIDIA's");
            continue;
        }
        ensure!(inside["total"] == mib(512), "{inside}");
        let bytes = number(&inside["bytes"])?;
        // Libcudart's own kernels may take a little.
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
        "mkfifo input; (setsid {workload} alloc --until-oom --hold stdin < input > told &); \
         exec 3> input; echo ready; read line"
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
        let mut rows = top["jobs"].as_array().into_iter().flatten();
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
