//! Memory filled with a pattern.

use crate::cuda::memory::copy::perform;
use crate::cuda::memory::copy_shape::may_use;
use crate::cuda::{Handle, functions};
use crate::driver::result::{Answer, Code};
use crate::driver::stream::work::{Move, Place, Source};
use crate::driver::{Driver, Session};

functions! {
    stream fn cuMemsetD8_v2(to: u64, value: u8, count: usize) {
        set(to, [0, 1, value.into(), count as u64, 1], 0, PER_THREAD, false)
    }
    stream fn cuMemsetD16_v2(to: u64, value: u16, count: usize) {
        set(to, [0, 2, value.into(), count as u64, 1], 0, PER_THREAD, false)
    }
    stream fn cuMemsetD32_v2(to: u64, value: u32, count: usize) {
        set(to, [0, 4, value.into(), count as u64, 1], 0, PER_THREAD, false)
    }
    stream fn cuMemsetD8Async(to: u64, value: u8, count: usize, stream: Handle) {
        set(to, [0, 1, value.into(), count as u64, 1], stream, PER_THREAD, true)
    }
    stream fn cuMemsetD16Async(to: u64, value: u16, count: usize, stream: Handle) {
        set(to, [0, 2, value.into(), count as u64, 1], stream, PER_THREAD, true)
    }
    stream fn cuMemsetD32Async(to: u64, value: u32, count: usize, stream: Handle) {
        set(to, [0, 4, value.into(), count as u64, 1], stream, PER_THREAD, true)
    }
    stream fn cuMemsetD2D8_v2(to: u64, pitch: usize, value: u8, width: usize, height: usize) {
        set(to, [pitch as u64, 1, value.into(), width as u64, height as u64], 0, PER_THREAD, false)
    }
    stream fn cuMemsetD2D16_v2(to: u64, pitch: usize, value: u16, width: usize, height: usize) {
        set(to, [pitch as u64, 2, value.into(), width as u64, height as u64], 0, PER_THREAD, false)
    }
    stream fn cuMemsetD2D32_v2(to: u64, pitch: usize, value: u32, width: usize, height: usize) {
        set(to, [pitch as u64, 4, value.into(), width as u64, height as u64], 0, PER_THREAD, false)
    }
    stream fn cuMemsetD2D8Async(to: u64, pitch: usize, value: u8, width: usize, height: usize, stream: Handle) {
        set(to, [pitch as u64, 1, value.into(), width as u64, height as u64], stream, PER_THREAD, true)
    }
    stream fn cuMemsetD2D16Async(to: u64, pitch: usize, value: u16, width: usize, height: usize, stream: Handle) {
        set(to, [pitch as u64, 2, value.into(), width as u64, height as u64], stream, PER_THREAD, true)
    }
    stream fn cuMemsetD2D32Async(to: u64, pitch: usize, value: u32, width: usize, height: usize, stream: Handle) {
        set(to, [pitch as u64, 4, value.into(), width as u64, height as u64], stream, PER_THREAD, true)
    }
}

/// `shape` is pitch, width of an element, its value, elements of a row, rows.
fn set(to: u64, shape: [u64; 5], stream: Handle, per_thread: bool, is_async: bool) -> Answer {
    let mut session = Session::open()?;
    let stream = session.stream(stream, per_thread)?;
    let in_graph = session.captures.of(stream).is_some();
    match pattern(&session, to, shape, in_graph)? {
        Some(bytes) => perform(&mut session, stream, bytes, is_async),
        None => Ok(()),
    }
}

/// Returns the work of filling a box; nothing if the box has no bytes.
pub(crate) fn pattern(
    driver: &Driver,
    to: u64,
    shape: [u64; 5],
    in_graph: bool,
) -> Answer<Option<Move>> {
    let [pitch, element, value, count, height] = shape;
    if !matches!(element, 1 | 2 | 4) || !to.is_multiple_of(element) {
        return Err(Code::INVALID_VALUE);
    }
    if count == 0 || height == 0 {
        return Ok(None);
    }
    let width = count.checked_mul(element).ok_or(Code::INVALID_VALUE)?;
    let pitch = if height == 1 { width } else { pitch };
    if pitch < width || !pitch.is_multiple_of(element) {
        return Err(Code::INVALID_VALUE);
    }
    let place = Place {
        address: to,
        pitch,
        plane: 0,
    };
    let extent = place.extent(width, height, 1).ok_or(Code::INVALID_VALUE)?;
    if !may_use(driver, to, extent, in_graph) {
        return Err(Code::INVALID_VALUE);
    }
    Ok(Some(Move {
        to: place,
        from: Source::Pattern {
            width: element,
            value: value as u32,
        },
        width,
        height,
        depth: 1,
    }))
}
