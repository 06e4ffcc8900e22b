//! Beginning, versions, and the meaning of codes.

use std::ffi::{CString, c_char};
use std::sync::{Mutex, PoisonError};

use sublet_driver_api::cuda::CUresult;

use crate::cuda::arguments::Out;
use crate::cuda::functions;
use crate::driver::result::Code;
use crate::driver::{self, Session};
use crate::product::CUDA_VERSION;

pub(crate) mod export_table;
pub(crate) mod lookup;

/// Texts that were given to the program: they stay for ever, and there are few.
static TEXTS: Mutex<Vec<(u32, &'static CString)>> = Mutex::new(Vec::new());

functions! {
    fn cuInit(flags: u32) {
        if flags != 0 {
            return Err(Code::INVALID_VALUE);
        }
        driver::init()?;
        driver::injection::inject();
        Ok(())
    }

    fn cuDriverGetVersion(version: Out<i32>) {
        version.put(CUDA_VERSION)
    }

    fn cuGetErrorName(code: u32, name: Out<*const c_char>) {
        name.put(text(code)?)
    }

    fn cuGetErrorString(code: u32, name: Out<*const c_char>) {
        name.put(text(code)?)
    }

    fn cuProfilerStart() {
        Session::open()?.current().map(drop)
    }

    fn cuProfilerStop() {
        Session::open()?.current().map(drop)
    }
}

fn text(code: u32) -> Result<*const c_char, Code> {
    let name = CUresult(code).name().ok_or(Code::INVALID_VALUE)?;
    let mut texts = TEXTS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, text)) = texts.iter().find(|(known, _)| *known == code) {
        return Ok(text.as_ptr());
    }
    let text = CString::new(name).map_err(|_| Code::UNKNOWN)?;
    let text: &'static CString = Box::leak(Box::new(text));
    texts.push((code, text));
    Ok(text.as_ptr())
}
