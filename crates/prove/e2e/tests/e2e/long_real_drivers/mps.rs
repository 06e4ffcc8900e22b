//! MPS with NVIDIA's own control program, of each driver: the tests of `one_machine::mps` that do
//! not need the stand-in's record.

use anyhow::{Context, Result};
use sublet_e2e::MpsControl;
use sublet_e2e::real_driver::DeviceFile;

use crate::one_machine::mps::{death_and_restart, killed_arbiter, limits_and_folders};

fn with_each(test: fn(&MpsControl) -> Result<()>) -> Result<()> {
    let device = DeviceFile::as_it_is();
    for control in MpsControl::all_of_nvidia() {
        test(&control).with_context(|| format!("{control:?}"))?;
    }
    device.is_untouched()
}

#[test]
fn programs_are_told_their_limits_and_the_daemon_reports_none_of_its_own() -> Result<()> {
    with_each(limits_and_folders)
}

#[test]
fn a_daemon_that_dies_is_told_and_comes_back() -> Result<()> {
    with_each(death_and_restart)
}

#[test]
fn an_arbiter_that_is_killed_leaves_no_daemon() -> Result<()> {
    with_each(killed_arbiter)
}
