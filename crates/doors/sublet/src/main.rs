//! The one executable: every role of Sublet, and its kubectl plugins by other names.
//!
//! Called `kubectl-sublet` it is `sublet`; called `kubectl-inspect-gpushare` it is
//! `sublet inspect`. It parses arguments, starts an executor that suits the role, and prints
//! errors; it decides nothing.
//!
//! # Modules
//! `main` parses arguments and starts an executor that suits the command. The name it is called by
//! can stand for a subcommand (`kubectl-inspect-gpushare`). `contradictions` refuses flags that clap
//! lets pass. `carried` holds the libraries inside a release. `man` writes the man pages.

mod carried;
mod contradictions;
mod man;

use std::ffi::OsString;
use std::future::Future;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use sublet_cli::{
    BAD_INPUT, DONE, completion, dataset, demo, exit_code, explain, inspect, install, limit, plan,
    print_error, ps, queue, quota, run, simulate, standalone, top, workload,
};

use carried::CARRIED;

/// The name of the kubectl plugin that takes exactly the arguments of `inspect`.
const INSPECT_PLUGIN: &str = "kubectl-inspect-gpushare";

/// Its version; a release says its commit and the commit's date too (`xtask/src/release.rs`).
const VERSION: &str = match option_env!("SUBLET_BUILD") {
    Some(build) => build,
    None => env!("CARGO_PKG_VERSION"),
};

/// Share GPUs between the programs of a machine, and between pods beside the stock kube-scheduler
#[derive(Debug, Parser)]
#[command(
    name = "sublet",
    version = VERSION,
    after_help = "\
EXAMPLES
  sublet demo                          see it work, without a GPU
  sublet run --memory 8GiB -- ./train  a part of this machine's GPU
  sublet run --fake-gpu 2x16GiB -- ./x the same on a fake driver, without a GPU
  sublet top                           who uses this machine's GPUs
  sublet inspect -d                    who uses which GPU of a cluster
  sublet explain pod trainer-0         why does it wait?
  sublet plan -f cluster.yaml          where would these pods go?
  sublet install --preflight           can this cluster have it?
  source <(sublet completion bash)     completion in this shell

kubectl finds it as a plugin under the names kubectl-sublet (kubectl sublet …) and
kubectl-inspect-gpushare (kubectl inspect gpushare …): make links to this file.

EXIT CODES
  0  done        1  not done        2  wrong arguments or input
  `sublet run` returns its command's"
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run a command with its part of this machine's GPUs
    Run(run::Args),
    /// Show what it does: five programs on a fake machine, without a GPU
    Demo(demo::Args),
    /// List the jobs of this machine
    Ps(ps::Args),
    /// Show this machine's GPUs and jobs, live
    Top(top::Args),
    /// Print the cards that the driver shows this process, by UUID
    #[command(hide = true)]
    VisibleCards(run::VisibleCardsArgs),
    /// Run a small GPU program, as the demonstration does
    #[command(hide = true)]
    Workload(workload::Args),
    /// Show the jobs that wait for GPUs, on this machine or in a cluster, and what would start them
    Queue(queue::Args),
    /// Change the memory and compute limits of a running job on this machine
    Limit(limit::Args),
    /// Keep copies of data sets on this machine's own disk
    #[command(
        subcommand,
        after_help = "\
EXAMPLES
  sublet dataset get /mnt/nfs/imagenet     bring it here, under the name imagenet
  sublet dataset ls                        what is here, and who uses it"
    )]
    Dataset(dataset::DatasetCommand),
    /// Show the users of each GPU
    Inspect(inspect::Args),
    /// Show the places that pods would get: the scheduler's engine on files, without a cluster
    Plan(plan::Args),
    /// Show the entitlement of quotas, without a cluster
    #[command(
        subcommand,
        after_help = "\
EXAMPLES
  sublet quota plan -f tree.yaml
  kubectl get elasticquotas,nodes,pods -A -o yaml | sublet quota plan -f -"
    )]
    Quota(quota::QuotaCommand),
    /// Replay a trace of a cluster through the scheduler's engine, without a cluster
    Simulate(simulate::Args),
    /// Explain why a pod waits, or which GPUs it got
    Explain(explain::Args),
    /// Install Sublet on a cluster, or look whether it can be
    Install(install::Args),
    /// Remove Sublet from a cluster
    Uninstall(install::UninstallArgs),
    /// Run the scheduler extender
    Scheduler(sublet_scheduler::Args),
    /// Run the controller: the webhook for GPU pods, and its certificates
    Controller(sublet_controller::Args),
    /// Run the agent of this node, or of this machine without a cluster
    #[command(
        mut_arg("node_name", |name| name.required(false).required_unless_present("standalone")),
        mut_arg("fake_gpu", |fake| fake.requires("standalone")),
        after_help = AGENT_HELP,
    )]
    Agent(AgentArgs),
    /// Print a shell's completion script
    Completion(completion::Args),
    /// Write the man pages
    #[command(hide = true)]
    ManPages(man::Args),
}

const AGENT_HELP: &str = "\
EXAMPLES
  sublet agent                                       on a GPU node, in the DaemonSet
  sublet agent --node-name n1 --inventory gpus.yaml  on a node with simulated GPUs
  sublet agent --standalone                          for `sublet run`, without a cluster
  sublet agent --standalone --fake-gpu 2x16GiB       the same, with a fake driver

An inventory file can be as short as `gpus: [{memory: 16276MiB, count: 2}]`. The node
label sublet.dev/sharing (memory, whole, both) wins over --sharing.";

/// The two lives of `sublet agent`: a cluster's, and one machine's.
#[derive(Debug, clap::Args)]
struct AgentArgs {
    #[command(flatten, next_help_heading = "On a machine without a cluster")]
    standalone: standalone::Args,
    #[command(flatten, next_help_heading = "On a node of a cluster")]
    node: Option<sublet_agent::Args>,
    #[command(flatten, next_help_heading = "On both")]
    time: standalone::TimeArgs,
}

fn main() -> ExitCode {
    // Only the first call counts, and it is this one: it cannot fail.
    let _first = rustls::crypto::ring::default_provider().install_default();
    if let Some(call) = completion::Call::of(std::env::args_os()) {
        call.answer(Cli::command());
        return ExitCode::SUCCESS;
    }
    let cli = match parse(arguments(std::env::args_os())) {
        Ok(cli) => cli,
        Err(told) => {
            let _nobody_listens = told.print();
            return ExitCode::from(u8::try_from(told.exit_code()).unwrap_or(BAD_INPUT));
        }
    };
    match perform(cli.command) {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            print_error(&error);
            ExitCode::from(exit_code(&error))
        }
    }
}

/// Reads the arguments. The error may be the help that was asked for.
fn parse(arguments: Vec<OsString>) -> Result<Cli, clap::Error> {
    let mut command = Cli::command();
    let mut matches = command.try_get_matches_from_mut(arguments)?;
    contradictions::refuse(&mut command, &matches)?;
    Cli::from_arg_matches_mut(&mut matches).map_err(|error| error.format(&mut command))
}

/// The arguments as if the program had been called `sublet`.
fn arguments(mut given: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let called = given.next().unwrap_or_default();
    let mut arguments = vec![OsString::from("sublet")];
    if Path::new(&called).file_stem() == Some(INSPECT_PLUGIN.as_ref()) {
        arguments.push("inspect".into());
    }
    arguments.extend(given);
    arguments
}

fn perform(command: Command) -> anyhow::Result<u8> {
    match command {
        Command::Run(args) => run::run(&args, CARRIED.as_ref()),
        Command::Demo(args) => demo::run(&args),
        Command::Workload(args) => workload::run(&args, CARRIED.as_ref()),
        Command::Ps(args) => ps::run(&args)?.print(),
        Command::Top(args) if args.node().is_some() => {
            on_one_thread(top::node::on_node(&args))?.print()
        }
        Command::Top(args) => top::run(&args)?.print(),
        Command::Queue(args) if args.is_of_cluster() => {
            on_one_thread(queue::on_cluster(&args))?.print()
        }
        Command::Queue(args) => queue::run(&args)?.print(),
        Command::VisibleCards(args) => run::visible_cards(&args)?.print(),
        Command::Dataset(command) => dataset::run(&command),
        Command::Limit(args) => limit::run(&args)?.print(),
        Command::Inspect(args) => on_one_thread(inspect::run(&args))?.print(),
        Command::Plan(args) => plan::run(&args),
        Command::Quota(action) => quota::run(&action)?.print(),
        Command::Simulate(args) => simulate::run(&args)?.print(),
        Command::Explain(args) => on_one_thread(explain::run(&args))?.print(),
        Command::Install(args) => on_one_thread(install::run(&args))?.print(),
        Command::Uninstall(args) => on_one_thread(install::uninstall(&args))?.print(),
        Command::Scheduler(args) => {
            sublet_telemetry::start_logging()?;
            // It makes its own executor: how many threads is one of its arguments.
            sublet_scheduler::run(args)?;
            Ok(DONE)
        }
        Command::Controller(args) => {
            sublet_telemetry::start_logging()?;
            sublet_controller::run(args)?;
            Ok(DONE)
        }
        Command::Agent(args) => {
            sublet_telemetry::start_logging()?;
            let time = args.time.into();
            match args.node.filter(|_| !args.standalone.standalone) {
                Some(node) => {
                    on_one_thread(sublet_agent::run(node, time, CARRIED.as_ref()))?;
                }
                None => standalone::run(&args.standalone, time, CARRIED.as_ref())?,
            }
            Ok(DONE)
        }
        Command::Completion(args) => completion::run(&args)?.print(),
        Command::ManPages(args) => man::run(&args, Cli::command()),
    }
}

fn on_one_thread<T>(work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    let executor = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the executor")?;
    let ended = executor.block_on(work);
    // A call that still waits for a driver or for a name holds up nobody's end.
    executor.shutdown_background();
    ended
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_it_is_called_by_decides() {
        let check = |words: &[&str]| {
            let arguments = arguments(words.iter().map(OsString::from));
            let words = arguments
                .iter()
                .map(|word| word.to_string_lossy().into_owned());
            words.collect::<Vec<_>>().join(" ")
        };
        assert_eq!(check(&["/bin/sublet", "plan"]), "sublet plan");
        assert_eq!(
            check(&["/bin/kubectl-sublet", "inspect", "-d"]),
            "sublet inspect -d"
        );
        assert_eq!(
            check(&["kubectl-inspect-gpushare", "-d", "n1"]),
            "sublet inspect -d n1"
        );
        assert_eq!(check(&[]), "sublet");
    }

    #[test]
    fn every_command_shows_examples() {
        let mut left = vec![Cli::command()];
        while let Some(command) = left.pop() {
            let help = command.get_after_help().map(ToString::to_string);
            let help = help.unwrap_or_default();
            assert!(help.contains("EXAMPLES\n"), "{}", command.get_name());
            let below = command.get_subcommands();
            left.extend(below.filter(|below| !below.is_hide_set()).cloned());
        }
    }

    #[test]
    fn the_two_uses_of_the_agent_have_headings() {
        let command = Cli::command();
        let agent = command.find_subcommand("agent").unwrap();
        let heading = |long: &str| {
            let mut flags = agent.get_arguments();
            let flag = flags.find(|flag| flag.get_long() == Some(long));
            flag.unwrap().get_help_heading()
        };
        for (long, wanted) in [
            ("standalone", "On a machine without a cluster"),
            ("fake-gpu", "On a machine without a cluster"),
            ("idle-exit", "On a machine without a cluster"),
            ("node-name", "On a node of a cluster"),
            ("allow-local-jobs", "On a node of a cluster"),
            ("mps", "On both"),
        ] {
            assert_eq!(heading(long), Some(wanted), "{long}");
        }
    }

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
        assert!(Cli::command().get_subcommands().count() >= 6);
    }
}
