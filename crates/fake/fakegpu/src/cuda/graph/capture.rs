//! Capture of streams into graphs.

use std::cell::RefCell;

use crate::cuda::arguments::{In, Out};
use crate::cuda::{Handle, functions};
use crate::driver::Session;
use crate::driver::graph::capture::{Mode, exchange_mode};
use crate::driver::result::Code;

thread_local! {
    /// The last result of `cuStreamGetCaptureInfo` in this thread; the program may read it until
    /// the next call.
    static SHOWN: RefCell<Vec<Handle>> = const { RefCell::new(Vec::new()) };
}

functions! {
    stream fn cuStreamBeginCapture_v2(stream: Handle, mode: u32) {
        let mut session = Session::open()?;
        let stream = session.stream(stream, PER_THREAD)?;
        session.begin_capture(stream, Mode::of(mode)?, None)
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

    stream fn cuStreamGetCaptureInfo_v3(stream: Handle, status: Out<u32>, number: Out<u64>, graph: Out<Handle>, after: Out<*const Handle>, edges: Out<*const u64>, count: Out<usize>) {
        edges.put_if(std::ptr::null());
        status.check()?;
        let mut session = Session::open()?;
        let stream = session.stream(stream, PER_THREAD)?;
        session.forbid_implicit(stream)?;
        let Some((id, capture, tips)) = session.captures.of(stream) else {
            return status.put(0);
        };
        if capture.is_broken {
            return status.put(2);
        }
        number.put_if((id / 64) & 0xffff_ffff);
        graph.put_if(capture.graph);
        count.put_if(tips.len());
        let shown = SHOWN.with_borrow_mut(|shown| {
            tips.clone_into(shown);
            shown.as_ptr()
        });
        after.put_if(shown);
        status.put(1)
    }

    stream fn cuStreamUpdateCaptureDependencies_v2(stream: Handle, nodes: In<Handle>, _edges: In<u64>, count: usize, flags: u32) {
        if flags > 1 {
            return Err(Code::INVALID_VALUE);
        }
        let mut session = Session::open()?;
        let stream = session.stream(stream, PER_THREAD)?;
        let nodes = nodes.list(count)?;
        session.set_capture_tips(stream, &nodes, flags == 1)
    }

    fn cuThreadExchangeStreamCaptureMode(mode: Out<u32>) {
        let wanted = Mode::of(mode.get()?)?;
        mode.put(exchange_mode(wanted) as u32)
    }
}
