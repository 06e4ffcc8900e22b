//! Threads of one process that allocate and free in a race.
//!
//! The program itself counts the memory of the threads. It adds a block after it was allocated, and
//! subtracts it before it is freed, so the count never exceeds the memory really held. A limit must
//! not be lower than the highest count. If the driver lacks memory, that is counted and not fatal.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;

use clap::Args;

use crate::allocator::{Allocator, Block};
use crate::arguments::{Bytes, Common};
use crate::chance::Chance;
use crate::driver::{Context, Driver};
use crate::path::Path;
use crate::report::{Failure, Report};

/// Arguments of `threads`.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    common: Common,
    /// Number of threads
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=1024))]
    threads: u32,
    /// Allocations of each thread
    #[arg(long, default_value_t = 100)]
    rounds: u32,
    /// The way to get memory
    #[arg(long, value_enum, default_value = "plain")]
    path: Path,
    /// The largest block; each is between half of this and this
    #[arg(long, default_value = "4MiB")]
    size: Bytes,
    /// Blocks that a thread holds before it frees its oldest
    #[arg(long, default_value_t = 4)]
    hold: usize,
}

/// The counts of all threads together.
#[derive(Default)]
struct Sums {
    bytes: AtomicUsize,
    highest: AtomicUsize,
    allocations: AtomicU64,
    frees: AtomicU64,
    refusals: AtomicU64,
}

impl Sums {
    fn took(&self, bytes: usize) {
        let now = self.bytes.fetch_add(bytes, Ordering::Relaxed) + bytes;
        self.highest.fetch_max(now, Ordering::Relaxed);
        self.allocations.fetch_add(1, Ordering::Relaxed);
    }

    fn gives(&self, bytes: usize) {
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
        self.frees.fetch_add(1, Ordering::Relaxed);
    }
}

pub(crate) fn run(arguments: &Arguments, report: &mut Report) -> Result<(), Failure> {
    let driver = Driver::start(&arguments.common, report)?;
    let context = driver.context(arguments.common.device)?;
    report.set("memoryBefore", context.memory()?.to_json());
    let sums = Sums::default();
    let begin = Instant::now();
    let outcomes: Vec<Result<(), Failure>> = thread::scope(|scope| {
        let threads: Vec<_> = (0..arguments.threads)
            .map(|number| {
                let (context, sums) = (&context, &sums);
                scope.spawn(move || race(arguments, number, context, sums))
            })
            .collect();
        threads
            .into_iter()
            .map(|thread| {
                let died = |_| Err(Failure::Wrong("a thread panicked".to_owned()));
                thread.join().unwrap_or_else(died)
            })
            .collect()
    });
    report.set("seconds", begin.elapsed().as_secs_f64());
    report.set("threads", arguments.threads);
    report.set("path", arguments.path.name());
    report.set("highestBytes", sums.highest.into_inner());
    report.set("leftBytes", sums.bytes.into_inner());
    report.set("allocations", sums.allocations.into_inner());
    report.set("frees", sums.frees.into_inner());
    report.set("refusals", sums.refusals.into_inner());
    context.synchronize()?;
    report.set("memory", context.memory()?.to_json());
    outcomes.into_iter().collect()
}

/// The work of one thread.
fn race(
    arguments: &Arguments,
    number: u32,
    context: &Context<'_>,
    sums: &Sums,
) -> Result<(), Failure> {
    context.make_current()?;
    let mut allocator = Allocator::new(context, arguments.path, &arguments.common)?;
    let mut held: VecDeque<Block> = VecDeque::new();
    let mut chance = Chance::new(u64::from(number) + 1);
    for _ in 0..arguments.rounds {
        match allocator.allocate(size(&mut chance, arguments.size.0)) {
            Ok(block) => {
                sums.took(block.bytes());
                held.push_back(block);
            }
            Err(failure) if failure.is_out_of_memory() => {
                sums.refusals.fetch_add(1, Ordering::Relaxed);
                give_oldest(&mut allocator, &mut held, sums)?;
            }
            Err(failure) => return Err(failure),
        }
        if held.len() > arguments.hold {
            give_oldest(&mut allocator, &mut held, sums)?;
        }
    }
    while !held.is_empty() {
        give_oldest(&mut allocator, &mut held, sums)?;
    }
    allocator.settle()
}

fn give_oldest(
    allocator: &mut Allocator<'_>,
    held: &mut VecDeque<Block>,
    sums: &Sums,
) -> Result<(), Failure> {
    let Some(block) = held.pop_front() else {
        return Ok(());
    };
    sums.gives(block.bytes());
    allocator.free(&block)
}

/// A size between half of `most` and `most`.
fn size(chance: &mut Chance, most: usize) -> usize {
    let least = most.div_ceil(2).max(1);
    least + chance.below((most.saturating_sub(least) + 1) as u64) as usize
}

#[cfg(test)]
mod tests {
    use super::{Chance, Sums, size};

    #[test]
    fn sizes_stay_in_their_range_and_differ() {
        let mut chance = Chance::new(1);
        let sizes: Vec<usize> = (0..100).map(|_| size(&mut chance, 1000)).collect();
        assert!(sizes.iter().all(|size| (500..=1000).contains(size)));
        assert!(sizes.iter().any(|size| *size != sizes[0]));
        assert_eq!(size(&mut chance, 1), 1);
        assert_eq!(size(&mut chance, 0), 1);
    }

    #[test]
    fn the_highest_sum_is_kept() {
        let sums = Sums::default();
        sums.took(5);
        sums.took(7);
        sums.gives(5);
        sums.took(1);
        assert_eq!(sums.highest.into_inner(), 12);
        assert_eq!(sums.bytes.into_inner(), 8);
    }
}
