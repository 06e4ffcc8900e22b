//! Finds the file of CMD. Looks it up before a job is queued, so that nobody waits an hour for a
//! misspelt name. Only the start itself is final.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use crate::paste;

/// Exit code of shells for a command that does not exist.
pub(super) const NOT_FOUND: u8 = 127;
/// Exit code of shells for a file that cannot be executed.
pub(super) const NOT_EXECUTABLE: u8 = 126;

/// Search path for programs when `PATH` is not set, as the C library has it.
const DEFAULT_PATH: &str = "/bin:/usr/bin";

/// Reason why a command cannot be started.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum ProgramError {
    /// Nowhere in `PATH`.
    #[error("`{0}` is in no folder of PATH")]
    NotInPath(String),
    /// No such file.
    #[error("there is no file {0}")]
    NoFile(PathBuf),
    /// The file is there, and the program that its first line names is not.
    #[error("{0} is there, but the interpreter that its first line names is not")]
    NoInterpreter(PathBuf),
    /// A folder, or a file without the right to be executed.
    #[error("{0} cannot be executed")]
    NotExecutable(PathBuf),
    /// The kernel refused for another reason.
    #[error("{0} cannot be started: {1}")]
    Refused(PathBuf, String),
}

impl ProgramError {
    /// The exit code that a shell would give.
    pub(super) fn code(&self) -> u8 {
        match self {
            ProgramError::NotInPath(_)
            | ProgramError::NoFile(_)
            | ProgramError::NoInterpreter(_) => NOT_FOUND,
            ProgramError::NotExecutable(_) | ProgramError::Refused(..) => NOT_EXECUTABLE,
        }
    }

    pub(super) fn hint(&self) -> String {
        let hint = match self {
            ProgramError::NotInPath(_) => "write its path, or add its folder to PATH",
            ProgramError::NoFile(_) => "is the path right, and relative to this folder?",
            ProgramError::NoInterpreter(file) => {
                return format!("`head -1 {}` shows which one it wants", paste::word(file));
            }
            ProgramError::NotExecutable(file) if is_script(file) => {
                return format!("`chmod +x {}` makes it so", paste::word(file));
            }
            ProgramError::NotExecutable(_) => "is it a program, and may this user run it?",
            ProgramError::Refused(..) => "run it without sublet: does it start?",
        };
        hint.to_owned()
    }

    /// Meaning of a failed start, for a file that was found.
    pub(super) fn of(file: &Path, error: &io::Error) -> ProgramError {
        let file = file.to_owned();
        match error.kind() {
            io::ErrorKind::NotFound if file.exists() => ProgramError::NoInterpreter(file),
            io::ErrorKind::NotFound => ProgramError::NoFile(file),
            io::ErrorKind::PermissionDenied => ProgramError::NotExecutable(file),
            _ => ProgramError::Refused(file, error.to_string()),
        }
    }
}

/// The file that a command line means, with this process's `PATH`.
pub(super) fn of(command: &[OsString]) -> Result<PathBuf, ProgramError> {
    let name = command.first().map(OsString::as_os_str);
    let path = std::env::var_os("PATH");
    find(name.unwrap_or_default(), path.as_deref())
}

/// The file that `command` means: itself if it has a slash, else the first executable one of
/// its name in the folders of `path`.
fn find(command: &OsStr, path: Option<&OsStr>) -> Result<PathBuf, ProgramError> {
    if command.as_encoded_bytes().contains(&b'/') {
        let file = PathBuf::from(command);
        return match (file.exists(), is_executable(&file)) {
            (_, true) => Ok(file),
            (true, false) => Err(ProgramError::NotExecutable(file)),
            (false, false) => Err(ProgramError::NoFile(file)),
        };
    }
    let mut unusable = None;
    for folder in std::env::split_paths(path.unwrap_or(OsStr::new(DEFAULT_PATH))) {
        // An empty folder in PATH is the current one, for historical reasons.
        let file = if folder.as_os_str().is_empty() {
            Path::new(".").join(command)
        } else {
            folder.join(command)
        };
        if is_executable(&file) {
            return Ok(file);
        }
        if file.is_file() && unusable.is_none() {
            unusable = Some(file);
        }
    }
    Err(match unusable {
        Some(file) => ProgramError::NotExecutable(file),
        None => ProgramError::NotInPath(command.to_string_lossy().into_owned()),
    })
}

fn is_script(file: &Path) -> bool {
    let mut start = [0; 2];
    let read = File::open(file).and_then(|mut file| file.read_exact(&mut start));
    read.is_ok() && start == *b"#!"
}

fn is_executable(file: &Path) -> bool {
    use rustix::fs::{Access, access};
    file.is_file() && access(file, Access::EXEC_OK).is_ok()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn commands_are_found_as_a_shell_finds_them() {
        let base = tempfile::tempdir().unwrap();
        let make = |name: &str, mode| {
            let file = base.path().join(name);
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(&file, "#!/bin/sh\n").unwrap();
            std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).unwrap();
            file
        };
        let (first, second) = (make("a/prog", 0o644), make("b/prog", 0o755));
        let only = make("a/plain", 0o644);
        let path = std::env::join_paths([base.path().join("a"), base.path().join("b")]).unwrap();
        let check = |command: &str| find(OsStr::new(command), Some(&path));
        assert_eq!(check("prog"), Ok(second.clone()));
        assert_eq!(check(second.to_str().unwrap()), Ok(second));
        let refused = ProgramError::NotExecutable(only.clone());
        let hint = format!("`chmod +x {}` makes it so", paste::word(&only));
        assert_eq!(refused.hint(), hint);
        assert_eq!(check("plain"), Err(refused));
        assert_eq!(
            check(first.to_str().unwrap()),
            Err(ProgramError::NotExecutable(first))
        );
        assert_eq!(check("nothing").unwrap_err().code(), NOT_FOUND);
        assert_eq!(check("").unwrap_err().code(), NOT_FOUND);
        assert_eq!(check("/nonexistent/x").unwrap_err().code(), NOT_FOUND);
        let folder = base.path().join("a");
        assert_eq!(
            check(folder.to_str().unwrap()).unwrap_err().code(),
            NOT_EXECUTABLE
        );
        assert!(find(OsStr::new("sh"), None).is_ok());
    }

    #[test]
    fn a_failed_start_has_a_shell_s_code() {
        let check = |file: &str, kind| {
            let error = ProgramError::of(Path::new(file), &io::Error::from(kind));
            (error.code(), error.to_string())
        };
        let (code, text) = check("/bin/sh", io::ErrorKind::NotFound);
        assert_eq!(code, 127);
        assert!(text.contains("interpreter"));
        assert_eq!(check("/nonexistent", io::ErrorKind::NotFound).0, 127);
        assert_eq!(check("/bin/sh", io::ErrorKind::PermissionDenied).0, 126);
        assert_eq!(check("/bin/sh", io::ErrorKind::ArgumentListTooLong).0, 126);
    }
}
