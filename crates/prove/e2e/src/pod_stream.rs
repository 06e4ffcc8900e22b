//! Pods that come at a steady pace and go once they are bound, in a namespace of their own.
//!
//! At any moment one of them waits or is about to, so the time until the next Binding says what the
//! product does and not when a test made its next pod.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use futures::future::try_join_all;
use k8s_openapi::api::core::v1::{Namespace, Pod};
use kube::api::{DeleteParams, ListParams, PostParams};
use kube::{Api, Client};
use serde_json::{Value, json};
use sublet_client::connect;

/// Namespace of the pods.
const STREAM: &str = "stream";

/// Interval at which bound pods are deleted.
const SWEEP: Duration = Duration::from_secs(1);
/// Longest time that the last pods may wait for a node.
const LAST_LIMIT: Duration = Duration::from_secs(60);

/// Makes pods until it is stopped.
pub struct PodStream {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Result<usize>>,
}

impl PodStream {
    /// Starts to make a pod of that specification so often, as this kubeconfig's user.
    ///
    /// # Errors
    /// No thread can be started.
    pub fn start(kubeconfig: &Path, every: Duration, spec: Value) -> Result<PodStream> {
        let _installed = rustls::crypto::ring::default_provider().install_default();
        let stop = Arc::new(AtomicBool::new(false));
        let (path, flag) = (kubeconfig.to_owned(), stop.clone());
        let thread = std::thread::Builder::new()
            .name("pods".to_owned())
            .spawn(move || {
                let executor = tokio::runtime::Builder::new_current_thread()
                    .enable_all()
                    .build()?;
                executor.block_on(async {
                    let client = connect(Some(&path)).await?;
                    make(client, every, &spec, &flag).await
                })
            })?;
        Ok(PodStream { stop, thread })
    }

    /// Ends it when each of its pods has been bound; returns how many there were. All are gone then,
    /// and their namespace soon.
    ///
    /// # Errors
    /// A pod was not bound, or is not as it was made.
    pub fn stop(self) -> Result<usize> {
        self.stop.store(true, Ordering::Release);
        match self.thread.join() {
            Ok(made) => made,
            Err(_) => bail!("the stream panicked"),
        }
    }
}

async fn make(client: Client, every: Duration, spec: &Value, stop: &AtomicBool) -> Result<usize> {
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let namespace = serde_json::from_value(json!({"metadata": {"name": STREAM}}))?;
    namespaces
        .create(&PostParams::default(), &namespace)
        .await?;
    let pods: Api<Pod> = Api::namespaced(client, STREAM);
    let (mut made, mut swept) = (0, Instant::now());
    let mut tick = tokio::time::interval(every);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    while !stop.load(Ordering::Acquire) {
        tick.tick().await;
        let pod = json!({"metadata": {"name": format!("s{made}")}, "spec": spec});
        // A new namespace has no account for pods yet, and an API server may be away.
        if pods
            .create(&PostParams::default(), &serde_json::from_value(pod)?)
            .await
            .is_ok()
        {
            made += 1;
        }
        if swept.elapsed() > SWEEP {
            sweep(&pods).await?;
            swept = Instant::now();
        }
    }
    let stopped = Instant::now();
    loop {
        let waiting = sweep(&pods).await?;
        if waiting.is_empty() {
            namespaces.delete(STREAM, &DeleteParams::default()).await?;
            return Ok(made);
        }
        ensure!(
            stopped.elapsed() < LAST_LIMIT,
            "of {made} pods these were not bound: {waiting:?}"
        );
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Deletes pods that are bound and have begun to run; returns the names of the others.
async fn sweep(pods: &Api<Pod>) -> Result<Vec<String>> {
    let all = pods.list(&ListParams::default()).await?.items;
    let phase = |pod: &Pod| pod.status.as_ref().and_then(|status| status.phase.clone());
    let (over, waiting): (Vec<Pod>, Vec<Pod>) = all
        .into_iter()
        .partition(|pod| phase(pod).is_some_and(|phase| phase != "Pending"));
    let name = |pod: &Pod| pod.metadata.name.clone().unwrap_or_default();
    let now = DeleteParams::default().grace_period(0);
    let delete = |pod: &Pod| {
        let (name, now) = (name(pod), now.clone());
        async move { pods.delete(&name, &now).await }
    };
    try_join_all(over.iter().map(delete)).await?;
    Ok(waiting.iter().map(name).collect())
}
