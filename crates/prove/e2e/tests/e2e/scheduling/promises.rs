//! The real schedulers do what `sublet plan` promises: random clusters and pods, one at a time, and
//! all at once (`together`).
//!
//! A few pods are planned on what the API server says at that moment. Then they are made, the
//! next when the stock scheduler and the extender have decided about the last, and both answers
//! are compared: whether it is placed, on which node, and on which cards. If the cluster goes
//! a way that the plan left open, the rest is planned anew. A pod that is refused is deleted,
//! but a finalizer keeps it: nobody takes it up again, and the extender still knows that it came.

mod together;

use std::collections::VecDeque;
use std::pin::Pin;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use fastrand::Rng;
use futures::future::try_join_all;
use futures::{Stream, StreamExt};
use serde_json::{Value, json};
use sublet_api::keys;
use sublet_api::object::Pod;
use sublet_client::{Change, Client, Pods, connect, watch};
use sublet_e2e::{World, eventually};
use sublet_testbed::deployed;

use super::draw;

/// The policies, and how many pods each is asked about.
const ROUNDS: [(&str, usize); 5] = [
    ("tiling", 130),
    ("binpack", 130),
    ("spread", 80),
    ("fgd-online=0.6,best-fit=0.4", 80),
    ("tiling", 80),
];

/// So many pods are planned at once.
const AHEAD: usize = 8;

/// Nothing becomes of a pod for so long: something is wrong.
const STALL: Duration = Duration::from_secs(60);

const PODS: &str = "/api/v1/namespaces/default/pods";
const NODES: &str = "/api/v1/nodes";

/// The nodes of a round.
const NODES_FILE: &str = "nodes";

/// Keeps a deleted pod.
const FINALIZER: &str = "example.internal/stays";

/// Fate of a pod in the cluster.
#[derive(Debug, PartialEq, Eq)]
enum Fate {
    /// The node, and each grant's container and card.
    Bound(String, Vec<(String, u64)>),
    Refused(String),
}

/// Number of cases in which both agreed.
#[derive(Debug, Default)]
struct Count {
    placed: usize,
    /// Cases among these in which the plan named one node and no other.
    decided: usize,
    /// All other nodes that were named.
    alternatives: usize,
    refused: usize,
    conditional: usize,
    /// Both answers in the cases in which they did not agree.
    broken: Vec<String>,
}

#[test]
fn what_plan_promises_the_real_schedulers_do() -> Result<()> {
    let Some(world) = World::start_keeping_deleted()? else {
        return Ok(());
    };
    let _installed = rustls::crypto::ring::default_provider().install_default();
    let seed = match std::env::var("SUBLET_SEED") {
        Ok(text) => text.parse().context("SUBLET_SEED is no number")?,
        Err(_) => fastrand::u64(..),
    };
    println!("seed {seed}: SUBLET_SEED={seed} plays it again");
    let begun = Instant::now();
    let executor = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let mut all = Count::default();
    for (round, (policy, pods)) in (0..).zip(ROUNDS) {
        let mut cluster = cluster_of(&world, &executor, seed.wrapping_add(round), policy)?;
        let count = executor.block_on(cluster.play(round, pods))?;
        println!("{policy}: {count:?} after {:.0?}", begun.elapsed());
        all.add(count);
    }
    let mut together = Count::default();
    for (round, policy) in (ROUNDS.len() as u64..).zip(together::BURSTS) {
        let mut cluster = cluster_of(&world, &executor, seed.wrapping_add(round), policy)?;
        let count = executor.block_on(cluster.play_together(round))?;
        println!(
            "{policy}, together: {count:?} after {:.0?}",
            begun.elapsed()
        );
        together.add(count);
    }
    all.broken.append(&mut together.broken);
    let broken = all.broken.join("\n\n");
    ensure!(broken.is_empty(), "seed {seed}: broken promises\n{broken}");
    // Else chance has drawn nothing worth a comparison.
    assert!(all.placed > 150 && all.refused > 80, "seed {seed}: {all:?}");
    // What the scheduler draws is said to be drawn, and is not much.
    assert!(all.decided * 20 > all.placed * 17, "seed {seed}: {all:?}");
    assert!(all.alternatives * 3 < all.placed, "seed {seed}: {all:?}");
    assert!(all.conditional < 100, "seed {seed}: {all:?}");
    let enough = together.placed > 15 && together.refused > 5;
    assert!(enough, "seed {seed}, together: {together:?}");
    Ok(())
}

fn cluster_of<'a>(
    world: &'a World,
    executor: &tokio::runtime::Runtime,
    seed: u64,
    policy: &'static str,
) -> Result<Cluster<'a>> {
    let kubeconfig = world.cluster.kubeconfig("admin")?;
    Ok(Cluster {
        world,
        client: executor.block_on(connect(Some(&kubeconfig)))?,
        chance: Rng::with_seed(seed),
        nodes: Vec::new(),
        policy,
        folder: tempfile::tempdir()?,
    })
}

impl Count {
    fn add(&mut self, other: Count) {
        self.placed += other.placed;
        self.decided += other.decided;
        self.alternatives += other.alternatives;
        self.refused += other.refused;
        self.conditional += other.conditional;
        self.broken.extend(other.broken);
    }
}

/// One drawn cluster.
struct Cluster<'a> {
    world: &'a World,
    client: Client,
    chance: Rng,
    nodes: Vec<String>,
    policy: &'static str,
    /// Files of the plan.
    folder: tempfile::TempDir,
}

type Changes<S> = Pin<Box<S>>;

impl Cluster<'_> {
    /// Draws nodes, lets pods come one by one, and clears up.
    async fn play(&mut self, round: u64, pods: usize) -> Result<Count> {
        if round == 0 {
            let path = "/apis/node.k8s.io/v1/runtimeclasses";
            self.send("POST", path, &draw::runtime_class()).await?;
        }
        let n_nodes = self.chance.usize(6..=18);
        self.make_nodes(round, n_nodes).await?;
        self.start_extender()?;
        let mut changes = Box::pin(watch::<Pods>(&self.client, Some("default")));
        while !matches!(next(&mut changes).await?, Change::ListEnds) {}
        let mut count = Count::default();
        let pods = self.draw_pods(round, pods);
        let mut plans = VecDeque::new();
        for (number, pod) in pods.iter().enumerate() {
            if plans.is_empty() {
                let next = &pods[number..pods.len().min(number + AHEAD)];
                plans = self.plan(next, &[]).await?.into();
            }
            let planned = plans.pop_front().context("one plan for each pod")?;
            let mut kept = pod.clone();
            kept["metadata"]["finalizers"] = json!([FINALIZER]);
            self.send("POST", PODS, &kept).await?;
            let fate = self.fate(&mut changes, &pod["metadata"]["name"]).await?;
            match held(&planned, &fate, &mut count) {
                Ok(true) => {}
                Ok(false) => plans.clear(),
                Err(why) => {
                    plans.clear();
                    let policy = self.policy;
                    count.broken.push(format!(
                        "{policy}: {why:#}\npod: {pod}\nplan: {planned}\ncluster: {fate:?}"
                    ));
                }
            }
        }
        drop(changes);
        self.clear_up().await?;
        Ok(count)
    }

    async fn make_nodes(&mut self, round: u64, count: usize) -> Result<()> {
        for number in 0..count {
            let name = format!("r{round}-{number:02}");
            let node = draw::node(&mut self.chance, &name);
            self.send("POST", NODES, &node).await?;
            self.nodes.push(name);
        }
        self.until_ready()?;
        let nodes = self.send("GET", NODES, &Value::Null).await?;
        std::fs::write(self.folder.path().join(NODES_FILE), nodes)?;
        Ok(())
    }

    fn draw_pods(&mut self, round: u64, count: usize) -> Vec<Value> {
        let mut pods: Vec<Value> = Vec::with_capacity(count);
        for number in 0..count {
            let name = format!("r{round}-p{number:04}");
            let mut pod = draw::pod(&mut self.chance, &name, &self.nodes);
            // Replicas come one after the other.
            if let Some(last) = pods.last()
                && self.chance.u32(..6) == 0
            {
                pod["spec"] = last["spec"].clone();
                pod["metadata"]["labels"] = last["metadata"]["labels"].clone();
            }
            pods.push(pod);
        }
        pods
    }

    /// The answer of `sublet plan` for these pods, on the API server's state now. Nodes stay as
    /// they are for the round.
    async fn plan(&self, pods: &[Value], more: &[&str]) -> Result<Vec<Value>> {
        let file = |name: &str| self.folder.path().join(name).display().to_string();
        let files = [NODES_FILE, "there", "coming"].map(file);
        std::fs::write(&files[1], self.send("GET", PODS, &Value::Null).await?)?;
        let list = json!({ "apiVersion": "v1", "kind": "List", "items": pods });
        std::fs::write(&files[2], list.to_string())?;
        let files = files.iter().flat_map(|file| ["-f", file]);
        let options = ["-o", "json", "--policy", self.policy];
        let options = options.iter().chain(more).copied();
        let arguments: Vec<&str> = ["plan"].into_iter().chain(files).chain(options).collect();
        let (code, text, notes) = self.world.sublet(&arguments)?;
        ensure!(notes.is_empty(), "odd objects: {notes}");
        let plan: Value = serde_json::from_str(&text).context("no plan")?;
        let plans = plan["pods"].as_array().context("no pods")?;
        let name = |pod: &Value| pod["name"].as_str().map(str::to_owned);
        let mut names: Vec<_> = plans.iter().map(name).collect();
        let mut expected: Vec<_> = pods.iter().map(|pod| name(&pod["metadata"])).collect();
        if !more.is_empty() {
            // Those that come together are taken by priority.
            names.sort();
            expected.sort();
        }
        ensure!(names == expected, "other pods wait: {plan}");
        let placed = plans.iter().all(|pod| pod["verdict"] == "placed");
        ensure!((code == 0) == placed, "exit code {code}: {plan}");
        Ok(plans.clone())
    }

    /// Fate of a pod. One that is refused is deleted.
    async fn fate<S, E>(&self, changes: &mut Changes<S>, name: &Value) -> Result<Fate>
    where
        S: Stream<Item = Result<Change<Pod>, E>>,
        E: std::error::Error + Send + Sync + 'static,
    {
        loop {
            let change = next(changes).await.with_context(|| {
                let log = self.world.cluster.log_tail(deployed::KUBE_SCHEDULER);
                format!("pod {name}: {log}")
            })?;
            let Change::Set(pod) = change else { continue };
            if *name == *pod.metadata.name
                && let Some(fate) = self.decided(&pod).await?
            {
                return Ok(fate);
            }
        }
    }

    /// The decision about a pod, if there is one; a pod that is refused is deleted.
    async fn decided(&self, pod: &Pod) -> Result<Option<Fate>> {
        if !pod.spec.node_name.is_empty() {
            return Ok(Some(Fate::Bound(pod.spec.node_name.clone(), cards(pod)?)));
        }
        let mut conditions = pod.status.conditions.iter();
        let Some(said) = conditions.find(|c| c.kind == "PodScheduled" && c.status == "False")
        else {
            return Ok(None);
        };
        if said.reason == "SchedulingGated" {
            return Ok(None);
        }
        ensure!(
            said.reason == "Unschedulable",
            "{}: {}",
            said.reason,
            said.message
        );
        let path = format!("{PODS}/{}?gracePeriodSeconds=0", pod.metadata.name);
        self.send("DELETE", &path, &Value::Null).await?;
        Ok(Some(Fate::Refused(said.message.clone())))
    }

    /// Waits until the controllers have looked at every node.
    fn until_ready(&self) -> Result<()> {
        eventually(|| {
            let nodes = self.world.get(&["nodes"])?;
            let nodes = nodes["items"].as_array().context("no list")?;
            ensure!(nodes.len() == self.nodes.len(), "{} nodes", nodes.len());
            for node in nodes {
                let taints = node["spec"]["taints"].as_array();
                let fresh = |taint: &Value| {
                    let key = taint["key"].as_str().unwrap_or_default();
                    key.starts_with("node.kubernetes.io/not-ready")
                };
                ensure!(
                    !taints.is_some_and(|all| all.iter().any(fresh)),
                    "not ready"
                );
                let cordoned = node["spec"]["unschedulable"] == true;
                let marked = taints.is_some_and(|all| {
                    all.iter()
                        .any(|t| t["key"] == "node.kubernetes.io/unschedulable")
                });
                ensure!(cordoned == marked, "the cordon is not marked yet");
            }
            Ok(())
        })
    }

    /// Starts the extender anew, on the port that the stock scheduler knows: what it has learnt
    /// of other pods is forgotten.
    fn start_extender(&self) -> Result<()> {
        self.world.cluster.stop(deployed::EXTENDER);
        let flags = ["--policy", self.policy];
        let (cluster, sublet) = (&self.world.cluster, self.world.sublet_path());
        deployed::start_extender_on(cluster, sublet, self.world.port, &flags)
    }

    async fn clear_up(&self) -> Result<()> {
        let all = format!("{PODS}?gracePeriodSeconds=0");
        self.send("DELETE", &all, &Value::Null).await?;
        let pods: Value = serde_json::from_str(&self.send("GET", PODS, &Value::Null).await?)?;
        let patch = json!({ "metadata": { "finalizers": null } });
        let names = pods["items"].as_array().context("no list")?.iter();
        let names = names.filter_map(|pod| pod["metadata"]["name"].as_str());
        let release = async |name| self.send("PATCH", &format!("{PODS}/{name}"), &patch).await;
        try_join_all(names.map(release)).await?;
        self.send("DELETE", NODES, &Value::Null).await?;
        eventually(|| {
            let left = self
                .world
                .cluster
                .kubectl(&["get", "pods,nodes", "-o", "name"])?;
            ensure!(left.is_empty(), "still there: {left}");
            Ok(())
        })
    }

    async fn send(&self, method: &str, path: &str, body: &Value) -> Result<String> {
        let kind = match method {
            "PATCH" => "application/merge-patch+json",
            _ => "application/json",
        };
        let body = match body {
            Value::Null => Vec::new(),
            body => serde_json::to_vec(body)?,
        };
        let request = http::Request::builder()
            .method(method)
            .uri(path)
            .header("content-type", kind)
            .body(body)?;
        let answer = self.client.request_text(request).await;
        answer.with_context(|| format!("{method} {path}"))
    }
}

async fn next<S, E>(changes: &mut Changes<S>) -> Result<Change<Pod>>
where
    S: Stream<Item = Result<Change<Pod>, E>>,
    E: std::error::Error + Send + Sync + 'static,
{
    let change = tokio::time::timeout(STALL, changes.next()).await;
    let change = change.context("nothing happens")?;
    Ok(change.context("the watch ended")??)
}

/// The cards that the extender wrote on a pod.
fn cards(pod: &Pod) -> Result<Vec<(String, u64)>> {
    let Some(text) = pod.metadata.annotations.get(keys::ALLOCATION) else {
        return Ok(Vec::new());
    };
    grants(&serde_json::from_str(text)?, "index")
}

/// Containers and cards of a list, where the number of a card has that key.
fn grants(list: &Value, number: &str) -> Result<Vec<(String, u64)>> {
    let grants = list.as_array().context("no list of grants")?;
    let grant = |grant: &Value| {
        let container = grant["container"].as_str()?.to_owned();
        Some((container, grant[number].as_u64()?))
    };
    let read: Option<Vec<_>> = grants.iter().map(grant).collect();
    read.context("a grant without card")
}

/// Holds the plan to what happened. Is the cluster now as the plan went on with?
fn held(planned: &Value, fate: &Fate, count: &mut Count) -> Result<bool> {
    let verdict = planned["verdict"].as_str().unwrap_or_default();
    match (verdict, fate) {
        ("conditional", _) => {
            count.conditional += 1;
            Ok(false)
        }
        ("refused", Fate::Refused(_)) => {
            count.refused += 1;
            Ok(true)
        }
        ("placed", Fate::Bound(node, cards)) => {
            let others = planned["alternatives"]
                .as_array()
                .map_or(&[][..], Vec::as_slice);
            count.placed += 1;
            count.decided += usize::from(others.is_empty());
            count.alternatives += others.len();
            if planned["node"] == node.as_str() {
                ensure!(grants(&planned["gpus"], "gpu")? == *cards, "other cards");
                return Ok(true);
            }
            ensure!(others.iter().any(|o| o == node.as_str()), "another node");
            Ok(false)
        }
        _ => bail!("another verdict"),
    }
}
