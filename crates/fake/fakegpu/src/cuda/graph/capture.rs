//! Capture of streams into graphs.

use crate::cuda::arguments::{In, Out};
use crate::cuda::{Handle, functions};
use crate::driver::Session;
use crate::driver::graph::capture::{Mode, exchange_mode};

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

    fn cuThreadExchangeStreamCaptureMode(mode: Out<u32>) {
        let wanted = Mode::of(mode.get()?)?;
        mode.put(exchange_mode(wanted) as u32)
    }
}
