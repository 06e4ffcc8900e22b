//! Memory filled with a pattern, and advice about managed memory.

use sublet_driver_api::cuda::memory::CUmemLocation_v1;

use super::arguments::In;
use super::copy::{may_use, perform};
use super::{Handle, functions};
use crate::driver::code::{Answer, Code};
use crate::driver::ranges::Kind;
use crate::driver::work::{Move, Place, Source};
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

    fn cuMemAdvise(address: u64, count: usize, advice: u32, _device: i32) {
        check_managed(address, count)?;
        if (1..=6).contains(&advice) { Ok(()) } else { Err(Code::INVALID_VALUE) }
    }

    fn cuMemAdvise_v2(address: u64, count: usize, advice: u32, _place: CUmemLocation_v1) {
        check_managed(address, count)?;
        if (1..=6).contains(&advice) { Ok(()) } else { Err(Code::INVALID_VALUE) }
    }

    stream fn cuMemPrefetchAsync(address: u64, count: usize, _device: i32, stream: Handle) {
        check_managed(address, count)?;
        Session::open()?.stream(stream, PER_THREAD).map(drop)
    }

    stream fn cuMemPrefetchAsync_v2(address: u64, count: usize, _place: CUmemLocation_v1, flags: u32, stream: Handle) {
        check_managed(address, count)?;
        if flags != 0 {
            return Err(Code::INVALID_VALUE);
        }
        Session::open()?.stream(stream, PER_THREAD).map(drop)
    }

    stream fn cuMemPrefetchBatchAsync(addresses: In<u64>, sizes: In<usize>, count: usize, _places: In<CUmemLocation_v1>, _indices: In<usize>, _n: usize, _flags: u64, stream: Handle) {
        for (address, size) in addresses.list(count)?.into_iter().zip(sizes.list(count)?) {
            check_managed(address, size)?;
        }
        Session::open()?.stream(stream, PER_THREAD).map(drop)
    }

    stream fn cuStreamAttachMemAsync(stream: Handle, address: u64, length: usize, _flags: u32) {
        check_managed(address, length.max(1))?;
        Session::open()?.stream(stream, PER_THREAD).map(drop)
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

/// What filling a box means; nothing if it is of no bytes.
pub(super) fn pattern(
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

/// Is this memory that host and card share?
pub(super) fn check_managed(address: u64, count: usize) -> Answer {
    let session = Session::open()?;
    let range = session
        .memory
        .ranges
        .at(address)
        .ok_or(Code::INVALID_VALUE)?;
    let inside = address - range.start + count as u64 <= range.size;
    let managed = matches!(range.kind, Kind::Managed { .. });
    if count > 0 && inside && managed {
        Ok(())
    } else {
        Err(Code::INVALID_VALUE)
    }
}
