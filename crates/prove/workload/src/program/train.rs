//! A training loop: every step copies a batch in, runs kernels, and copies the result out.
//!
//! Memory that a framework would keep (weights, its cache) is taken before the first step and
//! held. Every word that comes back is checked. So the program notices if the card does something
//! else than it was told, whatever stands between them.

use std::time::{Duration, Instant};

use clap::Args;

use crate::arguments::{Bytes, Common, seconds};
use crate::driver::{Context, Driver};
use crate::report::{Failure, Report};
use crate::stream::{Buffer, Kernels, Launch, Stream};

/// Arguments of `train`.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    common: Common,
    /// Number of steps; by default 100, or with --seconds no end
    #[arg(long)]
    steps: Option<u64>,
    /// End after the step in which this time is over
    #[arg(long, value_parser = seconds)]
    seconds: Option<Duration>,
    /// Bytes of a batch
    #[arg(long, default_value = "1MiB")]
    batch: Bytes,
    /// Kernels of each step that only take time
    #[arg(long, default_value_t = 8)]
    kernels: u32,
    /// Duration of each kernel, in microseconds
    #[arg(long, default_value_t = 100)]
    microseconds: u64,
    /// Memory that is held all the time
    #[arg(long, default_value = "64MiB")]
    keep: Bytes,
    /// Number of allocations for that memory
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..))]
    keep_blocks: u32,
}

impl Arguments {
    /// Whether a run is over that has made so many steps in so much time.
    fn is_over(&self, steps: u64, time: Duration) -> bool {
        match (self.steps, self.seconds) {
            (None, None) => steps >= 100,
            (wanted, limit) => {
                wanted.is_some_and(|wanted| steps >= wanted)
                    || limit.is_some_and(|limit| time >= limit)
            }
        }
    }
}

pub(crate) fn run(arguments: &Arguments, report: &mut Report) -> Result<(), Failure> {
    let driver = Driver::start(&arguments.common, report)?;
    let context = driver.context(arguments.common.device)?;
    let mut kept = Vec::new();
    let each = arguments.keep.0 / arguments.keep_blocks as usize / 4;
    for _ in 0..arguments.keep_blocks {
        if each > 0 {
            kept.push(Buffer::new(&context, each)?);
        }
        report.set("keptBytes", kept.len() * each * 4);
    }
    let stream = Stream::new(&context)?;
    let mut run = Training::new(arguments, &context)?;
    // The kept memory has a pattern too, which shows whether another process writes into it.
    for buffer in &kept {
        let mut fill = run.kernels.fill_first(buffer, KEPT_WORDS, KEPT);
        fill.go(&stream)?;
    }
    let begin = Instant::now();
    let mut steps = 0;
    let mut told = Duration::ZERO;
    while !arguments.is_over(steps, begin.elapsed()) {
        run.step(steps, &stream)?;
        steps += 1;
        report.set("steps", steps);
        if begin.elapsed() - told >= Duration::from_secs(1) {
            told = begin.elapsed();
            arguments.common.progress(format_args!("step {steps}"));
        }
    }
    let time = begin.elapsed().as_secs_f64();
    for buffer in &kept {
        check_kept(buffer, &stream)?;
    }
    report.set("seconds", time);
    report.set("stepsPerSecond", steps as f64 / time);
    report.set("checkedWords", run.input.len() as u64 * steps);
    report.set("memory", context.memory()?.to_json());
    Ok(())
}

/// The word that fills the kept memory.
const KEPT: u32 = 0x5ab1_e700;

/// Words of each kept buffer that are written and read. The beginning tells enough, and a fake card
/// keeps the written words in the machine's memory.
const KEPT_WORDS: usize = 1024;

/// Reads the beginning of a kept buffer.
fn check_kept(buffer: &Buffer<'_>, stream: &Stream<'_>) -> Result<(), Failure> {
    let mut words = vec![0; buffer.words().min(KEPT_WORDS)];
    stream.copy_out(&mut words, buffer)?;
    match words.iter().position(|word| *word != KEPT) {
        None => Ok(()),
        Some(at) => Err(Failure::Wrong(format!(
            "word {at} of kept memory is {:#x}",
            words[at]
        ))),
    }
}

struct Training<'context> {
    kernels: Kernels<'context>,
    spin: Vec<Launch>,
    buffer: Buffer<'context>,
    input: Vec<u32>,
    output: Vec<u32>,
}

impl<'context> Training<'context> {
    fn new(arguments: &Arguments, context: &'context Context<'context>) -> Result<Self, Failure> {
        let words = (arguments.batch.0 / 4).max(1);
        let kernels = Kernels::load(context)?;
        let spin = (0..arguments.kernels).map(|_| kernels.spin(arguments.microseconds));
        Ok(Self {
            spin: spin.collect(),
            kernels,
            buffer: Buffer::new(context, words)?,
            input: vec![0; words],
            output: vec![0; words],
        })
    }

    fn step(&mut self, step: u64, stream: &Stream<'_>) -> Result<(), Failure> {
        let added = step as u32 ^ 0xffff;
        for (index, word) in self.input.iter_mut().enumerate() {
            *word = word_of(index, step);
        }
        stream.copy_in(&self.buffer, &self.input)?;
        for launch in &mut self.spin {
            launch.go(stream)?;
        }
        self.kernels.add(&self.buffer, added).go(stream)?;
        stream.copy_out(&mut self.output, &self.buffer)?;
        for (index, (was, is)) in self.input.iter().zip(&self.output).enumerate() {
            if was.wrapping_add(added) != *is {
                return Err(Failure::Wrong(format!(
                    "step {step}: word {index} is {is:#x} instead of {:#x}",
                    was.wrapping_add(added)
                )));
            }
        }
        Ok(())
    }
}

/// A word that differs from step to step and from place to place.
fn word_of(index: usize, step: u64) -> u32 {
    (index as u32).wrapping_mul(0x9e37_79b9) ^ step as u32
}

#[cfg(test)]
mod tests {
    use super::{Arguments, word_of};
    use clap::Parser;
    use std::time::Duration;

    #[derive(Parser)]
    struct Alone {
        #[command(flatten)]
        arguments: Arguments,
    }

    fn arguments(text: &str) -> Arguments {
        let words = std::iter::once("train").chain(text.split_whitespace());
        Alone::parse_from(words).arguments
    }

    #[test]
    fn a_run_ends_at_whichever_comes_first() {
        let second = Duration::from_secs(1);
        assert!(!arguments("").is_over(99, 100 * second));
        assert!(arguments("").is_over(100, Duration::ZERO));
        assert!(!arguments("--seconds 2").is_over(1000, second));
        assert!(arguments("--seconds 2").is_over(0, 2 * second));
        assert!(arguments("--seconds 2 --steps 5").is_over(5, second));
        assert!(arguments("--steps 0").is_over(0, Duration::ZERO));
    }

    #[test]
    fn neighbours_and_steps_differ() {
        assert_ne!(word_of(0, 1), word_of(0, 2));
        assert_ne!(word_of(1, 1), word_of(2, 1));
    }
}
