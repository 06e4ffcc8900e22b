//! Graphs: made once, by capture or node by node, and launched again and again.
//!
//! Launches and allocations of a graph do not go through the calls that other programs make. An
//! interposer that watches those calls must watch graphs too.

use std::ptr;
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use serde_json::json;
use sublet_driver_api::cuda::graph::CUDA_MEM_ALLOC_NODE_PARAMS_v1;
use sublet_driver_api::cuda::{
    CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, CU_GRAPH_MEM_ATTR_USED_MEM_HIGH,
    CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, CUgraph, CUgraphExec, CUgraphNode,
};

use crate::arguments::{Bytes, Common, seconds};
use crate::driver::{Context, Driver};
use crate::location::device_pool;
use crate::report::{Failure, Report};
use crate::statistics::spread;
use crate::stream::{Kernels, Stream};

/// Arguments of `graph`.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    common: Common,
    /// Way to make the graph
    #[arg(long, value_enum, default_value = "capture")]
    by: Maker,
    /// Launches of the graph
    #[arg(long, default_value_t = 100)]
    launches: u64,
    /// End when this time is over, if that is sooner
    #[arg(long, value_parser = seconds)]
    seconds: Option<Duration>,
    /// Kernels in the graph
    #[arg(long, default_value_t = 10)]
    kernels: u32,
    /// Duration of each kernel, in microseconds
    #[arg(long, default_value_t = 20)]
    microseconds: u64,
    /// Memory that the graph allocates, writes and frees in each launch
    #[arg(long, default_value = "0")]
    memory: Bytes,
}

/// Way to make a graph.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Maker {
    /// Records a stream's calls
    Capture,
    /// Each node is added by a call
    Nodes,
}

pub(crate) fn run(arguments: &Arguments, report: &mut Report) -> Result<(), Failure> {
    let driver = Driver::start(&arguments.common, report)?;
    let context = driver.context(arguments.common.device)?;
    let kernels = Kernels::load(&context)?;
    let stream = Stream::new(&context)?;
    report.set("memoryBefore", context.memory()?.to_json());
    let graph = match arguments.by {
        Maker::Capture => captured(arguments, &kernels, &stream)?,
        Maker::Nodes => built(arguments, &kernels, &context)?,
    };
    let executable = Executable::new(&context, graph)?;
    let mut latencies = Vec::new();
    let begin = Instant::now();
    let limit = arguments.seconds.unwrap_or(Duration::MAX);
    while (latencies.len() as u64) < arguments.launches && begin.elapsed() < limit {
        let launch = Instant::now();
        executable.launch(&stream)?;
        stream.synchronize()?;
        latencies.push(launch.elapsed().as_secs_f64() * 1e6);
        report.set("launches", latencies.len());
    }
    let time = begin.elapsed().as_secs_f64();
    arguments.common.progress("the launches are over");
    let device = context.device();
    report.set("launchesPerSecond", latencies.len() as f64 / time);
    report.set("latencyUs", spread(&mut latencies));
    report.set(
        "graphMemory",
        json!({
            "usedHigh": device.graph_memory(CU_GRAPH_MEM_ATTR_USED_MEM_HIGH)?,
            "reserved": device.graph_memory(CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT)?,
        }),
    );
    report.set("memory", context.memory()?.to_json());
    drop(executable);
    // SAFETY: takes a device; the graph that had memory is destroyed.
    unsafe { context.raw().cuDeviceGraphMemTrim(device.number())? };
    report.set("memoryTrimmed", context.memory()?.to_json());
    Ok(())
}

/// Records the kernels into a graph. If there is memory, it is allocated before and freed after.
fn captured(
    arguments: &Arguments,
    kernels: &Kernels<'_>,
    stream: &Stream<'_>,
) -> Result<CUgraph, Failure> {
    let raw = stream.context().raw();
    // SAFETY: the stream is ours and not captured yet.
    unsafe {
        raw.cuStreamBeginCapture_v2(stream.handle(), CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)?;
    }
    let recorded = record(arguments, kernels, stream);
    let mut graph = CUgraph::default();
    // SAFETY: ends the capture, also after a failure, which made the capture invalid.
    let ended = unsafe { raw.cuStreamEndCapture(stream.handle(), &raw mut graph) };
    recorded?;
    ended.map(|()| graph)
}

fn record(
    arguments: &Arguments,
    kernels: &Kernels<'_>,
    stream: &Stream<'_>,
) -> Result<(), Failure> {
    let raw = stream.context().raw();
    let size = arguments.memory.0;
    let mut address = 0;
    if size > 0 {
        // SAFETY: the pointer is to a live value.
        unsafe { raw.cuMemAllocAsync(&raw mut address, size, stream.handle())? };
        kernels.fill_words(address, size / 4, 7).go(stream)?;
    }
    for _ in 0..arguments.kernels {
        kernels.spin(arguments.microseconds).go(stream)?;
    }
    if size > 0 {
        // SAFETY: the address was allocated in the same capture.
        unsafe { raw.cuMemFreeAsync(address, stream.handle())? };
    }
    Ok(())
}

/// The same graph as a chain of nodes.
fn built(
    arguments: &Arguments,
    kernels: &Kernels<'_>,
    context: &Context<'_>,
) -> Result<CUgraph, Failure> {
    let raw = context.raw();
    let size = arguments.memory.0;
    let mut graph = CUgraph::default();
    // SAFETY: the pointer is to a live value.
    unsafe { raw.cuGraphCreate(&raw mut graph, 0)? };
    let mut after: Vec<CUgraphNode> = Vec::new();
    let mut memory = CUDA_MEM_ALLOC_NODE_PARAMS_v1 {
        poolProps: device_pool(context),
        bytesize: size,
        ..CUDA_MEM_ALLOC_NODE_PARAMS_v1::default()
    };
    if size > 0 {
        let mut node = CUgraphNode::default();
        let at = &raw mut node;
        // SAFETY: the graph is live, a null list goes with a length of zero.
        unsafe { raw.cuGraphAddMemAllocNode(at, graph, ptr::null(), 0, &raw mut memory)? };
        let mut fill = kernels.fill_words(memory.dptr, size / 4, 7);
        after = vec![fill.add_to(context, graph, &[node])?];
    }
    let chain = (arguments.kernels, arguments.microseconds);
    after = spins(context, graph, kernels, chain, after)?;
    if size > 0 {
        let mut node = CUgraphNode::default();
        // SAFETY: the graph is live, the address is that of its own allocation.
        unsafe {
            let (at, list) = (&raw mut node, after.as_ptr());
            raw.cuGraphAddMemFreeNode(at, graph, list, after.len(), memory.dptr)?;
        }
    }
    Ok(graph)
}

/// Adds so many kernels of so many microseconds, one after another; returns the last node.
fn spins(
    context: &Context<'_>,
    graph: CUgraph,
    kernels: &Kernels<'_>,
    (count, microseconds): (u32, u64),
    mut after: Vec<CUgraphNode>,
) -> Result<Vec<CUgraphNode>, Failure> {
    for _ in 0..count {
        let mut spin = kernels.spin(microseconds);
        after = vec![spin.add_to(context, graph, &after)?];
    }
    Ok(after)
}

/// A graph, and its executable form.
pub(super) struct Executable<'context> {
    context: &'context Context<'context>,
    graph: CUgraph,
    handle: CUgraphExec,
}

impl<'context> Executable<'context> {
    fn new(context: &'context Context<'context>, graph: CUgraph) -> Result<Self, Failure> {
        let mut made = Self {
            context,
            graph,
            handle: CUgraphExec::default(),
        };
        // SAFETY: the graph is live, the pointer is to a live value.
        unsafe {
            let raw = context.raw();
            raw.cuGraphInstantiateWithFlags(&raw mut made.handle, graph, 0)?;
        }
        Ok(made)
    }

    /// A graph of so many kernels, one after another, that only take time.
    pub(super) fn of_spins(
        context: &'context Context<'context>,
        kernels: &Kernels<'_>,
        count: u32,
        microseconds: u64,
    ) -> Result<Self, Failure> {
        let mut graph = CUgraph::default();
        // SAFETY: the pointer is to a live value.
        unsafe { context.raw().cuGraphCreate(&raw mut graph, 0)? };
        spins(context, graph, kernels, (count, microseconds), Vec::new())?;
        Self::new(context, graph)
    }

    pub(super) fn launch(&self, stream: &Stream<'_>) -> Result<(), Failure> {
        let raw = self.context.raw();
        // SAFETY: both are live.
        unsafe { raw.cuGraphLaunch(self.handle, stream.handle()) }
    }
}

impl Drop for Executable<'_> {
    fn drop(&mut self) {
        let raw = self.context.raw();
        // SAFETY: both are ours and nothing of them runs any more.
        unsafe {
            if !self.handle.is_null() {
                let _at_the_end = raw.cuGraphExecDestroy(self.handle);
            }
            let _at_the_end = raw.cuGraphDestroy(self.graph);
        }
    }
}
