//! `sublet scheduler`: the extender beside a stock kube-scheduler.
//!
//! A thin shell around `sublet_plan::Engine`: watches feed it, HTTP calls ask it, Bindings
//! and events carry its decisions out. All state is in the API server; a restart loses
//! nothing. It never talks to kubelets and never writes a pod but by binding it.
//!
//! Suggested reading order: waiting, state, roster, watches, routes, preempt, promises, plans, bind, events;
//! replicas, peers, stand_in, lifetime; then read_replica.
//!
//! # Modules
//! - `waiting`: a pod that is to be bound. `state`: the engine behind one lock, names to slots,
//!   pods that wait. The lock is never held across a call to the API server; the compiler checks
//!   that, because its guard may not cross an `await` in a spawned task.
//! - `roster`: node names to slots; made for calls with 5,000 names.
//! - `watches`: nodes, pods, operators' lists of unhealthy cards, disruption budgets. `quotas`:
//!   the amounts that namespaces may have.
//! - `routes`, `gpushare`: HTTP. Calls carry names (`nodeCacheCapable: true`). Whole nodes are
//!   accepted too, and returned unread.
//! - `preempt`: the evictions that help, for each node. The stock scheduler chooses among the
//!   nodes.
//! - `promises`: room that the controller has made for a pod. The stock scheduler keeps sums
//!   free, not cards, so filter keeps pods of lower priority away.
//! - `plans`: plans of the queue. Their slots count as used; a member goes to its slot and
//!   nowhere else; its Binding takes the slot in one step. Reasons:
//!   `docs/decisions/0009-plans.md`.
//! - `read_replica`: the same state for a process that binds nothing, the controller: it says why a
//!   pod waits.
//! - `bind`: performs the steps of `sublet_plan::Binding`, for pods without GPU too if they name
//!   the scheduler: they take CPU that cards need.
//! - `replicas`: the one of several extenders that binds a pod, and the way of a Bind to it.
//!   `peers`: their certificate, and calls to each other. `stand_in`: the process that listens in
//!   an extender's place while that one is away. `lifetime`: the order of start and end. Reasons:
//!   `docs/decisions/0006-several-extenders.md`.
//! - `events`: the reasons why pods wait, and the bound pods that do not name their card. They
//!   come from the pod watch, because the kube-scheduler does not ask us about nodes whose sum is
//!   too small.

mod bind;
mod events;
mod gpushare;
mod lifetime;
mod peers;
mod plans;
mod preempt;
mod promises;
mod quotas;
mod read_replica;
mod replicas;
mod roster;
mod routes;
mod stand_in;
mod state;
mod waiting;
mod watches;

#[cfg(test)]
mod tests;

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use anyhow::Context;
use sublet_api::flags;
use sublet_model::Unit;
use sublet_plan::{EngineOptions, Policy};

pub use read_replica::{ClusterSnapshot, EventSink, PreemptionVerdict, ReadReplica};
pub use routes::router;
pub use state::Scheduler;

/// Decide which GPU a pod gets, for a stock kube-scheduler (a scheduler extender).
#[derive(Debug, clap::Args)]
#[command(after_help = "\
EXAMPLES
  sublet scheduler                                  beside a kube-scheduler in one pod
  sublet scheduler --kubeconfig ~/.kube/config      from a terminal, for a trial
  sublet scheduler --policy spread --few 0          other placement, return all nodes
  sublet scheduler --replica-listen 0.0.0.0:39994   one of several; one binds, all answer

The kube-scheduler's configuration is in deploy/kubernetes/40-scheduler-config.yaml.
Answers /healthz, /readyz (once the ledger is complete) and /metrics.")]
pub struct Args {
    /// Address for the kube-scheduler's calls. Keep it on loopback, where processes of other users
    /// are refused. A client that reaches another address can have pods bound [default:
    /// 127.0.0.1:$PORT]
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<SocketAddr>,
    /// Port on loopback, if --listen is not given (GPUShare's variable)
    #[arg(long, env = "PORT", default_value_t = 39999, value_name = "PORT")]
    port: u16,
    /// Numeric ID of a user whose processes may call on loopback, beside root and the user of this
    /// process; can be given several times
    #[arg(long, value_name = "UID")]
    caller_uid: Vec<u32>,
    /// A second address for /healthz, /readyz and /metrics only
    #[arg(long, value_name = "ADDRESS")]
    health_listen: Option<SocketAddr>,
    /// Kubeconfig for the API server [default: as kubectl does, or the pod's account]
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Policy among places that fit, or a mix, such as fgd=0.7,best-fit=0.3
    #[arg(long, default_value_t, value_name = "POLICY", value_parser = flags::policy())]
    policy: Policy,
    /// Number of the best nodes to return; 0 for all
    #[arg(long, default_value_t = EngineOptions::default().few, value_name = "N")]
    few: usize,
    /// Unit of aliyun.com/gpu-mem, MiB or GiB
    #[arg(long, default_value_t, value_parser = flags::unit())]
    memory_unit: Unit,
    /// Pods with this schedulerName get events that say why they wait; can be given several
    /// times, such as for a default-scheduler that asks this extender too
    #[arg(long, default_value = "sublet-scheduler", value_name = "NAME")]
    scheduler_name: Vec<String>,
    /// Obey the plans of the queue: members of groups go where their plan says, and nowhere without
    /// one. The slots of plans count as used. The controller needs the same flag
    #[arg(long)]
    queue: bool,
    /// Address where other extenders hand over Binds, over TLS with certificates on both sides. It
    /// makes this process one of several: all answer, and the one that holds a Lease binds
    #[arg(long, value_name = "ADDRESS")]
    replica_listen: Option<SocketAddr>,
    /// The IP under which others reach that port [default: that of --replica-listen]
    #[arg(long, env = "POD_IP", value_name = "IP")]
    replica_ip: Option<IpAddr>,
    /// Namespace of the Lease and the Secret of several extenders
    #[arg(long, value_name = "NAMESPACE", default_value = "sublet-system")]
    namespace: String,
    /// Be no extender, but stand in for the one with this --health-listen: while it does not
    /// answer, listen in its place and hand calls to a --peer
    #[arg(
        long,
        value_name = "ADDRESS",
        requires = "peer",
        conflicts_with = "replica_listen"
    )]
    stand_in_for: Option<SocketAddr>,
    /// Another extender's --replica-listen, or a name that stands for all of them; can be given
    /// several times
    #[arg(long, value_name = "HOST:PORT", requires = "stand_in_for")]
    peer: Vec<String>,
    /// Worker threads (GPUShare's variable) [default: one per core]
    #[arg(long, env = "THREADNESS", value_name = "N")]
    threads: Option<std::num::NonZeroUsize>,
}

/// Runs until SIGTERM or Ctrl-C.
///
/// # Errors
/// No usable configuration, or an address that cannot be listened on.
pub fn run(args: Args) -> anyhow::Result<()> {
    let mut executor = tokio::runtime::Builder::new_multi_thread();
    if let Some(threads) = args.threads {
        executor.worker_threads(threads.get());
    }
    let executor = executor.enable_all().build();
    let executor = executor.context("cannot start threads")?;
    let ended = executor.block_on(lifetime::serve(args));
    // A look-up of a name can take seconds, and nobody waits for it any more.
    executor.shutdown_background();
    ended
}
