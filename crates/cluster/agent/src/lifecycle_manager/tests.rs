//! The cleaning of one device delays no other device, and does not delay its own for ever.

use sublet_kubelet::deviceplugin::{ContainerAllocateResponse, Device};
use sublet_model::NodeName;
use tokio::sync::{Semaphore, watch};

use super::*;
use crate::kind::{Pool, Pools};
use crate::node_events::node_events;
use crate::plugin::DeviceIds;
use crate::pods::WatchedPods;

/// Longer than anything takes here.
const LONG: Duration = Duration::from_secs(60);

/// Devices `a` and `b`; cleaning `a` takes a permit.
struct Slow {
    pools: watch::Sender<Pools>,
    permits: Semaphore,
    /// The cleaning of `a` waits for a permit.
    cleans: Notify,
}

impl Slow {
    fn new() -> Arc<Slow> {
        let devices = ["a", "b"].map(|id| Device::new(id.to_owned(), true, None));
        let pool = Pool {
            socket: "slow.sock".to_owned(),
            prefers: false,
            devices: devices.into_iter().collect(),
        };
        Arc::new(Slow {
            pools: watch::Sender::new([("example.com/slow".to_owned(), pool)].into()),
            permits: Semaphore::new(0),
            cleans: Notify::new(),
        })
    }
}

#[tonic::async_trait]
impl DeviceKind for Slow {
    fn offered(&self) -> watch::Receiver<Pools> {
        self.pools.subscribe()
    }

    fn show(&self, _ailing: &Ailing) {}

    async fn clean(&self, device: &str, _after: &BTreeSet<PodUid>) -> Result<(), String> {
        if device == "a" {
            self.cleans.notify_one();
            self.permits.acquire().await.unwrap().forget();
        }
        Ok(())
    }

    async fn hand_over(
        &self,
        _resource: &str,
        _devices: DeviceIds,
        _lifecycles: &LifecycleManager,
    ) -> Result<ContainerAllocateResponse, Status> {
        Ok(ContainerAllocateResponse::default())
    }
}

/// The devices of a node whose pods nobody lists.
fn lifecycles(kind: &Arc<Slow>) -> Arc<LifecycleManager> {
    let nowhere = kube::Config::new("http://127.0.0.1:9".parse().unwrap());
    let client = kube::Client::try_from(nowhere).unwrap();
    let (events, _post) = node_events(client, NodeName::new("n1").unwrap());
    let kinds: Vec<Arc<dyn DeviceKind>> = vec![Arc::clone(kind) as Arc<dyn DeviceKind>];
    let pods = PodSource::Watched(Arc::new(WatchedPods::default()));
    Arc::new(LifecycleManager::new(events, pods, "absent".into(), kinds))
}

/// The node's pods, asked for now.
fn pods(uids: &[&str]) -> PodList {
    let pod = |uid: &&str| {
        let mut pod = Pod::default();
        pod.metadata.uid = (*uid).to_owned();
        pod
    };
    // After all of before, whose stamps are milliseconds.
    let asked = Instant::now() + Duration::from_millis(2);
    PodList::new(uids.iter().map(pod).collect::<Vec<_>>(), asked)
}

async fn get(
    lifecycles: &LifecycleManager,
    device: &str,
    uid: &str,
    pods: &PodList,
) -> Result<(), Status> {
    let (devices, who) = ([device.to_owned()], [PodUid::new(uid).unwrap()]);
    lifecycles.ready(&devices, &who, Some(pods), LONG).await
}

#[tokio::test]
async fn who_cleans_a_device_keeps_nobody_from_another() {
    let kind = Slow::new();
    let lifecycles = lifecycles(&kind);
    get(&lifecycles, "a", "p1", &pods(&["p1"])).await.unwrap();
    // It is gone, and what is left takes its time to go.
    let (own, now) = (Arc::clone(&lifecycles), pods(&["p2", "p3"]));
    let looks = tokio::spawn(async move { own.look(&now).await });
    timeout(LONG, kind.cleans.notified()).await.unwrap();
    let now = pods(&["p2", "p3"]);
    let other = timeout(LONG, get(&lifecycles, "b", "p2", &now)).await;
    other.expect("it waits for `a`").unwrap();
    // Who wants the one that is being cleaned waits, and gets it at last.
    let own = Arc::clone(&lifecycles);
    let waits = tokio::spawn(async move { get(&own, "a", "p3", &now).await });
    kind.permits.add_permits(1);
    timeout(LONG, waits).await.unwrap().unwrap().unwrap();
    looks.await.unwrap();
}

#[tokio::test]
async fn a_cleaning_that_is_cut_off_is_done_by_the_next() {
    let kind = Slow::new();
    let lifecycles = lifecycles(&kind);
    get(&lifecycles, "a", "p1", &pods(&["p1"])).await.unwrap();
    let (own, now) = (Arc::clone(&lifecycles), pods(&["p2"]));
    // The runtime hangs up.
    let cut = tokio::spawn(async move { get(&own, "a", "p2", &now).await });
    timeout(LONG, kind.cleans.notified()).await.unwrap();
    cut.abort();
    assert!(cut.await.unwrap_err().is_cancelled());
    kind.permits.add_permits(1);
    let now = pods(&["p2"]);
    timeout(LONG, get(&lifecycles, "a", "p2", &now))
        .await
        .unwrap()
        .unwrap();
}
