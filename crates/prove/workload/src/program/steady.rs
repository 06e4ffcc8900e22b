//! Bursts of kernels of a known length, for a given time. It counts how many of them ended within
//! a time window that several processes have in common.
//!
//! Each thread has a stream of its own with two bursts in it at a time, so that the card never
//! waits for this program unless it is told to pause. Told never to wait, it launches as many as a
//! driver takes. Events say when a burst ended, so counts are right even if this program looks late. The
//! share of the window that its kernels filled shows how programs share a card.

use std::collections::VecDeque;
use std::thread;
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};

use crate::arguments::{Common, seconds};
use crate::driver::{Context, Driver};
use crate::limiter::{Limiter, LimiterArguments, with_refills};
use crate::report::{Failure, Report};
use crate::stream::{Event, Executable, Kernels, Launch, Stream};
use crate::window::{Window, WindowArguments, now};

/// Bursts in a stream of a program that waits for the card, and of one that never does: NVIDIA's
/// driver takes about as many launches before it lets a launch wait.
const QUEUED: usize = 2;
const QUEUED_MOST: usize = 1024;

/// Time between two looks of a thread whose stream takes no more.
const LOOK: Duration = Duration::from_millis(1);

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
    /// Threads, each with a stream of its own
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024))]
    threads: u32,
    /// Launch each burst from a thread of its own
    #[arg(long)]
    fresh_threads: bool,
    /// Never wait for the card: queue as many bursts as a driver takes, 1024
    #[arg(long, conflicts_with = "pause")]
    never_wait: bool,
    /// Wait for each burst, and then so many seconds without work
    #[arg(long, default_value = "0", value_parser = seconds)]
    pause: Duration,
    /// Spend the pause at work on the CPU
    #[arg(long, requires = "pause")]
    spin: bool,
    #[command(flatten)]
    window: WindowArguments,
    #[command(flatten)]
    limiter: LimiterArguments,
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
    let kernels = Kernels::load(&context)?;
    let limiter = arguments.limiter.limiter(&context)?;
    let origin = Origin::new(&context)?;
    let steady = Steady {
        arguments,
        context: &context,
        kernels: &kernels,
        limiter: limiter.as_ref(),
        origin: &origin,
        window: arguments.window.window(),
    };
    let counted = with_refills(limiter.as_ref(), || {
        thread::scope(|scope| {
            let threads = (0..arguments.threads).map(|_| scope.spawn(|| steady.run()));
            let threads: Vec<_> = threads.collect();
            let died = |_| Err(Failure::Wrong("a thread panicked".to_owned()));
            let each = threads.into_iter();
            each.map(|one| one.join().unwrap_or_else(died))
                .collect::<Result<Vec<Counted>, Failure>>()
        })
    })?;
    let mut all = Counted::new(steady.window);
    counted.iter().for_each(|one| all.add(one));
    all.describe(arguments, steady.window, report);
    Ok(())
}

/// A moment on the card whose time on CLOCK_MONOTONIC is known.
struct Origin<'context> {
    event: Event<'context>,
    at: Duration,
}

impl<'context> Origin<'context> {
    fn new(context: &'context Context<'context>) -> Result<Self, Failure> {
        let stream = Stream::new(context)?;
        let event = Event::new(context)?;
        event.record(&stream)?;
        event.synchronize()?;
        Ok(Self { event, at: now() })
    }

    /// The time of a later event that is over.
    fn time_of(&self, event: &Event<'_>) -> Result<Duration, Failure> {
        Ok(self.at + event.since(&self.event)?)
    }
}

/// Bursts that ended.
struct Counted {
    per_tenth: Vec<u64>,
    /// End of the last one.
    last: Duration,
}

impl Counted {
    fn new(window: Window) -> Self {
        Self {
            per_tenth: vec![0; window.n_tenths()],
            last: Duration::ZERO,
        }
    }

    fn ended(&mut self, window: Window, at: Duration) {
        self.last = self.last.max(at);
        if let Some(tenth) = window.tenth(at) {
            self.per_tenth[tenth] += 1;
        }
    }

    fn add(&mut self, other: &Counted) {
        self.last = self.last.max(other.last);
        for (sum, more) in self.per_tenth.iter_mut().zip(&other.per_tenth) {
            *sum += more;
        }
    }

    fn describe(self, arguments: &Arguments, window: Window, report: &mut Report) {
        let (seconds, each) = (window.length().as_secs_f64(), u64::from(arguments.kernels));
        let bursts: u64 = self.per_tenth.iter().sum();
        let filled = Duration::from_micros(arguments.microseconds * bursts * each);
        let beyond = self.last.saturating_sub(window.end);
        let per_tenth = self.per_tenth.into_iter().map(|bursts| bursts * each);
        report.set("microseconds", arguments.microseconds);
        report.set("kernels", bursts * each);
        report.set("bursts", bursts);
        report.set("burstsPerSecond", bursts as f64 / seconds);
        report.set("seconds", seconds);
        report.set("share", filled.as_secs_f64() / seconds);
        // Work that was still queued when the window ended.
        report.set("secondsBeyond", beyond.as_secs_f64());
        report.set("perTenth", per_tenth.collect::<Vec<u64>>());
    }
}

/// Everything that the threads have in common.
struct Steady<'a> {
    arguments: &'a Arguments,
    context: &'a Context<'a>,
    kernels: &'a Kernels<'a>,
    limiter: Option<&'a Limiter>,
    origin: &'a Origin<'a>,
    window: Window,
}

impl Steady<'_> {
    /// Launches bursts from one thread until the window ends, and counts those that ended in it.
    fn run(&self) -> Result<Counted, Failure> {
        self.context.make_current()?;
        let stream = Stream::new(self.context)?;
        let mut burst = Burst::new(self.arguments, self.context, self.kernels)?;
        let mut counted = Counted::new(self.window);
        let mut running: VecDeque<Event<'_>> = VecDeque::new();
        let mut idle: Vec<Event<'_>> = Vec::new();
        while !self.window.is_over() {
            if self.arguments.never_wait {
                self.collect(&mut running, &mut idle, &mut counted)?;
                if running.len() >= QUEUED_MOST {
                    thread::sleep(LOOK);
                    continue;
                }
            } else if running.len() >= QUEUED
                && let Some(oldest) = running.pop_front()
            {
                // Even if it is over: a wait for each burst is a program's rhythm.
                oldest.synchronize()?;
                counted.ended(self.window, self.origin.time_of(&oldest)?);
                idle.push(oldest);
            }
            if !self.arguments.pause.is_zero() {
                stream.synchronize()?;
                self.rest();
            }
            let event = idle.pop().map_or_else(|| Event::new(self.context), Ok)?;
            self.launch(&mut burst, &stream)?;
            event.record(&stream)?;
            running.push_back(event);
        }
        stream.synchronize()?;
        self.collect(&mut running, &mut idle, &mut counted)?;
        Ok(counted)
    }

    /// Counts the bursts that have ended, and takes back their events.
    fn collect<'context>(
        &self,
        running: &mut VecDeque<Event<'context>>,
        idle: &mut Vec<Event<'context>>,
        counted: &mut Counted,
    ) -> Result<(), Failure> {
        while let Some(oldest) = running.pop_front() {
            if !oldest.is_over()? {
                running.push_front(oldest);
                break;
            }
            counted.ended(self.window, self.origin.time_of(&oldest)?);
            idle.push(oldest);
        }
        Ok(())
    }

    fn rest(&self) {
        let begin = Instant::now();
        if !self.arguments.spin {
            thread::sleep(self.arguments.pause);
        }
        while begin.elapsed() < self.arguments.pause {
            std::hint::spin_loop();
        }
    }

    fn launch(&self, burst: &mut Burst<'_>, stream: &Stream<'_>) -> Result<(), Failure> {
        if !self.arguments.fresh_threads {
            return burst.go(stream, self.limiter);
        }
        let launch = || {
            self.context.make_current()?;
            burst.go(stream, self.limiter)
        };
        let ended = thread::scope(|scope| scope.spawn(launch).join());
        ended.unwrap_or_else(|_| Err(Failure::Wrong("a thread panicked".to_owned())))
    }
}

/// Kernels that are launched as one burst.
enum Burst<'context> {
    Eager(Vec<Launch>),
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
                Self::Eager(launches.collect())
            }
            Way::Graph => Self::Graph(Executable::of_spins(context, kernels, count, us)?),
        })
    }

    fn go(&mut self, stream: &Stream<'_>, limiter: Option<&Limiter>) -> Result<(), Failure> {
        match self {
            Self::Graph(graph) => graph.launch(stream),
            Self::Eager(launches) => launches.iter_mut().try_for_each(|launch| {
                if let Some(limiter) = limiter {
                    limiter.wait();
                }
                launch.go(stream)
            }),
        }
    }
}
