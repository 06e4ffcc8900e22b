//! The pods of this node. If containers are recognised by their names, the pods come from a watch,
//! so that no container waits for the API server. Otherwise they are listed afresh at each
//! question, because a list that lags behind could give a pod the cards of another.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::ops::Deref;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use futures::StreamExt;
use sublet_api::is_over;
use sublet_api::object::Pod;
use sublet_client::{Change, Client, Pods, watch_some};
use sublet_model::NodeName;
use tokio::sync::{Notify, watch};
use tokio::time::timeout;
use tracing::debug;

use crate::allocate::named::is_pod;
use crate::api_calls::{CallError, pods_on};

/// Longest wait for the first list.
const FIRST_LIST: Duration = Duration::from_secs(5);

/// Pods of the node, and when they were asked for. A pod that got devices since may not be among
/// them. So code that compares pods with the devices that were handed over leaves that pod alone,
/// and needs no lock from the question to the comparison.
#[derive(Clone)]
pub(crate) struct PodList {
    pods: Arc<Vec<Pod>>,
    asked: Instant,
}

impl PodList {
    /// Pods that were asked for then.
    pub(crate) fn new(pods: impl Into<Arc<Vec<Pod>>>, asked: Instant) -> PodList {
        let pods = pods.into();
        PodList { pods, asked }
    }

    /// When they were asked for.
    pub(crate) fn asked(&self) -> Instant {
        self.asked
    }
}

impl Deref for PodList {
    type Target = [Pod];

    fn deref(&self) -> &[Pod] {
        &self.pods
    }
}

/// Source of the node's pods.
#[derive(Clone)]
pub(crate) enum PodSource {
    /// The API server, each time.
    Listed(Client, NodeName),
    /// The pods that a watch of the API server has brought.
    Watched(Arc<WatchedPods>),
}

impl PodSource {
    /// All pods bound to the node.
    pub(crate) async fn now(&self) -> Result<PodList, CallError> {
        match self {
            PodSource::Listed(client, node) => {
                let asked = Instant::now();
                Ok(PodList::new(pods_on(client, node).await?, asked))
            }
            PodSource::Watched(pods) => pods.all(FIRST_LIST).await.ok_or(CallError::NotYet),
        }
    }

    /// Returns when other pods may be known than now: at the next change that a watch brings, and at
    /// the latest after this time.
    pub(crate) async fn changed(&self, at_most: Duration) {
        let next = async {
            match self {
                PodSource::Listed(..) => std::future::pending().await,
                PodSource::Watched(pods) => pods.changes().changed().await,
            }
        };
        let _late = timeout(at_most, next).await;
    }

    /// Returns when a pod has left the node or is over, as far as a watch says it: not before there was
    /// one that nobody was told of. One caller at a time.
    pub(crate) async fn left(&self) {
        match self {
            PodSource::Listed(..) => std::future::pending().await,
            PodSource::Watched(pods) => pods.left.notified().await,
        }
    }

    /// Returns the pods that a watch has brought until now, without waiting.
    pub(crate) fn newest(&self) -> Option<PodList> {
        match self {
            PodSource::Listed(..) => None,
            PodSource::Watched(pods) => pods.known(|_| true),
        }
    }
}

/// The pods of the node as a watch has brought them.
#[derive(Default)]
pub(crate) struct WatchedPods {
    known: Mutex<Known>,
    /// Told of every change.
    changed: watch::Sender<()>,
    /// Told of every pod that has left or is over.
    left: Notify,
}

#[derive(Default)]
struct Known {
    pods: Arc<Vec<Pod>>,
    /// Was there a complete list?
    complete: bool,
}

impl WatchedPods {
    /// Watches for ever.
    pub(crate) async fn keep(&self, client: Client, node: NodeName) -> Infallible {
        let mut listed = None;
        loop {
            let fields = format!("spec.nodeName={node}");
            let mut changes = Box::pin(watch_some::<Pods>(&client, &fields));
            while let Some(change) = changes.next().await {
                match change {
                    Ok(change) => self.apply(change, &mut listed),
                    Err(error) => debug!(%error, "the watch of pods broke, will try again"),
                }
            }
        }
    }

    /// Takes note of a change. `listed`: the pods of a list that has begun and not ended.
    fn apply(&self, change: Change<Pod>, listed: &mut Option<BTreeSet<String>>) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let there = |pods: &[Pod]| pods.iter().filter(|pod| !is_over(pod)).count();
        let before = there(&known.pods);
        // Copied only while somebody still reads the list of before.
        let pods = Arc::make_mut(&mut known.pods);
        match change {
            Change::ListBegins => *listed = Some(BTreeSet::new()),
            Change::ListEnds => {
                if let Some(listed) = listed.take() {
                    pods.retain(|pod| listed.contains(&pod.metadata.uid));
                    known.complete = true;
                }
            }
            Change::Set(pod) => {
                if let Some(listed) = listed {
                    listed.insert(pod.metadata.uid.clone());
                }
                match pods
                    .iter_mut()
                    .find(|one| one.metadata.uid == pod.metadata.uid)
                {
                    Some(one) => *one = pod,
                    None => pods.push(pod),
                }
            }
            Change::Gone(pod) => pods.retain(|one| one.metadata.uid != pod.metadata.uid),
        }
        let has_left = there(&known.pods) < before;
        drop(known);
        self.changed.send_replace(());
        if has_left {
            self.left.notify_one();
        }
    }

    /// Told of every change from now on.
    pub(crate) fn changes(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }

    /// All of them; `None` if there is no complete list in time.
    pub(crate) async fn all(&self, patience: Duration) -> Option<PodList> {
        self.until(patience, |_| true).await
    }

    /// All of them once that one is among them; `None` if it does not come in time.
    pub(crate) async fn with(&self, uid: &str, patience: Duration) -> Option<PodList> {
        let is_there = |pods: &[Pod]| pods.iter().any(|pod| is_pod(pod, uid));
        self.until(patience, is_there).await
    }

    async fn until(&self, patience: Duration, wanted: impl Fn(&[Pod]) -> bool) -> Option<PodList> {
        let mut changed = self.changes();
        let wait = async {
            loop {
                if let Some(pods) = self.known(&wanted) {
                    return Some(pods);
                }
                changed.changed().await.ok()?;
            }
        };
        timeout(patience, wait).await.ok().flatten()
    }

    /// All of them as they are known now; `None` without a complete list, or one that is wanted.
    pub(crate) fn known(&self, wanted: impl Fn(&[Pod]) -> bool) -> Option<PodList> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let is_wanted = known.complete && wanted(&known.pods);
        // Whoever had got something before was in what the watch had brought before.
        is_wanted.then(|| PodList::new(Arc::clone(&known.pods), Instant::now()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(uid: &str, node: &str) -> Pod {
        let mut pod = Pod::default();
        pod.metadata.uid = uid.to_owned();
        pod.spec.node_name = node.to_owned();
        pod
    }

    fn uids(pods: &[Pod]) -> Vec<&str> {
        pods.iter().map(|pod| pod.metadata.uid.as_str()).collect()
    }

    #[tokio::test]
    async fn a_new_list_takes_the_place_of_the_old_one() {
        let pods = WatchedPods::default();
        let mut listed = None;
        let mut apply = |changes: Vec<Change<Pod>>| {
            for change in changes {
                pods.apply(change, &mut listed);
            }
        };
        let all = async || pods.all(Duration::ZERO).await;
        apply(vec![Change::ListBegins, Change::Set(pod("a", "n"))]);
        assert!(all().await.is_none());
        apply(vec![Change::Set(pod("b", "n")), Change::ListEnds]);
        assert_eq!(uids(&all().await.unwrap()), ["a", "b"]);
        apply(vec![
            Change::Gone(pod("a", "n")),
            Change::Set(pod("c", "n")),
        ]);
        assert_eq!(uids(&all().await.unwrap()), ["b", "c"]);
        // The watch broke: what was missed is in the new list.
        apply(vec![Change::ListBegins, Change::Set(pod("d", "n"))]);
        assert_eq!(uids(&all().await.unwrap()), ["b", "c", "d"]);
        apply(vec![Change::ListEnds]);
        assert_eq!(uids(&all().await.unwrap()), ["d"]);
    }

    #[tokio::test]
    async fn who_leaves_or_is_over_is_told_of_once_and_nobody_else() {
        let pods = Arc::new(WatchedPods::default());
        let source = PodSource::Watched(Arc::clone(&pods));
        let mut listed = None;
        let mut over = pod("b", "n");
        over.status.phase = "Succeeded".to_owned();
        for (change, has_left) in [
            (Change::ListBegins, false),
            (Change::Set(pod("a", "n")), false),
            (Change::Set(pod("b", "n")), false),
            (Change::ListEnds, false),
            (Change::Set(pod("a", "n")), false),
            (Change::Set(over.clone()), true),
            (Change::Gone(over), false),
            (Change::Gone(pod("a", "n")), true),
            (Change::Set(pod("c", "n")), false),
            // It went while the watch was broken.
            (Change::ListBegins, false),
            (Change::ListEnds, true),
        ] {
            pods.apply(change, &mut listed);
            let told = timeout(Duration::from_millis(1), source.left()).await;
            assert_eq!(told.is_ok(), has_left);
        }
    }

    #[tokio::test]
    async fn a_pod_that_the_runtime_knows_first_is_waited_for() {
        let pods = Arc::new(WatchedPods::default());
        let mut listed = None;
        pods.apply(Change::ListBegins, &mut listed);
        pods.apply(Change::ListEnds, &mut listed);
        assert!(pods.with("a", Duration::from_millis(20)).await.is_none());
        let waits = Arc::clone(&pods);
        let waits = tokio::spawn(async move { waits.with("a", Duration::from_secs(60)).await });
        tokio::task::yield_now().await;
        pods.apply(Change::Set(pod("a", "n")), &mut listed);
        assert_eq!(uids(&waits.await.unwrap().unwrap()), ["a"]);
    }
}
