//! The machine of a command, and the place where its arbiter listens. The machine is this one with
//! its GPUs, or a fake machine that a text describes. Finds folders and connects; it never starts
//! anything (`run::arbiter` does).

use std::ffi::OsStr;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use sublet_arbiter::admin::{Client, ClientError, PROTOCOL, Reply, Request, Snapshot};
use sublet_arbiter::{ArbiterError, Audience, Folder, HostPlace, REAL_MACHINE};
use sublet_fakegpu::machine::VARIABLE;
use sublet_fakegpu::{FakeMachine, Spec};

use crate::answer::Advised;
use crate::paste;

/// Time limit of the arbiter's answer to a question. It answers within a millisecond; an arbiter
/// that takes longer than this limit is stopped or has lost its driver.
const ANSWER_MAX: Duration = Duration::from_secs(10);

/// Advice for users whose folder belongs to another user.
const OWN_FOLDER: &str = "SUBLET_RUNTIME_DIR can name another folder; it must belong to you";

/// The argument that chooses the machine.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct MachineArgs {
    // No variable of clap's: to clap one that is set is a flag, which conflicts with other flags.
    /// A fake driver in place of NVIDIA's, which runs no GPU code: `2x16GiB`, or an inventory file
    /// [default: that of the variable SUBLET_FAKE_GPU, if it is set]
    #[arg(long, value_name = "SPEC", value_parser = FakeGpu::read)]
    pub(crate) fake_gpu: Option<FakeGpu>,
}

impl MachineArgs {
    /// The fake machine that is meant, if it is one. `set` is the value of the variable: without a
    /// flag it decides, and nobody reads it who asks about something else.
    fn fake(&self, set: Option<&OsStr>) -> Result<Option<FakeGpu>, Advised> {
        let set = set.filter(|set| !set.is_empty());
        match (&self.fake_gpu, set) {
            (Some(typed), _) => Ok(Some(typed.clone())),
            (None, None) => Ok(None),
            (None, Some(set)) => {
                let read = FakeGpu::read(&set.to_string_lossy());
                read.map(Some).map_err(|cause| {
                    let what = format!("the variable {VARIABLE} describes no fake machine");
                    let hint = format!("`unset {VARIABLE}` is for this machine's own GPUs");
                    Advised::new(what, hint).caused_by(cause).of_input()
                })
            }
        }
    }
}

/// A fake machine, as its description names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FakeGpu {
    /// The description; paths are absolute, so that it means the same everywhere.
    text: String,
    /// Digest that all machines of this description share.
    digest: String,
}

impl FakeGpu {
    /// Reads a description, an inventory file's path, or the folder of a fake machine (what a
    /// job finds in its own environment).
    ///
    /// # Errors
    /// The text that was not understood.
    pub fn read(text: &str) -> Result<FakeGpu, String> {
        let path = Path::new(text);
        let digest = if path.is_dir() {
            let name = path
                .canonicalize()
                .map_err(|cause| format!("{text}: {cause}"))?;
            let name = name.file_name().unwrap_or_default().to_string_lossy();
            let digest = name.strip_prefix("sublet-fake-").and_then(|rest| {
                let (_user, digest) = rest.split_once('-')?;
                Some(digest.to_owned())
            });
            digest.ok_or_else(|| format!("{text} is not the folder of a fake machine"))?
        } else {
            let spec = Spec::read(text).map_err(|error| error.to_string())?;
            spec.digest()
        };
        let text = if path.exists() {
            let absolute = std::path::absolute(path).map_err(|cause| format!("{text}: {cause}"))?;
            absolute.display().to_string()
        } else {
            text.trim().to_owned()
        };
        Ok(FakeGpu { text, digest })
    }

    /// The description, as another process can be given it.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }
}

/// A machine with an arbiter.
#[derive(Debug, Clone)]
pub(crate) struct Machine {
    /// Folder with the machine's sockets and log.
    pub(crate) folder: Folder,
    /// Its description, if it is a fake one.
    pub(crate) fake: Option<FakeGpu>,
    /// Name of this program in hints.
    program: String,
}

impl Machine {
    /// The machine of these arguments, for this user and environment.
    ///
    /// # Errors
    /// The environment describes a fake machine that cannot be.
    pub(crate) fn of(args: &MachineArgs) -> Result<Machine, Advised> {
        let fake = args.fake(std::env::var_os(VARIABLE).as_deref())?;
        let usual = Folder::of(&machine_name(fake.as_ref()));
        // A relative folder would change its meaning for a program that changes its own folder.
        Ok(match usual.path().parent().map(std::path::absolute) {
            Some(Ok(base)) => Machine::below(&base, fake),
            _ => Machine {
                folder: usual,
                fake,
                program: paste::program(),
            },
        })
    }

    /// The machine below a run folder.
    pub(crate) fn below(run_folder: &Path, fake: Option<FakeGpu>) -> Machine {
        let folder = Folder::within(run_folder, &machine_name(fake.as_ref()));
        Machine {
            folder,
            fake,
            program: paste::program(),
        }
    }

    /// Meeting place of the arbiters of its cards; nothing for a fake machine that cannot be.
    pub(crate) fn host(&self) -> Option<HostPlace> {
        let Some(fake) = &self.fake else {
            return Some(HostPlace::real());
        };
        let machine = FakeMachine::from_text(fake.text()).ok()?;
        HostPlace::of_fake(machine.folder()).ok()
    }

    /// Folder of all of this user's machines.
    pub(crate) fn run_folder(&self) -> &Path {
        let folder = self.folder.path();
        folder.parent().unwrap_or(folder)
    }

    /// A file of ours in the machine's folder.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Makes its folder.
    pub(crate) fn prepare(&self) -> Result<(), Advised> {
        self.folder.create(Audience::Owner).map_err(|cause| {
            let what = format!("cannot make a folder for the arbiter of {}", self.called());
            Advised::new(what, OWN_FOLDER).caused_by(cause)
        })
    }

    /// Another command about the same machine, as it can be pasted.
    pub(crate) fn command(&self, words: &str) -> String {
        let program = &self.program;
        match &self.fake {
            Some(fake) => format!("{program} {words} --fake-gpu {}", paste::word(&fake.text)),
            None => format!("{program} {words}"),
        }
    }

    /// Name of the machine in sentences.
    pub(crate) fn called(&self) -> String {
        match &self.fake {
            Some(fake) => format!("the fake machine {}", fake.text),
            None => "this machine's GPUs".to_owned(),
        }
    }

    /// Connects to an arbiter that speaks our protocol.
    ///
    /// # Errors
    /// No arbiter listens, or one with another protocol.
    pub(crate) fn connect(&self) -> Result<Client, ConnectError> {
        let mut asked = self.client()?;
        match asked.call(&Request::Hello, ANSWER_MAX)? {
            Reply::Hello { protocol, .. } if protocol == PROTOCOL => {}
            Reply::Hello { version, pid, .. } => {
                return Err(ConnectError::Version { version, pid });
            }
            Reply::Refused { reason, .. } => return Err(ConnectError::Full(reason)),
            _ => return Err(ConnectError::Nonsense),
        }
        // A connection carries one request.
        self.client()
    }

    /// Connects to the process that listens in the folder.
    pub(crate) fn client(&self) -> Result<Client, ConnectError> {
        self.folder.check()?;
        Ok(Client::connect(&self.folder.admin_socket())?)
    }

    /// A connection to an arbiter that runs already, or advice how to get one.
    pub(crate) fn connect_to_running(&self) -> Result<Client, Advised> {
        self.connect().map_err(|error| match error {
            ConnectError::Client(error) if error.is_absent() => self.nobody(error),
            error => self.unusable(error),
        })
    }

    fn nobody(&self, error: ClientError) -> Advised {
        let what = format!("no arbiter runs for {}, so there is no job", self.called());
        let ps = self.command("ps");
        let hint = format!("`{ps}` shows the GPUs; `sublet run` starts one for its job");
        Advised::new(what, hint).caused_by(error)
    }

    /// A process listens, but the arbiter cannot be talked to.
    pub(crate) fn unusable(&self, error: ConnectError) -> Advised {
        let hint = match &error {
            ConnectError::Version { pid, .. } => format!(
                "it was started by another version of sublet: use that one, or end its jobs; then \
                 `kill {pid}` ends it"
            ),
            ConnectError::Folder(_) => OWN_FOLDER.to_owned(),
            ConnectError::Full(_) => "try again when one of the jobs has ended".to_owned(),
            ConnectError::Client(ClientError::Io { cause, .. })
                if cause.kind() == ErrorKind::InvalidInput =>
            {
                "a socket's path has at most 107 characters: SUBLET_RUNTIME_DIR can name a folder \
                 with a shorter one"
                    .to_owned()
            }
            ConnectError::Client(ClientError::Io { .. }) => {
                "it may be another user's: only that user and root can talk to it".to_owned()
            }
            _ => format!("its log is {}", self.folder.log_file().display()),
        };
        let what = format!("cannot talk to the arbiter of {}", self.called());
        Advised::new(what, hint).caused_by(error)
    }

    /// Everything the arbiter shows.
    pub(crate) fn snapshot(&self) -> Result<Snapshot, Advised> {
        self.snapshot_of(&mut self.connect_to_running()?)
    }

    /// The same, of an arbiter that is connected.
    pub(crate) fn snapshot_of(&self, client: &mut Client) -> Result<Snapshot, Advised> {
        match self.ask(client, &Request::List)? {
            Reply::Snapshot(snapshot) => Ok(*snapshot),
            other => Err(self.unexpected(&other)),
        }
    }

    /// One question, one answer.
    pub(crate) fn ask(&self, client: &mut Client, request: &Request) -> Result<Reply, Advised> {
        client
            .call(request, ANSWER_MAX)
            .map_err(|error| self.unusable(error.into()))
    }

    /// The arbiter's reply answers no question of ours.
    pub(crate) fn unexpected(&self, reply: &Reply) -> Advised {
        let reason = match reply {
            Reply::Error { reason } => reason.clone(),
            other => format!("it answered {other:?}"),
        };
        let what = format!(
            "the arbiter of {} did not understand the request",
            self.called()
        );
        let hint = "is it of another version of sublet?";
        Advised::new(what, hint).caused_by(reason)
    }
}

/// Reason why there is no connection to an arbiter.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConnectError {
    /// The connection itself.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// Others can write to the folder, and may be the ones that listen there.
    #[error(transparent)]
    Folder(#[from] ArbiterError),
    /// Its messages may mean something else.
    #[error("the arbiter is version {version} and speaks another protocol than this command")]
    Version {
        /// Its version.
        version: String,
        /// Its process.
        pid: u32,
    },
    /// It has no room for one more connection.
    #[error("{0}")]
    Full(String),
    /// The listening process is no arbiter.
    #[error("the process that listens there does not answer as an arbiter does")]
    Nonsense,
}

impl ConnectError {
    /// True if nobody listens, or the listener ended before it answered. If that is still so
    /// when we hold the starters' lock, we must start an arbiter.
    pub(crate) fn may_start(&self) -> bool {
        let ended = |error: &ClientError| error.is_absent() || error.is_closed();
        matches!(self, ConnectError::Client(error) if ended(error))
    }

    /// True if this user has no arbiter to ask: nobody listens, or somebody who is not to be
    /// believed, or who listens to others alone.
    pub(crate) fn is_nobody(&self) -> bool {
        match self {
            ConnectError::Folder(_) => true,
            ConnectError::Client(ClientError::Io { cause, .. })
                if cause.kind() == ErrorKind::PermissionDenied =>
            {
                true
            }
            _ => self.may_start(),
        }
    }
}

/// The name of a machine's folder.
fn machine_name(fake: Option<&FakeGpu>) -> String {
    match fake {
        Some(fake) => format!("fake-{}", fake.digest),
        None => REAL_MACHINE.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn one_description_is_one_machine_however_it_is_written() {
        let machine = |text: &str| {
            let fake = FakeGpu::read(text).unwrap();
            Machine::below(Path::new("/r"), Some(fake))
        };
        let short = machine("2x16GiB");
        assert_eq!(short.folder, machine(" 2x16384MiB").folder);
        assert_ne!(short.folder, machine("1x16GiB").folder);
        assert!(short.folder.path().starts_with("/r"));
        let command = short.command("ps");
        assert!(command.ends_with(" ps --fake-gpu 2x16GiB"), "{command}");
        let command = machine("1x1GiB,name=NVIDIA H100").command("ps");
        assert!(
            command.ends_with(" ps --fake-gpu '1x1GiB,name=NVIDIA H100'"),
            "{command}"
        );
        assert_eq!(
            Machine::below(Path::new("/r"), None).folder.admin_socket(),
            Path::new("/r/gpu/admin.sock")
        );

        // A job's own environment names the folder.
        let base = tempfile::tempdir().unwrap();
        let spec = Spec::read("2x16GiB").unwrap();
        let folder = base.path().join(format!("sublet-fake-0-{}", spec.digest()));
        std::fs::create_dir(&folder).unwrap();
        assert_eq!(machine(folder.to_str().unwrap()).folder, short.folder);
    }

    #[test]
    fn a_folder_with_too_long_a_path_is_told_as_such() {
        let base = tempfile::tempdir().unwrap();
        let machine = Machine::below(&base.path().join("x".repeat(100)), None);
        let text = crate::error_text(&machine.unusable(machine.connect().unwrap_err()).into());
        assert!(text.contains("at most 107 characters"), "{text}");
        assert!(text.contains("SUBLET_RUNTIME_DIR"), "{text}");
    }

    #[test]
    fn a_folder_that_somebody_else_has_made_is_not_believed() {
        if !rustix::process::geteuid().is_root() {
            println!("skipped: only root can make another user's folder");
            return;
        }
        let base = tempfile::tempdir().unwrap();
        let theirs = base.path().join("sublet-1000");
        let machine = Machine::below(&theirs, None);
        machine.prepare().unwrap();
        let listener = UnixListener::bind(machine.folder.admin_socket()).unwrap();
        for folder in [&theirs, machine.folder.path()] {
            std::os::unix::fs::chown(folder, Some(65_534), None).unwrap();
        }
        // What is said there sounds like an arbiter.
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let line = format!(
                    r#"{{"kind": "hello", "protocol": {PROTOCOL}, "version": "1", "pid": 1, "epoch": 1}}"#
                );
                let _ = writeln!(&stream, "{line}");
            }
        });
        let check = |machine: &Machine| {
            let error = machine.connect_to_running().unwrap_err();
            crate::error_text(&error.into())
        };
        let text = check(&machine);
        assert!(text.contains("it belongs to user 65534, not 0"), "{text}");
        assert!(text.contains("SUBLET_RUNTIME_DIR"), "{text}");
        // The folder above decides who can put another one in its place.
        std::os::unix::fs::chown(machine.folder.path(), Some(0), None).unwrap();
        assert_eq!(check(&machine), text.replace("/gpu cannot", " cannot"));
        std::os::unix::fs::chown(&theirs, Some(0), None).unwrap();
        machine.connect_to_running().unwrap();
        // A link is nobody's folder.
        let link = base.path().join("link");
        std::os::unix::fs::symlink(&theirs, &link).unwrap();
        let text = check(&Machine::below(&link, None));
        assert!(text.contains("it is no folder"), "{text}");
    }

    #[test]
    fn bad_descriptions_say_what_is_wrong() {
        let error = |text: &str| FakeGpu::read(text).unwrap_err();
        assert!(error("").contains("write `2x16GiB`"));
        assert!(error("two cards").contains("neither an inventory file nor GPUs"));
        assert!(error("0x16GiB").contains("between 1 and 16"));
        assert!(error("/nonexistent/gpus.yaml").contains("/nonexistent/gpus.yaml"));
        assert!(error("/").contains("is not the folder of a fake machine"));
    }

    #[test]
    fn a_typed_flag_goes_before_the_variable() {
        let typed = |text: &str| MachineArgs {
            fake_gpu: Some(FakeGpu::read(text).unwrap()),
        };
        let fake = |args: &MachineArgs, set: Option<&str>| {
            let fake = args.fake(set.map(OsStr::new));
            fake.map(|fake| fake.map(|fake| fake.text().to_owned()))
        };
        let none = MachineArgs::default();
        assert_eq!(fake(&none, None).unwrap(), None);
        assert_eq!(fake(&none, Some("")).unwrap(), None);
        assert_eq!(fake(&none, Some("1x1GiB")).unwrap().unwrap(), "1x1GiB");
        let both = fake(&typed("2x1GiB"), Some("nonsense"));
        assert_eq!(both.unwrap().unwrap(), "2x1GiB");
        let error = fake(&none, Some("nonsense")).unwrap_err().into();
        assert_eq!(crate::exit_code(&error), crate::BAD_INPUT);
        let text = crate::error_text(&error);
        assert!(text.contains("SUBLET_FAKE_GPU"), "{text}");
        assert!(text.contains("caused by: `nonsense`"), "{text}");
    }

    #[test]
    fn nobody_listening_is_told_with_the_way_to_start_one() {
        let base = tempfile::tempdir().unwrap();
        let fake = FakeGpu::read("1x1GiB").unwrap();
        let machine = Machine::below(base.path(), Some(fake));
        let text = crate::error_text(&machine.snapshot().unwrap_err().into());
        assert!(
            text.starts_with("error: no arbiter runs for the fake machine 1x1GiB, so "),
            "{text}"
        );
        assert!(text.contains("admin.sock"), "{text}");
        assert!(
            text.contains(" ps --fake-gpu 1x1GiB` shows the GPUs"),
            "{text}"
        );
    }
}
