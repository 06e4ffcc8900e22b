//! Completion of a command line: `sublet completion` prints a script for a shell, and the script
//! calls this program for each completion. Commands and flags are those of the definitions; here are
//! the values that only this machine or a cluster knows.
//!
//! It starts no arbiter and changes nothing. Whatever goes wrong, it says nothing: then no value is
//! offered.

use std::any::Any;
use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::path::PathBuf;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::{Arg, ArgMatches, Command};
use clap_complete::Shell;
use clap_complete::engine::{
    ArgValueCompleter, CompletionCandidate, PathCompleter, ValueCompleter, complete,
};
use clap_complete::env::Shells;
use k8s_openapi::api::core::v1::{Namespace, Node, Pod};
use kube::core::{ApiResource, GroupVersionKind};
use sublet_api::group::group_apis;
use sublet_arbiter::admin::{GpuRow, Snapshot, TenantRow};
use sublet_client::list_names;
use sublet_plan::Policy;
use tokio::task::JoinSet;

use crate::answer::{Answer, to_stdout};
use crate::look;
use crate::machine::{FakeGpu, Machine, MachineArgs};
use crate::paste;

/// Variable by which a script calls this program. Its value is the shell's name.
const VARIABLE: &str = "SUBLET_COMPLETE";

/// Variable in which scripts say the place of the word that is typed; in some shells it is the last.
const PLACE: &str = "_CLAP_COMPLETE_INDEX";

/// Time limit for arbiter, driver and API server together. With the start of this program, an answer
/// comes within a second.
const LIMIT: Duration = Duration::from_millis(700);

/// The most names that the API server is asked for.
const NAMES_MAX: u32 = 1000;

/// Arguments of `sublet completion`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
EXAMPLES
  source <(sublet completion bash)   in ~/.bashrc
  source <(sublet completion zsh)    in ~/.zshrc, after compinit
  sublet completion fish | source    in ~/.config/fish/config.fish

The script calls this program for every completion. Policies, jobs and GPUs of this machine, and
namespaces, pods, jobs and nodes of the kubeconfig's cluster are completed too, where they can be
had within a second. A script that was stored in a file must be stored again after an update.")]
pub struct Args {
    /// The shell
    shell: Shell,
}

/// Answers `sublet completion`.
///
/// # Errors
/// None that can happen: there is a script for every shell.
pub fn run(args: &Args) -> anyhow::Result<Answer> {
    let shells = Shells::builtins();
    let completer = shells.completer(&args.shell.to_string());
    let completer = completer.context("this shell has no completion")?;
    let program = std::env::args_os().next().unwrap_or_default();
    let mut script = Vec::new();
    completer.write_registration(VARIABLE, "sublet", "sublet", &found(program), &mut script)?;
    Ok(Answer {
        text: String::from_utf8(script)?,
        ..Answer::default()
    })
}

/// A program's name that means the same in every folder.
fn found(called: OsString) -> String {
    let called = PathBuf::from(called);
    let absolute = match called.components().count() {
        1 => called,
        _ => std::path::absolute(&called).unwrap_or(called),
    };
    absolute.to_string_lossy().into_owned()
}

/// A call by a script.
#[derive(Debug)]
pub struct Call {
    shell: String,
    words: Vec<OsString>,
    /// The place of the word that is typed.
    place: usize,
}

impl Call {
    /// The call, if these are the arguments of one: a script gives the words behind `--`, with which
    /// no command of a person begins.
    #[must_use]
    pub fn of(arguments: impl IntoIterator<Item = OsString>) -> Option<Call> {
        let shell = std::env::var(VARIABLE).ok()?;
        let mut arguments = arguments.into_iter().skip(1);
        if arguments.next()? != "--" {
            return None;
        }
        let words: Vec<OsString> = arguments.collect();
        let last = words.len().checked_sub(1)?;
        let place = std::env::var(PLACE).ok();
        let place = place.and_then(|place| place.parse().ok());
        Some(Call {
            shell,
            words,
            place: place.unwrap_or(last),
        })
    }

    /// Prints what can stand in the place of the word that is typed, in the shell's own form.
    /// `command` is the definition of the whole program.
    pub fn answer(self, command: Command) {
        silence();
        if let Some(offered) = self.offered(command) {
            let _nobody_listens = to_stdout(|out| out.write_all(&offered));
        }
    }

    fn offered(self, command: Command) -> Option<Vec<u8>> {
        let here = std::env::current_dir().ok();
        let shells = Shells::builtins();
        let completer = shells.completer(&self.shell)?;
        if completer.name() == "bash" {
            let (words, hidden) = whole_words(&self.words, self.place);
            let place = words.len() - 1;
            let mut command = with_values(command, &words[..place]);
            let offered = complete(&mut command, words, place, here.as_deref()).ok()?;
            let texts = offered.iter().map(|one| one.get_value().to_string_lossy());
            let texts = texts.filter_map(|text| Some(text.strip_prefix(&hidden)?.to_owned()));
            return Some(texts.collect::<Vec<_>>().join(BASH_SEPARATOR).into_bytes());
        }
        let before = self.words.get(..self.place).unwrap_or(&self.words);
        let mut command = with_values(command, before);
        let mut offered = Vec::new();
        let done =
            completer.write_complete(&mut command, self.words, here.as_deref(), &mut offered);
        done.is_ok().then_some(offered)
    }
}

/// The separator between candidates in bash's script.
const BASH_SEPARATOR: &str = "\u{b}";

/// The words up to the one that is typed, as they were typed: bash splits them at `=` too. Also the
/// part of the last one that bash does not replace.
fn whole_words(words: &[OsString], place: usize) -> (Vec<OsString>, String) {
    let mut whole: Vec<OsString> = Vec::new();
    let mut hidden = OsString::new();
    for (at, word) in words.iter().enumerate().take(place + 1) {
        let is_split = at > 1 && (word == "=" || words[at - 1] == "=");
        match whole.last_mut() {
            Some(last) if is_split => {
                hidden.clone_from(last);
                last.push(word);
            }
            _ => {
                hidden.clear();
                whole.push(word.clone());
            }
        }
    }
    (whole, hidden.to_string_lossy().into_owned())
}

/// Nothing that libraries or a kubeconfig's own programs say gets into the line that is typed, and
/// nothing asks its writer.
fn silence() {
    if let Ok(nothing) = File::options().read(true).write(true).open("/dev/null") {
        let _as_before = rustix::stdio::dup2_stdin(&nothing);
        let _as_before = rustix::stdio::dup2_stderr(&nothing);
    }
}

/// Kind of a value that is looked up.
#[derive(Debug, Clone, Copy)]
enum Value {
    Policy,
    Job,
    Card,
    Namespace,
    Pod,
    Node,
    Group,
    Program,
}

/// Kinds by the name of the value in the help: each argument with this name is completed.
const VALUES: &[(&str, Value)] = &[
    ("POLICY", Value::Policy),
    ("JOB", Value::Job),
    ("INDEX|UUID,…", Value::Card),
    ("NAMESPACE", Value::Namespace),
    ("POD", Value::Pod),
    ("NODE", Value::Node),
    ("GROUP", Value::Group),
    ("CMD", Value::Program),
];

/// The command with what looks its values up. `before`: the words before the one that is typed.
fn with_values(command: Command, before: &[OsString]) -> Command {
    let typed = Typed::of(command.clone(), before);
    with_values_for(command, &Arc::new(typed))
}

fn with_values_for(command: Command, typed: &Arc<Typed>) -> Command {
    let with_value = |arg: Arg| {
        let name = arg.get_value_names().and_then(|names| names.first());
        let mut kinds = VALUES.iter();
        let kind = kinds.find(|(known, _)| name.is_some_and(|name| name.as_str() == *known));
        let Some(&(_, kind)) = kind else {
            return arg;
        };
        let typed = Arc::clone(typed);
        arg.add(ArgValueCompleter::new(move |begun: &OsStr| {
            offered(kind, &typed, begun)
        }))
    };
    command
        .mut_args(with_value)
        .mut_subcommands(|below| with_values_for(below, typed))
}

/// Values that begin with what is typed already.
fn offered(kind: Value, typed: &Typed, begun: &OsStr) -> Vec<CompletionCandidate> {
    let Some(begun) = begun.to_str() else {
        return Vec::new();
    };
    let mut offered = match kind {
        Value::Policy => policies(begun),
        Value::Job => typed.arbiter().as_ref().map(jobs).unwrap_or_default(),
        Value::Card => cards(begun, &typed.cards().unwrap_or_default()),
        Value::Namespace => typed.names(vec![ApiResource::erase::<Namespace>(&())], false),
        Value::Pod => typed.names(vec![ApiResource::erase::<Pod>(&())], true),
        Value::Node => typed.names(vec![ApiResource::erase::<Node>(&())], false),
        Value::Group => typed.names(groups(), true),
        Value::Program => programs(typed, begun),
    };
    offered.retain(|one| one.get_value().to_string_lossy().starts_with(begun));
    offered
}

/// A list with commas, split before the part that is typed now.
fn split_list(begun: &str) -> (&str, &str) {
    begun.split_at(begun.rfind(',').map_or(0, |comma| comma + 1))
}

/// Policies, and what can follow in a mix (`fgd=0.7,`).
fn policies(begun: &str) -> Vec<CompletionCandidate> {
    let (mix, _) = split_list(begun);
    let is_new = |name: &&str| {
        let mut parts = mix.split(',');
        parts.all(|part| part.split('=').next() != Some(*name))
    };
    let names = Policy::names().filter(is_new);
    names
        .map(|name| CompletionCandidate::new(format!("{mix}{name}")))
        .collect()
}

/// Jobs by name; by number once a number is begun, and where the name is no word for a shell or
/// belongs to several jobs.
fn jobs(snapshot: &Snapshot) -> Vec<CompletionCandidate> {
    let jobs = snapshot.tenants.iter();
    let jobs: Vec<(u64, &TenantRow)> = jobs.filter_map(|job| Some((job.id?, job))).collect();
    let mut offered = Vec::new();
    for (id, job) in &jobs {
        let name = job.name.as_str();
        let is_alone = jobs.iter().filter(|(_, other)| other.name == name).count() == 1;
        let is_word = paste::word(name) == name && !name.starts_with('-');
        let has_name = is_alone && is_word;
        if has_name {
            let help = format!("job {id}, {}", job.state);
            offered.push(CompletionCandidate::new(name).help(Some(help.into())));
        }
        let help = format!("{name}, {}", job.state);
        let number = CompletionCandidate::new(id.to_string());
        offered.push(number.help(Some(help.into())).hide(has_name));
    }
    offered
}

/// Cards by number, and by UUID once one is begun; those that stand in the list already are left out.
fn cards(begun: &str, known: &[GpuRow]) -> Vec<CompletionCandidate> {
    let (chosen, _) = split_list(begun);
    let mut offered = Vec::new();
    for card in known {
        let (number, uuid) = (card.index.to_string(), card.uuid.as_str());
        if chosen
            .split(',')
            .any(|one| !one.is_empty() && (one == number || one == uuid))
        {
            continue;
        }
        let named = |name: &str, help: String| {
            CompletionCandidate::new(format!("{chosen}{name}")).help(Some(help.into()))
        };
        offered.push(named(&number, format!("{}, {uuid}", card.model)));
        if !uuid.is_empty() {
            let help = format!("GPU {number}, {}", card.model);
            offered.push(named(uuid, help).hide(true));
        }
    }
    offered
}

/// Kinds of objects that groups are called after: PodGroups and jobs. Gangs that only their pods name
/// are left out.
fn groups() -> Vec<ApiResource> {
    let apis = group_apis().into_iter();
    let apis = apis.filter(|api| api.kind != "PriorityClass");
    let resource = apis.map(|api| {
        let kind = GroupVersionKind::gvk(api.group, api.version, api.kind);
        ApiResource::from_gvk_with_plural(&kind, api.plural)
    });
    resource.collect()
}

/// Files, and programs by their name where a command begins behind `--`.
fn programs(typed: &Typed, begun: &str) -> Vec<CompletionCandidate> {
    let is_name = typed.begins_command && !begun.is_empty() && !begun.contains('/');
    let begun = begun.to_owned();
    let found = typed.within(move || {
        let mut found = PathCompleter::any().complete(OsStr::new(&begun));
        let path = std::env::var_os("PATH").filter(|_| is_name);
        for folder in std::env::split_paths(&path.unwrap_or_default()) {
            let files = std::fs::read_dir(folder).into_iter().flatten().flatten();
            let names = files.map(|file| file.file_name());
            let names = names.filter(|name| name.to_string_lossy().starts_with(&begun));
            found.extend(names.map(CompletionCandidate::new));
        }
        found.sort();
        found.dedup();
        Some(found)
    });
    found.unwrap_or_default()
}

/// Flags that the line has already, and the time that is left for an answer.
#[derive(Debug)]
struct Typed {
    fake_gpu: Option<FakeGpu>,
    kubeconfig: Option<PathBuf>,
    namespace: Option<String>,
    /// The last word is `--`.
    begins_command: bool,
    until: Instant,
}

impl Typed {
    /// Reads the words before the one that is typed, as far as they can be read.
    fn of(command: Command, before: &[OsString]) -> Typed {
        let read = command.ignore_errors(true).try_get_matches_from(before);
        let read = read.ok();
        let mut last = read.as_ref();
        while let Some((_, below)) = last.and_then(ArgMatches::subcommand) {
            last = Some(below);
        }
        let end_of_flags = before.iter().position(|word| word == "--");
        Typed {
            fake_gpu: value(last, "fake_gpu"),
            kubeconfig: value(last, "kubeconfig"),
            namespace: value(last, "namespace"),
            begins_command: end_of_flags.is_some_and(|at| at + 1 == before.len()),
            until: Instant::now() + LIMIT,
        }
    }

    fn machine(&self) -> Option<Machine> {
        let fake_gpu = self.fake_gpu.clone();
        Machine::of(&MachineArgs { fake_gpu }).ok()
    }

    /// Answer to a question, if it comes in time.
    fn within<T: Send + 'static>(
        &self,
        ask: impl FnOnce() -> Option<T> + Send + 'static,
    ) -> Option<T> {
        let (tell, told) = mpsc::channel();
        // A question without an answer is left behind: this process ends at once.
        let asking = std::thread::Builder::new().spawn(move || {
            let _too_late = tell.send(ask());
        });
        asking.ok()?;
        let left = self.until.saturating_duration_since(Instant::now());
        told.recv_timeout(left).ok()?
    }

    /// State of this machine, if an arbiter runs.
    fn arbiter(&self) -> Option<Snapshot> {
        let machine = self.machine()?;
        self.within(move || machine.snapshot().ok())
    }

    /// Cards of this machine, by its arbiter, else by the driver.
    fn cards(&self) -> Option<Vec<GpuRow>> {
        let machine = self.machine()?;
        self.within(move || Some(look::at(&machine).ok()?.snapshot.gpus))
    }

    /// Names of objects of these kinds in the cluster, or in the namespace that is meant. A kind that
    /// the cluster does not know, or does not show to this user, has none.
    fn names(&self, kinds: Vec<ApiResource>, has_namespace: bool) -> Vec<CompletionCandidate> {
        let (kubeconfig, namespace) = (self.kubeconfig.clone(), self.namespace.clone());
        let found = self.within(move || {
            let executor = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build();
            let executor = executor.ok()?;
            executor.block_on(async {
                let client = sublet_client::connect(kubeconfig.as_deref()).await.ok()?;
                let usual = client.default_namespace().to_owned();
                let namespace = has_namespace.then(|| namespace.unwrap_or(usual));
                let mut asked = JoinSet::new();
                for kind in kinds {
                    let (client, namespace) = (client.clone(), namespace.clone());
                    asked.spawn(async move {
                        list_names(&client, &kind, namespace.as_deref(), NAMES_MAX).await
                    });
                }
                let found = asked.join_all().await;
                Some(found.into_iter().flatten().flatten().collect::<Vec<_>>())
            })
        });
        // Objects of several kinds, or of several versions of one, can have the same name.
        let mut told = BTreeSet::new();
        let names = found.unwrap_or_default().into_iter();
        let names = names.filter(|name| told.insert(name.clone()));
        names.map(CompletionCandidate::new).collect()
    }
}

/// An argument's value; nothing if this command has no such argument.
fn value<T: Any + Clone + Send + Sync>(matches: Option<&ArgMatches>, id: &str) -> Option<T> {
    matches?.try_get_one::<T>(id).ok().flatten().cloned()
}

#[cfg(test)]
mod tests;
