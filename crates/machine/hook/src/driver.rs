//! Finds NVIDIA's own library behind ours.
//!
//! The interposer has the driver's name, so asking the loader for that name gives the interposer
//! back. This module looks for files instead: at the place that the settings name
//! ([`crate::settings`]), else in the known places of drivers. It never takes Sublet's own library
//! for the driver, whatever the library's name there. When it finds nothing, it can list the files
//! that it tried.

use std::ffi::{CStr, CString, OsStr, OsString, c_void};
use std::fmt;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::ptr::{self, NonNull};

use sublet_abi::settings::{DRIVER_CUDA, DRIVER_NVML};

use crate::settings::{self, SettingsSource, is_privileged};

/// Folders of driver libraries, searched in addition to those of `LD_LIBRARY_PATH`.
///
/// Distributions, then `/usr/local/nvidia` (GKE and the driver container's toolkit), WSL, NixOS.
const FOLDERS: [&str; 10] = [
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
    "/lib/x86_64-linux-gnu",
    "/lib64",
    "/usr/lib/x86_64-linux-gnu/nvidia/current",
    "/usr/local/nvidia/lib64",
    "/usr/local/nvidia/lib",
    "/usr/lib/wsl/lib",
    "/run/opengl-driver/lib",
];

/// Both our libraries export this name, and no driver does. Two copies of one file have
/// different inodes; the marker tells them too.
const MARKER: &CStr = c"sublet_interposer";

/// The library to look for.
#[derive(Debug, Clone, Copy)]
pub struct Wanted {
    /// The environment variable that may name the file.
    pub variable: &'static str,
    /// The name under which programs know it.
    pub soname: &'static str,
}

/// The CUDA driver.
pub const CUDA: Wanted = Wanted {
    variable: DRIVER_CUDA,
    soname: "libcuda.so.1",
};

/// The management library.
pub const NVML: Wanted = Wanted {
    variable: DRIVER_NVML,
    soname: "libnvidia-ml.so.1",
};

/// Settings of a process about the library's place.
#[derive(Debug, Clone, Default)]
pub struct Places {
    /// The file; then nothing else is tried.
    pub told: Option<OsString>,
    /// `LD_LIBRARY_PATH`.
    pub library_path: Option<OsString>,
    /// Can [`Wanted::variable`] name the file?
    pub by_variable: bool,
}

impl Places {
    /// Returns this process's settings. `LD_LIBRARY_PATH` counts unless the program is privileged:
    /// the loader ignores the variable then, too.
    #[must_use]
    pub fn of_process(wanted: Wanted) -> Self {
        let listed = || std::env::var_os("LD_LIBRARY_PATH").filter(|value| !value.is_empty());
        Self {
            told: settings::told().driver(wanted.variable),
            library_path: (!is_privileged()).then(listed).flatten(),
            by_variable: matches!(settings::told(), SettingsSource::ByEnvironment),
        }
    }
}

/// An open library. It stays open: its functions are called until the process ends.
#[derive(Debug)]
pub struct Library {
    handle: NonNull<c_void>,
    path: PathBuf,
}

// SAFETY: the handle is only given to `dlsym`, which any thread may call.
unsafe impl Send for Library {}
// SAFETY: as above; nothing in it changes.
unsafe impl Sync for Library {}

impl Library {
    /// The file it was loaded from.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The address of a function, if the library has it.
    #[must_use]
    pub fn symbol(&self, name: &CStr) -> Option<NonNull<c_void>> {
        // SAFETY: an open handle and a terminated name.
        NonNull::new(unsafe { libc::dlsym(self.handle.as_ptr(), name.as_ptr()) })
    }
}

/// Reason why a file was not taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Because {
    /// There is no such file.
    Absent,
    /// It is this very library, or another copy of it.
    Ours,
    /// The loader refused it, with its words.
    Unloadable(String),
    /// A path that was told must begin at the root: a relative one means another file in each
    /// working directory.
    Relative,
}

/// No driver: the name of the library, and the places that were tried.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotFound {
    /// The name that was looked for.
    pub soname: &'static str,
    /// The variable that can name another place, if one can.
    pub variable: Option<&'static str>,
    /// Each file that was tried.
    pub tried: Vec<(PathBuf, Because)>,
}

impl fmt::Display for NotFound {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            out,
            "no {} of NVIDIA's driver found; looked at",
            self.soname
        )?;
        for (index, (path, because)) in self.tried.iter().enumerate() {
            let comma = if index == 0 { " " } else { ", " };
            write!(out, "{comma}{}", path.display())?;
            match because {
                Because::Absent => {}
                Because::Ours => write!(out, " (is Sublet's own)")?,
                Because::Unloadable(why) => write!(out, " (cannot be loaded: {why})")?,
                Because::Relative => write!(out, " (is not an absolute path)")?,
            }
        }
        match self.variable {
            Some(variable) => write!(out, "; {variable} can name the file"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for NotFound {}

/// Opens the first library that is there, loads, and is not ours.
///
/// # Errors
/// [`NotFound`], with every place that was tried.
pub fn open(wanted: Wanted, places: &Places) -> Result<Library, NotFound> {
    let own = own_file();
    let mut tried = Vec::new();
    for path in candidates(wanted, places) {
        match open_one(&path, own) {
            Ok(handle) => return Ok(Library { handle, path }),
            Err(because) => tried.push((path, because)),
        }
    }
    Err(NotFound {
        soname: wanted.soname,
        variable: places.by_variable.then_some(wanted.variable),
        tried,
    })
}

/// The files to try, in order.
fn candidates(wanted: Wanted, places: &Places) -> Vec<PathBuf> {
    if let Some(told) = &places.told {
        return vec![PathBuf::from(told)];
    }
    let mut folders: Vec<PathBuf> = Vec::new();
    let listed = places.library_path.as_deref().unwrap_or_default();
    let listed = listed
        .as_bytes()
        .split(|byte| matches!(byte, b':' | b';'))
        .map(|folder| Path::new(OsStr::from_bytes(folder)))
        .filter(|folder| folder.is_absolute());
    for folder in listed.chain(FOLDERS.iter().map(Path::new)) {
        if !folders.iter().any(|known| known == folder) {
            folders.push(folder.to_path_buf());
        }
    }
    let mut files = Vec::new();
    for folder in folders {
        files.push(folder.join(wanted.soname));
        files.extend(versioned(wanted, &folder));
    }
    files
}

/// Lists the versioned files, such as `libcuda.so.580.65.06`. If our library is mounted over
/// `libcuda.so.1`, the driver's file is still there under its versioned name.
fn versioned(wanted: Wanted, folder: &Path) -> Vec<PathBuf> {
    let stem = wanted.soname.trim_end_matches('1');
    let is_versioned = |name: &OsStr| {
        name.to_str()
            .and_then(|name| name.strip_prefix(stem))
            .is_some_and(|rest| {
                rest.contains('.')
                    && rest
                        .bytes()
                        .all(|byte| byte == b'.' || byte.is_ascii_digit())
            })
    };
    let mut found: Vec<PathBuf> = fs::read_dir(folder)
        .into_iter()
        .flatten()
        .flatten()
        .filter(|entry| is_versioned(&entry.file_name()))
        .map(|entry| entry.path())
        .collect();
    found.sort();
    found
}

/// A file, whatever it is called.
type Inode = (u64, u64);

fn open_one(path: &Path, own: Option<Inode>) -> Result<NonNull<c_void>, Because> {
    if !path.is_absolute() {
        return Err(Because::Relative);
    }
    let Ok(file) = fs::metadata(path) else {
        return Err(Because::Absent);
    };
    if own == Some((file.dev(), file.ino())) {
        return Err(Because::Ours);
    }
    let Ok(name) = CString::new(path.as_os_str().as_bytes()) else {
        return Err(Because::Absent);
    };
    // `dlmopen` into the base namespace is `dlopen`, but no preloaded wrapper of `dlopen`
    // (ours is one) can lead it back here. Local, so that nobody else binds to the driver past
    // us; not RTLD_DEEPBIND, which would give the driver another `malloc` than the program's.
    // SAFETY: a terminated path; the library's constructors run, as they would without us.
    let handle = unsafe {
        libc::dlmopen(
            libc::LM_ID_BASE,
            name.as_ptr(),
            libc::RTLD_NOW | libc::RTLD_LOCAL,
        )
    };
    let Some(handle) = NonNull::new(handle) else {
        return Err(Because::Unloadable(loader_error()));
    };
    // SAFETY: the handle was just opened.
    if unsafe { libc::dlsym(handle.as_ptr(), MARKER.as_ptr()) }.is_null() {
        return Ok(handle);
    }
    // SAFETY: closes what was opened above, once.
    unsafe { libc::dlclose(handle.as_ptr()) };
    Err(Because::Ours)
}

fn loader_error() -> String {
    // SAFETY: returns a string of this thread, or null.
    let text = unsafe { libc::dlerror() };
    if text.is_null() {
        return String::from("no reason given");
    }
    // SAFETY: not null, terminated, and valid until the next call of this thread.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_string_lossy().into_owned()
}

/// The file that this code was loaded from.
fn own_file() -> Option<Inode> {
    // SAFETY: an all-zero Dl_info is valid: null pointers.
    let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
    let here: fn() -> Option<Inode> = own_file;
    // SAFETY: any address may be asked about; `info` is written on success only.
    let known = unsafe { libc::dladdr(here as *const c_void, ptr::from_mut(&mut info)) };
    if known == 0 || info.dli_fname.is_null() {
        return None;
    }
    // SAFETY: the loader's own string, kept as long as the object is loaded.
    let path = unsafe { CStr::from_ptr(info.dli_fname) };
    let file = fs::metadata(OsStr::from_bytes(path.to_bytes())).ok()?;
    Some((file.dev(), file.ino()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(path: &str) -> Places {
        Places {
            told: Some(path.into()),
            library_path: Some("/lists/this".into()),
            by_variable: true,
        }
    }

    #[test]
    fn what_was_told_is_the_only_candidate() {
        assert_eq!(
            candidates(CUDA, &told("/x/libcuda.so.580")),
            [PathBuf::from("/x/libcuda.so.580")]
        );
    }

    #[test]
    fn the_library_path_comes_first_and_versioned_names_count() {
        let folder = tempfile::tempdir().expect("a folder");
        for name in [
            "libcuda.so",
            "libcuda.so.1",
            "libcuda.so.580.65.06",
            "libcuda.so.550.1",
            "libcuda.so.bak.1",
        ] {
            fs::write(folder.path().join(name), "").expect("a file");
        }
        let places = Places {
            told: None,
            library_path: Some(format!("relative:{}", folder.path().display()).into()),
            by_variable: true,
        };
        let files = candidates(CUDA, &places);
        let expected = ["libcuda.so.1", "libcuda.so.550.1", "libcuda.so.580.65.06"];
        assert_eq!(
            files[..3],
            expected.map(|name| folder.path().join(name)),
            "all of {files:?}"
        );
        assert!(files.contains(&PathBuf::from("/usr/lib64/libcuda.so.1")));
    }

    #[test]
    fn a_failure_says_what_and_where() {
        let folder = tempfile::tempdir().expect("a folder");
        let text = folder.path().join("libcuda.so.1");
        fs::write(&text, "not a library").expect("a file");
        let why = |path: &str| {
            open(CUDA, &told(path))
                .expect_err("there is no driver")
                .to_string()
        };
        assert_eq!(
            why("/nowhere/libcuda.so.1"),
            "no libcuda.so.1 of NVIDIA's driver found; looked at /nowhere/libcuda.so.1; \
             SUBLET_DRIVER_CUDA can name the file"
        );
        assert!(why("libcuda.so.1").contains("libcuda.so.1 (is not an absolute path)"));
        assert!(why(text.to_str().expect("text")).contains("(cannot be loaded: "));
        let unnamed = Places {
            by_variable: false,
            ..told("/nowhere/libcuda.so.1")
        };
        let why_not = open(CUDA, &unnamed).expect_err("there is no driver");
        assert!(
            why_not
                .to_string()
                .ends_with("looked at /nowhere/libcuda.so.1")
        );
        let own = std::env::current_exe().expect("this test");
        assert!(why(own.to_str().expect("text")).contains("(is Sublet's own)"));
    }

    #[test]
    fn a_library_gives_its_symbols() {
        let libc = Places {
            told: Some("/lib/x86_64-linux-gnu/libc.so.6".into()),
            ..Places::default()
        };
        let library = open(CUDA, &libc).expect("libc is there");
        assert!(library.symbol(c"malloc").is_some());
        assert!(library.symbol(c"cuInit").is_none());
    }
}
