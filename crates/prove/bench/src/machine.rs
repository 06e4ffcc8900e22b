//! Describes the machine and the versions that the figures were measured on. Without them the
//! figures mean nothing.

use std::fs;
use std::path::Path;
use std::process::Command;

use sublet_testbed::Binaries;
use sublet_testbed::bench::Bench;

/// Describes how the scheduler was measured, as a Markdown list.
pub(crate) fn description(bench: &Bench, binaries: &Binaries, repository: &Path) -> String {
    let version = |name: &str| first_line(Command::new(binaries.cluster(name)).arg("--version"));
    let others = ["kube-apiserver", "etcd", "kwok"].map(version);
    let remark = "Everything runs on this one machine: the components share its cores with the \
                  client that measures. etcd does not wait for the disk (`--unsafe-no-fsync`).";
    described(bench, repository, &others, remark)
}

/// The machine, the date, the versions, the command and the crates that are measured, as a Markdown
/// list. `cargo xtask bench --stale` reads the commit in it.
pub(crate) fn described(
    bench: &Bench,
    repository: &Path,
    others: &[String],
    remark: &str,
) -> String {
    let second = jiff::Timestamp::now().as_second();
    let date = jiff::Timestamp::from_second(second).unwrap_or_default();
    let profile = profile();
    let command: Vec<String> = std::env::args().skip(1).collect();
    let commit = first_line(
        Command::new("git")
            .args(["describe", "--always", "--dirty"])
            .current_dir(repository),
    );
    [
        format!("- Command: `cargo xtask bench {}`", command.join(" ")),
        format!("- Date: {date}"),
        format!(
            "- Machine: {}, {} cores, {} GiB, Linux {}",
            field("/proc/cpuinfo", "model name"),
            std::thread::available_parallelism().map_or(0, std::num::NonZero::get),
            memory_gib(),
            read("/proc/sys/kernel/osrelease")
        ),
        format!("- Load average at the start: {}", load()),
        format!(
            "- Versions: Sublet {} ({commit}, {profile}){}",
            env!("CARGO_PKG_VERSION"),
            others
                .iter()
                .map(|other| format!(", {other}"))
                .collect::<String>(),
        ),
        format!("- Measures: {}", bench.crates.join(", ")),
        format!("- {remark}"),
    ]
    .join("\n")
}

/// Cargo's profile, which is the name of the folder that the program was built into.
fn profile() -> String {
    if cfg!(debug_assertions) {
        return "**debug build: figures of this run mean nothing**".to_owned();
    }
    let program = std::env::current_exe().unwrap_or_default();
    let folder = program.parent().and_then(Path::file_name);
    match folder.and_then(std::ffi::OsStr::to_str) {
        Some(folder) => format!("{folder} build"),
        None => "optimised build".to_owned(),
    }
}

/// The load averages of the last one, five and fifteen minutes.
pub(crate) fn load() -> String {
    let text = read("/proc/loadavg");
    text.split(' ').take(3).collect::<Vec<_>>().join(" ")
}

fn memory_gib() -> u64 {
    let text = field("/proc/meminfo", "MemTotal");
    let kib = text.split(' ').next().and_then(|kib| kib.parse().ok());
    kib.unwrap_or(0) >> 20
}

fn read(path: &str) -> String {
    let text = fs::read_to_string(path).unwrap_or_default();
    text.trim().to_owned()
}

/// The value of `name` in a file with lines `name : value`.
fn field(path: &str, name: &str) -> String {
    let text = read(path);
    let mut lines = text.lines().filter_map(|line| line.split_once(':'));
    let found = lines.find(|(key, _)| key.trim() == name);
    found.map_or("unknown".to_owned(), |(_, value)| value.trim().to_owned())
}

pub(crate) fn first_line(command: &mut Command) -> String {
    let output = command.output().map(|output| output.stdout);
    let text = String::from_utf8_lossy(&output.unwrap_or_default()).into_owned();
    text.lines().next().unwrap_or("unknown").to_owned()
}
