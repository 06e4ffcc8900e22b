//! Structs that describe a launch.

use std::ffi::c_void;

use super::{CUfunction, CUlaunchAttributeID, CUstream};
use crate::as_in_c::structs;

structs! {
    /// A union of many; which one, says the attribute's `id`.
    CUlaunchAttributeValue { pad: [u64; 8], }
    CUlaunchAttribute {
        id: CUlaunchAttributeID,
        pad: [u8; 4],
        value: CUlaunchAttributeValue,
    }
    CUlaunchConfig {
        gridDimX: u32,
        gridDimY: u32,
        gridDimZ: u32,
        blockDimX: u32,
        blockDimY: u32,
        blockDimZ: u32,
        sharedMemBytes: u32,
        hStream: CUstream,
        attrs: *mut CUlaunchAttribute,
        numAttrs: u32,
    }
    CUDA_LAUNCH_PARAMS_v1 {
        function: CUfunction,
        gridDimX: u32,
        gridDimY: u32,
        gridDimZ: u32,
        blockDimX: u32,
        blockDimY: u32,
        blockDimZ: u32,
        sharedMemBytes: u32,
        hStream: CUstream,
        kernelParams: *mut *mut c_void,
    }
}
