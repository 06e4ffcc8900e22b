//! The settings file: a process's arbiter, its strictness, and the place of the driver.
//!
//! A program's environment is its caller's: sudo, cron and sshd start programs without ours, and a
//! setuid program must not obey it. So root writes these settings to one of two fixed
//! [places](PLACES), read-only for everybody else: the agent beside the libraries that a container
//! mounts, `sublet run` into a file system that only the job sees. If the file exists, no variable
//! counts.
//!
//! The first line holds the version. Each further one is `NAME=value`, with the names of the
//! variables that a process without such a file uses. A reader passes over unknown names, so a line
//! that old readers may ignore can be added; a line that everybody must obey needs a new version.
//! Writer and reader are usually of one build: the file and the libraries lie in one folder, or one
//! `sublet run` brings both. Values are bytes, as paths are.

use core::ffi::CStr;
use core::fmt;

use crate::message::Mode;

/// Paths at which the file may be; the first that is there counts.
///
/// In a container, the file is below the agent's mount. On a machine, it is in a folder that is
/// open to all and empty for everybody outside a job.
pub const PLACES: [&CStr; 2] = [
    c"/usr/local/sublet/lib/settings",
    c"/run/sublet-job/settings",
];

/// The name of the file.
pub const FILE: &str = "settings";

/// A longer file is none: three paths at their longest, and their names.
pub const BYTES_MAX: usize = 16 << 10;

/// The folder with the tenant's socket.
pub const DIRECTORY: &str = "SUBLET_DIR";

/// Folders of MPS's sockets, from the folder with the tenant's socket: the arbiter's own, and the
/// one that a container has beside it.
pub const MPS_PIPES: [&str; 2] = ["mps/pipe", "../mps"];

/// `strict` or `compat`: the behaviour of a process that reaches no arbiter, and so cannot ask for
/// it.
pub const MODE: &str = "SUBLET_MODE";

/// The file of the real CUDA driver.
pub const DRIVER_CUDA: &str = "SUBLET_DRIVER_CUDA";

/// The file of the real management library.
pub const DRIVER_NVML: &str = "SUBLET_DRIVER_NVML";

const NAMES: [&str; 4] = [DIRECTORY, MODE, DRIVER_CUDA, DRIVER_NVML];

/// The first line, with the version.
const HEAD: &[u8] = b"sublet settings 1";

/// Returns the word for a mode, in the file and in variables.
#[must_use]
pub const fn word_of(mode: Mode) -> &'static str {
    match mode {
        Mode::Strict => "strict",
        Mode::Compat => "compat",
    }
}

/// Content of the file. Paths are absolute.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProcessSettings<'a> {
    /// The folder with the tenant's socket.
    pub directory: &'a [u8],
    /// Behaviour of a process without an arbiter.
    pub mode: Mode,
    /// The real CUDA driver; where it is not said, it is looked for.
    pub cuda: Option<&'a [u8]>,
    /// The real management library.
    pub nvml: Option<&'a [u8]>,
}

/// Reason why bytes are no settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SettingsError {
    /// More than [`BYTES_MAX`].
    Long,
    /// The first line is not that of a version that is known here.
    Version,
    /// The last line has no end: something is missing.
    Cut,
    /// A line is not `NAME=value`.
    NoValue,
    /// A line that must be there is not.
    Missing(&'static str),
    /// A line is there twice.
    Twice(&'static str),
    /// The value is not an absolute path, or not a mode.
    Value(&'static str),
}

impl fmt::Display for SettingsError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SettingsError::Long => write!(out, "more than {BYTES_MAX} bytes"),
            SettingsError::Version => out.write_str("a version that is not known"),
            SettingsError::Cut => out.write_str("the last line has no end"),
            SettingsError::NoValue => out.write_str("a line is not NAME=value"),
            SettingsError::Missing(name) => write!(out, "no {name}"),
            SettingsError::Twice(name) => write!(out, "{name} is there twice"),
            SettingsError::Value(name) => write!(out, "{name} has a wrong value"),
        }
    }
}

impl core::error::Error for SettingsError {}

impl<'a> ProcessSettings<'a> {
    /// Reads a file's bytes, whatever they are.
    ///
    /// # Errors
    /// [`SettingsError`].
    pub fn parse(bytes: &'a [u8]) -> Result<Self, SettingsError> {
        if bytes.len() > BYTES_MAX {
            return Err(SettingsError::Long);
        }
        let bytes = bytes.strip_suffix(b"\n").ok_or(SettingsError::Cut)?;
        let mut lines = bytes.split(|byte| *byte == b'\n');
        if lines.next() != Some(HEAD) {
            return Err(SettingsError::Version);
        }
        let mut values = [None; NAMES.len()];
        for line in lines {
            let equals = line.iter().position(|byte| *byte == b'=');
            let (name, value) = line.split_at(equals.ok_or(SettingsError::NoValue)?);
            for (known, place) in NAMES.into_iter().zip(&mut values) {
                if name == known.as_bytes() && place.replace(&value[1..]).is_some() {
                    return Err(SettingsError::Twice(known));
                }
            }
        }
        let [directory, mode, cuda, nvml] = values;
        let settings = ProcessSettings {
            directory: directory.ok_or(SettingsError::Missing(DIRECTORY))?,
            mode: match mode {
                Some(b"strict") => Mode::Strict,
                Some(b"compat") => Mode::Compat,
                Some(_) => return Err(SettingsError::Value(MODE)),
                None => return Err(SettingsError::Missing(MODE)),
            },
            cuda,
            nvml,
        };
        settings.check()?;
        Ok(settings)
    }

    /// Hands out the bytes of the file, piece by piece.
    ///
    /// # Errors
    /// A value cannot be written; nothing was handed out.
    pub fn write(&self, mut put: impl FnMut(&[u8])) -> Result<(), SettingsError> {
        self.check()?;
        let mode = Some(word_of(self.mode).as_bytes());
        let lines = NAMES
            .into_iter()
            .zip([Some(self.directory), mode, self.cuda, self.nvml]);
        let lines = lines.filter_map(|(name, value)| Some((name.as_bytes(), value?)));
        let bytes = |(name, value): (&[u8], &[u8])| name.len() + value.len() + 2;
        if HEAD.len() + 1 + lines.clone().map(bytes).sum::<usize>() > BYTES_MAX {
            return Err(SettingsError::Long);
        }
        put(HEAD);
        put(b"\n");
        for (name, value) in lines {
            [name, b"=", value, b"\n"].into_iter().for_each(&mut put);
        }
        Ok(())
    }

    /// Paths begin at the root: a relative one means another file in each working directory. They
    /// end with their line, and a zero would end them sooner.
    fn check(&self) -> Result<(), SettingsError> {
        let directory = (DIRECTORY, Some(self.directory));
        for (name, path) in [
            directory,
            (DRIVER_CUDA, self.cuda),
            (DRIVER_NVML, self.nvml),
        ] {
            let is_path = |path: &[u8]| {
                path.starts_with(b"/") && !path.iter().any(|byte| matches!(byte, 0 | b'\n'))
            };
            if !path.is_none_or(is_path) {
                return Err(SettingsError::Value(name));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
