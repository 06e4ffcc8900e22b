//! Takes and frees memory at random: sizes from one byte to a gibibyte, by any of the ways, in
//! several threads. With the same seed, each thread has the same sizes in the same order. If the
//! driver lacks memory, that is counted and not fatal. At the end nothing is held.

use std::thread;

use serde_json::{Value, json};

use crate::allocator::{Allocator, Block};
use crate::arguments::Common;
use crate::chance::Chance;
use crate::driver::Context;
use crate::path::Path;
use crate::report::Failure;

/// The largest size, in bytes.
const SIZE_MAX: u64 = 1 << 30;

/// A thread that holds so many blocks frees some.
const HELD_MAX: usize = 64;

/// Actions of the threads.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Plan<'a> {
    /// The ways to get memory, which the threads take in turn.
    pub(crate) paths: &'a [Path],
    /// Number of steps that take or free memory, by all threads together.
    pub(crate) steps: u32,
    /// Number of threads.
    pub(crate) threads: u32,
    /// The seed of the random numbers.
    pub(crate) seed: u64,
}

/// The result.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Churned {
    steps: u64,
    refusals: u64,
}

impl Churned {
    pub(crate) fn to_json(self) -> Value {
        json!({"steps": self.steps, "refusals": self.refusals})
    }
}

/// Carries out the plan.
pub(crate) fn run(
    plan: &Plan<'_>,
    context: &Context<'_>,
    common: &Common,
) -> Result<Churned, Failure> {
    let each = plan.steps.div_ceil(plan.threads.max(1));
    let outcomes: Vec<Result<Churned, Failure>> = thread::scope(|scope| {
        let threads: Vec<_> = (0..plan.threads)
            .map(|number| {
                let path = plan.paths[number as usize % plan.paths.len()];
                let chance = Chance::new(plan.seed.wrapping_add(u64::from(number)));
                scope.spawn(move || one_thread(path, each, chance, context, common))
            })
            .collect();
        let died = |_| Err(Failure::Wrong("a thread panicked".to_owned()));
        let join = |thread: thread::ScopedJoinHandle<'_, _>| thread.join().unwrap_or_else(died);
        threads.into_iter().map(join).collect()
    });
    let mut sum = Churned::default();
    for outcome in outcomes {
        let churned = outcome?;
        sum.steps += churned.steps;
        sum.refusals += churned.refusals;
    }
    Ok(sum)
}

fn one_thread(
    path: Path,
    steps: u32,
    mut chance: Chance,
    context: &Context<'_>,
    common: &Common,
) -> Result<Churned, Failure> {
    context.make_current()?;
    let mut allocator = Allocator::new(context, path, common)?;
    let mut held: Vec<Block> = Vec::new();
    let mut churned = Churned::default();
    for _ in 0..steps {
        churned.steps += 1;
        let gives = held.len() >= HELD_MAX || !held.is_empty() && chance.below(5) < 2;
        if gives {
            give_one(&mut allocator, &mut held, &mut chance)?;
            continue;
        }
        match allocator.allocate(size(&mut chance)) {
            Ok(block) => held.push(block),
            Err(failure) if failure.is_out_of_memory() => {
                churned.refusals += 1;
                give_one(&mut allocator, &mut held, &mut chance)?;
            }
            Err(failure) => return Err(failure),
        }
    }
    while !held.is_empty() {
        give_one(&mut allocator, &mut held, &mut chance)?;
    }
    allocator.settle()?;
    Ok(churned)
}

fn give_one(
    allocator: &mut Allocator<'_>,
    held: &mut Vec<Block>,
    chance: &mut Chance,
) -> Result<(), Failure> {
    if held.is_empty() {
        return Ok(());
    }
    let at = chance.below(held.len() as u64) as usize;
    let block = held.swap_remove(at);
    allocator.free(&block)
}

/// A size from one byte to [`SIZE_MAX`], each power of two equally often. Sometimes it is exactly a
/// power of two, or one byte more or less, where drivers change to another method.
fn size(chance: &mut Chance) -> usize {
    let power = 1_u64 << chance.below(u64::from(SIZE_MAX.ilog2()) + 1);
    let size = match chance.below(8) {
        0 => power,
        1 => power + 1,
        2 => power - 1,
        _ => power + chance.below(power),
    };
    size.clamp(1, SIZE_MAX) as usize
}

#[cfg(test)]
mod tests {
    use super::{Chance, SIZE_MAX, size};

    #[test]
    fn sizes_are_of_every_magnitude_and_the_same_for_a_seed() {
        let sizes = |seed| -> Vec<usize> {
            let mut chance = Chance::new(seed);
            (0..2000).map(|_| size(&mut chance)).collect()
        };
        let some = sizes(7);
        assert!(
            some.iter()
                .all(|size| (1..=SIZE_MAX as usize).contains(size))
        );
        for power in 0..=30 {
            assert!(some.iter().any(|size| size.ilog2() == power), "{power}");
        }
        assert_eq!(some, sizes(7));
        assert_ne!(some, sizes(8));
    }
}
