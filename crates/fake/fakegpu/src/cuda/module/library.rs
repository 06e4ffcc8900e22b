//! Libraries: code that is in no context until a context needs it.

use std::fs;

use super::read;
use crate::cuda::arguments::{In, Out, Text};
use crate::cuda::{Handle, functions, outside_capture};
use crate::driver::Session;
use crate::driver::module::image::Image;
use crate::driver::result::{Answer, Code};

functions! {
    fn cuLibraryLoadData(library: Out<Handle>, code: In<u8>, _jit: In<u32>, _jit_values: In<u64>, _n_jit: u32, _options: In<u32>, _values: In<u64>, _n_options: u32) {
        load(library, || read(code))
    }

    fn cuLibraryLoadFromFile(library: Out<Handle>, file: Text, _jit: In<u32>, _jit_values: In<u64>, _n_jit: u32, _options: In<u32>, _values: In<u64>, _n_options: u32) {
        load(library, || {
            let mut code = fs::read(file.string()?).map_err(|_| Code::FILE_NOT_FOUND)?;
            // As text in memory ends.
            code.push(0);
            read(In::at(code.as_ptr() as u64))
        })
    }

    fn cuLibraryUnload(library: Handle) {
        let mut session = outside_capture()?;
        for context in session.contexts_of_library(library)? {
            session.finish_context(context);
        }
        session.unload_library(library)
    }

    fn cuLibraryGetModule(module: Out<Handle>, library: Handle) {
        module.check()?;
        module.put(Session::open()?.module_of_library(library)?)
    }

    fn cuLibraryGetKernel(kernel: Out<Handle>, library: Handle, name: Text) {
        kernel.check()?;
        let name = name.get()?;
        kernel.put(Session::open()?.library_kernel(library, &name)?)
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

    fn cuKernelGetFunction(function: Out<Handle>, kernel: Handle) {
        function.check()?;
        function.put(Session::open()?.function_of_kernel(kernel)?)
    }
}

fn load(library: Out<Handle>, image: impl FnOnce() -> Answer<Image>) -> Answer {
    library.check()?;
    let mut session = outside_capture()?;
    let image = image()?;
    library.put(session.load_library(image))
}
