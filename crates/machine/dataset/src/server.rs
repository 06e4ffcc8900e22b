//! The process that serves data sets: one a store. It listens on a socket in the store's folder,
//! which only its user can enter.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::fs::FlockOperation;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use sublet_arbiter::{ProcessStamp, holder_of};
use sublet_cache::CacheLimits;
use sublet_share::Pid;

use crate::keeper::{Caller, Input, Keeper, KeeperSettings};
use crate::record::RecordError;
use crate::store::Store;
use crate::view::ViewMode;
use crate::wire::{DATASET_LINE_MAX, DatasetReply, DatasetRequest};

/// The most connections at a time.
const CONNECTIONS: usize = 1024;
/// Time in which a client says what it wants, and takes an answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// Interval of the looks at whether a client is still there.
const LOOK: Duration = Duration::from_millis(100);

/// Settings of the process.
#[derive(Debug, Clone, Default)]
pub struct DatasetServer {
    /// Folder of the store.
    pub store: PathBuf,
    /// Another way to show sets than the best one.
    pub view: Option<ViewMode>,
    /// Limits of the store.
    pub limits: CacheLimits,
    /// End when nobody has needed it for so long.
    pub idle_exit: Option<Duration>,
}

/// Failure of the process.
#[derive(Debug, thiserror::Error)]
pub enum DatasetError {
    /// Another process has the store.
    #[error("another process serves the store {0}")]
    Held(PathBuf),
    /// The store's record cannot be read: nothing is touched.
    #[error("the record of the store {store} cannot be used")]
    Record {
        /// Folder of the store.
        store: PathBuf,
        /// Its fault.
        #[source]
        cause: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The disk's or the kernel's.
    #[error("{what} {path} failed")]
    Io {
        /// The step that failed.
        what: &'static str,
        /// The path.
        path: PathBuf,
        /// The cause.
        #[source]
        cause: io::Error,
    },
}

/// Socket of the process that serves a store.
#[must_use]
pub fn dataset_socket(store: &Path) -> PathBuf {
    store.join("serve.sock")
}

impl DatasetServer {
    /// Serves until SIGTERM, SIGINT or SIGHUP, or until nobody has needed it for long.
    ///
    /// # Errors
    /// Another process has the store; its record cannot be read; or the disk's.
    pub fn run(&self) -> Result<(), DatasetError> {
        let failed = |what, path: &Path| {
            let path = path.to_owned();
            move |cause| DatasetError::Io { what, path, cause }
        };
        let mut folder = fs::DirBuilder::new();
        std::os::unix::fs::DirBuilderExt::mode(&mut folder, 0o700);
        folder
            .recursive(true)
            .create(&self.store)
            .map_err(failed("making", &self.store))?;
        let _lock = lock(&self.store)?;
        let store = Store::open(&self.store, self.view).map_err(failed("opening", &self.store))?;
        tracing::info!(
            store = %store.root().display(),
            view = store.mode.name(),
            reason = store.mode_reason.as_deref().unwrap_or("it is the best one"),
            "data sets are served"
        );
        let settings = KeeperSettings {
            limits: self.limits,
            idle_exit: self.idle_exit,
        };
        let (mut keeper, heard) =
            Keeper::begin(store, &settings).map_err(|error| self.record_error(error))?;
        let socket = dataset_socket(&self.store);
        let _there_may_be_none = fs::remove_file(&socket);
        let listener = UnixListener::bind(&socket).map_err(failed("listening on", &socket))?;
        end_on_signals(keeper.inputs()).map_err(failed("taking signals for", &socket))?;
        let inputs = keeper.inputs();
        let accept = std::thread::Builder::new().name("accept".to_owned());
        let accepting = accept.spawn(move || accept_all(&listener, &inputs));
        accepting.map_err(failed("listening on", &socket))?;
        keeper.run(&heard);
        let _it_is_ours = fs::remove_file(&socket);
        tracing::info!("it ends");
        Ok(())
    }

    fn record_error(&self, error: RecordError) -> DatasetError {
        DatasetError::Record {
            store: self.store.clone(),
            cause: Box::new(error),
        }
    }
}

/// The lock of a store, held as long as the file is open.
fn lock(store: &Path) -> Result<File, DatasetError> {
    let path = store.join("lock");
    let failed = |cause| DatasetError::Io {
        what: "locking",
        path: path.clone(),
        cause,
    };
    let mut options = OpenOptions::new();
    options.create(true).append(true).mode(0o600);
    let file = options.open(&path).map_err(failed)?;
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(rustix::io::Errno::WOULDBLOCK) => Err(DatasetError::Held(store.to_owned())),
        Err(error) => Err(failed(error.into())),
    }
}

fn end_on_signals(inputs: Sender<Input>) -> io::Result<()> {
    let mut signals = signal_hook::iterator::Signals::new([SIGTERM, SIGINT, SIGHUP])?;
    let wait = std::thread::Builder::new().name("signals".to_owned());
    wait.spawn(move || {
        if signals.forever().next().is_some() {
            let _it_ends = inputs.send(Input::End);
        }
    })?;
    Ok(())
}

fn accept_all(listener: &UnixListener, inputs: &Sender<Input>) {
    let open = Arc::new(AtomicUsize::new(0));
    // Numbers of connections are never used again, not by a later process either.
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    let mut number = u64::try_from(since.as_millis()).unwrap_or(0) * 1_000;
    for stream in listener.incoming() {
        let Ok(stream) = stream else {
            std::thread::sleep(LOOK);
            continue;
        };
        if open.load(Ordering::Relaxed) >= CONNECTIONS {
            continue;
        }
        number += 1;
        let (inputs, open, connection) = (inputs.clone(), open.clone(), number);
        open.fetch_add(1, Ordering::Relaxed);
        let serve = std::thread::Builder::new().name("client".to_owned());
        let counted = open.clone();
        let started = serve.spawn(move || {
            serve_client(stream, connection, &inputs);
            let _it_ends = inputs.send(Input::Closed(connection));
            open.fetch_sub(1, Ordering::Relaxed);
        });
        if started.is_err() {
            counted.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// One client, from its request to its end.
fn serve_client(mut stream: UnixStream, connection: u64, inputs: &Sender<Input>) {
    let Ok((pid, uid)) = holder_of(&stream) else {
        return;
    };
    let (reply, replies) = channel();
    match read_request(&stream) {
        Ok(request) => {
            let caller = Caller {
                connection,
                uid,
                process: ProcessStamp::of(Pid(pid)),
            };
            let input = Input::Request {
                caller,
                request,
                reply,
            };
            let _it_ends = inputs.send(input);
        }
        Err(error) => {
            let refused = DatasetReply::Refused {
                reason: format!("the request was not understood: {error}"),
                hint: None,
            };
            let _gone = say(&mut stream, &refused);
            return;
        }
    }
    let _gone = pass_on(&mut stream, &replies);
}

fn read_request(stream: &UnixStream) -> io::Result<DatasetRequest> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut line = Vec::new();
    let mut reader = BufReader::new(stream.take(DATASET_LINE_MAX as u64));
    reader.read_until(b'\n', &mut line)?;
    Ok(serde_json::from_slice(&line)?)
}

/// Writes replies until the client or the loop has gone. After the last reply the connection
/// stays open if the client has a lease, which lives as long as it.
fn pass_on(stream: &mut UnixStream, replies: &Receiver<DatasetReply>) -> io::Result<()> {
    stream.set_read_timeout(Some(Duration::from_millis(1)))?;
    loop {
        match replies.recv_timeout(LOOK) {
            Ok(reply) => {
                say(stream, &reply)?;
                match reply {
                    DatasetReply::Progress(_) | DatasetReply::Ready { .. } => {}
                    _ => return Ok(()),
                }
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return Ok(()),
        }
        match stream.read(&mut [0; 64]) {
            // A client has nothing more to say.
            Ok(_) => return Ok(()),
            Err(error) if is_silence(&error) => {}
            Err(error) => return Err(error),
        }
    }
}

fn is_silence(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted
    )
}

fn say(stream: &mut UnixStream, reply: &DatasetReply) -> io::Result<()> {
    let mut line = serde_json::to_vec(reply)?;
    line.push(b'\n');
    stream.write_all(&line)
}
