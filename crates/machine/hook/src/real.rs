//! The real library's functions, by row.
//!
//! A function is looked up at its first use, and kept. A program that is linked against us expects
//! every name. So a function that the library lacks is replaced by one that returns an error. If
//! there is no library at all, every call returns an error, and a few calls name the files that
//! were tried. Each half chooses its own errors; the halves differ in nothing else.

use std::ffi::{CStr, CString, c_void};
use std::mem::transmute_copy;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use sublet_driver_api::Table;

use crate::driver::{self, Library, Places, Wanted};

/// One of the driver's libraries, with as many functions as its table has rows.
#[derive(Debug)]
#[repr(C)]
pub struct Real<const ROWS: usize> {
    /// Address of each function; null until its first use. First field, because the launch gate
    /// jumps through it and knows the address of the whole.
    places: [AtomicPtr<c_void>; ROWS],
    /// Result of the search for the library, once the search was made.
    found: AtomicPtr<Found>,
    wanted: Wanted,
    table: &'static Table,
    stand_ins: StandIns,
}

/// Replacements for functions that are missing.
#[derive(Debug)]
pub struct StandIns {
    /// Called for a function that the library lacks.
    pub no_function: Code,
    /// Called for every function if there is no library.
    pub no_library: Code,
    /// By row: functions with a result of another type, or with more to say.
    pub special: &'static [(usize, Code)],
}

/// An address of code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Code(pub *const c_void);

// SAFETY: code is the same for all threads.
unsafe impl Send for Code {}
// SAFETY: as above.
unsafe impl Sync for Code {}

#[derive(Debug)]
struct Found {
    library: Option<Library>,
    /// Reason why there is no library.
    why_not: CString,
}

impl<const ROWS: usize> Real<ROWS> {
    /// Nothing is looked for yet.
    #[must_use]
    pub const fn new(wanted: Wanted, table: &'static Table, stand_ins: StandIns) -> Self {
        Self {
            places: [const { AtomicPtr::new(ptr::null_mut()) }; ROWS],
            found: AtomicPtr::new(ptr::null_mut()),
            wanted,
            table,
            stand_ins,
        }
    }

    /// Returns the real function of a row, or one that reports what is missing.
    #[must_use]
    #[inline]
    pub fn address(&'static self, index: usize) -> *const c_void {
        let Some(place) = self.places.get(index) else {
            return self.stand_ins.no_function.0;
        };
        let known = place.load(Ordering::Acquire);
        if !known.is_null() {
            return known;
        }
        let address = self.look_up(index);
        place.store(address.cast_mut(), Ordering::Release);
        address
    }

    #[cold]
    fn look_up(&'static self, index: usize) -> *const c_void {
        let missing = match self.in_library(self.table[index].symbol) {
            Ok(symbol) => return symbol,
            Err(missing) => missing,
        };
        let mut special = self.stand_ins.special.iter();
        let special = special.find(|(row, _)| *row == index);
        special.map_or(missing, |(_, code)| code.0)
    }

    /// Returns the library's own function, or the stand-in for any that is missing.
    fn in_library(&'static self, symbol: &str) -> Result<*const c_void, *const c_void> {
        let Some(library) = &self.found().library else {
            return Err(self.stand_ins.no_library.0);
        };
        let name = CString::new(symbol).ok();
        match name.and_then(|name| library.symbol(&name)) {
            Some(found) => Ok(found.as_ptr()),
            None => Err(self.stand_ins.no_function.0),
        }
    }

    /// Returns the real function of a name that is in no table, or one that reports what is
    /// missing. Each call looks for it.
    #[must_use]
    pub fn outside_table(&'static self, symbol: &str) -> *const c_void {
        self.in_library(symbol).unwrap_or_else(|missing| missing)
    }

    /// True if there is a real library, and it has the function.
    #[must_use]
    pub fn exists(&'static self, index: usize) -> bool {
        let address = Code(self.address(index));
        let StandIns {
            no_function,
            no_library,
            special,
        } = &self.stand_ins;
        let is_special = special.iter().any(|(_, code)| *code == address);
        address != *no_function && address != *no_library && !is_special
    }

    /// Remembers where a function is that the library does not export, but gave out.
    pub fn learn(&'static self, index: usize, address: *mut c_void) {
        if !self.exists(index)
            && let Some(place) = self.places.get(index)
        {
            place.store(address, Ordering::Release);
        }
    }

    /// The real function of a row, with its type. The one place where an address becomes a
    /// function; [`Row`] knows the types.
    ///
    /// # Safety
    /// `F` is the type of a C function as the row declares it.
    #[must_use]
    pub unsafe fn function<F: Copy>(&'static self, index: usize) -> F {
        const { assert!(size_of::<F>() == size_of::<*const c_void>()) };
        let address = self.address(index);
        // SAFETY: same size, and the caller vouches for the type.
        unsafe { transmute_copy(&address) }
    }

    /// The same, if somebody has asked for it before: without a call, around which a hook would
    /// have to save all of its arguments.
    ///
    /// # Safety
    /// As [`Real::function`].
    #[inline(always)]
    #[must_use]
    pub unsafe fn known<F: Copy>(&'static self, index: usize) -> Option<F> {
        const { assert!(size_of::<F>() == size_of::<*const c_void>()) };
        let address = self.places.get(index)?.load(Ordering::Acquire);
        // SAFETY: same size, and the caller vouches for the type.
        (!address.is_null()).then(|| unsafe { transmute_copy(&address) })
    }

    /// Returns the files and folders that were tried, if no library was found; else an empty
    /// string.
    #[must_use]
    pub fn why_not(&'static self) -> &'static CStr {
        &self.found().why_not
    }

    /// Looks for the library once. Not under a lock: its constructors may call our functions,
    /// and two threads that both look find the same.
    fn found(&'static self) -> &'static Found {
        let known = self.found.load(Ordering::Acquire);
        if !known.is_null() {
            // SAFETY: stored below from a box that is never freed.
            return unsafe { &*known };
        }
        let found = match driver::open(self.wanted, &Places::of_process(self.wanted)) {
            Ok(library) => Found {
                library: Some(library),
                why_not: CString::default(),
            },
            Err(why) => Found {
                library: None,
                why_not: CString::new(why.to_string()).unwrap_or_default(),
            },
        };
        let mine = Box::into_raw(Box::new(found));
        let winner =
            self.found
                .compare_exchange(ptr::null_mut(), mine, Ordering::AcqRel, Ordering::Acquire);
        // SAFETY: either is a box that is never freed.
        unsafe { &*winner.map_or_else(|other| other, |_| mine) }
    }
}

/// A function of a library with its type, as NVIDIA's header declares it.
pub trait Row {
    /// Its place in the table.
    const INDEX: usize;
    /// Its arguments, as a tuple.
    type Arguments;
    /// Its result.
    type Result;
    /// A pointer to such a function.
    type Function: Copy;

    /// Calls the library's own.
    ///
    /// # Safety
    /// As NVIDIA documents.
    unsafe fn call(arguments: Self::Arguments) -> Self::Result;

    /// The library's own, if it was looked up before.
    fn known() -> Option<Self::Function>;
}

/// A row whose function has the type of another one: its next version, or its per-thread twin.
/// One hook can stand for both, and passes on arguments of no other type. For a row of another
/// type the hook does not compile: sizes had 32 bits before `cuMemAlloc_v2`.
///
/// ```
/// use sublet_hook::cuda::{linear, row};
/// let hook = linear::alloc::<row::cuMemAlloc_v2>;
/// ```
///
/// ```compile_fail,E0271
/// use sublet_hook::cuda::{linear, row};
/// let hook = linear::alloc::<row::cuMemAlloc>;
/// ```
pub trait Like<Other: Row>: Row<Arguments = Other::Arguments, Result = Other::Result> {}

impl<Other: Row, This> Like<Other> for This where
    This: Row<Arguments = Other::Arguments, Result = Other::Result>
{
}

/// Implements [`Row`] by a function's prototype, in a module that has `REAL` and `row`.
macro_rules! implement_row {
    ($symbol:ident($($name:ident: $type:ty),*) -> $result:ty) => {
        #[allow(non_snake_case, reason = "NVIDIA's own names")]
        impl $crate::real::Row for row::$symbol {
            const INDEX: usize = row::$symbol;
            type Arguments = ($($type,)*);
            type Result = $result;
            type Function = unsafe extern "C" fn($($type),*) -> $result;

            unsafe fn call(($($name,)*): Self::Arguments) -> $result {
                // SAFETY: the type is the row's, as NVIDIA's header declares it.
                let function: Self::Function = unsafe { REAL.function(Self::INDEX) };
                // SAFETY: as the caller says.
                unsafe { function($($name),*) }
            }

            #[inline(always)]
            fn known() -> Option<Self::Function> {
                // SAFETY: the type is the row's, as NVIDIA's header declares it.
                unsafe { REAL.known(Self::INDEX) }
            }
        }
    };
}

/// Declares a function that calls the library's own, in the same way. Hooks call it for
/// themselves.
macro_rules! real_function {
    ($symbol:ident($($name:ident: $type:ty),*) -> $result:ty) => {
        /// The library's own.
        ///
        /// # Safety
        /// As NVIDIA documents.
        #[allow(non_snake_case, reason = "NVIDIA's own names")]
        pub unsafe fn $symbol($($name: $type),*) -> $result {
            type Function = unsafe extern "C" fn($($type),*) -> $result;
            // SAFETY: the type is the row's, as NVIDIA's header declares it.
            let function: Function = unsafe { REAL.function(row::$symbol) };
            // SAFETY: as the caller says.
            unsafe { function($($name),*) }
        }
    };
}

pub(crate) use {implement_row, real_function};

#[cfg(test)]
mod tests {
    use super::*;
    use sublet_driver_api::CUDA;

    extern "C" fn lacks() -> u32 {
        1
    }

    extern "C" fn nothing() -> u32 {
        2
    }

    extern "C" fn explains() -> u32 {
        3
    }

    const STAND_INS: StandIns = StandIns {
        no_function: Code(lacks as *const c_void),
        no_library: Code(nothing as *const c_void),
        special: &[(3, Code(explains as *const c_void))],
    };

    const NOWHERE: Wanted = Wanted {
        variable: "SUBLET_DRIVER_NOTHING",
        soname: "libnothing.so.1",
    };

    #[test]
    fn without_a_library_every_row_has_a_stand_in_that_does_not_count_as_there() {
        static REAL: Real<8> = Real::new(NOWHERE, &CUDA, STAND_INS);
        for (index, expected) in [
            (0, STAND_INS.no_library),
            (3, STAND_INS.special[0].1),
            (8, STAND_INS.no_function),
        ] {
            assert_eq!(Code(REAL.address(index)), expected, "{index}");
            assert!(!REAL.exists(index), "{index}");
        }
        let why = REAL.why_not().to_str().expect("text");
        assert!(why.starts_with("no libnothing.so.1 of NVIDIA's driver found"));
        let given_out = driver::open as *mut c_void;
        REAL.learn(0, given_out);
        assert!(REAL.exists(0));
        REAL.learn(0, ptr::null_mut());
        assert_eq!(
            REAL.address(0),
            given_out.cast_const(),
            "what is known stays"
        );
    }
}
