//! Events.

use crate::cuda::arguments::Out;
use crate::cuda::{Handle, functions, outside_capture};
use crate::driver::Session;
use crate::driver::result::{Answer, Code};
use crate::driver::stream::work::Action;

functions! {
    fn cuEventCreate(handle: Out<Handle>, flags: u32) {
        handle.check()?;
        handle.put(Session::open()?.make_event(flags)?)
    }

    fn cuEventDestroy_v2(handle: Handle) {
        // Work that waits for it keeps its mark.
        let removed = Session::open()?.events.remove(&handle);
        removed.map(drop).ok_or(Code::INVALID_HANDLE)
    }

    stream fn cuEventRecord(event: Handle, stream: Handle) {
        record(event, stream, PER_THREAD, 0)
    }

    stream fn cuEventRecordWithFlags(event: Handle, stream: Handle, flags: u32) {
        record(event, stream, PER_THREAD, flags)
    }

    fn cuEventQuery(event: Handle) {
        let mut session = Session::open()?;
        session.settle();
        session.query_event(event)
    }

    fn cuEventSynchronize(event: Handle) {
        let mut session = outside_capture()?;
        session.finish_event(event)?;
        session.trim_pools();
        let context = session.event(event)?.context;
        let context = session.contexts.get(&context);
        match context.and_then(|context| context.broken) {
            Some(code) => Err(code),
            None => Ok(()),
        }
    }

    fn cuEventElapsedTime(milliseconds: Out<f32>, from: Handle, to: Handle) {
        milliseconds.put(Session::open()?.elapsed(from, to)?)
    }

    fn cuEventElapsedTime_v2(milliseconds: Out<f32>, from: Handle, to: Handle) {
        milliseconds.put(Session::open()?.elapsed(from, to)?)
    }
}

fn record(event: Handle, stream: Handle, per_thread: bool, flags: u32) -> Answer {
    if flags > 1 {
        return Err(Code::INVALID_VALUE);
    }
    let mut session = Session::open()?;
    let stream = session.stream(stream, per_thread)?;
    let context = session.event(event)?.context;
    if session
        .queues
        .get(stream)
        .is_some_and(|stream| session.home(stream.context) != context)
    {
        return Err(Code::INVALID_HANDLE);
    }
    session.forbid_implicit(stream)?;
    session.issue(stream, Action::Record(event)).map(drop)
}
