//! The driver's functions as C declares them, each found in the way that the user asked for.
//!
//! One list has all names and signatures. A macro turns each into a method that looks the function
//! up once, and turns any code but success into a [`Failure`]. Nothing is checked here: the safe
//! wrappers must pass valid arguments.
#![expect(
    non_snake_case,
    clippy::too_many_arguments,
    reason = "the functions keep the names and parameters that cuda.h and nvml.h give them"
)]

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::mem::transmute;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use sublet_driver_api::cuda::graph::{
    CUDA_KERNEL_NODE_PARAMS_v2, CUDA_MEM_ALLOC_NODE_PARAMS_v1, CUgraphEdgeData, CUgraphNodeParams,
};
use sublet_driver_api::cuda::launch::CUlaunchConfig;
use sublet_driver_api::cuda::memory::{
    CUDA_ARRAY3D_DESCRIPTOR_v2, CUDA_EXTERNAL_MEMORY_BUFFER_DESC_v1,
    CUDA_EXTERNAL_MEMORY_HANDLE_DESC_v1, CUDA_EXTERNAL_MEMORY_MIPMAPPED_ARRAY_DESC_v1,
    CUarrayMapInfo_v1, CUmemAccessDesc_v1, CUmemAllocationProp_v1, CUmemPoolProps_v1,
    CUmulticastObjectProp_v1,
};
use sublet_driver_api::cuda::{
    CUarray, CUcontext, CUdevice_attribute, CUdeviceptr, CUevent, CUexternalMemory, CUfunction,
    CUgraph, CUgraphExec, CUgraphNode, CUipcMemHandle_v1, CUmemAllocationGranularity_flags,
    CUmemAllocationHandleType, CUmemRangeHandleType, CUmemoryPool, CUmipmappedArray, CUmodule,
    CUstream, CUstreamCaptureMode, CUuuid,
};
use sublet_driver_api::nvml::{
    nvmlDevice_t, nvmlMemory_v2_t, nvmlProcessInfo_v2_t, nvmlProcessUtilizationSample_t,
};

use crate::reach::Library;
use crate::report::Failure;

/// One function's address, null until it is first needed.
#[derive(Default)]
struct Slot(AtomicPtr<c_void>);

impl Slot {
    /// A race here is harmless, because a second look-up of a name gives the same address.
    fn address(&self, library: &Library, symbol: &'static str) -> Result<*mut c_void, Failure> {
        let known = self.0.load(Ordering::Acquire);
        if !known.is_null() {
            return Ok(known);
        }
        let found = library.find(symbol)?;
        self.0.store(found, Ordering::Release);
        Ok(found)
    }
}

macro_rules! functions {
    (
        $(#[$about:meta])* $owner:ident, names by $namer:ident;
        $(fn $symbol:ident($($name:ident: $kind:ty),* $(,)?);)*
    ) => {
        $(#[$about])*
        pub(crate) struct $owner {
            library: Library,
            $($symbol: Slot,)*
        }

        impl $owner {
            /// Takes an open library. With `linked`, every name must exist.
            pub(crate) fn new(library: Library) -> Result<Self, Failure> {
                let functions = Self {
                    library,
                    $($symbol: Slot::default(),)*
                };
                if functions.library.is_linked() {
                    $(functions.$symbol.address(&functions.library, stringify!($symbol))?;)*
                }
                Ok(functions)
            }

            $(
                /// # Safety
                /// The arguments must be valid for this function, as its header says.
                pub(crate) unsafe fn $symbol(&self, $($name: $kind),*) -> Result<(), Failure> {
                    let symbol = stringify!($symbol);
                    let address = self.$symbol.address(&self.library, symbol)?;
                    type Declared = unsafe extern "C" fn($($kind),*) -> u32;
                    // SAFETY: the library says that this is the function of that name, and the
                    // list below has its signature.
                    let function = unsafe { transmute::<*mut c_void, Declared>(address) };
                    // SAFETY: the caller answers for the arguments.
                    match unsafe { function($($name),*) } {
                        0 => Ok(()),
                        code => Err(Failure::Driver {
                            call: symbol,
                            code,
                            name: $namer(&self.library, code),
                        }),
                    }
                }
            )*
        }
    };
}

functions! {
    /// libcuda.
    Cuda, names by cuda_name;
    fn cuInit(flags: c_uint);
    fn cuDriverGetVersion(version: *mut c_int);
    fn cuDeviceGet(device: *mut c_int, ordinal: c_int);
    fn cuDeviceGetCount(count: *mut c_int);
    fn cuDeviceGetName(name: *mut c_char, length: c_int, device: c_int);
    fn cuDeviceGetUuid_v2(uuid: *mut CUuuid, device: c_int);
    fn cuDeviceTotalMem_v2(bytes: *mut usize, device: c_int);
    fn cuDeviceGetAttribute(value: *mut c_int, attribute: CUdevice_attribute, device: c_int);
    fn cuDevicePrimaryCtxRetain(context: *mut CUcontext, device: c_int);
    fn cuDevicePrimaryCtxRelease_v2(device: c_int);
    fn cuCtxSetCurrent(context: CUcontext);
    fn cuCtxSynchronize();

    fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize);
    fn cuMemAlloc_v2(address: *mut CUdeviceptr, size: usize);
    fn cuImportExternalMemory(
        memory: *mut CUexternalMemory, given: *const CUDA_EXTERNAL_MEMORY_HANDLE_DESC_v1,
    );
    fn cuDestroyExternalMemory(memory: CUexternalMemory);
    fn cuExternalMemoryGetMappedBuffer(
        address: *mut CUdeviceptr, memory: CUexternalMemory,
        given: *const CUDA_EXTERNAL_MEMORY_BUFFER_DESC_v1,
    );
    fn cuExternalMemoryGetMappedMipmappedArray(
        array: *mut CUmipmappedArray, memory: CUexternalMemory,
        given: *const CUDA_EXTERNAL_MEMORY_MIPMAPPED_ARRAY_DESC_v1,
    );
    fn cuMemFree_v2(address: CUdeviceptr);
    fn cuMemAllocPitch_v2(
        address: *mut CUdeviceptr, pitch: *mut usize, width: usize, height: usize, element: c_uint,
    );
    fn cuMemAllocManaged(address: *mut CUdeviceptr, size: usize, flags: c_uint);
    fn cuMemAllocHost_v2(address: *mut *mut c_void, size: usize);
    fn cuMemFreeHost(address: *mut c_void);
    fn cuMemHostAlloc(address: *mut *mut c_void, size: usize, flags: c_uint);
    fn cuMemHostRegister_v2(address: *mut c_void, size: usize, flags: c_uint);
    fn cuMemHostUnregister(address: *mut c_void);
    fn cuMemcpyHtoD_v2(to: CUdeviceptr, from: *const c_void, size: usize);
    fn cuMemcpyDtoH_v2(to: *mut c_void, from: CUdeviceptr, size: usize);
    fn cuMemsetD32_v2(address: CUdeviceptr, value: c_uint, words: usize);
    fn cuMemcpyAsync(to: CUdeviceptr, from: CUdeviceptr, size: usize, stream: CUstream);
    fn cuMemcpyHtoDAsync_v2(to: CUdeviceptr, from: *const c_void, size: usize, stream: CUstream);
    fn cuMemcpyDtoHAsync_v2(to: *mut c_void, from: CUdeviceptr, size: usize, stream: CUstream);

    fn cuMemAllocAsync(address: *mut CUdeviceptr, size: usize, stream: CUstream);
    fn cuMemAllocFromPoolAsync(address: *mut CUdeviceptr, size: usize, pool: CUmemoryPool, stream: CUstream);
    fn cuMemFreeAsync(address: CUdeviceptr, stream: CUstream);
    fn cuDeviceGetDefaultMemPool(pool: *mut CUmemoryPool, device: c_int);
    fn cuMemPoolCreate(pool: *mut CUmemoryPool, properties: *const CUmemPoolProps_v1);
    fn cuMemPoolDestroy(pool: CUmemoryPool);
        fn cuMemPoolTrimTo(pool: CUmemoryPool, keep: usize);

    fn cuMemGetAllocationGranularity(
        size: *mut usize, properties: *const CUmemAllocationProp_v1, option: CUmemAllocationGranularity_flags,
    );
    fn cuMemAddressReserve(
        address: *mut CUdeviceptr, size: usize, alignment: usize, wish: CUdeviceptr, flags: u64,
    );
    fn cuMemAddressFree(address: CUdeviceptr, size: usize);
    fn cuMemCreate(
        handle: *mut u64, size: usize, properties: *const CUmemAllocationProp_v1, flags: u64,
    );
    fn cuMemRelease(handle: u64);
    fn cuMemMap(address: CUdeviceptr, size: usize, offset: usize, handle: u64, flags: u64);
    fn cuMemUnmap(address: CUdeviceptr, size: usize);
    fn cuMemSetAccess(address: CUdeviceptr, size: usize, access: *const CUmemAccessDesc_v1, count: usize);
    fn cuMemExportToShareableHandle(
        to: *mut c_void, handle: u64, kind: CUmemAllocationHandleType, flags: u64,
    );
    fn cuMemGetHandleForAddressRange(
        to: *mut c_void, address: CUdeviceptr, size: usize, kind: CUmemRangeHandleType, flags: u64,
    );
    fn cuMulticastCreate(object: *mut u64, properties: *const CUmulticastObjectProp_v1);
    fn cuMulticastAddDevice(object: u64, device: c_int);
    fn cuMulticastBindMem(
        object: u64, offset: usize, handle: u64, from: usize, size: usize, flags: u64,
    );
    fn cuMulticastUnbind(object: u64, device: c_int, offset: usize, size: usize);

    fn cuArray3DCreate_v2(array: *mut CUarray, descriptor: *const CUDA_ARRAY3D_DESCRIPTOR_v2);
    fn cuArrayDestroy(array: CUarray);
    fn cuMipmappedArrayCreate(
        array: *mut CUmipmappedArray, descriptor: *const CUDA_ARRAY3D_DESCRIPTOR_v2, levels: c_uint,
    );
    fn cuMipmappedArrayDestroy(array: CUmipmappedArray);
    fn cuMemMapArrayAsync(list: *mut CUarrayMapInfo_v1, count: c_uint, stream: CUstream);

    fn cuIpcGetMemHandle(handle: *mut CUipcMemHandle_v1, address: CUdeviceptr);
    fn cuIpcOpenMemHandle_v2(address: *mut CUdeviceptr, handle: CUipcMemHandle_v1, flags: c_uint);
    fn cuIpcCloseMemHandle(address: CUdeviceptr);

    fn cuStreamCreate(stream: *mut CUstream, flags: c_uint);
    fn cuStreamDestroy_v2(stream: CUstream);
    fn cuStreamSynchronize(stream: CUstream);
    fn cuStreamBeginCapture_v2(stream: CUstream, mode: CUstreamCaptureMode);
    fn cuStreamEndCapture(stream: CUstream, graph: *mut CUgraph);
    fn cuEventCreate(event: *mut CUevent, flags: c_uint);
    fn cuEventDestroy_v2(event: CUevent);
    fn cuEventRecord(event: CUevent, stream: CUstream);
    fn cuEventSynchronize(event: CUevent);
    fn cuEventQuery(event: CUevent);
    fn cuEventElapsedTime(milliseconds: *mut f32, from: CUevent, to: CUevent);

    fn cuModuleLoadData(module: *mut CUmodule, image: *const c_void);
    fn cuModuleUnload(module: CUmodule);
    fn cuModuleGetFunction(function: *mut CUfunction, module: CUmodule, name: *const c_char);
    fn cuLaunchKernel(
        function: CUfunction,
        grid_x: c_uint, grid_y: c_uint, grid_z: c_uint,
        block_x: c_uint, block_y: c_uint, block_z: c_uint,
        shared_bytes: c_uint, stream: CUstream,
        parameters: *mut *mut c_void, extra: *mut *mut c_void,
    );
    fn cuLaunchKernelEx(
        configuration: *const CUlaunchConfig, function: CUfunction,
        parameters: *mut *mut c_void, extra: *mut *mut c_void,
    );

    fn cuGraphCreate(graph: *mut CUgraph, flags: c_uint);
    fn cuGraphDestroy(graph: CUgraph);
    fn cuGraphAddKernelNode_v2(
        node: *mut CUgraphNode, graph: CUgraph, after: *const CUgraphNode, n_after: usize,
        parameters: *const CUDA_KERNEL_NODE_PARAMS_v2,
    );
    fn cuGraphAddMemAllocNode(
        node: *mut CUgraphNode, graph: CUgraph, after: *const CUgraphNode, n_after: usize,
        parameters: *mut CUDA_MEM_ALLOC_NODE_PARAMS_v1,
    );
    fn cuGraphAddEmptyNode(
        node: *mut CUgraphNode, graph: CUgraph, after: *const CUgraphNode, n_after: usize,
    );
    fn cuGraphAddMemFreeNode(
        node: *mut CUgraphNode, graph: CUgraph, after: *const CUgraphNode, n_after: usize, address: CUdeviceptr,
    );
    fn cuGraphAddNode_v2(
        node: *mut CUgraphNode, graph: CUgraph, after: *const CUgraphNode,
        edges: *const CUgraphEdgeData, n_after: usize, parameters: *mut CUgraphNodeParams,
    );
    fn cuGraphInstantiateWithFlags(executable: *mut CUgraphExec, graph: CUgraph, flags: u64);
    fn cuGraphExecDestroy(executable: CUgraphExec);
    fn cuGraphLaunch(executable: CUgraphExec, stream: CUstream);
    fn cuDeviceGraphMemTrim(device: c_int);
}

functions! {
    /// libnvidia-ml.
    Nvml, names by nvml_name;
    fn nvmlInit_v2();
    fn nvmlShutdown();
    fn nvmlSystemGetDriverVersion(version: *mut c_char, length: c_uint);
    fn nvmlDeviceGetCount_v2(count: *mut c_uint);
    fn nvmlDeviceGetHandleByIndex_v2(index: c_uint, device: *mut nvmlDevice_t);
    fn nvmlDeviceGetName(device: nvmlDevice_t, name: *mut c_char, length: c_uint);
    fn nvmlDeviceGetUUID(device: nvmlDevice_t, uuid: *mut c_char, length: c_uint);
    fn nvmlDeviceGetMemoryInfo_v2(device: nvmlDevice_t, memory: *mut nvmlMemory_v2_t);
    fn nvmlDeviceGetProcessUtilization(
        device: nvmlDevice_t, samples: *mut nvmlProcessUtilizationSample_t, count: *mut c_uint,
        last_seen: u64
    );
    fn nvmlDeviceGetComputeRunningProcesses_v3(
        device: nvmlDevice_t, count: *mut c_uint, processes: *mut nvmlProcessInfo_v2_t,
    );
}

impl Cuda {
    /// The file that the driver came from.
    pub(crate) fn file(&self) -> Option<String> {
        self.library.file_of("cuInit")
    }
}

impl Nvml {
    /// The file that NVML came from.
    pub(crate) fn file(&self) -> Option<String> {
        self.library.file_of("nvmlInit_v2")
    }
}

/// The driver's name for a code; empty if the driver cannot say.
fn cuda_name(library: &Library, code: u32) -> String {
    let Ok(address) = library.find("cuGetErrorName") else {
        return String::new();
    };
    let mut name: *const c_char = ptr::null();
    // SAFETY: the signature is that of cuda.h, and the pointer is to a live value.
    let answer = unsafe {
        let function: unsafe extern "C" fn(u32, *mut *const c_char) -> u32 = transmute(address);
        function(code, &raw mut name)
    };
    if answer == 0 {
        text(name)
    } else {
        String::new()
    }
}

fn nvml_name(library: &Library, code: u32) -> String {
    let Ok(address) = library.find("nvmlErrorString") else {
        return String::new();
    };
    // SAFETY: the signature is that of nvml.h.
    text(unsafe {
        let function: unsafe extern "C" fn(u32) -> *const c_char = transmute(address);
        function(code)
    })
}

fn text(name: *const c_char) -> String {
    if name.is_null() {
        return String::new();
    }
    // SAFETY: only called with static C strings that the driver returned.
    unsafe { CStr::from_ptr(name) }
        .to_string_lossy()
        .into_owned()
}
