//! Arrays: memory whose size only the driver knows.
//!
//! The size of a texture array depends on the card's own layout, and the driver reports it only for
//! arrays without memory (`CUDA_ARRAY3D_DEFERRED_MAPPING`). So before an array is made, a similar
//! one without memory is made, queried, and destroyed. If the driver cannot report the size (old
//! drivers, some formats), the size is estimated from the description, on the high side. Arrays
//! that the program itself makes without memory cost nothing. Memory that is mapped into them is
//! charged by the process that created it, as long as it is mapped ([`super::physical`]).

mod sparse;

use std::ffi::c_uint;

pub use self::sparse::map;

use super::c::*;
use super::tenant::{
    ContextCharge, MemoryCharge, Need, Share, Tenant, current_device, giving, taking,
};
use super::{physical, real, row};
use crate::real::{Like, Row};

/// Payer of an array.
#[derive(Debug, Clone)]
pub enum Array {
    /// The process that made the array; it pays nothing if the array has no memory of its own.
    Own {
        /// Charge for its memory.
        held: ContextCharge,
        /// True if it gets its memory in one piece, whatever the mapping says.
        is_mapped_whole: bool,
    },
    /// The process that imported the memory that it shows.
    External(Share),
}

impl Array {
    /// Remembers it.
    pub(super) fn keep(self, tenant: &Tenant, handle: u64) {
        if let Some(before) = tenant.accounts.arrays.insert(handle, self) {
            before.ended(tenant);
        }
    }

    /// It is gone.
    pub(super) fn ended(self, tenant: &Tenant) {
        match self {
            Array::Own { held, .. } => tenant.give(held.charge),
            Array::External(share) => tenant.give_share(share),
        }
    }

    /// Returns its charge, with the context that it belongs to.
    pub(super) fn held(&self) -> &ContextCharge {
        match self {
            Array::Own { held, .. } => held,
            Array::External(share) => share,
        }
    }
}

/// True if an array gets its memory in one piece.
fn is_mapped_whole(tenant: &Tenant, handle: u64) -> bool {
    let array = tenant.accounts.arrays.get(handle);
    matches!(
        array,
        Some(Array::Own {
            is_mapped_whole: true,
            ..
        })
    )
}

/// Bytes that an array as described would take on a device.
fn size_of(
    description: &CUDA_ARRAY3D_DESCRIPTOR_v2,
    levels: Option<c_uint>,
    device: CUdevice,
) -> u64 {
    let empty = CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING;
    if description.Flags & empty != 0 {
        return 0;
    }
    let mut like = *description;
    like.Flags |= CUDA_ARRAY3D_DEFERRED_MAPPING;
    let asked = match levels {
        None => ask_array(&like, device),
        Some(levels) => ask_mipmap(&like, levels, device),
    };
    asked.unwrap_or_else(|| estimate(description, levels))
}

fn ask_array(like: &CUDA_ARRAY3D_DESCRIPTOR_v2, device: CUdevice) -> Option<u64> {
    let (mut array, mut needs) = Default::default();
    // SAFETY: the driver reads the description and writes what it is given; the array is ours.
    unsafe {
        if real::cuArray3DCreate_v2(&raw mut array, like) != CUDA_SUCCESS {
            return None;
        }
        let known = real::cuArrayGetMemoryRequirements(&raw mut needs, array, device);
        let _ = real::cuArrayDestroy(array);
        (known == CUDA_SUCCESS).then_some(needs.size as u64)
    }
}

fn ask_mipmap(like: &CUDA_ARRAY3D_DESCRIPTOR_v2, levels: c_uint, device: CUdevice) -> Option<u64> {
    let (mut array, mut needs) = Default::default();
    // SAFETY: as above.
    unsafe {
        if real::cuMipmappedArrayCreate(&raw mut array, like, levels) != CUDA_SUCCESS {
            return None;
        }
        let known = real::cuMipmappedArrayGetMemoryRequirements(&raw mut needs, array, device);
        let _ = real::cuMipmappedArrayDestroy(array);
        (known == CUDA_SUCCESS).then_some(needs.size as u64)
    }
}

/// The card stores two-dimensional arrays in blocks of 64 bytes by 8 rows, and memory in
/// pieces of 512 bytes; whole mipmaps take at most a third more, and a block for each level.
fn estimate(description: &CUDA_ARRAY3D_DESCRIPTOR_v2, levels: Option<c_uint>) -> u64 {
    let row = (description.Width as u64).saturating_mul(u64::from(element(description)));
    let row = row.div_ceil(64).saturating_mul(64);
    let rows = match description.Height as u64 {
        0 => 1,
        height => height.div_ceil(8).saturating_mul(8),
    };
    let bytes = row
        .saturating_mul(rows)
        .saturating_mul(description.Depth.max(1) as u64);
    match levels {
        None | Some(0 | 1) => bytes,
        Some(levels) => bytes
            .saturating_add(bytes / 3)
            .saturating_add(512 * u64::from(levels)),
    }
}

/// Bytes of one element: of one channel, as often as there are channels. Formats that pack
/// several into one (YUV, block compression) take at most sixteen.
fn element(description: &CUDA_ARRAY3D_DESCRIPTOR_v2) -> c_uint {
    let channel = match description.Format {
        CU_AD_FORMAT_UNSIGNED_INT8 | CU_AD_FORMAT_SIGNED_INT8 => 1,
        CU_AD_FORMAT_UNSIGNED_INT16 | CU_AD_FORMAT_SIGNED_INT16 | CU_AD_FORMAT_HALF => 2,
        CU_AD_FORMAT_UNSIGNED_INT32 | CU_AD_FORMAT_SIGNED_INT32 | CU_AD_FORMAT_FLOAT => 4,
        _ => return 16,
    };
    description.NumChannels.clamp(1, 4) * channel
}

fn ask(
    tenant: &Tenant,
    description: Option<CUDA_ARRAY3D_DESCRIPTOR_v2>,
    levels: Option<c_uint>,
) -> Option<Need> {
    let device = current_device()?;
    let place = tenant.place(device);
    let bytes = size_of(&description?, levels, device);
    Some(Need { place, bytes })
}

fn keep(
    tenant: &Tenant,
    handle: usize,
    charge: MemoryCharge,
    description: Option<CUDA_ARRAY3D_DESCRIPTOR_v2>,
) {
    let held = ContextCharge::here(charge);
    let flags = description.map_or(0, |description| description.Flags);
    let is_mapped_whole = flags & CUDA_ARRAY3D_DEFERRED_MAPPING != 0;
    let array = Array::Own {
        held,
        is_mapped_whole,
    };
    array.keep(tenant, handle as u64);
}

/// A description of two dimensions, as one of three.
fn flat(
    width: usize,
    height: usize,
    format: CUarray_format,
    channels: c_uint,
) -> CUDA_ARRAY3D_DESCRIPTOR_v2 {
    CUDA_ARRAY3D_DESCRIPTOR_v2 {
        Width: width,
        Height: height,
        Depth: 0,
        Format: format,
        NumChannels: channels,
        Flags: 0,
    }
}

/// Members that both kinds of description have.
pub trait Description: Copy {
    /// As the newest kind has it.
    fn whole(self) -> CUDA_ARRAY3D_DESCRIPTOR_v2;
}

impl Description for CUDA_ARRAY3D_DESCRIPTOR_v2 {
    fn whole(self) -> CUDA_ARRAY3D_DESCRIPTOR_v2 {
        self
    }
}

impl Description for CUDA_ARRAY_DESCRIPTOR_v2 {
    fn whole(self) -> CUDA_ARRAY3D_DESCRIPTOR_v2 {
        flat(self.Width, self.Height, self.Format, self.NumChannels)
    }
}

impl Description for CUDA_ARRAY_DESCRIPTOR_v1 {
    fn whole(self) -> CUDA_ARRAY3D_DESCRIPTOR_v2 {
        let (width, height) = (self.Width as usize, self.Height as usize);
        flat(width, height, self.Format, self.NumChannels)
    }
}

impl Description for CUDA_ARRAY3D_DESCRIPTOR_v1 {
    fn whole(self) -> CUDA_ARRAY3D_DESCRIPTOR_v2 {
        CUDA_ARRAY3D_DESCRIPTOR_v2 {
            Width: self.Width as usize,
            Height: self.Height as usize,
            Depth: self.Depth as usize,
            Format: self.Format,
            NumChannels: self.NumChannels,
            Flags: self.Flags,
        }
    }
}

/// A handle of an array, of either kind.
pub trait ArrayHandle: Copy {
    /// Its number, by which the accounts know it.
    fn key(self) -> u64;
}

impl ArrayHandle for CUarray {
    fn key(self) -> u64 {
        self.0 as u64
    }
}

impl ArrayHandle for CUmipmappedArray {
    fn key(self) -> u64 {
        self.0 as u64
    }
}

/// `cuArrayCreate` and `cuArray3DCreate`, of each version.
///
/// # Safety
/// As the driver documents.
pub unsafe extern "C" fn create<D, R>(array: *mut CUarray, description: *const D) -> CUresult
where
    D: Description,
    R: Row<Arguments = (*mut CUarray, *const D), Result = CUresult>,
{
    // SAFETY: null or the program's struct.
    let whole = unsafe { description.as_ref() }.map(|given| given.whole());
    taking(
        |tenant| ask(tenant, whole, None),
        // SAFETY: the program's own arguments.
        || unsafe { R::call((array, description)) },
        // SAFETY: the driver wrote it.
        |tenant, charge| keep(tenant, unsafe { *array }.0, charge, whole),
    )
}

/// `cuMipmappedArrayCreate`.
///
/// # Safety
/// As the driver documents.
pub unsafe extern "C" fn create_mipmapped<R: Like<row::cuMipmappedArrayCreate>>(
    array: *mut CUmipmappedArray,
    description: *const CUDA_ARRAY3D_DESCRIPTOR_v2,
    levels: c_uint,
) -> CUresult {
    // SAFETY: null or the program's struct.
    let whole = unsafe { description.as_ref() }.copied();
    taking(
        |tenant| ask(tenant, whole, Some(levels)),
        // SAFETY: the program's own arguments.
        || unsafe { R::call((array, description, levels)) },
        // SAFETY: the driver wrote it.
        |tenant, charge| keep(tenant, unsafe { *array }.0, charge, whole),
    )
}

/// `cuArrayDestroy` and `cuMipmappedArrayDestroy`.
///
/// # Safety
/// As the driver documents.
pub unsafe extern "C" fn destroy<H, R>(array: H) -> CUresult
where
    H: ArrayHandle,
    R: Row<Arguments = (H,), Result = CUresult>,
{
    let key = array.key();
    giving(
        |tenant| {
            let known = tenant.accounts.arrays.remove(key)?;
            Some((known, physical::take_array(tenant, key)))
        },
        // SAFETY: the program's own argument.
        || unsafe { R::call((array,)) },
        |tenant, (known, mapped), destroyed| {
            if destroyed {
                known.ended(tenant);
                physical::drop_array(tenant, mapped);
            } else {
                known.keep(tenant, key);
                physical::put_array(tenant, mapped);
            }
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn estimates_are_never_below_the_elements() {
        for (width, height, depth, format, channels, levels, bytes) in [
            (1, 0, 0, 0x01, 1, None, 64),
            (1024, 1024, 0, 0x20, 4, None, 16 << 20),
            (1000, 10, 2, 0x02, 2, None, 4032 * 16 * 2),
            (
                1024,
                1024,
                0,
                0x01,
                4,
                Some(11),
                (4 << 20) + (4 << 20) / 3 + 512 * 11,
            ),
            (64, 64, 0, 0x91, 1, None, 64 * 64 * 16),
            (usize::MAX, usize::MAX, usize::MAX, 0x20, 4, None, u64::MAX),
        ] {
            let format = CUarray_format(format);
            let mut description = flat(width, height, format, channels);
            description.Depth = depth;
            assert_eq!(estimate(&description, levels), bytes, "{description:?}");
        }
    }
}
