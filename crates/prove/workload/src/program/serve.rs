//! An inference server: requests arrive, each of them a burst of small launches, with pauses
//! between.
//!
//! Such a program suffers first from a neighbour. So it measures each request from its first launch
//! to its end.

use std::thread;
use std::time::{Duration, Instant};

use clap::Args;

use crate::arguments::{Bytes, Common, seconds};
use crate::driver::Driver;
use crate::report::{Failure, Report};
use crate::statistics::spread;
use crate::stream::{Buffer, Kernels, Launch, Stream};

/// Arguments of `serve`.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    common: Common,
    /// Seconds to serve
    #[arg(long, default_value = "2", value_parser = seconds)]
    seconds: Duration,
    /// End after so many requests, if that is sooner
    #[arg(long, default_value_t = u64::MAX, hide_default_value = true)]
    requests: u64,
    /// Launches of a request
    #[arg(long, default_value_t = 20)]
    launches: u32,
    /// Duration of each kernel, in microseconds
    #[arg(long, default_value_t = 20)]
    microseconds: u64,
    /// Quiet between two requests
    #[arg(long, default_value = "0.01", value_parser = seconds)]
    pause: Duration,
    /// Memory that is held all the time
    #[arg(long, default_value = "16MiB")]
    keep: Bytes,
}

pub(crate) fn run(arguments: &Arguments, report: &mut Report) -> Result<(), Failure> {
    let driver = Driver::start(&arguments.common, report)?;
    let context = driver.context(arguments.common.device)?;
    let kept = Buffer::new(&context, (arguments.keep.0 / 4).max(1))?;
    let kernels = Kernels::load(&context)?;
    let stream = Stream::new(&context)?;
    // Only the beginning: a fake card keeps what is written in the machine's memory.
    kernels.fill_first(&kept, 1024, 1).go(&stream)?;
    stream.synchronize()?;

    let launches = (0..arguments.launches).map(|_| kernels.spin(arguments.microseconds));
    let mut launches: Vec<Launch> = launches.collect();
    let mut latencies = Vec::new();
    let begin = Instant::now();
    let mut told = Duration::ZERO;
    while begin.elapsed() < arguments.seconds && (latencies.len() as u64) < arguments.requests {
        let request = Instant::now();
        for launch in &mut launches {
            launch.go(&stream)?;
        }
        stream.synchronize()?;
        latencies.push(request.elapsed().as_secs_f64() * 1e6);
        if begin.elapsed() - told >= Duration::from_secs(1) {
            told = begin.elapsed();
            let count = latencies.len();
            arguments.common.progress(format_args!("request {count}"));
        }
        thread::sleep(arguments.pause);
    }
    let time = begin.elapsed().as_secs_f64();
    let least = u64::from(arguments.launches).saturating_mul(arguments.microseconds);
    report.set("requests", latencies.len());
    report.set("requestsPerSecond", latencies.len() as f64 / time);
    report.set("latencyUs", spread(&mut latencies));
    report.set("leastLatencyUs", least);
    report.set("seconds", time);
    report.set("memory", context.memory()?.to_json());
    Ok(())
}
