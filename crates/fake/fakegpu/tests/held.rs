//! Memory that something else holds when it is given back: descriptors, multicast objects,
//! sparse arrays, and other allocations of a graph.
#![expect(unsafe_code, reason = "calls the driver as C does")]

mod own_process;

use std::os::fd::{FromRawFd, OwnedFd};

use own_process::{context, memory, with_machine};
use sublet_driver_api::Zeroed;
use sublet_driver_api::cuda::graph::CUDA_MEM_ALLOC_NODE_PARAMS_v1;
use sublet_driver_api::cuda::memory::{
    CUDA_ARRAY3D_DESCRIPTOR_v2, CUarrayMapInfo_v1, CUmemAllocationProp_v1, CUmemLocation_v1,
    CUmemPoolProps_v1, CUmulticastObjectProp_v1,
};
use sublet_driver_api::cuda::{
    CU_AD_FORMAT_UNSIGNED_INT8, CU_MEM_ALLOCATION_TYPE_PINNED, CU_MEM_LOCATION_TYPE_DEVICE,
    CU_MEM_OPERATION_TYPE_MAP, CU_MEM_OPERATION_TYPE_UNMAP, CUmemAllocationHandleType,
    CUmemOperationType,
};

const MIB: usize = 1 << 20;
const SPEC: &str = "1x1GiB,context=0MiB";

const HERE: CUmemLocation_v1 = CUmemLocation_v1 {
    r#type: CU_MEM_LOCATION_TYPE_DEVICE,
    id: 0,
};

/// MiB of the card that are taken.
fn used() -> usize {
    let (free, total) = memory();
    (total - free) / MIB
}

fn physical(size: usize) -> u64 {
    let properties = CUmemAllocationProp_v1 {
        r#type: CU_MEM_ALLOCATION_TYPE_PINNED,
        requestedHandleTypes: CUmemAllocationHandleType(1),
        location: HERE,
        ..Zeroed::ZERO
    };
    let mut handle = 0_u64;
    ok!(cuMemCreate, &raw mut handle => *mut u64, size => usize, &raw const properties => *const CUmemAllocationProp_v1, 0 => u64);
    handle
}

fn map(size: usize, handle: u64) -> u64 {
    let mut address = 0_u64;
    ok!(cuMemAddressReserve, &raw mut address => *mut u64, size => usize, 0 => usize, 0 => u64, 0 => u64);
    ok!(cuMemMap, address => u64, size => usize, 0 => usize, handle => u64, 0 => u64);
    address
}

fn owned(descriptor: i32) -> OwnedFd {
    assert!(descriptor >= 0);
    // SAFETY: the driver just gave it to us.
    unsafe { OwnedFd::from_raw_fd(descriptor) }
}

#[test]
fn a_descriptor_holds_what_it_was_made_of() {
    with_machine("a_descriptor_holds_what_it_was_made_of", SPEC, || {
        context();
        let (mut fd, mut handle) = (-1_i32, physical(16 * MIB));
        ok!(cuMemExportToShareableHandle, &raw mut fd => *mut i32, handle => u64, 1 => u32, 0 => u64);
        let exported = owned(fd);
        ok!(cuMemRelease, handle => u64);
        assert_eq!(used(), 16, "a descriptor is open");
        let copy = exported.try_clone().expect("a copy");
        ok!(cuMemImportFromShareableHandle, &raw mut handle => *mut u64, fd as usize => usize, 1 => u32);
        drop(exported);
        assert_eq!(used(), 16, "a copy is, and it was imported");
        drop(copy);
        ok!(cuMemRelease, handle => u64);
        assert_eq!(used(), 0);

        let mut address = 0_u64;
        ok!(cuMemAlloc_v2, &raw mut address => *mut u64, 8 * MIB => usize);
        ok!(cuMemGetHandleForAddressRange, &raw mut fd => *mut i32, address => u64, 4 * MIB => usize, 1 => u32, 0 => u64);
        let buffer = owned(fd);
        ok!(cuMemFree_v2, address => u64);
        assert_eq!(used(), 8, "a dma-buf is open");
        drop(buffer);
        assert_eq!(used(), 0);

        let handle = physical(8 * MIB);
        let address = map(8 * MIB, handle);
        assert_eq!(
            cu!(cuMemGetHandleForAddressRange, &raw mut fd => *mut i32, address => u64, 8 * MIB => usize, 1 => u32, 0 => u64),
            1,
            "no access"
        );
        ok!(cuMemRelease, handle => u64);
        ok!(cuMemUnmap, address => u64, 8 * MIB => usize);
        assert_eq!(used(), 0);
    });
}

#[test]
fn a_multicast_object_holds_what_is_bound_to_it() {
    with_machine("a_multicast_object_holds_what_is_bound_to_it", SPEC, || {
        context();
        let given = CUmulticastObjectProp_v1 {
            numDevices: 1,
            size: 8 * MIB,
            ..Zeroed::ZERO
        };
        let (mut object, mut granularity) = (0_u64, 0_usize);
        ok!(cuMulticastGetGranularity, &raw mut granularity => *mut usize, &raw const given => *const CUmulticastObjectProp_v1, 0 => u32);
        assert_eq!(granularity, 2 * MIB);
        ok!(cuMulticastCreate, &raw mut object => *mut u64, &raw const given => *const CUmulticastObjectProp_v1);
        ok!(cuMulticastAddDevice, object => u64, 0 => i32);
        assert_eq!(used(), 0, "an object has no memory of its own");
        let (first, second) = (physical(4 * MIB), physical(4 * MIB));
        ok!(cuMulticastBindMem, object => u64, 0 => usize, first => u64, 0 => usize, 4 * MIB => usize, 0 => u64);
        let bind = |offset: usize| cu!(cuMulticastBindMem, object => u64, offset => usize, second => u64, 0 => usize, 4 * MIB => usize, 0 => u64);
        assert_eq!((bind(2 * MIB), bind(6 * MIB), bind(1)), (1, 1, 1));
        let address = map(4 * MIB, second);
        ok!(cuMulticastBindAddr, object => u64, 4 * MIB => usize, address => u64, 4 * MIB => usize, 0 => u64);
        ok!(cuMemUnmap, address => u64, 4 * MIB => usize);
        ok!(cuMemRelease, first => u64);
        ok!(cuMemRelease, second => u64);
        assert_eq!(used(), 8, "both are bound");
        ok!(cuMulticastUnbind, object => u64, 0 => i32, 0 => usize, 4 * MIB => usize);
        assert_eq!(used(), 4);
        let address = map(8 * MIB, object);
        ok!(cuMemRelease, object => u64);
        assert_eq!(used(), 4, "the object is mapped");
        ok!(cuMemUnmap, address => u64, 8 * MIB => usize);
        assert_eq!(used(), 0);
    });
}

#[test]
fn a_sparse_array_holds_the_memory_of_its_tiles() {
    with_machine("a_sparse_array_holds_the_memory_of_its_tiles", SPEC, || {
        context();
        let described = CUDA_ARRAY3D_DESCRIPTOR_v2 {
            Width: 4096,
            Height: 4096,
            Format: CU_AD_FORMAT_UNSIGNED_INT8,
            NumChannels: 4,
            Flags: 0x40,
            ..Zeroed::ZERO
        };
        let mut array = 0_u64;
        ok!(cuArray3DCreate_v2, &raw mut array => *mut u64, &raw const described => *const CUDA_ARRAY3D_DESCRIPTOR_v2);
        assert_eq!(used(), 0, "it has no memory of its own");
        let change = |operation: CUmemOperationType, handle: u64, x: u32, width: u32| {
            let mut one = CUarrayMapInfo_v1 {
                resource: array as usize,
                memOperationType: operation,
                memHandle: handle,
                deviceBitMask: 1,
                ..Zeroed::ZERO
            };
            // Offsets and extents of level 0, layer 0.
            one.subresource = [0, x.into(), u64::from(width) << 32, 128 | 1 << 32];
            cu!(cuMemMapArrayAsync, &raw const one => *const CUarrayMapInfo_v1, 1 => u32, 0 => u64)
        };
        let handle = physical(2 * MIB);
        assert_eq!(
            change(CU_MEM_OPERATION_TYPE_MAP, handle, 64, 128),
            1,
            "half a tile"
        );
        assert_eq!(
            change(CU_MEM_OPERATION_TYPE_MAP, handle, 0, 4224),
            1,
            "more than its memory"
        );
        assert_eq!(change(CU_MEM_OPERATION_TYPE_MAP, handle, 0, 1024), 0);
        ok!(cuMemRelease, handle => u64);
        assert_eq!(change(CU_MEM_OPERATION_TYPE_UNMAP, 0, 0, 896), 0);
        assert_eq!(used(), 2, "the last tile");
        assert_eq!(change(CU_MEM_OPERATION_TYPE_UNMAP, 0, 896, 128), 0);
        assert_eq!(used(), 0);
        let handle = physical(2 * MIB);
        assert_eq!(change(CU_MEM_OPERATION_TYPE_MAP, handle, 0, 128), 0);
        ok!(cuMemRelease, handle => u64);
        ok!(cuArrayDestroy, array => u64);
        assert_eq!(used(), 0);
    });
}

/// A node that allocates; its handle and address.
fn allocate(graph: u64, after: &[u64], size: usize) -> (u64, u64) {
    let mut given = CUDA_MEM_ALLOC_NODE_PARAMS_v1 {
        poolProps: CUmemPoolProps_v1 {
            allocType: CU_MEM_ALLOCATION_TYPE_PINNED,
            location: HERE,
            ..Zeroed::ZERO
        },
        bytesize: size,
        ..Zeroed::ZERO
    };
    let mut node = 0_u64;
    ok!(cuGraphAddMemAllocNode, &raw mut node => *mut u64, graph => u64, after.as_ptr() => *const u64, after.len() => usize, &raw mut given => *mut CUDA_MEM_ALLOC_NODE_PARAMS_v1);
    (node, given.dptr)
}

fn free(graph: u64, after: u64, address: u64) -> u64 {
    let mut node = 0_u64;
    ok!(cuGraphAddMemFreeNode, &raw mut node => *mut u64, graph => u64, &raw const after => *const u64, 1 => usize, address => u64);
    node
}

#[test]
fn a_graph_uses_memory_again_along_its_edges_only() {
    with_machine(
        "a_graph_uses_memory_again_along_its_edges_only",
        SPEC,
        || {
            context();
            let (mut graph, mut exec) = (0_u64, 0_u64);
            ok!(cuGraphCreate, &raw mut graph => *mut u64, 0 => u32);
            let (first, a) = allocate(graph, &[], 8 * MIB);
            let (beside, b) = allocate(graph, &[], 8 * MIB);
            assert_ne!(a, b, "they can run at the same time");
            let freed = free(graph, first, a);
            let (after, c) = allocate(graph, &[freed], 6 * MIB);
            assert_eq!(c, a, "it comes after the free");
            assert_ne!(allocate(graph, &[freed], 2 * MIB).1, a, "somebody has it");
            assert_ne!(
                allocate(graph, &[beside], 2 * MIB).1,
                a,
                "in no order with the free"
            );
            let freed = free(graph, after, c);
            let (larger, d) = allocate(graph, &[freed], 10 * MIB);
            assert_ne!(d, a, "it has no room there");
            free(graph, larger, d);
            free(graph, beside, b);
            ok!(cuGraphInstantiateWithFlags, &raw mut exec => *mut u64, graph => u64, 0 => u64);
            ok!(cuGraphLaunch, exec => u64, 0 => u64);
            ok!(cuCtxSynchronize);
            // Each address once; the two small ones outlive the launch.
            assert_eq!(used(), 8 + 8 + 2 + 2 + 10);
            ok!(cuDeviceGraphMemTrim, 0 => i32);
            assert_eq!(used(), 4);
            for at in [a, b, d] {
                assert_eq!(cu!(cuMemFree_v2, at => u64), 1, "freed by the graph");
            }
            assert_eq!(
                cu!(cuGraphLaunch, exec => u64, 0 => u64),
                1,
                "memory of the first launch is left"
            );
        },
    );
}

#[test]
fn contexts_are_detached_from_and_set_memory_aside() {
    with_machine(
        "contexts_are_detached_from_and_set_memory_aside",
        "1x2GiB,context=24MiB",
        || {
            let primary = context();
            let (mut own, mut same) = (0_u64, 0_u64);
            ok!(cuCtxCreate_v2, &raw mut own => *mut u64, 0 => u32, 0 => i32);
            ok!(cuCtxAttach, &raw mut same => *mut u64, 0 => u32);
            assert_eq!(same, own);
            ok!(cuCtxDetach, own => u64);
            ok!(cuCtxSynchronize);
            ok!(cuCtxDetach, own => u64);
            ok!(cuCtxSetCurrent, primary => u64);
            assert_eq!(cu!(cuCtxDetach, own => u64), 201);
            let before = used();
            // The heap is 8 MiB from the start, a stack 1 KiB for each of 132 × 2048 threads.
            ok!(cuCtxSetLimit, 2 => u32, 40 * MIB => usize);
            assert_eq!(used(), before + 32);
            ok!(cuCtxSetLimit, 0 => u32, 2048 => usize);
            assert_eq!(used(), before + 32 + 264);
            assert_eq!(cu!(cuCtxSetLimit, 0 => u32, 1 << 20 => usize), 2);
            ok!(cuCtxSetLimit, 2 => u32, MIB => usize);
            assert_eq!(used(), before + 264);
            // A reset takes it all, and releases nothing.
            ok!(cuDevicePrimaryCtxReset_v2, 0 => i32);
            ok!(cuDevicePrimaryCtxRelease_v2, 0 => i32);
            assert_eq!(cu!(cuDevicePrimaryCtxRelease_v2, 0 => i32), 201);
            context();
            assert_eq!(used(), before);
        },
    );
}
