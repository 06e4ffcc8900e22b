//! The store of a command, and the process that serves it, which is started if none runs.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use rustix::fs::FlockOperation;
use sublet_dataset::{
    DatasetClient, DatasetClientError, DatasetList, DatasetReply, DatasetRequest,
};

use crate::answer::Advised;
use crate::background::{Background, launch_detached};
use crate::paste;
use crate::standalone::executable;

/// The program that serves data sets.
const PROGRAM: &str = "sublet-dataset";
/// A process that was started for a command ends when nobody has needed it for so many seconds.
const IDLE_SECONDS: u32 = 60;

/// The store of a command.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct StoreArgs {
    /// Folder of the store, on a disk of this machine [default: /var/cache/sublet/datasets for root,
    /// else ~/.cache/sublet/datasets]
    #[arg(long, value_name = "FOLDER", env = "SUBLET_DATASET_STORE", value_hint = clap::ValueHint::DirPath)]
    store: Option<PathBuf>,
}

/// A store.
#[derive(Debug)]
pub(super) struct Store {
    folder: PathBuf,
}

impl Store {
    pub(super) fn of(args: &StoreArgs) -> anyhow::Result<Store> {
        let folder = match &args.store {
            Some(folder) => std::path::absolute(folder)?,
            None => usual_folder()?,
        };
        Ok(Store { folder })
    }

    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Asks the process that serves it. One is started if none runs.
    pub(super) fn ask(&self, request: &DatasetRequest) -> anyhow::Result<DatasetClient> {
        match DatasetClient::ask(&self.folder, request) {
            Err(DatasetClientError::Absent(_)) => {}
            asked => return Ok(asked?),
        }
        let lock = self.lock()?;
        // Whoever had the lock before us has started one.
        match DatasetClient::ask(&self.folder, request) {
            Err(DatasetClientError::Absent(_)) => {}
            asked => return Ok(asked?),
        }
        let background = Background {
            called: format!("the process that serves {}", self.folder.display()),
            hint: format!("`{}` starts it in this terminal", self.command("serve")),
            log: self.folder.join("serve.log"),
            claim: self.folder.join("serve.sock"),
        };
        let program = server_program()?;
        let mut starting = background.begin(lock, |log| {
            let mut command = Command::new(&program);
            command
                .arg("--detached")
                .arg(format!("--idle-exit={IDLE_SECONDS}"));
            command.arg("--store").arg(&self.folder).current_dir("/");
            launch_detached(command, log)
        })?;
        loop {
            match DatasetClient::ask(&self.folder, request) {
                Err(DatasetClientError::Absent(_)) => {}
                asked => return Ok(asked?),
            }
            if let Some(error) = starting.failure(Instant::now()) {
                return Err(error.into());
            }
            starting.pause();
        }
    }

    pub(super) fn list(&self) -> anyhow::Result<DatasetList> {
        // A look makes no store.
        if !self.folder.join("state.json").exists() {
            return Ok(DatasetList::default());
        }
        match last(&mut self.ask(&DatasetRequest::List)?)? {
            DatasetReply::Sets(list) => Ok(list),
            other => Err(unexpected(&other)),
        }
    }

    pub(super) fn unknown(&self, name: &str) -> Advised {
        let what = format!("no data set is called {name}");
        Advised::new(what, format!("`{}` lists them", self.command("ls")))
    }

    /// Another command about the same store, as it can be pasted.
    fn command(&self, words: &str) -> String {
        let program = paste::program();
        match usual_folder() {
            Ok(usual) if usual == self.folder => format!("{program} dataset {words}"),
            _ => format!(
                "{program} dataset {words} --store {}",
                paste::word(&self.folder)
            ),
        }
    }

    /// The lock that lets one command start a process while the others wait for it.
    fn lock(&self) -> Result<File, Advised> {
        let failed = |cause: std::io::Error| {
            let what = format!("cannot use the store {}", self.folder.display());
            let hint =
                "`--store` names another folder, which must be yours and on a disk of this machine";
            Advised::new(what, hint).caused_by(cause)
        };
        let mut folder = fs::DirBuilder::new();
        folder.recursive(true).mode(0o700);
        folder.create(&self.folder).map_err(failed)?;
        let path = self.folder.join("start.lock");
        let mut options = OpenOptions::new();
        let file = options
            .create(true)
            .append(true)
            .mode(0o600)
            .open(path)
            .map_err(failed)?;
        rustix::fs::flock(&file, FlockOperation::LockExclusive)
            .map_err(|error| failed(error.into()))?;
        Ok(file)
    }
}

/// The file of the program that serves data sets: beside this one, else in `PATH`.
pub(super) fn server_program() -> anyhow::Result<PathBuf> {
    let own = executable()?;
    let beside = own.canonicalize().unwrap_or(own).with_file_name(PROGRAM);
    let paths = std::env::var_os("PATH").unwrap_or_default();
    let others = std::env::split_paths(&paths).map(|folder| folder.join(PROGRAM));
    let found = std::iter::once(beside.clone())
        .chain(others)
        .find(|path| path.is_file());
    found.ok_or_else(|| {
        let what = format!("the program {PROGRAM} is missing");
        let hint = format!("it comes with sublet: put it beside {}", beside.display());
        Advised::new(what, hint).into()
    })
}

fn usual_folder() -> anyhow::Result<PathBuf> {
    if rustix::process::geteuid().is_root() {
        return Ok(PathBuf::from("/var/cache/sublet/datasets"));
    }
    let var = |name| {
        std::env::var_os(name)
            .filter(|value| !value.is_empty())
            .map(PathBuf::from)
    };
    let cache = var("XDG_CACHE_HOME").or_else(|| Some(var("HOME")?.join(".cache")));
    cache
        .map(|cache| cache.join("sublet/datasets"))
        .ok_or_else(|| {
            let what = "there is no folder for data sets: neither HOME nor XDG_CACHE_HOME is set";
            Advised::new(what, "`--store` names one").into()
        })
}

/// The last reply to a request.
pub(super) fn last(client: &mut DatasetClient) -> anyhow::Result<DatasetReply> {
    loop {
        match client.reply()? {
            DatasetReply::Progress(_) => {}
            reply => return Ok(reply),
        }
    }
}

/// The error of a reply that is a refusal, or none that was expected.
pub(super) fn unexpected(reply: &DatasetReply) -> anyhow::Error {
    match reply {
        DatasetReply::Refused { reason, hint } => match hint {
            Some(hint) => Advised::new(reason.clone(), hint.clone()).into(),
            None => anyhow::anyhow!("{reason}"),
        },
        other => anyhow::anyhow!("the process that serves the store answered {other:?}"),
    }
}
