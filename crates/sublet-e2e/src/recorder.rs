//! A recorded watch: every version of every pod and node, checked against the first law as
//! it arrives.
//!
//! The watch is a reflector's, so a cut connection is made good by a new list; the API
//! server sends every revision otherwise.

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

/// What was seen.
#[derive(Debug, Default, Clone)]
pub struct Seen {
    /// Versions of pods.
    pub revisions: usize,
    /// Pods that were bound at some time.
    pub bound: BTreeSet<String>,
    /// Times a new list was necessary.
    pub lists: usize,
    /// What broke the law.
    pub broken: Vec<String>,
}

#[derive(Default)]
struct Cluster {
    nodes: BTreeMap<String, NodeFacts>,
    pods: BTreeMap<String, Pod>,
    /// Node and allocation of each pod as first seen: they never change.
    first: BTreeMap<String, (String, String)>,
    seen: Seen,
    listing: bool,
}

/// Records until it is stopped.
pub struct Recorder {
    stop: Arc<AtomicBool>,
    cluster: Arc<Mutex<Cluster>>,
    thread: JoinHandle<Result<()>>,
}

impl Recorder {
    /// Starts to record, as that kubeconfig's user.
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
                let runtime = tokio::runtime::Builder::new_current_thread()
                    .enable_all()
                    .build()?;
                runtime.block_on(record(&path, &flag, &shared))
            })?;
        Ok(Recorder {
            stop,
            cluster,
            thread,
        })
    }

    /// What was seen so far.
    ///
    /// # Panics
    /// The recording thread panicked.
    #[must_use]
    pub fn so_far(&self) -> Seen {
        self.cluster
            .lock()
            .expect("the recorder goes on")
            .seen
            .clone()
    }

    /// Ends the recording and says what was seen.
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
            // What a list has not is gone; a card is only checked with all its pods.
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

    /// A bound pod stays where it is, with what it got.
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

    /// Σ granted ≤ capacity on every card of a node.
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
