//! `sublet dataset`, and data sets of jobs, as people meet them: by the commands alone, on the real
//! disk, with the kernel's mounts where this user may mount.

use std::fs;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use rustix::mount::{UnmountFlags, unmount};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use sublet_e2e::one_machine::{Ended, Machine, Running, until};

const SPEC: &str = "1x4GiB,context=0MiB";

/// A machine with a source and a store. At its end nothing of them is left.
struct Stage {
    machine: Machine,
}

impl Drop for Stage {
    fn drop(&mut self) {
        if let Some(server) = self.server() {
            let _it_ended = kill_process(server, Signal::KILL);
        }
        for view in self.views() {
            let _not_mounted = unmount(&view, UnmountFlags::DETACH);
            let _a_mount = fs::set_permissions(&view, fs::Permissions::from_mode(0o755));
        }
    }
}

impl Stage {
    /// `None` where the tests are told of no product.
    fn new() -> Result<Option<Stage>> {
        let Some(machine) = Machine::new(SPEC)? else {
            return Ok(None);
        };
        let stage = Stage { machine };
        for n in 0..20 {
            let folder = stage.source().join(format!("class{}", n % 3));
            fs::create_dir_all(&folder)?;
            fs::write(folder.join(format!("{n}.jpg")), [n; 5_000])?;
        }
        Ok(Some(stage))
    }

    fn source(&self) -> PathBuf {
        self.machine.path().join("pictures")
    }

    fn store(&self) -> PathBuf {
        self.machine.path().join("store")
    }

    fn views(&self) -> Vec<PathBuf> {
        let views = fs::read_dir(self.store().join("views"));
        let views = views.into_iter().flatten().flatten();
        views.map(|view| view.path()).collect()
    }

    /// The process that serves the store: the only one whose command line names it.
    fn server(&self) -> Option<Pid> {
        let store = self.store().into_os_string().into_encoded_bytes();
        let processes = fs::read_dir("/proc").ok()?.flatten();
        let numbers = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        let serves = |pid: &i32| {
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let mut words = line.split(|byte| *byte == 0);
            words
                .next()
                .is_some_and(|program| program.ends_with(b"sublet-dataset"))
                && words.any(|word| word == store)
        };
        numbers.into_iter().find(serves).and_then(Pid::from_raw)
    }

    /// Names the store. This machine's disk may be as full as it is.
    fn tell(&self, command: &mut Command) {
        command.env("SUBLET_DATASET_STORE", self.store());
        command.env("SUBLET_DATASET_MAX_DISK", "100");
    }

    fn dataset(&self, words: &str) -> Command {
        let mut command = self.machine.sublet(&format!("dataset {words}"));
        self.tell(&mut command);
        command
    }

    fn job(&self, flags: &str, script: &str) -> Command {
        let mut command = self.machine.run(&format!("--memory 1GiB {flags}"));
        self.tell(&mut command);
        command.args(["sh", "-c", script]);
        command
    }

    fn done(&self, words: &str) -> Result<Ended> {
        let ended = Running::start(&mut self.dataset(words))?.end()?;
        ensure!(ended.code == Some(0), "{words}: {ended:?}");
        Ok(ended)
    }

    fn list(&self) -> Result<Value> {
        Ok(serde_json::from_str(
            &self.done("ls -o json")?.lines.concat(),
        )?)
    }

    fn get(&self) -> Result<Ended> {
        self.done(&format!("get {} --name pictures", self.source().display()))
    }
}

/// Runs `diff -r`, which says whatever differs.
fn same(one: &Path, other: &Path) -> Result<()> {
    let said = Command::new("diff").arg("-r").args([one, other]).output()?;
    ensure!(
        said.status.success(),
        "{}",
        String::from_utf8_lossy(&said.stdout)
    );
    Ok(())
}

#[test]
fn a_job_has_its_data_set_until_it_ends() -> Result<()> {
    let Some(stage) = Stage::new()? else {
        return Ok(());
    };
    // A look makes no store and starts nothing.
    assert_eq!(stage.list()?["sets"], serde_json::json!([]));
    assert!(!stage.store().exists());
    let got = stage.get()?;
    assert!(
        got.lines[0].starts_with("pictures: 20 files, 97.7 KiB, in "),
        "{got:?}"
    );
    let row = &stage.list()?["sets"][0];
    assert_eq!(row["state"], "ready", "{row}");
    assert_eq!(row["sizeBytes"], 100_000, "{row}");
    let script = "echo $SUBLET_DATASET_PICTURES; read line; ls $SUBLET_DATASET_PICTURES | wc -l";
    let mut job = Running::start(&mut stage.job("--dataset pictures", script))?;
    let view = PathBuf::from(job.line()?);
    same(&stage.source(), &view)?;
    let refused = Running::start(&mut stage.dataset("rm pictures"))?.end()?;
    assert_eq!(refused.code, Some(1), "{refused:?}");
    assert!(refused.errors.contains("a job uses"), "{refused:?}");
    assert_eq!(stage.list()?["sets"][0]["jobs"], 1);
    // The process that serves the store is not in the way of those who read.
    let server = stage.server().context("nobody serves")?;
    kill_process(server, Signal::KILL)?;
    same(&stage.source(), &view)?;
    assert_eq!(
        stage.list()?["sets"][0]["jobs"],
        1,
        "its lease is remembered"
    );
    job.say("go")?;
    assert_eq!(job.line()?.trim(), "3");
    assert_eq!(job.end()?.code, Some(0));
    until("the lease to end", || {
        let list = stage.list()?;
        ensure!(list["sets"][0]["jobs"] == 0, "{list}");
        Ok(())
    })?;
    stage.done("rm pictures")?;
    assert_eq!(stage.list()?["sets"], serde_json::json!([]));
    assert_eq!(stage.views(), Vec::<PathBuf>::new());
    Ok(())
}

#[test]
fn root_shows_a_data_set_where_a_job_wants_it() -> Result<()> {
    let Some(stage) = Stage::new()? else {
        return Ok(());
    };
    stage.get()?;
    let folder = stage.machine.path().join("data");
    fs::create_dir(&folder)?;
    let flags = format!("--dataset pictures={}", folder.display());
    let script = format!("ls {0} | wc -l; touch {0}/new", folder.display());
    let ended = Running::start(&mut stage.job(&flags, &script))?.end()?;
    if !rustix::process::geteuid().is_root() {
        assert_eq!(ended.code, Some(2), "{ended:?}");
        assert!(ended.errors.contains("only root may mount"), "{ended:?}");
        return Ok(());
    }
    assert_eq!(ended.lines, ["3"], "{ended:?}");
    assert!(
        ended.errors.contains("Read-only file system") || ended.errors.contains("ermission denied"),
        "{ended:?}"
    );
    assert_eq!(fs::read_dir(&folder)?.count(), 0, "nobody else sees it");
    Ok(())
}

#[test]
fn wrong_bytes_are_told_and_replaced() -> Result<()> {
    let Some(stage) = Stage::new()? else {
        return Ok(());
    };
    stage.get()?;
    let view = stage.views().into_iter().next().context("no view")?;
    let packs: Vec<_> = fs::read_dir(stage.store().join("packs"))?.collect();
    let (file, offset) = match packs.into_iter().next() {
        Some(pack) => (pack?.path(), 8_192),
        None => (view.join("class1/1.jpg"), 99),
    };
    let mode = fs::metadata(&file)?.permissions();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600))?;
    let written = fs::OpenOptions::new().write(true).open(&file)?;
    written.write_all_at(b"wrong", offset)?;
    written.sync_all()?;
    fs::set_permissions(&file, mode)?;
    let told = Running::start(&mut stage.dataset("verify pictures"))?.end()?;
    assert_eq!(told.code, Some(1), "{told:?}");
    assert!(told.lines[0].contains("wrong bytes"), "{told:?}");
    until("the repair", || {
        let again = Running::start(&mut stage.dataset("verify pictures"))?.end()?;
        ensure!(again.code == Some(0), "{again:?}");
        Ok(())
    })?;
    same(&stage.source(), &view)
}

#[test]
fn what_cannot_be_had_is_said_and_nothing_runs() -> Result<()> {
    let Some(stage) = Stage::new()? else {
        return Ok(());
    };
    let check = |command: &mut Command, code: i32, words: &str| -> Result<()> {
        let ended = Running::start(command)?.end()?;
        assert_eq!(ended.code, Some(code), "{ended:?}");
        assert!(ended.errors.contains(words), "{words}: {ended:?}");
        assert_eq!(ended.lines, Vec::<String>::new(), "{ended:?}");
        Ok(())
    };
    let none = "no data set is called";
    check(&mut stage.job("--dataset nobody", "echo ran"), 1, none)?;
    check(
        &mut stage.job("--dataset a/b", "echo ran"),
        2,
        "is no name of a data set",
    )?;
    check(
        &mut stage.job("--dataset a=b", "echo ran"),
        2,
        "no absolute path",
    )?;
    check(
        &mut stage.job("--dataset a.b --dataset a-b", "echo ran"),
        2,
        "one variable",
    )?;
    check(&mut stage.dataset("get /nowhere"), 1, "no such file")?;
    check(
        &mut stage.dataset("get /etc/hostname"),
        1,
        "not a directory",
    )?;
    check(&mut stage.dataset("get nobody"), 1, none)?;
    check(&mut stage.dataset("get pictures --name p"), 2, "is no path")?;
    check(&mut stage.dataset("show nobody"), 1, none)?;
    check(&mut stage.dataset("rm nobody"), 1, none)?;
    Ok(())
}
