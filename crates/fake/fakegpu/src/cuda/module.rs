//! Modules.

use std::ffi::CStr;

use crate::cuda::arguments::{In, Out, Text};
use crate::cuda::{Handle, functions, outside_capture};
use crate::driver::Session;
use crate::driver::module::image::{self, Image};
use crate::driver::result::{Answer, Code};

pub(crate) mod function;
pub(crate) mod launch;
pub(crate) mod library;

/// The first bytes of ELF, of a fat binary, and of the compiler's wrapper around one.
const ELF: [u8; 4] = *b"\x7fELF";
const FAT: u32 = 0xba55_ed50;
const WRAPPER: u32 = 0x4662_43b1;
/// Bytes of a card that code takes when its length is not known.
const CODE_SIZE: u64 = 64 << 10;

functions! {
    fn cuModuleLoadData(handle: Out<Handle>, code: In<u8>) {
        load(handle, code)
    }

    fn cuModuleLoadDataEx(handle: Out<Handle>, code: In<u8>, _n_options: u32, _options: In<u32>, _values: In<u64>) {
        load(handle, code)
    }

    fn cuModuleUnload(handle: Handle) {
        let mut session = outside_capture()?;
        let module = session.modules.modules.get(&handle).ok_or(Code::INVALID_HANDLE)?;
        let context = module.context;
        if session.is_of_library(handle) {
            return Err(Code::NOT_PERMITTED);
        }
        session.finish_context(context);
        session.unload_module(handle)
    }

    fn cuModuleGetLoadingMode(mode: Out<u32>) {
        mode.put(2)
    }

    fn cuModuleGetFunction(function: Out<Handle>, module: Handle, name: Text) {
        function.check()?;
        let name = name.get()?;
        function.put(Session::open()?.function(module, &name)?)
    }

    fn cuModuleGetGlobal_v2(address: Out<u64>, size: Out<usize>, module: Handle, name: Text) {
        let name = name.string()?;
        let (start, length) = Session::open()?.variable(module, &name)?;
        address.put_if(start);
        size.put_if(length as usize);
        Ok(())
    }
}

fn load(handle: Out<Handle>, code: In<u8>) -> Answer {
    handle.check()?;
    let mut session = outside_capture()?;
    session.current()?;
    let image = read(code)?;
    handle.put(session.load_module(image)?)
}

/// Reads code that lies in the program's memory. Only text and fat binaries tell their
/// length, so no more of other code is read than its first bytes.
fn read(code: In<u8>) -> Answer<Image> {
    let first: [u8; 4] = code.cast().get()?;
    let number = u32::from_ne_bytes(first);
    let size = if image::is_text(&first) {
        // SAFETY: text ends with a zero, as `cuModuleLoadData` asks for.
        let text = unsafe { CStr::from_ptr(code.address() as *const _) };
        return text_image(text.to_bytes());
    } else if first == ELF {
        CODE_SIZE
    } else if number == WRAPPER {
        // Magic, version, and the address of the fat binary.
        let [_, data] = code.cast::<[u64; 2]>().get()?;
        fat_size(data)?
    } else if number == FAT {
        fat_size(code.address())?
    } else {
        CODE_SIZE
    };
    Ok(image::opaque(size))
}

/// Magic, version and length of the header, then the length of the rest.
fn fat_size(address: u64) -> Answer<u64> {
    if address == 0 {
        return Err(Code::INVALID_IMAGE);
    }
    // SAFETY: the program passes a fat binary, which begins with such a header.
    let [first, rest] = unsafe { (address as *const [u64; 2]).read_unaligned() };
    let size = (first >> 48)
        .checked_add(rest)
        .filter(|size| *size < 1 << 40);
    if first as u32 != FAT {
        return Err(Code::INVALID_IMAGE);
    }
    size.ok_or(Code::INVALID_IMAGE)
}

fn text_image(text: &[u8]) -> Answer<Image> {
    let text = String::from_utf8_lossy(text);
    if !text.contains(".version") {
        return Err(Code::INVALID_PTX);
    }
    Ok(image::read_text(&text))
}
