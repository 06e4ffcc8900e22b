//! Streams.

use std::ffi::c_void;

use crate::cuda::arguments::Out;
use crate::cuda::{Handle, functions};
use crate::driver::Session;
use crate::driver::result::{Answer, Code};
use crate::driver::stream::queue::{Id, Lane};
use crate::driver::stream::work::{Action, Word, Work};

pub(crate) mod event;

/// C's type of a callback that is told its stream and how things went.
type StreamCallback = extern "C" fn(Handle, u32, *mut c_void);

functions! {
    fn cuStreamCreate(handle: Out<Handle>, flags: u32) {
        handle.check()?;
        handle.put(Session::open()?.make_stream(flags, 0)?)
    }

    fn cuStreamCreateWithPriority(handle: Out<Handle>, flags: u32, priority: i32) {
        handle.check()?;
        handle.put(Session::open()?.make_stream(flags, priority)?)
    }

    fn cuStreamDestroy_v2(handle: Handle) {
        Session::open()?.destroy_stream(handle)
    }

    stream fn cuStreamSynchronize(handle: Handle) {
        let mut session = Session::open()?;
        let stream = session.stream(handle, PER_THREAD)?;
        session.forbid_if_captured(stream)?;
        session.forbid_implicit(stream)?;
        session.forbid_in_capture()?;
        let seq = session.queues.last();
        session.finish(stream, seq);
        session.trim_pools();
        broken(&session, stream)
    }

    stream fn cuStreamQuery(handle: Handle) {
        let mut session = Session::open()?;
        let stream = session.stream(handle, PER_THREAD)?;
        session.forbid_if_captured(stream)?;
        session.forbid_implicit(stream)?;
        session.settle();
        broken(&session, stream)?;
        let seq = session.queues.last();
        if session.queues.is_done(stream, seq) { Ok(()) } else { Err(Code::NOT_READY) }
    }

    stream fn cuStreamWaitEvent(handle: Handle, event: Handle, flags: u32) {
        if flags > 1 {
            return Err(Code::INVALID_VALUE);
        }
        let mut session = Session::open()?;
        let stream = session.stream(handle, PER_THREAD)?;
        session.event(event)?;
        if session.captures.of(stream).is_none() && session.join_capture(stream, event)? {
            return Ok(());
        }
        session.forbid_implicit(stream)?;
        session.issue(stream, Action::Wait(event)).map(drop)
    }

    stream fn cuStreamGetId(handle: Handle, number: Out<u64>) {
        let mut session = Session::open()?;
        let stream = session.stream(handle, PER_THREAD)?;
        number.put((stream / 64) & 0xffff_ffff)
    }

    stream fn cuStreamGetCtx(handle: Handle, context: Out<Handle>) {
        let mut session = Session::open()?;
        let stream = session.stream(handle, PER_THREAD)?;
        context.put(session.queues.get(stream).map_or(0, |stream| stream.context))
    }

    stream fn cuStreamGetDevice(handle: Handle, device: Out<i32>) {
        let mut session = Session::open()?;
        let stream = session.stream(handle, PER_THREAD)?;
        let card = session.queues.get(stream).map_or(0, |stream| stream.card);
        device.put(session.device_of(card))
    }

    stream fn cuStreamAddCallback(handle: Handle, callback: Option<StreamCallback>, data: usize, flags: u32) {
        let callback = callback.ok_or(Code::INVALID_VALUE)?;
        if flags != 0 {
            return Err(Code::INVALID_VALUE);
        }
        let mut session = Session::open()?;
        let stream = session.stream(handle, PER_THREAD)?;
        session.forbid_if_captured(stream)?;
        session.forbid_implicit(stream)?;
        let call = move || callback(handle, 0, data as *mut c_void);
        session.submit(stream, Lane::Host, 0, Work::Call(Box::new(call))).map(drop)
    }

    stream fn cuStreamWaitValue32_v2(handle: Handle, address: u64, value: u32, flags: u32) {
        let mut session = Session::open()?;
        let stream = session.stream(handle, PER_THREAD)?;
        if !session.memory.is_accessible(address, 4) || !address.is_multiple_of(4) {
            return Err(Code::INVALID_VALUE);
        }
        session.forbid_implicit(stream)?;
        let word = Word { address, value, flags };
        session.issue(stream, Action::Poll(word)).map(drop)
    }
}

/// The error that ended a stream's context.
pub(crate) fn broken(session: &Session, stream: Id) -> Answer {
    let context = session
        .queues
        .get(stream)
        .map_or(0, |stream| stream.context);
    match session
        .contexts
        .get(&context)
        .and_then(|context| context.broken)
    {
        Some(code) => Err(code),
        None => Ok(()),
    }
}
