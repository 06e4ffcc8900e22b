//! Runs a plugin for each resource that a kind of device offers, and no other. The kinds decide
//! which devices are offered, and which container gets them.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::path::PathBuf;
use std::sync::Arc;

use futures::future::select_all;
use sublet_kubelet::deviceplugin::DeviceList;
use sublet_tasks::{Vital, VitalTask};
use tokio::sync::{mpsc, watch};
use tracing::{info, warn};

use crate::kind::{DeviceKind, KindAllocator, Pool, Pools};
use crate::lifecycle_manager::LifecycleManager;
use crate::plugin::{Plugin, PluginSpec};
use crate::watched::send_if_new;

/// The plugins of all kinds.
pub(super) struct Plugins {
    kinds: Vec<(Arc<dyn DeviceKind>, watch::Receiver<Pools>)>,
    lifecycles: Arc<LifecycleManager>,
    running: BTreeMap<String, Running>,
    folder: PathBuf,
    registered: mpsc::UnboundedSender<String>,
    vital: Vital,
}

/// A plugin that runs.
struct Running {
    devices: watch::Sender<DeviceList>,
    stop: watch::Sender<bool>,
    task: VitalTask<()>,
}

impl Plugins {
    /// `folder`: kubelet's for sockets. `registered` is told of every registration. `vital` starts the
    /// plugins: without one, nobody would hand its resource out.
    pub(super) fn new(
        lifecycles: Arc<LifecycleManager>,
        folder: PathBuf,
        registered: mpsc::UnboundedSender<String>,
        vital: Vital,
    ) -> Plugins {
        let kinds = lifecycles.kinds().iter();
        let kinds = kinds.map(|kind| (Arc::clone(kind), kind.offered()));
        Plugins {
            kinds: kinds.collect(),
            lifecycles,
            running: BTreeMap::new(),
            folder,
            registered,
            vital,
        }
    }

    /// Has the kinds find their devices, and kubelet hear of them.
    pub(super) async fn keep(&mut self) -> Infallible {
        let kinds = self.kinds.iter().map(|(kind, _)| Arc::clone(kind));
        let kinds: Vec<_> = kinds.collect();
        // There always are kinds: each node has those of cards.
        let discoveries = select_all(kinds.iter().map(|kind| kind.discover()));
        tokio::select! {
            never = self.serve() => never,
            (never, ..) = discoveries => never,
        }
    }

    async fn serve(&mut self) -> Infallible {
        loop {
            self.settle().await;
            let changes = self.kinds.iter_mut().map(|(_, offered)| {
                Box::pin(async {
                    if offered.changed().await.is_err() {
                        // Nothing changes there any more.
                        std::future::pending::<()>().await;
                    }
                })
            });
            select_all(changes).await;
        }
    }

    /// Has a plugin run for each resource offered, with the devices as they are.
    async fn settle(&mut self) {
        let mut gone: Vec<String> = self.running.keys().cloned().collect();
        for (kind, offered) in &mut self.kinds {
            for (resource, pool) in &*offered.borrow_and_update() {
                gone.retain(|name| name != resource);
                match self.running.get(resource) {
                    Some(running) => {
                        send_if_new(&running.devices, &pool.devices);
                    }
                    None => {
                        let allocator = KindAllocator {
                            kind: Arc::clone(kind),
                            resource: resource.clone(),
                            lifecycles: Arc::clone(&self.lifecycles),
                        };
                        let place = (self.folder.clone(), &self.vital);
                        let running =
                            Running::start(allocator, pool, self.registered.clone(), place);
                        self.running.insert(resource.clone(), running);
                    }
                }
            }
        }
        for resource in gone {
            if let Some(running) = self.running.remove(&resource) {
                info!(resource, "withdrawn");
                running.close().await;
            }
        }
    }

    /// Ends all plugins, and waits until their sockets are gone.
    pub(super) async fn close(self) {
        for running in self.running.into_values() {
            running.close().await;
        }
    }
}

impl Running {
    fn start(
        allocator: KindAllocator,
        pool: &Pool,
        registered: mpsc::UnboundedSender<String>,
        (folder, vital): (PathBuf, &Vital),
    ) -> Running {
        let (devices, offered) = watch::channel(pool.devices.clone());
        let (stop, stopped) = watch::channel(false);
        let plugin = Plugin {
            spec: PluginSpec {
                resource: allocator.resource.clone(),
                socket_name: pool.socket.clone(),
                prefers: pool.prefers,
            },
            devices: offered,
            allocator: Arc::new(allocator),
            registered,
        };
        Running {
            devices,
            stop,
            task: vital.start_for_now("a device plugin", plugin.run(folder, stopped)),
        }
    }

    /// Ends the plugin and waits until its socket is gone.
    async fn close(self) {
        self.task.may_end();
        self.stop.send_replace(true);
        if let Err(error) = self.task.ended().await {
            warn!(%error, "a plugin did not end well");
        }
    }
}
