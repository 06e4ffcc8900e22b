//! The ways by which real programs reach a driver, so that each of them can be tested.
//!
//! A stand-in for libcuda must catch all of them: a linked program, `dlopen` of either name or of
//! an absolute path, `cuGetProcAddress`, and a look-up among the libraries that are loaded already.
//! This file opens the library in the given way and finds functions in it. It never falls back to
//! another way, because a test must see that a way does not work.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::fmt;
use std::mem::transmute;
use std::os::unix::ffi::OsStrExt;
use std::ptr;
use std::str::FromStr;

use sublet_driver_api::cuda::CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
use sublet_driver_api::{Function, Table, Thread};

use crate::report::Failure;

/// Way to find functions in an open library.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    /// All names before the first call, as the dynamic linker does with `BIND_NOW`.
    Linked,
    /// `dlsym` on the handle, each name when it is first called.
    Handle,
    /// `dlsym` once for `cuGetProcAddress`, which then finds everything else.
    Lookup,
    /// Opened with `RTLD_GLOBAL`, then looked up with `RTLD_DEFAULT`.
    Global,
    /// Nothing is opened: `RTLD_DEFAULT` must find the library that `LD_PRELOAD` loaded.
    Preloaded,
}

/// The value of `--reach`: a way, and the name of the library to open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Reach {
    way: Way,
    library: CString,
    text: String,
}

impl FromStr for Reach {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (word, library) = match text.split_once('=') {
            _ if text.starts_with('/') => ("path", Some(text)),
            Some((word, library)) => (word, Some(library)),
            None => (text, None),
        };
        let (way, usual) = match word {
            "linked" => (Way::Linked, "libcuda.so.1"),
            "path" if library.is_some() => (Way::Handle, ""),
            "libcuda.so" | "libcuda.so.1" if library.is_none() => (Way::Handle, word),
            "lookup" => (Way::Lookup, "libcuda.so.1"),
            "global" => (Way::Global, "libcuda.so.1"),
            "preloaded" if library.is_none() => (Way::Preloaded, ""),
            _ => {
                return Err(format!(
                    "`{text}` is none of linked[=LIBRARY], lookup[=LIBRARY], global[=LIBRARY], \
                     libcuda.so, libcuda.so.1, preloaded, /absolute/path"
                ));
            }
        };
        let library = library.unwrap_or(usual);
        if library.is_empty() && way != Way::Preloaded {
            return Err(format!("`{text}` names no library after the `=`"));
        }
        let library = CString::new(library).map_err(|_| "a name cannot contain a zero byte")?;
        let text = text.to_owned();
        Ok(Self { way, library, text })
    }
}

impl fmt::Display for Reach {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.text)
    }
}

/// An open library and the way its functions are found.
pub(crate) struct Library {
    way: Way,
    handle: *mut c_void,
    lookup: Option<ProcAddress>,
    table: &'static Table,
    per_thread: bool,
}

// SAFETY: a handle of dlopen and the addresses of functions may be used from any thread; nothing
// here changes after the library was opened.
unsafe impl Send for Library {}
// SAFETY: as above.
unsafe impl Sync for Library {}

/// `cuGetProcAddress` in the newer form, or in the older one for a driver before 12.0.
#[derive(Clone, Copy)]
enum ProcAddress {
    V2(LookUpV2),
    V1(LookUpV1),
}

type LookUpV2 =
    unsafe extern "C" fn(*const c_char, *mut *mut c_void, c_int, u64, *mut c_int) -> c_int;
type LookUpV1 = unsafe extern "C" fn(*const c_char, *mut *mut c_void, c_int, u64) -> c_int;

impl Library {
    /// Opens the library that `reach` names. With `per_thread`, prefers the twins with a default
    /// stream for each thread, as programs compiled for that do.
    pub(crate) fn open(
        reach: &Reach,
        table: &'static Table,
        per_thread: bool,
    ) -> Result<Self, Failure> {
        let handle = match reach.way {
            Way::Preloaded => libc::RTLD_DEFAULT,
            Way::Global => {
                open(&reach.library, libc::RTLD_NOW | libc::RTLD_GLOBAL)?;
                libc::RTLD_DEFAULT
            }
            Way::Linked | Way::Handle | Way::Lookup => open(&reach.library, libc::RTLD_NOW)?,
        };
        let mut library = Self {
            way: reach.way,
            handle,
            lookup: None,
            table,
            per_thread,
        };
        if reach.way == Way::Lookup {
            library.lookup = Some(library.proc_address()?);
        }
        Ok(library)
    }

    /// Opens a library that has no look-up function of its own, such as libnvidia-ml.
    pub(crate) fn open_plain(name: &str, table: &'static Table) -> Result<Self, Failure> {
        let name = CString::new(name).map_err(|_| Failure::Load {
            call: "dlopen",
            why: "a name cannot contain a zero byte".to_owned(),
        })?;
        Ok(Self {
            way: Way::Handle,
            handle: open(&name, libc::RTLD_NOW)?,
            lookup: None,
            table,
            per_thread: false,
        })
    }

    /// Opens exactly this file, even if something has replaced `dlopen`. `dlmopen` into the base
    /// namespace does the same, and nothing wraps it.
    pub(crate) fn open_file(
        file: &std::path::Path,
        table: &'static Table,
    ) -> Result<Self, Failure> {
        let name = CString::new(file.as_os_str().as_bytes()).map_err(|_| Failure::Load {
            call: "dlmopen",
            why: "a name cannot contain a zero byte".to_owned(),
        })?;
        // SAFETY: the name is a C string; see `open` for the constructors.
        let handle = unsafe { libc::dlmopen(libc::LM_ID_BASE, name.as_ptr(), libc::RTLD_NOW) };
        if handle.is_null() {
            return Err(Failure::Load {
                call: "dlmopen",
                why: last_error().unwrap_or(format!("{} did not open", file.display())),
            });
        }
        Ok(Self {
            way: Way::Handle,
            handle,
            lookup: None,
            table,
            per_thread: false,
        })
    }

    /// Whether every name must exist before the first call.
    pub(crate) fn is_linked(&self) -> bool {
        self.way == Way::Linked
    }

    /// The address of an exported function, or of its per-thread twin.
    pub(crate) fn find(&self, symbol: &'static str) -> Result<*mut c_void, Failure> {
        let row = self.table.by_symbol(symbol).map(|row| self.twin(row));
        match (self.lookup, row) {
            (Some(lookup), Some(row)) => resolve(lookup, row),
            (_, Some(row)) => self.symbol(row.symbol),
            (_, None) => self.symbol(symbol),
        }
    }

    /// The file that a function really comes from, according to the dynamic linker.
    pub(crate) fn file_of(&self, symbol: &'static str) -> Option<String> {
        let address = self.find(symbol).ok()?;
        // SAFETY: Dl_info is pointers and may be all zeroes; dladdr takes any address and fills
        // it in when it knows the object, whose name then lives as long as the object.
        unsafe {
            let mut about: libc::Dl_info = std::mem::zeroed();
            if libc::dladdr(address, &raw mut about) == 0 || about.dli_fname.is_null() {
                return None;
            }
            let name = CStr::from_ptr(about.dli_fname);
            Some(name.to_string_lossy().into_owned())
        }
    }

    /// The per-thread twin of a row, if it is wanted and exists.
    fn twin(&self, row: &'static Function) -> &'static Function {
        let twins = self.table.versions(row.base).iter();
        twins
            .map(|&index| &self.table[usize::from(index)])
            .find(|twin| {
                self.per_thread && twin.version == row.version && twin.thread != Thread::Legacy
            })
            .unwrap_or(row)
    }

    fn proc_address(&self) -> Result<ProcAddress, Failure> {
        if let Ok(address) = self.symbol("cuGetProcAddress_v2") {
            // SAFETY: a library that exports this name means the function that cuda.h declares.
            let function = unsafe { transmute::<*mut c_void, LookUpV2>(address) };
            return Ok(ProcAddress::V2(function));
        }
        let address = self.symbol("cuGetProcAddress")?;
        // SAFETY: as above.
        let function = unsafe { transmute::<*mut c_void, LookUpV1>(address) };
        Ok(ProcAddress::V1(function))
    }

    fn symbol(&self, symbol: &str) -> Result<*mut c_void, Failure> {
        let missing = |why| Failure::Load { call: "dlsym", why };
        let name = CString::new(symbol).map_err(|_| missing("zero byte".to_owned()))?;
        // SAFETY: the handle is open (we never close it) or RTLD_DEFAULT; the name is a C string.
        let address = unsafe { libc::dlsym(self.handle, name.as_ptr()) };
        if address.is_null() {
            return Err(missing(
                last_error().unwrap_or(format!("`{symbol}` is missing")),
            ));
        }
        Ok(address)
    }
}

fn open(name: &CStr, flags: c_int) -> Result<*mut c_void, Failure> {
    // SAFETY: the name is a C string. Constructors of the library run: that is what a program
    // under test is for.
    let handle = unsafe { libc::dlopen(name.as_ptr(), flags) };
    if handle.is_null() {
        let why = last_error().unwrap_or(format!("{} did not open", name.to_string_lossy()));
        return Err(Failure::Load {
            call: "dlopen",
            why,
        });
    }
    Ok(handle)
}

/// Asks the library itself for one version of a function, by `cuGetProcAddress`.
fn resolve(lookup: ProcAddress, row: &Function) -> Result<*mut c_void, Failure> {
    let missing = |why| Failure::Load {
        call: "cuGetProcAddress",
        why,
    };
    let name = CString::new(row.base).map_err(|_| missing("zero byte".to_owned()))?;
    // Versions are small numbers; cuda.h uses an int for them.
    let version = c_int::try_from(row.version).unwrap_or(c_int::MAX);
    let flags = match row.thread {
        Thread::Legacy => 0,
        Thread::Ptds | Thread::Ptsz => CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM.0.into(),
    };
    let mut address = ptr::null_mut();
    let mut status: c_int = 0;
    // SAFETY: the pointers are to live values of the types that the function takes.
    let code = unsafe {
        match lookup {
            ProcAddress::V2(function) => function(
                name.as_ptr(),
                &raw mut address,
                version,
                flags,
                &raw mut status,
            ),
            ProcAddress::V1(function) => function(name.as_ptr(), &raw mut address, version, flags),
        }
    };
    if code != 0 || address.is_null() {
        let base = row.base;
        let why = format!("`{base}` at version {version}: code {code}, status {status}");
        return Err(missing(why));
    }
    Ok(address)
}

fn last_error() -> Option<String> {
    // SAFETY: dlerror returns null or a C string that is good until this thread's next dl* call.
    unsafe {
        let text = libc::dlerror();
        (!text.is_null()).then(|| CStr::from_ptr(text).to_string_lossy().into_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::{Reach, Way};

    fn check(text: &str, way: Way, library: &str) {
        let reach: Reach = text.parse().expect(text);
        assert_eq!(reach.way, way, "{text}");
        assert_eq!(reach.library.to_str(), Ok(library), "{text}");
        assert_eq!(reach.to_string(), text);
    }

    #[test]
    fn ways_and_libraries() {
        check("linked", Way::Linked, "libcuda.so.1");
        check("linked=/x/y.so", Way::Linked, "/x/y.so");
        check("libcuda.so", Way::Handle, "libcuda.so");
        check("libcuda.so.1", Way::Handle, "libcuda.so.1");
        check("/a=b/libcuda.so.1", Way::Handle, "/a=b/libcuda.so.1");
        check("path=relative.so", Way::Handle, "relative.so");
        check("lookup", Way::Lookup, "libcuda.so.1");
        check("lookup=/x/y.so", Way::Lookup, "/x/y.so");
        check("global=libcuda.so", Way::Global, "libcuda.so");
        check("preloaded", Way::Preloaded, "");
    }

    #[test]
    fn what_is_no_way() {
        for text in [
            "",
            "path",
            "linked=",
            "elsewhere",
            "preloaded=x",
            "lookup=a\0b",
        ] {
            assert!(text.parse::<Reach>().is_err(), "{text:?}");
        }
    }
}
