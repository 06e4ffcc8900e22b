//! Source of this process's settings: its arbiter, its strictness and its driver. Root's file
//! counts if there is one, else the environment.
//!
//! The file ([`sublet_abi::settings`]) is read when the library is loaded, before the program can
//! leave its root folder or use up its descriptors. If the file exists but cannot be read, or users
//! other than root could have written it, the environment is not believed either: the process gets
//! no GPU. Without a file, the environment counts, except in a program with more rights than its
//! caller: there the caller could make the program run the caller's code.
//!
//! Every program of a job or container runs this code, so it makes only system calls that the
//! loader has just made too: a sandbox may end a program for any other call.

use std::ffi::{CStr, OsStr, OsString};
use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::mem;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use sublet_abi::Mode;
use sublet_abi::settings::{
    BYTES_MAX, DIRECTORY, DRIVER_CUDA, DRIVER_NVML, MODE, PLACES, ProcessSettings,
};

use crate::guard::catch_panic;

/// The source that is believed.
#[derive(Debug)]
pub enum SettingsSource {
    /// Root's file.
    ByFile(ProcessSettings<'static>),
    /// Nobody: root's file is there and cannot be believed.
    Unclear(Unclear),
    /// Nobody: there is no file, and the environment is that of a caller with fewer rights.
    ByNobody,
    /// The environment.
    ByEnvironment,
}

/// Reason why root's file is not believed.
#[derive(Debug)]
pub struct Unclear {
    place: &'static CStr,
    why: io::Error,
}

impl fmt::Display for Unclear {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = self.place.to_string_lossy();
        write!(out, "cannot go by {place}: {}", self.why)
    }
}

impl std::error::Error for Unclear {}

/// Returns the settings of this process and of its children by fork.
pub fn told() -> &'static SettingsSource {
    static TOLD: AtomicPtr<SettingsSource> = AtomicPtr::new(ptr::null_mut());
    let known = TOLD.load(Ordering::Acquire);
    if !known.is_null() {
        // SAFETY: stored below from a box that is never freed.
        return unsafe { &*known };
    }
    // No lock, which a fork could leave taken for ever. Threads that both look find the same.
    let mine = Box::into_raw(Box::new(SettingsSource::at(&PLACES, 0, is_privileged())));
    let winner = TOLD.compare_exchange(ptr::null_mut(), mine, Ordering::AcqRel, Ordering::Acquire);
    // SAFETY: either is a box that is never freed.
    unsafe { &*winner.map_or_else(|other| other, |_| mine) }
}

/// Looks for the file now; for the libraries' constructors.
pub fn look() {
    let _ = catch_panic(told);
}

impl SettingsSource {
    fn at(places: &[&'static CStr], owner: u32, is_privileged: bool) -> Self {
        for &place in places {
            match read(place, owner) {
                Ok(None) => {}
                Ok(Some(settings)) => return Self::ByFile(settings),
                Err(why) => return Self::Unclear(Unclear { place, why }),
            }
        }
        if is_privileged {
            Self::ByNobody
        } else {
            Self::ByEnvironment
        }
    }

    /// The folder with the arbiter's socket.
    #[must_use]
    pub fn directory(&self) -> Option<PathBuf> {
        match self {
            Self::ByFile(settings) => Some(owned(settings.directory).into()),
            Self::ByEnvironment => variable(DIRECTORY).map(PathBuf::from),
            Self::Unclear(_) | Self::ByNobody => None,
        }
    }

    /// Returns the behaviour of this process without an arbiter.
    #[must_use]
    pub fn mode(&self) -> Mode {
        match self {
            Self::ByFile(settings) => settings.mode,
            Self::ByEnvironment => mode_of(variable(MODE).as_deref()),
            Self::Unclear(_) => Mode::Strict,
            Self::ByNobody => Mode::Compat,
        }
    }

    /// Returns the file of the real library that the settings give for this variable, if any.
    #[must_use]
    pub fn driver(&self, variable_name: &str) -> Option<OsString> {
        match (self, variable_name) {
            (Self::ByFile(settings), DRIVER_CUDA) => settings.cuda.map(owned),
            (Self::ByFile(settings), DRIVER_NVML) => settings.nvml.map(owned),
            (Self::ByEnvironment, name) => variable(name),
            _ => None,
        }
    }
}

/// True in a program that has more rights than its caller: setuid, setgid, file capabilities.
#[must_use]
pub fn is_privileged() -> bool {
    // SAFETY: no preconditions.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}

fn owned(path: &[u8]) -> OsString {
    OsStr::from_bytes(path).to_owned()
}

fn variable(name: &str) -> Option<OsString> {
    std::env::var_os(name).filter(|value| !value.is_empty())
}

/// In the environment only `strict` means strict: with any other value the programs run, and are
/// reported.
fn mode_of(value: Option<&OsStr>) -> Mode {
    if value == Some(OsStr::new("strict")) {
        Mode::Strict
    } else {
        Mode::Compat
    }
}

/// Reads the file, if there is one. Only `owner` may have written it.
fn read(place: &CStr, owner: u32) -> io::Result<Option<ProcessSettings<'static>>> {
    let file = OpenOptions::new()
        .read(true)
        // No link, which would be somebody else's choice, and no waiting for a pipe's other end.
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_NOCTTY)
        .open(Path::new(OsStr::from_bytes(place.to_bytes())));
    let file = match file {
        Ok(file) => file,
        Err(error) if is_absent(&error) => return Ok(None),
        Err(error) => return Err(error),
    };
    let about = about(&file)?;
    if about.st_mode & libc::S_IFMT != libc::S_IFREG {
        return Err(io::Error::other("it is not a file"));
    }
    if about.st_mode & 0o022 != 0 || !is_of(&file, about.st_uid, owner) {
        return Err(io::Error::other("others than root can write it"));
    }
    let mut bytes = Vec::new();
    // One more than may be, so that more is noticed.
    file.take(BYTES_MAX as u64 + 1).read_to_end(&mut bytes)?;
    // A few hundred bytes for ever, as for the process itself.
    let settings = ProcessSettings::parse(bytes.leak());
    settings.map(Some).map_err(io::Error::other)
}

fn about(file: &File) -> io::Result<libc::stat> {
    // SAFETY: an all-zero struct is valid, and is overwritten.
    let mut about: libc::stat = unsafe { mem::zeroed() };
    // SAFETY: an open descriptor, and a struct of ours.
    match unsafe { libc::fstat(file.as_raw_fd(), &raw mut about) } {
        0 => Ok(about),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Nothing else means that there is no file: a process that has no descriptors left, or may not
/// read, must not be taken for one that is told by its environment.
fn is_absent(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENOTDIR))
}

/// The number of every user that has no number in a user namespace. In a container with a user
/// namespace, the host's root is such a user, unless its mounts are translated.
const NOBODY_KNOWN: u32 = 65_534;

/// True for the owner's file. A file of an owner without a number here counts if it is mounted for
/// reading only, because such a mount needs the rights of root over the container's mounts.
fn is_of(file: &File, uid: u32, owner: u32) -> bool {
    uid == owner || (uid == NOBODY_KNOWN && is_mounted_read_only(file))
}

fn is_mounted_read_only(file: &File) -> bool {
    // SAFETY: an all-zero struct is valid, and is overwritten.
    let mut about: libc::statvfs = unsafe { mem::zeroed() };
    // SAFETY: an open descriptor, and a struct of ours.
    let known = unsafe { libc::fstatvfs(file.as_raw_fd(), &raw mut about) };
    known == 0 && about.f_flag & libc::ST_RDONLY != 0
}

#[cfg(test)]
mod tests;
