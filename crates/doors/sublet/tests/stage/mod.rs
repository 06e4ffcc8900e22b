//! A machine for the tests of `sublet run`: the executable with libraries that do nothing beside
//! it, and an arbiter that gives the answers of a test. It shows the behaviour of the command
//! alone; arbiter and interposer are tested with the real ones.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use sublet_arbiter::admin::PROTOCOL;

/// A fake machine's description that no other test uses.
pub(crate) const SPEC: &str = "2x3GiB";

/// Time limit for anything in a test.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// One test's folder.
pub(crate) struct Stage {
    base: tempfile::TempDir,
    sublet: PathBuf,
    socket: PathBuf,
}

impl Stage {
    /// Sets everything up.
    pub(crate) fn new() -> Stage {
        let base = tempfile::tempdir().unwrap();
        let sublet = base.path().join("bin/sublet");
        std::fs::create_dir(base.path().join("bin")).unwrap();
        let built = env!("CARGO_BIN_EXE_sublet");
        if std::fs::hard_link(built, &sublet).is_err() {
            std::fs::copy(built, &sublet).unwrap();
        }
        let empty = base.path().join("empty.so");
        // The C compiler is there: building this workspace needs one.
        let made = Command::new("cc")
            .args(["-shared", "-xc", "/dev/null", "-o"])
            .arg(&empty)
            .status();
        assert!(made.unwrap().success());
        for library in ["cuda", "nvml", "preload", "fakecuda", "fakenvml"] {
            let file = sublet.with_file_name(format!("libsublet_{library}.so"));
            std::fs::copy(&empty, file).unwrap();
        }
        let socket = PathBuf::new();
        let mut stage = Stage {
            base,
            sublet,
            socket,
        };
        stage.socket = stage.told_socket();
        stage
    }

    pub(crate) fn path(&self) -> &Path {
        self.base.path()
    }

    /// `sublet` with this test's folders and no other settings.
    pub(crate) fn sublet(&self, arguments: &[&str]) -> Command {
        let mut command = Stage::unburdened();
        self.dress(&mut command);
        command.arg(&self.sublet).args(arguments);
        command
    }

    /// Runs the program in its arguments, with no signal ignored. Tests may run under `nohup` or in
    /// the background of a shell, where some signals are ignored, and programs pass that on.
    pub(crate) fn unburdened() -> Command {
        let mut command = Command::new("env");
        command.arg("--default-signal=HUP,INT,QUIT");
        command
    }

    /// Gives a command this test's environment.
    pub(crate) fn dress(&self, command: &mut Command) {
        for name in [
            "LD_PRELOAD",
            "LD_LIBRARY_PATH",
            "SUBLET_FAKE_GPU",
            "SUBLET_FAKE_NOTICE",
            "CUDA_VISIBLE_DEVICES",
        ] {
            command.env_remove(name);
        }
        command
            .env("SUBLET_RUNTIME_DIR", self.path().join("run"))
            .env("SUBLET_FAKE_ROOT", self.path())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
    }

    /// `sublet run` on the fake machine, with a script for `sh`.
    pub(crate) fn run(&self, arguments: &[&str], script: &str) -> Command {
        let mut command = self.sublet(&["run", "--fake-gpu", SPEC]);
        command.args(arguments).args(["--", "sh", "-c", script]);
        command
    }

    /// The executable's place.
    pub(crate) fn executable(&self) -> &Path {
        &self.sublet
    }

    /// Socket of the fake machine's arbiter.
    pub(crate) fn socket(&self) -> &Path {
        &self.socket
    }

    /// The socket as the command itself names it.
    fn told_socket(&self) -> PathBuf {
        let words = ["limit", "1", "--memory", "1GiB", "--fake-gpu", SPEC];
        let output = self.sublet(&words).output().unwrap();
        let said = text(&output.stderr);
        let start = "no arbiter listens on ";
        let socket = said
            .lines()
            .find_map(|line| Some(line.split_once(start)?.1.to_owned()));
        PathBuf::from(socket.unwrap_or_else(|| panic!("no socket in {said}")))
    }

    /// An arbiter that gives each job its place at once.
    pub(crate) fn arbiter(&self) -> Arbiter {
        let place = placed(self.socket());
        self.arbiter_that(move |_| vec![place.clone()])
    }

    /// An arbiter that answers as a test wants.
    pub(crate) fn arbiter_that(
        &self,
        answer: impl Fn(&Value) -> Vec<Value> + Send + Sync + 'static,
    ) -> Arbiter {
        Arbiter::start(self.socket.clone(), Arc::new(answer))
    }
}

/// A place on the first card.
pub(crate) fn placed(socket: &Path) -> Value {
    let folder = socket.parent().unwrap();
    json!({"kind": "placed", "id": 7, "dir": folder,
           "gpus": [{"index": 0, "uuid": "GPU-a", "limitMiB": 1024}]})
}

type Answer = Arc<dyn Fn(&Value) -> Vec<Value> + Send + Sync>;

/// An arbiter that decides nothing.
pub(crate) struct Arbiter {
    socket: PathBuf,
    heard: Receiver<Value>,
    open: Arc<Mutex<Vec<UnixStream>>>,
    is_dead: Arc<AtomicBool>,
}

impl Arbiter {
    fn start(socket: PathBuf, answer: Answer) -> Arbiter {
        use std::os::unix::fs::DirBuilderExt;
        let mut folders = std::fs::DirBuilder::new();
        folders.recursive(true).mode(0o700);
        folders.create(socket.parent().unwrap()).unwrap();
        let listener = UnixListener::bind(&socket).unwrap();
        let (tell, heard) = channel();
        let open = Arc::new(Mutex::new(Vec::new()));
        let is_dead = Arc::new(AtomicBool::new(false));
        let (streams, dead) = (Arc::clone(&open), Arc::clone(&is_dead));
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let stream = stream.unwrap();
                if dead.load(Ordering::SeqCst) {
                    return;
                }
                streams.lock().unwrap().push(stream.try_clone().unwrap());
                let (answer, tell) = (Arc::clone(&answer), tell.clone());
                std::thread::spawn(move || serve(&stream, &answer, &tell));
            }
        });
        Arbiter {
            socket,
            heard,
            open,
            is_dead,
        }
    }

    /// The next request, or `closed` if a connection with one has ended.
    pub(crate) fn hears(&self) -> Value {
        self.heard.recv_timeout(PATIENCE).expect("nothing was said")
    }

    /// Dies: no arbiter listens any more, and every connection ends.
    pub(crate) fn kill(self) {
        self.is_dead.store(true, Ordering::SeqCst);
        // Wakes the thread that accepts.
        let _gone = UnixStream::connect(&self.socket);
        std::fs::remove_file(&self.socket).unwrap();
        for stream in self.open.lock().unwrap().iter() {
            let _gone = stream.shutdown(std::net::Shutdown::Both);
        }
    }
}

fn serve(stream: &UnixStream, answer: &Answer, tell: &Sender<Value>) {
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    let Ok(_) = reader.read_line(&mut line) else {
        return;
    };
    let Ok(request) = serde_json::from_str::<Value>(&line) else {
        return;
    };
    let replies = if request["kind"] == "hello" {
        vec![json!({"kind": "hello", "protocol": PROTOCOL, "version": "1", "pid": 1, "epoch": 1})]
    } else {
        let _test_has_ended = tell.send(request.clone());
        answer(&request)
    };
    let say = |reply: &Value| {
        let mut stream = stream;
        let _gone = stream.write_all(format!("{reply}\n").as_bytes());
    };
    replies.iter().for_each(say);
    // A command that failed makes its job's line ask how things are: nothing was refused.
    for _list in reader.lines().map_while(Result::ok) {
        say(&json!({"kind": "snapshot"}));
    }
    if request["kind"] != "hello" {
        let _test_has_ended = tell.send(json!({"kind": "closed"}));
    }
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Exit code, standard output, standard error.
pub(crate) fn result(output: &Output) -> (Option<i32>, String, String) {
    let code = output.status.code();
    (code, text(&output.stdout), text(&output.stderr))
}
