//! Streams that wait for words in memory, or write them.

use sublet_driver_api::cuda::copy::{
    CUstreamBatchMemOpParams_v1, CUstreamMemOpWaitValueParams, CUstreamMemOpWriteValueParams,
};

use crate::cuda::arguments::In;
use crate::cuda::{Handle, functions};
use crate::driver::Session;
use crate::driver::result::{Answer, Code};
use crate::driver::stream::work::{Action, Move, Place, Source, Word};

functions! {
    stream fn cuStreamWaitValue32_v2(stream: Handle, address: u64, value: u32, flags: u32) {
        wait(stream, PER_THREAD, address, value.into(), flags, 4)
    }

    stream fn cuStreamWaitValue64_v2(stream: Handle, address: u64, value: u64, flags: u32) {
        wait(stream, PER_THREAD, address, value, flags, 8)
    }

    stream fn cuStreamWriteValue32_v2(stream: Handle, address: u64, value: u32, _flags: u32) {
        write(stream, PER_THREAD, address, &value.to_ne_bytes())
    }

    stream fn cuStreamWriteValue64_v2(stream: Handle, address: u64, value: u64, _flags: u32) {
        write(stream, PER_THREAD, address, &value.to_ne_bytes())
    }

    stream fn cuStreamBatchMemOp_v2(stream: Handle, count: u32, list: In<CUstreamBatchMemOpParams_v1>, _flags: u32) {
        if count > 256 {
            return Err(Code::INVALID_VALUE);
        }
        for op in list.list(count as usize)? {
            let union = In::of(&op);
            let waits = union.cast::<CUstreamMemOpWaitValueParams>().get()?;
            let writes = union.cast::<CUstreamMemOpWriteValueParams>().get()?;
            match waits.operation.0 {
                1 => wait(
                    stream,
                    PER_THREAD,
                    waits.address,
                    waits.value64 & 0xffff_ffff,
                    waits.flags,
                    4,
                )?,
                4 => wait(
                    stream,
                    PER_THREAD,
                    waits.address,
                    waits.value64,
                    waits.flags,
                    8,
                )?,
                2 => write(
                    stream,
                    PER_THREAD,
                    writes.address,
                    &(writes.value64 as u32).to_ne_bytes(),
                )?,
                5 => write(
                    stream,
                    PER_THREAD,
                    writes.address,
                    &writes.value64.to_ne_bytes(),
                )?,
                // All writes are visible to everybody as soon as they are done.
                3 | 6 => {}
                _ => return Err(Code::INVALID_VALUE),
            }
        }
        Ok(())
    }
}

fn wait(
    stream: Handle,
    per_thread: bool,
    address: u64,
    value: u64,
    flags: u32,
    width: u64,
) -> Answer {
    let mut session = Session::open()?;
    let stream = session.stream(stream, per_thread)?;
    if !session.memory.is_accessible(address, width) || !address.is_multiple_of(width) {
        return Err(Code::INVALID_VALUE);
    }
    session.forbid_implicit(stream)?;
    let word = Word {
        address,
        value,
        flags,
        width,
    };
    session.issue(stream, Action::Poll(word)).map(drop)
}

fn write(stream: Handle, per_thread: bool, address: u64, value: &[u8]) -> Answer {
    let mut session = Session::open()?;
    let stream = session.stream(stream, per_thread)?;
    let width = value.len() as u64;
    if !session.memory.is_accessible(address, width) || !address.is_multiple_of(width) {
        return Err(Code::INVALID_VALUE);
    }
    session.forbid_implicit(stream)?;
    let bytes = Move {
        to: Place::row(address),
        from: Source::Bytes(value.into()),
        width,
        height: 1,
        depth: 1,
    };
    session.issue(stream, Action::Move(bytes)).map(drop)
}
