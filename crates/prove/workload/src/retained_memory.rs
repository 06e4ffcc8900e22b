//! Memory that something else holds: a multicast object, a descriptor, a sparse array.
//!
//! The handle or address of the memory itself is given back at once. So an interposer that counts
//! only handles and addresses misses all of it, while the card still has it.

use std::ffi::c_int;
use std::os::fd::{FromRawFd, OwnedFd};

use sublet_driver_api::cuda::memory::{
    CUDA_ARRAY3D_DESCRIPTOR_v2, CUarrayMapInfo_v1, CUmulticastObjectProp_v1,
};
use sublet_driver_api::cuda::{
    CU_AD_FORMAT_UNSIGNED_INT32, CU_MEM_CREATE_USAGE_TILE_POOL, CU_MEM_HANDLE_TYPE_GENERIC,
    CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, CU_MEM_OPERATION_TYPE_MAP,
    CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, CU_RESOURCE_TYPE_ARRAY, CUDA_ARRAY3D_SPARSE, CUarray,
    CUdeviceptr, CUmemAllocationHandleType,
};

use crate::driver::Context;
use crate::location::properties;
use crate::path::Path;
use crate::report::Failure;

/// The object that holds the memory.
#[derive(Debug)]
pub(crate) enum Holder {
    /// A multicast object, of so many bytes.
    Multicast(u64, usize),
    /// A descriptor that is open.
    Descriptor { _open: OwnedFd },
    /// A sparse array with tiles that are mapped.
    Sparse(CUarray),
}

/// Physical memory comes in blocks of this size, in bytes.
const BLOCK: usize = 2 << 20;
/// The side of a tile of a sparse array, in points of four bytes each.
const TILE_SIDE: u32 = 128;
/// Tiles in a row of a block.
const TILES_WIDE: u32 = 32;

impl Holder {
    /// Makes memory and an object that holds it; returns also the number of bytes.
    pub(crate) fn make(
        context: &Context<'_>,
        path: Path,
        size: usize,
    ) -> Result<(Self, usize), Failure> {
        let bytes = size.max(1).next_multiple_of(BLOCK);
        let holder = match path {
            Path::Multicast => Self::multicast(context, bytes)?,
            Path::Descriptor => Self::descriptor(context, bytes)?,
            Path::DmaBuf => Self::dma_buf(context, bytes)?,
            _ => Self::sparse(context, bytes)?,
        };
        Ok((holder, bytes))
    }

    /// Destroys the object; the caller must then drop this.
    pub(crate) fn free(&self, context: &Context<'_>) -> Result<(), Failure> {
        let raw = context.raw();
        // SAFETY: each was made by us, and is given back once.
        unsafe {
            match *self {
                Self::Multicast(object, bytes) => {
                    raw.cuMulticastUnbind(object, context.device().number(), 0, bytes)?;
                    raw.cuMemRelease(object)
                }
                Self::Descriptor { .. } => Ok(()),
                Self::Sparse(array) => raw.cuArrayDestroy(array),
            }
        }
    }

    fn multicast(context: &Context<'_>, bytes: usize) -> Result<Self, Failure> {
        let raw = context.raw();
        let given = CUmulticastObjectProp_v1 {
            numDevices: 1,
            size: bytes,
            ..CUmulticastObjectProp_v1::default()
        };
        let mut object = 0;
        // SAFETY: the pointers are to live values.
        unsafe {
            raw.cuMulticastCreate(&raw mut object, &raw const given)?;
            raw.cuMulticastAddDevice(object, context.device().number())?;
        }
        let bound = physical(context, bytes, 0, |handle| {
            // SAFETY: both handles are live.
            unsafe { raw.cuMulticastBindMem(object, 0, handle, 0, bytes, 0) }
        });
        match bound {
            Ok(()) => Ok(Self::Multicast(object, bytes)),
            Err(failure) => {
                // SAFETY: a live handle; it is released once.
                let _already_failing = unsafe { raw.cuMemRelease(object) };
                Err(failure)
            }
        }
    }

    fn descriptor(context: &Context<'_>, bytes: usize) -> Result<Self, Failure> {
        let mut fd: c_int = -1;
        physical(context, bytes, 0, |handle| {
            let kind = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
            let to = (&raw mut fd).cast();
            // SAFETY: for this kind of handle, the driver writes a descriptor.
            unsafe {
                context
                    .raw()
                    .cuMemExportToShareableHandle(to, handle, kind, 0)
            }
        })?;
        // SAFETY: the driver has just given it to us.
        let _open = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Self::Descriptor { _open })
    }

    fn dma_buf(context: &Context<'_>, bytes: usize) -> Result<Self, Failure> {
        let raw = context.raw();
        let (mut address, mut fd): (CUdeviceptr, c_int) = (0, -1);
        let kind = CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD;
        // SAFETY: the pointers are to live values, and the address is freed once.
        unsafe {
            raw.cuMemAlloc_v2(&raw mut address, bytes)?;
            let to = (&raw mut fd).cast();
            let made = raw.cuMemGetHandleForAddressRange(to, address, bytes, kind, 0);
            raw.cuMemFree_v2(address)?;
            made?;
            let _open = OwnedFd::from_raw_fd(fd);
            Ok(Self::Descriptor { _open })
        }
    }

    fn sparse(context: &Context<'_>, bytes: usize) -> Result<Self, Failure> {
        let raw = context.raw();
        let (width, height) = (
            TILES_WIDE * TILE_SIDE,
            TILE_SIDE * (bytes / BLOCK).min(1 << 12) as u32,
        );
        let described = CUDA_ARRAY3D_DESCRIPTOR_v2 {
            Width: width as usize,
            Height: height as usize,
            Format: CU_AD_FORMAT_UNSIGNED_INT32,
            NumChannels: 1,
            Flags: CUDA_ARRAY3D_SPARSE,
            ..CUDA_ARRAY3D_DESCRIPTOR_v2::default()
        };
        let mut array = CUarray::default();
        // SAFETY: the pointers are to live values.
        unsafe { raw.cuArray3DCreate_v2(&raw mut array, &raw const described)? };
        let mapped = physical(context, bytes, CU_MEM_CREATE_USAGE_TILE_POOL, |handle| {
            let mut one = CUarrayMapInfo_v1 {
                resourceType: CU_RESOURCE_TYPE_ARRAY,
                resource: array.0,
                // All of level 0 and layer 0, from the first point on.
                subresource: [0, 0, u64::from(width) << 32, u64::from(height) | 1 << 32],
                memOperationType: CU_MEM_OPERATION_TYPE_MAP,
                memHandleType: CU_MEM_HANDLE_TYPE_GENERIC,
                memHandle: handle,
                deviceBitMask: 1 << context.device().number(),
                ..CUarrayMapInfo_v1::default()
            };
            // SAFETY: one live description, and the default stream.
            unsafe { raw.cuMemMapArrayAsync(&raw mut one, 1, Default::default()) }
        });
        match mapped {
            Ok(()) => Ok(Self::Sparse(array)),
            Err(failure) => {
                // SAFETY: a live array; it is destroyed once.
                let _already_failing = unsafe { raw.cuArrayDestroy(array) };
                Err(failure)
            }
        }
    }
}

/// Makes physical memory, calls `pass` with its handle, and releases the handle.
fn physical(
    context: &Context<'_>,
    bytes: usize,
    usage: u32,
    pass: impl FnOnce(u64) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let mut properties = properties(context);
    properties.requestedHandleTypes =
        CUmemAllocationHandleType(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR.0);
    properties.allocFlags.usage = usage as u16;
    let mut handle = 0;
    let raw = context.raw();
    // SAFETY: the pointers are to live values, and the handle is released once.
    unsafe {
        raw.cuMemCreate(&raw mut handle, bytes, &raw const properties, 0)?;
        let passed = pass(handle);
        raw.cuMemRelease(handle)?;
        passed
    }
}
