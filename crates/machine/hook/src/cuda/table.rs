//! Hooked names, and their hooks.
//!
//! To hook a function, add its line. Each version of a function and its per-thread twin needs a
//! line of its own, because each is another function of the driver; a test names the forgotten
//! ones. A function without a line leads straight to the driver.

use std::ffi::{c_char, c_uint, c_void};

use super::c::*;
use super::real::REAL;
use super::{
    array, context, external, graph, info, launch, linear, lookup, module, physical, pinned, pool,
    row, shared, start, stream_life, sync,
};
use crate::real::{Row, implement_row};

/// Function behind a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The driver's function, nothing else.
    Forward,
    /// Ours, which calls the driver's when the gate is open ([`launch`]).
    Gate(*const c_void),
    /// Ours, which calls the driver's.
    Hook(*const c_void),
}

macro_rules! hooks {
    ($($symbol:ident => $($part:ident)::+ $(::<$description:ty>)?;)*) => {
        $(row::prototype!($symbol implement_row);)*

        /// Returns the function behind a row.
        #[must_use]
        pub fn kind(index: usize) -> Kind {
            match index {
                $(row::$symbol => {
                    // A hook of another type than its row does not compile.
                    let hook: <row::$symbol as Row>::Function =
                        $($part)::+::<$($description,)? row::$symbol>;
                    Kind::Hook(hook as *const c_void)
                })*
                _ => gate_or_forward(index),
            }
        }

        /// Every hooked name.
        #[cfg(test)]
        const HOOKED: &[&str] = &[$(stringify!($symbol)),*];
    };
}

hooks! {
    cuInit => start::init;
    cuGetProcAddress => lookup::look_up;
    cuGetProcAddress_v2 => lookup::look_up_v2;

    cuMemAlloc => linear::alloc_v1;
    cuMemAlloc_v2 => linear::alloc;
    cuMemAllocPitch => linear::pitch_v1;
    cuMemAllocPitch_v2 => linear::pitch;
    cuMemAllocManaged => linear::managed;
    cuMemFree => linear::free_v1;
    cuMemFree_v2 => linear::free;

    cuMemAllocHost => pinned::alloc_v1;
    cuMemAllocHost_v2 => pinned::alloc;
    cuMemHostAlloc => pinned::alloc_with_flags;
    cuMemFreeHost => pinned::free;
    cuMemHostRegister => pinned::register;
    cuMemHostRegister_v2 => pinned::register;
    cuMemHostUnregister => pinned::unregister;

    cuMemAllocAsync => pool::alloc_async;
    cuMemAllocAsync_ptsz => pool::alloc_async;
    cuMemAllocFromPoolAsync => pool::alloc_from_pool;
    cuMemAllocFromPoolAsync_ptsz => pool::alloc_from_pool;
    cuMemFreeAsync => pool::free_async;
    cuMemFreeAsync_ptsz => pool::free_async;
    cuMemPoolCreate => pool::create;
    cuMemPoolDestroy => pool::destroy;
    cuMemPoolSetAttribute => pool::set_attribute;
    cuMemPoolTrimTo => pool::trim_to;
    cuStreamSynchronize => sync::stream;
    cuStreamSynchronize_ptsz => sync::stream;
    cuEventSynchronize => sync::event;
    cuCtxSynchronize => sync::current;
    cuCtxSynchronize_v2 => sync::context;

    cuStreamCreate => stream_life::create;
    cuStreamCreateWithPriority => stream_life::create_with_priority;
    cuGreenCtxStreamCreate => stream_life::create_green;
    cuStreamDestroy => stream_life::destroy;
    cuStreamDestroy_v2 => stream_life::destroy;
    cuStreamBeginCapture => stream_life::begin_v1;
    cuStreamBeginCapture_ptsz => stream_life::begin_v1;
    cuStreamBeginCapture_v2 => stream_life::begin;
    cuStreamBeginCapture_v2_ptsz => stream_life::begin;
    cuStreamBeginCaptureToGraph => stream_life::begin_to_graph;
    cuStreamBeginCaptureToGraph_ptsz => stream_life::begin_to_graph;
    cuStreamBeginRecaptureToGraph => stream_life::begin_again;
    cuStreamBeginRecaptureToGraph_ptsz => stream_life::begin_again;

    cuMemCreate => physical::create;
    cuMemRelease => physical::release;
    cuMemMap => physical::map;
    cuMemUnmap => physical::unmap;
    cuMemRetainAllocationHandle => physical::retain;
    cuMemExportToShareableHandle => shared::export;
    cuMemImportFromShareableHandle => shared::import;
    cuMemGetHandleForAddressRange => shared::export_range;
    cuMulticastCreate => physical::create_multicast;
    cuMulticastBindMem => physical::bind_memory;
    cuMulticastBindMem_v2 => physical::bind_memory_v2;
    cuMulticastBindAddr => physical::bind_address;
    cuMulticastBindAddr_v2 => physical::bind_address_v2;
    cuMulticastUnbind => physical::unbind;
    cuLogicalEndpointBindMem => physical::bind_endpoint_memory;
    cuLogicalEndpointBindAddr => physical::bind_endpoint_address;
    cuLogicalEndpointUnbind => physical::unbind_endpoint;
    cuLogicalEndpointDestroy => physical::destroy_endpoint;

    cuIpcGetMemHandle => shared::get_ipc;
    cuIpcOpenMemHandle => shared::open_ipc;
    cuIpcOpenMemHandle_v2 => shared::open_ipc;
    cuIpcCloseMemHandle => shared::close_ipc;
    cuMemPoolImportFromShareableHandle => shared::import_pool;
    cuMemPoolExportPointer => shared::export_pointer;
    cuMemPoolImportPointer => shared::import_pointer;

    cuMemMapArrayAsync => array::map;
    cuMemMapArrayAsync_ptsz => array::map;

    cuArrayCreate => array::create::<CUDA_ARRAY_DESCRIPTOR_v1>;
    cuArrayCreate_v2 => array::create::<CUDA_ARRAY_DESCRIPTOR_v2>;
    cuArray3DCreate => array::create::<CUDA_ARRAY3D_DESCRIPTOR_v1>;
    cuArray3DCreate_v2 => array::create::<CUDA_ARRAY3D_DESCRIPTOR_v2>;
    cuArrayDestroy => array::destroy::<CUarray>;
    cuMipmappedArrayCreate => array::create_mipmapped;
    cuMipmappedArrayDestroy => array::destroy::<CUmipmappedArray>;

    cuGraphAddMemAllocNode => graph::added::alloc_node;
    cuGraphAddNode => graph::added::node;
    cuGraphAddNode_v2 => graph::added::node_v2;
    cuGraphAddNode_v3 => graph::added::node_v2;
    cuGraphInstantiate => graph::instantiate;
    cuGraphInstantiate_v2 => graph::instantiate;
    cuGraphInstantiateWithFlags => graph::instantiate_with_flags;
    cuGraphInstantiateWithParams => graph::instantiate_with_params;
    cuGraphInstantiateWithParams_ptsz => graph::instantiate_with_params;
    cuGraphExecDestroy => graph::exec_destroy;
    cuGraphLaunch => graph::unknown::launch;
    cuGraphLaunch_ptsz => graph::unknown::launch;
    cuGraphUpload => graph::unknown::upload_ahead;
    cuGraphUpload_ptsz => graph::unknown::upload_ahead;
    cuDeviceGraphMemTrim => graph::trim;

    cuImportExternalMemory => external::import;
    cuDestroyExternalMemory => external::destroy;
    cuExternalMemoryGetMappedBuffer => external::map_buffer;
    cuExternalMemoryGetMappedMipmappedArray => external::map_array;

    cuCtxCreate => context::create;
    cuCtxCreate_v2 => context::create;
    cuCtxCreate_v3 => context::create_v3;
    cuCtxCreate_v4 => context::create_v4;
    cuGLCtxCreate => context::create;
    cuGLCtxCreate_v2 => context::create;
    cuVDPAUCtxCreate => context::create_vdpau;
    cuVDPAUCtxCreate_v2 => context::create_vdpau;
    cuCtxAttach => context::attach;
    cuCtxDetach => context::detach;
    cuCtxSetLimit => context::set_limit;
    cuCtxDestroy => context::destroy;
    cuCtxDestroy_v2 => context::destroy;
    cuDevicePrimaryCtxRetain => context::retain;
    cuDevicePrimaryCtxRelease => context::release;
    cuDevicePrimaryCtxRelease_v2 => context::release;
    cuDevicePrimaryCtxReset => context::reset;
    cuDevicePrimaryCtxReset_v2 => context::reset;
    cuGreenCtxCreate => context::create_green;
    cuGreenCtxDestroy => context::destroy_green;

    cuModuleLoad => module::load::<c_char>;
    cuModuleLoadData => module::load::<c_void>;
    cuModuleLoadDataEx => module::load_with_options;
    cuModuleLoadFatBinary => module::load::<c_void>;
    cuModuleUnload => module::unload::<CUmodule>;
    cuLibraryLoadData => module::load_library::<c_void>;
    cuLibraryLoadFromFile => module::load_library::<c_char>;
    cuLibraryUnload => module::unload::<CUlibrary>;
    cuFuncLoad => module::load_function;
    cuKernelGetFunction => module::get::<(CUfunction, CUkernel)>;
    cuLibraryEnumerateKernels => module::list::<(CUkernel, CUlibrary)>;
    cuLibraryGetGlobal => module::get_variable::<(CUdeviceptr, usize, CUlibrary)>;
    cuLibraryGetKernel => module::get_named::<(CUkernel, CUlibrary)>;
    cuLibraryGetManaged => module::get_variable::<(CUdeviceptr, usize, CUlibrary)>;
    cuLibraryGetModule => module::get::<(CUmodule, CUlibrary)>;
    cuLibraryGetUnifiedFunction => module::get_named::<(*mut c_void, CUlibrary)>;
    cuModuleEnumerateFunctions => module::list::<(CUfunction, CUmodule)>;
    cuModuleGetFunction => module::get_named::<(CUfunction, CUmodule)>;
    cuModuleGetGlobal => module::get_variable::<(CUdeviceptr_v1, c_uint, CUmodule)>;
    cuModuleGetGlobal_v2 => module::get_variable::<(CUdeviceptr, usize, CUmodule)>;
    cuModuleGetSurfRef => module::get_named::<(CUsurfref, CUmodule)>;
    cuModuleGetTexRef => module::get_named::<(CUtexref, CUmodule)>;

    cuMemGetInfo => info::get::<c_uint>;
    cuMemGetInfo_v2 => info::get::<usize>;
    cuDeviceTotalMem => info::total::<c_uint>;
    cuDeviceTotalMem_v2 => info::total::<usize>;
}

fn gate_or_forward(index: usize) -> Kind {
    launch::hook(index).map_or(Kind::Forward, Kind::Gate)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cuda::gated::is_gated;
    use std::collections::BTreeSet;
    use sublet_driver_api::CUDA;

    #[test]
    fn every_version_and_twin_of_a_hooked_function_is_hooked() {
        let bases: BTreeSet<&str> = HOOKED
            .iter()
            .map(|symbol| CUDA.by_symbol(symbol).expect("a row").base)
            .collect();
        let forgotten: Vec<&str> = CUDA
            .iter()
            .enumerate()
            .filter(|(index, row)| {
                bases.contains(row.base) && !matches!(kind(*index), Kind::Hook(_))
            })
            .map(|(_, row)| row.symbol)
            .collect();
        assert!(forgotten.is_empty(), "these escape: {forgotten:?}");
    }

    #[test]
    fn every_launch_copy_and_fill_passes_the_gate() {
        let mut hooks = BTreeSet::new();
        for (index, row) in CUDA.iter().enumerate() {
            match kind(index) {
                Kind::Gate(hook) => assert!(hooks.insert(hook) && is_gated(row), "{}", row.symbol),
                _ => assert!(!is_gated(row), "{} escapes", row.symbol),
            }
        }
        for (symbol, expected) in [
            ("cuLaunchKernel", true),
            ("cuLaunchKernelEx_ptsz", true),
            ("cuLaunchCooperativeKernel_ptsz", true),
            ("cuLaunchGridAsync", true),
            ("cuMemcpyHtoD_v2_ptds", true),
            ("cuMemcpyAsync_ptsz", true),
            ("cuMemsetD2D32Async_ptsz", true),
            ("cuMemPrefetchAsync_v2", true),
            ("cuLaunchHostFunc", false),
            ("cuMemGetAddressRange_v2", false),
            ("cuStreamSynchronize", false),
        ] {
            let row = CUDA.by_symbol(symbol).expect("a row");
            assert_eq!(is_gated(row), expected, "{symbol}");
        }
    }
}
