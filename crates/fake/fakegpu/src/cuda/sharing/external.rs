//! Memory of other drivers.

use sublet_driver_api::cuda::memory::{
    CUDA_EXTERNAL_MEMORY_BUFFER_DESC_v1, CUDA_EXTERNAL_MEMORY_HANDLE_DESC_v1,
    CUDA_EXTERNAL_MEMORY_MIPMAPPED_ARRAY_DESC_v1,
};
use sublet_driver_api::cuda::{
    CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD, CUDA_EXTERNAL_MEMORY_DEDICATED,
};

use crate::cuda::arguments::{In, Out};
use crate::cuda::memory::array::shape;
use crate::cuda::{Handle, functions, outside_capture};
use crate::driver::result::Code;

functions! {
    fn cuImportExternalMemory(memory: Out<Handle>, given: In<CUDA_EXTERNAL_MEMORY_HANDLE_DESC_v1>) {
        memory.check()?;
        let given = given.get()?;
        if given.r#type != CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD {
            return Err(Code::NOT_SUPPORTED);
        }
        if given.flags & !CUDA_EXTERNAL_MEMORY_DEDICATED != 0 {
            return Err(Code::INVALID_VALUE);
        }
        // The descriptor is in the first four bytes of the union.
        let descriptor = given.handle[0] as u32;
        let mut session = outside_capture()?;
        memory.put(session.import_external(descriptor.cast_signed(), given.size)?)
    }

    fn cuDestroyExternalMemory(memory: Handle) {
        outside_capture()?.drop_external(memory)
    }

    fn cuExternalMemoryGetMappedBuffer(address: Out<u64>, memory: Handle, given: In<CUDA_EXTERNAL_MEMORY_BUFFER_DESC_v1>) {
        address.check()?;
        let given = given.get()?;
        if given.flags != 0 {
            return Err(Code::INVALID_VALUE);
        }
        address.put(outside_capture()?.map_external_buffer(memory, given.offset, given.size)?)
    }

    fn cuExternalMemoryGetMappedMipmappedArray(array: Out<Handle>, memory: Handle, given: In<CUDA_EXTERNAL_MEMORY_MIPMAPPED_ARRAY_DESC_v1>) {
        array.check()?;
        let given = given.get()?;
        if given.numLevels == 0 {
            return Err(Code::INVALID_VALUE);
        }
        let shape = shape(&given.arrayDesc);
        array.put(outside_capture()?.map_external_array(memory, given.offset, shape, given.numLevels)?)
    }
}
