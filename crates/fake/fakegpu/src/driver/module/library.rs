//! Libraries: code that is loaded into a context when something of it is first needed there, as a
//! driver does that loads lazily.

use std::collections::{BTreeMap, HashMap};
use std::ffi::CString;

use crate::driver::Driver;
use crate::driver::module::image::Image;
use crate::driver::result::{Answer, Code};
use crate::driver::stream::queue::Id;

/// Code that any context can use.
#[derive(Debug)]
struct Library {
    image: Image,
    /// The module in each context that has used it.
    modules: BTreeMap<Id, Id>,
    kernels: BTreeMap<CString, Id>,
}

/// All libraries.
#[derive(Debug, Default)]
pub(crate) struct Libraries {
    libraries: HashMap<Id, Library>,
    /// The library and the name of each kernel.
    kernels: HashMap<Id, (Id, CString)>,
}

impl Libraries {
    /// A module is gone.
    pub(super) fn forget(&mut self, module: Id) {
        for library in self.libraries.values_mut() {
            library.modules.retain(|_, loaded| *loaded != module);
        }
    }
}

impl Driver {
    /// Keeps code; it takes no memory of a card yet.
    pub(crate) fn load_library(&mut self, image: Image) -> Id {
        let id = self.new_id();
        let library = Library {
            image,
            modules: BTreeMap::new(),
            kernels: BTreeMap::new(),
        };
        self.libraries.libraries.insert(id, library);
        id
    }

    /// Unloads a library from all contexts. The caller waited for them.
    pub(crate) fn unload_library(&mut self, id: Id) -> Answer {
        let library = self.libraries.libraries.remove(&id);
        let library = library.ok_or(Code::INVALID_HANDLE)?;
        for module in library.modules.into_values() {
            self.unload_module(module)?;
        }
        for kernel in library.kernels.values() {
            self.libraries.kernels.remove(kernel);
        }
        Ok(())
    }

    /// The contexts that have a library.
    pub(crate) fn contexts_of_library(&self, id: Id) -> Answer<Vec<Id>> {
        let library = self.libraries.libraries.get(&id);
        let library = library.ok_or(Code::INVALID_HANDLE)?;
        Ok(library.modules.keys().copied().collect())
    }

    /// True if a module was loaded for a library.
    pub(crate) fn is_of_library(&self, module: Id) -> bool {
        let mut libraries = self.libraries.libraries.values();
        libraries.any(|library| library.modules.values().any(|loaded| *loaded == module))
    }

    /// The module of a library in the current context, which is loaded if it is not there.
    pub(crate) fn module_of_library(&mut self, id: Id) -> Answer<Id> {
        let context = self.owner()?;
        let library = self.libraries.libraries.get(&id);
        let library = library.ok_or(Code::INVALID_HANDLE)?;
        if let Some(module) = library.modules.get(&context) {
            return Ok(*module);
        }
        let image = library.image.clone();
        let module = self.load_module(image)?;
        if let Some(library) = self.libraries.libraries.get_mut(&id) {
            library.modules.insert(context, module);
        }
        Ok(module)
    }

    /// A kernel of a library.
    pub(crate) fn library_kernel(&mut self, library: Id, name: &CString) -> Answer<Id> {
        let id = self.new_id();
        let known = self.libraries.libraries.get_mut(&library);
        let known = known.ok_or(Code::INVALID_HANDLE)?;
        if let Some(kernel) = known.kernels.get(name) {
            return Ok(*kernel);
        }
        known.image.kernel(name)?;
        known.kernels.insert(name.clone(), id);
        self.libraries.kernels.insert(id, (library, name.clone()));
        Ok(id)
    }

    /// The function of a kernel in the current context, which loads its library.
    pub(crate) fn function_of_kernel(&mut self, kernel: Id) -> Answer<Id> {
        let known = self.libraries.kernels.get(&kernel);
        let (library, name) = known.ok_or(Code::INVALID_HANDLE)?.clone();
        let module = self.module_of_library(library)?;
        self.function(module, &name)
    }

    /// Fails if this is no kernel of a library.
    pub(crate) fn known_kernel(&self, kernel: Id) -> Answer {
        let known = self.libraries.kernels.contains_key(&kernel);
        known.then_some(()).ok_or(Code::INVALID_HANDLE)
    }

    /// The function behind what a program launches: a function, or a kernel of a library.
    pub(crate) fn launched(&mut self, handle: Id) -> Answer<Id> {
        match self.libraries.kernels.contains_key(&handle) {
            true => self.function_of_kernel(handle),
            false => Ok(handle),
        }
    }
}
