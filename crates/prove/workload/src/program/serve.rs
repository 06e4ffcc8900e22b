//! An inference server: requests arrive, each of them a burst of small launches, with pauses
//! between.
//!
//! Such a program suffers first from a neighbour. So it measures each request from its first launch
//! to its end, or from its arrival if requests arrive by themselves, and the longest time in which
//! none ended.

use std::thread;
use std::time::{Duration, Instant};

use clap::Args;

use crate::arguments::{Bytes, Common, seconds};
use crate::chance::Chance;
use crate::driver::Driver;
use crate::limiter::{Limiter, LimiterArguments, with_refills};
use crate::report::{Failure, Report};
use crate::statistics::{rounded, spread};
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
    /// Requests arrive by chance, so many seconds apart on average (Poisson), whether or not
    /// earlier ones have ended; latency counts from the arrival
    #[arg(long, value_name = "SECONDS", value_parser = seconds, conflicts_with = "pause")]
    every: Option<Duration>,
    /// Seed of the arrivals
    #[arg(long, default_value_t = 1, requires = "every")]
    seed: u64,
    /// Memory that is held all the time
    #[arg(long, default_value = "16MiB")]
    keep: Bytes,
    #[command(flatten)]
    limiter: LimiterArguments,
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
    let limiter = arguments.limiter.limiter(&context)?;
    with_refills(limiter.as_ref(), || {
        answer(arguments, &mut launches, &stream, limiter.as_ref(), report)
    })?;
    report.set("memory", context.memory()?.to_json());
    Ok(())
}

/// Answers requests, and says how long they took.
fn answer(
    arguments: &Arguments,
    launches: &mut [Launch],
    stream: &Stream<'_>,
    limiter: Option<&Limiter>,
    report: &mut Report,
) -> Result<(), Failure> {
    let mut arrivals = Arrivals::new(arguments);
    let mut latencies = Vec::new();
    let begin = Instant::now();
    let (mut told, mut ended, mut longest) = (Duration::ZERO, Duration::ZERO, Duration::ZERO);
    while begin.elapsed() < arguments.seconds && (latencies.len() as u64) < arguments.requests {
        let arrived = arrivals.wait(begin);
        for launch in &mut *launches {
            if let Some(limiter) = limiter {
                limiter.wait();
            }
            launch.go(stream)?;
        }
        stream.synchronize()?;
        let now = begin.elapsed();
        latencies.push((now - arrived).as_secs_f64() * 1e6);
        longest = longest.max(now - ended);
        ended = now;
        if now - told >= Duration::from_secs(1) {
            told = now;
            let count = latencies.len();
            arguments.common.progress(format_args!("request {count}"));
        }
    }
    let time = begin.elapsed().as_secs_f64();
    let least = u64::from(arguments.launches).saturating_mul(arguments.microseconds);
    report.set("requests", latencies.len());
    report.set("requestsPerSecond", latencies.len() as f64 / time);
    report.set("latencyUs", spread(&mut latencies));
    report.set("leastLatencyUs", least);
    report.set("longestPauseUs", rounded(longest.as_secs_f64() * 1e6));
    report.set("seconds", time);
    Ok(())
}

/// Moments at which requests arrive, since the first one could.
enum Arrivals {
    /// Some time after the end of the request before.
    After(Duration, bool),
    /// By themselves: the mean gap in seconds, its chance, and the last arrival.
    Poisson(f64, Chance, Duration),
}

impl Arrivals {
    fn new(arguments: &Arguments) -> Self {
        match arguments.every {
            None => Self::After(arguments.pause, true),
            Some(mean) => {
                let chance = Chance::new(arguments.seed);
                Self::Poisson(mean.as_secs_f64(), chance, Duration::ZERO)
            }
        }
    }

    /// Waits for the next request, unless it is already there; when it arrived.
    fn wait(&mut self, begin: Instant) -> Duration {
        match self {
            Self::After(pause, is_first) => {
                if !std::mem::take(is_first) {
                    thread::sleep(*pause);
                }
                begin.elapsed()
            }
            Self::Poisson(mean, chance, last) => {
                *last += Duration::from_secs_f64(chance.gap(*mean));
                thread::sleep(last.saturating_sub(begin.elapsed()));
                *last
            }
        }
    }
}
