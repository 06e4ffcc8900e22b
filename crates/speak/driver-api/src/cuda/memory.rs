//! Structs that describe memory: arrays, physical allocations, pools, and imports.

use std::ffi::c_void;

use super::{
    CUarray_format, CUarraySparseSubresourceType, CUexternalMemoryHandleType, CUmemAccess_flags,
    CUmemAllocationHandleType, CUmemAllocationType, CUmemGenericAllocationHandle, CUmemHandleType,
    CUmemLocationType, CUmemOperationType, CUresourcetype,
};
use crate::as_in_c::structs;

/// Name of this struct in prototypes. It has had one version so far.
pub type CUmulticastObjectProp = CUmulticastObjectProp_v1;

structs! {
    CUDA_ARRAY_DESCRIPTOR_v1 {
        Width: u32,
        Height: u32,
        Format: CUarray_format,
        NumChannels: u32,
    }
    CUDA_ARRAY_DESCRIPTOR_v2 {
        Width: usize,
        Height: usize,
        Format: CUarray_format,
        NumChannels: u32,
    }
    CUDA_ARRAY3D_DESCRIPTOR_v1 {
        Width: u32,
        Height: u32,
        Depth: u32,
        Format: CUarray_format,
        NumChannels: u32,
        Flags: u32,
    }
    CUDA_ARRAY3D_DESCRIPTOR_v2 {
        Width: usize,
        Height: usize,
        Depth: usize,
        Format: CUarray_format,
        NumChannels: u32,
        Flags: u32,
    }
    CUDA_ARRAY_MEMORY_REQUIREMENTS_v1 {
        size: usize,
        alignment: usize,
        reserved: [u32; 4],
    }
    CUarrayMapInfo_v1 {
        resourceType: CUresourcetype,
        /// A `CUmipmappedArray` or a `CUarray`.
        resource: usize,
        subresourceType: CUarraySparseSubresourceType,
        /// A [`CUarrayMapInfo_sparseLevel`] or a [`CUarrayMapInfo_miptail`].
        subresource: [u64; 4],
        memOperationType: CUmemOperationType,
        memHandleType: CUmemHandleType,
        memHandle: CUmemGenericAllocationHandle,
        offset: u64,
        deviceBitMask: u32,
        flags: u32,
        reserved: [u32; 2],
    }
    CUarrayMapInfo_sparseLevel = "CUarrayMapInfo_v1.subresource.sparseLevel" {
        level: u32,
        layer: u32,
        offsetX: u32,
        offsetY: u32,
        offsetZ: u32,
        extentWidth: u32,
        extentHeight: u32,
        extentDepth: u32,
    }
    CUarrayMapInfo_miptail = "CUarrayMapInfo_v1.subresource.miptail" {
        layer: u32,
        offset: u64,
        size: u64,
    }
    CUmemLocation_v1 {
        r#type: CUmemLocationType,
        /// A device's number, or a NUMA node's.
        id: i32,
    }
    CUmemAllocationProp_v1 {
        r#type: CUmemAllocationType,
        requestedHandleTypes: CUmemAllocationHandleType,
        location: CUmemLocation_v1,
        win32HandleMetaData: *mut c_void,
        allocFlags: CUmemAllocationProp_allocFlags,
    }
    CUmemAllocationProp_allocFlags = "CUmemAllocationProp_v1.allocFlags" {
        compressionType: u8,
        gpuDirectRDMACapable: u8,
        usage: u16,
        reserved: [u8; 4],
    }
    CUmemAccessDesc_v1 {
        location: CUmemLocation_v1,
        flags: CUmemAccess_flags,
    }
    CUmemPoolProps_v1 {
        allocType: CUmemAllocationType,
        handleTypes: CUmemAllocationHandleType,
        location: CUmemLocation_v1,
        win32SecurityAttributes: *mut c_void,
        maxSize: usize,
        usage: u16,
        gpuDirectRDMACapable: u8,
        reserved: [u8; 53],
    }
    CUmemPoolPtrExportData_v1 { reserved: [u8; 64], }
    CUmulticastObjectProp_v1 {
        numDevices: u32,
        size: usize,
        handleTypes: u64,
        flags: u64,
    }
    CUDA_EXTERNAL_MEMORY_HANDLE_DESC_v1 {
        r#type: CUexternalMemoryHandleType,
        /// For a file descriptor, its number is in the first four bytes.
        handle: [u64; 2],
        size: u64,
        flags: u32,
        reserved: [u32; 16],
    }
    CUDA_EXTERNAL_MEMORY_BUFFER_DESC_v1 {
        offset: u64,
        size: u64,
        flags: u32,
        reserved: [u32; 16],
    }
    CUDA_EXTERNAL_MEMORY_MIPMAPPED_ARRAY_DESC_v1 {
        offset: u64,
        arrayDesc: CUDA_ARRAY3D_DESCRIPTOR_v2,
        numLevels: u32,
        reserved: [u32; 16],
    }
}
