//! Properties of a stream: the stream that a call means, its context, and whether it records.

use sublet_driver_api::{CUDA, Thread};

use super::c::*;
use super::real;
use super::tenant::current_device;
use crate::real::Row;

/// The device that a stream belongs to.
#[must_use]
pub fn device_of_stream(stream: CUstream) -> Option<CUdevice> {
    // The first three are not streams but names for the default ones.
    if stream <= CU_STREAM_PER_THREAD {
        return current_device();
    }
    let mut device = 0;
    // SAFETY: writes the number it is given.
    if unsafe { real::cuStreamGetDevice(stream, &raw mut device) } == CUDA_SUCCESS {
        return Some(device);
    }
    let (mut context, mut popped) = Default::default();
    // SAFETY: each writes what it is given, and the context is current for one question only.
    unsafe {
        if real::cuStreamGetCtx(stream, &raw mut context) != CUDA_SUCCESS
            || real::cuCtxPushCurrent_v2(context) != CUDA_SUCCESS
        {
            return current_device();
        }
        let device = current_device();
        let _ = real::cuCtxPopCurrent_v2(&raw mut popped);
        device
    }
}

/// The stream that a call means. Zero is the calling thread's own for the per-thread twins.
#[must_use]
pub fn meant<R: Row>(stream: CUstream) -> CUstream {
    if stream.is_null() && CUDA[R::INDEX].thread == Thread::Ptsz {
        CU_STREAM_PER_THREAD
    } else {
        stream
    }
}

/// True while the stream's work is recorded and not done: an allocation is a graph's then.
#[must_use]
pub fn is_capturing(stream: CUstream) -> bool {
    let (result, status) = capture_status(stream);
    result == CUDA_SUCCESS && status != CU_STREAM_CAPTURE_STATUS_NONE
}

/// False if an allocation in the stream takes nothing now. It is recorded for a graph, or nobody has
/// started the driver, which refuses it then, and may crash if it is asked for the context of a
/// stream that is none (R555).
#[must_use]
pub fn may_take(stream: CUstream) -> bool {
    let (result, status) = capture_status(stream);
    let is_recorded = result == CUDA_SUCCESS && status != CU_STREAM_CAPTURE_STATUS_NONE;
    result != CUDA_ERROR_NOT_INITIALIZED && !is_recorded
}

/// False if a question about the stream's work, or an event in it, would spoil a recording: its
/// own, or one that the legacy stream would have to wait for.
#[must_use]
pub fn may_be_touched(stream: CUstream) -> bool {
    let (result, status) = capture_status(stream);
    result != CUDA_ERROR_STREAM_CAPTURE_IMPLICIT && status == CU_STREAM_CAPTURE_STATUS_NONE
}

/// The one question that disturbs no recording.
fn capture_status(stream: CUstream) -> (CUresult, CUstreamCaptureStatus) {
    let mut status = CU_STREAM_CAPTURE_STATUS_NONE;
    // SAFETY: writes the number it is given.
    let result = unsafe { real::cuStreamIsCapturing(stream, &raw mut status) };
    (result, status)
}

/// False before the program has started the driver. Then the driver refuses whatever it is given,
/// and does not look at it.
#[must_use]
pub fn is_driver_started() -> bool {
    capture_status(CU_STREAM_LEGACY).0 != CUDA_ERROR_NOT_INITIALIZED
}

/// Another context is current, until this is dropped. Null: the one that is.
#[derive(Debug)]
pub struct InContext(bool);

impl InContext {
    /// Makes a context current. If the driver refuses, it also refuses the question that follows.
    #[must_use]
    pub fn enter(context: CUcontext) -> Self {
        let is_other = !context.is_null();
        // SAFETY: a context that lives.
        Self(is_other && unsafe { real::cuCtxPushCurrent_v2(context) } == CUDA_SUCCESS)
    }
}

impl Drop for InContext {
    fn drop(&mut self) {
        let mut popped = CUcontext::default();
        if self.0 {
            // SAFETY: writes the handle it is given.
            let _ = unsafe { real::cuCtxPopCurrent_v2(&raw mut popped) };
        }
    }
}

/// The thread may make calls that a recording elsewhere forbids, until this is dropped. The streams
/// of these calls do not record.
#[derive(Debug)]
pub struct Relaxed(CUstreamCaptureMode);

impl Relaxed {
    /// From now on.
    #[must_use]
    pub fn enter() -> Self {
        Self(exchange(CU_STREAM_CAPTURE_MODE_RELAXED))
    }
}

impl Drop for Relaxed {
    fn drop(&mut self) {
        exchange(self.0);
    }
}

fn exchange(mut mode: CUstreamCaptureMode) -> CUstreamCaptureMode {
    // SAFETY: reads and writes the number it is given.
    let _ = unsafe { real::cuThreadExchangeStreamCaptureMode(&raw mut mode) };
    mode
}
