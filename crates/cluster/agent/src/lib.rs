//! The program that runs on every node: finds the node's devices, offers them to kubelet, and
//! hands each container the cards that the scheduler chose for its pod. The decisions
//! are made elsewhere; this crate only finds out, carries out and reports.
//!
//! Suggested reading order: discover, publish, plugin, allocate, isolate, cdi, pods, card_injector,
//! card_allocator, nri, kind, lifecycle, lifecycle_manager, node_events, agent.
//!
//! # Modules
//! - `discover`: NVML, loaded at run time, or a file that describes simulated cards.
//! - `plugin`: device plugins on real sockets; several resources from one process.
//! - `kind`: a trait, and a file for each kind of device: memory of GPUs, whole GPUs (both made
//!   of `kind/cards`), device files in a folder; `kind/list` names them. `agent/plugins` runs a
//!   plugin for each resource that they offer, and knows none of them.
//! - `lifecycle`: the owners of each device, and the moments of preparing, cleaning and cleaning
//!   again. Pure; `lifecycle_manager` carries it out. `node_events` posts its events.
//! - `allocate`: the identity of a container. Pure. `allocate/twins`: one answer for several
//!   equal pods. `card_allocator` does its I/O. A decision reserves its cards in the same moment.
//! - `card_injector`: the hand-over of the cards, once the container is known, for kubelet and for
//!   the runtime: room, clean cards, limits, and what is added to the container.
//! - `pods`: the node's pods, listed or watched, each list with the time at which it was asked
//!   for. A comparison of a list with handed-over cards leaves newer entries alone, so no lock is
//!   held from the question to the comparison.
//! - `api_calls`: the limits of a call to the API server, and the pauses between calls. `watched`: a
//!   value that is shown again only when it is another.
//! - `checkpoint`: kubelet's checkpoint, read only. `agent/registrar` learns from it the containers
//!   that kubelet has served, says so on the pod, and tells `isolate/node/seats` the owner of each
//!   *seat* (folder, limits and account).
//! - `nri`: the runtime says which container it is. Allocate gets a start block, which keeps the
//!   container from starting; the answer to the runtime takes it away. It has a thread of its own
//!   (`agent/runtime`): the runtime creates nothing else while it waits. The node's pods come
//!   from a watch, so that no container waits for the API server. Reasons:
//!   `docs/decisions/0007-the-runtime-names-the-container.md`.
//! - `cdi`: the device files of each card, described for the runtime.
//! - `publish`: the node's annotations and status; units or slots, by the size of kubelet's
//!   message.
//! - `agent/away`: the end in order. The node says first that nobody hands out devices there;
//!   pods that were bound before still get theirs; the next agent takes the word back.
//! - `top`: the arbiter's figures, for people elsewhere: questions of `admin.sock` on the pod's
//!   loopback, where a port-forward ends (`sublet_client::AgentConnection`,
//!   `doors/cli/src/top/node.rs`).
//! - `isolate`: the node's arbiter, in the agent's process, and the mounts of a container: a
//!   folder with its socket, and the libraries, with a file that preloads them and one that says
//!   where the arbiter is. A record per container on disk lets a restarted agent serve containers
//!   before the API server answers; only a record that is not there frees its folder.
//!   `containers` has each container in the hands of at most one thread. `supervisor` starts the
//!   arbiter, and starts it again whenever it has ended; while there is none, no part of a card
//!   is handed out.

mod agent;
pub mod allocate;
mod api_calls;
mod card_allocator;
mod card_injector;
mod cdi;
mod checkpoint;
pub mod discover;
mod health;
pub mod isolate;
mod kind;
mod lifecycle;
mod lifecycle_manager;
mod node_events;
mod nri;
pub mod plugin;
mod pods;
pub mod publish;
mod top;
mod watched;

pub use checkpoint::KubeletCheckpoint;

use std::net::SocketAddr;
use std::num::NonZeroU8;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use clap::ValueEnum;
use sublet_api::flags;
use sublet_arbiter::TimeSharing;
use sublet_arbiter::libraries::Carried;
use sublet_kubelet::deviceplugin::DEFAULT_FOLDER;
use sublet_listener::{Callers, Door, Limits, listen};
use sublet_model::{Identity, Inventory, NodeName, Unit};
use sublet_tasks::vital;
use sublet_telemetry::metrics::AgentMetrics;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tracing::info;

use agent::Agent;
use card_injector::CardInjector;
use cdi::{Cdi, Hardware};
use discover::nvml::{self, NvmlSource};
use discover::simulated::SimulatedSource;
use isolate::node::{Cards, Isolation};
use isolate::supervisor::{IsolationSupervisor, StartIsolation};
use isolate::{IsolationError, IsolationWord, StrictnessWord, Wanted};
use publish::offer::{AdvertiseWish, Offer, Settings, SharingWord};

/// Offer this node's GPUs to kubelet, and hand each container the GPU chosen for it.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// This node's name in the cluster
    #[arg(long, env = "NODE_NAME", value_name = "NAME", value_parser = NodeName::new)]
    node_name: NodeName,
    /// Kubeconfig file to reach the API server [default: as kubectl does, or the pod's account]
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Kubelet's folder for device plugins
    #[arg(long, default_value = DEFAULT_FOLDER, value_name = "DIR")]
    device_plugin_dir: PathBuf,
    /// Simulate the devices that this file describes, instead of asking the driver
    #[arg(long, value_name = "FILE")]
    inventory: Option<PathBuf>,
    /// NVIDIA's management library
    #[arg(long, default_value = nvml::LIBRARY, value_name = "PATH", conflicts_with = "inventory")]
    nvml_library: PathBuf,
    /// Sharing mode of GPUs, if the node's label does not set one
    #[arg(long, value_enum, default_value_t = SharingWord::Memory)]
    sharing: SharingWord,
    /// Size of one aliyun.com/gpu-mem, MiB or GiB; the same as the scheduler's
    #[arg(long, env = "MEMORY_UNIT", default_value_t, value_parser = flags::unit())]
    memory_unit: Unit,
    /// Method to advertise memory to kubelet
    #[arg(long, value_enum, default_value_t = AdvertiseWish::Auto)]
    advertise: AdvertiseWish,
    /// Method to recognise the container that kubelet starts
    #[arg(long, value_enum, default_value_t = IdentityWish::Auto)]
    identity: IdentityWish,
    /// Socket on which the container runtime listens for plugins
    #[arg(long, default_value = sublet_nri::DEFAULT_SOCKET, value_name = "PATH")]
    nri_socket: PathBuf,
    /// The runtime's folder for descriptions of devices (CDI); if it is not there, containers get
    /// their devices by variables alone
    #[arg(long, default_value = cdi::DEFAULT_FOLDER, value_name = "DIR")]
    cdi_dir: PathBuf,
    /// Offer each GPU N times as nvidia.com/gpu, where parts of GPUs are handed out [default:
    /// whole GPUs only]
    ///
    /// Pods that are written for HAMi ask for nvidia.com/gpu beside nvidia.com/gpumem: they go on
    /// GPUs with fewer than N pods.
    #[arg(long, value_name = "N")]
    gpu_splits: Option<NonZeroU8>,
    /// Offer devices of another kind too, such as `files:rdma=/dev/infiniband`; may be said again
    ///
    /// `files:NAME=DIR[,times=N]` offers each device file in a folder as one device of the resource
    /// sublet.dev/NAME (or NAME, if it has a domain), or as N of them that share it. A container finds
    /// its file at the same path. A file that goes away is an unhealthy device.
    #[arg(long = "device", value_name = "KIND:TEXT", value_parser = kind::list::asked)]
    devices: Vec<kind::list::Asked>,
    /// Write HAMi's register and handshake on the node, for scripts and dashboards that read them
    ///
    /// Not where HAMi's scheduler runs: it would take the node for one of its own, and bind its pods
    /// here. It refuses nothing that Sublet's pods have. A register that HAMi's device plugin wrote is
    /// left alone, and Sublet binds nothing on such a node.
    #[arg(long)]
    hami_register: bool,
    /// Publish Koordinator's Device of the node, for programs that read it
    ///
    /// For clusters that have Koordinator's CRD, on nodes that koordlet does not report. Do not use
    /// it with Koordinator's scheduler: that would bind its pods here, past Sublet's account.
    #[arg(long)]
    koordinator_device: bool,
    /// Address for /healthz and /metrics [default: none]
    #[arg(long, value_name = "ADDRESS")]
    health_listen: Option<SocketAddr>,
    /// Address for `sublet top --node`, on loopback: those come by port-forward [default: none]
    #[arg(long, value_name = "ADDRESS", value_parser = top::address)]
    top_listen: Option<SocketAddr>,
    // Not in a struct of their own: `sublet agent` takes these flags or those of a machine
    // without a cluster, and clap cannot tell which it was given if some are nested.
    /// Hold containers to the memory that they were given
    #[arg(long, value_enum, default_value_t = IsolationWord::Auto)]
    isolation: IsolationWord,
    /// Treatment of GPU programs while the agent is away, and of unknown driver functions
    #[arg(long, value_enum, default_value_t = StrictnessWord::Strict)]
    isolation_mode: StrictnessWord,
    /// Folder of the libraries for containers [default: in this program, else beside it]
    ///
    /// Containers of every image load these libraries. A release's libraries need glibc 2.28 or
    /// newer. Libraries of a plain `cargo build` need the glibc of the machine that built them: the
    /// agent warns of that at its start, and `cargo xtask libraries` builds others. If an image
    /// lacks something that they need, its programs run without a limit.
    #[arg(long, value_name = "DIR")]
    library_dir: Option<PathBuf>,
    /// The host's folder for what containers mount; the same path in here and on the host
    #[arg(long, value_name = "DIR", default_value = "/var/lib/sublet")]
    state_dir: PathBuf,
    /// The host's folder for the arbiter's own sockets, where `sublet top` looks
    // No variable: one that is set would look like a flag of a node's agent to a standalone one.
    #[arg(long, value_name = "DIR", default_value = "/run/sublet")]
    runtime_dir: PathBuf,
    /// Let `sublet run` start jobs here too; the cluster does not know what memory they take
    #[arg(long)]
    allow_local_jobs: bool,
}

/// [`Identity`] as it is wished.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum IdentityWish {
    /// The first of the others that this node has
    Auto,
    /// The container runtime says it (NRI)
    Nri,
    /// By size and order; of equal pods kubelet's checkpoint says it afterwards
    KubeletCheckpoint,
    /// By size and order; equal pods start one after the other
    SizeAndOrder,
}

impl IdentityWish {
    /// The means by which this agent goes, for as long as it lives: the scheduler writes on pods what
    /// the runtime has to ask.
    fn choose(self, nri_socket: &Path) -> anyhow::Result<Identity> {
        let asks = std::os::unix::net::UnixStream::connect(nri_socket);
        match (self, asks) {
            (IdentityWish::Auto | IdentityWish::Nri, Ok(_)) => Ok(Identity::Nri),
            (IdentityWish::Nri, Err(error)) => Err(error).with_context(|| {
                let socket = nri_socket.display();
                format!("no container runtime takes plugins at {socket}; enable NRI in its configuration")
            }),
            (IdentityWish::Auto, Err(error)) => {
                let socket = nri_socket.display();
                info!(%socket, %error, "no NRI, so containers are known by kubelet's checkpoint");
                Ok(Identity::Checkpoint)
            }
            (IdentityWish::KubeletCheckpoint, _) => Ok(Identity::Checkpoint),
            (IdentityWish::SizeAndOrder, _) => Ok(Identity::SizeAndOrder),
        }
    }
}

/// Runs until SIGTERM or Ctrl-C, then takes its sockets away. Meant for an executor of one
/// thread: the work is a few calls a minute. `time`: how containers on one card share its time.
/// `carried` are the libraries inside this program, if it has any.
///
/// # Errors
/// A configuration that cannot be used, found before anything is started: no driver, a
/// wrong inventory file, more devices than can be offered, no way to the API server, a
/// folder that is not there. A node that is not registered yet is waited for.
pub async fn run(
    args: Args,
    time: TimeSharing,
    carried: Option<&'static Carried>,
) -> anyhow::Result<()> {
    let settings = Settings {
        sharing: args.sharing.into(),
        unit: args.memory_unit,
        advertise: args.advertise,
        gpu_splits: args.gpu_splits,
        hami_register: args.hami_register,
        koordinator_device: args.koordinator_device,
        identity: args.identity.choose(&args.nri_socket)?,
    };
    let folder = args.device_plugin_dir.as_path();
    anyhow::ensure!(
        folder.is_dir(),
        "{} is not a folder; give kubelet's with --device-plugin-dir",
        folder.display()
    );
    let client = sublet_client::connect(args.kubeconfig.as_deref()).await?;
    let inventory = devices(&args)?;
    Offer::of(&inventory.borrow(), settings)?;
    let (metrics, registry) = AgentMetrics::registered();
    let supervisor = supervisor(&args, time, carried, inventory.clone(), metrics.clone())?;
    let isolation = supervisor.state();
    let (vital, mut vigil) = vital();
    if let Some(address) = args.health_listen {
        let door = Door::new(listen(address)?, Limits::PAGES, &metrics.refused);
        let arbiter = isolation.clone();
        let silent_for = move || {
            let now = arbiter.borrow();
            now.on().map_or(Duration::ZERO, |one| one.silent_for())
        };
        let serving = health::serve(door, registry, silent_for);
        vital.start("the listener for health", serving);
    }
    if let Some(address) = args.top_listen {
        let door = Door::new(listen(address)?, top::CALLS, &metrics.refused);
        // Who comes by a port-forward comes from the container runtime, which is root's.
        let door = door.for_callers(Callers::root_and_own(&[])).await?;
        let serving = top::serve(door, isolation.clone());
        vital.start("the listener for figures of use", serving);
    }
    let stop = stop_signals()?;
    let hardware = match &args.inventory {
        Some(_) => Hardware::Simulated,
        None => Hardware::Real(cdi::DEVICE_NUMBERS.into()),
    };
    let runtime = (settings.identity == Identity::Nri).then_some(args.nri_socket);
    let place = (args.node_name, args.device_plugin_dir);
    let injector = CardInjector {
        isolation,
        cdi: Cdi::within(&args.cdi_dir, hardware).map(Arc::new),
        metrics,
    };
    let agent = Agent::new(client, place, settings, inventory, injector, runtime);
    let running = agent.run(args.devices, supervisor, &vital, stop);
    vigil.beside(running).await?
}

/// Starts the node's arbiter, where containers are to be held to their parts.
fn supervisor(
    args: &Args,
    time: TimeSharing,
    carried: Option<&'static Carried>,
    inventory: watch::Receiver<Arc<Inventory>>,
    metrics: AgentMetrics,
) -> anyhow::Result<IsolationSupervisor> {
    let word = args.isolation;
    if word == IsolationWord::Off {
        info!("isolation is off, as --isolation says: containers can use more than their part");
    }
    let simulated = args.inventory.is_some();
    let nvml = args.nvml_library.clone();
    let program = std::env::current_exe().context("this program's file is not known")?;
    let wanted = Wanted {
        program: Some(program),
        mode: args.isolation_mode,
        library_dir: args.library_dir.clone(),
        carried,
        state_dir: args.state_dir.clone(),
        run_folder: args.runtime_dir.clone(),
        local_jobs: args.allow_local_jobs,
        time,
    };
    let start = move |inventory: &Inventory| {
        let cards = match simulated {
            true => Cards::Simulated(inventory),
            false => Cards::Real(&nvml),
        };
        // A node may have a driver and no card.
        if inventory.gpus().is_empty() {
            return Err(IsolationError::NoCards);
        }
        Isolation::start(&wanted, &cards)
    };
    let start = (word != IsolationWord::Off).then(|| Arc::new(start) as Arc<StartIsolation>);
    let must = word == IsolationWord::On;
    IsolationSupervisor::begin(start, must, inventory, metrics)
        .context("containers cannot be held to their limits")
}

/// The node's devices, from the file or the driver.
fn devices(args: &Args) -> anyhow::Result<watch::Receiver<Arc<Inventory>>> {
    let devices = match &args.inventory {
        Some(file) => {
            let source = SimulatedSource::new(file.clone(), args.node_name.clone());
            discover::follow(source)?
        }
        None => discover::follow(NvmlSource::open(&args.nvml_library)?)?,
    };
    Ok(devices)
}

/// Becomes true at SIGTERM or SIGINT.
fn stop_signals() -> anyhow::Result<watch::Receiver<bool>> {
    let mut term = signal(SignalKind::terminate()).context("cannot listen for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot listen for SIGINT")?;
    let (sender, stop) = watch::channel(false);
    tokio::spawn(async move {
        tokio::select! {
            _ = term.recv() => {}
            _ = interrupt.recv() => {}
        }
        sender.send_replace(true);
        // Held until everyone has heard it.
        sender.closed().await;
    });
    Ok(stop)
}

#[cfg(test)]
mod tests {
    use clap::{Args as _, Command, FromArgMatches};
    use sublet_model::Sharing;

    use super::*;

    fn parse(line: &str) -> Result<Args, String> {
        let command = Args::augment_args(Command::new("agent").no_binary_name(true));
        let matches = command.try_get_matches_from(line.split_whitespace());
        matches
            .and_then(|matches| Args::from_arg_matches(&matches))
            .map_err(|error| error.to_string())
    }

    #[test]
    fn flags_are_checked_before_anything_starts() {
        let args = parse("--node-name n1 --sharing both --memory-unit gib").unwrap();
        assert_eq!(Sharing::from(args.sharing), Sharing::Both);
        assert_eq!(args.memory_unit, Unit::GiB);
        assert_eq!(args.device_plugin_dir.to_str(), Some(DEFAULT_FOLDER));
        let refused = |line: &str| parse(line).unwrap_err();
        assert!(refused("--node-name a/b").contains("a node name must not contain '/'"));
        assert!(refused("--node-name a --memory-unit MB").contains("possible values: MiB, GiB"));
        assert!(
            refused("--node-name a --inventory f --nvml-library l").contains("cannot be used with")
        );
    }

    #[tokio::test]
    async fn a_missing_folder_is_told_first() {
        let args = parse("--node-name n1 --device-plugin-dir absent --inventory absent").unwrap();
        assert_eq!(
            run(args, TimeSharing::default(), None)
                .await
                .unwrap_err()
                .to_string(),
            "absent is not a folder; give kubelet's with --device-plugin-dir"
        );
    }
}
