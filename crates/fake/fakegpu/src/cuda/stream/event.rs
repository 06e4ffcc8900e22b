//! Events.

use crate::cuda::arguments::Out;
use crate::cuda::{Handle, functions, outside_capture};
use crate::driver::Session;
use crate::driver::result::Code;
use crate::driver::stream::queue::Stream;
use crate::driver::stream::work::{Action, Work};

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
        let mut session = Session::open()?;
        let stream = session.stream(stream, PER_THREAD)?;
        let context = session.event(event)?.context;
        let elsewhere = |it: &Stream<Work>| session.home(it.context) != context;
        if session.queues.get(stream).is_some_and(elsewhere) {
            return Err(Code::INVALID_HANDLE);
        }
        session.forbid_implicit(stream)?;
        session.issue(stream, Action::Record(event)).map(drop)
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
