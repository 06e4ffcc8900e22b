//! From the first listener to the last answer of an extender, alone or one of several.
//!
//! One of several listens for the kube-scheduler when its ledger is complete, because until then its
//! stand-in has the port. At its end it first binds no more and gives its Lease back, then tells
//! the stand-in, and then stops to listen. A vital task that ends before that ends the process at once,
//! as a crash would.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use k8s_openapi::api::coordination::v1::Lease;
use sublet_client::ObjectAddress;
use sublet_listener::{Callers, Door, Ending, Limits, listen, stopped};
use sublet_plan::EngineOptions;
use sublet_replicas::leader::{SWIFT, campaign, candidacy, process_name};
use sublet_tasks::{Vital, vital};
use tokio::net::{TcpListener, TcpSocket};
use tokio::sync::watch;

use crate::peers::PEERS;
use crate::replicas::{Holder, Replicas, take_office};
use crate::routes::{health_router, router, router_for_peers};
use crate::state::Scheduler;
use crate::{Args, peers, stand_in, watches};

/// The Lease, in the namespace of the extender.
const LEASE: &str = "sublet-extender";
/// Pause between checks whether the ledger is complete.
const LOOK: Duration = Duration::from_millis(20);
/// Time that Bindings under way have at the end, before the Lease is left to end by itself.
const LAST_BINDINGS: Duration = Duration::from_millis(500);
/// Time that a stand-in has to listen in this process's place.
const STEP_IN: Duration = Duration::from_millis(100);
/// Time that calls under way have at the end.
const LAST_CALLS: Ending = Ending {
    farewell: Duration::ZERO,
    drain: Duration::from_secs(10),
};

/// 5,000 names are 250 KB, but as many whole nodes 18 MB, more where they have many images; a
/// pod is at most 1.5 MiB (etcd's limit).
const LARGEST_BODY: usize = 64 << 20;

/// Limits on the calls of the kube-scheduler beside this process. It keeps a few connections for up
/// to 90 s, and has a call for each Binding under way: 256 are more than it opens. One body and
/// answer of the largest size have room at a time, and hundreds of the usual ones.
pub(crate) const CALLS: Limits = Limits {
    name: "extender",
    connections: 256,
    head_size: 400 << 10,
    body_size: LARGEST_BODY,
    held: 96 << 20,
    ..Limits::PAGES
};

/// Runs until SIGTERM or Ctrl-C.
pub(crate) async fn serve(args: Args) -> anyhow::Result<()> {
    let address = args
        .listen
        .unwrap_or(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), args.port));
    let client = sublet_client::connect(args.kubeconfig.as_deref()).await?;
    let health = match args.health_listen {
        Some(address) => Some(listen(address)?),
        None => None,
    };
    let callers = Callers::root_and_own(&args.caller_uid);
    if let Some(beside) = args.stand_in_for {
        let stand_in = stand_in::StandIn {
            beside,
            address,
            callers,
            namespace: args.namespace,
            peers: args.peer,
        };
        let (vital, mut vigil) = vital();
        let standing_in = stand_in.run(client, health, &vital, stopped());
        return vigil.beside(standing_in).await?;
    }
    let options = EngineOptions {
        few: args.few,
        unit: args.memory_unit,
        ..EngineOptions::of(args.policy)
    };
    let (policy, few, unit) = (options.policy.clone(), options.few, options.unit);
    let scheduler = Scheduler::new(client.clone(), options, args.scheduler_name);
    let scheduler = match args.queue {
        true => scheduler.queued(),
        false => scheduler,
    };
    tracing::info!(%address, %policy, few, %unit, "listening");
    match args.replica_listen {
        None => serve_alone(scheduler, listen(address)?, callers, health).await?,
        Some(listen) => {
            let place = Place {
                calls: address,
                callers,
                peers: listen,
                ip: args.replica_ip.unwrap_or(listen.ip()),
                namespace: args.namespace,
            };
            serve_among_others(scheduler, place, health).await?;
        }
    }
    tracing::info!("stopped");
    Ok(())
}

async fn serve_alone(
    scheduler: Scheduler,
    calls: TcpListener,
    callers: Callers,
    health: Option<TcpListener>,
) -> anyhow::Result<()> {
    let scheduler = Arc::new(scheduler);
    let door = door(&scheduler, calls, callers).await?;
    let (vital, mut vigil) = vital();
    let watching = watches::follow(scheduler.clone(), None);
    let _watching = vital.start_for_now("the watch of the cluster", watching);
    answer_for_health(&scheduler, health, &vital);
    let serving = door.serve(router(scheduler), LAST_CALLS, stopped());
    vigil.beside(serving).await?
}

/// The listener for the kube-scheduler's calls.
async fn door(scheduler: &Scheduler, calls: TcpListener, callers: Callers) -> anyhow::Result<Door> {
    let door = Door::new(calls, CALLS, &scheduler.metrics.refused);
    door.for_callers(callers).await
}

fn answer_for_health(scheduler: &Arc<Scheduler>, health: Option<TcpListener>, vital: &Vital) {
    if let Some(health) = health {
        let page = health_router(scheduler.clone());
        let door = Door::new(health, Limits::PAGES, &scheduler.metrics.refused);
        let serving = door.serve(page, LAST_CALLS, std::future::pending());
        vital.start("the listener for health", serving);
    }
}

/// Addresses of one extender of several: where it listens, and where others reach it.
struct Place {
    calls: SocketAddr,
    callers: Callers,
    peers: SocketAddr,
    ip: IpAddr,
    namespace: String,
}

async fn serve_among_others(
    scheduler: Scheduler,
    place: Place,
    health: Option<TcpListener>,
) -> anyhow::Result<()> {
    // Before anything is done: another process may have the port.
    let others = listen(place.peers)?;
    let client = scheduler.client.clone();
    let (campaigner, leadership) = candidacy();
    let (link, links) = watch::channel(None);
    let me = Holder {
        name: process_name()?,
        address: SocketAddr::new(place.ip, place.peers.port()),
    };
    let replicas = Arc::new(Replicas::new(me, leadership.clone(), links.clone()));
    let scheduler = Arc::new(scheduler.among(replicas.clone()));
    let (vital, mut vigil) = vital();
    let watching = watches::follow(scheduler.clone(), None);
    let _watching = vital.start_for_now("the watch of the cluster", watching);
    let following = peers::follow(client.clone(), place.namespace.clone(), link);
    vital.start("the look for certificates", following);
    let keeping = peers::keep(client.clone(), place.namespace.clone(), leadership);
    vital.start("the keeper of certificates", keeping);
    answer_for_health(&scheduler, health, &vital);
    let (stop, stopping) = watch::channel(false);
    let answering = peers::answer(
        Door::new(others, PEERS, &scheduler.metrics.refused),
        router_for_peers(scheduler.clone()),
        links,
        told(stopping.clone()),
    );
    let _answering = vital.start_for_now("the listener for other extenders", answering);

    let mut stopped = std::pin::pin!(stopped());
    let readying = is_ready_before(&mut stopped, &scheduler);
    if !vigil.beside(readying).await? {
        return Ok(());
    }
    let listener = listen_beside(place.calls)?;
    let door = door(&scheduler, listener, place.callers).await?;
    let serving = door.serve(router(scheduler.clone()), LAST_CALLS, told(stopping));
    let serving = vital.start_for_now("the listener for the kube-scheduler", serving);
    let office = take_office(scheduler.clone(), replicas.clone());
    vital.start("the office that binds", office);
    let give_back = watch::Sender::new(false);
    let lease = ObjectAddress::of::<Lease>(Some(&place.namespace), LEASE);
    let campaign = campaign(
        client.clone(),
        lease.clone(),
        replicas.me.to_string(),
        SWIFT,
        campaigner,
        scheduler.metrics.leading.clone(),
        told(give_back.subscribe()),
    );
    let campaigning = vital.start_for_now("the election", campaign);
    vigil.beside(&mut stopped).await?;
    // In this order: nobody binds any more when the Lease is given back, and somebody else listens
    // when this process stops to.
    replicas.resign();
    until_answered(&scheduler, &replicas).await;
    give_back.send_replace(true);
    let campaigner = campaigning.ended().await.context("the election failed")?;
    // Binds that are still here go to whoever leads next.
    let observing = campaigner.observe(client, lease);
    let _observing = vital.start_for_now("the look at the Lease", observing);
    tokio::time::sleep(STEP_IN).await;
    stop.send_replace(true);
    serving.ended().await.context("the listener failed")?
}

/// Waits until this is true, or nobody can make it so any more.
async fn told(mut stopping: watch::Receiver<bool>) {
    let _told = stopping.wait_for(|stopping| *stopping).await;
}

/// Waits for the last Bindings, but not for ever.
async fn until_answered(scheduler: &Scheduler, replicas: &Replicas) {
    let answered = async {
        while !replicas.leadership.all_answered() || !scheduler.under_way().is_empty() {
            tokio::time::sleep(LOOK).await;
        }
    };
    let _answered = tokio::time::timeout(LAST_BINDINGS, answered).await;
}

/// Waits until the ledger is complete; false if the process is to stop before.
async fn is_ready_before(stopped: impl Future<Output = ()>, scheduler: &Scheduler) -> bool {
    let ready = async {
        while !scheduler.is_ready() {
            tokio::time::sleep(LOOK).await;
        }
    };
    tokio::select! {
        () = stopped => false,
        () = ready => true,
    }
}

/// Listens on a port that another process of the same user may listen on too.
pub(crate) fn listen_beside(address: SocketAddr) -> anyhow::Result<TcpListener> {
    let listening = || {
        let socket = match address {
            SocketAddr::V4(_) => TcpSocket::new_v4()?,
            SocketAddr::V6(_) => TcpSocket::new_v6()?,
        };
        socket.set_reuseaddr(true)?;
        socket.set_reuseport(true)?;
        socket.bind(address)?;
        socket.listen(1024)
    };
    listening().with_context(|| format!("cannot listen on {address}"))
}
