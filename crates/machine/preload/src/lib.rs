//! A `dlopen` that leads programs to the interposer.
//!
//! A program that opens `libcuda.so.1` by that name finds ours by itself: it is preloaded under
//! that SONAME. But numba tries `libcuda.so`, and some programs use the driver's whole path. If our
//! file cannot be mounted over the real one, this library is preloaded too. It changes those names
//! to that SONAME, and no others. No variable names our library's place: a setuid program has this
//! library too, and would load its caller's code. The call ends in a jump, not in a call: the
//! loader looks at the return address to find the caller, for `$ORIGIN` and for search paths, and
//! must go on to see the program.
//!
//! It is in every process of a job, so it does nothing else: no memory, no output, no thread.
#![expect(unsafe_code, reason = "takes the place of a function of libc")]

#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
compile_error!("the interposer is written for x86-64 Linux");

use std::arch::naked_asm;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

/// The names of a driver's libraries. Ours are loaded under the second, their SONAME.
static DRIVERS: [[&CStr; 2]; 2] = [
    [c"libcuda.so", c"libcuda.so.1"],
    [c"libnvidia-ml.so", c"libnvidia-ml.so.1"],
];

/// The `dlopen` that would have been called without us; set before it is jumped to.
static NEXT: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());

/// `dlopen`, with the driver's names changed.
///
/// # Safety
/// As libc documents.
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlopen(name: *const c_char, flags: c_int) -> *mut c_void {
    // The name is in rdi, the flags in rsi. Two words and a third for the alignment.
    naked_asm!(
        "push rdi",
        "push rsi",
        "sub rsp, 8",
        "call {choose}",
        "add rsp, 8",
        "pop rsi",
        "pop rdi",
        "mov rdi, rax",
        "jmp qword ptr [rip + {next}]",
        choose = sym choose,
        next = sym NEXT,
    )
}

/// The name to open instead. Does not allocate and cannot panic.
///
/// # Safety
/// `name` is null or a terminated string.
unsafe extern "C" fn choose(name: *const c_char) -> *const c_char {
    if NEXT.load(Ordering::Acquire).is_null() {
        NEXT.store(next(), Ordering::Release);
    }
    if name.is_null() {
        return name; // the program itself
    }
    // SAFETY: not null, and the caller says it is terminated.
    let asked = unsafe { CStr::from_ptr(name) };
    for names in &DRIVERS {
        if names.iter().any(|known| is_meant(asked, known)) {
            return names[1].as_ptr();
        }
    }
    name
}

unsafe extern "C" {
    fn dlvsym(handle: *mut c_void, name: *const c_char, version: *const c_char) -> *mut c_void;
}

/// The versions of glibc's `dlopen`, since it is in libc and before.
const VERSIONS: [&CStr; 2] = [c"GLIBC_2.34", c"GLIBC_2.2.5"];

/// The function after ours. Another preload may have a `dlsym` of its own, which looks after
/// *itself*, and if it stands before us finds us again. Then glibc's is asked for by its version,
/// which few stand before.
fn next() -> *mut c_void {
    // SAFETY: a terminated name.
    let found = unsafe { libc::dlsym(libc::RTLD_NEXT, c"dlopen".as_ptr()) };
    if !found.is_null() && object_of(found) != object_of(choose as *const c_void) {
        return found;
    }
    let by_version = VERSIONS.iter().map(|version| {
        // SAFETY: terminated names.
        unsafe { dlvsym(libc::RTLD_NEXT, c"dlopen".as_ptr(), version.as_ptr()) }
    });
    let mut by_version = by_version.filter(|next| !next.is_null());
    by_version.next().unwrap_or(nothing as *mut c_void)
}

/// Returns the start of the library that an address is in; null for none.
fn object_of(address: *const c_void) -> *const c_void {
    let mut about = libc::Dl_info {
        dli_fname: ptr::null(),
        dli_fbase: ptr::null_mut(),
        dli_sname: ptr::null(),
        dli_saddr: ptr::null_mut(),
    };
    // SAFETY: any address may be asked about, and the struct is live.
    unsafe { libc::dladdr(address, &raw mut about) };
    about.dli_fbase
}

/// True for the name itself and for an absolute path that ends in it.
fn is_meant(asked: &CStr, known: &CStr) -> bool {
    let (asked, known) = (asked.to_bytes(), known.to_bytes());
    matches!(
        asked.strip_suffix(known),
        Some([] | [b'/'] | [b'/', .., b'/'])
    )
}

/// Stands for a `dlopen` that does not exist: a program without libdl opens nothing.
extern "C" fn nothing() -> *mut c_void {
    ptr::null_mut()
}
