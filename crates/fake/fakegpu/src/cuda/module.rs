//! Modules and libraries.

use std::ffi::{CStr, c_void};
use std::sync::Arc;

use crate::cuda::arguments::{In, Out, Text};
use crate::cuda::{Handle, functions, outside_capture};
use crate::driver::Session;
use crate::driver::module::image::{self, Image};
use crate::driver::result::{Answer, Code};

pub(crate) mod function;
pub(crate) mod launch;

/// The first bytes of ELF, of a fat binary, and of the compiler's wrapper around one.
const ELF: [u8; 4] = *b"\x7fELF";
const FAT: u32 = 0xba55_ed50;
const WRAPPER: u32 = 0x4662_43b1;
/// Bytes of a card that code takes when its length is not known.
const CODE_SIZE: u64 = 64 << 10;

functions! {
    fn cuModuleLoad(handle: Out<Handle>, path: Text) {
        handle.check()?;
        let image = file(path)?;
        handle.put(outside_capture()?.load_module(image)?)
    }

    fn cuModuleLoadData(handle: Out<Handle>, code: In<u8>) {
        load(handle, code)
    }

    fn cuModuleLoadDataEx(handle: Out<Handle>, code: In<u8>, _n_options: u32, _options: In<u32>, _values: In<u64>) {
        load(handle, code)
    }

    fn cuModuleLoadFatBinary(handle: Out<Handle>, code: In<u8>) {
        load(handle, code)
    }

    fn cuModuleUnload(handle: Handle) {
        let mut session = outside_capture()?;
        let module = session.modules.modules.get(&handle).ok_or(Code::INVALID_HANDLE)?;
        let context = module.context;
        session.finish_context(context);
        session.unload_module(handle)
    }

    fn cuModuleGetLoadingMode(mode: Out<u32>) {
        mode.put(2)
    }

    fn cuModuleGetFunction(function: Out<Handle>, module: Handle, name: Text) {
        function.check()?;
        let name = name.get()?;
        function.put(Session::open()?.function(module, false, &name)?)
    }

    fn cuModuleGetFunctionCount(count: Out<u32>, module: Handle) {
        let session = Session::open()?;
        let module = session.modules.modules.get(&module).ok_or(Code::INVALID_HANDLE)?;
        count.put(n_kernels(&module.image)?)
    }

    fn cuModuleEnumerateFunctions(list: Out<Handle>, room: u32, module: Handle) {
        let mut session = Session::open()?;
        let known = session.modules.modules.get(&module).ok_or(Code::INVALID_HANDLE)?;
        let names = names(&known.image, room)?;
        let functions = names.iter().map(|name| session.function(module, false, name));
        list.put_all(functions.collect::<Answer<Vec<_>>>()?)
    }

    fn cuModuleGetGlobal_v2(address: Out<u64>, size: Out<usize>, module: Handle, name: Text) {
        let name = name.string()?;
        let (start, length) = Session::open()?.variable(module, &name)?;
        address.put_if(start);
        size.put_if(length as usize);
        Ok(())
    }

    fn cuLibraryLoadData(handle: Out<Handle>, code: In<u8>, _options: In<u32>, _values: In<u64>, _n: u32, _library_options: In<u32>, _library_values: In<u64>, _library_n: u32) {
        handle.check()?;
        let mut session = Session::open()?;
        let image = read(code)?;
        handle.put(session.load_library(image))
    }

    fn cuLibraryLoadFromFile(handle: Out<Handle>, path: Text, _options: In<u32>, _values: In<u64>, _n: u32, _library_options: In<u32>, _library_values: In<u64>, _library_n: u32) {
        handle.check()?;
        let mut session = Session::open()?;
        let image = file(path)?;
        handle.put(session.load_library(image))
    }

    fn cuLibraryUnload(handle: Handle) {
        let mut session = outside_capture()?;
        let contexts: Vec<Handle> = session.contexts.keys().copied().collect();
        for context in contexts {
            session.finish_context(context);
        }
        session.unload_library(handle)
    }

    fn cuLibraryGetKernel(kernel: Out<Handle>, library: Handle, name: Text) {
        kernel.check()?;
        let name = name.get()?;
        kernel.put(Session::open()?.function(library, true, &name)?)
    }

    fn cuLibraryGetKernelCount(count: Out<u32>, library: Handle) {
        let session = Session::open()?;
        let library = session.modules.libraries.get(&library).ok_or(Code::INVALID_HANDLE)?;
        count.put(n_kernels(&library.image)?)
    }

    fn cuLibraryEnumerateKernels(list: Out<Handle>, room: u32, library: Handle) {
        let mut session = Session::open()?;
        let known = session.modules.libraries.get(&library).ok_or(Code::INVALID_HANDLE)?;
        let names = names(&known.image, room)?;
        let kernels = names.iter().map(|name| session.function(library, true, name));
        list.put_all(kernels.collect::<Answer<Vec<_>>>()?)
    }

    fn cuLibraryGetModule(module: Out<Handle>, library: Handle) {
        module.check()?;
        module.put(Session::open()?.module_of_library(library)?)
    }

    fn cuLibraryGetGlobal(address: Out<u64>, size: Out<usize>, library: Handle, name: Text) {
        let name = name.string()?;
        let mut session = Session::open()?;
        let module = session.module_of_library(library)?;
        let (start, length) = session.variable(module, &name)?;
        address.put_if(start);
        size.put_if(length as usize);
        Ok(())
    }

    fn cuLibraryGetManaged(_address: Out<u64>, _size: Out<usize>, library: Handle, _name: Text) {
        let session = Session::open()?;
        session.modules.libraries.get(&library).ok_or(Code::INVALID_HANDLE)?;
        Err(Code::NOT_FOUND)
    }

    fn cuLibraryGetUnifiedFunction(_function: Out<*mut c_void>, library: Handle, _name: Text) {
        let session = Session::open()?;
        session.modules.libraries.get(&library).ok_or(Code::INVALID_HANDLE)?;
        Err(Code::NOT_FOUND)
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
fn read(code: In<u8>) -> Answer<Arc<Image>> {
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
    Ok(Arc::new(image::opaque(size)))
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

fn text_image(text: &[u8]) -> Answer<Arc<Image>> {
    let text = String::from_utf8_lossy(text);
    if !text.contains(".version") {
        return Err(Code::INVALID_PTX);
    }
    Ok(Arc::new(image::read_text(&text)))
}

fn file(path: Text) -> Answer<Arc<Image>> {
    let path = path.string()?;
    let bytes = std::fs::read(path).map_err(|_| Code::FILE_NOT_FOUND)?;
    if bytes.is_empty() {
        return Err(Code::INVALID_IMAGE);
    }
    if image::is_text(&bytes) {
        let end = bytes.iter().position(|byte| *byte == 0);
        return text_image(&bytes[..end.unwrap_or(bytes.len())]);
    }
    Ok(Arc::new(image::opaque(bytes.len() as u64)))
}

fn n_kernels(image: &Image) -> Answer<u32> {
    let n_kernels = image
        .kernels
        .as_ref()
        .map_or(0, std::collections::BTreeMap::len);
    u32::try_from(n_kernels).map_err(|_| Code::UNKNOWN)
}

fn names(image: &Image, room: u32) -> Answer<Vec<std::ffi::CString>> {
    let kernels = image.kernels.iter().flat_map(|kernels| kernels.keys());
    let names = kernels.take(room as usize);
    names
        .map(|name| std::ffi::CString::new(name.as_str()).map_err(|_| Code::UNKNOWN))
        .collect()
}
