//! The control program of MPS in tests of our side of it: a stand-in that writes down what it is
//! told, or NVIDIA's own. Neither has a server behind it that serves, which would need a card: a
//! client waits for it.

use std::path::Path;

use crate::real_driver::{RealDriver, without_device_files};

/// A control program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MpsControl {
    /// `sublet-workload mps-control`.
    StandIn,
    /// `nvidia-cuda-mps-control` of that driver.
    Nvidias(RealDriver),
}

impl MpsControl {
    /// NVIDIA's own, of each driver that there is.
    pub fn all_of_nvidia() -> impl Iterator<Item = MpsControl> {
        RealDriver::all().into_iter().map(MpsControl::Nvidias)
    }

    /// A script that is the program. `workload` and `record` are for the stand-in.
    #[must_use]
    pub fn script(&self, workload: &Path, record: &Path) -> String {
        let program = match self {
            MpsControl::StandIn => {
                let (workload, record) = (workload.display(), record.display());
                format!("{workload} mps-control --record {record}")
            }
            MpsControl::Nvidias(driver) => {
                let before = without_device_files().join(" ");
                format!("{before} {}", driver.mps_control().display())
            }
        };
        format!("#!/bin/sh\nexec {program} \"$@\"\n")
    }
}
