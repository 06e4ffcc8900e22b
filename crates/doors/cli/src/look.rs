//! One machine as `sublet ps`, `top` and `queue` show it. If its arbiter runs, that says all there
//! is. Otherwise the driver is asked here, in this process. A look starts no other process, makes no
//! folder, and believes nobody in a folder of another user's.

use std::error::Error;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use sublet_arbiter::admin::{Client, Snapshot};
use sublet_arbiter::{GpuView, NvmlView, UnmanagedGpus, expects_jobs};
use sublet_fakegpu::FakeMachine;
use sublet_fakeview::FakeView;

use crate::answer::Advised;
use crate::machine::{ConnectError, Machine};
use crate::run::real_nvml;
use crate::users::name_users;

/// Time for the next arbiter to come, if the last one has left jobs behind: its manager starts it,
/// or one of the jobs a second later.
pub(crate) const RETURN_MAX: Duration = Duration::from_secs(5);
/// Interval between the tries to reach it.
const TRY_EVERY: Duration = Duration::from_millis(10);
/// Time limit of the driver's answer. Loading NVML on a machine with many cards and no persistence
/// daemon takes seconds; with a broken card it may take for ever.
const DRIVER_MAX: Duration = Duration::from_secs(30);

/// A machine at one moment.
pub(crate) struct Look {
    pub(crate) snapshot: Snapshot,
    /// A line about jobs that are not shown, if there may be any.
    pub(crate) note: Option<String>,
}

/// Looks at a machine.
///
/// # Errors
/// There is no driver, or an arbiter that should answer does not.
pub(crate) fn at(machine: &Machine) -> anyhow::Result<Look> {
    let mut look = match connect(machine)? {
        Found::Arbiter(mut client) => Look {
            snapshot: machine.snapshot_of(&mut client)?,
            note: None,
        },
        Found::Nobody { note } => {
            let mut driver = DriverReader::start(machine);
            driver.ask();
            let answer = driver.answers.recv_timeout(DRIVER_MAX).map_err(|cause| {
                let what = format!("the driver of {} does not answer", machine.called());
                let hint = "does `nvidia-smi` get an answer? A card may be broken";
                Advised::new(what, hint).caused_by(cause)
            })?;
            let snapshot = answer?;
            Look { snapshot, note }
        }
    };
    name_users(&mut look.snapshot);
    Ok(look)
}

/// Result of the search for an arbiter.
pub(crate) enum Found {
    /// A connection to it.
    Arbiter(Client),
    /// There is none that this user may ask.
    Nobody {
        /// A line about jobs that are not shown, if there may be any.
        note: Option<String>,
    },
}

/// Looks for the machine's arbiter. If the last one has left jobs behind, waits a little for the
/// next one.
///
/// # Errors
/// One runs that should answer and does not, or that speaks another protocol.
pub(crate) fn connect(machine: &Machine) -> Result<Found, Advised> {
    let until = Instant::now() + RETURN_MAX;
    loop {
        match machine.connect() {
            Ok(client) => return Ok(Found::Arbiter(client)),
            Err(error) if error.may_start() && is_awaited(machine) && Instant::now() < until => {
                std::thread::sleep(TRY_EVERY);
            }
            Err(error) if error.is_nobody() => {
                let holder = machine.host().and_then(|host| host.holder());
                let note = note(&error, holder);
                return Ok(Found::Nobody { note });
            }
            Err(error) => return Err(machine.unusable(error)),
        }
    }
}

/// Checks whether jobs wait for the next arbiter.
pub(crate) fn is_awaited(machine: &Machine) -> bool {
    expects_jobs(&machine.folder)
}

/// A line about the reason why jobs may be missing. `holder` are process and user of an arbiter that
/// listens elsewhere.
fn note(error: &ConnectError, holder: Option<(u32, u32)>) -> Option<String> {
    let why = match (holder, error) {
        (Some((0, user)), _) => format!("an arbiter of user {user} looks after these GPUs"),
        (Some((pid, user)), _) => {
            format!("an arbiter looks after these GPUs: process {pid} of user {user}")
        }
        (None, error) if error.may_start() => return None,
        (None, error) => {
            let cause = error.source().map(|cause| format!(": {cause}"));
            format!("no arbiter is asked: {error}{}", cause.unwrap_or_default())
        }
    };
    Some(format!(
        "{why}; jobs are not shown, and their processes are `unmanaged` here"
    ))
}

/// The thread that reads the driver. The driver may take its time, and with a broken card it may
/// never answer. The thread ends with this value, or if the driver hangs with the process.
pub(crate) struct DriverReader {
    ask: Sender<()>,
    answers: Receiver<anyhow::Result<Snapshot>>,
    waits: bool,
}

impl DriverReader {
    /// Starts it. It opens the driver when it is first asked.
    pub(crate) fn start(machine: &Machine) -> DriverReader {
        let (ask, asked) = channel::<()>();
        let (answer, answers) = channel();
        let machine = machine.clone();
        let work = move || {
            let mut unmanaged = None;
            while asked.recv().is_ok() && answer.send(read(&machine, &mut unmanaged)).is_ok() {}
            // The process may be about to end, and the driver's library must not be shut down by
            // two threads at once.
            std::mem::forget(unmanaged);
        };
        // Where the system has no thread left, nobody answers, and that is told.
        let _no_thread = std::thread::Builder::new()
            .name("sublet-driver".to_owned())
            .spawn(work);
        DriverReader {
            ask,
            answers,
            waits: false,
        }
    }

    /// Asks the driver, unless it owes an answer.
    pub(crate) fn ask(&mut self) {
        if !self.waits {
            self.waits = self.ask.send(()).is_ok();
        }
    }

    /// The answer, if it has come.
    pub(crate) fn take(&mut self) -> Option<anyhow::Result<Snapshot>> {
        let answer = self.answers.try_recv().ok()?;
        self.waits = false;
        Some(answer)
    }
}

/// Reads the driver, which is opened if it is not yet.
fn read(machine: &Machine, unmanaged: &mut Option<UnmanagedGpus>) -> anyhow::Result<Snapshot> {
    let unmanaged = match unmanaged {
        Some(unmanaged) => unmanaged,
        None => unmanaged.insert(UnmanagedGpus::new(view(machine)?)?),
    };
    Ok(unmanaged.snapshot())
}

/// The driver of a machine, or the fake machine itself.
fn view(machine: &Machine) -> anyhow::Result<Box<dyn GpuView>> {
    let view: Box<dyn GpuView> = match &machine.fake {
        Some(fake) => Box::new(FakeView::new(FakeMachine::from_text(fake.text())?)),
        None => Box::new(NvmlView::open(&real_nvml()?)?),
    };
    Ok(view)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::{BufRead, BufReader, ErrorKind, Write};
    use std::os::unix::net::UnixListener;
    use std::path::Path;

    use sublet_arbiter::admin::ClientError;
    use sublet_fakegpu::Spec;

    use super::*;
    use crate::machine::FakeGpu;

    /// A fake machine of two cards in a folder, and its cards.
    fn fake(base: &Path) -> (FakeGpu, FakeMachine) {
        let spec = Spec::read("2x16GiB,context=0MiB").unwrap();
        let machine = FakeMachine::open_or_create_in(base, &spec).unwrap();
        let fake = FakeGpu::read(machine.folder().to_str().unwrap()).unwrap();
        (fake, machine)
    }

    #[test]
    fn a_look_shows_cards_and_their_users_and_leaves_nothing() {
        let base = tempfile::tempdir().unwrap();
        let (fake, cards) = fake(base.path());
        let run_folder = base.path().join("run");
        let machine = Machine::below(&run_folder, Some(fake.clone()));
        let look = at(&machine).unwrap();
        assert_eq!(look.note, None);
        assert_eq!(look.snapshot.tenants, []);
        let gpus = look.snapshot.gpus.iter();
        let uuids: Vec<&str> = gpus.map(|gpu| &*gpu.uuid).collect();
        let expected: Vec<String> = cards
            .cards()
            .iter()
            .map(|card| card.uuid.to_string())
            .collect();
        assert_eq!(uuids, expected);
        let first = &look.snapshot.gpus[0];
        assert_eq!((first.memory_mib, first.free_mib), (16_384, 16_384));
        // A process that is in no job.
        let own = cards.take_slot().unwrap();
        own.charge(1, 480 << 20).unwrap();
        let look = at(&machine).unwrap();
        let second = &look.snapshot.gpus[1];
        assert_eq!(
            (second.used_mib, second.kept_mib, second.free_mib),
            (480, 480, 15_904)
        );
        let [row] = &look.snapshot.tenants[..] else {
            panic!("{:?}", look.snapshot);
        };
        assert_eq!((&*row.state, &*row.gpus), ("unmanaged", &[1][..]));
        assert_eq!(row.pids, [std::process::id()]);
        assert!(!run_folder.exists(), "it made a folder");
        // Where there can be none, too.
        let nowhere = Machine::below(Path::new("/proc/sublet"), Some(fake));
        assert_eq!(at(&nowhere).unwrap().snapshot.gpus.len(), 2);
    }

    #[test]
    fn who_listens_in_another_users_folder_is_not_asked() {
        if !rustix::process::geteuid().is_root() {
            println!("skipped: only root can make another user's folder");
            return;
        }
        let base = tempfile::tempdir().unwrap();
        let (fake, _cards) = fake(base.path());
        let machine = Machine::below(&base.path().join("run"), Some(fake));
        machine.prepare().unwrap();
        let listener = UnixListener::bind(machine.folder.admin_socket()).unwrap();
        listener.set_nonblocking(true).unwrap();
        std::os::unix::fs::chown(machine.folder.path(), Some(65_534), None).unwrap();
        let look = at(&machine).unwrap();
        let note = look.note.unwrap();
        assert!(
            note.starts_with("no arbiter is asked: ")
                && note.contains("it belongs to user 65534, not 0; jobs are not shown"),
            "{note}"
        );
        assert_eq!(look.snapshot.gpus.len(), 2);
        let nobody_came = listener.accept().unwrap_err().kind();
        assert_eq!(nobody_came, ErrorKind::WouldBlock);
    }

    #[test]
    fn an_arbiter_that_should_answer_and_does_not_is_told() {
        let base = tempfile::tempdir().unwrap();
        let (fake, _cards) = fake(base.path());
        let machine = Machine::below(&base.path().join("run"), Some(fake));
        machine.prepare().unwrap();
        let listener = UnixListener::bind(machine.folder.admin_socket()).unwrap();
        let answering = std::thread::spawn(move || {
            let (stream, _) = listener.accept().unwrap();
            let mut asked = String::new();
            BufReader::new(&stream).read_line(&mut asked).unwrap();
            (&stream).write_all(b"{\"kind\": \"ending\"}\n").unwrap();
            (asked, listener)
        });
        let error = at(&machine).err().unwrap();
        let text = crate::error_text(&error);
        assert!(
            text.starts_with("error: cannot talk to the arbiter"),
            "{text}"
        );
        let (asked, listener) = answering.join().unwrap();
        assert!(asked.contains("hello"), "{asked}");
        drop(listener);
        // Its socket is left, and nobody is there.
        assert!(machine.folder.admin_socket().exists());
        assert_eq!(at(&machine).unwrap().note, None);
    }

    #[test]
    fn an_arbiter_that_listens_elsewhere_is_named() {
        let absent = || {
            let machine = Machine::below(Path::new("/proc/sublet"), None);
            machine.connect().unwrap_err()
        };
        assert_eq!(note(&absent(), None), None);
        let text = note(&absent(), Some((4242, 1000))).unwrap();
        assert!(text.contains("process 4242 of user 1000; jobs"), "{text}");
        let unseen = note(&absent(), Some((0, 1000))).unwrap();
        assert!(unseen.contains("an arbiter of user 1000 looks"), "{unseen}");
        let denied = ConnectError::Client(ClientError::Io {
            what: "connecting to",
            socket: "/r/admin.sock".into(),
            cause: ErrorKind::PermissionDenied.into(),
        });
        assert!(denied.is_nobody());
        let text = note(&denied, None).unwrap();
        assert!(
            text.contains("connecting to /r/admin.sock failed: permission denied;"),
            "{text}"
        );
    }

    /// A pause in which nobody comes costs nothing where no job waits for the next arbiter.
    #[test]
    fn what_a_killed_arbiter_left_holds_up_nobody() {
        let base = tempfile::tempdir().unwrap();
        let (fake, _cards) = fake(base.path());
        let machine = Machine::below(&base.path().join("run"), Some(fake));
        machine.prepare().unwrap();
        fs::write(machine.folder.lock_file(), "{\"pid\": 1, \"uid\": 0}").unwrap();
        let begun = Instant::now();
        at(&machine).unwrap();
        assert!(begun.elapsed() < RETURN_MAX);
    }
}
