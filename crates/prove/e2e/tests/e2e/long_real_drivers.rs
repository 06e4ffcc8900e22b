//! NVIDIA's own libraries and programs, of three drivers, as a referee without a card: what they
//! say, a program hears with our libraries in front too, without an arbiter and as a job. Only
//! `cargo xtask test --all` runs this. Where an answer would need a device, it ends.

mod look_ups;
mod mps;

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use sublet_driver_api::{CUDA as CUDA_TABLE, CUDA_UNDECLARED, NVML as NVML_TABLE, Table};
use sublet_e2e::interposer::{CUDA, Library, NVML, built, symbols};
use sublet_e2e::one_machine::{Calls, Machine};
use sublet_e2e::real_driver::{DeviceFile, RealDriver, without_device_files};

use crate::interposer::NVML_DENIED;

const CARD: &str = "1x16GiB";

/// A debugger's names in libcuda. It reads and writes these variables of the debugged process,
/// stops at two of the functions and calls the others there. It takes the first of a name among
/// all loaded files, so our library has none of them: it finds the driver's, which our library
/// loads before `cuInit`.
const DEBUGGERS: [&str; 26] = [
    "cudbgApiAttach",
    "cudbgApiClientPid",
    "cudbgApiClientRevision",
    "cudbgApiDetach",
    "cudbgApiInit",
    "cudbgAttachHandlerAvailable",
    "cudbgDebuggerCapabilities",
    "cudbgDebuggerInitialized",
    "cudbgDetachSuspendedDevicesMask",
    "cudbgEnableIntegratedMemcheck",
    "cudbgEnableLaunchBlocking",
    "cudbgEnablePreemptionDebugging",
    "cudbgInjectionPath",
    "cudbgIpcFlag",
    "cudbgMain",
    "cudbgReportDriverApiError",
    "cudbgReportDriverApiErrorFlags",
    "cudbgReportDriverInternalError",
    "cudbgReportedDriverApiErrorCode",
    "cudbgReportedDriverApiErrorFuncNameAddr",
    "cudbgReportedDriverApiErrorFuncNameSize",
    "cudbgReportedDriverInternalErrorCode",
    "cudbgResumeForAttachDetach",
    "cudbgRpcEnabled",
    "cudbgSessionId",
    "cudbgUseExternalDebugger",
];

/// The library that a question goes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    /// The driver's own.
    Alone,
    /// Ours in front of it, without an arbiter.
    InFront,
    /// Ours in front of it, in a job.
    InJob,
}

/// Answers, by what was asked.
type Answers = BTreeMap<String, String>;

/// A fake machine, on which the drivers lie, and the program that asks them.
struct Court {
    machine: Machine,
    referee: PathBuf,
    device: DeviceFile,
}

impl Court {
    /// The court, and the drivers that there are.
    fn new() -> Result<Option<(Court, Vec<RealDriver>)>> {
        let drivers = RealDriver::all();
        if drivers.is_empty() {
            return Ok(None);
        }
        let Some(machine) = Machine::new(CARD)? else {
            return Ok(None);
        };
        let referee = machine.compile("referee.c", &["-O1", "-ldl"])?;
        let device = DeviceFile::as_it_is();
        let court = Court {
            machine,
            referee,
            device,
        };
        Ok(Some((court, drivers)))
    }

    /// A program that NVIDIA's libraries are loaded into, and that finds them behind ours.
    fn command(&self, driver: &RealDriver, way: Way) -> Command {
        let setting = |library: &Library| {
            let file = driver.library(library);
            format!("{}={}", library.variable, file.display())
        };
        let mut command = match way {
            Way::InJob => {
                let flags = "--memory 1GiB";
                let mut job = self.machine.run_told(flags, &setting(&CUDA));
                job.args(["env", "--unset=LD_PRELOAD"]);
                job
            }
            Way::Alone | Way::InFront => self.machine.command("env"),
        };
        if way != Way::Alone {
            command.args([setting(&CUDA), setting(&NVML)]);
        }
        command.args(without_device_files());
        command
    }

    /// Asks a library.
    fn ask(
        &self,
        driver: &RealDriver,
        library: &Library,
        way: Way,
        names: &Path,
        verb: &[&str],
    ) -> Result<Answers> {
        let file = match way {
            Way::Alone => driver.library(library),
            Way::InFront | Way::InJob => built(library.interposer)?,
        };
        let mut command = self.command(driver, way);
        let words: [OsString; 3] = [self.referee.clone().into(), file.into(), names.into()];
        Court::answers(command.args(words).args(verb))
    }

    /// The answers of a command that asks.
    fn answers(command: &mut Command) -> Result<Answers> {
        let said = command.output()?;
        let errors = String::from_utf8_lossy(&said.stderr);
        ensure!(
            said.status.success(),
            "{command:?}: {}: {errors}",
            said.status
        );
        let text = String::from_utf8_lossy(&said.stdout);
        let lines = text.lines().filter_map(|line| line.split_once(": "));
        Ok(lines
            .map(|(asked, answer)| (asked.to_owned(), answer.to_owned()))
            .collect())
    }

    /// A file with names.
    fn names<'a>(&self, names: impl IntoIterator<Item = &'a str>) -> Result<PathBuf> {
        let mut text = String::new();
        for name in names {
            writeln!(text, "{name}")?;
        }
        let file = self.machine.path().join("names");
        fs::write(&file, text)?;
        Ok(file)
    }

    fn close(self) -> Result<()> {
        self.device.is_untouched()
    }
}

/// All names that programs may look for in a library: those of the headers, with versions and
/// without, those that the driver has besides, and one that nobody has.
fn all_names(driver: &RealDriver, library: &Library) -> Result<BTreeSet<String>> {
    let rows = table(library).iter();
    let declared = rows.flat_map(|row| [row.symbol, row.base]);
    let mut names: BTreeSet<String> = declared.map(str::to_owned).collect();
    names.extend(symbols(&driver.library(library), library)?.into_keys());
    names.insert(format!("{}Nothing", library.prefix));
    Ok(names)
}

fn table(library: &Library) -> &'static Table {
    if library.soname == CUDA.soname {
        &CUDA_TABLE
    } else {
        &NVML_TABLE
    }
}

/// The answers that differ, but for the expected ones: `expected` gets the name, the driver's answer
/// and ours.
fn differences(
    driver: &Answers,
    ours: &Answers,
    expected: impl Fn(&str, &str, &str) -> bool,
) -> Vec<String> {
    let asked: BTreeSet<&String> = driver.keys().chain(ours.keys()).collect();
    let answer = |of: &Answers, asked: &str| {
        let answer = of.get(asked).map_or("nothing", String::as_str);
        answer.to_owned()
    };
    let differ = asked.into_iter().filter_map(|asked| {
        let name = asked.split(' ').next().unwrap_or_default();
        let (driver, ours) = (answer(driver, asked), answer(ours, asked));
        let is_right = driver == ours || expected(name, &driver, &ours);
        (!is_right).then(|| format!("{asked}: {driver}, and with ours in front {ours}"))
    });
    differ.collect()
}

/// Whatever NVIDIA's library exports, ours does, but for a debugger's names. A name that is newer
/// than the driver is there too: a program that is linked against it starts.
#[test]
fn every_name_of_theirs_is_found_in_ours() -> Result<()> {
    let Some((court, drivers)) = Court::new()? else {
        return Ok(());
    };
    for driver in &drivers {
        for (library, left_out) in [(&CUDA, &DEBUGGERS[..]), (&NVML, &[])] {
            let version = driver.version();
            let theirs = symbols(&driver.library(library), library)?;
            let ours = symbols(&built(library.interposer)?, library)?;
            let missing: Vec<&str> = theirs
                .iter()
                .filter(|(name, is_code)| ours.get(*name) != Some(*is_code))
                .map(|(name, _)| name.as_str())
                .collect();
            ensure!(missing == left_out, "{version}: ours has not {missing:?}");
            let names = all_names(driver, library)?;
            let file = court.names(names.iter().map(String::as_str))?;
            let ask = |way| court.ask(driver, library, way, &file, &["symbols"]);
            let differ = differences(&ask(Way::Alone)?, &ask(Way::InFront)?, |name, theirs, _| {
                left_out.contains(&name) || (theirs == "absent" && ours.contains_key(name))
            });
            ensure!(differ.is_empty(), "{version}: {differ:#?}");
            println!("{version}: {} names of {}", theirs.len(), library.soname);
        }
        a_debugger_finds_its_variables(&court, driver)?;
    }
    court.close()
}

/// The driver's file is loaded behind ours before anybody starts the driver, with its own flag for
/// debuggers.
fn a_debugger_finds_its_variables(court: &Court, driver: &RealDriver) -> Result<()> {
    let mut command = court.command(driver, Way::InFront);
    command.arg(court.machine.caller()?);
    let mut calls = Calls::start(command.arg(built(CUDA.interposer)?))?;
    let file = driver.library(&CUDA);
    // Only if it is loaded: RTLD_NOW and RTLD_NOLOAD.
    calls.play(&format!(
        "
        cuDriverGetVersion &version
        let dlopen dlsym 0 \"dlopen
        let driver @dlopen \"{} 6
        let flag dlsym driver \"cudbgIpcFlag
        let none dlsym 0 \"cudbgIpcFlag
        print none -> 0
        let api dlsym driver \"cudbgGetAPIVersion
        ",
        file.display()
    ))?;
    ensure!(calls.number("print flag")? != 0, "no flag of a debugger's");
    // From R550 on the answer is that a file of the debugger's is missing.
    let [ours, theirs] = ["cudbgGetAPIVersion", "@api"].map(|function| {
        let call = format!("{function} &major &minor &revision");
        calls.number(&call)
    });
    ensure!(ours? == theirs?, "another answer than the driver's");
    calls.end()
}

/// Before anybody has started the driver, and after it was started in vain. Each function is called
/// by a process of its own; where NVIDIA's crashes, it does so with ours in front.
#[test]
fn every_function_answers_as_theirs_before_and_after_a_start_in_vain() -> Result<()> {
    let Some((court, drivers)) = Court::new()? else {
        return Ok(());
    };
    for driver in &drivers {
        for (library, init) in [(&CUDA, "cuInit"), (&NVML, "nvmlInit_v2")] {
            let mut names = all_names(driver, library)?;
            names.retain(|name| !DEBUGGERS.contains(&name.as_str()));
            let file = court.names(names.iter().map(String::as_str))?;
            for verb in [&["calls"][..], &["calls", init]] {
                let theirs = court.ask(driver, library, Way::Alone, &file, verb)?;
                let what = format!("{}, {verb:?} of {}", driver.version(), library.soname);
                println!("{what}: {} answers; {}", theirs.len(), crashes(&theirs));
                for way in [Way::InFront, Way::InJob] {
                    let ours = court.ask(driver, library, way, &file, verb)?;
                    let differ = differences(&theirs, &ours, |name, theirs, ours| {
                        is_ours_to_say(library, way, name, theirs, ours)
                    });
                    ensure!(differ.is_empty(), "{what}, {way:?}: {differ:#?}");
                }
            }
        }
    }
    court.close()
}

/// The functions that crash in NVIDIA's own library, without a device or with arguments like these.
fn crashes(theirs: &Answers) -> String {
    let crashed = theirs
        .iter()
        .filter(|(_, answer)| answer.starts_with("signal"));
    let names = crashed.filter_map(|(asked, _)| asked.split(' ').next());
    let names: BTreeSet<&str> = names.collect();
    format!("{} crash: {names:?}", names.len())
}

/// Answers of our own. A function that the driver lacks is there in our library, and says that the
/// driver has not got it: a hook may ask the driver first, and pass on that nobody has started it.
/// In a job such a hook may answer where the driver alone crashes.
/// In a job, functions of NVML that change a card are refused whatever they are asked, and so is
/// the private door.
fn is_ours_to_say(library: &Library, way: Way, name: &str, theirs: &str, ours: &str) -> bool {
    let in_job = way == Way::InJob;
    if in_job && theirs.starts_with("signal") {
        return true;
    }
    if library.soname == CUDA.soname {
        let is_known = CUDA_TABLE.by_symbol(name).is_some() || CUDA_UNDECLARED.contains(&name);
        let not_supported = ours == "801 0" || (in_job && ours == "3 0");
        return theirs == "absent" && is_known && not_supported;
    }
    let is_refused = in_job && ours == "4 0" && NVML_DENIED.contains(&name);
    let is_kept_back = in_job && ours == "3 0" && name == "nvmlInternalGetExportTable";
    let not_found = ours == "13 0" || (in_job && ours == "1 0");
    let is_lacking = theirs == "absent" && NVML_TABLE.by_symbol(name).is_some() && not_found;
    is_refused || is_kept_back || is_lacking
}

#[test]
fn every_error_has_their_text() -> Result<()> {
    let Some((court, drivers)) = Court::new()? else {
        return Ok(());
    };
    for driver in &drivers {
        for library in [&CUDA, &NVML] {
            let file = court.names([])?;
            let ask = |way| court.ask(driver, library, way, &file, &["texts"]);
            let theirs = ask(Way::Alone)?;
            ensure!(theirs.len() > 1000, "{theirs:?}");
            for way in [Way::InFront, Way::InJob] {
                let differ = differences(&theirs, &ask(way)?, |_, _, _| false);
                ensure!(differ.is_empty(), "{}: {differ:#?}", driver.version());
            }
        }
    }
    court.close()
}

/// Number of times that each of our libraries is loaded and unloaded.
const TIMES: &str = "10000";

/// A program that loads and unloads us again and again has no more mappings, descriptors or threads
/// at last than after the second time.
#[test]
fn ours_are_loaded_and_unloaded_ten_thousand_times() -> Result<()> {
    let Some((court, drivers)) = Court::new()? else {
        return Ok(());
    };
    let driver = drivers.last().context("no driver")?;
    for way in [Way::InFront, Way::InJob] {
        for (file, called) in [
            (CUDA.interposer, Some("cuDriverGetVersion")),
            (NVML.interposer, Some("nvmlSystemGetCudaDriverVersion")),
            ("libsublet_preload.so", None),
        ] {
            let mut command = court.command(driver, way);
            command.arg(&court.referee).arg(built(file)?);
            let said = command
                .arg(court.names(called)?)
                .args(["again", TIMES])
                .output()?;
            ensure!(said.status.success(), "{file}, {way:?}: {said:?}");
            let text = String::from_utf8(said.stdout)?;
            ensure!(text.lines().count() == 3, "{file}, {way:?}: {text}");
            for line in text.lines() {
                let counts = line.split_once(": ").map(|(_, counts)| counts);
                let (early, late) = counts
                    .and_then(|counts| counts.split_once(' '))
                    .with_context(|| line.to_owned())?;
                ensure!(early == late, "{file}, {way:?}: {text}");
            }
        }
    }
    court.close()
}

/// Nothing is there to be shown; but it is their own words that say so.
#[test]
fn nvidia_smi_says_the_same() -> Result<()> {
    let Some((court, drivers)) = Court::new()? else {
        return Ok(());
    };
    let folder = court.machine.path().join("smi");
    fs::create_dir(&folder)?;
    std::os::unix::fs::symlink(built(NVML.interposer)?, folder.join(NVML.soname))?;
    for driver in &drivers {
        let say = |way, folder: &Path| -> Result<String> {
            let mut command = court.command(driver, way);
            command.env("LD_LIBRARY_PATH", folder).arg(driver.smi());
            let said = command.output()?;
            Ok(format!("{said:?}"))
        };
        let theirs = say(Way::Alone, &driver.libraries())?;
        let ours = say(Way::InFront, &folder)?;
        ensure!(theirs.contains("NVIDIA driver"), "{theirs}");
        ensure!(theirs == ours, "{theirs}, and with ours in front {ours}");
    }
    court.close()
}
