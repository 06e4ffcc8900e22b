//! The part of the loop that is about isolation. Containers of pods that are gone are forgotten,
//! and containers that had to wait get their limits. The use of each becomes metrics, and the
//! node's measured use.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};
use tracing::{debug, warn};

use sublet_api::object::Pod;
use sublet_api::{Handed, NodeUse};
use sublet_arbiter::admin::Snapshot;
use sublet_model::{NodeName, Unit};
use sublet_share::MpsStanding;
use sublet_telemetry::metrics::AgentMetrics;
use tokio::sync::watch;

use crate::api_calls::LOOK_EVERY;
use crate::isolate::figures::Figures;
use crate::isolate::found::Unread;
use crate::isolate::node::Isolation;
use crate::isolate::record::Record;
use crate::isolate::supervisor::IsolationWatch;
use crate::isolate::tally::Tally;
use crate::lifecycle_manager::LifecycleManager;
use crate::node_events::NodeEvents;
use crate::pods::{PodList, PodSource};
use crate::watched::send_if_new;

/// Interval at which the arbiter's numbers become metrics.
const SHOW_EVERY: Duration = Duration::from_secs(1);

/// Looks in a row after which a wait for MPS is told. The server of a user without programs gives
/// way to the next one's within moments.
const WAITS_FOR_MPS: u32 = 5;

/// Interval between lists of the pods while a container waits for its limits: its programs may be
/// starting.
const WAIT_EVERY: Duration = Duration::from_millis(500);

/// For so long after a pod has left others are waited for: many leave together.
const LEFT_TOGETHER: Duration = Duration::from_millis(50);

/// Looks after the containers of the node.
pub(super) struct ContainerReconciler {
    pub(super) pods: PodSource,
    pub(super) lifecycles: Arc<LifecycleManager>,
    pub(super) node: NodeName,
    pub(super) metrics: AgentMetrics,
    pub(super) events: NodeEvents,
    pub(super) isolation: IsolationWatch,
    pub(super) unit: Unit,
    /// Told of the cards of pods that do not say it themselves.
    pub(super) lost: watch::Sender<Handed>,
    /// Told once a minute how busy the cards were.
    pub(super) measured: watch::Sender<Option<NodeUse>>,
}

impl ContainerReconciler {
    /// Looks after the containers that are held to their parts, and after what pods leave behind; ends
    /// only with an error.
    pub(super) async fn keep(&self) -> anyhow::Result<()> {
        tokio::select! {
            shown = self.show_each() => shown,
            settled = self.settle() => settled,
        }
    }

    /// Shows what each arbiter says, one after the other.
    async fn show_each(&self) -> anyhow::Result<()> {
        let mut states = self.isolation.clone();
        loop {
            let state = states.borrow_and_update().clone();
            if state.is_off() {
                self.measured.send_replace(Some(NodeUse::new()));
            }
            let mut figures = Figures::default();
            let shown = async {
                match state.on() {
                    Some(isolation) => self.show(isolation, &mut figures).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                shown = shown => return shown,
                // Never an error: the supervisor outlives this.
                _ = states.changed() => {}
            }
            // The next one counts from zero.
            figures.forget(&self.metrics);
        }
    }

    async fn show(&self, isolation: &Arc<Isolation>, figures: &mut Figures) -> anyhow::Result<()> {
        let mut clock = interval(SHOW_EVERY);
        clock.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let begun = Instant::now();
        let mut tally = Tally::default();
        let mut waited: BTreeMap<u64, u32> = BTreeMap::new();
        loop {
            clock.tick().await;
            let isolation = Arc::clone(isolation);
            let look = spawn_blocking(move || isolation.look()).await;
            let look = look.context("looking at the containers failed")?;
            let now_ms = u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX);
            figures.update(&self.metrics, &look, now_ms);
            for message in long_waits(&mut waited, waiting_for_mps(&look)) {
                warn!(node = %self.node, why = message, "a container waits for MPS");
                self.events.tell("ContainerWaitsForMps", message);
            }
            if let Some(measured) = tally.add(&look, now_ms) {
                self.measured.send_replace(Some(measured));
            }
        }
    }

    /// Compares the containers with the pods, and has devices cleaned that no pod has any more. The
    /// parts that hand out devices do it too, with a list of their own.
    async fn settle(&self) -> anyhow::Result<()> {
        let mut told = BTreeSet::new();
        loop {
            let (mut waits, mut again) = (false, LOOK_EVERY);
            match self.pods.now().await {
                Ok(pods) => {
                    waits = self.settle_containers(&pods, &mut told).await?;
                    let next = self.lifecycles.look(&pods).await;
                    again = next.map_or(again, |next| next.clamp(WAIT_EVERY, again));
                }
                Err(error) => debug!(%error, "pods not listed, containers stay as they are"),
            }
            if waits {
                warn!(node = %self.node, "a container waits for its limits");
            }
            tokio::select! {
                () = sleep(if waits { WAIT_EVERY } else { again }) => {}
                // Its devices are clean before the next one comes, which does not wait then.
                () = self.pods.left() => sleep(LEFT_TOGETHER).await,
            }
        }
    }

    /// True if a container waits for its limits. `told`: the unreadable folders that were logged
    /// already.
    async fn settle_containers(
        &self,
        pods: &PodList,
        told: &mut BTreeSet<PathBuf>,
    ) -> anyhow::Result<bool> {
        let Some(isolation) = self.isolation.borrow().on().cloned() else {
            return Ok(false);
        };
        let (list, unit, source) = (pods.clone(), self.unit, self.pods.clone());
        let settled = spawn_blocking(move || {
            let waits = isolation.settle(&source.newest().unwrap_or_else(|| list.clone()));
            isolation.clear_libraries();
            (waits, isolation.lost(&list, unit), isolation.unread())
        });
        let settled = settled.await;
        let (waits, lost, unread) = settled.context("comparing containers with pods failed")?;
        send_if_new(&self.lost, &lost);
        for one in &unread {
            if !told.contains(&one.folder) {
                let message = says(one, pods);
                warn!(node = %self.node, why = message, "a container has no limits");
                self.events.tell("ContainerRecordUnread", message);
            }
        }
        *told = unread.into_iter().map(|one| one.folder).collect();
        Ok(waits)
    }
}

/// The containers with a program that waits for MPS, by their jobs, in words: such a program hangs
/// in `cuInit` and says nothing.
fn waiting_for_mps(
    (snapshot, records): &(Snapshot, BTreeMap<u64, Record>),
) -> BTreeMap<u64, String> {
    let rows = snapshot.tenants.iter();
    let waiting = rows.filter(|row| row.mps.as_deref() == Some(MpsStanding::WAITING));
    let told = waiting.filter_map(|row| {
        let record = records.get(&row.id?)?;
        let name = format!("{}/{}", record.namespace, record.pod);
        let (container, why) = (&record.container, row.reason.as_deref()?);
        Some((
            row.id?,
            format!("container {container} of pod {name}: {why}"),
        ))
    });
    told.collect()
}

/// The waits to be told now, each of them once. `waited`: looks at which each job waited until now.
fn long_waits(waited: &mut BTreeMap<u64, u32>, waiting: BTreeMap<u64, String>) -> Vec<String> {
    waited.retain(|job, _| waiting.contains_key(job));
    let long = waiting.into_iter().filter_map(|(job, message)| {
        let looks = waited.entry(job).or_default();
        *looks = looks.saturating_add(1);
        (*looks == WAITS_FOR_MPS).then_some(message)
    });
    long.collect()
}

/// The news of a record that cannot be read, in words.
fn says(unread: &Unread, pods: &[Pod]) -> String {
    let of = |pod: &&Pod| unread.pod.as_ref() == Some(&pod.metadata.uid);
    let whose = pods
        .iter()
        .find(of)
        .map_or("a container".to_owned(), |pod| {
            format!(
                "a container of pod {}/{}",
                pod.metadata.namespace, pod.metadata.name
            )
        });
    let (folder, why) = (unread.folder.display(), &unread.why);
    format!(
        "the record of {whose} in {folder} cannot be read, so nothing looks after it and its folder \
         stays: {why}"
    )
}

#[cfg(test)]
mod tests {
    use sublet_arbiter::admin::TenantRow;

    use super::*;

    #[test]
    fn a_container_that_waits_for_mps_is_told_with_its_pod() {
        let row = |id: u64, mps: &str| TenantRow {
            id: Some(id),
            mps: Some(mps.to_owned()),
            reason: Some("a reason".to_owned()),
            ..TenantRow::default()
        };
        let record = serde_json::json!({
            "namespace": "ns", "pod": "a", "uid": "u", "container": "main", "place": "main-0",
            "endsFirst": false, "cards": [],
        });
        let record: Record = serde_json::from_value(record).unwrap();
        let snapshot = Snapshot {
            // The last is no container of ours.
            tenants: vec![row(1, "serving"), row(2, "waiting"), row(3, "waiting")],
            ..Snapshot::default()
        };
        let records = BTreeMap::from([(1, record.clone()), (2, record)]);
        let told = waiting_for_mps(&(snapshot, records));
        let words = "container main of pod ns/a: a reason".to_owned();
        assert_eq!(told, BTreeMap::from([(2, words)]));
    }

    #[test]
    fn a_wait_is_told_once_and_only_if_it_lasts() {
        let mut waited = BTreeMap::new();
        let mut told = |jobs: &[u64]| {
            let waiting = jobs.iter().map(|job| (*job, job.to_string())).collect();
            long_waits(&mut waited, waiting)
        };
        for _ in 1..WAITS_FOR_MPS {
            assert_eq!(told(&[1, 2]), Vec::<String>::new());
        }
        assert_eq!(told(&[1]), ["1"]);
        for _ in 1..WAITS_FOR_MPS {
            assert_eq!(told(&[1, 2]), Vec::<String>::new());
        }
        assert_eq!(told(&[1, 2]), ["2"]);
    }

    #[test]
    fn a_record_that_cannot_be_read_is_told_with_its_pod() {
        let mut pod = Pod::default();
        pod.metadata.uid = "uid-a".to_owned();
        (pod.metadata.namespace, pod.metadata.name) = ("ns".to_owned(), "a".to_owned());
        let unread = |pod: Option<&str>| Unread {
            folder: "/c/x/main-0".into(),
            pod: pod.map(str::to_owned),
            why: "an error".to_owned(),
        };
        let words = "the record of a container of pod ns/a in /c/x/main-0 cannot be read, so nothing \
                     looks after it and its folder stays: an error";
        let pods = [Pod::default(), pod];
        assert_eq!(says(&unread(Some("uid-a")), &pods), words);
        let words = "the record of a container in /c/x/main-0 cannot be read";
        assert!(says(&unread(Some("uid-b")), &pods).starts_with(words));
        assert!(says(&unread(None), &pods).starts_with(words));
    }
}
