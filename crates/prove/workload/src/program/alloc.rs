//! Takes memory in one way: so many blocks, or until the driver says that there is no more.
//!
//! The purpose is to see the refusals, and the number of bytes at which they come. So it is a
//! success to run out of memory, if the user asked for that. The report is printed when the memory
//! is there and before it is held: a reader of the line knows that all of it is taken now.

use std::time::{Duration, Instant};

use clap::Args;

use crate::allocator::{Allocator, Block};
use crate::arguments::{Bytes, Common, Hold};
use crate::driver::{Context, Driver};
use crate::path::Path;
use crate::pattern;
use crate::report::{Failure, Report};

/// Arguments of `alloc`.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    common: Common,
    /// The way to get memory
    #[arg(long, value_enum, default_value = "plain")]
    path: Path,
    /// Bytes of a block
    #[arg(long, default_value = "2MiB")]
    size: Bytes,
    /// Number of blocks; by default one, or with --until-oom no end
    #[arg(long)]
    count: Option<usize>,
    /// Go on until CUDA_ERROR_OUT_OF_MEMORY
    #[arg(long)]
    until_oom: bool,
    /// After a refusal go on with half the size, as long as it is at least this
    #[arg(long, requires = "until_oom")]
    down_to: Option<Bytes>,
    /// Write to both ends of each block and check them when all blocks are there
    #[arg(long)]
    check: bool,
    /// Count the words of a pattern that `--fill` of another process may have left, before
    /// anything is written
    #[arg(long)]
    seek: bool,
    /// Fill all blocks with that pattern, and count it
    #[arg(long)]
    fill: bool,
    /// Free everything again and report the memory after that
    #[arg(long)]
    free_all: bool,
    /// Keep the memory: a number of seconds, or `stdin` to keep it until standard input is closed
    #[arg(long)]
    hold: Option<Hold>,
}

impl Arguments {
    pub(crate) fn check(&self) -> Result<(), String> {
        if self.size.0 == 0 && self.until_oom {
            return Err("--until-oom with blocks of no bytes never ends".to_owned());
        }
        if self.size.0 == 0 {
            return Err("--size must be more than nothing".to_owned());
        }
        if self
            .down_to
            .is_some_and(|least| least > self.size || least.0 == 0)
        {
            return Err("--down-to must be at least 1 and at most --size".to_owned());
        }
        if self.until_oom && self.count.is_none() && !self.path.ends_with_the_card() {
            let path = self.path.name();
            return Err(format!(
                "--until-oom on path {path} would take the whole machine's memory; \
                 say with --count where to end"
            ));
        }
        Ok(())
    }
}

pub(crate) fn run(arguments: &Arguments, report: &mut Report) -> Result<(), Failure> {
    let driver = Driver::start(&arguments.common, report)?;
    let context = driver.context(arguments.common.device)?;
    report.set("path", arguments.path.name());
    report.set("size", arguments.size.0);
    report.set("totalMem", context.device().total_memory()?);
    report.set("memoryBefore", context.memory()?.to_json());
    let mut allocator = Allocator::new(&context, arguments.path, &arguments.common)?;

    let plan = Plan {
        size: arguments.size.0,
        count: arguments.count,
        until_oom: arguments.until_oom,
        down_to: arguments.down_to.unwrap_or(arguments.size).0,
    };
    let begin = Instant::now();
    let got = take(&mut allocator, plan, |bytes, blocks| {
        arguments
            .common
            .progress(format_args!("{bytes} bytes in {blocks} blocks"));
    });
    got.describe(report);
    report.set("seconds", begin.elapsed().as_secs_f64());
    let outcome = finish(arguments, &context, &mut allocator, &got, report)
        .and_then(|()| got.outcome(arguments.until_oom));
    if let Some(hold) = arguments.hold {
        report.print(&outcome)?;
        hold.wait()?;
    }
    if !arguments.free_all {
        free_all(&mut allocator, &got.blocks)?;
    }
    outcome
}

/// Counts and checks as told, reports the memory, and frees it if told.
fn finish(
    arguments: &Arguments,
    context: &Context<'_>,
    allocator: &mut Allocator<'_>,
    got: &Got,
    report: &mut Report,
) -> Result<(), Failure> {
    if arguments.seek {
        report.set("patternFound", pattern::count(context, &got.blocks)?);
    }
    if arguments.fill {
        pattern::fill(context, &got.blocks)?;
        report.set("patternWritten", pattern::count(context, &got.blocks)?);
    }
    if arguments.check {
        for (number, block) in (1..).zip(&got.blocks) {
            allocator.mark(block, number)?;
        }
        for (number, block) in (1..).zip(&got.blocks) {
            allocator.verify(block, number)?;
        }
        report.set("checkedBlocks", got.blocks.len());
    }
    report.set("memory", context.memory()?.to_json());
    if arguments.free_all {
        free_all(allocator, &got.blocks)?;
        report.set("memoryFreed", context.memory()?.to_json());
    }
    Ok(())
}

fn free_all(allocator: &mut Allocator<'_>, blocks: &[Block]) -> Result<(), Failure> {
    for block in blocks {
        allocator.free(block)?;
    }
    allocator.settle()
}

/// Amount of memory to take.
#[derive(Debug, Clone, Copy)]
pub(super) struct Plan {
    pub(super) size: usize,
    pub(super) count: Option<usize>,
    pub(super) until_oom: bool,
    pub(super) down_to: usize,
}

impl Plan {
    /// Whether another block is wanted when there are so many.
    fn wants_more(&self, blocks: usize) -> bool {
        let end = self.count.or((!self.until_oom).then_some(1));
        end.is_none_or(|end| blocks < end)
    }

    /// The size to try after a refusal at `size`.
    fn smaller(&self, size: usize) -> Option<usize> {
        let half = size / 2;
        (self.until_oom && half >= self.down_to && half > 0).then_some(half)
    }
}

/// The memory that was taken, and the refusal that ended it.
pub(super) struct Got {
    pub(super) blocks: Vec<Block>,
    pub(super) refused: Option<Failure>,
}

impl Got {
    pub(super) fn bytes(&self) -> usize {
        self.blocks.iter().map(Block::bytes).sum()
    }

    /// If `out_is_fine`, running out of memory is a success; otherwise it is a failure like others.
    pub(super) fn outcome(&self, out_is_fine: bool) -> Result<(), Failure> {
        match &self.refused {
            Some(failure) if !(out_is_fine && failure.is_out_of_memory()) => Err(failure.clone()),
            _ => Ok(()),
        }
    }

    pub(super) fn describe(&self, report: &mut Report) {
        report.set("blocks", self.blocks.len());
        report.set("bytes", self.bytes());
        report.set("refused", self.refused.as_ref().map(Failure::to_json));
    }
}

/// Takes blocks until the plan is done or the driver refuses.
pub(super) fn take(
    allocator: &mut Allocator<'_>,
    plan: Plan,
    mut progress: impl FnMut(usize, usize),
) -> Got {
    let mut got = Got {
        blocks: Vec::new(),
        refused: None,
    };
    let mut size = plan.size;
    let mut bytes = 0;
    let mut told = Instant::now();
    while plan.wants_more(got.blocks.len()) {
        match allocator.allocate(size) {
            Ok(block) => {
                bytes += block.bytes();
                got.blocks.push(block);
            }
            Err(failure) => {
                let next = failure.is_out_of_memory().then(|| plan.smaller(size));
                got.refused = Some(failure);
                match next.flatten() {
                    Some(smaller) => size = smaller,
                    None => break,
                }
            }
        }
        if told.elapsed() >= Duration::from_secs(1) {
            told = Instant::now();
            progress(bytes, got.blocks.len());
        }
    }
    got
}

#[cfg(test)]
mod tests {
    use super::{Got, Plan};
    use crate::report::Failure;

    const PLAN: Plan = Plan {
        size: 4096,
        count: None,
        until_oom: false,
        down_to: 4096,
    };

    #[test]
    fn how_many_blocks() {
        assert!(PLAN.wants_more(0) && !PLAN.wants_more(1));
        let three = Plan {
            count: Some(3),
            ..PLAN
        };
        assert!(three.wants_more(2) && !three.wants_more(3));
        let endless = Plan {
            until_oom: true,
            ..PLAN
        };
        assert!(endless.wants_more(usize::MAX));
        let both = Plan {
            until_oom: true,
            ..three
        };
        assert!(!both.wants_more(3));
    }

    #[test]
    fn sizes_halve_down_to_the_least() {
        let plan = Plan {
            until_oom: true,
            down_to: 1000,
            ..PLAN
        };
        assert_eq!(plan.smaller(4096), Some(2048));
        assert_eq!(plan.smaller(2048), Some(1024));
        assert_eq!(plan.smaller(1024), None);
        assert_eq!(PLAN.smaller(8192), None);
        let tiny = Plan {
            until_oom: true,
            down_to: 0,
            ..PLAN
        };
        assert_eq!(tiny.smaller(1), None);
    }

    #[test]
    fn running_out_is_fine_only_if_wanted() {
        let out = Failure::Driver {
            call: "cuMemAlloc_v2",
            code: 2,
            name: String::new(),
        };
        let got = Got {
            blocks: Vec::new(),
            refused: Some(out.clone()),
        };
        assert_eq!(got.outcome(true), Ok(()));
        assert_eq!(got.outcome(false), Err(out));
        let other = Failure::Wrong("other".to_owned());
        let got = Got {
            blocks: Vec::new(),
            refused: Some(other.clone()),
        };
        assert_eq!(got.outcome(true), Err(other));
    }
}
