//! Bursts of kernels of a known length, for a given time. It counts how many of them ended within
//! a time window that several processes have in common.
//!
//! Two bursts are in the stream at a time, so that the card never waits for this program unless it
//! is told to pause. The share of the window that its kernels filled shows how programs share a
//! card.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use sublet_driver_api::cuda::{
    CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT,
};

use crate::arguments::{Common, seconds};
use crate::driver::{Context, Driver};
use crate::nvml::Utilisation;
use crate::report::{Failure, Report};
use crate::stream::{Event, Executable, Kernels, Launch, Stream};
use crate::token_bucket::{REFILL_MS, TokenBucket, WAIT_MS};

/// Arguments of `steady`.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    common: Common,
    /// Duration of each kernel, in microseconds
    #[arg(long, default_value_t = 500)]
    microseconds: u64,
    /// Kernels of a burst
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=4096))]
    kernels: u32,
    /// Way to launch a burst
    #[arg(long, value_enum, default_value = "eager")]
    launch: Way,
    /// Time without work after each burst
    #[arg(long, default_value = "0", value_parser = seconds)]
    pause: Duration,
    /// Start of the window, on CLOCK_MONOTONIC; by default now
    #[arg(long, value_name = "NANOSECONDS")]
    from: Option<u64>,
    /// Seconds of the window; work begins at once and ends with it
    #[arg(long, default_value = "10", value_parser = seconds)]
    seconds: Duration,
    /// Limit the program to so many percent of the card as HAMi-core does, by NVML's file
    #[arg(long, requires = "nvml", value_parser = clap::value_parser!(u32).range(1..=100))]
    token_bucket: Option<u32>,
    /// The driver's NVML library
    #[arg(long)]
    nvml: Option<String>,
    /// Thread blocks that a kernel counts as in the bucket
    #[arg(long, default_value_t = 16_384)]
    blocks: u32,
}

/// Way to launch a burst.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Way {
    /// Kernel by kernel
    Eager,
    /// As one graph
    Graph,
}

pub(crate) fn run(arguments: &Arguments, report: &mut Report) -> Result<(), Failure> {
    let driver = Driver::start(&arguments.common, report)?;
    let context = driver.context(arguments.common.device)?;
    let stream = Stream::new(&context)?;
    let kernels = Kernels::load(&context)?;
    let mut burst = Burst::new(arguments, &context, &kernels)?;
    let limiter = Limiter::new(arguments, &context)?;
    let begin = match arguments.from {
        Some(at) => Duration::from_nanos(at),
        None => now(),
    };
    let end = begin + arguments.seconds;
    let is_over = AtomicBool::new(false);
    let per_tenth = thread::scope(|scope| {
        if let Some(limiter) = &limiter {
            scope.spawn(|| limiter.refill_until(&is_over));
        }
        let window = (begin, end);
        let per_tenth = run_until(arguments, &mut burst, &stream, limiter.as_ref(), window);
        is_over.store(true, Ordering::Release);
        per_tenth
    })?;
    let ended: u64 = per_tenth.iter().sum();
    let filled = Duration::from_micros(arguments.microseconds * ended);
    report.set("kernels", ended);
    report.set("seconds", arguments.seconds.as_secs_f64());
    let whole = arguments.seconds.as_secs_f64();
    report.set("share", filled.as_secs_f64() / whole);
    report.set("perTenth", per_tenth);
    Ok(())
}

/// Launches bursts until the window ends; returns the number of kernels that ended in each tenth of
/// a second of the window.
fn run_until(
    arguments: &Arguments,
    burst: &mut Burst<'_>,
    stream: &Stream<'_>,
    limiter: Option<&Limiter>,
    (begin, end): (Duration, Duration),
) -> Result<Vec<u64>, Failure> {
    const TENTH: Duration = Duration::from_millis(100);
    let mut per_tenth = vec![0; (end - begin).div_duration_f64(TENTH).ceil() as usize];
    let mut running: VecDeque<Event<'_>> = VecDeque::new();
    let mut idle = vec![Event::new(stream.context())?, Event::new(stream.context())?];
    while now() < end {
        let event = match idle.pop() {
            Some(event) => event,
            None => match running.pop_front() {
                Some(oldest) => {
                    oldest.synchronize()?;
                    let tenth = now()
                        .checked_sub(begin)
                        .map(|at| at.div_duration_f64(TENTH));
                    if let Some(count) = tenth.and_then(|at| per_tenth.get_mut(at as usize)) {
                        *count += u64::from(arguments.kernels);
                    }
                    oldest
                }
                None => break, // there are two events, here or there
            },
        };
        if !arguments.pause.is_zero() {
            stream.synchronize()?;
            thread::sleep(arguments.pause);
        }
        burst.go(stream, limiter)?;
        event.record(stream)?;
        running.push_back(event);
    }
    stream.synchronize()?;
    Ok(per_tenth)
}

/// Kernels that are launched as one burst.
enum Burst<'context> {
    Eager(Vec<Launch>, u32),
    Graph(Executable<'context>),
}

impl<'context> Burst<'context> {
    fn new(
        arguments: &Arguments,
        context: &'context Context<'context>,
        kernels: &Kernels<'_>,
    ) -> Result<Self, Failure> {
        let (count, us) = (arguments.kernels, arguments.microseconds);
        Ok(match arguments.launch {
            Way::Eager => {
                let launches = (0..count).map(|_| kernels.spin(us));
                Self::Eager(launches.collect(), arguments.blocks)
            }
            Way::Graph => Self::Graph(Executable::of_spins(context, kernels, count, us)?),
        })
    }

    fn go(&mut self, stream: &Stream<'_>, limiter: Option<&Limiter>) -> Result<(), Failure> {
        match self {
            Self::Graph(graph) => graph.launch(stream),
            Self::Eager(launches, blocks) => launches.iter_mut().try_for_each(|launch| {
                if let Some(limiter) = limiter {
                    limiter.wait_for(*blocks);
                }
                launch.go(stream)
            }),
        }
    }
}

/// The token bucket, and the source of the process's utilisation.
struct Limiter {
    bucket: Mutex<TokenBucket>,
    utilisation: Mutex<Utilisation>,
}

impl Limiter {
    fn new(arguments: &Arguments, context: &Context<'_>) -> Result<Option<Self>, Failure> {
        let (Some(limit), Some(nvml)) = (arguments.token_bucket, &arguments.nvml) else {
            return Ok(None);
        };
        let device = context.device();
        let multiprocessors = device.attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?;
        let threads = device.attribute(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR)?;
        let bucket = TokenBucket::new(limit.into(), multiprocessors.into(), threads.into());
        Ok(Some(Self {
            bucket: Mutex::new(bucket),
            utilisation: Mutex::new(Utilisation::of_this_process(nvml)?),
        }))
    }

    fn wait_for(&self, blocks: u32) {
        while !locked(&self.bucket).take(blocks.into()) {
            thread::sleep(Duration::from_millis(WAIT_MS));
        }
    }

    fn refill_until(&self, is_over: &AtomicBool) {
        while !is_over.load(Ordering::Acquire) {
            let begin = Instant::now();
            // While the driver has no sample, the process counts as idle, as in HAMi-core.
            let busy = locked(&self.utilisation).percent().unwrap_or(0);
            locked(&self.bucket).refill(busy.into());
            thread::sleep(Duration::from_millis(REFILL_MS).saturating_sub(begin.elapsed()));
        }
    }
}

fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Time of CLOCK_MONOTONIC, the same for all processes.
fn now() -> Duration {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: writes the struct it is given; this clock always exists.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    Duration::new(now.tv_sec.unsigned_abs(), now.tv_nsec.unsigned_abs() as u32)
}
