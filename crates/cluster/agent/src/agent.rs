//! Keeps a node's offer up to date. The loop looks at devices, settings and the node object, tells
//! the cluster the missing parts, and runs a plugin for each resource offered. It only
//! compares and carries out. If it is cut off in between nothing is lost, because the next look
//! does it.

mod away;
mod isolation;
mod labels;
mod plugins;
mod registrar;
mod runtime;

use std::convert::Infallible;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::Context;
use jiff::Timestamp;
use sublet_api::object::Node;
use sublet_api::{Handed, NodeUse, keys};
use sublet_client::{Client, read_node};
use sublet_model::{Identity, Inventory, NodeFacts, NodeName};
use sublet_tasks::Vital;
use sublet_telemetry::metrics::ResourceLabel;
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep};
use tracing::{debug, info, warn};

use self::away::{Leave, Return};
use self::isolation::ContainerReconciler;
use self::labels::Labels;
use self::plugins::Plugins;
use self::registrar::Registrar;
use self::runtime::RuntimeSide;
use crate::allocate::{Given, Site};
use crate::api_calls::{HURRY_EVERY, LOOK_EVERY, PAUSES, in_time, now_ns};
use crate::card_allocator::CardAllocator;
use crate::card_injector::CardInjector;
use crate::checkpoint::KubeletCheckpoint;
use crate::isolate::supervisor::IsolationSupervisor;
use crate::kind::cards::Cards;
use crate::kind::list::{self, Asked};
use crate::lifecycle_manager::LifecycleManager;
use crate::node_events::node_events;
use crate::nri::{Created, RuntimePlugin};
use crate::pods::PodSource;
use crate::publish::device::DeviceReport;
use crate::publish::offer::{Offer, OfferError, Settings};
use crate::publish::{measured, missing, publish, register};
use crate::watched::send_if_new;

/// Time after a start of kubelet in which the agent looks often.
const HURRY_TIME: Duration = Duration::from_secs(30);

/// The agent of one node.
pub(crate) struct Agent {
    client: Client,
    node: NodeName,
    folder: PathBuf,
    /// As configured.
    settings: Settings,
    /// Values of the node's labels, once they were read.
    labels: Labels,
    inventory: watch::Receiver<Arc<Inventory>>,
    injector: CardInjector,
    pods: PodSource,
    /// Set if the runtime is asked.
    runtime: Option<RuntimeSide>,
    given: Arc<Mutex<Given>>,
    /// Told of answers for a pod that only kubelet's checkpoint can name.
    doubt: Arc<Notify>,
    /// The cards of pods that do not say themselves which they have.
    lost: watch::Sender<Handed>,
    /// Measured use of the cards; `None` before the first measurement, and no cards without
    /// isolation.
    measured: watch::Sender<Option<NodeUse>>,
    /// When that was last written, or the agent started.
    measured_written: Instant,
    offered: Option<Offered>,
    /// The node as containers are to find it.
    site: watch::Sender<Arc<Site>>,
    cards: Arc<Cards>,
    /// Does HAMi's device plugin report the node?
    is_hamis: bool,
    device: DeviceReport,
    registered: mpsc::UnboundedSender<String>,
    registrations: mpsc::UnboundedReceiver<String>,
    back: Return,
    /// Last problem that was logged, so that a lasting cause is logged once.
    complaint: String,
}

/// An offer, and what it was made of. It is kept because making one takes megabytes.
struct Offered {
    inventory: Arc<Inventory>,
    settings: Settings,
    offer: Offer,
}

impl Agent {
    pub(crate) fn new(
        client: Client,
        (node, folder): (NodeName, PathBuf),
        settings: Settings,
        inventory: watch::Receiver<Arc<Inventory>>,
        injector: CardInjector,
        runtime: Option<PathBuf>,
    ) -> Agent {
        let (registered, registrations) = mpsc::unbounded_channel();
        let runtime = runtime.map(|socket| RuntimeSide {
            socket,
            pods: Arc::default(),
            created: Created::default(),
        });
        let pods = match &runtime {
            Some(runtime) => PodSource::Watched(Arc::clone(&runtime.pods)),
            None => PodSource::Listed(client.clone(), node.clone()),
        };
        let is_off = injector.isolation.borrow().is_off();
        let (given, doubt) = <(Arc<Mutex<Given>>, Arc<Notify>)>::default();
        // Nobody asks for anything before there is an offer, and with it the real one.
        let facts = NodeFacts::plain(node.clone(), inventory.borrow().clone());
        let site = watch::Sender::new(Arc::new(Site {
            facts,
            no_isolation: false,
        }));
        let cards = Cards::new(CardAllocator {
            client: client.clone(),
            pods: pods.clone(),
            is_named_later: runtime.is_some(),
            injector: injector.clone(),
            site: site.subscribe(),
            given: Arc::clone(&given),
            checkpoint: KubeletCheckpoint::place(&folder),
            doubt: Arc::clone(&doubt),
        });
        Agent {
            injector,
            pods,
            runtime,
            client,
            node,
            folder,
            settings,
            labels: Labels::default(),
            inventory,
            measured: watch::Sender::new(is_off.then(NodeUse::new)),
            measured_written: Instant::now(),
            given,
            doubt,
            lost: watch::Sender::default(),
            offered: None,
            site,
            cards: Arc::new(cards),
            is_hamis: false,
            device: DeviceReport::new(),
            registered,
            registrations,
            back: Return::default(),
            complaint: String::new(),
        }
    }

    /// Runs until `stop` becomes true, or the devices cannot be followed any more. `asked`: the kinds
    /// of device that the operator asked for beside the cards. `supervisor`: of isolation.
    pub(crate) async fn run(
        mut self,
        asked: Vec<Asked>,
        supervisor: IsolationSupervisor,
        vital: &Vital,
        mut stop: watch::Receiver<bool>,
    ) -> anyhow::Result<()> {
        info!(node = %self.node, folder = %self.folder.display(), "agent started");
        let kinds = list::all(&self.cards, asked);
        let checkpoint = KubeletCheckpoint::place(&self.folder);
        let (events, post) = node_events(self.client.clone(), self.node.clone());
        let lifecycles =
            LifecycleManager::new(events.clone(), self.pods.clone(), checkpoint, kinds);
        let lifecycles = Arc::new(lifecycles);
        let reconciler = ContainerReconciler {
            lifecycles: Arc::clone(&lifecycles),
            pods: self.pods.clone(),
            node: self.node.clone(),
            metrics: self.injector.metrics.clone(),
            events,
            isolation: self.injector.isolation.clone(),
            unit: self.settings.unit,
            lost: self.lost.clone(),
            measured: self.measured.clone(),
        };
        let registrar = Registrar {
            client: self.client.clone(),
            pods: self.pods.clone(),
            created: self.runtime.as_ref().map(|side| side.created.clone()),
            facts: NodeFacts {
                unit: self.settings.unit,
                ..NodeFacts::plain(self.node.clone(), Arc::default())
            },
            given: Arc::clone(&self.given),
            isolation: self.injector.isolation.clone(),
            checkpoint: KubeletCheckpoint::place(&self.folder),
            doubt: Arc::clone(&self.doubt),
        };
        let leave = Leave {
            client: self.client.clone(),
            node: self.node.clone(),
            pods: self.pods.clone(),
            checkpoint: KubeletCheckpoint::place(&self.folder),
        };
        let left = async {
            let _told = stop.wait_for(|stop| *stop).await;
            leave.take().await;
        };
        let runtime = self.serve_runtime(&lifecycles);
        let registered = self.registered.clone();
        let mut plugins = Plugins::new(lifecycles, self.folder.clone(), registered, vital.clone());
        let outcome = tokio::select! {
            ended = reconciler.keep() => ended,
            never = post.keep() => match never {},
            ended = supervisor.keep() => ended.map(|never| match never {}),
            ended = runtime => ended.map(|never| match never {}),
            never = registrar.keep() => match never {},
            ended = self.keep() => ended,
            never = plugins.keep() => match never {},
            () = left => Ok(()),
        };
        plugins.close().await;
        let isolation = self.injector.isolation.borrow().on().cloned();
        if let Some(isolation) = isolation {
            // A task can only fail by a panic, which the thread has printed.
            let _ended = spawn_blocking(move || isolation.stop()).await;
        }
        info!(node = %self.node, "agent stopped");
        outcome
    }

    /// Serves the runtime, if it is asked, for ever; else does nothing for ever. It fails if no
    /// thread can be started.
    fn serve_runtime(
        &self,
        lifecycles: &Arc<LifecycleManager>,
    ) -> impl Future<Output = anyhow::Result<Infallible>> + use<> {
        let serving = self.runtime.as_ref().map(|side| {
            let plugin = RuntimePlugin {
                pods: Arc::clone(&side.pods),
                site: self.site.subscribe(),
                injector: self.injector.clone(),
                lifecycles: Arc::clone(lifecycles),
                created: side.created.clone(),
                news: Arc::clone(&self.doubt),
            };
            let (client, node) = (self.client.clone(), self.node.clone());
            runtime::serve(plugin, side.socket.clone(), client, node)
        });
        async move {
            match serving {
                Some(serving) => serving.await,
                None => std::future::pending().await,
            }
        }
    }

    /// Looks again and again; ends only with an error.
    async fn keep(&mut self) -> anyhow::Result<()> {
        let mut hurry_until = Instant::now();
        let mut failures = 0;
        let mut lost = self.lost.subscribe();
        let mut ailing = self.cards.ailing();
        loop {
            let inventory = self.inventory.borrow_and_update().clone();
            let inventory = self.device.seen_by_koordlet(&inventory);
            let inventory = self.cards.with_ailing(&inventory);
            let outcome = self.look(&inventory).await;
            failures = match &outcome {
                Ok(()) => 0,
                Err(_) => failures + 1,
            };
            if let Err(error) = &outcome {
                self.complain(&format!("{error:#}"));
            }
            let pause = match failures {
                0 if Instant::now() < hurry_until => HURRY_EVERY,
                0 => LOOK_EVERY,
                _ => PAUSES.scattered(failures, now_ns()),
            };
            let pause = self.back.sooner(pause);
            tokio::select! {
                changed = self.inventory.changed() => {
                    changed.context("the thread that watches the devices has ended")?;
                }
                Some(resource) = self.registrations.recv() => {
                    self.back.registered(resource.clone(), Instant::now());
                    let of_resource = ResourceLabel { resource };
                    self.injector.metrics.registrations.get_or_create(&of_resource).inc();
                    hurry_until = Instant::now() + HURRY_TIME;
                }
                // Never an error: we hold a sender ourselves.
                _ = lost.changed() => {}
                _ = ailing.changed() => {}
                // Never an error: the supervisor outlives this.
                _ = self.injector.isolation.changed() => {}
                () = sleep(pause) => {}
            }
        }
    }

    /// One look at everything. Kubelet is offered devices only once the cluster knows of
    /// them: with devices alone the node would be taken for one without an agent.
    async fn look(&mut self, inventory: &Arc<Inventory>) -> anyhow::Result<()> {
        self.refresh(inventory)?;
        if let Some(cdi) = &self.injector.cdi {
            cdi.keep(inventory);
        }
        // Kubelet hears of a sick card even while the API server is away.
        self.feed();
        let node = in_time(read_node(&self.client, &self.node)).await;
        let node = node.context("node not read")?.with_context(|| {
            let name = &self.node;
            format!("no node is named {name} yet; --node-name must be as `kubectl get nodes` says")
        })?;
        let labels = Labels::of(&node);
        if labels != self.labels {
            labels.warn_of_garbage();
            self.labels = labels;
        }
        self.look_for_hami(&node);
        let lost = self.lost.borrow().clone();
        let offer = self.refresh(inventory)?;
        let mut missing = missing(&node, offer, &lost);
        let resources = offer.lists.keys().copied().collect::<Vec<_>>();
        let hamis = register::news(&node, offer.hami_register.as_deref(), Timestamp::now());
        if !hamis.is_empty() {
            missing.annotations.extend(hamis);
            missing.only_for = Some(node.metadata.resource_version.clone());
        }
        let back = self.back.news(&node, resources.into_iter(), Instant::now());
        missing.annotations.extend(back);
        let limits_parts = !inventory.gpus().is_empty() && !self.labels.no_isolation;
        let states = &mut self.injector.isolation;
        let isolation = states.borrow_and_update().news(&node, limits_parts);
        missing.annotations.extend(isolation);
        let since_written = self.measured_written.elapsed();
        let news = measured::news(&node, self.measured.borrow().as_ref(), since_written);
        let is_news = news.is_some();
        missing.annotations.extend(news);
        publish(&self.client, &self.node, &missing).await?;
        if is_news {
            self.measured_written = Instant::now();
        }
        if self.settings.koordinator_device {
            self.device.keep(&self.client, &node, inventory).await;
        }
        self.settle();
        if !self.complaint.is_empty() {
            info!(node = %self.node, "working again");
            self.complaint.clear();
        }
        Ok(())
    }

    /// Says it once when HAMi's device plugin comes to the node, or has left its register there.
    fn look_for_hami(&mut self, node: &Node) {
        let is_hamis = register::is_hamis(node);
        if is_hamis && !self.is_hamis {
            warn!(
                node = %self.node,
                annotation = keys::HAMI_REGISTER,
                "HAMi's device plugin reports this node, so Sublet binds nothing here; if that plugin \
                 is gone, remove the annotation"
            );
        }
        self.is_hamis = is_hamis;
    }

    /// The offer for these devices and the settings as they are now.
    fn refresh(&mut self, inventory: &Arc<Inventory>) -> Result<&Offer, OfferError> {
        let mut settings = self.settings;
        if settings.identity == Identity::Checkpoint
            && KubeletCheckpoint::read(&KubeletCheckpoint::place(&self.folder)).is_none()
        {
            settings.identity = Identity::SizeAndOrder;
        }
        if let Some(word) = self.labels.sharing() {
            settings.sharing = word.into();
        }
        let is_same = |offered: &Offered| {
            offered.settings == settings && Arc::ptr_eq(&offered.inventory, inventory)
        };
        let offered = match self.offered.take_if(|offered| is_same(offered)) {
            Some(same) => same,
            None => {
                let gpus = inventory.gpus().iter();
                let sick = gpus.filter(|gpu| !gpu.health.is_healthy()).count();
                let unhealthy = &self.injector.metrics.unhealthy;
                unhealthy.set(i64::try_from(sick).unwrap_or(i64::MAX));
                Offered {
                    offer: Offer::of(inventory, settings)?,
                    inventory: Arc::clone(inventory),
                    settings,
                }
            }
        };
        Ok(&self.offered.insert(offered).offer)
    }

    /// Gives the offer to the parts that hand out cards, and the health of known cards to kubelet.
    fn feed(&self) {
        if let Some(offered) = &self.offered {
            let site = Arc::new(self.site_of(offered));
            send_if_new(&self.site, &site);
            self.cards.refresh(&offered.offer.lists);
        }
    }

    /// Has kubelet offered all of the offer, and no more.
    fn settle(&self) {
        self.feed();
        if let Some(offered) = &self.offered {
            self.cards.offer(&offered.offer.lists);
        }
    }

    fn site_of(&self, offered: &Offered) -> Site {
        let Offered {
            inventory,
            settings,
            offer,
        } = offered;
        Site {
            facts: offer.facts(&self.node, inventory, *settings),
            no_isolation: self.labels.no_isolation,
        }
    }

    fn complain(&mut self, why: &str) {
        if self.complaint == why {
            debug!(node = %self.node, why, "still not working");
        } else {
            warn!(node = %self.node, why, "not working, will try again");
            why.clone_into(&mut self.complaint);
        }
    }
}
