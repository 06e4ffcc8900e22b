//! Everything that the API reports of the devices, by libcuda and, if asked, by NVML.
//!
//! It makes no context unless asked to, because a context costs memory. `cuMemGetInfo` needs one.

use clap::Args;
use serde_json::{Value, json};
use sublet_driver_api::cuda::{
    CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
    CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT,
};

use crate::arguments::Common;
use crate::driver::Driver;
use crate::nvml;
use crate::report::{Failure, Report};

/// Arguments of `info`.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    common: Common,
    /// Ask NVML too; a library other than libnvidia-ml.so.1 can be named
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "libnvidia-ml.so.1")]
    nvml: Option<String>,
    /// Make a context on each device, and report cuMemGetInfo there
    #[arg(long)]
    memory: bool,
}

pub(crate) fn run(arguments: &Arguments, report: &mut Report) -> Result<(), Failure> {
    let driver = Driver::start(&arguments.common, report)?;
    let mut devices = Vec::new();
    for ordinal in 0..driver.device_count()? {
        devices.push(device(&driver, ordinal, arguments.memory)?);
    }
    report.set("devices", devices);
    if let Some(library) = &arguments.nvml {
        report.set("nvml", nvml::look(library)?);
    }
    Ok(())
}

fn device(driver: &Driver, ordinal: i32, with_memory: bool) -> Result<Value, Failure> {
    let device = driver.device(ordinal)?;
    let memory = if with_memory {
        let context = driver.context(ordinal)?;
        context.memory()?.to_json()
    } else {
        Value::Null
    };
    Ok(json!({
        "index": ordinal,
        "name": device.name()?,
        "uuid": device.uuid()?,
        "totalMem": device.total_memory()?,
        "memory": memory,
        "computeCapability": format!(
            "{}.{}",
            device.attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
            device.attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        ),
        "multiprocessors": device.attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
    }))
}
