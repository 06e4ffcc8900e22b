//! The measuring process: has nothing on a card but a context and its allocations. It talks to
//! the driver itself, and prints its findings in one line.

use std::ffi::{c_int, c_uint, c_void};
use std::mem::ManuallyDrop;
use std::path::Path;

use libloading::Library;
use nvml_wrapper::Nvml;
use nvml_wrapper::enums::device::UsedGpuMemory;
use sublet_driver_api::cuda::{
    CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, CUDA_SUCCESS, CUcontext, CUdevice, CUdeviceptr,
    CUmemPool_attribute, CUmemoryPool, CUresult, CUstream,
};

use super::learn::{Card, learn};
use super::{GaugeError, Measured};
use crate::driver::{DriverError, call, load};

/// Measures the only card that this process sees. `uuid` is its name for NVML.
///
/// # Errors
/// The driver refuses a step, or does not count this process.
pub fn measure(cuda: &Path, nvml: &Path, uuid: &str) -> Result<String, GaugeError> {
    let mut card = Probe::open(cuda, nvml, uuid)?;
    let context_bytes = card.used().ok_or(GaugeError::Uncounted)?;
    let packing = learn(&mut card);
    let measured = Measured::new(context_bytes, packing);
    serde_json::to_string(&measured).map_err(|_| GaugeError::Answer)
}

/// A context of this process.
struct Probe {
    cuda: ManuallyDrop<Library>,
    nvml: Nvml,
    uuid: String,
}

impl Probe {
    fn open(cuda: &Path, nvml: &Path, uuid: &str) -> Result<Probe, GaugeError> {
        let cuda = load(cuda)?;
        let opened = Nvml::builder().lib_path(nvml.as_os_str()).init();
        let nvml = opened.map_err(|_| DriverError::NoDriver(nvml.to_owned()))?;
        let (mut device, mut context) = (CUdevice::default(), CUcontext::default());
        call!(cuda, cuInit(0 => c_uint))?;
        call!(cuda, cuDeviceGet(&raw mut device => *mut CUdevice, 0 => c_int))?;
        call!(
            cuda,
            cuDevicePrimaryCtxRetain(&raw mut context => *mut CUcontext, device => CUdevice)
        )?;
        call!(cuda, cuCtxSetCurrent(context => CUcontext))?;
        let uuid = uuid.to_owned();
        Ok(Probe { cuda, nvml, uuid })
    }
}

impl Card for Probe {
    fn allocate(&mut self, bytes: u64) -> Option<u64> {
        let (mut address, bytes) = (CUdeviceptr::default(), usize::try_from(bytes).ok()?);
        call!(
            self.cuda,
            cuMemAlloc_v2(&raw mut address => *mut CUdeviceptr, bytes => usize)
        )
        .ok()?;
        Some(address)
    }

    fn free(&mut self, address: u64) -> Option<()> {
        call!(self.cuda, cuMemFree_v2(address => CUdeviceptr)).ok()
    }

    fn used(&mut self) -> Option<u64> {
        let device = self.nvml.device_by_uuid(self.uuid.as_str()).ok()?;
        let processes = device.running_compute_processes().ok()?;
        let own = processes
            .into_iter()
            .find(|process| process.pid == std::process::id());
        match own?.used_gpu_memory {
            UsedGpuMemory::Used(bytes) => Some(bytes),
            UsedGpuMemory::Unavailable => None,
        }
    }

    fn pool(&mut self) -> Option<u64> {
        let (mut pool, mut address, mut reserved) =
            (CUmemoryPool::default(), CUdeviceptr::default(), 0_u64);
        let stream = CUstream::default();
        let reserved_at: *mut c_void = (&raw mut reserved).cast();
        let library = &self.cuda;
        call!(library, cuDeviceGetDefaultMemPool(&raw mut pool => *mut CUmemoryPool, 0 => CUdevice))
            .ok()?;
        call!(
            library,
            cuMemAllocAsync(
                &raw mut address => *mut CUdeviceptr,
                1 => usize,
                stream => CUstream
            )
        )
        .ok()?;
        let asked = call!(
            library,
            cuMemPoolGetAttribute(
                pool => CUmemoryPool,
                CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT => CUmemPool_attribute,
                reserved_at => *mut c_void
            )
        );
        call!(library, cuMemFreeAsync(address => CUdeviceptr, stream => CUstream)).ok()?;
        call!(library, cuStreamSynchronize(stream => CUstream)).ok()?;
        call!(library, cuMemPoolTrimTo(pool => CUmemoryPool, 0 => usize)).ok()?;
        asked.ok()?;
        Some(reserved)
    }
}
