//! Modules: loaded code in a context, its kernels and its variables.

use std::collections::{BTreeMap, HashMap};
use std::ffi::CString;

use crate::driver::Driver;
use crate::driver::memory::ranges::Kind;
use crate::driver::module::image::{Amount, Image};
use crate::driver::result::{Answer, Code};
use crate::driver::stream::card_time::WHOLE;
use crate::driver::stream::queue::Id;
use crate::driver::stream::work::{Effect, Kernel};
use crate::product::Product;

pub(crate) mod image;
pub(crate) mod library;

/// Code in a context.
#[derive(Debug)]
pub(crate) struct Module {
    /// Its context.
    pub(crate) context: Id,
    image: Image,
    /// Addresses of its code and variables; a variable has its size.
    memory: Vec<u64>,
    variables: BTreeMap<String, (u64, u64)>,
    functions: BTreeMap<String, Id>,
}

/// A kernel.
#[derive(Debug, Clone)]
pub(crate) struct Function {
    module: Id,
    /// Its name, as C has it.
    name: CString,
    /// Declarations in its PTX; nothing for code that is not text.
    pub(crate) declared: image::Kernel,
}

/// All loaded code.
#[derive(Debug, Default)]
pub(crate) struct Modules {
    /// Modules by handle.
    pub(crate) modules: HashMap<Id, Module>,
    /// Functions by handle.
    functions: HashMap<Id, Function>,
}

impl Driver {
    /// Loads code into the current context.
    pub(crate) fn load_module(&mut self, image: Image) -> Answer<Id> {
        let context = self.owner()?;
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
        self.libraries.forget(id);
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
    }

    /// A function of a module.
    pub(crate) fn function(&mut self, module: Id, name: &CString) -> Answer<Id> {
        let text = name.to_str().map_err(|_| Code::NOT_FOUND)?;
        let id = self.new_id();
        let loaded = self.modules.modules.get_mut(&module);
        let loaded = loaded.ok_or(Code::INVALID_HANDLE)?;
        if let Some(known) = loaded.functions.get(text) {
            return Ok(*known);
        }
        let declared = loaded.image.kernel(name)?;
        loaded.functions.insert(text.to_owned(), id);
        let function = Function {
            module,
            name: name.clone(),
            declared,
        };
        self.modules.functions.insert(id, function);
        Ok(id)
    }

    /// A function by its handle.
    pub(crate) fn known_function(&self, id: Id) -> Answer<&Function> {
        self.modules.functions.get(&id).ok_or(Code::INVALID_HANDLE)
    }

    /// Returns the product of the card that a function is loaded for.
    pub(crate) fn product_of_function(&self, id: Id) -> Answer<Product> {
        let module = self.known_function(id)?.module;
        let module = self.modules.modules.get(&module);
        let context = module.ok_or(Code::INVALID_HANDLE)?.context;
        Ok(self.product(self.context(context)?.card))
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
        &self,
        id: Id,
        stream: Id,
        argument: impl Fn(usize) -> Option<u64>,
    ) -> Answer<Kernel> {
        let context = self.queues.get(stream).map_or(0, |stream| stream.context);
        let function = self.known_function(id)?;
        let value = |amount: Amount| match amount {
            Amount::Number(number) => Ok(number),
            Amount::Argument(number) => argument(number).ok_or(Code::INVALID_VALUE),
        };
        let declared = &function.declared;
        let micros = value(declared.micros.unwrap_or(Amount::Number(image::MICROS)))?;
        let percent = value(declared.percent.unwrap_or(Amount::Number(WHOLE)))?;
        let mut effects = Vec::new();
        for effect in &declared.effects {
            let [to, count, value] = [effect.to, effect.count, effect.value].map(&value);
            let (to, count, value) = (to?, count?, value? as u32);
            effects.push(if effect.adds {
                Effect::Add { to, count, value }
            } else {
                Effect::Fill { to, count, value }
            });
        }
        Ok(Kernel {
            context,
            // An hour is more than any test waits for, and its sums do not overflow.
            nanos: micros.min(3_600_000_000) * 1000,
            percent: if declared.meets {
                WHOLE
            } else {
                percent.clamp(1, WHOLE)
            },
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
