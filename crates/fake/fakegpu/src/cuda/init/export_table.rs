//! `cuGetExportTable`: tables of functions that no header declares. The CUDA runtime asks for seven
//! of them before it does anything. In this order: one that it can do without, then `LIBCUDART`,
//! `TOOLS`, `THREADS`, `STORAGE`, `CHECKS`, and last one (`d4082055-bde6-704b-8d34-ba123c66e1f2`)
//! by which it makes sure that the driver is NVIDIA's own. The fake is not, and does not answer
//! that one: see `REFUSED`.

use std::ffi::c_void;
use std::sync::{Mutex, PoisonError};

use sublet_driver_api::cuda::CUuuid;

use crate::FunctionPointer;
use crate::cuda::arguments::{In, Out};
use crate::cuda::{Handle, functions, guard};
use crate::driver::Session;
use crate::driver::context::top;
use crate::driver::result::{Answer, Code};
use crate::{notice, trace};

/// Table for the CUDA runtime itself: a device's primary context without retaining it.
const LIBCUDART: [u8; 16] = [
    0x6b, 0xd5, 0xfb, 0x6c, 0x5b, 0xf4, 0xe7, 0x4a, 0x89, 0x87, 0xd9, 0x39, 0x12, 0xfd, 0x9d, 0xf9,
];
/// Table of the callbacks of tools.
const TOOLS: [u8; 16] = [
    0xa0, 0x94, 0x79, 0x8c, 0x2e, 0x74, 0x2e, 0x74, 0x93, 0xf2, 0x08, 0x00, 0x20, 0x0c, 0x0a, 0x66,
];
/// Table of the tools' data about a thread.
const THREADS: [u8; 16] = [
    0x42, 0xd8, 0x5a, 0x81, 0x23, 0xf6, 0xcb, 0x47, 0x82, 0x98, 0xf6, 0xe7, 0x8a, 0x3a, 0xec, 0xdc,
];
/// Whether a context can be used.
const CHECKS: [u8; 16] = [
    0x26, 0x3e, 0x88, 0x60, 0x7c, 0xd2, 0x61, 0x43, 0x92, 0xf6, 0xbb, 0xd5, 0x00, 0x6d, 0xfa, 0x7e,
];
/// Values that a library keeps for each context.
const STORAGE: [u8; 16] = [
    0xc6, 0x93, 0x33, 0x6e, 0x11, 0x21, 0xdf, 0x11, 0xa8, 0xc3, 0x68, 0xf3, 0x55, 0xd8, 0x95, 0x93,
];

/// The CUDA runtime's test of the driver's integrity. A library that gives this table claims to be
/// NVIDIA's driver, so the table is refused by name, and the CUDA runtime reports that the driver
/// does not support the request. Programs that talk to the driver itself are not affected.
const REFUSED: [u8; 16] = [
    0xd4, 0x08, 0x20, 0x55, 0xbd, 0xe6, 0x70, 0x4b, 0x8d, 0x34, 0xba, 0x12, 0x3c, 0x66, 0xe1, 0xf2,
];

const N_LIBCUDART: usize = 13;
const N_TOOLS: usize = 7;
const N_THREADS: usize = 4;
const N_CHECKS: usize = 4;

/// A table with its own size in bytes in its first place. Places without a known caller are
/// refusals.
static LIBCUDART_TABLE: [FunctionPointer; N_LIBCUDART] = {
    let mut table = [FunctionPointer(refuse as *const ()); N_LIBCUDART];
    table[0] = FunctionPointer(std::ptr::without_provenance(N_LIBCUDART * 8));
    table[2] = FunctionPointer(primary_context as *const ());
    table
};

static TOOLS_TABLE: [FunctionPointer; N_TOOLS] = {
    let mut table = [FunctionPointer(refuse as *const ()); N_TOOLS];
    table[0] = FunctionPointer(std::ptr::without_provenance(N_TOOLS * 8));
    table[2] = FunctionPointer(first_room as *const ());
    table[6] = FunctionPointer(second_room as *const ());
    table
};

static THREADS_TABLE: [FunctionPointer; N_THREADS] = {
    let mut table = [FunctionPointer(refuse as *const ()); N_THREADS];
    table[0] = FunctionPointer(std::ptr::without_provenance(N_THREADS * 8));
    table[2] = FunctionPointer(current_context as *const ());
    table
};

static CHECKS_TABLE: [FunctionPointer; N_CHECKS] = {
    let mut table = [FunctionPointer(refuse as *const ()); N_CHECKS];
    table[0] = FunctionPointer(std::ptr::without_provenance(N_CHECKS * 8));
    table[2] = FunctionPointer(check_context as *const ());
    table[3] = FunctionPointer(check_all as *const ());
    table
};

/// This one has no size.
static STORAGE_TABLE: [FunctionPointer; 3] = [
    FunctionPointer(store as *const ()),
    FunctionPointer(forget as *const ()),
    FunctionPointer(load as *const ()),
];

/// Values by context and key.
static STORED: Mutex<Vec<(Handle, usize, usize)>> = Mutex::new(Vec::new());

/// Room for the callbacks of tools. Nobody registers any here, so it stays empty.
static ROOM: [std::sync::atomic::AtomicU64; 128] =
    [const { std::sync::atomic::AtomicU64::new(0) }; 128];

functions! {
    fn cuGetExportTable(table: Out<FunctionPointer>, id: In<CUuuid>) {
        table.check()?;
        let found = match id.get()?.bytes {
            LIBCUDART => LIBCUDART_TABLE.as_ptr(),
            TOOLS => TOOLS_TABLE.as_ptr(),
            THREADS => THREADS_TABLE.as_ptr(),
            CHECKS => CHECKS_TABLE.as_ptr(),
            STORAGE => STORAGE_TABLE.as_ptr(),
            // Success without a table would make the program jump to nowhere.
            REFUSED => {
                trace::note("the CUDA runtime's test of the driver's integrity is not answered");
                notice::cuda_runtime();
                return Err(Code::NOT_SUPPORTED);
            }
            _ => return Err(Code::NOT_SUPPORTED),
        };
        table.put(FunctionPointer(found.cast()))
    }
}

extern "C" fn refuse() -> u32 {
    guard(
        "a function of an export table that the fake has not",
        || Err(Code::NOT_SUPPORTED),
    )
}

/// The primary context of a device, whose handle exists before the context does.
extern "C" fn primary_context(context: Out<Handle>, device: i32) -> u32 {
    guard("primary context", move || {
        let mut session = Session::open()?;
        session.card_of(device)?;
        let place = device as usize;
        if session.primaries[place].id == 0 {
            session.primaries[place].id = session.new_id();
        }
        context.put(session.primaries[place].id)
    })
}

/// The context that is current to this thread, 0 for none.
extern "C" fn current_context(context: Out<Handle>) -> u32 {
    guard("current context", move || context.put(top().unwrap_or(0)))
}

/// Nothing is wrong with a context.
extern "C" fn check_context(_context: Handle, flags: Out<u32>, detail: Out<*const c_void>) -> u32 {
    guard("check context", move || {
        flags.put_if(0);
        detail.put_if(std::ptr::null());
        Ok(())
    })
}

extern "C" fn check_all() -> u32 {
    guard("check all", || Ok(()))
}

extern "C" fn first_room(start: Out<*const c_void>, size: Out<usize>) {
    start.put_if(ROOM.as_ptr().cast());
    size.put_if(size_of_val(&ROOM) - 16);
}

extern "C" fn second_room(start: Out<*const c_void>, size: Out<usize>) {
    start.put_if((&raw const ROOM[126]).cast());
    size.put_if(14);
}

extern "C" fn store(context: Handle, key: usize, value: usize, _drop: usize) -> u32 {
    guard("store", move || {
        let context = owner(context)?;
        let mut stored = STORED.lock().unwrap_or_else(PoisonError::into_inner);
        stored.retain(|(owner, known, _)| (*owner, *known) != (context, key));
        stored.push((context, key, value));
        Ok(())
    })
}

extern "C" fn forget(context: Handle, key: usize) -> u32 {
    guard("forget", move || {
        let context = owner(context)?;
        let mut stored = STORED.lock().unwrap_or_else(PoisonError::into_inner);
        stored.retain(|(owner, known, _)| (*owner, *known) != (context, key));
        Ok(())
    })
}

extern "C" fn load(value: Out<usize>, context: Handle, key: usize) -> u32 {
    guard("load", move || {
        let context = owner(context)?;
        let stored = STORED.lock().unwrap_or_else(PoisonError::into_inner);
        let found = stored
            .iter()
            .find(|(owner, known, _)| (*owner, *known) == (context, key));
        let (_, _, found) = found.ok_or(Code::INVALID_HANDLE)?;
        value.put(*found)
    })
}

/// 0 is the current context.
fn owner(context: Handle) -> Answer<Handle> {
    if context != 0 {
        return Ok(context);
    }
    top().ok_or(Code::INVALID_CONTEXT)
}
