//! Libraries: code that is in no context, until something of it is used in one.
#![expect(unsafe_code, reason = "calls the driver as C does")]

mod own_process;

use std::ffi::{CStr, c_char};
use std::io::Write as _;
use std::ptr;

use own_process::{context, launch, memory, with_machine};

const CODE: &CStr = c"
// fake nothing: us=0
.version 8.0
.target sm_80
.address_size 64
.global .align 8 .b8 table[10485760];
.visible .entry nothing() { ret; }
";

const TABLE: usize = 10 << 20;

/// Calls a function that loads a library, with no options.
macro_rules! load {
    ($name:ident, $library:expr, $from:expr) => {
        cu!($name, &raw mut $library => *mut u64, $from.as_ptr() => *const c_char,
            ptr::null() => *const u32, ptr::null() => *const u64, 0 => u32,
            ptr::null() => *const u32, ptr::null() => *const u64, 0 => u32)
    };
}

fn kernel_of(library: u64, name: &CStr) -> (u32, u64) {
    let mut kernel = 0_u64;
    let code = cu!(cuLibraryGetKernel, &raw mut kernel => *mut u64, library => u64,
        name.as_ptr() => *const c_char);
    (code, kernel)
}

#[test]
fn a_library_takes_memory_when_it_is_first_used_in_a_context() {
    let test = "a_library_takes_memory_when_it_is_first_used_in_a_context";
    with_machine(test, "1x16GiB", || {
        ok!(cuInit, 0 => u32);
        let mut library = 0_u64;
        assert_eq!(load!(cuLibraryLoadData, library, CODE), 0);
        let (code, kernel) = kernel_of(library, c"nothing");
        assert_eq!(code, 0);
        assert_eq!(kernel_of(library, c"other").0, 500);
        // Its properties are those of the card that is named, and take no memory there.
        let attribute = |attribute: u32, kernel: u64, device: i32| {
            let mut value = 0_i32;
            let code = cu!(cuKernelGetAttribute, &raw mut value => *mut i32,
                attribute => u32, kernel => u64, device => i32);
            (code, value)
        };
        assert_eq!(attribute(4, kernel, 0), (0, 32), "registers of a thread");
        assert_eq!(attribute(4, kernel, 1).0, 101);
        assert_eq!(attribute(4, 0, 0).0, 400);
        assert_eq!(attribute(1000, kernel, 0).0, 1);
        context();
        let (free, _) = memory();
        // A launch of the kernel itself is the first use.
        assert_eq!(launch(kernel, 0, &mut []), 0);
        let used = free - memory().0;
        assert!(used >= TABLE, "{used}");
        let (mut module, mut function, mut table) = (0_u64, 0_u64, 0_u64);
        ok!(cuLibraryGetModule, &raw mut module => *mut u64, library => u64);
        ok!(cuKernelGetFunction, &raw mut function => *mut u64, kernel => u64);
        let mut size = 0_usize;
        ok!(cuLibraryGetGlobal, &raw mut table => *mut u64, &raw mut size => *mut usize,
            library => u64, c"table".as_ptr() => *const c_char);
        assert_eq!(size, TABLE);
        assert_eq!(launch(function, 0, &mut []), 0);
        assert_eq!(free - memory().0, used, "it is there once");
        assert_eq!(cu!(cuModuleUnload, module => u64), 800);
        // The context takes its part along, and the next one loads its own.
        ok!(cuDevicePrimaryCtxReset_v2, 0 => i32);
        context();
        assert_eq!(memory().0, free);
        ok!(cuLibraryGetModule, &raw mut module => *mut u64, library => u64);
        assert_eq!(free - memory().0, used);
        ok!(cuLibraryUnload, library => u64);
        assert_eq!(memory().0, free);
        assert_eq!(launch(kernel, 0, &mut []), 400);
        assert_eq!(cu!(cuLibraryUnload, library => u64), 400);
    });
}

#[test]
fn a_library_is_read_from_a_file() {
    with_machine("a_library_is_read_from_a_file", "1x16GiB", || {
        context();
        let mut library = 0_u64;
        let missing = c"/there/is/no/such/file";
        assert_eq!(load!(cuLibraryLoadFromFile, library, missing), 301);
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(CODE.to_bytes()).unwrap();
        let path = std::ffi::CString::new(file.path().to_str().unwrap()).unwrap();
        assert_eq!(load!(cuLibraryLoadFromFile, library, path), 0);
        let (code, kernel) = kernel_of(library, c"nothing");
        assert_eq!((code, launch(kernel, 0, &mut [])), (0, 0));
    });
}
