//! Percent of a card that each of its processes used, as NVML samples it, in each tenth of a second
//! of a window. Tests compare shares that others count with it.

use std::collections::BTreeMap;
use std::thread;

use clap::Args;
use serde_json::{Map, Value};

use crate::nvml::Utilisation;
use crate::report::{Failure, Report};
use crate::window::{WindowArguments, now};

/// Arguments of `utilisation`.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// The driver's NVML library
    nvml: String,
    #[command(flatten)]
    window: WindowArguments,
}

pub(crate) fn run(arguments: &Arguments, report: &mut Report) -> Result<(), Failure> {
    let mut utilisation = Utilisation::of_first_device(&arguments.nvml)?;
    let window = arguments.window.window();
    let n_tenths = window.n_tenths();
    let mut by_process: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    for tenth in 0..n_tenths {
        thread::sleep(window.end_of_tenth(tenth).saturating_sub(now()));
        for (pid, percent) in utilisation.by_process()? {
            let tenths = by_process.entry(pid).or_insert_with(|| vec![0; n_tenths]);
            tenths[tenth] = percent;
        }
    }
    let per_tenth = by_process.into_iter();
    let per_tenth: Map<String, Value> = per_tenth
        .map(|(pid, tenths)| (pid.to_string(), tenths.into()))
        .collect();
    report.set("seconds", window.length().as_secs_f64());
    report.set("perTenth", per_tenth);
    Ok(())
}
