//! Memory that another driver made, and that is imported. Here a file of the system takes its
//! place, so these ways only work with the fake driver: a real driver knows which files are its
//! own.
//!
//! The import is destroyed as soon as the memory is mapped. So an interposer that counts only
//! imports misses all of this memory.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd};

use sublet_driver_api::cuda::memory::{
    CUDA_EXTERNAL_MEMORY_BUFFER_DESC_v1, CUDA_EXTERNAL_MEMORY_HANDLE_DESC_v1,
    CUDA_EXTERNAL_MEMORY_MIPMAPPED_ARRAY_DESC_v1,
};
use sublet_driver_api::cuda::{
    CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD, CUdeviceptr, CUexternalMemory, CUmipmappedArray,
};

use crate::array_shape::{ELEMENT, descriptor};
use crate::driver::Context;
use crate::report::Failure;

/// A buffer of such memory, for `cuMemFree`.
pub(crate) fn buffer(context: &Context<'_>, size: usize) -> Result<CUdeviceptr, Failure> {
    let wanted = CUDA_EXTERNAL_MEMORY_BUFFER_DESC_v1 {
        size: size as u64,
        ..CUDA_EXTERNAL_MEMORY_BUFFER_DESC_v1::default()
    };
    let mut address = 0;
    within(context, size, |memory| {
        let raw = context.raw();
        // SAFETY: the import is live, the pointers are to live values.
        unsafe { raw.cuExternalMemoryGetMappedBuffer(&raw mut address, memory, &raw const wanted) }
    })?;
    Ok(address)
}

/// A picture in such memory, and its size in bytes.
pub(crate) fn picture(
    context: &Context<'_>,
    size: usize,
) -> Result<(CUmipmappedArray, usize), Failure> {
    let wanted = CUDA_EXTERNAL_MEMORY_MIPMAPPED_ARRAY_DESC_v1 {
        arrayDesc: descriptor(size),
        numLevels: 1,
        ..CUDA_EXTERNAL_MEMORY_MIPMAPPED_ARRAY_DESC_v1::default()
    };
    let bytes = wanted.arrayDesc.Width * wanted.arrayDesc.Height * ELEMENT;
    let mut array = CUmipmappedArray::default();
    within(context, bytes, |memory| {
        let (at, given) = (&raw mut array, &raw const wanted);
        // SAFETY: the import is live, the pointers are to live values.
        unsafe {
            let raw = context.raw();
            raw.cuExternalMemoryGetMappedMipmappedArray(at, memory, given)
        }
    })?;
    Ok((array, bytes))
}

/// Imports new memory, calls `get` with it, and destroys the import.
fn within(
    context: &Context<'_>,
    size: usize,
    get: impl FnOnce(CUexternalMemory) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let raw = context.raw();
    let file = foreign(size).map_err(|error| Failure::Wrong(format!("a file: {error}")))?;
    let given = CUDA_EXTERNAL_MEMORY_HANDLE_DESC_v1 {
        r#type: CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD,
        handle: [u64::from(file.as_raw_fd().cast_unsigned()), 0],
        size: size as u64,
        ..CUDA_EXTERNAL_MEMORY_HANDLE_DESC_v1::default()
    };
    let mut memory = CUexternalMemory::default();
    // SAFETY: the pointers are to live values.
    unsafe { raw.cuImportExternalMemory(&raw mut memory, &raw const given)? };
    // The driver owns the descriptor now.
    let _ = file.into_raw_fd();
    let got = get(memory);
    // SAFETY: the import is ours.
    unsafe { raw.cuDestroyExternalMemory(memory)? };
    got
}

fn foreign(size: usize) -> io::Result<File> {
    // SAFETY: the name is a C string.
    let descriptor = unsafe { libc::memfd_create(c"foreign".as_ptr(), libc::MFD_CLOEXEC) };
    if descriptor < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a new descriptor that nobody else has.
    let file = unsafe { File::from_raw_fd(descriptor) };
    file.set_len(size as u64)?;
    Ok(file)
}
