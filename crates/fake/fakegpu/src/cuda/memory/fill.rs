//! Memory filled with a pattern.

use crate::cuda::memory::copy::{may_use, perform};
use crate::cuda::{Handle, functions};
use crate::driver::Session;
use crate::driver::result::{Answer, Code};
use crate::driver::stream::work::{Move, Source};

functions! {
    stream fn cuMemsetD8_v2(to: u64, value: u8, count: usize) {
        set(to, (1, value.into()), count, 0, PER_THREAD, false)
    }
    stream fn cuMemsetD32_v2(to: u64, value: u32, count: usize) {
        set(to, (4, value), count, 0, PER_THREAD, false)
    }
    stream fn cuMemsetD8Async(to: u64, value: u8, count: usize, stream: Handle) {
        set(to, (1, value.into()), count, stream, PER_THREAD, true)
    }
    stream fn cuMemsetD32Async(to: u64, value: u32, count: usize, stream: Handle) {
        set(to, (4, value), count, stream, PER_THREAD, true)
    }
}

/// Fills `count` elements of `width` bytes.
fn set(
    to: u64,
    (width, value): (u64, u32),
    count: usize,
    stream: Handle,
    per_thread: bool,
    is_async: bool,
) -> Answer {
    let mut session = Session::open()?;
    let stream = session.stream(stream, per_thread)?;
    let in_graph = session.captures.of(stream).is_some();
    if !to.is_multiple_of(width) {
        return Err(Code::INVALID_VALUE);
    }
    if count == 0 {
        return Ok(());
    }
    let size = (count as u64).checked_mul(width);
    let size = size.ok_or(Code::INVALID_VALUE)?;
    if !may_use(&session, to, size, in_graph) {
        return Err(Code::INVALID_VALUE);
    }
    let from = Source::Pattern { width, value };
    perform(&mut session, stream, Move { to, from, size }, is_async)
}
