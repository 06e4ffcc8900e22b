//! Look-ups by `cuGetProcAddress`, old and new: every name, for every version and flag, before
//! anybody has started the driver. Our own table answers as the three drivers do, and so does the
//! fake driver for what they have too.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Result, ensure};
use sublet_driver_api::CUDA as TABLE;
use sublet_e2e::interposer::{CUDA, built};
use sublet_e2e::one_machine::Calls;
use sublet_e2e::real_driver::RealDriver;

use super::{Answers, Court, Way, all_names, differences};

/// Exported by all three drivers, and found by none of their look-ups.
const NEVER_FOUND: &str = "cuEventCreateFromEGLSync";

/// The flags that a look-up may have: none, either kind of default stream, both; and one too many.
const FLAGS: usize = 5;

/// The per-thread default stream's flag.
const PER_THREAD: usize = 2;

/// All versions in which something is new, and those before them; none, all, and -1, which the
/// driver takes for all.
fn versions() -> Vec<i32> {
    let new = TABLE
        .iter()
        .filter_map(|row| i32::try_from(row.version).ok());
    let mut versions: BTreeSet<i32> = new.flat_map(|version| [version - 1, version]).collect();
    versions.extend([-1, 0, i32::MAX]);
    versions.into_iter().collect()
}

/// The answer to each look-up of a name with a flag. The program that asked says only where it
/// changes.
fn of_each_version<'a>(
    answers: &'a Answers,
    name: &str,
    flags: usize,
    versions: &[i32],
) -> Vec<&'a str> {
    let mut last = "nothing";
    let each = versions.iter().map(|version| {
        let changed = answers.get(&format!("{name} {flags} {version}"));
        last = changed.map_or(last, String::as_str);
        last
    });
    each.collect()
}

/// The version of CUDA that a driver has.
fn driver_version(court: &Court, driver: &RealDriver) -> Result<u32> {
    let mut command = court.command(driver, Way::Alone);
    command.arg(court.machine.caller()?);
    let mut calls = Calls::start(command.arg(driver.library(&CUDA)))?;
    calls.play("cuDriverGetVersion &version")?;
    let version = calls.number("print version")?;
    calls.end()?;
    Ok(u32::try_from(version)?)
}

/// The answer that our table expects of a driver.
fn expected(name: &str, flags: usize, version: i32, driver: u32) -> String {
    let version = version.cast_unsigned().min(driver);
    let resolve = |version, per_thread| {
        let row = TABLE.resolve(name, version, per_thread);
        row.filter(|_| name != NEVER_FOUND)
    };
    match resolve(version, flags & PER_THREAD != 0) {
        Some(row) => {
            let symbol = TABLE[row].symbol;
            format!("0 {symbol}, 0 0 {symbol}, 0 {symbol}")
        }
        None => {
            // Unknown, or too new for the version.
            let status = if resolve(driver, false).is_some() {
                2
            } else {
                1
            };
            format!("500 untouched, 0 {status} null, 0 null")
        }
    }
}

/// The same answer, whatever the function's name is where it was found.
fn without_symbols(answer: &str) -> String {
    let words = answer.split_inclusive([' ', ',']).map(|word| {
        let is_said =
            |text: &str| text.parse::<i32>().is_ok() || ["null", "untouched"].contains(&text);
        match word.trim_end_matches([' ', ',']) {
            text if text.is_empty() || is_said(text) => word,
            _ => "function",
        }
    });
    words.collect()
}

#[test]
fn every_look_up_finds_the_same() -> Result<()> {
    let Some((court, drivers)) = Court::new()? else {
        return Ok(());
    };
    let versions = versions();
    let words: Vec<String> = versions.iter().map(i32::to_string).collect();
    let verb: Vec<&str> = ["look-ups"]
        .into_iter()
        .chain(words.iter().map(String::as_str))
        .collect();
    for driver in &drivers {
        let mut names = all_names(driver, &CUDA)?;
        names.insert(String::new());
        let file = court.names(names.iter().map(String::as_str))?;
        let ask = |way| court.ask(driver, &CUDA, way, &file, &verb);
        let theirs = ask(Way::Alone)?;
        for way in [Way::InFront, Way::InJob] {
            let differ = differences(&theirs, &ask(way)?, |_, _, _| false);
            ensure!(
                differ.is_empty(),
                "{}, {way:?}: {differ:#?}",
                driver.version()
            );
        }
        let cuda = driver_version(&court, driver)?;
        let fake = ask_the_fake(&court, driver, &file, &verb)?;
        let mut n_compared = 0;
        for name in &names {
            n_compared += hold_to_tables(name, cuda, &versions, &theirs, &fake)?;
        }
        ensure!(
            n_compared > 10_000,
            "only {n_compared} look-ups of the fake driver"
        );
        println!(
            "CUDA {cuda}: {} names, {} versions",
            names.len(),
            versions.len()
        );
    }
    court.close()
}

/// Compares the driver's look-ups of a name with our table and with the fake driver. Returns how
/// many of the fake's there were to compare: both drivers have the function, and the version is no
/// newer than the older of them.
fn hold_to_tables(
    name: &str,
    cuda: u32,
    versions: &[i32],
    theirs: &Answers,
    fake: &Answers,
) -> Result<usize> {
    let is_of_both = TABLE.resolve(name, cuda, false).is_some();
    let mut n_compared = 0;
    for flags in 0..FLAGS {
        let said = of_each_version(theirs, name, flags, versions);
        let fakes = of_each_version(fake, name, flags, versions);
        for ((version, said), fakes) in versions.iter().zip(said).zip(fakes) {
            let is_right = flags == FLAGS - 1 || said == expected(name, flags, *version, cuda);
            ensure!(is_right, "CUDA {cuda}: {name:?} {flags} {version}: {said}");
            if is_of_both && version.cast_unsigned() <= cuda {
                let same = without_symbols(said) == without_symbols(fakes);
                ensure!(
                    same,
                    "CUDA {cuda}: {name:?} {flags} {version}: {said}, and of the fake {fakes}"
                );
                n_compared += 1;
            }
        }
    }
    Ok(n_compared)
}

/// The fake driver's own answers.
fn ask_the_fake(
    court: &Court,
    driver: &RealDriver,
    names: &Path,
    verb: &[&str],
) -> Result<Answers> {
    let mut command = court.command(driver, Way::Alone);
    command.env("SUBLET_FAKE_GPU", court.machine.spec());
    Court::answers(
        command
            .arg(&court.referee)
            .arg(built(CUDA.fake)?)
            .arg(names)
            .args(verb),
    )
}
