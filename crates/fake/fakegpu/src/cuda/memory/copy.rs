//! Copies.

use crate::cuda::{Handle, functions};
use crate::driver::result::{Answer, Code};
use crate::driver::stream::queue::{Id, Stream};
use crate::driver::stream::work::{Action, Move, Source};
use crate::driver::{Driver, Session};

/// Bytes that an idle stream copies at once, in the caller's thread.
const SMALL: u64 = 1 << 20;

functions! {
    stream fn cuMemcpy(to: u64, from: u64, size: usize) {
        copy(End::Any(to), End::Any(from), size, 0, PER_THREAD, false)
    }

    stream fn cuMemcpyAsync(to: u64, from: u64, size: usize, stream: Handle) {
        copy(End::Any(to), End::Any(from), size, stream, PER_THREAD, true)
    }

    stream fn cuMemcpyHtoD_v2(to: u64, from: u64, size: usize) {
        copy(End::Card(to), End::Any(from), size, 0, PER_THREAD, false)
    }

    stream fn cuMemcpyHtoDAsync_v2(to: u64, from: u64, size: usize, stream: Handle) {
        copy(End::Card(to), End::Any(from), size, stream, PER_THREAD, true)
    }

    stream fn cuMemcpyDtoH_v2(to: u64, from: u64, size: usize) {
        copy(End::Any(to), End::Card(from), size, 0, PER_THREAD, false)
    }

    stream fn cuMemcpyDtoHAsync_v2(to: u64, from: u64, size: usize, stream: Handle) {
        copy(End::Any(to), End::Card(from), size, stream, PER_THREAD, true)
    }

    stream fn cuMemcpyDtoD_v2(to: u64, from: u64, size: usize) {
        copy(End::Card(to), End::Card(from), size, 0, PER_THREAD, false)
    }

    stream fn cuMemcpyDtoDAsync_v2(to: u64, from: u64, size: usize, stream: Handle) {
        copy(End::Card(to), End::Card(from), size, stream, PER_THREAD, true)
    }

    stream fn cuMemcpyPeer(to: u64, to_context: Handle, from: u64, from_context: Handle, size: usize) {
        check_contexts(to_context, from_context)?;
        copy(End::Card(to), End::Card(from), size, 0, PER_THREAD, false)
    }

    stream fn cuMemcpyPeerAsync(to: u64, to_context: Handle, from: u64, from_context: Handle, size: usize, stream: Handle) {
        check_contexts(to_context, from_context)?;
        copy(End::Card(to), End::Card(from), size, stream, PER_THREAD, true)
    }
}

/// One end of a copy.
#[derive(Clone, Copy)]
enum End {
    /// Memory of a card.
    Card(u64),
    /// Memory of anybody.
    Any(u64),
}

impl End {
    /// Returns its address; refused if `size` bytes are not there.
    fn address(self, driver: &Driver, size: u64, in_graph: bool) -> Answer<u64> {
        let (address, is_on_card) = match self {
            End::Card(address) => (address, true),
            // Of a range that the driver knows, no byte may be outside.
            End::Any(address) => (address, driver.memory.ranges.at(address).is_some()),
        };
        if address == 0 || is_on_card && !may_use(driver, address, size, in_graph) {
            return Err(Code::INVALID_VALUE);
        }
        Ok(address)
    }
}

/// May a card use these bytes, now or when the graph runs that is being made?
pub(crate) fn may_use(driver: &Driver, start: u64, size: u64, in_graph: bool) -> bool {
    if in_graph {
        driver.memory.is_accessible_in_graph(start, size)
    } else {
        driver.memory.is_accessible(start, size)
    }
}

fn copy(
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
        to: to.address(&session, size, in_graph)?,
        from: Source::Memory(from.address(&session, size, in_graph)?),
        size,
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
    let known = |driver: &Driver, address| driver.memory.ranges.at(address).is_some();
    let is_idle = session.queues.get(stream).is_some_and(Stream::is_idle);
    let to_pageable = !known(session, bytes.to);
    if !is_async || to_pageable || (is_idle && bytes.size <= SMALL) {
        return session.move_now(stream, bytes);
    }
    if let Source::Memory(from) = bytes.from
        && !known(session, from)
    {
        if bytes.size > SMALL {
            return session.move_now(stream, bytes);
        }
        let mut copied = vec![0; bytes.size as usize];
        // SAFETY: the program passes memory of this size to be read.
        unsafe {
            crate::driver::memory::address_space::copy(
                copied.as_mut_ptr() as u64,
                from,
                bytes.size,
            );
        }
        bytes.from = Source::Bytes(copied.into());
    }
    session.issue(stream, Action::Move(bytes)).map(drop)
}

fn check_contexts(one: Handle, other: Handle) -> Answer {
    let session = Session::open()?;
    if one == 0 || other == 0 {
        return Err(Code::INVALID_CONTEXT);
    }
    session.context(one)?;
    session.context(other).map(drop)
}
