//! Real clients of the driver, written apart from the project: they find in a job what they find
//! on a card as large as the job's limit that they have to themselves.
//!
//! `cargo xtask test` brings them, by pip.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::fs::symlink;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use sublet_e2e::one_machine::{Machine, Running, mib};

/// The folder with the clients, or why there is none. A line says so.
fn clients() -> Option<OsString> {
    let folder = std::env::var_os("SUBLET_CLIENTS");
    if folder.is_none() {
        let reason = std::env::var("SUBLET_CLIENTS_SKIP");
        let unset = "SUBLET_CLIENTS is not set; run `cargo xtask test`".to_owned();
        println!("skipped: {}", reason.unwrap_or(unset));
    }
    folder
}

/// Sets the variables by which Python finds the clients.
fn python(command: &mut Command, machine: &Machine, clients: &OsStr) {
    command
        .env("PYTHONPATH", clients)
        .env("PYTHONNOUSERSITE", "1")
        .env("HOME", machine.path())
        // A toolkit of this machine would compile kernels, and no fake card can run one.
        .env("CUDA_HOME", machine.path())
        .env("NUMBA_CUDA_INCLUDE_PATH", machine.path());
}

/// A program in Python as a job.
fn as_job(machine: &Machine, clients: &OsStr, flags: &str, program: &str) -> Result<Running> {
    let file = machine.script("program.py", program)?;
    let mut command = machine.run(flags);
    python(command.arg("python3").arg(file), machine, clients);
    Running::start(&mut command)
}

/// The same on the bare driver, which programs find by its libraries' names.
fn bare(machine: &Machine, clients: &OsStr, program: &str) -> Result<Running> {
    let folder = machine.path().join("driver");
    std::fs::create_dir(&folder)?;
    for (file, name) in [
        ("libsublet_fakecuda.so", "libcuda.so.1"),
        ("libsublet_fakenvml.so", "libnvidia-ml.so.1"),
    ] {
        symlink(machine.built(file), folder.join(name))?;
    }
    let mut command = machine.command("python3");
    command
        .arg(machine.script("program.py", program)?)
        .env("SUBLET_FAKE_GPU", machine.spec())
        .env("LD_LIBRARY_PATH", folder)
        // As in a job: some programs look whether it is set.
        .env("CUDA_VISIBLE_DEVICES", "0,1");
    python(&mut command, machine, clients);
    Running::start(&mut command)
}

/// Cards to have alone, and larger ones with a job's part of the same size.
fn machines(count: usize) -> Result<Option<(Machine, Machine)>> {
    let machine = |size| Machine::new(&format!("{count}x{size},name=NVIDIA H100,context=0MiB"));
    Ok(machine("1GiB")?.zip(machine("4GiB")?))
}

/// nvidia-ml-py, gpustat, nvitop and cuda-bindings. A neighbour on the same card is not theirs to
/// see, unless they stand outside.
#[test]
fn packages_that_look_at_gpus_see_a_job_s_part_as_a_card() -> Result<()> {
    const LOOK: &str = include_str!("clients/look.py");
    let Some(clients) = clients() else {
        return Ok(());
    };
    let Some((card, shared)) = machines(1)? else {
        return Ok(());
    };
    let holds = "alloc --size 256MiB --hold stdin";
    let mut neighbour = Running::start(&mut shared.job("--memory 1GiB --name neighbour", holds))?;
    neighbour.report()?;
    // Side by side, because most of the time is Python's.
    let mut alone = bare(&card, &clients, LOOK)?;
    let mut job = as_job(&shared, &clients, "--memory 1GiB", LOOK)?;
    let (of_card, of_job) = (alone.report()?, job.report()?);
    ensure!(of_job == of_card, "bare:\n{of_card}\nas a job:\n{of_job}");
    let (total, held) = (mib(1024), mib(128));
    shows(&of_job, total, &[("own", held)])?;
    // An operator's look, past the product.
    let outside = bare(&shared, &clients, LOOK)?.end()?.report()?;
    let everybody = [("other", mib(256)), ("other", held), ("own", held)];
    shows(&outside, mib(4096), &everybody)?;
    // All that is left, and no more, by the driver's own count too.
    for (client, machine, others) in [(&mut alone, &card, 0), (&mut job, &shared, mib(256))] {
        client.say("take")?;
        let taken = client.report()?;
        assert_eq!(
            taken,
            json!({"bytes": total, "refusal": "CUDA_ERROR_OUT_OF_MEMORY"})
        );
        assert_eq!(machine.card(0)?.used, others + total);
    }
    for running in [alone, job, neighbour] {
        let ended = running.end()?;
        ensure!(ended.code == Some(0), "{ended:?}");
    }
    Ok(())
}

/// Checks the packages' answers about the first card against its size and the use of each process.
fn shows(seen: &Value, total: u64, processes: &[(&str, u64)]) -> Result<()> {
    const MIB: u64 = 1 << 20;
    let listed = |rows: &Value| -> Result<Vec<(String, Value)>> {
        let rows = rows.as_array().with_context(|| format!("{rows}"))?;
        let mut listed: Vec<_> = rows
            .iter()
            .map(|row| {
                (
                    row[0].as_str().unwrap_or_default().to_owned(),
                    row[1].clone(),
                )
            })
            .collect();
        listed.sort_by_key(|(who, memory)| (who.clone(), memory.to_string()));
        Ok(listed)
    };
    let expected = |memory: fn(u64) -> Value| {
        let rows = processes
            .iter()
            .map(|(who, bytes)| json!([who, memory(*bytes)]));
        listed(&json!(rows.collect::<Vec<_>>()))
    };
    let used: u64 = processes.iter().map(|(_, bytes)| bytes).sum();
    let in_bytes = expected(|bytes| json!(bytes))?;
    let bindings = &seen["bindings"];
    assert_eq!(bindings["total"], total, "{seen}");
    assert_eq!(bindings["info"], json!([total - used, total]), "{seen}");
    let card = &seen["nvml"][0];
    assert_eq!(card["memory"], json!([total, used, total - used]), "{seen}");
    assert_eq!(listed(&card["processes"])?, in_bytes, "{seen}");
    let gpustat = &seen["gpustat"][0];
    assert_eq!(gpustat["total"], total / MIB, "{seen}");
    assert_eq!(gpustat["used"], used / MIB, "{seen}");
    let in_mib = expected(|bytes| json!(bytes / MIB))?;
    assert_eq!(listed(&gpustat["processes"])?, in_mib, "{seen}");
    let screen = &seen["nvitop_screen"];
    let memory = json!([[
        format!("{}.0MiB", used / MIB),
        format!("{}MiB", total / MIB)
    ]]);
    assert_eq!(screen["memory"], memory, "{seen}");
    let as_text = expected(|bytes| json!(format!("{}.0MiB", bytes / MIB)))?;
    assert_eq!(listed(&screen["processes"])?, as_text, "{seen}");
    let device = &seen["nvitop_devices"][0];
    assert_eq!(device["total"], total, "{seen}");
    assert_eq!(device["used"], used, "{seen}");
    assert_eq!(listed(&device["processes"])?, in_bytes, "{seen}");
    Ok(())
}

/// numba's tests of its driver.
const TESTS: usize = 235;

/// Least number of them that succeed on the fake driver; most of the others want NVIDIA's compiler
/// to make a kernel.
const SUCCEED: usize = 172;

/// Outcome of a test that finds no compiler.
const NO_COMPILER: &str = "error NvvmSupportError";

/// The others that do not succeed on the fake driver, how they end, and why.
const EXPLAINED: [(&str, &str, &str); 12] = [
    (
        ".test_cuda_array_slicing.CudaArraySetting.test_issue_6505",
        "skipped",
        "numba skips it",
    ),
    (
        ".test_cuda_driver.TestCudaDriver.test_cuda_driver_basic",
        "failure",
        "it looks at what a kernel wrote, and no fake card runs one",
    ),
    (
        ".test_cuda_driver.TestCudaDriver.test_cuda_driver_stream_operations",
        "failure",
        "as the one before",
    ),
    (
        ".test_linker.TestLinker.test_linker_basic",
        "error CudaAPIError",
        "the fake driver has no linker",
    ),
    (
        ".test_linker.TestLinker.test_linking_cu_cuda_include",
        "skipped",
        "the toolkit's headers are not there",
    ),
    (
        ".test_managed_alloc.TestManagedAlloc.test_managed_alloc_driver_oversubscribe",
        "skipped",
        "numba skips it",
    ),
    (
        ".test_mvc.TestMinorVersionCompatibility.test_mvc",
        "skipped",
        "a package of another CUDA is not there",
    ),
    (
        ".test_nvvm_driver.TestLibDevice.test_libdevice_load",
        "error RuntimeError",
        "it reads a file of the compiler's",
    ),
    (
        ".test_nvvm_driver.TestNvvmDriver.test_nvvm_compile_nullary_option",
        "error OSError",
        "it loads the compiler itself",
    ),
    (
        ".test_ptds.TestPTDS.test_ptds",
        "failure",
        "it compiles a kernel in another process",
    ),
    (
        ".test_runtime.TestVisibleDevices.test_visible_devices_set_after_import",
        "skipped",
        "CUDA_VISIBLE_DEVICES is set",
    ),
    (
        ".test_streams.TestFailingStream.test_failed_stream",
        "skipped",
        "numba skips it",
    ),
];

/// Outcome of each of numba's tests, by its name, and the size of the card that they ran on.
fn outcomes(mut running: Running) -> Result<(BTreeMap<String, String>, u64)> {
    let mut outcomes = BTreeMap::new();
    let total = loop {
        let line = running.line()?;
        // The tests themselves may print.
        match line.split('\t').collect::<Vec<_>>()[..] {
            ["test", name, outcome] => {
                let before = outcomes.insert(name.to_owned(), outcome.to_owned());
                ensure!(before.is_none(), "{name} ran twice");
            }
            ["end", total] => break total.parse()?,
            _ => {}
        }
    };
    let ended = running.end()?;
    ensure!(ended.code == Some(0), "{ended:?}");
    Ok((outcomes, total))
}

#[test]
fn numba_s_own_driver_tests_end_in_a_job_as_on_the_bare_driver() -> Result<()> {
    const PROGRAM: &str = include_str!("clients/numba_tests.py");
    let Some(clients) = clients() else {
        return Ok(());
    };
    let Some((cards, shared)) = machines(2)? else {
        return Ok(());
    };
    let alone = bare(&cards, &clients, PROGRAM)?;
    let job = as_job(&shared, &clients, "--memory 1GiB --gpus 2", PROGRAM)?;
    let ((alone, of_card), (job, of_job)) = (outcomes(alone)?, outcomes(job)?);
    // Which says that each went where it was meant to.
    assert_eq!((of_card, of_job), (mib(1024), mib(1024)));
    let differing: Vec<_> = alone
        .keys()
        .chain(job.keys())
        .filter(|name| alone.get(*name) != job.get(*name))
        .map(|name| {
            format!(
                "{name}: {:?}, {:?} as a job",
                alone.get(name),
                job.get(name)
            )
        })
        .collect();
    ensure!(differing.is_empty(), "{}", differing.join("\n"));
    explained(&alone)
}

/// Every test is there, and each that did not succeed has its reason.
fn explained(outcomes: &BTreeMap<String, String>) -> Result<()> {
    let mut unexplained: Vec<String> = outcomes
        .iter()
        .filter(|(_, outcome)| !["ok", NO_COMPILER].contains(&outcome.as_str()))
        .filter(|(name, _)| EXPLAINED.iter().all(|(listed, ..)| listed != name))
        .map(|(name, outcome)| format!("{name}: {outcome}, for no known reason"))
        .collect();
    for (name, expected, reason) in EXPLAINED {
        let outcome = outcomes.get(name);
        if outcome.is_none_or(|outcome| outcome != expected) {
            unexplained.push(format!("{name}: {outcome:?}, but {reason}"));
        }
    }
    ensure!(unexplained.is_empty(), "{}", unexplained.join("\n"));
    let succeeded = outcomes.values().filter(|outcome| *outcome == "ok").count();
    println!("{succeeded} of {} succeeded", outcomes.len());
    assert_eq!(outcomes.len(), TESTS);
    ensure!(succeeded >= SUCCEED, "only {succeeded} succeeded");
    Ok(())
}
