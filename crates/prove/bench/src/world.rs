//! A cluster with many objects in it, and fast ways to create and delete them.
//!
//! Nothing is measured here.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use futures::StreamExt;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::Value;
use sublet_client::{Client, Nodes, connect, list};
use sublet_testbed::deployed::EXTENDER;
use sublet_testbed::{APISERVER, Binaries, Cluster, ClusterOptions, Progress, deployed, free_port};
use tokio::runtime::Runtime;

use crate::noop::Parse;

/// Requests in flight: enough to keep two cores busy, few enough for the API server.
const AT_ONCE: usize = 32;

/// Longest time until an extender is ready.
const READY_LIMIT: Duration = Duration::from_secs(120);

/// The name of the no-op extender's process. If there are several, each gets a number after it.
pub(crate) const NOOP: &str = "noop";

/// The API path of pods.
pub(crate) const PODS: &str = "/api/v1/namespaces/default/pods";
/// The API path of nodes.
pub(crate) const NODES: &str = "/api/v1/nodes";

/// Size of the loaded cluster of the scheduler's figures a, c, d and e.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Load {
    /// Nodes, of eight cards each.
    pub(crate) nodes: usize,
    /// Bound pods for a and c.
    pub(crate) pods: usize,
    /// Bound pods for d.
    pub(crate) most_pods: usize,
}

/// A running cluster, and the means to fill it.
pub(crate) struct World {
    pub(crate) cluster: Cluster,
    pub(crate) client: Client,
    pub(crate) executor: Runtime,
    pub(crate) progress: Progress,
    pub(crate) sublet: PathBuf,
}

impl World {
    /// Starts a control plane; with `kwok`, KWOK can play nodes.
    pub(crate) fn start(binaries: &Binaries, sublet: &Path, kwok: bool) -> Result<World> {
        let executor = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()?;
        let mut options = ClusterOptions {
            users: deployed::accounts(),
            kwok,
            ..ClusterOptions::new(binaries.clone()).keeping_deleted()
        };
        let workers = "--delete-collection-workers=16".to_owned();
        options.flags.push((APISERVER, workers));
        let cluster = Cluster::start(options)?;
        let client = executor.block_on(connect(Some(&cluster.kubeconfig("admin")?)))?;
        Ok(World {
            cluster,
            client,
            executor,
            progress: Progress::new(),
            sublet: sublet.to_owned(),
        })
    }

    /// Posts objects, many at the same time.
    pub(crate) fn create(
        &mut self,
        what: &str,
        path: &str,
        objects: impl ExactSizeIterator<Item = Result<Value>>,
    ) -> Result<()> {
        let (count, client) = (objects.len(), &self.client);
        self.progress.restart();
        let progress = &mut self.progress;
        self.executor.block_on(async {
            let mut posts = futures::stream::iter(objects)
                .map(|object| async { post(client, path, &object?).await })
                .buffer_unordered(AT_ONCE);
            let mut done = 0;
            while let Some(posted) = posts.next().await {
                posted.with_context(|| format!("create {what}"))?;
                done += 1;
                progress.tick(|| format!("creating {what}: {done} of {count}"));
            }
            anyhow::Ok(())
        })?;
        let seconds = self.progress.elapsed().as_secs_f64();
        self.progress
            .say(&format!("created {count} {what} in {seconds:.1} s"));
        Ok(())
    }

    /// Waits until every node may get pods. A new node is tainted until a controller has looked at
    /// it.
    pub(crate) fn wait_untainted(&mut self, nodes: usize) -> Result<()> {
        let deadline = Instant::now() + Duration::from_secs(600);
        self.progress.restart();
        loop {
            let listed = self.executor.block_on(list::<Nodes>(&self.client, None))?;
            let hard = |node: &&sublet_api::object::Node| !node.spec.taints.is_empty();
            let tainted = listed.iter().filter(hard).count();
            if listed.len() == nodes && tainted == 0 {
                return Ok(());
            }
            ensure!(
                Instant::now() < deadline,
                "{tainted} nodes are still tainted"
            );
            self.progress
                .tick(|| format!("waiting for the node controller: {tainted} nodes to go"));
            std::thread::sleep(Duration::from_secs(2));
        }
    }

    /// Deletes all pods and waits until they are gone.
    pub(crate) fn delete_pods(&mut self) -> Result<()> {
        let deadline = Instant::now() + Duration::from_secs(300);
        loop {
            let delete = format!("{PODS}?gracePeriodSeconds=0");
            let request = http::Request::delete(delete).body(Vec::new())?;
            self.executor.block_on(self.client.request_text(request))?;
            if self
                .executor
                .block_on(page(&self.client, PODS, 1, ""))?
                .objects
                == 0
            {
                return Ok(());
            }
            ensure!(Instant::now() < deadline, "pods do not go away");
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    /// Starts our extender as this user, and waits until it is ready; returns its port.
    pub(crate) fn start_ours(&self, user: &str) -> Result<u16> {
        self.start_ours_as(EXTENDER, user, &[])
    }

    /// The same under another process name, and with more flags.
    pub(crate) fn start_ours_as(&self, name: &str, user: &str, flags: &[&str]) -> Result<u16> {
        let port = free_port()?;
        let mut command = Command::new(&self.sublet);
        command
            .args(["scheduler", "--listen", &format!("127.0.0.1:{port}")])
            .arg("--kubeconfig")
            .arg(self.cluster.kubeconfig(user)?)
            .args(flags);
        self.cluster.spawn(name, command)?;
        self.cluster.wait_http(name, port, "/readyz", READY_LIMIT)?;
        Ok(port)
    }

    /// Starts the extender that decides nothing, under a process name; returns its port.
    pub(crate) fn start_noop(
        &self,
        name: &str,
        user: &str,
        few: usize,
        parse: Parse,
    ) -> Result<u16> {
        let port = free_port()?;
        let parse = match parse {
            Parse::Borrowed => "borrowed",
            Parse::Tree => "tree",
        };
        let mut command = Command::new(std::env::current_exe()?);
        command
            .args(["noop", "--listen", &format!("127.0.0.1:{port}")])
            .args(["--few", &few.to_string(), "--parse", parse, "--kubeconfig"])
            .arg(self.cluster.kubeconfig(user)?);
        self.cluster.spawn(name, command)?;
        self.cluster.wait_http(name, port, "/readyz", READY_LIMIT)?;
        Ok(port)
    }
}

/// Posts one object.
pub(crate) async fn post(client: &Client, path: &str, object: &Value) -> Result<()> {
    let request = http::Request::post(path)
        .header("content-type", "application/json")
        .body(serde_json::to_vec(object)?)?;
    client.request_text(request).await?;
    Ok(())
}

/// One page of a list, without its objects.
#[derive(Debug)]
pub(crate) struct Page {
    /// Number of objects on the page.
    pub(crate) objects: usize,
    /// Its size as JSON, in bytes.
    pub(crate) bytes: usize,
    /// The token that asks for the next page; empty on the last page.
    pub(crate) next: String,
}

/// Reads a page of a list, and drops its objects.
pub(crate) async fn page(client: &Client, path: &str, limit: usize, from: &str) -> Result<Page> {
    #[derive(Deserialize)]
    struct List {
        metadata: Meta,
        items: Vec<IgnoredAny>,
    }
    #[derive(Deserialize)]
    struct Meta {
        #[serde(default, rename = "continue")]
        next: String,
    }
    let uri = format!("{path}?limit={limit}&continue={from}");
    let text = client
        .request_text(http::Request::get(uri).body(Vec::new())?)
        .await?;
    let list: List = serde_json::from_str(&text)?;
    Ok(Page {
        objects: list.items.len(),
        bytes: text.len(),
        next: list.metadata.next,
    })
}

/// A value of `/proc/PID/status` such as `VmRSS`, in MiB.
pub(crate) fn memory_mib(pid: u32, field: &str) -> Result<f64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    for line in status.lines() {
        if let Some((name, rest)) = line.split_once(':')
            && name == field
        {
            let kib = rest.trim().trim_end_matches("kB").trim();
            return Ok(kib.parse::<f64>()? / 1024.0);
        }
    }
    bail!("process {pid} has no {field}")
}
