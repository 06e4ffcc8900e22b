//! Every way to get memory from the driver, behind a single pair of calls.
//!
//! Tests want to reach a limit by each of these ways. So an [`Allocator`] is told which way to use,
//! and then returns blocks until the driver refuses. If a block is only half made (an address
//! without memory behind it), it is undone before the refusal is reported.

use std::ffi::c_void;
use std::ptr;

use sublet_driver_api::cuda::memory::{
    CUmemAccessDesc_v1, CUmemAllocationProp_v1, CUmemLocation_v1, CUmemPoolProps_v1,
};
use sublet_driver_api::cuda::{
    CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS, CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
    CU_MEM_ALLOC_GRANULARITY_MINIMUM, CU_MEM_ATTACH_GLOBAL, CU_MEM_LOCATION_TYPE_HOST,
    CU_MEM_LOCATION_TYPE_HOST_NUMA, CUarray, CUdeviceptr, CUmemoryPool, CUmipmappedArray,
};

use crate::arguments::Common;
use crate::array_shape::{ELEMENT, descriptor, levels, rows};
use crate::driver::Context;
use crate::external_memory;
use crate::graphs;
use crate::ipc_lender::Lender;
use crate::location::{device_pool, location, properties};
use crate::path::Path;
use crate::report::Failure;
use crate::retained_memory::Holder;
use crate::stream::Stream;

/// Memory that the driver gave.
#[derive(Debug)]
pub(crate) struct Block {
    kind: Kind,
    bytes: usize,
}

#[derive(Debug)]
enum Kind {
    /// To be freed by cuMemFree.
    Plain(CUdeviceptr),
    /// To be freed by cuMemFreeAsync.
    Ordered(CUdeviceptr),
    Mapped {
        address: CUdeviceptr,
        handle: u64,
    },
    Array(CUarray),
    Mipmap(CUmipmappedArray),
    Lent {
        address: CUdeviceptr,
        number: usize,
    },
    Host(*mut c_void),
    /// Memory of this process, which the driver has pinned.
    Registered(Box<[u8]>),
    Held(Holder),
}

impl Block {
    /// The size that the driver gave the block: at least what was asked for.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The address of its first byte; `None` if copies cannot reach it.
    pub(crate) fn address(&self) -> Option<CUdeviceptr> {
        match self.kind {
            Kind::Plain(address)
            | Kind::Ordered(address)
            | Kind::Mapped { address, .. }
            | Kind::Lent { address, .. } => Some(address),
            Kind::Array(_)
            | Kind::Mipmap(_)
            | Kind::Host(_)
            | Kind::Registered(_)
            | Kind::Held(_) => None,
        }
    }
}

/// Allocates and frees memory in one way.
pub(crate) struct Allocator<'context> {
    context: &'context Context<'context>,
    stream: Stream<'context>,
    path: Path,
    pool: CUmemoryPool,
    lender: Option<Lender>,
    granularity: usize,
}

impl<'context> Allocator<'context> {
    pub(crate) fn new(
        context: &'context Context<'context>,
        path: Path,
        common: &Common,
    ) -> Result<Self, Failure> {
        let mut allocator = Self {
            context,
            stream: Stream::new(context)?,
            path,
            pool: CUmemoryPool::default(),
            lender: None,
            granularity: 1,
        };
        match path {
            Path::Pool | Path::HostPool => {
                let properties = CUmemPoolProps_v1 {
                    location: allocator.place(),
                    ..device_pool(context)
                };
                // SAFETY: the pointers are to live values.
                unsafe {
                    let pool = &raw mut allocator.pool;
                    context.raw().cuMemPoolCreate(pool, &raw const properties)?;
                }
            }
            Path::Vmm | Path::HostVmm | Path::HostNuma => {
                let properties = allocator.properties();
                // SAFETY: the pointers are to live values.
                unsafe {
                    context.raw().cuMemGetAllocationGranularity(
                        &raw mut allocator.granularity,
                        &raw const properties,
                        CU_MEM_ALLOC_GRANULARITY_MINIMUM,
                    )?;
                }
            }
            Path::Ipc => allocator.lender = Some(Lender::start(common)?),
            _ => {}
        }
        Ok(allocator)
    }

    /// Asks for `size` bytes.
    pub(crate) fn allocate(&mut self, size: usize) -> Result<Block, Failure> {
        let raw = self.context.raw();
        let mut address: CUdeviceptr = 0;
        let at = &raw mut address;
        // SAFETY: every pointer is to a live value of the type that the function takes, streams
        // and pools are live, and sizes are the driver's to check.
        let bytes = unsafe {
            match self.path {
                Path::Plain => raw.cuMemAlloc_v2(at, size).map(|()| size)?,
                Path::Managed => raw
                    .cuMemAllocManaged(at, size, CU_MEM_ATTACH_GLOBAL.0)
                    .map(|()| size)?,
                Path::Pitch => {
                    let (width, height) = rows(size);
                    let mut pitch = 0;
                    raw.cuMemAllocPitch_v2(at, &raw mut pitch, width, height, 4)?;
                    pitch * height
                }
                Path::Async => {
                    raw.cuMemAllocAsync(at, size, self.stream.handle())?;
                    return self.ordered(address, size);
                }
                Path::Pool | Path::HostPool => {
                    raw.cuMemAllocFromPoolAsync(at, size, self.pool, self.stream.handle())?;
                    return self.ordered(address, size);
                }
                Path::Vmm | Path::HostVmm | Path::HostNuma => return self.mapped(size),
                Path::Array => return self.array(size),
                Path::Mipmap => return self.mipmap(size),
                Path::Graph | Path::Branches | Path::Capture | Path::Nested => {
                    let address = graphs::allocate(self.context, &self.stream, self.path, size)?;
                    return self.ordered(address, size);
                }
                Path::External => external_memory::buffer(self.context, size).map(|start| {
                    address = start;
                    size
                })?,
                Path::ExternalArray => {
                    let (array, bytes) = external_memory::picture(self.context, size)?;
                    let kind = Kind::Mipmap(array);
                    return Ok(Block { kind, bytes });
                }
                path @ (Path::Multicast | Path::Descriptor | Path::DmaBuf | Path::Sparse) => {
                    let (holder, bytes) = Holder::make(self.context, path, size)?;
                    let kind = Kind::Held(holder);
                    return Ok(Block { kind, bytes });
                }
                Path::Ipc => return self.lent(size),
                Path::Host | Path::HostAlloc => return self.host(size),
                Path::HostRegister => return self.registered(size),
            }
        };
        Ok(Block {
            kind: Kind::Plain(address),
            bytes,
        })
    }

    /// Gives a block back.
    pub(crate) fn free(&mut self, block: &Block) -> Result<(), Failure> {
        let raw = self.context.raw();
        // SAFETY: an allocator makes each block once, and the code that frees a block drops it too.
        unsafe {
            match &block.kind {
                &Kind::Plain(address) => raw.cuMemFree_v2(address),
                &Kind::Ordered(address) => raw.cuMemFreeAsync(address, self.stream.handle()),
                &Kind::Mapped { address, handle } => {
                    raw.cuMemUnmap(address, block.bytes)?;
                    raw.cuMemRelease(handle)?;
                    raw.cuMemAddressFree(address, block.bytes)
                }
                &Kind::Array(array) => raw.cuArrayDestroy(array),
                &Kind::Mipmap(array) => raw.cuMipmappedArrayDestroy(array),
                &Kind::Host(address) => raw.cuMemFreeHost(address),
                Kind::Registered(memory) => raw.cuMemHostUnregister(start_of(memory)),
                Kind::Held(holder) => holder.free(self.context),
                &Kind::Lent { address, number } => {
                    raw.cuIpcCloseMemHandle(address)?;
                    match &mut self.lender {
                        Some(lender) => lender.take_back(number),
                        None => Ok(()),
                    }
                }
            }
        }
    }

    /// Makes the driver return the memory that it kept for reuse after frees.
    pub(crate) fn settle(&mut self) -> Result<(), Failure> {
        self.stream.synchronize()?;
        let raw = self.context.raw();
        let device = self.context.device().number();
        // SAFETY: the pool is live, or given by the driver just before.
        unsafe {
            match self.path {
                Path::Pool | Path::HostPool => raw.cuMemPoolTrimTo(self.pool, 0),
                Path::Async => {
                    let mut pool = CUmemoryPool::default();
                    raw.cuDeviceGetDefaultMemPool(&raw mut pool, device)?;
                    raw.cuMemPoolTrimTo(pool, 0)
                }
                Path::Graph | Path::Branches | Path::Capture | Path::Nested => {
                    raw.cuDeviceGraphMemTrim(device)
                }
                _ => Ok(()),
            }
        }
    }

    /// Writes a word at both ends of a block, where copies can reach it.
    pub(crate) fn mark(&self, block: &Block, word: u32) -> Result<(), Failure> {
        for address in ends(block) {
            // SAFETY: `ends` gives addresses of four bytes within the block.
            unsafe {
                let from = (&raw const word).cast();
                self.context.raw().cuMemcpyHtoD_v2(address, from, 4)?;
            }
        }
        Ok(())
    }

    /// Checks that the words that [`Self::mark`] wrote are still there.
    pub(crate) fn verify(&self, block: &Block, word: u32) -> Result<(), Failure> {
        for address in ends(block) {
            let mut found = 0_u32;
            // SAFETY: as above.
            unsafe {
                let to = (&raw mut found).cast();
                self.context.raw().cuMemcpyDtoH_v2(to, address, 4)?;
            }
            if found != word {
                return Err(Failure::Wrong(format!(
                    "{address:#x} holds {found:#x} instead of {word:#x}"
                )));
            }
        }
        Ok(())
    }

    /// Waits until the stream has made the memory; after that all streams can use it.
    fn ordered(&self, address: CUdeviceptr, bytes: usize) -> Result<Block, Failure> {
        self.stream.synchronize()?;
        let kind = Kind::Ordered(address);
        Ok(Block { kind, bytes })
    }

    /// Reserves addresses, makes memory, and maps the memory at the addresses. If a step is
    /// refused, the earlier steps are undone, the last one first.
    fn mapped(&self, size: usize) -> Result<Block, Failure> {
        let raw = self.context.raw();
        let bytes = size.next_multiple_of(self.granularity);
        let properties = self.properties();
        let (mut address, mut handle) = (0, 0);
        // SAFETY: the pointers are to live values, and each step uses what the one before gave.
        unsafe {
            raw.cuMemAddressReserve(&raw mut address, bytes, 0, 0, 0)?;
            let made = raw
                .cuMemCreate(&raw mut handle, bytes, &raw const properties, 0)
                .and_then(|()| {
                    self.join(address, bytes, handle).inspect_err(|_| {
                        let _already_failing = raw.cuMemRelease(handle);
                    })
                });
            made.inspect_err(|_| {
                let _already_failing = raw.cuMemAddressFree(address, bytes);
            })?;
        }
        let kind = Kind::Mapped { address, handle };
        Ok(Block { kind, bytes })
    }

    /// # Safety
    /// The addresses are reserved and free, the handle is of memory of that size.
    unsafe fn join(&self, address: CUdeviceptr, bytes: usize, handle: u64) -> Result<(), Failure> {
        let raw = self.context.raw();
        let access = CUmemAccessDesc_v1 {
            location: location(self.context),
            flags: CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
        };
        // SAFETY: the caller answers for addresses and handle; the pointer is to a live value.
        unsafe {
            raw.cuMemMap(address, bytes, 0, handle, 0)?;
            raw.cuMemSetAccess(address, bytes, &raw const access, 1)
                .inspect_err(|_| {
                    let _already_failing = raw.cuMemUnmap(address, bytes);
                })
        }
    }

    fn array(&self, size: usize) -> Result<Block, Failure> {
        let descriptor = descriptor(size);
        let mut array = CUarray::default();
        // SAFETY: the pointers are to live values.
        unsafe {
            let raw = self.context.raw();
            raw.cuArray3DCreate_v2(&raw mut array, &raw const descriptor)?;
        }
        Ok(Block {
            kind: Kind::Array(array),
            bytes: descriptor.Width * descriptor.Height * ELEMENT,
        })
    }

    fn mipmap(&self, size: usize) -> Result<Block, Failure> {
        let descriptor = descriptor(size);
        let bytes = levels(descriptor.Width, descriptor.Height);
        let mut array = CUmipmappedArray::default();
        // SAFETY: the pointers are to live values.
        unsafe {
            let raw = self.context.raw();
            // A picture with sides of 2^15 points has 16 levels.
            let count = bytes.len() as u32;
            raw.cuMipmappedArrayCreate(&raw mut array, &raw const descriptor, count)?;
        }
        Ok(Block {
            kind: Kind::Mipmap(array),
            bytes: bytes.iter().sum(),
        })
    }

    fn lent(&mut self, size: usize) -> Result<Block, Failure> {
        let Some(lender) = &mut self.lender else {
            return Err(Failure::Wrong("nobody to borrow from".to_owned()));
        };
        let (number, handle) = lender.lend(size)?;
        let mut address = 0;
        // SAFETY: the pointer is to a live value, and the handle comes from the owner.
        let opened = unsafe {
            self.context.raw().cuIpcOpenMemHandle_v2(
                &raw mut address,
                handle,
                CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS.0,
            )
        };
        if let Err(failure) = opened {
            lender.take_back(number)?;
            return Err(failure);
        }
        Ok(Block {
            kind: Kind::Lent { address, number },
            bytes: size,
        })
    }

    fn host(&self, size: usize) -> Result<Block, Failure> {
        let raw = self.context.raw();
        let mut address = ptr::null_mut();
        // SAFETY: the pointer is to a live value.
        unsafe {
            match self.path {
                Path::HostAlloc => raw.cuMemHostAlloc(&raw mut address, size, 0)?,
                _ => raw.cuMemAllocHost_v2(&raw mut address, size)?,
            }
        }
        Ok(Block {
            kind: Kind::Host(address),
            bytes: size,
        })
    }

    fn registered(&self, size: usize) -> Result<Block, Failure> {
        let memory = vec![0; size].into_boxed_slice();
        // SAFETY: the memory is ours, and stays until the block is freed.
        unsafe {
            let raw = self.context.raw();
            raw.cuMemHostRegister_v2(start_of(&memory), size, 0)?;
        }
        Ok(Block {
            kind: Kind::Registered(memory),
            bytes: size,
        })
    }

    /// The place of memory behind handles, and of a pool's memory.
    fn place(&self) -> CUmemLocation_v1 {
        let r#type = match self.path {
            Path::HostVmm | Path::HostPool => CU_MEM_LOCATION_TYPE_HOST,
            Path::HostNuma => CU_MEM_LOCATION_TYPE_HOST_NUMA,
            _ => return location(self.context),
        };
        CUmemLocation_v1 { r#type, id: 0 }
    }

    fn properties(&self) -> CUmemAllocationProp_v1 {
        CUmemAllocationProp_v1 {
            location: self.place(),
            ..properties(self.context)
        }
    }
}

/// The start of this process's memory, as the driver takes it.
fn start_of(memory: &[u8]) -> *mut c_void {
    memory.as_ptr().cast_mut().cast()
}

impl Drop for Allocator<'_> {
    fn drop(&mut self) {
        if !self.pool.is_null() {
            // SAFETY: the pool is ours; blocks that still live keep their memory.
            let _at_the_end = unsafe { self.context.raw().cuMemPoolDestroy(self.pool) };
        }
    }
}

/// The addresses of the first and the last word of a block.
fn ends(block: &Block) -> Vec<CUdeviceptr> {
    match block.address() {
        Some(address) if block.bytes >= 4 => {
            let last = (block.bytes - 4) as u64 & !3;
            vec![address, address + last]
        }
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::{Block, CUarray, Kind, ends};

    #[test]
    fn both_ends_lie_within_a_block() {
        let block = |bytes| Block {
            kind: Kind::Plain(0x1000),
            bytes,
        };
        assert!(ends(&block(3)).is_empty());
        assert_eq!(ends(&block(4)), [0x1000, 0x1000]);
        assert_eq!(ends(&block(4097)), [0x1000, 0x1ffc]);
        let array = Block {
            kind: Kind::Array(CUarray::default()),
            bytes: 4096,
        };
        assert!(ends(&array).is_empty());
    }
}
