//! Takes memory, then calls exec on itself, and repeats that.
//!
//! The process id stays, and everything else goes: the driver frees all memory, and code that
//! counts by process id must notice. Each life hands its results to the next on the command line.

use std::env;
use std::os::unix::process::CommandExt;
use std::process::Command;

use clap::Args;
use serde_json::{Value, json};

use super::alloc::{Plan, take};
use crate::allocator::Allocator;
use crate::arguments::{Bytes, Common};
use crate::driver::Driver;
use crate::path::Path;
use crate::report::{Failure, Report};

/// Arguments of `exec`.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    common: Common,
    /// Number of times to replace itself
    #[arg(long, default_value_t = 2)]
    times: u32,
    /// The way to get memory
    #[arg(long, value_enum, default_value = "plain")]
    path: Path,
    /// Bytes of a block
    #[arg(long, default_value = "4MiB")]
    size: Bytes,
    /// Blocks of each life
    #[arg(long, default_value_t = 2)]
    count: usize,
    /// Reports of the lives before this one
    #[arg(long, hide = true, default_value = "[]", value_parser = parse_lives)]
    seen: Lives,
}

/// The lives of the process so far, oldest first.
#[derive(Debug, Clone, PartialEq)]
struct Lives(Vec<Value>);

fn parse_lives(text: &str) -> Result<Lives, String> {
    serde_json::from_str(text)
        .map(Lives)
        .map_err(|why| why.to_string())
}

pub(crate) fn run(arguments: &Arguments, report: &mut Report) -> Result<(), Failure> {
    report.set("lives", arguments.seen.0.clone());
    let driver = Driver::start(&arguments.common, report)?;
    let context = driver.context(arguments.common.device)?;
    let before = context.memory()?;
    let mut allocator = Allocator::new(&context, arguments.path, &arguments.common)?;
    let plan = Plan {
        size: arguments.size.0,
        count: Some(arguments.count),
        until_oom: false,
        down_to: arguments.size.0,
    };
    let got = take(&mut allocator, plan, |_, _| {});
    let mut lives = arguments.seen.0.clone();
    lives.push(json!({
        "pid": std::process::id(),
        "memoryBefore": before.to_json(),
        "memory": context.memory()?.to_json(),
        "taken": got.to_json(arguments.path),
    }));
    report.set("lives", lives.clone());
    got.outcome(false)?;
    if arguments.times == 0 {
        return Ok(());
    }
    arguments
        .common
        .progress(format_args!("{} lives to go", arguments.times));
    let program = env::current_exe().map_err(Failure::system("finding this program"))?;
    // Nothing is freed here: the driver must do that.
    let why = Command::new(program)
        .args(next_life(arguments, &lives))
        .exec();
    Err(Failure::system("exec")(why))
}

fn next_life(arguments: &Arguments, lives: &[Value]) -> Vec<String> {
    let mut list = vec!["exec".to_owned()];
    list.extend(arguments.common.to_arguments());
    list.push(format!("--times={}", arguments.times - 1));
    list.push(format!("--path={}", arguments.path.name()));
    list.push(format!("--size={}", arguments.size));
    list.push(format!("--count={}", arguments.count));
    list.push(format!("--seen={}", Value::from(lives)));
    list
}

#[cfg(test)]
mod tests {
    use super::{Arguments, next_life};
    use clap::Parser;
    use serde_json::json;

    #[derive(Parser)]
    struct Alone {
        #[command(flatten)]
        arguments: Arguments,
    }

    #[test]
    fn the_next_life_gets_what_this_one_had() {
        let words = [
            "exec",
            "--times=3",
            "--path=vmm",
            "--size=2MiB",
            "--count=7",
        ];
        let first = Alone::parse_from(words).arguments;
        let lives = [json!({"pid": 4}), json!({"pid": 4})];
        let second = Alone::parse_from(next_life(&first, &lives)).arguments;
        assert_eq!(second.times, 2);
        assert_eq!(second.path, first.path);
        assert_eq!(second.size, first.size);
        assert_eq!(second.count, 7);
        assert_eq!(second.seen.0, lives);
    }
}
