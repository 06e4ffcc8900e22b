//! Contexts.

use sublet_driver_api::cuda::CUctxCreateParams;

use crate::cuda::arguments::{In, Out};
use crate::cuda::{Handle, functions, outside_capture};
use crate::driver::Session;
use crate::driver::context;
use crate::driver::memory::address_space::{self, BLOCK};
use crate::driver::result::{Answer, Code};

pub(crate) mod green;

functions! {
    fn cuDevicePrimaryCtxRetain(handle: Out<Handle>, device: i32) {
        handle.check()?;
        handle.put(Session::open()?.retain_primary(device)?)
    }

    fn cuDevicePrimaryCtxRelease_v2(device: i32) {
        Session::open()?.release_primary(device)
    }

    fn cuDevicePrimaryCtxReset_v2(device: i32) {
        Session::open()?.reset_primary(device)
    }

    fn cuDevicePrimaryCtxGetState(device: i32, flags: Out<u32>, active: Out<i32>) {
        let session = Session::open()?;
        session.card_of(device)?;
        let id = session.primaries[device as usize].id;
        flags.put(0)?;
        active.put(i32::from(session.contexts.contains_key(&id)))
    }

    fn cuCtxCreate_v2(handle: Out<Handle>, flags: u32, device: i32) {
        create(handle, flags, device)
    }

    fn cuCtxCreate_v4(handle: Out<Handle>, params: In<CUctxCreateParams>, flags: u32, device: i32) {
        if !params.is_null() {
            let params = params.get()?;
            if params.numExecAffinityParams != 0 || !params.cigParams.is_null() {
                return Err(Code::NOT_SUPPORTED);
            }
        }
        create(handle, flags, device)
    }

    fn cuCtxDestroy_v2(handle: Handle) {
        Session::open()?.destroy_context(handle)
    }

    fn cuCtxAttach(handle: Out<Handle>, flags: u32) {
        handle.check()?;
        if flags != 0 {
            return Err(Code::INVALID_VALUE);
        }
        handle.put(Session::open()?.attach()?)
    }

    fn cuCtxDetach(handle: Handle) {
        outside_capture()?.detach(handle)
    }

    fn cuCtxPushCurrent_v2(handle: Handle) {
        let session = Session::open()?;
        if handle == 0 {
            return Err(Code::INVALID_CONTEXT);
        }
        session.context(handle)?;
        context::push(handle);
        Ok(())
    }

    fn cuCtxPopCurrent_v2(handle: Out<Handle>) {
        let _session = Session::open()?;
        let popped = context::pop().ok_or(Code::INVALID_CONTEXT)?;
        handle.put_if(popped);
        Ok(())
    }

    fn cuCtxSetCurrent(handle: Handle) {
        let session = Session::open()?;
        if handle != 0 {
            session.context(handle)?;
        }
        context::pop();
        if handle != 0 {
            context::push(handle);
        }
        Ok(())
    }

    fn cuCtxGetCurrent(handle: Out<Handle>) {
        let _session = Session::open()?;
        handle.put(context::top().unwrap_or(0))
    }

    fn cuCtxGetDevice(device: Out<i32>) {
        let session = Session::open()?;
        let card = session.current_card()?;
        device.put(session.device_of(card))
    }

    fn cuCtxGetDevice_v2(device: Out<i32>, handle: Handle) {
        let session = Session::open()?;
        let card = session.context(handle)?.card;
        device.put(session.device_of(card))
    }

    fn cuCtxSynchronize() {
        synchronize(0)
    }

    fn cuCtxSynchronize_v2(handle: Handle) {
        synchronize(handle)
    }

    fn cuCtxSetLimit(limit: u32, value: usize) {
        let mut session = Session::open()?;
        let more = (value as u64).saturating_sub(default_limit(limit)? as u64);
        let product = session.product(session.current_card()?);
        let bytes = match limit {
            // A stack for each thread that can run at the same time.
            0 => {
                let threads = product.multiprocessor().n_threads * product.n_multiprocessors;
                more.saturating_mul(threads.into())
            }
            // What is printed, and the heap.
            1 | 2 => more,
            _ => 0,
        };
        let bytes = address_space::round_up(bytes, BLOCK).ok_or(Code::OUT_OF_MEMORY)?;
        session.set_limit(limit, value, bytes)
    }

    fn cuCtxGetLimit(value: Out<usize>, limit: u32) {
        let session = Session::open()?;
        let default = default_limit(limit)?;
        let set = session.context(0)?.limits.get(&limit);
        value.put(set.copied().unwrap_or(default))
    }

    fn cuCtxEnablePeerAccess(peer: Handle, flags: u32) {
        let mut session = Session::open()?;
        if flags != 0 {
            return Err(Code::INVALID_VALUE);
        }
        let peer_card = session.context(peer)?.card;
        if peer == 0 || peer_card == session.current_card()? {
            return Err(Code::PEER_ACCESS_UNSUPPORTED);
        }
        if session.context_mut(0)?.peers.insert(peer) {
            Ok(())
        } else {
            Err(Code::PEER_ACCESS_ALREADY_ENABLED)
        }
    }

    fn cuCtxDisablePeerAccess(peer: Handle) {
        let mut session = Session::open()?;
        session.context(peer)?;
        if session.context_mut(0)?.peers.remove(&peer) {
            Ok(())
        } else {
            Err(Code::PEER_ACCESS_NOT_ENABLED)
        }
    }
}

fn create(handle: Out<Handle>, flags: u32, device: i32) -> Answer {
    handle.check()?;
    let mut session = outside_capture()?;
    let card = session.card_of(device)?;
    let id = session.make_context(card, flags)?;
    context::push(id);
    handle.put(id)
}

fn synchronize(handle: Handle) -> Answer {
    let mut session = outside_capture()?;
    let id = if handle == 0 {
        session.current()?
    } else {
        handle
    };
    session.context(id)?;
    session.forbid_if_any_captured(id)?;
    session.finish_context(id);
    session.trim_pools();
    match session.context(id)?.broken {
        Some(code) => Err(code),
        None => Ok(()),
    }
}

/// Returns the value of a limit before it is set.
fn default_limit(limit: u32) -> Answer<usize> {
    Ok(match limit {
        0 => 1024,
        1 => 8 << 20,
        2 => 8 << 20,
        3 => 2,
        4 => 2048,
        5 => 64,
        6 | 8 | 9 | 10 => 0,
        7 => 49152,
        _ => return Err(Code::UNSUPPORTED_LIMIT),
    })
}
