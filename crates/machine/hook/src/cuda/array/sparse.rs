//! Sparse arrays, and arrays that get their memory later: the memory mapped into them.

use std::ffi::c_uint;

use crate::cuda::array::is_mapped_whole;
use crate::cuda::c::*;
use crate::cuda::physical::{self, Region, Tile, TilePart};
use crate::cuda::row;
use crate::cuda::stream::meant;
use crate::cuda::tenant::{Tenant, giving};
use crate::real::Like;

/// `cuMemMapArrayAsync`: memory behind the tiles of a sparse array.
///
/// # Safety
/// As the driver documents.
pub unsafe extern "C" fn map<R: Like<row::cuMemMapArrayAsync>>(
    list: *mut CUarrayMapInfo_v1,
    count: c_uint,
    stream: CUstream,
) -> CUresult {
    giving(
        |_| Some(()),
        // SAFETY: the program's own arguments.
        || unsafe { R::call((list, count, stream)) },
        |tenant, (), done| {
            if !done || count == 0 {
                return;
            }
            // SAFETY: the driver has just read so many.
            let list = unsafe { std::slice::from_raw_parts(list, count as usize) };
            let changes = list.iter().map(|one| {
                let (tile, region) = tile_of(tenant, one);
                let is_mapped = one.memOperationType == CU_MEM_OPERATION_TYPE_MAP;
                (tile, region, is_mapped.then_some(one.memHandle))
            });
            physical::set_tiles(tenant, changes, meant::<R>(stream));
        },
    )
}

/// Returns the array and the part that a description means.
fn tile_of(tenant: &Tenant, one: &CUarrayMapInfo_v1) -> (Tile, Region) {
    let array = one.resource as u64;
    if is_mapped_whole(tenant, array) {
        let part = TilePart::Whole;
        return (Tile { array, part }, Region::ALL);
    }
    let union = (&raw const one.subresource).cast::<u8>();
    if one.subresourceType == CU_ARRAY_SPARSE_SUBRESOURCE_TYPE_MIPTAIL {
        // SAFETY: the union holds this struct for this type, and is aligned for it.
        let tail = unsafe { union.cast::<CUarrayMapInfo_miptail>().read() };
        let part = TilePart::Tail { layer: tail.layer };
        let region = Region::new([tail.offset, 0, 0], [tail.size, 1, 1]);
        return (Tile { array, part }, region);
    }
    // SAFETY: as above.
    let level = unsafe { union.cast::<CUarrayMapInfo_sparseLevel>().read() };
    let part = TilePart::Level {
        level: level.level,
        layer: level.layer,
    };
    let offset = [level.offsetX, level.offsetY, level.offsetZ];
    let extent = [level.extentWidth, level.extentHeight, level.extentDepth];
    let region = Region::new(offset.map(u64::from), extent.map(u64::from));
    (Tile { array, part }, region)
}
