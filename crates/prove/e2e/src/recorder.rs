//! A recorded watch. Every version of every pod and node is checked as soon as it arrives: no card
//! may be granted beyond its capacity, and no bound pod may move.
//!
//! The watch is a reflector's: after a cut connection it lists everything again. Otherwise the API
//! server sends every revision.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use anyhow::{Context, Result, bail};
use futures::StreamExt;
use sublet_api::dialect::claim_of;
use sublet_api::object::{Node, Pod};
use sublet_api::{NodeDefaults, bound_entry, facts_of, is_over};
use sublet_client::{Change, Nodes, Pods, connect, watch};
use sublet_model::{MiB, NodeFacts, Unit, charges_of};

/// The results of a recording.
#[derive(Debug, Default, Clone)]
pub struct Seen {
    /// Versions of pods.
    pub revisions: usize,
    /// Pods that were bound at some time.
    pub bound: BTreeSet<String>,
    /// Pods that failed.
    pub failed: BTreeSet<String>,
    /// Events of pods, in their order, by namespace and name; each once for each pod.
    pub log: Vec<(String, Happened)>,
    /// Number of times a new list was necessary.
    pub lists: usize,
    /// Violations of these rules, one line for each case.
    pub broken: Vec<String>,
}

/// An event of a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Happened {
    /// It got a node.
    Bound,
    /// It was asked to go while it had one.
    Goes,
    /// It ended.
    Over,
}

#[derive(Default)]
struct Cluster {
    nodes: BTreeMap<String, NodeFacts>,
    pods: BTreeMap<String, Pod>,
    /// Node and allocation of each pod when it was first seen bound: they must never change.
    first: BTreeMap<String, (String, String)>,
    seen: Seen,
    /// Entries of the log, by UID.
    logged: BTreeSet<(String, Happened)>,
    listing: bool,
}

/// Records until it is stopped.
pub struct Recorder {
    stop: Arc<AtomicBool>,
    cluster: Arc<Mutex<Cluster>>,
    thread: JoinHandle<Result<()>>,
}

impl Recorder {
    /// Starts to record, as this kubeconfig's user.
    ///
    /// # Errors
    /// No thread can be started.
    pub fn start(kubeconfig: &Path) -> Result<Recorder> {
        let _installed = rustls::crypto::ring::default_provider().install_default();
        let stop = Arc::new(AtomicBool::new(false));
        let cluster = Arc::new(Mutex::new(Cluster::default()));
        let (path, flag, shared) = (kubeconfig.to_owned(), stop.clone(), cluster.clone());
        let thread = std::thread::Builder::new()
            .name("recorder".to_owned())
            .spawn(move || {
                let executor = tokio::runtime::Builder::new_current_thread()
                    .enable_all()
                    .build()?;
                executor.block_on(record(&path, &flag, &shared))
            })?;
        Ok(Recorder {
            stop,
            cluster,
            thread,
        })
    }

    /// The results so far.
    ///
    /// # Panics
    /// The recording thread panicked.
    #[must_use]
    pub fn so_far(&self) -> Seen {
        self.cluster
            .lock()
            .expect("the recorder did not panic")
            .seen
            .clone()
    }

    /// Ends the recording and returns its results.
    ///
    /// # Errors
    /// The watch could not be followed.
    pub fn stop(self) -> Result<Seen> {
        self.stop.store(true, Ordering::Release);
        match self.thread.join() {
            Ok(outcome) => outcome?,
            Err(_) => bail!("the recorder panicked"),
        }
        let cluster = self.cluster.lock().ok().context("the recorder panicked")?;
        Ok(cluster.seen.clone())
    }
}

async fn record(kubeconfig: &Path, stop: &AtomicBool, cluster: &Mutex<Cluster>) -> Result<()> {
    let client = connect(Some(kubeconfig)).await?;
    let mut nodes = pin!(watch::<Nodes>(&client, None));
    let mut pods = pin!(watch::<Pods>(&client, None));
    let mut tick = tokio::time::interval(std::time::Duration::from_millis(100));
    while !stop.load(Ordering::Acquire) {
        tokio::select! {
            Some(Ok(change)) = nodes.next() => cluster.lock().unwrap().nodes(change),
            Some(Ok(change)) = pods.next() => cluster.lock().unwrap().pods(change),
            _ = tick.tick() => {}
        }
    }
    Ok(())
}

impl Cluster {
    fn nodes(&mut self, change: Change<Node>) {
        match change {
            Change::ListBegins => self.nodes.clear(),
            Change::ListEnds => {}
            Change::Set(node) => self.set_node(&node),
            Change::Gone(node) => {
                self.nodes.remove(&node.metadata.name);
            }
        }
    }

    fn set_node(&mut self, node: &Node) {
        if let Ok(Some(facts)) = facts_of(node, NodeDefaults::default()) {
            self.nodes.insert(node.metadata.name.clone(), facts);
        }
    }

    fn pods(&mut self, change: Change<Pod>) {
        match change {
            // A pod that the new list lacks is gone. Cards are checked when the list is complete.
            Change::ListBegins => {
                self.seen.lists += 1;
                self.listing = true;
                self.pods.clear();
            }
            Change::ListEnds => {
                self.listing = false;
                let nodes: Vec<String> = self.nodes.keys().cloned().collect();
                nodes.iter().for_each(|node| self.check_node(node));
            }
            Change::Set(pod) => {
                let (uid, node) = (pod.metadata.uid.clone(), pod.spec.node_name.clone());
                self.seen.revisions += 1;
                self.check_same(&pod);
                if pod.status.phase == "Failed" {
                    self.seen.failed.insert(pod.metadata.name.clone());
                }
                self.log(&pod);
                self.pods.insert(uid, pod);
                if !self.listing {
                    self.check_node(&node);
                }
            }
            Change::Gone(pod) => {
                self.pods.remove(&pod.metadata.uid);
            }
        }
    }

    fn log(&mut self, pod: &Pod) {
        let meta = &pod.metadata;
        let is_bound = !pod.spec.node_name.is_empty();
        let happened = [
            (is_bound, Happened::Bound),
            (
                is_bound && meta.deletion_timestamp.is_some(),
                Happened::Goes,
            ),
            (is_over(pod), Happened::Over),
        ];
        for (_, what) in happened.into_iter().filter(|(is_so, _)| *is_so) {
            if self.logged.insert((meta.uid.clone(), what)) {
                let name = format!("{}/{}", meta.namespace, meta.name);
                self.seen.log.push((name, what));
            }
        }
    }

    /// A bound pod must stay on its node, with the same allocation.
    fn check_same(&mut self, pod: &Pod) {
        if pod.spec.node_name.is_empty() {
            return;
        }
        self.seen.bound.insert(pod.metadata.name.clone());
        let allocation = pod.metadata.annotations.get("sublet.dev/allocation");
        let now = (
            pod.spec.node_name.clone(),
            allocation.cloned().unwrap_or_default(),
        );
        let first = self
            .first
            .entry(pod.metadata.uid.clone())
            .or_insert_with(|| now.clone());
        if *first != now {
            let name = &pod.metadata.name;
            self.seen
                .broken
                .push(format!("{name} moved from {first:?} to {now:?}"));
        }
    }

    /// On every card of a node, the sum of the grants must not exceed the capacity.
    fn check_node(&mut self, node: &str) {
        let Some(facts) = self.nodes.get(node) else {
            return;
        };
        let mut used: BTreeMap<usize, (MiB, Vec<&str>)> = BTreeMap::new();
        for pod in self
            .pods
            .values()
            .filter(|pod| pod.spec.node_name == node && !is_over(pod))
        {
            let Ok(Some(claim)) = claim_of(pod, Unit::MiB) else {
                continue;
            };
            let Ok((entry, None)) = bound_entry(pod, Arc::new(claim)) else {
                continue;
            };
            for charge in entry
                .allocation
                .iter()
                .flat_map(|a| charges_of(&entry.claim, a))
            {
                if let Some(position) = facts.inventory.position(&charge.card) {
                    let card = used.entry(position).or_default();
                    card.0 = card.0.plus(charge.part.memory);
                    card.1.push(&pod.metadata.name);
                }
            }
        }
        for (position, (memory, pods)) in used {
            let gpu = &facts.inventory.gpus()[position];
            if memory > gpu.memory {
                let broken = format!(
                    "{node} GPU {}: {memory} of {} by {pods:?}",
                    gpu.index, gpu.memory
                );
                self.seen.broken.push(broken);
            }
        }
    }
}
