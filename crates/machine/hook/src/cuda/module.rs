//! Code on the card: modules and libraries, and their functions and variables.
//!
//! No call reports how much memory the driver takes for code, and the image does not show it. So
//! what it took is measured and charged right after each load, and a job that is over its limit
//! loads nothing more ([`loading`]). With lazy loading the driver takes the memory when a function
//! or a variable is first asked for, which counts as a load. It may even wait for the first launch;
//! a launch has no time for that. The next load or question finds it, or the arbiter's next reading.

mod loading;

use std::ffi::{CStr, c_char, c_uint, c_void};
use std::hash::{DefaultHasher, Hash, Hasher};

pub use self::loading::Modules;
use self::loading::{PartKey, loading, unloading};
use super::c::*;
use super::stream::is_driver_started;
use super::tenant::Tenant;
use super::{real, row};
use crate::guard::catch_panic;
use crate::real::{Like, Row};

/// Loaded code, or a kernel in it.
pub trait CodeHandle: Copy {
    /// The handle as a number.
    fn number(self) -> usize;
}

impl CodeHandle for CUmodule {
    fn number(self) -> usize {
        self.0
    }
}

impl CodeHandle for CUlibrary {
    fn number(self) -> usize {
        self.0
    }
}

impl CodeHandle for CUkernel {
    fn number(self) -> usize {
        self.0
    }
}

/// A kind of thing, and the kind of code that it is in.
pub trait CodePart {
    /// The thing.
    type Thing;
    /// The code.
    type Code: CodeHandle;
}

impl<T, C: CodeHandle> CodePart for (T, C) {
    type Thing = T;
    type Code = C;
}

/// A variable: its address, its size, and the code that it is in.
pub trait Variable {
    /// The address.
    type Address;
    /// The size.
    type Size;
    /// The code.
    type Code: CodeHandle;
}

impl<A, S, C: CodeHandle> Variable for (A, S, C) {
    type Address = A;
    type Size = S;
    type Code = C;
}

/// True if the program is a tenant's and has started the driver. For others nothing is looked at, and
/// the driver is asked nothing.
fn is_asked_for_a_tenant() -> bool {
    catch_panic(Tenant::current).flatten().is_some() && is_driver_started()
}

/// Key of a named part; `None` without a name, which the driver refuses.
///
/// # Safety
/// `name` is null or text.
unsafe fn named(code: impl CodeHandle, name: *const c_char) -> Option<PartKey> {
    if name.is_null() || !is_asked_for_a_tenant() {
        return None;
    }
    let mut hasher = DefaultHasher::new();
    // SAFETY: as the caller says.
    unsafe { CStr::from_ptr(name) }.hash(&mut hasher);
    Some((code.number(), hasher.finish()))
}

/// A call that loads code, and writes its handle.
fn making<C: CodeHandle>(handle: *mut C, call: impl FnOnce() -> CUresult) -> CUresult {
    // SAFETY: the driver wrote it.
    let made = |tenant: &Tenant| tenant.accounts.modules.forget(unsafe { *handle }.number());
    loading(|_| true, call, made)
}

/// A call that asks for a part, and may load it.
fn getting(key: Option<PartKey>, call: impl FnOnce() -> CUresult) -> CUresult {
    let loads = |tenant: &Tenant| {
        let modules = &tenant.accounts.modules;
        modules.are_lazy() && key.is_some_and(|key| modules.is_new(key))
    };
    let made = |tenant: &Tenant| {
        if let Some(key) = key {
            tenant.accounts.modules.remember(key);
        }
    };
    loading(loads, call, made)
}

/// `cuModuleLoad` and its like: from a file or from memory.
///
/// # Safety
/// As the driver documents.
pub unsafe extern "C" fn load<T, R>(module: *mut CUmodule, image: *const T) -> CUresult
where
    R: Row<Arguments = (*mut CUmodule, *const T), Result = CUresult>,
{
    // SAFETY: the program's own arguments.
    making(module, || unsafe { R::call((module, image)) })
}

/// `cuModuleLoadDataEx`.
///
/// # Safety
/// As the driver documents.
pub unsafe extern "C" fn load_with_options<R: Like<row::cuModuleLoadDataEx>>(
    module: *mut CUmodule,
    image: *const c_void,
    count: c_uint,
    options: *mut CUjit_option,
    values: *mut *mut c_void,
) -> CUresult {
    // SAFETY: the program's own arguments.
    making(module, || unsafe {
        R::call((module, image, count, options, values))
    })
}

/// `cuLibraryLoadData` and `cuLibraryLoadFromFile`.
///
/// # Safety
/// As the driver documents.
pub unsafe extern "C" fn load_library<T, R>(
    library: *mut CUlibrary,
    image: *const T,
    jit: *mut CUjit_option,
    jit_values: *mut *mut c_void,
    jit_count: c_uint,
    options: *mut CUlibraryOption,
    values: *mut *mut c_void,
    count: c_uint,
) -> CUresult
where
    R: Row<
            Arguments = (
                *mut CUlibrary,
                *const T,
                *mut CUjit_option,
                *mut *mut c_void,
                c_uint,
                *mut CUlibraryOption,
                *mut *mut c_void,
                c_uint,
            ),
            Result = CUresult,
        >,
{
    let (jit, more) = ((jit, jit_values, jit_count), (options, values, count));
    // SAFETY: the program's own arguments.
    making(library, || unsafe {
        R::call((library, image, jit.0, jit.1, jit.2, more.0, more.1, more.2))
    })
}

/// `cuModuleUnload` and `cuLibraryUnload`.
///
/// # Safety
/// As the driver documents.
pub unsafe extern "C" fn unload<C: CodeHandle, R>(code: C) -> CUresult
where
    R: Row<Arguments = (C,), Result = CUresult>,
{
    // SAFETY: the program's own argument.
    unloading(code.number(), || unsafe { R::call((code,)) })
}

/// `cuModuleGetFunction` and its like: one part by its name.
///
/// # Safety
/// As the driver documents.
pub unsafe extern "C" fn get_named<P: CodePart, R>(
    out: *mut P::Thing,
    code: P::Code,
    name: *const c_char,
) -> CUresult
where
    R: Row<Arguments = (*mut P::Thing, P::Code, *const c_char), Result = CUresult>,
{
    // SAFETY: the program's own arguments.
    unsafe { getting(named(code, name), || R::call((out, code, name))) }
}

/// `cuModuleGetGlobal` and its like: a variable by its name.
///
/// # Safety
/// As the driver documents.
pub unsafe extern "C" fn get_variable<V: Variable, R>(
    address: *mut V::Address,
    size: *mut V::Size,
    code: V::Code,
    name: *const c_char,
) -> CUresult
where
    R: Row<Arguments = (*mut V::Address, *mut V::Size, V::Code, *const c_char), Result = CUresult>,
{
    // SAFETY: the program's own arguments.
    unsafe { getting(named(code, name), || R::call((address, size, code, name))) }
}

/// `cuKernelGetFunction` and `cuLibraryGetModule`: in the thread's context.
///
/// # Safety
/// As the driver documents.
pub unsafe extern "C" fn get<P: CodePart, R>(out: *mut P::Thing, code: P::Code) -> CUresult
where
    R: Row<Arguments = (*mut P::Thing, P::Code), Result = CUresult>,
{
    let key = is_asked_for_a_tenant().then(|| {
        let context = super::tenant::current_context();
        (code.number(), context.0 as u64)
    });
    // SAFETY: the program's own arguments.
    getting(key, || unsafe { R::call((out, code)) })
}

/// `cuModuleEnumerateFunctions` and `cuLibraryEnumerateKernels`.
///
/// # Safety
/// As the driver documents.
pub unsafe extern "C" fn list<P: CodePart, R>(
    out: *mut P::Thing,
    count: c_uint,
    code: P::Code,
) -> CUresult
where
    R: Row<Arguments = (*mut P::Thing, c_uint, P::Code), Result = CUresult>,
{
    let key = (code.number(), u64::from(count));
    // SAFETY: the program's own arguments.
    getting(Some(key), || unsafe { R::call((out, count, code)) })
}

/// `cuFuncLoad`: has no effect on a function that is loaded.
///
/// # Safety
/// As the driver documents.
pub unsafe extern "C" fn load_function<R: Like<row::cuFuncLoad>>(function: CUfunction) -> CUresult {
    let loads = |_: &Tenant| {
        let mut state = CU_FUNCTION_LOADING_STATE_UNLOADED;
        // SAFETY: the program's own argument, and the number that is written.
        let told = unsafe { real::cuFuncIsLoaded(&raw mut state, function) };
        told != CUDA_SUCCESS || state != CU_FUNCTION_LOADING_STATE_LOADED
    };
    // SAFETY: the program's own argument.
    loading(loads, || unsafe { R::call((function,)) }, |_| ())
}
