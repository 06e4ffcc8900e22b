//! The types and constants of `cuda.h` that Sublet reads or fills.
//!
//! All constants are here, by C's names. The structs are those with the amount of memory asked for,
//! its place, or the work to run; the rest pass through us as pointers.
//!
//! If C has versions of a struct, the name contains the version: the meaning of a bare name changes
//! with the header.

#![expect(
    non_camel_case_types,
    non_snake_case,
    non_upper_case_globals,
    missing_docs,
    reason = "the names are C's, and what they mean is in NVIDIA's documentation"
)]

pub mod copy;
pub mod graph;
pub mod launch;
pub mod memory;

use std::ffi::c_void;

use crate::as_in_c::{enums, handles, structs};

include!(concat!(env!("OUT_DIR"), "/cuda_constants.rs"));

handles! {
    CUarray CUcontext CUdevResourceDesc CUevent CUexternalMemory CUfunction CUgraph CUgraphExec
    CUgraphNode CUgreenCtx CUkernel CUlibrary CUmemoryPool CUmipmappedArray CUmodule CUstream
    CUsurfref CUtexref
}

/// An address in device memory, until CUDA 3.1.
pub type CUdeviceptr_v1 = u32;
/// An address in device memory.
pub type CUdeviceptr_v2 = u64;
/// An address in device memory.
pub type CUdeviceptr = CUdeviceptr_v2;
/// A device's number in this process.
pub type CUdevice_v1 = i32;
/// A device's number in this process.
pub type CUdevice = CUdevice_v1;
/// A physical allocation of `cuMemCreate`.
pub type CUmemGenericAllocationHandle_v1 = u64;
/// A physical allocation of `cuMemCreate`.
pub type CUmemGenericAllocationHandle = CUmemGenericAllocationHandle_v1;
/// A logical endpoint.
pub type CUlogicalEndpointId = u32;
/// A function that a stream or a graph calls on the host.
pub type CUhostFn = Option<unsafe extern "C" fn(data: *mut c_void)>;
/// A function that a recording over a graph calls for each node. It passes through us.
pub type CUgraphRecaptureCallback = *mut c_void;

/// Name of this struct in prototypes. It has had one version so far.
pub type CUexecAffinityParam = CUexecAffinityParam_v1;

/// A device of VDPAU.
pub type VdpDevice = u32;
/// Copies within a fabric. They pass through us as pointers.
pub type CUDA_FABRIC_COPY_BATCH_OP_v1 = c_void;
/// Data to decompress. It passes through us as a pointer.
pub type CUmemDecompressParams = c_void;
/// A function of VDPAU that finds its others. It passes through us as a pointer.
pub type VdpGetProcAddress = c_void;

/// The legacy default stream, which all threads share.
pub const CU_STREAM_LEGACY: CUstream = CUstream(1);
/// This thread's default stream.
pub const CU_STREAM_PER_THREAD: CUstream = CUstream(2);
/// The host, where a device is asked for.
pub const CU_DEVICE_CPU: CUdevice = -1;
/// No device.
pub const CU_DEVICE_INVALID: CUdevice = -2;

structs! {
    CUuuid { bytes: [u8; 16], }
    CUipcMemHandle_v1 { reserved: [u8; 64], }
    CUipcEventHandle_v1 { reserved: [u8; 64], }
    CUexecAffinityParam_v1 {
        r#type: CUexecAffinityType,
        /// A union of one member: how many SMs.
        param: u32,
    }
    CUctxCigParam {
        sharedDataType: CUcigDataType,
        sharedData: *mut c_void,
    }
    CUctxCreateParams {
        execAffinityParams: *mut CUexecAffinityParam_v1,
        numExecAffinityParams: i32,
        cigParams: *mut CUctxCigParam,
    }
}
