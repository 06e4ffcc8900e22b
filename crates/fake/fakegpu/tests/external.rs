//! Memory of other drivers, which comes in as a descriptor.
#![expect(unsafe_code, reason = "calls the driver as C does")]

mod own_process;

use std::fs::File;
use std::os::fd::{AsRawFd as _, IntoRawFd as _};
use std::os::unix::fs::FileExt as _;

use own_process::{context, memory, with_machine};
use sublet_driver_api::Zeroed;
use sublet_driver_api::cuda::memory::{
    CUDA_ARRAY3D_DESCRIPTOR_v2, CUDA_EXTERNAL_MEMORY_BUFFER_DESC_v1,
    CUDA_EXTERNAL_MEMORY_HANDLE_DESC_v1, CUDA_EXTERNAL_MEMORY_MIPMAPPED_ARRAY_DESC_v1,
};
use sublet_driver_api::cuda::{
    CU_AD_FORMAT_UNSIGNED_INT8, CU_EXTERNAL_MEMORY_HANDLE_TYPE_DMABUF_FD,
    CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD, CUexternalMemoryHandleType,
};

const MIB: usize = 1 << 20;
const SPEC: &str = "1x64MiB,context=0MiB";

/// MiB of the card that are taken.
fn used() -> usize {
    let (free, total) = memory();
    (total - free) / MIB
}

/// Memory as another driver would have made it.
fn foreign(size: usize) -> File {
    let file = tempfile::tempfile().unwrap();
    file.set_len(size as u64).unwrap();
    file
}

fn described(
    kind: CUexternalMemoryHandleType,
    descriptor: i32,
    size: usize,
) -> CUDA_EXTERNAL_MEMORY_HANDLE_DESC_v1 {
    CUDA_EXTERNAL_MEMORY_HANDLE_DESC_v1 {
        r#type: kind,
        handle: [u64::from(descriptor.cast_unsigned()), 0],
        size: size as u64,
        ..Zeroed::ZERO
    }
}

fn import_as(given: &CUDA_EXTERNAL_MEMORY_HANDLE_DESC_v1) -> (u32, u64) {
    let mut handle = 0_u64;
    let code = cu!(cuImportExternalMemory, &raw mut handle => *mut u64, std::ptr::from_ref(given) => *const CUDA_EXTERNAL_MEMORY_HANDLE_DESC_v1);
    (code, handle)
}

/// Passes a copy of the descriptor on.
fn import(file: &File, size: usize) -> u64 {
    let descriptor = file.try_clone().unwrap().into_raw_fd();
    let given = described(CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD, descriptor, size);
    let (code, handle) = import_as(&given);
    assert_eq!(code, 0);
    // SAFETY: asks whether a number is a descriptor.
    let known = unsafe { libc::fcntl(descriptor, libc::F_GETFD) };
    assert_eq!(known, -1, "it was given away");
    handle
}

fn buffer(memory: u64, offset: usize, size: usize) -> (u32, u64) {
    let given = CUDA_EXTERNAL_MEMORY_BUFFER_DESC_v1 {
        offset: offset as u64,
        size: size as u64,
        ..Zeroed::ZERO
    };
    let mut address = 0_u64;
    let code = cu!(cuExternalMemoryGetMappedBuffer, &raw mut address => *mut u64, memory => u64, &raw const given => *const CUDA_EXTERNAL_MEMORY_BUFFER_DESC_v1);
    (code, address)
}

fn array(memory: u64, offset: usize, width: usize, levels: u32) -> (u32, u64) {
    let given = CUDA_EXTERNAL_MEMORY_MIPMAPPED_ARRAY_DESC_v1 {
        offset: offset as u64,
        arrayDesc: CUDA_ARRAY3D_DESCRIPTOR_v2 {
            Width: width,
            Height: 1,
            Format: CU_AD_FORMAT_UNSIGNED_INT8,
            NumChannels: 1,
            ..Zeroed::ZERO
        },
        numLevels: levels,
        ..Zeroed::ZERO
    };
    let mut array = 0_u64;
    let code = cu!(cuExternalMemoryGetMappedMipmappedArray, &raw mut array => *mut u64, memory => u64, &raw const given => *const CUDA_EXTERNAL_MEMORY_MIPMAPPED_ARRAY_DESC_v1);
    (code, array)
}

#[test]
fn memory_of_another_driver_is_there_until_nothing_of_it_is_left() {
    const NAME: &str = "memory_of_another_driver_is_there_until_nothing_of_it_is_left";
    with_machine(NAME, SPEC, || {
        context();
        let file = foreign(5 * MIB + 1);
        let handle = import(&file, 5 * MIB + 1);
        assert_eq!(used(), 6, "whole blocks");
        let again = import(&file, 3 * MIB);
        assert_eq!(used(), 6, "it is the same memory");
        // Its bytes are the other driver's.
        let (code, address) = buffer(handle, MIB + 7, 4 * MIB - 6);
        assert_eq!(code, 0);
        ok!(cuMemsetD8_v2, address => u64, 9 => u8, 4 * MIB - 6 => usize);
        let mut bytes = [1_u8; 3];
        file.read_exact_at(&mut bytes, (MIB + 6) as u64).unwrap();
        assert_eq!(bytes, [0, 9, 9]);
        let (mut start, mut size) = (0_u64, 0_usize);
        ok!(cuMemGetAddressRange_v2, &raw mut start => *mut u64, &raw mut size => *mut usize, address + 5 => u64);
        assert_eq!((start, size), (address, 4 * MIB - 6));
        let (code, levels) = array(again, 2 * MIB, MIB / 2, 20);
        assert_eq!(code, 0);
        ok!(cuDestroyExternalMemory, handle => u64);
        ok!(cuDestroyExternalMemory, again => u64);
        assert_eq!(used(), 6, "what was got from it is there");
        ok!(cuMemFree_v2, address => u64);
        assert_eq!(used(), 6);
        ok!(cuMipmappedArrayDestroy, levels => u64);
        assert_eq!(used(), 0);
        // Everything of a context goes with it.
        let handle = import(&file, 4 * MIB);
        buffer(handle, 0, 1);
        array(handle, 0, 1, 1);
        ok!(cuDevicePrimaryCtxReset_v2, 0 => i32);
        context();
        assert_eq!(used(), 0);
    });
}

#[test]
fn what_is_no_memory_of_another_driver() {
    with_machine("what_is_no_memory_of_another_driver", SPEC, || {
        context();
        let file = foreign(4 * MIB);
        let fd = file.as_raw_fd();
        let opaque = CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD;
        let code = |kind, fd, size| import_as(&described(kind, fd, size)).0;
        assert_eq!(code(opaque, fd, 4 * MIB + 1), 1, "longer than it is");
        assert_eq!(code(opaque, fd, 0), 1);
        assert_eq!(code(opaque, -1, MIB), 1, "no descriptor");
        assert_eq!(code(CU_EXTERNAL_MEMORY_HANDLE_TYPE_DMABUF_FD, fd, MIB), 801);
        let large = foreign(65 * MIB);
        assert_eq!(
            code(opaque, large.as_raw_fd(), 65 * MIB),
            2,
            "the card has no room"
        );
        assert_eq!(used(), 0, "nothing was taken");
        let handle = import(&file, 4 * MIB);
        assert_eq!(buffer(handle, 3 * MIB, MIB + 1).0, 1, "beyond its end");
        assert_eq!(buffer(handle, usize::MAX, 2).0, 1);
        assert_eq!(buffer(handle, 0, 0).0, 1);
        assert_eq!(buffer(77, 0, 1).0, 400, "no such import");
        assert_eq!(array(handle, 4 * MIB, 1, 1).0, 1);
        assert_eq!(array(handle, 0, 1, 0).0, 1, "no levels");
        ok!(cuDestroyExternalMemory, handle => u64);
        assert_eq!(cu!(cuDestroyExternalMemory, handle => u64), 400);
        assert_eq!((buffer(handle, 0, 1).0, used()), (400, 0));
    });
}
