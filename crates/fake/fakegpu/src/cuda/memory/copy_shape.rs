//! Copies of boxes as C describes them: where a box begins, how long its rows are, and
//! whether all of it is there.

use sublet_driver_api::cuda::copy::{CUDA_MEMCPY2D_v2, CUDA_MEMCPY3D_PEER_v1, CUDA_MEMCPY3D_v2};

use crate::cuda::Handle;
use crate::driver::Driver;
use crate::driver::result::{Answer, Code};
use crate::driver::stream::work::{Move, Place, Source};

/// Returns the copy that a description means; nothing if the copy has no bytes.
pub(crate) fn plan(
    driver: &Driver,
    given: &CUDA_MEMCPY3D_v2,
    in_graph: bool,
) -> Answer<Option<Move>> {
    let (width, height) = (given.WidthInBytes as u64, given.Height as u64);
    let depth = given.Depth as u64;
    if width == 0 || height == 0 || depth == 0 {
        return Ok(None);
    }
    let from = side(
        driver,
        &Side {
            kind: given.srcMemoryType.0,
            host: given.srcHost as u64,
            device: given.srcDevice,
            array: given.srcArray.0 as u64,
            at: [given.srcXInBytes, given.srcY, given.srcZ],
            pitch: given.srcPitch,
            rows: given.srcHeight,
            extent: [width, height, depth],
            in_graph,
        },
    )?;
    let to = side(
        driver,
        &Side {
            kind: given.dstMemoryType.0,
            host: given.dstHost as u64,
            device: given.dstDevice,
            array: given.dstArray.0 as u64,
            at: [given.dstXInBytes, given.dstY, given.dstZ],
            pitch: given.dstPitch,
            rows: given.dstHeight,
            extent: [width, height, depth],
            in_graph,
        },
    )?;
    Ok(Some(Move {
        to,
        from: Source::Place(from),
        width,
        height,
        depth,
    }))
}

/// One side of a description.
pub(crate) struct Side {
    pub(crate) kind: u32,
    pub(crate) host: u64,
    pub(crate) device: u64,
    pub(crate) array: Handle,
    pub(crate) at: [usize; 3],
    pub(crate) pitch: usize,
    pub(crate) rows: usize,
    pub(crate) extent: [u64; 3],
    pub(crate) in_graph: bool,
}

/// Returns the start of a side; refused if its box is not all there.
pub(crate) fn side(driver: &Driver, side: &Side) -> Answer<Place> {
    let [x, y, z] = side.at.map(|coordinate| coordinate as u64);
    let [width, height, depth] = side.extent;
    if side.kind == 3 {
        let array = driver.array(side.array)?;
        let place = array.place(x, y, z)?;
        let inside = array.holds(&place, width, height, depth);
        return if inside {
            Ok(place)
        } else {
            Err(Code::INVALID_VALUE)
        };
    }
    let start = match side.kind {
        1 => side.host,
        2 | 4 => side.device,
        _ => return Err(Code::INVALID_VALUE),
    };
    let pitch = if side.pitch == 0 {
        width + x
    } else {
        side.pitch as u64
    };
    let rows = if side.rows == 0 {
        height + y
    } else {
        side.rows as u64
    };
    let plane = pitch.checked_mul(rows).ok_or(Code::INVALID_VALUE)?;
    if pitch < width || start == 0 {
        return Err(Code::INVALID_VALUE);
    }
    let offset = z.checked_mul(plane).and_then(|planes| {
        let rows = y.checked_mul(pitch)?;
        start.checked_add(planes)?.checked_add(rows)?.checked_add(x)
    });
    let place = Place {
        address: offset.ok_or(Code::INVALID_VALUE)?,
        pitch,
        plane,
    };
    let extent = place
        .extent(width, height, depth)
        .ok_or(Code::INVALID_VALUE)?;
    let on_card = side.kind == 2 || driver.memory.ranges.at(place.address).is_some();
    if on_card && !may_use(driver, place.address, extent, side.in_graph) {
        return Err(Code::INVALID_VALUE);
    }
    Ok(place)
}

/// May a card use these bytes, now or when the graph runs that is being made?
pub(crate) fn may_use(driver: &Driver, start: u64, size: u64, in_graph: bool) -> bool {
    if in_graph {
        driver.memory.is_accessible_in_graph(start, size)
    } else {
        driver.memory.is_accessible(start, size)
    }
}

/// A flat box is one of one plane.
pub(crate) fn flat(given: &CUDA_MEMCPY2D_v2) -> CUDA_MEMCPY3D_v2 {
    CUDA_MEMCPY3D_v2 {
        srcXInBytes: given.srcXInBytes,
        srcY: given.srcY,
        srcMemoryType: given.srcMemoryType,
        srcHost: given.srcHost,
        srcDevice: given.srcDevice,
        srcArray: given.srcArray,
        srcPitch: given.srcPitch,
        dstXInBytes: given.dstXInBytes,
        dstY: given.dstY,
        dstMemoryType: given.dstMemoryType,
        dstHost: given.dstHost,
        dstDevice: given.dstDevice,
        dstArray: given.dstArray,
        dstPitch: given.dstPitch,
        WidthInBytes: given.WidthInBytes,
        Height: given.Height,
        Depth: 1,
        ..CUDA_MEMCPY3D_v2::default()
    }
}

/// Between contexts it is the same: there is one space of addresses.
pub(crate) fn between(given: &CUDA_MEMCPY3D_PEER_v1) -> CUDA_MEMCPY3D_v2 {
    CUDA_MEMCPY3D_v2 {
        srcXInBytes: given.srcXInBytes,
        srcY: given.srcY,
        srcZ: given.srcZ,
        srcMemoryType: given.srcMemoryType,
        srcHost: given.srcHost,
        srcDevice: given.srcDevice,
        srcArray: given.srcArray,
        srcPitch: given.srcPitch,
        srcHeight: given.srcHeight,
        dstXInBytes: given.dstXInBytes,
        dstY: given.dstY,
        dstZ: given.dstZ,
        dstMemoryType: given.dstMemoryType,
        dstHost: given.dstHost,
        dstDevice: given.dstDevice,
        dstArray: given.dstArray,
        dstPitch: given.dstPitch,
        dstHeight: given.dstHeight,
        WidthInBytes: given.WidthInBytes,
        Height: given.Height,
        Depth: given.Depth,
        ..CUDA_MEMCPY3D_v2::default()
    }
}
