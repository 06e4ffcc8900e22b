//! The real driver's functions, by row.
//!
//! Found when they are first used, and kept. A function that the driver lacks is one that says
//! so when it is called, because a program that is linked against us expects every name; and
//! without any driver each call answers `CUDA_ERROR_STUB_LIBRARY`, whose text says what was
//! looked for and where.

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use sublet_driver_api::CUDA;

use super::c::*;
use super::row;
use crate::driver::{self, Library, NotFound, Places};

/// Where each real function is; null until it is asked for.
pub(super) static REAL: [AtomicPtr<c_void>; row::COUNT] =
    [const { AtomicPtr::new(ptr::null_mut()) }; row::COUNT];

/// What was found, once it was looked for.
struct Found {
    library: Result<Library, NotFound>,
    /// What `cuGetErrorString` says without a driver.
    text: CString,
}

/// The real function of a row, or one that says what is missing.
pub fn address(index: usize) -> *const c_void {
    let Some(place) = REAL.get(index) else {
        return not_supported as *const c_void;
    };
    let known = place.load(Ordering::Acquire);
    if !known.is_null() {
        return known;
    }
    let address = match &found().library {
        Ok(library) => CString::new(CUDA[index].symbol)
            .ok()
            .and_then(|name| library.symbol(&name))
            .map_or(not_supported as *const c_void, |symbol| symbol.as_ptr()),
        Err(_) => match index {
            row::cuGetErrorString => explain as *const c_void,
            row::cuGetErrorName => name_of as *const c_void,
            _ => no_driver as *const c_void,
        },
    };
    place.store(address.cast_mut(), Ordering::Release);
    address
}

/// True if the driver has the function.
pub fn exists(index: usize) -> bool {
    let address = address(index);
    ![
        not_supported as *const c_void,
        no_driver as *const c_void,
        explain as *const c_void,
        name_of as *const c_void,
    ]
    .contains(&address)
}

/// Remembers where a function is that the driver does not export, but gave out.
pub fn learn(index: usize, address: *mut c_void) {
    if !exists(index)
        && let Some(place) = REAL.get(index)
    {
        place.store(address, Ordering::Release);
    }
}

/// The real function of a row, with its type.
///
/// # Safety
/// `F` is the type of a C function as the row declares it.
pub unsafe fn function<F: Copy>(index: usize) -> F {
    const { assert!(size_of::<F>() == size_of::<*const c_void>()) };
    let address = address(index);
    // SAFETY: same size, and the caller vouches for the type.
    unsafe { std::mem::transmute_copy(&address) }
}

pub(super) extern "C" fn not_supported() -> CUresult {
    CUDA_ERROR_NOT_SUPPORTED
}

extern "C" fn no_driver() -> CUresult {
    CUDA_ERROR_STUB_LIBRARY
}

/// # Safety
/// `text` is null or can be written.
unsafe extern "C" fn explain(error: CUresult, text: *mut *const c_char) -> CUresult {
    // SAFETY: as the caller says.
    unsafe { tell(error, text, &found().text) }
}

/// # Safety
/// `text` is null or can be written.
unsafe extern "C" fn name_of(error: CUresult, text: *mut *const c_char) -> CUresult {
    // SAFETY: as the caller says.
    unsafe { tell(error, text, c"CUDA_ERROR_STUB_LIBRARY") }
}

unsafe fn tell(error: CUresult, text: *mut *const c_char, told: &'static CStr) -> CUresult {
    if text.is_null() {
        return CUDA_ERROR_INVALID_VALUE;
    }
    let known = error == CUDA_ERROR_STUB_LIBRARY;
    let told = if known { told.as_ptr() } else { ptr::null() };
    // SAFETY: not null, and the caller says it can be written.
    unsafe { text.write(told) };
    if known {
        CUDA_SUCCESS
    } else {
        CUDA_ERROR_INVALID_VALUE
    }
}

/// Looks for the driver once. Not under a lock: its constructors may call our functions, and
/// two threads that both look find the same.
fn found() -> &'static Found {
    static FOUND: AtomicPtr<Found> = AtomicPtr::new(ptr::null_mut());
    let known = FOUND.load(Ordering::Acquire);
    if !known.is_null() {
        // SAFETY: stored below from a box that is never freed.
        return unsafe { &*known };
    }
    let library = driver::open(driver::CUDA, &Places::of_process(driver::CUDA));
    let text = match &library {
        Ok(_) => CString::default(),
        Err(why) => CString::new(why.to_string()).unwrap_or_default(),
    };
    let mine = Box::into_raw(Box::new(Found { library, text }));
    let winner = FOUND.compare_exchange(ptr::null_mut(), mine, Ordering::AcqRel, Ordering::Acquire);
    // SAFETY: either is a box that is never freed.
    unsafe { &*winner.map_or_else(|other| other, |_| mine) }
}

/// Functions of the driver that hooks call for themselves.
macro_rules! real_functions {
    ($($name:ident($($argument:ident: $type:ty),*);)*) => {$(
        /// The driver's own.
        ///
        /// # Safety
        /// As the driver documents.
        #[allow(non_snake_case, reason = "the driver's own name")]
        pub unsafe fn $name($($argument: $type),*) -> CUresult {
            type Function = unsafe extern "C" fn($($type),*) -> CUresult;
            // SAFETY: the type is the row's, as NVIDIA's header declares it.
            let function: Function = unsafe { function(row::$name) };
            // SAFETY: as the caller says.
            unsafe { function($($argument),*) }
        }
    )*};
}

real_functions! {
    cuArray3DCreate_v2(array: *mut CUarray, descriptor: *const CUDA_ARRAY3D_DESCRIPTOR_v2);
    cuArrayDestroy(array: CUarray);
    cuArrayGetMemoryRequirements(
        needs: *mut CUDA_ARRAY_MEMORY_REQUIREMENTS_v1, array: CUarray, device: CUdevice
    );
    cuCtxGetCurrent(context: *mut CUcontext);
    cuCtxGetDevice(device: *mut CUdevice);
    cuCtxPopCurrent_v2(context: *mut CUcontext);
    cuCtxPushCurrent_v2(context: CUcontext);
    cuDeviceGetCount(count: *mut c_int);
    cuDeviceGetDefaultMemPool(pool: *mut CUmemoryPool, device: CUdevice);
    cuDeviceGetGraphMemAttribute(device: CUdevice, attribute: CUgraphMem_attribute, value: *mut c_void);
    cuDeviceGetMemPool(pool: *mut CUmemoryPool, device: CUdevice);
    cuDeviceGetUuid(uuid: *mut [u8; 16], device: CUdevice);
    cuDeviceGetUuid_v2(uuid: *mut [u8; 16], device: CUdevice);
    cuDeviceGraphMemTrim(device: CUdevice);
    cuDevicePrimaryCtxGetState(device: CUdevice, flags: *mut c_uint, active: *mut c_int);
    cuDriverGetVersion(version: *mut c_int);
    cuGraphChildGraphNodeGetGraph(node: CUgraphNode, graph: *mut CUgraph);
    cuGraphGetEdges(
        graph: CUgraph, from: *mut CUgraphNode, to: *mut CUgraphNode, count: *mut usize
    );
    cuGraphGetNodes(graph: CUgraph, nodes: *mut CUgraphNode, count: *mut usize);
    cuGraphMemAllocNodeGetParams(node: CUgraphNode, params: *mut CUDA_MEM_ALLOC_NODE_PARAMS_v1);
    cuGraphMemFreeNodeGetParams(node: CUgraphNode, address: *mut CUdeviceptr);
    cuGraphNodeGetType(node: CUgraphNode, kind: *mut CUgraphNodeType);
    cuMemFreeAsync(address: CUdeviceptr, stream: CUstream);
    cuMemFree_v2(address: CUdeviceptr);
    cuMemGetInfo_v2(free: *mut usize, total: *mut usize);
    cuMemPoolGetAttribute(pool: CUmemoryPool, attribute: CUmemPool_attribute, value: *mut c_void);
    cuMemPoolTrimTo(pool: CUmemoryPool, bytes: usize);
    cuMipmappedArrayCreate(
        array: *mut CUmipmappedArray, descriptor: *const CUDA_ARRAY3D_DESCRIPTOR_v2, levels: c_uint
    );
    cuMipmappedArrayDestroy(array: CUmipmappedArray);
    cuMipmappedArrayGetMemoryRequirements(
        needs: *mut CUDA_ARRAY_MEMORY_REQUIREMENTS_v1, array: CUmipmappedArray, device: CUdevice
    );
    cuStreamGetCtx(stream: CUstream, context: *mut CUcontext);
    cuStreamGetDevice(stream: CUstream, device: *mut CUdevice);
    cuStreamIsCapturing(stream: CUstream, status: *mut CUstreamCaptureStatus);
}
