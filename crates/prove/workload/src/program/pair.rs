//! Makes the same calls to one driver by two ways, in turns: how much does the first way add?
//!
//! Everything is set up by the way that `--reach` names. Then blocks of calls are timed: one block
//! by that way, and one straight into the file that `--direct` names. Each such pair has the
//! opposite order of the pair before. Both ways share the process, the context and the handles. So
//! a machine that is slow for a while slows both, and differences of a nanosecond show. It works
//! with any driver; with one that does nothing, the ways are the only cost.

use std::ffi::{c_uint, c_void};
use std::path::PathBuf;
use std::ptr;
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use serde_json::{Value, json};
use sublet_driver_api::CUDA;
use sublet_driver_api::cuda::CUfunction;
use sublet_driver_api::cuda::launch::CUlaunchConfig;
use sublet_driver_api::cuda::memory::CUmemAllocationProp_v1;

use crate::arguments::{Common, seconds};
use crate::driver::{Context, Driver};
use crate::location::properties;
use crate::raw::Cuda;
use crate::reach::Library;
use crate::report::{Failure, Report};
use crate::statistics::{percentile, spread};
use crate::stream::{Buffer, Event, Executable, Kernels, Stream};

/// Arguments of `pair`.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    common: Common,
    /// The driver's file, for the way that nothing stands in
    #[arg(long, value_name = "FILE")]
    direct: Option<PathBuf>,
    /// Both ways in turns, or one alone, for several processes that do the same at a time
    #[arg(long, value_enum, default_value = "both")]
    side: Side,
    /// Call to measure; can be given several times [default: all]
    #[arg(long, value_enum)]
    call: Vec<Call>,
    /// Seconds to measure each call
    #[arg(long, default_value = "1", value_parser = seconds)]
    seconds: Duration,
    /// Calls in a block; calls that make memory are timed in blocks of a tenth
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..))]
    block: u32,
    /// Microseconds that each kernel takes
    #[arg(long, default_value_t = 0)]
    microseconds: u64,
}

impl Arguments {
    pub(crate) fn check(&self) -> Result<(), String> {
        if self.direct.is_none() && self.side != Side::Through {
            return Err("--direct must say where the driver's file is".to_owned());
        }
        Ok(())
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Side {
    Both,
    /// As `--reach` says
    Through,
    /// Straight into the file
    Direct,
}

/// Call to measure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Call {
    /// cuLaunchKernel
    LaunchKernel,
    /// cuLaunchKernelEx
    LaunchKernelEx,
    /// cuGraphLaunch of a graph of ten kernels
    GraphLaunch,
    /// cuMemcpyAsync of 4 KiB on the card
    MemcpyAsync,
    /// cuEventRecord
    EventRecord,
    /// cuMemAlloc and cuMemFree of 2 MiB
    MemAlloc,
    /// cuMemAllocAsync and cuMemFreeAsync of 2 MiB
    MemAllocAsync,
    /// cuMemCreate and cuMemRelease of 2 MiB
    MemCreate,
}

impl Call {
    fn name(self) -> &'static str {
        match self {
            Self::LaunchKernel => "cuLaunchKernel",
            Self::LaunchKernelEx => "cuLaunchKernelEx",
            Self::GraphLaunch => "cuGraphLaunch",
            Self::MemcpyAsync => "cuMemcpyAsync",
            Self::EventRecord => "cuEventRecord",
            Self::MemAlloc => "cuMemAlloc + cuMemFree",
            Self::MemAllocAsync => "cuMemAllocAsync + cuMemFreeAsync",
            Self::MemCreate => "cuMemCreate + cuMemRelease",
        }
    }

    /// Returns the number of calls that are timed as one block.
    fn block(self, asked: u32) -> u32 {
        match self {
            Self::MemAlloc | Self::MemAllocAsync | Self::MemCreate => asked.div_ceil(10),
            _ => asked,
        }
    }
}

/// Bytes of a copy, and of an allocation.
const COPIED: usize = 4096;
const TAKEN: usize = 2 << 20;
/// Kernels of the graph.
const KERNELS: u32 = 10;
/// The least number of pairs, however slow they are.
const PAIRS_MIN: usize = 5;

pub(crate) fn run(arguments: &Arguments, report: &mut Report) -> Result<(), Failure> {
    let driver = Driver::start(&arguments.common, report)?;
    let context = driver.context(arguments.common.device)?;
    let direct = match &arguments.direct {
        Some(file) => Some(Cuda::new(Library::open_file(file, &CUDA)?)?),
        None => None,
    };
    report.set("direct", direct.as_ref().and_then(Cuda::file));
    let mut work = Work::new(&context, arguments.microseconds)?;
    let calls = match arguments.call.as_slice() {
        [] => Call::value_variants(),
        chosen => chosen,
    };
    let mut rows: Vec<Value> = Vec::new();
    for &call in calls {
        let block = call.block(arguments.block);
        let (through, time) = (context.raw(), arguments.seconds);
        let row = match (arguments.side, &direct) {
            (Side::Direct, Some(direct)) => work.alone(call, block, time, direct)?,
            (Side::Both, Some(direct)) => work.paired(call, block, time, through, direct)?,
            _ => work.alone(call, block, time, through)?,
        };
        arguments.common.progress(&row);
        rows.push(row);
        report.set("calls", rows.clone());
    }
    Ok(())
}

/// One block of calls: the nanoseconds for each call.
#[derive(Debug, Clone, Copy)]
struct Lap {
    /// Until the last call returned.
    call: f64,
    /// Until the card had finished all of it.
    whole: f64,
}

/// Objects that the calls need. The first way makes them, and both ways use them.
struct Work<'context> {
    graph: Executable<'context>,
    stream: Stream<'context>,
    event: Event<'context>,
    buffer: Buffer<'context>,
    /// Kept because the function belongs to it.
    _kernels: Kernels<'context>,
    function: CUfunction,
    microseconds: u64,
    configuration: CUlaunchConfig,
    properties: CUmemAllocationProp_v1,
}

impl<'context> Work<'context> {
    fn new(context: &'context Context<'context>, microseconds: u64) -> Result<Self, Failure> {
        let kernels = Kernels::load(context)?;
        let stream = Stream::new(context)?;
        Ok(Self {
            graph: Executable::of_spins(context, &kernels, KERNELS, microseconds)?,
            event: Event::new(context)?,
            buffer: Buffer::new(context, 2 * COPIED / 4)?,
            function: kernels.spin(microseconds).function(),
            _kernels: kernels,
            microseconds,
            configuration: CUlaunchConfig {
                gridDimX: 1,
                gridDimY: 1,
                gridDimZ: 1,
                blockDimX: 1,
                blockDimY: 1,
                blockDimZ: 1,
                hStream: stream.handle(),
                ..CUlaunchConfig::default()
            },
            properties: properties(context),
            stream,
        })
    }

    /// Measures both ways in turns.
    fn paired(
        &mut self,
        call: Call,
        block: u32,
        time: Duration,
        through: &Cuda,
        direct: &Cuda,
    ) -> Result<Value, Failure> {
        let mut laps: Vec<[Lap; 2]> = Vec::new();
        // A warm-up: the first calls look up their functions and fill caches.
        self.lap(call, block, through)?;
        self.lap(call, block, direct)?;
        let begin = Instant::now();
        while laps.len() < PAIRS_MIN || begin.elapsed() < time {
            let pair = if laps.len().is_multiple_of(2) {
                let first = self.lap(call, block, through)?;
                [first, self.lap(call, block, direct)?]
            } else {
                let second = self.lap(call, block, direct)?;
                [self.lap(call, block, through)?, second]
            };
            laps.push(pair);
        }
        let list =
            |figure: fn(&[Lap; 2]) -> f64| spread(&mut laps.iter().map(figure).collect::<Vec<_>>());
        Ok(json!({
            "call": call.name(),
            "block": block,
            "pairs": laps.len(),
            "throughNs": list(|[through, _]| through.call),
            "directNs": list(|[_, direct]| direct.call),
            "addedNs": list(|[through, direct]| through.call - direct.call),
            "wholeThroughNs": list(|[through, _]| through.whole),
            "wholeDirectNs": list(|[_, direct]| direct.whole),
            "wholeRatio": middle_ratio(&laps),
        }))
    }

    /// Measures one way.
    fn alone(
        &mut self,
        call: Call,
        block: u32,
        time: Duration,
        cuda: &Cuda,
    ) -> Result<Value, Failure> {
        self.lap(call, block, cuda)?;
        let mut laps = Vec::new();
        let begin = Instant::now();
        while laps.len() < PAIRS_MIN || begin.elapsed() < time {
            laps.push(self.lap(call, block, cuda)?.call);
        }
        Ok(json!({"call": call.name(), "block": block, "ns": spread(&mut laps)}))
    }

    fn lap(&mut self, call: Call, block: u32, cuda: &Cuda) -> Result<Lap, Failure> {
        let each = |time: Duration| time.as_secs_f64() * 1e9 / f64::from(block);
        let begin = Instant::now();
        for _ in 0..block {
            self.once(call, cuda)?;
        }
        let called = begin.elapsed();
        // SAFETY: the stream is ours.
        unsafe { cuda.cuStreamSynchronize(self.stream.handle())? };
        Ok(Lap {
            call: each(called),
            whole: each(begin.elapsed()),
        })
    }

    #[inline]
    fn once(&mut self, call: Call, cuda: &Cuda) -> Result<(), Failure> {
        const ONE: c_uint = 1;
        let (function, stream) = (self.function, self.stream.handle());
        let (none, flags) = (ptr::null_mut(), 0);
        let mut parameters: [*mut c_void; 1] = [(&raw mut self.microseconds).cast()];
        let (mut address, mut handle) = (0, 0);
        // SAFETY: every handle is live; the kernel has one parameter of 64 bits; the copy stays
        // in a buffer of twice its size; memory that is made is freed at once.
        unsafe {
            match call {
                Call::LaunchKernel => cuda.cuLaunchKernel(
                    function,
                    ONE,
                    ONE,
                    ONE,
                    ONE,
                    ONE,
                    ONE,
                    flags,
                    stream,
                    parameters.as_mut_ptr(),
                    none,
                ),
                Call::LaunchKernelEx => {
                    let configuration = &raw const self.configuration;
                    cuda.cuLaunchKernelEx(configuration, function, parameters.as_mut_ptr(), none)
                }
                Call::GraphLaunch => cuda.cuGraphLaunch(self.graph.handle(), stream),
                Call::MemcpyAsync => {
                    let from = self.buffer.address();
                    cuda.cuMemcpyAsync(from + COPIED as u64, from, COPIED, stream)
                }
                Call::EventRecord => cuda.cuEventRecord(self.event.handle(), stream),
                Call::MemAlloc => {
                    cuda.cuMemAlloc_v2(&raw mut address, TAKEN)?;
                    cuda.cuMemFree_v2(address)
                }
                Call::MemAllocAsync => {
                    cuda.cuMemAllocAsync(&raw mut address, TAKEN, stream)?;
                    cuda.cuMemFreeAsync(address, stream)
                }
                Call::MemCreate => {
                    cuda.cuMemCreate(&raw mut handle, TAKEN, &raw const self.properties, 0)?;
                    cuda.cuMemRelease(handle)
                }
            }
        }
    }
}

/// The ratio of the times until all is done, by the first way and directly: the median of the
/// pairs.
fn middle_ratio(laps: &[[Lap; 2]]) -> Option<f64> {
    let ratios = laps.iter().filter(|[_, direct]| direct.whole > 0.0);
    let mut ratios: Vec<f64> = ratios
        .map(|[through, direct]| through.whole / direct.whole)
        .collect();
    percentile(&mut ratios, 0.5)
}

#[cfg(test)]
mod tests {
    use super::{Call, Lap, middle_ratio};

    #[test]
    fn the_ratio_is_that_of_the_middle_pair() {
        let lap = |whole| Lap { call: 1.0, whole };
        let laps = [(2.0, 1.0), (3.0, 2.0), (9.0, 1.0), (1.0, 0.0)];
        let laps = laps.map(|(through, direct)| [lap(through), lap(direct)]);
        assert_eq!(middle_ratio(&laps), Some(2.0));
        assert_eq!(middle_ratio(&[]), None);
    }

    #[test]
    fn memory_is_timed_in_smaller_blocks() {
        assert_eq!(Call::MemAlloc.block(500), 50);
        assert_eq!(Call::MemCreate.block(1), 1);
        assert_eq!(Call::LaunchKernel.block(500), 500);
    }
}
