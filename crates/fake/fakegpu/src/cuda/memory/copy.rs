//! Copies, of rows and of boxes.

use sublet_driver_api::cuda::copy::{
    CUDA_MEMCPY2D_v2, CUDA_MEMCPY3D_BATCH_OP_v1, CUDA_MEMCPY3D_PEER_v1, CUDA_MEMCPY3D_v2,
    CUmemcpy3DOperand_array, CUmemcpy3DOperand_ptr, CUmemcpy3DOperand_v1, CUmemcpyAttributes_v1,
};

use crate::cuda::arguments::In;
use crate::cuda::memory::copy_shape::{Side, between, flat, may_use, plan, side};
use crate::cuda::{Handle, functions};
use crate::driver::result::{Answer, Code};
use crate::driver::stream::queue::Id;
use crate::driver::stream::work::{Action, Move, Place, Source};
use crate::driver::{Driver, Session};

/// Bytes that an idle stream copies at once, in the caller's thread.
const SMALL: u64 = 1 << 20;

functions! {
    stream fn cuMemcpy(to: u64, from: u64, size: usize) {
        row(End::Any(to), End::Any(from), size, 0, PER_THREAD, false)
    }

    stream fn cuMemcpyAsync(to: u64, from: u64, size: usize, stream: Handle) {
        row(End::Any(to), End::Any(from), size, stream, PER_THREAD, true)
    }

    stream fn cuMemcpyHtoD_v2(to: u64, from: u64, size: usize) {
        row(End::Card(to), End::Any(from), size, 0, PER_THREAD, false)
    }

    stream fn cuMemcpyHtoDAsync_v2(to: u64, from: u64, size: usize, stream: Handle) {
        row(End::Card(to), End::Any(from), size, stream, PER_THREAD, true)
    }

    stream fn cuMemcpyDtoH_v2(to: u64, from: u64, size: usize) {
        row(End::Any(to), End::Card(from), size, 0, PER_THREAD, false)
    }

    stream fn cuMemcpyDtoHAsync_v2(to: u64, from: u64, size: usize, stream: Handle) {
        row(End::Any(to), End::Card(from), size, stream, PER_THREAD, true)
    }

    stream fn cuMemcpyDtoD_v2(to: u64, from: u64, size: usize) {
        row(End::Card(to), End::Card(from), size, 0, PER_THREAD, false)
    }

    stream fn cuMemcpyDtoDAsync_v2(to: u64, from: u64, size: usize, stream: Handle) {
        row(End::Card(to), End::Card(from), size, stream, PER_THREAD, true)
    }

    stream fn cuMemcpyPeer(to: u64, to_context: Handle, from: u64, from_context: Handle, size: usize) {
        check_contexts(to_context, from_context)?;
        row(End::Card(to), End::Card(from), size, 0, PER_THREAD, false)
    }

    stream fn cuMemcpyPeerAsync(to: u64, to_context: Handle, from: u64, from_context: Handle, size: usize, stream: Handle) {
        check_contexts(to_context, from_context)?;
        row(End::Card(to), End::Card(from), size, stream, PER_THREAD, true)
    }

    stream fn cuMemcpyAtoH_v2(to: u64, array: Handle, offset: usize, size: usize) {
        row(End::Any(to), End::Array(array, offset), size, 0, PER_THREAD, false)
    }

    stream fn cuMemcpyAtoHAsync_v2(to: u64, array: Handle, offset: usize, size: usize, stream: Handle) {
        row(End::Any(to), End::Array(array, offset), size, stream, PER_THREAD, true)
    }

    stream fn cuMemcpyHtoA_v2(array: Handle, offset: usize, from: u64, size: usize) {
        row(End::Array(array, offset), End::Any(from), size, 0, PER_THREAD, false)
    }

    stream fn cuMemcpyHtoAAsync_v2(array: Handle, offset: usize, from: u64, size: usize, stream: Handle) {
        row(End::Array(array, offset), End::Any(from), size, stream, PER_THREAD, true)
    }

    stream fn cuMemcpyAtoD_v2(to: u64, array: Handle, offset: usize, size: usize) {
        row(End::Card(to), End::Array(array, offset), size, 0, PER_THREAD, false)
    }

    stream fn cuMemcpyDtoA_v2(array: Handle, offset: usize, from: u64, size: usize) {
        row(End::Array(array, offset), End::Card(from), size, 0, PER_THREAD, false)
    }

    stream fn cuMemcpyAtoA_v2(to: Handle, to_offset: usize, from: Handle, from_offset: usize, size: usize) {
        row(End::Array(to, to_offset), End::Array(from, from_offset), size, 0, PER_THREAD, false)
    }

    stream fn cuMemcpy2D_v2(given: In<CUDA_MEMCPY2D_v2>) {
        shaped(&flat(&given.get()?), 0, PER_THREAD, false)
    }

    stream fn cuMemcpy2DUnaligned_v2(given: In<CUDA_MEMCPY2D_v2>) {
        shaped(&flat(&given.get()?), 0, PER_THREAD, false)
    }

    stream fn cuMemcpy2DAsync_v2(given: In<CUDA_MEMCPY2D_v2>, stream: Handle) {
        shaped(&flat(&given.get()?), stream, PER_THREAD, true)
    }

    stream fn cuMemcpy3D_v2(given: In<CUDA_MEMCPY3D_v2>) {
        shaped(&given.get()?, 0, PER_THREAD, false)
    }

    stream fn cuMemcpy3DAsync_v2(given: In<CUDA_MEMCPY3D_v2>, stream: Handle) {
        shaped(&given.get()?, stream, PER_THREAD, true)
    }

    stream fn cuMemcpy3DPeer(given: In<CUDA_MEMCPY3D_PEER_v1>) {
        shaped(&between(&given.get()?), 0, PER_THREAD, false)
    }

    stream fn cuMemcpy3DPeerAsync(given: In<CUDA_MEMCPY3D_PEER_v1>, stream: Handle) {
        shaped(&between(&given.get()?), stream, PER_THREAD, true)
    }

    stream fn cuMemcpyBatchAsync_v2(to: In<u64>, from: In<u64>, sizes: In<usize>, count: usize, _attributes: In<CUmemcpyAttributes_v1>, _indices: In<usize>, _n: usize, stream: Handle) {
        let (to, from) = (to.list(count)?, from.list(count)?);
        for (place, size) in sizes.list(count)?.into_iter().enumerate() {
            row(End::Any(to[place]), End::Any(from[place]), size, stream, PER_THREAD, true)?;
        }
        Ok(())
    }

    stream fn cuMemcpy3DBatchAsync_v2(count: usize, list: In<CUDA_MEMCPY3D_BATCH_OP_v1>, _flags: u64, stream: Handle) {
        for op in list.list(count)? {
            operand(&op, stream, PER_THREAD)?;
        }
        Ok(())
    }
}

/// One end of a copy of a row.
#[derive(Clone, Copy)]
enum End {
    /// Memory of a card.
    Card(u64),
    /// Memory of anybody.
    Any(u64),
    /// An array, from this byte on.
    Array(Handle, usize),
}

impl End {
    /// Returns its place; refused if `size` bytes of it are not there.
    fn place(&self, driver: &Driver, size: u64, in_graph: bool) -> Answer<Place> {
        let is_accessible = |address| may_use(driver, address, size, in_graph);
        match self {
            End::Card(address) if !is_accessible(*address) => Err(Code::INVALID_VALUE),
            End::Any(0) => Err(Code::INVALID_VALUE),
            // Of a range that the driver knows, no byte may be outside.
            End::Any(address)
                if driver.memory.ranges.at(*address).is_some() && !is_accessible(*address) =>
            {
                Err(Code::INVALID_VALUE)
            }
            End::Card(address) | End::Any(address) => Ok(Place::row(*address)),
            End::Array(handle, offset) => {
                let array = driver.array(*handle)?;
                let place = array.place(*offset as u64, 0, 0)?;
                if *offset as u64 + size > array.shape.row()? {
                    return Err(Code::INVALID_VALUE);
                }
                Ok(place)
            }
        }
    }
}

fn row(
    to: End,
    from: End,
    size: usize,
    stream: Handle,
    per_thread: bool,
    is_async: bool,
) -> Answer {
    let mut session = Session::open()?;
    let stream = session.stream(stream, per_thread)?;
    if size == 0 {
        return Ok(());
    }
    let size = size as u64;
    let in_graph = session.captures.of(stream).is_some();
    let bytes = Move {
        to: to.place(&session, size, in_graph)?,
        from: Source::Place(from.place(&session, size, in_graph)?),
        width: size,
        height: 1,
        depth: 1,
    };
    perform(&mut session, stream, bytes, is_async)
}

/// Does a copy that was checked. A call that is not asynchronous waits. A call with bytes in
/// pageable memory waits too, because the program may change or read that memory when the call
/// returns.
pub(crate) fn perform(
    session: &mut Session,
    stream: Id,
    mut bytes: Move,
    is_async: bool,
) -> Answer {
    if !is_async {
        session.forbid_in_capture()?;
    }
    session.forbid_implicit(stream)?;
    if session.captures.of(stream).is_some() {
        return session.issue(stream, Action::Move(bytes)).map(drop);
    }
    let size = bytes.width * bytes.height * bytes.depth;
    let known = |driver: &Driver, place: &Place| driver.memory.ranges.at(place.address).is_some();
    let is_idle = session
        .queues
        .get(stream)
        .is_some_and(crate::driver::stream::queue::Stream::is_idle);
    let to_pageable = !known(session, &bytes.to);
    if !is_async || to_pageable || (is_idle && size <= SMALL) {
        return session.move_now(stream, bytes);
    }
    if let Source::Place(from) = &bytes.from
        && !known(session, from)
    {
        if size > SMALL || bytes.height > 1 || bytes.depth > 1 {
            return session.move_now(stream, bytes);
        }
        let mut copied = vec![0; size as usize];
        // SAFETY: the program passes memory of this size to be read.
        unsafe {
            crate::driver::memory::address_space::copy(
                copied.as_mut_ptr() as u64,
                from.address,
                size,
            );
        }
        bytes.from = Source::Bytes(copied.into());
    }
    session.issue(stream, Action::Move(bytes)).map(drop)
}

fn shaped(given: &CUDA_MEMCPY3D_v2, stream: Handle, per_thread: bool, is_async: bool) -> Answer {
    let mut session = Session::open()?;
    let stream = session.stream(stream, per_thread)?;
    let in_graph = session.captures.of(stream).is_some();
    match plan(&session, given, in_graph)? {
        Some(bytes) => perform(&mut session, stream, bytes, is_async),
        None => Ok(()),
    }
}

/// One copy of a batch of boxes. Its extent counts elements of arrays, or bytes.
fn operand(op: &CUDA_MEMCPY3D_BATCH_OP_v1, stream: Handle, per_thread: bool) -> Answer {
    let mut session = Session::open()?;
    let stream = session.stream(stream, per_thread)?;
    let [width, height, depth] = [op.extent.width, op.extent.height, op.extent.depth];
    let extent = [width as u64, height as u64, depth as u64];
    if extent.contains(&0) {
        return Ok(());
    }
    let from = operand_side(&session, &op.src, extent)?;
    let to = operand_side(&session, &op.dst, extent)?;
    let element = from.1.max(to.1);
    let bytes = Move {
        to: to.0,
        from: Source::Place(from.0),
        width: extent[0] * element,
        height: extent[1],
        depth: extent[2],
    };
    perform(&mut session, stream, bytes, true)
}

fn operand_side(
    driver: &Driver,
    operand: &CUmemcpy3DOperand_v1,
    extent: [u64; 3],
) -> Answer<(Place, u64)> {
    let union = In::of(&operand.op);
    match operand.r#type.0 {
        1 => {
            let pointer = union.cast::<CUmemcpy3DOperand_ptr>().get()?;
            let place = side(
                driver,
                &Side {
                    kind: 4,
                    host: 0,
                    device: pointer.ptr,
                    array: 0,
                    at: [0; 3],
                    pitch: pointer.rowLength,
                    rows: pointer.layerHeight,
                    extent,
                    in_graph: false,
                },
            )?;
            Ok((place, 1))
        }
        2 => {
            let inside = union.cast::<CUmemcpy3DOperand_array>().get()?;
            let array = driver.array(inside.array.0 as u64)?;
            let element = array.shape.element()?;
            let [x, y, z] = [inside.offset.x, inside.offset.y, inside.offset.z];
            let place = array.place(x as u64 * element, y as u64, z as u64)?;
            let holds = array.holds(&place, extent[0] * element, extent[1], extent[2]);
            if holds {
                Ok((place, element))
            } else {
                Err(Code::INVALID_VALUE)
            }
        }
        _ => Err(Code::INVALID_VALUE),
    }
}

fn check_contexts(one: Handle, other: Handle) -> Answer {
    let session = Session::open()?;
    if one == 0 || other == 0 {
        return Err(Code::INVALID_CONTEXT);
    }
    session.context(one)?;
    session.context(other).map(drop)
}
