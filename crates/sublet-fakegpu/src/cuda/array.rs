//! Arrays.

use sublet_driver_api::Zeroed;
use sublet_driver_api::cuda::CUarray_format;
use sublet_driver_api::cuda::memory::{
    CUDA_ARRAY_DESCRIPTOR_v2, CUDA_ARRAY_MEMORY_REQUIREMENTS_v1, CUDA_ARRAY3D_DESCRIPTOR_v2,
};

use super::arguments::{In, Out};
use super::{Handle, careful, functions};
use crate::driver::Session;
use crate::driver::array::Shape;
use crate::driver::code::{Answer, Code};
use crate::driver::space::BLOCK;

functions! {
    fn cuArrayCreate_v2(handle: Out<Handle>, given: In<CUDA_ARRAY_DESCRIPTOR_v2>) {
        let given = given.get()?;
        create(handle, 0, Shape {
            width: given.Width as u64,
            height: given.Height as u64,
            depth: 0,
            format: given.Format.0,
            n_channels: given.NumChannels,
            flags: 0,
        })
    }

    fn cuArray3DCreate_v2(handle: Out<Handle>, given: In<CUDA_ARRAY3D_DESCRIPTOR_v2>) {
        create(handle, 0, shape(&given.get()?))
    }

    fn cuMipmappedArrayCreate(handle: Out<Handle>, given: In<CUDA_ARRAY3D_DESCRIPTOR_v2>, n_levels: u32) {
        if n_levels == 0 {
            return Err(Code::INVALID_VALUE);
        }
        create(handle, n_levels, shape(&given.get()?))
    }

    fn cuArrayDestroy(handle: Handle) {
        destroy(handle, false)
    }

    fn cuMipmappedArrayDestroy(handle: Handle) {
        destroy(handle, true)
    }

    fn cuMipmappedArrayGetLevel(level: Out<Handle>, handle: Handle, number: u32) {
        let session = Session::open()?;
        let levels = &session.array(handle)?.levels;
        level.put(*levels.get(number as usize).ok_or(Code::INVALID_VALUE)?)
    }

    fn cuArrayGetDescriptor_v2(described: Out<CUDA_ARRAY_DESCRIPTOR_v2>, handle: Handle) {
        let shape = Session::open()?.array(handle)?.shape;
        described.put(CUDA_ARRAY_DESCRIPTOR_v2 {
            Width: shape.width as usize,
            Height: shape.height as usize,
            Format: CUarray_format(shape.format),
            NumChannels: shape.n_channels,
        })
    }

    fn cuArray3DGetDescriptor_v2(described: Out<CUDA_ARRAY3D_DESCRIPTOR_v2>, handle: Handle) {
        let shape = Session::open()?.array(handle)?.shape;
        described.put(CUDA_ARRAY3D_DESCRIPTOR_v2 {
            Width: shape.width as usize,
            Height: shape.height as usize,
            Depth: shape.depth as usize,
            Format: CUarray_format(shape.format),
            NumChannels: shape.n_channels,
            Flags: shape.flags,
        })
    }

    fn cuArrayGetMemoryRequirements(wanted: Out<CUDA_ARRAY_MEMORY_REQUIREMENTS_v1>, handle: Handle, device: i32) {
        requirements(wanted, handle, device)
    }

    fn cuMipmappedArrayGetMemoryRequirements(wanted: Out<CUDA_ARRAY_MEMORY_REQUIREMENTS_v1>, handle: Handle, device: i32) {
        requirements(wanted, handle, device)
    }
}

fn shape(given: &CUDA_ARRAY3D_DESCRIPTOR_v2) -> Shape {
    Shape {
        width: given.Width as u64,
        height: given.Height as u64,
        depth: given.Depth as u64,
        format: given.Format.0,
        n_channels: given.NumChannels,
        flags: given.Flags,
    }
}

fn create(handle: Out<Handle>, n_levels: u32, shape: Shape) -> Answer {
    handle.check()?;
    let mut session = careful()?;
    handle.put(session.make_array(shape, n_levels)?)
}

fn destroy(handle: Handle, is_mipmapped: bool) -> Answer {
    let mut session = careful()?;
    let array = session.array(handle)?;
    if array.levels.is_empty() == is_mipmapped {
        return Err(Code::INVALID_HANDLE);
    }
    let context = array.context;
    session.finish_context(context);
    session.drop_array(handle)
}

fn requirements(
    wanted: Out<CUDA_ARRAY_MEMORY_REQUIREMENTS_v1>,
    handle: Handle,
    device: i32,
) -> Answer {
    let session = Session::open()?;
    session.card_of(device)?;
    // Of all levels, where there are several.
    let size = session.array(handle)?.size;
    wanted.put(CUDA_ARRAY_MEMORY_REQUIREMENTS_v1 {
        size: size.next_multiple_of(BLOCK) as usize,
        alignment: BLOCK as usize,
        ..Zeroed::ZERO
    })
}
