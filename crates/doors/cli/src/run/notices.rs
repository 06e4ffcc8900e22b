//! Notices of the fake driver about CMD (`sublet_fakegpu::notice`): a program on the CUDA runtime
//! fails there with words that do not say why. The line for its user is said once.

use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixDatagram;
use std::path::Path;

use sublet_fakegpu::notice::CUDA_RUNTIME;
use tempfile::NamedTempFile;

/// The line about a program on the CUDA runtime.
const NO_RUNTIME: &str = "CMD uses the CUDA runtime, as PyTorch, TensorFlow and all that nvcc \
                          builds do; on the fake driver its calls fail with error 801 (not \
                          supported), and only programs on the driver API run";

/// Most messages that are read in one turn; a program could send more without end.
const READ_MAX: usize = 16;

/// The listener for the fake driver's notices.
pub(super) struct Notices {
    /// `None` with a real driver, where no socket can be made, and once there is news.
    socket: Option<NamedTempFile<UnixDatagram>>,
    /// Is news told as it comes, or at the end?
    at_once: bool,
    /// The line that is not told yet.
    line: Option<&'static str>,
}

impl Notices {
    /// Listens in the folder of the fake machine, if there is one. Notices are a help alone, so a
    /// folder where no socket can be made is no fault.
    pub(super) fn listen(machine: Option<&Path>, at_once: bool) -> Notices {
        Notices {
            socket: machine.and_then(|machine| bind(machine).ok()),
            at_once,
            line: None,
        }
    }

    /// Path of the socket, for the fake driver.
    pub(super) fn place(&self) -> Option<&Path> {
        self.socket.as_ref().map(NamedTempFile::path)
    }

    /// File descriptor to poll for reading, if there is one.
    pub(super) fn fd(&self) -> Option<BorrowedFd<'_>> {
        let socket = self.socket.as_ref()?;
        Some(socket.as_file().as_fd())
    }

    /// Reads the notices that have come. Returns the line to say now.
    pub(super) fn serve(&mut self) -> Option<&'static str> {
        self.read();
        self.line.take_if(|_| self.at_once)
    }

    /// The line to say after the end of CMD.
    pub(super) fn last(&mut self) -> Option<&'static str> {
        self.read();
        self.line.take()
    }

    fn read(&mut self) {
        let Some(socket) = &self.socket else {
            return;
        };
        let mut message = [0; CUDA_RUNTIME.len() + 1];
        for _ in 0..READ_MAX {
            match socket.as_file().recv(&mut message) {
                Ok(length) if message[..length] == *CUDA_RUNTIME => {
                    self.line = Some(NO_RUNTIME);
                    self.socket = None;
                    return;
                }
                // Nothing of the driver's.
                Ok(_) => {}
                Err(_) => return,
            }
        }
    }
}

/// Makes a socket that is gone with its value.
fn bind(folder: &Path) -> std::io::Result<NamedTempFile<UnixDatagram>> {
    let mut name = tempfile::Builder::new();
    let name = name.prefix("notice-");
    let socket = name.make_in(folder, |path| UnixDatagram::bind(path))?;
    socket.as_file().set_nonblocking(true)?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn send(notices: &Notices, message: &[u8]) {
        let socket = UnixDatagram::unbound().unwrap();
        socket.send_to(message, notices.place().unwrap()).unwrap();
    }

    #[test]
    fn a_notice_is_told_once_at_once_or_at_the_end() {
        let machine = tempfile::tempdir().unwrap();
        for at_once in [true, false] {
            let mut notices = Notices::listen(Some(machine.path()), at_once);
            assert!(notices.fd().is_some());
            assert_eq!(notices.serve(), None);
            send(&notices, b"cuda-runtime and more");
            send(&notices, b"");
            assert_eq!(notices.serve(), None);
            send(&notices, CUDA_RUNTIME);
            let (now, later) = (notices.serve(), notices.last());
            assert_eq!((now.is_some(), later.is_some()), (at_once, !at_once));
            assert!(now.or(later).unwrap().contains("error 801"));
            assert_eq!((notices.serve(), notices.last()), (None, None));
            assert!(notices.fd().is_none() && notices.place().is_none());
        }
        let left = std::fs::read_dir(machine.path()).unwrap();
        assert_eq!(left.count(), 0);
    }

    #[test]
    fn without_a_fake_machine_nobody_listens() {
        let mut notices = Notices::listen(None, true);
        assert!(notices.place().is_none());
        assert_eq!((notices.serve(), notices.last()), (None, None));
        let absent = Notices::listen(Some(Path::new("/nonexistent")), true);
        assert!(absent.place().is_none());
    }
}
