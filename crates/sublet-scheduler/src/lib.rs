//! `sublet scheduler`: the extender beside a stock kube-scheduler.
//!
//! A thin shell around `sublet_plan::Engine`: watches feed it, HTTP calls ask it, Bindings
//! and events carry its decisions out. All state is in the API server; a restart loses
//! nothing. It never talks to kubelets and never writes a pod but by binding it.
//!
//! Suggested reading order: state, roster, watches, routes, preempt, promises, bind, events;
//! then onlooker.

mod bind;
mod events;
mod gpushare;
mod onlooker;
mod preempt;
mod promises;
mod quotas;
mod roster;
mod routes;
mod state;
mod watches;

#[cfg(test)]
mod tests;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context;
use sublet_model::Unit;
use sublet_plan::{EngineOptions, Policy};

pub use onlooker::{Onlooker, Outlook};
pub use routes::router;
pub use state::Scheduler;

/// Decide which GPU a pod gets, for a stock kube-scheduler (a scheduler extender).
#[derive(Debug, clap::Args)]
#[command(after_help = "\
EXAMPLES
  sublet scheduler                                  beside a kube-scheduler in one pod
  sublet scheduler --kubeconfig ~/.kube/config      from a terminal, for a trial
  sublet scheduler --policy spread --few 0          other placement, return all nodes

The kube-scheduler's configuration is in deploy/kubernetes/40-scheduler-config.yaml.
Answers /healthz, /readyz (once the ledger is complete) and /metrics.")]
pub struct Args {
    /// Address for the kube-scheduler's calls. Keep it on loopback, because whoever reaches it
    /// can have pods bound [default: 127.0.0.1:$PORT]
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<SocketAddr>,
    /// Port on loopback, if --listen is not given (GPUShare's variable)
    #[arg(long, env = "PORT", default_value_t = 39999, value_name = "PORT")]
    port: u16,
    /// A second address for /healthz, /readyz and /metrics only
    #[arg(long, value_name = "ADDRESS")]
    health_listen: Option<SocketAddr>,
    /// How to reach the API server [default: as kubectl does, or the pod's account]
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    #[arg(
        long, default_value_t, value_name = "POLICY",
        help = Policy::help("How to choose among places that fit")
    )]
    policy: Policy,
    /// How many of the best nodes to return; 0 for all
    #[arg(long, default_value_t = EngineOptions::default().few, value_name = "N")]
    few: usize,
    /// What one aliyun.com/gpu-mem is
    #[arg(long, default_value = "MiB", value_parser = ["MiB", "GiB"])]
    memory_unit: String,
    /// Pods with this schedulerName get events that say why they wait; can be given several
    /// times, such as for a default-scheduler that asks this extender too
    #[arg(long, default_value = "sublet-scheduler", value_name = "NAME")]
    scheduler_name: Vec<String>,
    /// Worker threads (GPUShare's variable) [default: one per core]
    #[arg(long, env = "THREADNESS", value_name = "N")]
    threads: Option<std::num::NonZeroUsize>,
}

/// Runs until SIGTERM or Ctrl-C.
///
/// # Errors
/// No usable configuration, or an address that cannot be listened on.
pub fn run(args: Args) -> anyhow::Result<()> {
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    if let Some(threads) = args.threads {
        runtime.worker_threads(threads.get());
    }
    runtime
        .enable_all()
        .build()
        .context("cannot start threads")?
        .block_on(serve(args))
}

async fn serve(args: Args) -> anyhow::Result<()> {
    let unit = if args.memory_unit == "GiB" {
        Unit::GiB
    } else {
        Unit::MiB
    };
    let options = EngineOptions {
        few: args.few,
        unit,
        ..EngineOptions::of(args.policy)
    };
    let client = sublet_client::connect(args.kubeconfig.as_deref()).await?;
    let address = args
        .listen
        .unwrap_or(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), args.port));
    let calls = listen(address).await?;
    let health = match args.health_listen {
        Some(address) => Some(listen(address).await?),
        None => None,
    };

    let scheduler = Arc::new(Scheduler::new(client, options.clone(), args.scheduler_name));
    tracing::info!(%address, policy = %options.policy, few = options.few, %unit, "listening");
    let watching = tokio::spawn(watches::follow(scheduler.clone()));
    if let Some(health) = health {
        let page = routes::health_router(scheduler.clone());
        tokio::spawn(async move { axum::serve(health, page).await });
    }
    axum::serve(calls, router(scheduler))
        .with_graceful_shutdown(stopped())
        .await
        .context("the listener failed")?;
    watching.abort();
    tracing::info!("stopped");
    Ok(())
}

async fn listen(address: SocketAddr) -> anyhow::Result<tokio::net::TcpListener> {
    tokio::net::TcpListener::bind(address)
        .await
        .with_context(|| format!("cannot listen on {address}"))
}

async fn stopped() {
    use tokio::signal::unix::{SignalKind, signal};
    let Ok(mut term) = signal(SignalKind::terminate()) else {
        return;
    };
    tokio::select! {
        _ = term.recv() => {}
        _ = tokio::signal::ctrl_c() => {}
    }
}
