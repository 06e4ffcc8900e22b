//! Modules and libraries: loaded code, its kernels and its variables. A module lives in
//! one context; a library is loaded into each context when something of it is needed
//! there. A `CUkernel` is a kernel of a library, a `CUfunction` one of a module, and a
//! launch takes either.

use std::collections::{BTreeMap, HashMap};
use std::ffi::CString;
use std::sync::Arc;

use crate::driver::Driver;
use crate::driver::memory::ranges::Kind;
use crate::driver::module::image::{Amount, Image};
use crate::driver::result::{Answer, Code};
use crate::driver::stream::queue::Id;
use crate::driver::stream::work::{Effect, Kernel};
use crate::product::Product;

pub(crate) mod image;

/// Code in a context.
#[derive(Debug)]
pub(crate) struct Module {
    /// Its context.
    pub(crate) context: Id,
    /// The loaded code.
    pub(crate) image: Arc<Image>,
    /// Addresses of its code and variables; a variable has its size.
    memory: Vec<u64>,
    variables: BTreeMap<String, (u64, u64)>,
    functions: BTreeMap<String, Id>,
}

/// Code of the process.
#[derive(Debug)]
pub(crate) struct Library {
    /// The loaded code.
    pub(crate) image: Arc<Image>,
    kernels: BTreeMap<String, Id>,
    modules: BTreeMap<Id, Id>,
}

/// A kernel by either kind of handle.
#[derive(Debug, Clone)]
pub(crate) struct Function {
    /// The module or library.
    pub(crate) owner: Id,
    /// Is the owner a library?
    pub(crate) is_kernel: bool,
    /// Its name, as C has it.
    pub(crate) name: CString,
    /// Declarations in its PTX; nothing for code that is not text.
    pub(crate) declared: image::Kernel,
    /// Values set by `cuFuncSetAttribute`, by the number of the attribute.
    pub(crate) attributes: HashMap<u32, i32>,
}

/// All loaded code.
#[derive(Debug, Default)]
pub(crate) struct Modules {
    /// Modules by handle.
    pub(crate) modules: HashMap<Id, Module>,
    /// Libraries by handle.
    pub(crate) libraries: HashMap<Id, Library>,
    /// Functions and kernels by handle.
    pub(crate) functions: HashMap<Id, Function>,
}

impl Driver {
    /// Loads code into the current context.
    pub(crate) fn load_module(&mut self, image: Arc<Image>) -> Answer<Id> {
        let context = self.owner()?;
        self.load_into(context, image)
    }

    fn load_into(&mut self, context: Id, image: Arc<Image>) -> Answer<Id> {
        let card = self.context(context)?.card;
        let mut memory = Vec::new();
        let mut variables = BTreeMap::new();
        let code = [(None, image.size.max(1))];
        let data = image.variables.iter();
        let data = data.map(|(name, size)| (Some(name), (*size).max(1)));
        for (name, size) in code.into_iter().chain(data) {
            match self.allocate_in(context, card, size, Kind::Global) {
                Ok(start) => {
                    memory.push(start);
                    if let Some(name) = name {
                        variables.insert(name.clone(), (start, size));
                    }
                }
                Err(code) => {
                    memory.into_iter().for_each(|start| self.drop_range(start));
                    return Err(code);
                }
            }
        }
        let id = self.new_id();
        let module = Module {
            context,
            image,
            memory,
            variables,
            functions: BTreeMap::new(),
        };
        self.modules.modules.insert(id, module);
        Ok(id)
    }

    /// Unloads a module. The caller waited for its context.
    pub(crate) fn unload_module(&mut self, id: Id) -> Answer {
        let module = self.modules.modules.remove(&id);
        let module = module.ok_or(Code::INVALID_HANDLE)?;
        for start in module.memory {
            self.drop_range(start);
        }
        for function in module.functions.values() {
            self.modules.functions.remove(function);
        }
        Ok(())
    }

    pub(crate) fn unload_all_of(&mut self, context: Id) {
        let modules = self.modules.modules.iter();
        let of = modules.filter(|(_, module)| module.context == context);
        let ids: Vec<Id> = of.map(|(id, _)| *id).collect();
        for id in ids {
            // Cannot fail: it is there.
            let _ = self.unload_module(id);
        }
        for library in self.modules.libraries.values_mut() {
            library.modules.remove(&context);
        }
    }

    /// Loads code that every context can use.
    pub(crate) fn load_library(&mut self, image: Arc<Image>) -> Id {
        let id = self.new_id();
        let library = Library {
            image,
            kernels: BTreeMap::new(),
            modules: BTreeMap::new(),
        };
        self.modules.libraries.insert(id, library);
        id
    }

    /// Unloads a library from all contexts.
    pub(crate) fn unload_library(&mut self, id: Id) -> Answer {
        let library = self.modules.libraries.remove(&id);
        let library = library.ok_or(Code::INVALID_HANDLE)?;
        for module in library.modules.values() {
            // Gone already if its context is.
            let _ = self.unload_module(*module);
        }
        for kernel in library.kernels.values() {
            self.modules.functions.remove(kernel);
        }
        Ok(())
    }

    /// The module of a library in the current context, loaded if it is not yet.
    pub(crate) fn module_of_library(&mut self, id: Id) -> Answer<Id> {
        let context = self.owner()?;
        let library = self
            .modules
            .libraries
            .get(&id)
            .ok_or(Code::INVALID_HANDLE)?;
        if let Some(module) = library.modules.get(&context) {
            return Ok(*module);
        }
        let module = self.load_into(context, library.image.clone())?;
        if let Some(library) = self.modules.libraries.get_mut(&id) {
            library.modules.insert(context, module);
        }
        Ok(module)
    }

    /// A function of a module, or with `is_kernel` a kernel of a library.
    pub(crate) fn function(&mut self, owner: Id, is_kernel: bool, name: &CString) -> Answer<Id> {
        let text = name.to_str().map_err(|_| Code::NOT_FOUND)?;
        if text.is_empty() {
            return Err(Code::INVALID_VALUE);
        }
        let (image, known) = if is_kernel {
            let library = self
                .modules
                .libraries
                .get(&owner)
                .ok_or(Code::INVALID_HANDLE)?;
            (&library.image, library.kernels.get(text))
        } else {
            let module = self
                .modules
                .modules
                .get(&owner)
                .ok_or(Code::INVALID_HANDLE)?;
            (&module.image, module.functions.get(text))
        };
        if let Some(id) = known {
            return Ok(*id);
        }
        let declared = match &image.kernels {
            Some(kernels) => kernels.get(text).cloned().ok_or(Code::NOT_FOUND)?,
            None => image::Kernel::default(),
        };
        let id = self.new_id();
        if let Some(library) = self.modules.libraries.get_mut(&owner) {
            library.kernels.insert(text.to_owned(), id);
        } else if let Some(module) = self.modules.modules.get_mut(&owner) {
            module.functions.insert(text.to_owned(), id);
        }
        let function = Function {
            owner,
            is_kernel,
            name: name.clone(),
            declared,
            attributes: HashMap::new(),
        };
        self.modules.functions.insert(id, function);
        Ok(id)
    }

    /// The function of the current context for a kernel of a library.
    pub(crate) fn function_of_kernel(&mut self, kernel: Id) -> Answer<Id> {
        let kernel = self.known_function(kernel)?;
        if !kernel.is_kernel {
            return Err(Code::INVALID_HANDLE);
        }
        let (owner, name) = (kernel.owner, kernel.name.clone());
        let module = self.module_of_library(owner)?;
        self.function(module, false, &name)
    }

    /// A function or kernel by its handle.
    pub(crate) fn known_function(&self, id: Id) -> Answer<&Function> {
        self.modules.functions.get(&id).ok_or(Code::INVALID_HANDLE)
    }

    /// Returns the product of the card that a function is loaded for. For a library's kernel that
    /// is the current context's card, or without a context the first card.
    pub(crate) fn product_of_function(&self, id: Id) -> Answer<Product> {
        let owner = self.known_function(id)?.owner;
        let card = match self.modules.modules.get(&owner) {
            Some(module) => self.context(module.context)?.card,
            None => self.current_card().unwrap_or(self.visible[0]),
        };
        Ok(self.product(card))
    }

    /// A variable of a module: its address and size.
    pub(crate) fn variable(&self, module: Id, name: &str) -> Answer<(u64, u64)> {
        let module = self
            .modules
            .modules
            .get(&module)
            .ok_or(Code::INVALID_HANDLE)?;
        module.variables.get(name).copied().ok_or(Code::NOT_FOUND)
    }

    /// Returns the work of launching a function in a stream. `argument` gives the value of a
    /// parameter, by its number.
    pub(crate) fn kernel(
        &mut self,
        id: Id,
        stream: Id,
        argument: impl Fn(usize) -> Option<u64>,
    ) -> Answer<Kernel> {
        let context = self.queues.get(stream).map_or(0, |stream| stream.context);
        let function = self.known_function(id)?;
        if function.is_kernel {
            // Loads the code where it is needed, which takes memory.
            let owner = function.owner;
            self.module_of_library(owner)?;
        }
        let function = self.known_function(id)?;
        let value = |amount: Amount| match amount {
            Amount::Number(number) => Ok(number),
            Amount::Argument(number) => argument(number).ok_or(Code::INVALID_VALUE),
        };
        let declared = &function.declared;
        let micros = value(declared.micros.unwrap_or(Amount::Number(image::MICROS)))?;
        let mut effects = Vec::new();
        for effect in &declared.effects {
            effects.push(match *effect {
                image::Effect::Words {
                    adds,
                    to,
                    count,
                    value: what,
                } => {
                    let (to, count, value) = (value(to)?, value(count)?, value(what)? as u32);
                    if adds {
                        Effect::Add { to, count, value }
                    } else {
                        Effect::Fill { to, count, value }
                    }
                }
                image::Effect::Condition {
                    condition,
                    value: what,
                } => Effect::Condition {
                    condition: value(condition)?,
                    value: value(what)? as u32,
                },
                image::Effect::ConditionFrom { condition, from } => Effect::ConditionFrom {
                    condition: value(condition)?,
                    from: value(from)?,
                },
            });
        }
        Ok(Kernel {
            context,
            // An hour is more than any test waits for, and its sums do not overflow.
            nanos: micros.min(3_600_000_000) * 1000,
            rendezvous: if declared.meets {
                number_of(&function.name)
            } else {
                0
            },
            effects,
        })
    }
}

/// A number for a name, the same in every process and never 0.
fn number_of(name: &CString) -> u64 {
    let bytes = name.as_bytes().iter();
    let hash = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    });
    hash | 1
}
