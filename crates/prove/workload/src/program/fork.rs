//! Forks at three moments, and lets each child try to get memory.
//!
//! By CUDA's own rules, a child of a process that has initialised CUDA cannot use it; a child that
//! was forked before can. The report has each child's result and does not judge it. Children keep
//! their memory until the parent has its own, so that all of it is taken at one time.

use std::io::{self, PipeReader, PipeWriter, Read, Write};

use clap::{Args, ValueEnum};
use serde_json::{Value, json};

use super::alloc::{Plan, take};
use crate::allocator::Allocator;
use crate::arguments::{Bytes, Common};
use crate::driver::Driver;
use crate::path::Path;
use crate::report::{Failure, Report};

/// Arguments of `fork`.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    common: Common,
    /// When to fork; can be given several times [default: all]
    #[arg(long, value_enum)]
    when: Vec<Moment>,
    /// The way to get memory
    #[arg(long, value_enum, default_value = "plain")]
    path: Path,
    /// Bytes of a block
    #[arg(long, default_value = "4MiB")]
    size: Bytes,
    /// Blocks of each process
    #[arg(long, default_value_t = 2)]
    count: usize,
}

/// A moment in the life of the parent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Moment {
    /// Before the library is loaded
    Fresh,
    /// After it is loaded, before cuInit
    BeforeInit,
    /// After cuInit, with a context and memory
    AfterInit,
    /// All of them
    All,
}

impl Moment {
    /// The moment's name in the report.
    fn key(self) -> &'static str {
        match self {
            Self::Fresh => "fresh",
            Self::BeforeInit => "beforeInit",
            Self::AfterInit => "afterInit",
            Self::All => "all",
        }
    }
}

impl Arguments {
    fn wants(&self, moment: Moment) -> bool {
        let all_of_them = self.when.is_empty() || self.when.contains(&Moment::All);
        all_of_them || self.when.contains(&moment)
    }
}

pub(crate) fn run(arguments: &Arguments, report: &mut Report) -> Result<(), Failure> {
    let mut children = Vec::new();
    let mut try_fork = |moment, driver: Option<&Driver>| {
        if arguments.wants(moment) {
            children.push(Child::fork(moment, || use_memory(arguments, driver))?);
        }
        Ok::<(), Failure>(())
    };
    try_fork(Moment::Fresh, None)?;
    let driver = Driver::load(&arguments.common)?;
    try_fork(Moment::BeforeInit, Some(&driver))?;
    driver.init()?;
    let context = driver.context(arguments.common.device)?;
    let mut allocator = Allocator::new(&context, arguments.path, &arguments.common)?;
    let got = take(&mut allocator, arguments.plan(), |_, _| {});
    try_fork(Moment::AfterInit, Some(&driver))?;

    report.set("parent", got.to_json(arguments.path));
    report.set("memory", context.memory()?.to_json());
    let mut seen = serde_json::Map::new();
    for child in &children {
        seen.insert(child.moment.key().to_owned(), child.seen.clone());
    }
    report.set("children", seen);
    for block in &got.blocks {
        allocator.free(block)?;
    }
    // The last child has copies of the earlier children's pipes, so the last one must end first.
    while let Some(child) = children.pop() {
        child.end()?;
    }
    got.outcome(false)
}

impl Arguments {
    fn plan(&self) -> Plan {
        Plan {
            size: self.size.0,
            count: Some(self.count),
            until_oom: false,
            down_to: self.size.0,
        }
    }
}

/// The work of a child: it does every step, whatever its parent has done.
fn use_memory(arguments: &Arguments, loaded: Option<&Driver>) -> Result<Value, Failure> {
    let fresh;
    let driver = match loaded {
        Some(driver) => driver,
        None => {
            fresh = Driver::load(&arguments.common)?;
            &fresh
        }
    };
    driver.init()?;
    let context = driver.context(arguments.common.device)?;
    let mut allocator = Allocator::new(&context, arguments.path, &arguments.common)?;
    let got = take(&mut allocator, arguments.plan(), |_, _| {});
    let memory = context.memory()?.to_json();
    let mut seen = got.to_json(arguments.path);
    seen["memory"] = memory;
    // The memory must stay until the parent ends this child, so no destructor may free it.
    std::mem::forget(allocator);
    std::mem::forget(context);
    got.outcome(false).map(|()| seen)
}

/// A forked process that has reported and waits for its end.
struct Child {
    moment: Moment,
    pid: libc::pid_t,
    seen: Value,
    release: PipeWriter,
}

impl Child {
    fn fork(
        moment: Moment,
        work: impl FnOnce() -> Result<Value, Failure>,
    ) -> Result<Self, Failure> {
        let (mut hear, tell) = io::pipe().map_err(Failure::system("pipe"))?;
        let (wait, release) = io::pipe().map_err(Failure::system("pipe"))?;
        // SAFETY: this program has no other threads here. A driver may have some; whether its child
        // works is what this program tests.
        let pid = unsafe { libc::fork() };
        match pid {
            -1 => return Err(Failure::system("fork")(io::Error::last_os_error())),
            0 => {
                drop((hear, release));
                live(work, tell, wait);
            }
            _ => drop((tell, wait)),
        }
        let mut text = String::new();
        hear.read_to_string(&mut text)
            .map_err(Failure::system("hearing a child"))?;
        let seen = serde_json::from_str(&text)
            .unwrap_or_else(|_| json!({"pid": pid, "ok": false, "error": {"why": "it died"}}));
        Ok(Self {
            moment,
            pid,
            seen,
            release,
        })
    }

    /// Tells the child to end, and waits until it has.
    fn end(self) -> Result<(), Failure> {
        drop(self.release);
        let mut status = 0;
        // SAFETY: the process is our child, the pointer is to a live value.
        if unsafe { libc::waitpid(self.pid, &raw mut status, 0) } < 0 {
            return Err(Failure::system("waitpid")(io::Error::last_os_error()));
        }
        Ok(())
    }
}

/// Runs a child to its end. It must not clean up anything of the parent's.
fn live(
    work: impl FnOnce() -> Result<Value, Failure>,
    mut tell: PipeWriter,
    mut wait: PipeReader,
) -> ! {
    let mut seen = match work() {
        Ok(seen) => seen,
        Err(failure) => json!({"error": failure.to_json()}),
    };
    seen["ok"] = Value::Bool(seen.get("error").is_none());
    seen["pid"] = std::process::id().into();
    let told = tell.write_all(seen.to_string().as_bytes());
    drop(tell);
    let released = wait.read(&mut [0]);
    let code = i32::from(told.is_err() || released.is_err());
    // SAFETY: ends the process at once: no destructor of the parent's may run here.
    unsafe { libc::_exit(code) }
}

#[cfg(test)]
mod tests {
    use super::{Child, Moment};
    use crate::report::Failure;
    use serde_json::json;

    #[test]
    fn children_tell_what_they_saw_and_then_end() {
        let good = Child::fork(Moment::Fresh, || Ok(json!({"bytes": 5}))).expect("fork");
        assert_eq!(good.seen["bytes"], 5);
        assert_eq!(good.seen["ok"], true);
        assert_eq!(good.seen["pid"], good.pid);
        let bad = Child::fork(Moment::AfterInit, || Err(Failure::Wrong("no".to_owned())));
        let bad = bad.expect("fork");
        assert_eq!(bad.seen["ok"], false);
        assert_eq!(bad.seen["error"]["why"], "no");
        bad.end().expect("wait");
        good.end().expect("wait");
    }
}
