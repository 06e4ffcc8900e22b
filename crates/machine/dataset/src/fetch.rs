//! Brings the files of a listing into the store. Many threads read, because each read of a shared
//! file system is a trip to its server; one thread writes, in the order of the layout, so that
//! packs are the same whatever comes first. Bytes that wait for their turn are bounded.
//!
//! The number of readers is learnt: it grows while more of them bring more.

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use blake3::hazmat::ChainingValue;
use sublet_cache::{FaultKind, SourceFault};

use crate::crew::{Crew, STALL, StopFlag, stalled, stopped};
use crate::hash::{PIECE, file_hash, piece_hash};
use crate::source::DataSource;
use crate::tree::SourceTree;
use crate::words::system_text;

/// Readers at the start, and the most.
const READERS: usize = 16;
const READERS_MAX: usize = 256;
/// Bytes that were read, or are being read, and are not written yet.
const BUFFERED: u64 = 128 << 20;
/// Interval of the looks at how fast it goes.
const LOOK: Duration = Duration::from_millis(250);
/// A file counts as so many bytes where speed is compared: small ones cost by number.
const FILE_COST: u64 = 64 << 10;

/// Files that go into the store one after the other, such as those of a pack.
#[derive(Debug, Clone)]
pub(crate) struct FileGroup {
    /// Indices of entries.
    pub(crate) files: Vec<u32>,
    /// Files that are there already.
    pub(crate) files_done: usize,
    /// Pieces of the next file that are there, which is then the only one.
    pub(crate) pieces_done: Vec<ChainingValue>,
}

/// Taker of bytes, in order.
pub(crate) trait FileSink {
    /// A group begins.
    fn begin(&mut self, group: usize) -> io::Result<()>;
    /// The next bytes of a file.
    fn write(&mut self, entry: u32, offset: u64, bytes: &[u8]) -> io::Result<()>;
    /// A file is whole.
    fn end_file(&mut self, entry: u32, digest: [u8; 32]) -> io::Result<()>;
    /// A group is whole.
    fn end(&mut self) -> io::Result<()>;
    /// The fetch stops within a group.
    fn pause(&mut self) -> io::Result<()>;
}

/// A fetch.
#[derive(Debug)]
pub(crate) struct Fetch {
    pub(crate) source: Arc<dyn DataSource>,
    pub(crate) tree: Arc<SourceTree>,
    pub(crate) groups: Arc<Vec<FileGroup>>,
    /// The most readers, which may change at any time.
    pub(crate) readers: Arc<AtomicUsize>,
    pub(crate) stop: StopFlag,
}

/// The part of a file that one thread reads.
#[derive(Debug, Clone, Copy)]
struct Task {
    /// Its place in the order.
    number: u64,
    group: usize,
    entry: u32,
    offset: u64,
    length: usize,
}

/// Bytes of a task, and their hash: that of a piece, or of a whole small file.
struct Filled {
    task: Task,
    bytes: Vec<u8>,
    hash: [u8; 32],
}

/// Tasks in their order: handed out, and taken back.
struct Window {
    tree: Arc<SourceTree>,
    groups: Arc<Vec<FileGroup>>,
    state: Mutex<WindowState>,
    /// The next bytes in order may be there.
    filled: Condvar,
    /// There is room for more bytes.
    room: Condvar,
    /// Readers that work; those of a higher number end.
    readers: AtomicUsize,
}

#[derive(Default)]
struct WindowState {
    /// The next task: group, file of it, offset of that, and number.
    group: usize,
    file: usize,
    offset: u64,
    number: u64,
    buffered: u64,
    ready: BTreeMap<u64, Filled>,
    next: u64,
}

impl Window {
    fn state(&self) -> MutexGuard<'_, WindowState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next task, when there is room for its bytes; `None` once there is no more.
    fn take(&self, crew: &Crew, reader: usize) -> Option<Task> {
        let mut state = self.state();
        loop {
            if crew.is_over() {
                return None;
            }
            if reader >= self.readers.load(Ordering::Relaxed) {
                return None;
            }
            let task = self.task(&mut state)?;
            let length = task.length as u64;
            if state.buffered + length <= BUFFERED || state.buffered == 0 {
                state.buffered += length;
                state.number += 1;
                state.offset += length;
                return Some(task);
            }
            let waited = self.room.wait_timeout(state, LOOK);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// The task at the cursor, which is moved past files and groups that are whole.
    fn task(&self, state: &mut WindowState) -> Option<Task> {
        loop {
            let group = self.groups.get(state.group)?;
            if state.file < group.files_done {
                state.file = group.files_done;
                state.offset = group.pieces_done.len() as u64 * PIECE;
            }
            let Some(entry) = group.files.get(state.file) else {
                (state.group, state.file) = (state.group + 1, 0);
                state.offset = self.first_offset(state.group);
                continue;
            };
            let size = self.tree.entries()[*entry as usize].size;
            if state.offset >= size {
                (state.file, state.offset) = (state.file + 1, 0);
                continue;
            }
            let length = PIECE.min(size - state.offset);
            return Some(Task {
                number: state.number,
                group: state.group,
                entry: *entry,
                offset: state.offset,
                length: usize::try_from(length).unwrap_or(usize::MAX),
            });
        }
    }

    /// Offset in the first file of a group at which it begins, if some of its pieces are there.
    fn first_offset(&self, group: usize) -> u64 {
        let group = self.groups.get(group).filter(|group| group.files_done == 0);
        group.map_or(0, |group| group.pieces_done.len() as u64 * PIECE)
    }

    fn give(&self, filled: Filled) {
        self.state().ready.insert(filled.task.number, filled);
        self.filled.notify_one();
    }

    /// The bytes whose turn it is, if they come within a moment; `Err` once all have.
    fn next(&self) -> Result<Option<Filled>, End> {
        let mut state = self.state();
        let next = state.next;
        if let Some(filled) = state.ready.remove(&next) {
            state.next += 1;
            return Ok(Some(filled));
        }
        if self.task(&mut state).is_none() && state.next == state.number {
            return Err(End);
        }
        let waited = self.filled.wait_timeout(state, LOOK);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
        Ok(None)
    }

    fn written(&self, length: usize) {
        let mut state = self.state();
        let was_full = state.buffered + PIECE > BUFFERED;
        state.buffered -= length as u64;
        drop(state);
        if was_full {
            self.room.notify_all();
        }
    }
}

/// All has come.
struct End;

/// Brings all groups into the sink, and says how many bytes came now and then. The digests are by
/// entry; those of entries in no group are zero.
///
/// # Errors
/// The source's or the disk's, or the stop. What came until then is kept by the sink.
pub(crate) fn fetch(
    fetch: &Fetch,
    sink: &mut dyn FileSink,
    mut came: impl FnMut(u64),
) -> Result<Vec<[u8; 32]>, SourceFault> {
    let window = Arc::new(Window {
        tree: fetch.tree.clone(),
        groups: fetch.groups.clone(),
        state: Mutex::default(),
        filled: Condvar::new(),
        room: Condvar::new(),
        readers: AtomicUsize::new(READERS.min(fetch.readers.load(Ordering::Relaxed)).max(1)),
    });
    window.state().offset = window.first_offset(0);
    let crew = Crew::new(fetch.stop.clone());
    let mut pace = ReaderPace::new();
    let mut started = 0;
    let mut writing = Writing::new(fetch);
    let mut last = Instant::now();
    let ended = loop {
        let wanted = window.readers.load(Ordering::Relaxed);
        while started < wanted {
            let reader = (window.clone(), fetch.source.clone());
            let start = crew.start("read", move |crew| {
                read(&reader.0, &*reader.1, crew, started);
            });
            if let Err(error) = start {
                if started == 0 {
                    crew.fail(disk_fault("a thread", &error));
                }
                break;
            }
            started += 1;
        }
        if let Some(fault) = crew.fault() {
            break Err(fault);
        }
        match window.next() {
            Err(End) => break Ok(()),
            Ok(Some(filled)) => {
                last = Instant::now();
                let length = filled.bytes.len();
                let written = writing.take(&filled, sink);
                drop(filled);
                window.written(length);
                if let Err(fault) = written {
                    break Err(fault);
                }
                pace.came(length as u64);
                came(length as u64);
            }
            Ok(None) if last.elapsed() >= STALL => break Err(stalled(STALL)),
            Ok(None) => {}
        }
        if let Some(readers) = pace.readers(fetch.readers.load(Ordering::Relaxed)) {
            window.readers.store(readers, Ordering::Relaxed);
            started = started.min(readers);
        }
    };
    match ended.and_then(|()| writing.end(sink)) {
        Ok(digests) => Ok(digests),
        Err(fault) => {
            crew.fail(fault.clone());
            if let Err(error) = sink.pause() {
                tracing::warn!(%error, "an unfinished part is not kept");
            }
            Err(fault)
        }
    }
}

/// The life of a reader.
fn read(window: &Window, source: &dyn DataSource, crew: &Crew, number: usize) {
    while let Some(task) = window.take(crew, number) {
        let entry = &window.tree.entries()[task.entry as usize];
        let path = window.tree.path(entry);
        let mut bytes = Vec::with_capacity(task.length);
        if let Err(fault) = source.read(path, entry, task.offset, task.length, &mut bytes) {
            return crew.fail(fault);
        }
        let hash = match entry.size > PIECE {
            true => piece_hash(task.offset, &bytes),
            false => *blake3::hash(&bytes).as_bytes(),
        };
        window.give(Filled { task, bytes, hash });
        crew.progressed();
    }
}

/// The writer's state.
struct Writing<'a> {
    fetch: &'a Fetch,
    digests: Vec<[u8; 32]>,
    /// The group that is open.
    group: Option<usize>,
    /// Groups that have begun.
    begun: usize,
    /// Hashes of the pieces of the file that is open.
    pieces: Vec<ChainingValue>,
}

impl Writing<'_> {
    fn new(fetch: &Fetch) -> Writing<'_> {
        Writing {
            fetch,
            digests: vec![[0; 32]; fetch.tree.entries().len()],
            group: None,
            begun: 0,
            pieces: Vec::new(),
        }
    }

    fn take(&mut self, filled: &Filled, sink: &mut dyn FileSink) -> Result<(), SourceFault> {
        let entry = &self.fetch.tree.entries()[filled.task.entry as usize];
        let path = crate::tree::show(self.fetch.tree.path(entry));
        let failed = |error: io::Error| disk_fault(&path, &error);
        self.reach(filled.task.group, sink).map_err(failed)?;
        let Task {
            entry: at, offset, ..
        } = filled.task;
        sink.write(at, offset, &filled.bytes).map_err(failed)?;
        let digest = if entry.size > PIECE {
            self.pieces.push(filled.hash);
            file_hash(&self.pieces, entry.size)
        } else {
            Some(filled.hash)
        };
        if let Some(digest) = digest {
            self.pieces.clear();
            self.digests[at as usize] = digest;
            sink.end_file(at, digest).map_err(failed)?;
        }
        Ok(())
    }

    /// Ends the groups before that one and begins it. A group that was whole but for its end is
    /// begun and ended.
    fn reach(&mut self, group: usize, sink: &mut dyn FileSink) -> io::Result<()> {
        while self.group != Some(group) {
            if self.group.take().is_some() {
                sink.end()?;
            }
            if self.begun >= self.fetch.groups.len() {
                return Ok(());
            }
            sink.begin(self.begun)?;
            self.pieces
                .clone_from(&self.fetch.groups[self.begun].pieces_done);
            self.group = Some(self.begun);
            self.begun += 1;
        }
        Ok(())
    }

    fn end(mut self, sink: &mut dyn FileSink) -> Result<Vec<[u8; 32]>, SourceFault> {
        let groups = self.fetch.groups.len();
        let ended = self.reach(groups, sink);
        ended.map_err(|error| disk_fault("the last file", &error))?;
        Ok(self.digests)
    }
}

/// A failure of the store's disk.
pub(crate) fn disk_fault(path: &str, error: &io::Error) -> SourceFault {
    if error.kind() == io::ErrorKind::Interrupted {
        return stopped();
    }
    let text = match error.kind() {
        io::ErrorKind::StorageFull => format!("the disk of the store is full: {path}"),
        _ => format!("cannot write {path} to the store: {}", system_text(error)),
    };
    SourceFault {
        kind: FaultKind::Passing,
        text,
    }
}

/// The number of readers that brings the most.
#[derive(Debug)]
struct ReaderPace {
    now: usize,
    since: Instant,
    cost: u64,
    best: f64,
    is_settled: bool,
}

impl ReaderPace {
    fn new() -> ReaderPace {
        ReaderPace {
            now: READERS,
            since: Instant::now(),
            cost: 0,
            best: 0.0,
            is_settled: false,
        }
    }

    fn came(&mut self, bytes: u64) {
        self.cost += bytes + FILE_COST;
    }

    /// Another number of readers, if it is time for one.
    fn readers(&mut self, most: usize) -> Option<usize> {
        let elapsed = self.since.elapsed();
        if elapsed < LOOK {
            return None;
        }
        let speed = self.cost as f64 / elapsed.as_secs_f64();
        (self.cost, self.since) = (0, Instant::now());
        self.now = next_readers(self.now, speed, &mut self.best, &mut self.is_settled);
        Some(self.now.min(most.max(1)))
    }
}

/// Twice as many while that brings a twentieth more; else as many as before.
fn next_readers(now: usize, speed: f64, best: &mut f64, is_settled: &mut bool) -> usize {
    if *is_settled {
        return now;
    }
    if speed > *best * 1.05 {
        *best = speed;
        return (now * 2).min(READERS_MAX);
    }
    *is_settled = true;
    (now / 2).max(READERS)
}
