//! Shapes for so many bytes, for calls that count in rows and points.
//!
//! Pure arithmetic. A shape may be a little larger than asked for. It is smaller only if it is the
//! largest that cards have.

use sublet_driver_api::cuda::CU_AD_FORMAT_UNSIGNED_INT32;
use sublet_driver_api::cuda::memory::CUDA_ARRAY3D_DESCRIPTOR_v2;

/// Bytes of an array element: four channels of 32 bits.
pub(crate) const ELEMENT: usize = 16;
/// The longest side of a picture with levels that every card since sm_70 accepts.
const SIDE_MAX: usize = 1 << 15;

/// An array of at least so many bytes, or the largest array if that is smaller.
pub(crate) fn descriptor(size: usize) -> CUDA_ARRAY3D_DESCRIPTOR_v2 {
    let (width, height) = picture(size);
    CUDA_ARRAY3D_DESCRIPTOR_v2 {
        Width: width,
        Height: height,
        Format: CU_AD_FORMAT_UNSIGNED_INT32,
        NumChannels: 4,
        ..CUDA_ARRAY3D_DESCRIPTOR_v2::default()
    }
}

/// A nearly square picture of at least `size` bytes, or the largest that there is: 16 GiB.
fn picture(size: usize) -> (usize, usize) {
    let elements = size.div_ceil(ELEMENT).max(1);
    let width = elements.isqrt().min(SIDE_MAX).next_power_of_two();
    (width, elements.div_ceil(width).min(SIDE_MAX))
}

/// The bytes of each level of a picture, down to a single point.
pub(crate) fn levels(width: usize, height: usize) -> Vec<usize> {
    let count = width.max(height).max(1).ilog2();
    (0..=count)
        .map(|level| (width >> level).max(1) * (height >> level).max(1) * ELEMENT)
        .collect()
}

/// Rows of an odd length, so that a driver must pad them.
pub(crate) fn rows(size: usize) -> (usize, usize) {
    let width = size.clamp(1, 4000);
    (width, size.div_ceil(width).max(1))
}

#[cfg(test)]
mod tests {
    use super::{ELEMENT, SIDE_MAX, levels, picture, rows};

    #[test]
    fn pictures_hold_what_was_asked_and_little_more() {
        for size in [0, 1, 16, 17, 4096, 1 << 20, (1 << 20) + 1, 1 << 34] {
            let (width, height) = picture(size);
            let bytes = width * height * ELEMENT;
            assert!(bytes >= size, "{size}: {width} x {height}");
            assert!(
                bytes - size <= (width + 1) * ELEMENT,
                "{size}: {width} x {height}"
            );
            assert!(width <= SIDE_MAX && height <= SIDE_MAX);
        }
        assert_eq!(picture(usize::MAX), (SIDE_MAX, SIDE_MAX));
    }

    #[test]
    fn levels_halve_down_to_one_point() {
        assert_eq!(levels(4, 2), [8 * 16, 2 * 16, 16]);
        assert_eq!(levels(1, 1), [16]);
        assert_eq!(levels(SIDE_MAX, SIDE_MAX).len(), 16);
    }

    #[test]
    fn rows_cover_the_size() {
        assert_eq!(rows(0), (1, 1));
        assert_eq!(rows(100), (100, 1));
        assert_eq!(rows(4001), (4000, 2));
    }
}
