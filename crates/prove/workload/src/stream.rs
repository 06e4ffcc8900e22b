//! Work for a device: streams, events, buffers, the three kernels, and graphs of one of them.
//!
//! Every copy is checked against the length of its buffer, so that no program can make the
//! driver touch memory that is not its own.

use std::ffi::{c_uint, c_void};
use std::ptr;
use std::time::Duration;

use sublet_driver_api::cuda::graph::CUDA_KERNEL_NODE_PARAMS_v2;
use sublet_driver_api::cuda::{
    CU_STREAM_NON_BLOCKING, CUdeviceptr, CUevent, CUfunction, CUgraph, CUgraphExec, CUgraphNode,
    CUmodule, CUstream,
};

use crate::driver::{Context, blocks_for};
use crate::raw::Cuda;
use crate::report::Failure;

/// The kernels as PTX, with a zero byte at the end, which the driver needs for text.
const IMAGE: &str = concat!(include_str!("kernels.ptx"), "\0");
/// Threads in a block; any multiple of 32 is possible.
const THREADS: c_uint = 256;

/// A stream.
pub(crate) struct Stream<'context> {
    context: &'context Context<'context>,
    handle: CUstream,
}

impl<'context> Stream<'context> {
    pub(crate) fn new(context: &'context Context<'context>) -> Result<Self, Failure> {
        let mut handle = CUstream::default();
        // SAFETY: the pointer is to a live value.
        unsafe {
            context
                .raw()
                .cuStreamCreate(&raw mut handle, CU_STREAM_NON_BLOCKING.0)?;
        }
        Ok(Self { context, handle })
    }

    pub(crate) fn handle(&self) -> CUstream {
        self.handle
    }

    pub(crate) fn synchronize(&self) -> Result<(), Failure> {
        // SAFETY: the stream is ours.
        unsafe { self.context.raw().cuStreamSynchronize(self.handle) }
    }

    /// Copies words to the card and waits, so that the caller may change them afterwards.
    pub(crate) fn copy_in(&self, to: &Buffer<'_>, words: &[u32]) -> Result<(), Failure> {
        let size = to.checked(words.len())?;
        // SAFETY: both sides have `size` bytes, and the wait below ends the use of `words`.
        unsafe {
            let from = words.as_ptr().cast();
            self.context
                .raw()
                .cuMemcpyHtoDAsync_v2(to.address, from, size, self.handle)?;
        }
        self.synchronize()
    }

    /// Copies words from the card and waits.
    pub(crate) fn copy_out(&self, words: &mut [u32], from: &Buffer<'_>) -> Result<(), Failure> {
        let size = from.checked(words.len())?;
        // SAFETY: both sides have `size` bytes, and the wait below ends the use of `words`.
        unsafe {
            let to = words.as_mut_ptr().cast();
            self.context
                .raw()
                .cuMemcpyDtoHAsync_v2(to, from.address, size, self.handle)?;
        }
        self.synchronize()
    }
}

impl Drop for Stream<'_> {
    fn drop(&mut self) {
        // SAFETY: the stream is ours and nobody uses it any more.
        let _at_the_end = unsafe { self.context.raw().cuStreamDestroy_v2(self.handle) };
    }
}

/// A moment in a stream's work.
pub(crate) struct Event<'context> {
    context: &'context Context<'context>,
    handle: CUevent,
}

impl<'context> Event<'context> {
    pub(crate) fn new(context: &'context Context<'context>) -> Result<Self, Failure> {
        let mut handle = CUevent::default();
        // SAFETY: the pointer is to a live value; zero asks for an event with a time.
        unsafe { context.raw().cuEventCreate(&raw mut handle, 0)? };
        Ok(Self { context, handle })
    }

    pub(crate) fn handle(&self) -> CUevent {
        self.handle
    }

    pub(crate) fn record(&self, stream: &Stream<'_>) -> Result<(), Failure> {
        // SAFETY: event and stream are live.
        unsafe { self.context.raw().cuEventRecord(self.handle, stream.handle) }
    }

    pub(crate) fn synchronize(&self) -> Result<(), Failure> {
        // SAFETY: the event is live.
        unsafe { self.context.raw().cuEventSynchronize(self.handle) }
    }

    /// Whether the work before it has ended; does not wait.
    pub(crate) fn is_over(&self) -> Result<bool, Failure> {
        // SAFETY: the event is live.
        match unsafe { self.context.raw().cuEventQuery(self.handle) } {
            Ok(()) => Ok(true),
            Err(failure) if failure.is_not_ready() => Ok(false),
            Err(failure) => Err(failure),
        }
    }

    /// The card's time between an earlier event and this one; both are over.
    pub(crate) fn since(&self, earlier: &Event<'_>) -> Result<Duration, Failure> {
        let mut ms = 0.0;
        // SAFETY: both events are live, the pointer is to a live value.
        unsafe {
            let raw = self.context.raw();
            raw.cuEventElapsedTime(&raw mut ms, earlier.handle, self.handle)?;
        }
        Duration::try_from_secs_f64(f64::from(ms) / 1000.0)
            .map_err(|_| Failure::Wrong(format!("{ms} ms between two events")))
    }
}

impl Drop for Event<'_> {
    fn drop(&mut self) {
        // SAFETY: the event is ours and nobody uses it any more.
        let _at_the_end = unsafe { self.context.raw().cuEventDestroy_v2(self.handle) };
    }
}

/// Device memory from `cuMemAlloc`, counted in words of 32 bits.
pub(crate) struct Buffer<'context> {
    context: &'context Context<'context>,
    address: CUdeviceptr,
    words: usize,
}

impl<'context> Buffer<'context> {
    pub(crate) fn new(context: &'context Context<'context>, words: usize) -> Result<Self, Failure> {
        let mut address = 0;
        // SAFETY: the pointer is to a live value.
        unsafe {
            let size = words.saturating_mul(4);
            context.raw().cuMemAlloc_v2(&raw mut address, size)?;
        }
        Ok(Self {
            context,
            address,
            words,
        })
    }

    pub(crate) fn words(&self) -> usize {
        self.words
    }

    pub(crate) fn address(&self) -> CUdeviceptr {
        self.address
    }

    /// The size of so many words in bytes; an error if the buffer is smaller.
    fn checked(&self, words: usize) -> Result<usize, Failure> {
        if words > self.words {
            let has = self.words;
            return Err(Failure::Wrong(format!(
                "{words} words do not fit a buffer of {has}"
            )));
        }
        Ok(words * 4)
    }
}

impl Drop for Buffer<'_> {
    fn drop(&mut self) {
        // SAFETY: the memory is ours and nobody uses it any more.
        let _at_the_end = unsafe { self.context.raw().cuMemFree_v2(self.address) };
    }
}

/// One launch: a kernel, its size, its parameters.
pub(crate) struct Launch {
    function: CUfunction,
    blocks: c_uint,
    threads: c_uint,
    parameters: Vec<u64>,
}

impl Launch {
    /// The kernel that is launched.
    pub(crate) fn function(&self) -> CUfunction {
        self.function
    }

    /// Launches it in a stream.
    pub(crate) fn go(&mut self, stream: &Stream<'_>) -> Result<(), Failure> {
        let mut list = pointers(&mut self.parameters);
        let (raw, parameters) = (stream.context.raw(), list.as_mut_ptr());
        let (function, stream) = (self.function, stream.handle);
        let (blocks, threads) = (self.blocks, self.threads);
        let none = ptr::null_mut();
        // SAFETY: the kernels take only 64-bit parameters, as many as were given; the driver
        // copies them before it returns.
        unsafe {
            raw.cuLaunchKernel(
                function, blocks, 1, 1, threads, 1, 1, 0, stream, parameters, none,
            )
        }
    }

    /// Adds it to a graph, after this node; returns its node.
    fn add_to(
        &mut self,
        raw: &Cuda,
        graph: CUgraph,
        after: Option<CUgraphNode>,
    ) -> Result<CUgraphNode, Failure> {
        let mut list = pointers(&mut self.parameters);
        let node = CUDA_KERNEL_NODE_PARAMS_v2 {
            func: self.function,
            gridDimX: self.blocks,
            gridDimY: 1,
            gridDimZ: 1,
            blockDimX: self.threads,
            blockDimY: 1,
            blockDimZ: 1,
            kernelParams: list.as_mut_ptr(),
            ..CUDA_KERNEL_NODE_PARAMS_v2::default()
        };
        let (after, mut handle) = (after.as_slice(), CUgraphNode::default());
        // SAFETY: graph and node are live; the driver copies list, node and parameters.
        unsafe {
            raw.cuGraphAddKernelNode_v2(
                &raw mut handle,
                graph,
                after.as_ptr(),
                after.len(),
                &raw const node,
            )?;
        }
        Ok(handle)
    }
}

fn pointers(parameters: &mut [u64]) -> Vec<*mut c_void> {
    parameters
        .iter_mut()
        .map(|parameter| ptr::from_mut(parameter).cast())
        .collect()
}

/// The loaded module and its functions.
pub(crate) struct Kernels<'context> {
    context: &'context Context<'context>,
    module: CUmodule,
    spin: CUfunction,
    fill: CUfunction,
    add: CUfunction,
}

impl<'context> Kernels<'context> {
    pub(crate) fn load(context: &'context Context<'context>) -> Result<Self, Failure> {
        let raw = context.raw();
        let mut module = CUmodule::default();
        // SAFETY: the image is text that ends with a zero byte.
        unsafe { raw.cuModuleLoadData(&raw mut module, IMAGE.as_ptr().cast())? };
        let function = |name: &'static std::ffi::CStr| {
            let mut handle = CUfunction::default();
            // SAFETY: the module is live and the name a C string.
            unsafe { raw.cuModuleGetFunction(&raw mut handle, module, name.as_ptr())? };
            Ok(handle)
        };
        Ok(Self {
            spin: function(c"spin")?,
            fill: function(c"fill")?,
            add: function(c"add")?,
            context,
            module,
        })
    }

    /// Keeps the card busy for so many microseconds.
    pub(crate) fn spin(&self, microseconds: u64) -> Launch {
        Launch {
            function: self.spin,
            blocks: 1,
            threads: 1,
            parameters: vec![microseconds],
        }
    }

    /// Sets the first words of a buffer, all of them if it has fewer.
    pub(crate) fn fill_first(&self, buffer: &Buffer<'_>, words: usize, value: u32) -> Launch {
        let words = words.min(buffer.words);
        Launch {
            function: self.fill,
            blocks: blocks_for(words, THREADS),
            threads: THREADS,
            parameters: vec![buffer.address, words as u64, u64::from(value)],
        }
    }

    /// Adds a value to every word of a buffer; sums wrap.
    pub(crate) fn add(&self, buffer: &Buffer<'_>, value: u32) -> Launch {
        Launch {
            function: self.add,
            ..self.fill_first(buffer, buffer.words, value)
        }
    }
}

impl Drop for Kernels<'_> {
    fn drop(&mut self) {
        // SAFETY: the module is ours; its functions are used only through `self`.
        let _at_the_end = unsafe { self.context.raw().cuModuleUnload(self.module) };
    }
}

/// A graph of kernels that only take time, one after another, in its executable form.
pub(crate) struct Executable<'context> {
    context: &'context Context<'context>,
    graph: CUgraph,
    handle: CUgraphExec,
}

impl<'context> Executable<'context> {
    /// Makes it of so many kernels of so many microseconds.
    pub(crate) fn of_spins(
        context: &'context Context<'context>,
        kernels: &Kernels<'_>,
        count: u32,
        microseconds: u64,
    ) -> Result<Self, Failure> {
        let raw = context.raw();
        let mut made = Self {
            context,
            graph: CUgraph::default(),
            handle: CUgraphExec::default(),
        };
        // SAFETY: the pointer is to a live value.
        unsafe { raw.cuGraphCreate(&raw mut made.graph, 0)? };
        let (mut spin, mut last) = (kernels.spin(microseconds), None);
        for _ in 0..count {
            last = Some(spin.add_to(raw, made.graph, last)?);
        }
        // SAFETY: the graph is live, the pointer is to a live value.
        unsafe { raw.cuGraphInstantiateWithFlags(&raw mut made.handle, made.graph, 0)? };
        Ok(made)
    }

    pub(crate) fn handle(&self) -> CUgraphExec {
        self.handle
    }

    pub(crate) fn launch(&self, stream: &Stream<'_>) -> Result<(), Failure> {
        // SAFETY: both are live.
        unsafe { self.context.raw().cuGraphLaunch(self.handle, stream.handle) }
    }
}

impl Drop for Executable<'_> {
    fn drop(&mut self) {
        let raw = self.context.raw();
        // SAFETY: both are ours, if they were made, and nothing of them runs any more.
        unsafe {
            if !self.handle.is_null() {
                let _at_the_end = raw.cuGraphExecDestroy(self.handle);
            }
            if !self.graph.is_null() {
                let _at_the_end = raw.cuGraphDestroy(self.graph);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::IMAGE;

    #[test]
    fn the_image_tells_the_fake_driver_of_every_kernel() {
        for line in IMAGE.lines().filter(|line| line.contains(".entry ")) {
            let name = line
                .split(".entry ")
                .nth(1)
                .and_then(|rest| rest.split('(').next());
            let name = name.expect("an entry has a name");
            assert!(IMAGE.contains(&format!("// fake {name}: ")), "{name}");
        }
        assert_eq!(IMAGE.matches(".entry ").count(), 3);
        assert_eq!(IMAGE.matches('\0').count(), 1);
    }
}
