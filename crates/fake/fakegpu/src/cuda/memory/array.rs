//! Arrays.

use sublet_driver_api::Zeroed;
use sublet_driver_api::cuda::memory::{
    CUDA_ARRAY_DESCRIPTOR_v2, CUDA_ARRAY_MEMORY_REQUIREMENTS_v1, CUDA_ARRAY3D_DESCRIPTOR_v2,
    CUarrayMapInfo_miptail, CUarrayMapInfo_sparseLevel, CUarrayMapInfo_v1,
};
use sublet_driver_api::cuda::{
    CU_ARRAY_SPARSE_SUBRESOURCE_TYPE_MIPTAIL, CU_MEM_OPERATION_TYPE_MAP,
    CU_MEM_OPERATION_TYPE_UNMAP,
};

use crate::cuda::arguments::{In, Out};
use crate::cuda::{Handle, functions, outside_capture};
use crate::driver::Session;
use crate::driver::memory::address_space::BLOCK;
use crate::driver::memory::array::{DEFERRED, Shape, TILE};
use crate::driver::result::{Answer, Code};
use crate::driver::sharing::retained::Tile;
use crate::driver::stream::queue::Id;

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

    stream fn cuMemMapArrayAsync(list: In<CUarrayMapInfo_v1>, count: u32, stream: Handle) {
        let mut session = outside_capture()?;
        let stream = session.stream(stream, PER_THREAD)?;
        let list = list.list(count as usize)?;
        let mut changes = Vec::new();
        for one in &list {
            changes.push(tiles(&session, one)?);
        }
        // A real one is mapped in the stream's turn. Here it is at once, when that has come.
        let now = session.queues.last();
        session.finish(stream, now);
        for (array, tiles, physical) in changes {
            for tile in tiles {
                session.set_tile(array, tile, physical)?;
            }
        }
        Ok(())
    }

    fn cuArrayGetMemoryRequirements(wanted: Out<CUDA_ARRAY_MEMORY_REQUIREMENTS_v1>, handle: Handle, device: i32) {
        requirements(wanted, handle, device)
    }

    fn cuMipmappedArrayGetMemoryRequirements(wanted: Out<CUDA_ARRAY_MEMORY_REQUIREMENTS_v1>, handle: Handle, device: i32) {
        requirements(wanted, handle, device)
    }
}

pub(crate) fn shape(given: &CUDA_ARRAY3D_DESCRIPTOR_v2) -> Shape {
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
    let mut session = outside_capture()?;
    handle.put(session.make_array(shape, n_levels)?)
}

fn destroy(handle: Handle, is_mipmapped: bool) -> Answer {
    let mut session = outside_capture()?;
    let array = session.array(handle)?;
    if array.is_mipmapped != is_mipmapped {
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

/// The array, its tiles and the memory for them, from a description.
type Change = (Id, Vec<Tile>, Option<Id>);

fn tiles(session: &Session, one: &CUarrayMapInfo_v1) -> Answer<Change> {
    let id = one.resource as u64;
    let array = session.array(id)?;
    let physical = match one.memOperationType {
        CU_MEM_OPERATION_TYPE_MAP => Some(one.memHandle),
        CU_MEM_OPERATION_TYPE_UNMAP if one.memHandle == 0 => None,
        _ => return Err(Code::INVALID_VALUE),
    };
    let room = match physical {
        Some(physical) => session.memory.physicals.get(physical)?.size,
        None => u64::MAX,
    };
    if !array.shape.has_no_memory() || one.deviceBitMask.count_ones() != 1 {
        return Err(Code::INVALID_VALUE);
    }
    let union = In::of(&one.subresource);
    let (found, needed) = if array.shape.flags & DEFERRED != 0 {
        (vec![[0; 5]], array.size)
    } else if one.subresourceType == CU_ARRAY_SPARSE_SUBRESOURCE_TYPE_MIPTAIL {
        let tail = union.cast::<CUarrayMapInfo_miptail>().get()?;
        let first = tail.offset / TILE;
        let count = tail.size / TILE;
        let tile = |number| [u64::MAX, tail.layer.into(), first + number, 0, 0];
        ((0..count).map(tile).collect(), tail.size)
    } else {
        let level = union.cast::<CUarrayMapInfo_sparseLevel>().get()?;
        let found = tiles_of(array.shape.tile()?, &level)?;
        let needed = found.len() as u64 * TILE;
        (found, needed)
    };
    let end = one.offset.checked_add(needed).ok_or(Code::INVALID_VALUE)?;
    if found.is_empty() || physical.is_some() && end > room {
        return Err(Code::INVALID_VALUE);
    }
    Ok((id, found, physical))
}

/// The tiles of a box, which begins and ends where tiles do.
fn tiles_of(tile: [u32; 3], level: &CUarrayMapInfo_sparseLevel) -> Answer<Vec<Tile>> {
    let offset = [level.offsetX, level.offsetY, level.offsetZ];
    let extent = [level.extentWidth, level.extentHeight, level.extentDepth];
    let mut ranges = Vec::new();
    for ((offset, extent), tile) in offset.into_iter().zip(extent).zip(tile) {
        if !offset.is_multiple_of(tile) {
            return Err(Code::INVALID_VALUE);
        }
        let first = u64::from(offset / tile);
        ranges.push(first..first + u64::from(extent.div_ceil(tile)));
    }
    let mut found = Vec::new();
    for x in ranges[0].clone() {
        for y in ranges[1].clone() {
            for z in ranges[2].clone() {
                found.push([level.level.into(), level.layer.into(), x, y, z]);
            }
        }
    }
    Ok(found)
}
