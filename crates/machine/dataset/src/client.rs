//! The commands' end of `serve.sock`. It blocks, and writes to no terminal.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::server::dataset_socket;
use crate::wire::{DATASET_LINE_MAX, DatasetReply, DatasetRequest};

/// A process that does not read for so long is stopped.
const PATIENCE: Duration = Duration::from_secs(5);

/// Failure of a conversation.
#[derive(Debug, thiserror::Error)]
pub enum DatasetClientError {
    /// Nobody serves that store.
    #[error("no process serves the store {0}")]
    Absent(PathBuf),
    /// The process has gone.
    #[error("the process that serves the store {0} has ended")]
    Gone(PathBuf),
    /// It said something that is no reply.
    #[error("the process that serves the store {0} said something that is no reply")]
    Garbage(PathBuf, #[source] serde_json::Error),
    /// The kernel's.
    #[error("talking to the process that serves the store {0} failed")]
    Io(PathBuf, #[source] io::Error),
}

/// A request, and the replies to it.
#[derive(Debug)]
pub struct DatasetClient {
    store: PathBuf,
    reader: BufReader<UnixStream>,
}

impl DatasetClient {
    /// Sends a request to the process that serves a store.
    ///
    /// # Errors
    /// [`DatasetClientError::Absent`] if there is none, which can be started.
    pub fn ask(
        store: &Path,
        request: &DatasetRequest,
    ) -> Result<DatasetClient, DatasetClientError> {
        let failed = |error| DatasetClientError::Io(store.to_owned(), error);
        let stream =
            UnixStream::connect(dataset_socket(store)).map_err(|error| match error.kind() {
                io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
                    DatasetClientError::Absent(store.to_owned())
                }
                _ => failed(error),
            })?;
        stream.set_write_timeout(Some(PATIENCE)).map_err(failed)?;
        let mut line = serde_json::to_vec(request).map_err(|error| failed(error.into()))?;
        line.push(b'\n');
        (&stream).write_all(&line).map_err(failed)?;
        Ok(DatasetClient {
            store: store.to_owned(),
            reader: BufReader::new(stream),
        })
    }

    /// Waits for the next reply.
    ///
    /// # Errors
    /// The process has gone, or said something that is no reply.
    pub fn reply(&mut self) -> Result<DatasetReply, DatasetClientError> {
        let mut line = Vec::new();
        let mut limited = (&mut self.reader).take(DATASET_LINE_MAX as u64);
        match limited.read_until(b'\n', &mut line) {
            Ok(0) => return Err(DatasetClientError::Gone(self.store.clone())),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => {
                return Err(DatasetClientError::Gone(self.store.clone()));
            }
            Err(error) => return Err(DatasetClientError::Io(self.store.clone(), error)),
        }
        let reply = serde_json::from_slice(&line);
        reply.map_err(|error| DatasetClientError::Garbage(self.store.clone(), error))
    }
}
