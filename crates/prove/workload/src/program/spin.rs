//! Kernels of a known length, one after another, and when they really ran.
//!
//! Events around each kernel give the card's own time. If the program is alone, each kernel takes
//! the time that it was asked to take. Otherwise the rest of the time went to other programs, and
//! each run of undisturbed kernels is a slice that this process got.

use std::time::{Duration, Instant};

use clap::Args;
use serde_json::{Value, json};

use crate::arguments::{Common, seconds};
use crate::driver::{Context, Driver};
use crate::report::{Failure, Report};
use crate::statistics::{Slice, Stretch, rounded, slices, spread};
use crate::stream::{Call, Event, Kernels, Stream};

/// Arguments of `spin`.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    common: Common,
    /// Duration of each kernel, in microseconds
    #[arg(long, default_value_t = 1000)]
    microseconds: u64,
    /// Number of kernels; by default 100, or with --seconds no end
    #[arg(long)]
    count: Option<usize>,
    /// End when this time is over
    #[arg(long, value_parser = seconds)]
    seconds: Option<Duration>,
    /// The call that launches
    #[arg(long, value_enum, default_value = "kernel")]
    launch: Call,
    /// Kernels in the stream at a time
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=4096))]
    batch: u32,
    /// A kernel that begins or ends so much later than it could was disturbed, in microseconds
    #[arg(long, default_value_t = 100.0)]
    slack: f64,
    /// Number of kernels and slices to print, from the first
    #[arg(long, default_value_t = 1000)]
    print: usize,
}

impl Arguments {
    /// Returns the number of kernels to launch next: a batch, or the rest; 0 at the end.
    fn next_batch(&self, ran: usize, time: Duration) -> usize {
        let end = match (self.count, self.seconds) {
            (None, None) => 100,
            (count, _) => count.unwrap_or(usize::MAX),
        };
        let over = self.seconds.is_some_and(|limit| time >= limit);
        let left = if over { 0 } else { end.saturating_sub(ran) };
        left.min(self.batch as usize)
    }
}

pub(crate) fn run(arguments: &Arguments, report: &mut Report) -> Result<(), Failure> {
    let driver = Driver::start(&arguments.common, report)?;
    let context = driver.context(arguments.common.device)?;
    let mut spinner = Spinner::new(&context, arguments)?;
    let mut kernels: Vec<Stretch> = Vec::new();
    let begin = Instant::now();
    loop {
        let count = arguments.next_batch(kernels.len(), begin.elapsed());
        if count == 0 {
            break;
        }
        spinner.batch(count, &mut kernels)?;
        report.set("kernels", kernels.len());
        let ran = kernels.len();
        arguments.common.progress(format_args!("{ran} kernels"));
    }
    let asked = arguments.microseconds as f64;
    let found = slices(&kernels, asked, arguments.slack);
    let mut lengths: Vec<f64> = kernels.iter().map(|kernel| kernel.length).collect();
    let span = kernels.last().map_or(0.0, |last| last.start + last.length);
    report.set("askedUs", arguments.microseconds);
    report.set("seconds", begin.elapsed().as_secs_f64());
    report.set("spanUs", rounded(span));
    report.set("share", share(asked * kernels.len() as f64, span));
    report.set("kernelUs", spread(&mut lengths));
    report.set("slices", found.len());
    report.set("sliceList", first(&found, arguments.print, slice_json));
    report.set("kernelList", first(&kernels, arguments.print, kernel_json));
    Ok(())
}

/// The share of the card's time in which this process's kernels ran.
fn share(work: f64, span: f64) -> Option<f64> {
    (span > 0.0).then(|| work / span)
}

fn first<T>(list: &[T], count: usize, form: impl Fn(&T) -> Value) -> Vec<Value> {
    list.iter().take(count).map(form).collect()
}

fn slice_json(slice: &Slice) -> Value {
    json!({"startUs": rounded(slice.start), "us": rounded(slice.length), "kernels": slice.launches})
}

fn kernel_json(kernel: &Stretch) -> Value {
    json!([rounded(kernel.start), rounded(kernel.length)])
}

/// A stream with as many events as a batch needs.
struct Spinner<'context> {
    kernels: Kernels<'context>,
    stream: Stream<'context>,
    origin: Event<'context>,
    /// The start and the end of each kernel of a batch.
    marks: Vec<(Event<'context>, Event<'context>)>,
    microseconds: u64,
    call: Call,
}

impl<'context> Spinner<'context> {
    fn new(context: &'context Context<'context>, arguments: &Arguments) -> Result<Self, Failure> {
        let stream = Stream::new(context)?;
        let origin = Event::new(context)?;
        origin.record(&stream)?;
        let marks = (0..arguments.batch).map(|_| Ok((Event::new(context)?, Event::new(context)?)));
        Ok(Self {
            kernels: Kernels::load(context)?,
            marks: marks.collect::<Result<_, Failure>>()?,
            stream,
            origin,
            microseconds: arguments.microseconds,
            call: arguments.launch,
        })
    }

    fn batch(&mut self, count: usize, into: &mut Vec<Stretch>) -> Result<(), Failure> {
        let mut launch = self.kernels.spin(self.microseconds);
        for (begin, end) in self.marks.iter().take(count) {
            begin.record(&self.stream)?;
            launch.go_by(self.call, &self.stream)?;
            end.record(&self.stream)?;
        }
        for (begin, end) in self.marks.iter().take(count) {
            end.synchronize()?;
            into.push(Stretch {
                start: begin.since(&self.origin)?,
                length: end.since(begin)?,
            });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::{Arguments, share};
    use clap::Parser;
    use std::time::Duration;

    #[derive(Parser)]
    struct Alone {
        #[command(flatten)]
        arguments: Arguments,
    }

    fn check(text: &str, ran: usize, seconds: u64, expected: usize) {
        let words = std::iter::once("spin").chain(text.split_whitespace());
        let arguments = Alone::parse_from(words).arguments;
        let next = arguments.next_batch(ran, Duration::from_secs(seconds));
        assert_eq!(next, expected, "{text}: {ran} in {seconds} s");
    }

    #[test]
    fn batches_end_with_the_count_or_the_time() {
        check("", 0, 1000, 16);
        check("", 96, 0, 4);
        check("", 100, 0, 0);
        check("--count 5", 0, 0, 5);
        check("--seconds 3", 1_000_000, 2, 16);
        check("--seconds 3", 0, 3, 0);
        check("--seconds 3 --count 5 --batch 2", 4, 0, 1);
    }

    #[test]
    fn a_share_needs_time() {
        assert_eq!(share(50.0, 100.0), Some(0.5));
        assert_eq!(share(0.0, 0.0), None);
    }
}
