//! The process that serves data sets, as the commands meet it: many clients, kills at any moment, a
//! store that was damaged. The disk, the kernel's mounts and the processes are real.

use std::collections::BTreeSet;
use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use sublet_dataset::{
    DatasetClient, DatasetClientError, DatasetReply, DatasetRequest, DatasetRow, dataset_socket,
};

/// A server that does not answer for so long will not.
const LIMIT: Duration = Duration::from_secs(30);

/// A source, a store, and the process that serves it.
struct Stage {
    base: tempfile::TempDir,
    flags: Vec<&'static str>,
    server: Option<Child>,
}

impl Drop for Stage {
    fn drop(&mut self) {
        self.end(Signal::KILL);
        for view in self.views() {
            let _not_mounted = rustix::mount::unmount(&view, rustix::mount::UnmountFlags::DETACH);
        }
        open_all(self.base.path());
    }
}

/// Folders of plain views may not be written to, and must be for their deletion.
fn open_all(folder: &Path) {
    let _gone = fs::set_permissions(folder, fs::Permissions::from_mode(0o700));
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            open_all(&entry.path());
        }
    }
}

impl Stage {
    fn new(flags: &[&'static str]) -> Stage {
        let base = tempfile::tempdir().unwrap();
        fs::create_dir(base.path().join("source")).unwrap();
        Stage {
            base,
            flags: flags.to_vec(),
            server: None,
        }
    }

    fn source(&self) -> PathBuf {
        self.base.path().join("source")
    }

    fn store(&self) -> PathBuf {
        self.base.path().join("store")
    }

    fn views(&self) -> Vec<PathBuf> {
        let views = fs::read_dir(self.store().join("views"))
            .into_iter()
            .flatten();
        views.flatten().map(|view| view.path()).collect()
    }

    fn fill(&self, seed: u64, files: usize, bytes: usize) {
        let mut random = fastrand::Rng::with_seed(seed);
        for n in 0..files {
            let folder = self.source().join(format!("d{}", n % 7));
            fs::create_dir_all(&folder).unwrap();
            let mut content = vec![0; random.usize(1..bytes)];
            random.fill(&mut content);
            fs::write(folder.join(n.to_string()), content).unwrap();
        }
    }

    fn command(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_sublet-dataset"));
        command.arg("--store").arg(self.store()).args(&self.flags);
        // This machine's disk may be as full as it is.
        command.env("SUBLET_DATASET_MAX_DISK", "100");
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        command
    }

    /// Starts the process and waits until it answers.
    fn start(&mut self) {
        self.server = Some(self.command().spawn().unwrap());
        let began = Instant::now();
        while let Err(DatasetClientError::Absent(_)) =
            DatasetClient::ask(&self.store(), &DatasetRequest::List)
        {
            let ended = self.server.as_mut().unwrap().try_wait().unwrap();
            assert!(ended.is_none() && began.elapsed() < LIMIT, "{ended:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn end(&mut self, signal: Signal) -> Option<Output> {
        let server = self.server.take()?;
        let _gone = kill_process(Pid::from_child(&server), signal);
        server.wait_with_output().ok()
    }

    fn ask(&self, request: &DatasetRequest) -> DatasetClient {
        DatasetClient::ask(&self.store(), request).unwrap()
    }

    fn get(&self) -> DatasetClient {
        self.ask(&DatasetRequest::Get {
            name: "set".to_owned(),
            source: Some(self.source().to_str().unwrap().to_owned()),
            cached: false,
            wait: false,
        })
    }

    /// The folder of the set, and the lease on it.
    fn ready(&self) -> (PathBuf, DatasetClient) {
        let mut client = self.get();
        match last(&mut client) {
            DatasetReply::Ready { path, .. } => (PathBuf::from(path), client),
            other => panic!("{other:?}"),
        }
    }

    fn row(&self) -> DatasetRow {
        match last(&mut self.ask(&DatasetRequest::List)) {
            DatasetReply::Sets(list) => list.sets.into_iter().next().unwrap_or_default(),
            other => panic!("{other:?}"),
        }
    }

    fn remove(&self, force: bool) -> DatasetReply {
        let name = "set".to_owned();
        last(&mut self.ask(&DatasetRequest::Remove { name, force }))
    }
}

fn last(client: &mut DatasetClient) -> DatasetReply {
    loop {
        match client.reply().unwrap() {
            DatasetReply::Progress(_) => {}
            reply => return reply,
        }
    }
}

/// Every file below a folder with its bytes.
fn files(folder: &Path) -> BTreeSet<(PathBuf, Vec<u8>)> {
    let mut found = BTreeSet::new();
    let mut open = vec![folder.to_owned()];
    while let Some(next) = open.pop() {
        for entry in fs::read_dir(next).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                open.push(path);
                continue;
            }
            let bytes = fs::read(&path).unwrap();
            found.insert((path.strip_prefix(folder).unwrap().to_owned(), bytes));
        }
    }
    found
}

fn modes() -> [&'static [&'static str]; 2] {
    [&[], &["--view", "files"]]
}

#[test]
fn case_08_ten_clients_at_once_get_one_copy() {
    for flags in modes() {
        let mut stage = Stage::new(flags);
        stage.fill(1, 500, 60_000);
        stage.start();
        let mut clients: Vec<DatasetClient> = (0..10).map(|_| stage.get()).collect();
        let paths: BTreeSet<String> = clients
            .iter_mut()
            .map(|client| match last(client) {
                DatasetReply::Ready { path, .. } => path,
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(paths.len(), 1);
        let path = PathBuf::from(paths.first().unwrap());
        assert_eq!(files(&path), files(&stage.source()));
        assert_eq!(stage.row().jobs, 10);
        // A lease ends with its connection.
        assert!(matches!(stage.remove(false), DatasetReply::Refused { .. }));
        drop(clients);
        let began = Instant::now();
        while stage.row().jobs > 0 {
            assert!(began.elapsed() < LIMIT);
            std::thread::sleep(Duration::from_millis(20));
        }
        assert_eq!(stage.remove(false), DatasetReply::Done);
        assert_eq!(stage.views(), Vec::<PathBuf>::new());
        assert_eq!(
            fs::read_dir(stage.store().join("packs")).unwrap().count(),
            0
        );
    }
}

#[test]
fn case_10_killed_at_any_moment_it_ends_whole() {
    for flags in modes() {
        let mut random = fastrand::Rng::with_seed(7);
        let mut stage = Stage::new(flags);
        let mut killed = 0;
        for round in 0..3 {
            // Each round the source is another one, so versions come and go too.
            stage.fill(round, 60, 2_000_000);
            for _ in 0..8 {
                stage.start();
                let _client = stage.get();
                std::thread::sleep(Duration::from_millis(random.u64(0..150)));
                killed += 1;
                stage.end(Signal::KILL);
            }
            stage.start();
            let (path, _lease) = stage.ready();
            assert_eq!(files(&path), files(&stage.source()), "round {round}");
            stage.end(Signal::KILL);
        }
        stage.start();
        let (path, lease) = stage.ready();
        assert_eq!(files(&path), files(&stage.source()), "after {killed} kills");
        // Versions that clients of this process had before stay as long as it lives.
        assert!(stage.views().contains(&path));
        assert_eq!(
            fs::read_dir(stage.store().join("parts")).unwrap().count(),
            0
        );
        drop(lease);
    }
}

#[test]
fn case_11_whoever_reads_notices_nothing_of_a_kill() {
    let mut stage = Stage::new(&[]);
    stage.fill(2, 400, 40_000);
    stage.start();
    let (path, _lease) = stage.ready();
    let before = files(&stage.source());
    stage.end(Signal::KILL);
    assert_eq!(files(&path), before);
    // The lease is that of this process, which lives: nobody deletes the set under it.
    stage.start();
    assert_eq!(stage.row().jobs, 1);
    assert!(matches!(stage.remove(false), DatasetReply::Refused { .. }));
    assert_eq!(files(&path), before);
}

#[test]
fn a_fetch_that_is_ended_in_order_goes_on() {
    let mut stage = Stage::new(&[]);
    stage.fill(3, 12, 24 << 20);
    stage.start();
    let client = stage.get();
    std::thread::sleep(Duration::from_millis(60));
    drop(client);
    let said = stage.end(Signal::TERM).unwrap();
    assert_eq!(
        said.status.code(),
        Some(0),
        "{}",
        String::from_utf8_lossy(&said.stderr)
    );
    assert!(!dataset_socket(&stage.store()).exists());
    stage.start();
    let (path, _lease) = stage.ready();
    assert_eq!(files(&path), files(&stage.source()));
}

#[test]
fn a_record_that_cannot_be_read_is_left_alone_with_all_that_it_may_name() {
    let mut stage = Stage::new(&["--view", "files"]);
    stage.fill(4, 5, 1_000);
    stage.start();
    let (path, lease) = stage.ready();
    drop(lease);
    stage.end(Signal::TERM);
    let record = stage.store().join("state.json");
    let right = fs::read(&record).unwrap();
    for wrong in [
        b"".as_slice(),
        b"{}",
        b"{\"recordVersion\":99}",
        &right[..right.len() / 2],
    ] {
        fs::write(&record, wrong).unwrap();
        let said = stage.command().output().unwrap();
        let text = String::from_utf8_lossy(&said.stderr).into_owned();
        assert_eq!(said.status.code(), Some(1), "{text}");
        assert!(text.contains("the record of the store"), "{text}");
        assert_eq!(fs::read(&record).unwrap(), wrong);
        assert!(path.exists());
    }
    fs::write(&record, right).unwrap();
    stage.start();
    assert_eq!(stage.row().state, "ready");
}

#[test]
fn a_store_has_one_process() {
    let mut stage = Stage::new(&["--view", "files"]);
    stage.start();
    let said = stage.command().output().unwrap();
    let text = String::from_utf8_lossy(&said.stderr).into_owned();
    assert_eq!(said.status.code(), Some(1));
    assert!(text.contains("another process serves the store"), "{text}");
    assert_eq!(stage.row(), DatasetRow::default());
}

#[test]
fn strange_clients_keep_nobody_else_waiting() {
    let mut stage = Stage::new(&["--view", "files"]);
    stage.fill(5, 3, 1_000);
    stage.start();
    let socket = dataset_socket(&stage.store());
    let silent: Vec<UnixStream> = (0..50)
        .map(|_| UnixStream::connect(&socket).unwrap())
        .collect();
    let words = [
        "\n",
        "{}\n",
        "{\"kind\":\"get\"}\n",
        "{\"kind\":\"get\",\"name\":\"../x\"}\n",
        "\u{0}\n",
    ];
    for word in words {
        let mut stream = UnixStream::connect(&socket).unwrap();
        stream.write_all(word.as_bytes()).unwrap();
        let mut said = String::new();
        stream.read_to_string(&mut said).unwrap();
        assert!(said.contains("\"refused\""), "{word:?}: {said}");
    }
    let (path, _lease) = stage.ready();
    assert_eq!(files(&path), files(&stage.source()));
    drop(silent);
}

#[test]
fn what_cannot_fit_is_refused_with_both_amounts() {
    let mut stage = Stage::new(&["--view", "files", "--max-size", "3MiB"]);
    stage.fill(6, 40, 200_000);
    stage.start();
    match last(&mut stage.get()) {
        DatasetReply::Refused { reason, .. } => {
            assert!(
                reason.contains("does not fit") && reason.contains("3 MiB"),
                "{reason}"
            );
        }
        other => panic!("{other:?}"),
    }
    // A store that nobody needs ends by itself.
    stage.end(Signal::TERM);
    stage.flags = vec!["--view", "files", "--idle-exit=0"];
    let ended = stage.command().output().unwrap();
    assert_eq!(ended.status.code(), Some(0));
}

#[test]
fn a_set_on_its_way_comes_from_one_source() {
    let mut stage = Stage::new(&["--view", "files"]);
    stage.fill(8, 60, 8 << 20);
    stage.start();
    let mut first = stage.get();
    // It has been heard, and takes a while.
    let told = first.reply().unwrap();
    assert!(matches!(told, DatasetReply::Progress(_)), "{told:?}");
    let other = stage.base.path().join("other");
    fs::create_dir(&other).unwrap();
    fs::write(other.join("file"), b"other").unwrap();
    let get = |cached| {
        stage.ask(&DatasetRequest::Get {
            name: "set".to_owned(),
            source: Some(other.to_str().unwrap().to_owned()),
            cached,
            wait: false,
        })
    };
    match last(&mut get(false)) {
        DatasetReply::Refused { reason, .. } => {
            assert!(
                reason.contains("on its way from another source"),
                "{reason}"
            );
        }
        other => panic!("{other:?}"),
    }
    let DatasetReply::Ready { path, .. } = last(&mut first) else {
        panic!("it is there");
    };
    assert_eq!(files(Path::new(&path)), files(&stage.source()));
    // Afterwards it is a new version, also where the copy that is here would do.
    match last(&mut get(true)) {
        DatasetReply::Ready { path, .. } => assert_eq!(files(Path::new(&path)), files(&other)),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_store_of_mounts_is_not_served_as_files_and_a_cut_pack_costs_its_set_alone() {
    let mut stage = Stage::new(&[]);
    stage.fill(9, 5, 100_000);
    stage.start();
    let (path, lease) = stage.ready();
    drop(lease);
    stage.end(Signal::TERM);
    let packs: Vec<PathBuf> = fs::read_dir(stage.store().join("packs"))
        .unwrap()
        .map(|pack| pack.unwrap().path())
        .collect();
    let [pack] = packs.as_slice() else {
        println!("skipped: nothing can be mounted here");
        return;
    };
    let said = stage.command().args(["--view", "files"]).output().unwrap();
    let text = String::from_utf8_lossy(&said.stderr).into_owned();
    assert_eq!(said.status.code(), Some(1), "{text}");
    assert!(text.contains("can be shown as files only"), "{text}");
    assert!(pack.exists() && path.exists());
    fs::set_permissions(pack, fs::Permissions::from_mode(0o600)).unwrap();
    let file = fs::OpenOptions::new().write(true).open(pack).unwrap();
    file.set_len(10_000).unwrap();
    stage.start();
    assert_eq!(stage.row().state, "absent");
    let (path, _lease) = stage.ready();
    assert_eq!(files(&path), files(&stage.source()));
}

#[test]
fn a_version_with_wrong_bytes_is_given_to_nobody_by_a_later_process_either() {
    let mut stage = Stage::new(&["--view", "files"]);
    stage.fill(10, 5, 10_000);
    stage.start();
    let (path, _lease) = stage.ready();
    let (file, _) = files(&path).into_iter().next().unwrap();
    let spoilt = path.join(&file);
    fs::set_permissions(&spoilt, fs::Permissions::from_mode(0o600)).unwrap();
    fs::write(&spoilt, b"wrong").unwrap();
    // The source has other bytes now, so it cannot be repaired.
    stage.fill(11, 5, 10_000);
    let verify = DatasetRequest::Verify {
        name: "set".to_owned(),
    };
    match last(&mut stage.ask(&verify)) {
        DatasetReply::Verified { damaged, .. } => assert_eq!(damaged.len(), 1),
        other => panic!("{other:?}"),
    }
    let began = Instant::now();
    while stage.row().version.is_some() {
        assert!(began.elapsed() < LIMIT);
        std::thread::sleep(Duration::from_millis(20));
    }
    stage.end(Signal::KILL);
    stage.start();
    assert_eq!(stage.row().version, None);
    let (path, _lease) = stage.ready();
    assert_eq!(files(&path), files(&stage.source()));
}
