//! Capture of streams into graphs.

use std::cell::RefCell;

use super::arguments::{In, Out};
use super::{Handle, functions};
use crate::driver::Session;
use crate::driver::capture::{Mode, exchange_mode};
use crate::driver::code::{Answer, Code};

thread_local! {
    /// What `cuStreamGetCaptureInfo` showed this thread last; the program may read it
    /// until the next call.
    static SHOWN: RefCell<Vec<Handle>> = const { RefCell::new(Vec::new()) };
}

functions! {
    stream fn cuStreamBeginCapture(stream: Handle) {
        begin(stream, PER_THREAD, 0)
    }

    stream fn cuStreamBeginCapture_v2(stream: Handle, mode: u32) {
        begin(stream, PER_THREAD, mode)
    }

    stream fn cuStreamBeginCaptureToGraph(stream: Handle, graph: Handle, after: In<Handle>, _edges: In<u64>, count: usize, mode: u32) {
        let mut session = Session::open()?;
        let stream = session.stream(stream, PER_THREAD)?;
        session.nodes_of(graph)?;
        let after = after.list(count)?;
        session.begin_capture(stream, Mode::of(mode)?, Some((graph, after)))
    }

    stream fn cuStreamEndCapture(stream: Handle, graph: Out<Handle>) {
        graph.check()?;
        graph.put(0)?;
        let mut session = Session::open()?;
        let stream = session.stream(stream, PER_THREAD)?;
        graph.put(session.end_capture(stream)?)
    }

    stream fn cuStreamIsCapturing(stream: Handle, status: Out<u32>) {
        status.check()?;
        let mut session = Session::open()?;
        let stream = session.stream(stream, PER_THREAD)?;
        session.forbid_implicit(stream)?;
        status.put(session.captures.of(stream).map_or(0, |(_, it, _)| 1 + u32::from(it.is_broken)))
    }

    stream fn cuStreamGetCaptureInfo(stream: Handle, status: Out<u32>, number: Out<u64>) {
        info(stream, PER_THREAD, status, number, None)
    }

    stream fn cuStreamGetCaptureInfo_v2(stream: Handle, status: Out<u32>, number: Out<u64>, graph: Out<Handle>, after: Out<*const Handle>, count: Out<usize>) {
        info(stream, PER_THREAD, status, number, Some((graph, after, count)))
    }

    stream fn cuStreamGetCaptureInfo_v3(stream: Handle, status: Out<u32>, number: Out<u64>, graph: Out<Handle>, after: Out<*const Handle>, edges: Out<*const u64>, count: Out<usize>) {
        edges.put_if(std::ptr::null());
        info(stream, PER_THREAD, status, number, Some((graph, after, count)))
    }

    stream fn cuStreamUpdateCaptureDependencies(stream: Handle, nodes: In<Handle>, count: usize, flags: u32) {
        update(stream, PER_THREAD, nodes, count, flags)
    }

    stream fn cuStreamUpdateCaptureDependencies_v2(stream: Handle, nodes: In<Handle>, _edges: In<u64>, count: usize, flags: u32) {
        update(stream, PER_THREAD, nodes, count, flags)
    }

    fn cuThreadExchangeStreamCaptureMode(mode: Out<u32>) {
        let wanted = Mode::of(mode.get()?)?;
        mode.put(exchange_mode(wanted) as u32)
    }
}

fn begin(stream: Handle, per_thread: bool, mode: u32) -> Answer {
    let mut session = Session::open()?;
    let stream = session.stream(stream, per_thread)?;
    session.begin_capture(stream, Mode::of(mode)?, None)
}

type More = Option<(Out<Handle>, Out<*const Handle>, Out<usize>)>;

fn info(
    stream: Handle,
    per_thread: bool,
    status: Out<u32>,
    number: Out<u64>,
    more: More,
) -> Answer {
    status.check()?;
    let mut session = Session::open()?;
    let stream = session.stream(stream, per_thread)?;
    session.forbid_implicit(stream)?;
    let Some((id, capture, tips)) = session.captures.of(stream) else {
        return status.put(0);
    };
    if capture.is_broken {
        return status.put(2);
    }
    number.put_if((id / 64) & 0xffff_ffff);
    if let Some((graph, after, count)) = more {
        graph.put_if(capture.graph);
        count.put_if(tips.len());
        let shown = SHOWN.with_borrow_mut(|shown| {
            tips.clone_into(shown);
            shown.as_ptr()
        });
        after.put_if(shown);
    }
    status.put(1)
}

fn update(stream: Handle, per_thread: bool, nodes: In<Handle>, count: usize, flags: u32) -> Answer {
    if flags > 1 {
        return Err(Code::INVALID_VALUE);
    }
    let mut session = Session::open()?;
    let stream = session.stream(stream, per_thread)?;
    let nodes = nodes.list(count)?;
    session.set_capture_tips(stream, &nodes, flags == 1)
}
