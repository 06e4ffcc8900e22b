//! Pods that come all at once: they are made while no kube-scheduler runs, and the extender has seen
//! all of them before it is asked about the first.
//!
//! Each has a priority of its own: a kube-scheduler that was just started takes those of one priority in
//! any order. Each loses its scheduling gate when the one before it has its answer: a kube-scheduler
//! looks for a place for one pod while it binds another, and two that meet may get each other's
//! places. The answers are compared up to the first pod with a plan that left something open.

use anyhow::{Context, Result};
use serde_json::{Value, json};
use sublet_client::{Pods, watch};
use sublet_testbed::deployed;

use super::super::draw;
use super::{Cluster, Count, FINALIZER, PODS, held};

/// The policies, one for each burst.
pub(super) const BURSTS: [&str; 7] = [
    "tiling",
    "binpack",
    "fgd-online=0.6,best-fit=0.4",
    "spread",
    "tiling",
    "binpack",
    "fgd-online=0.6,best-fit=0.4",
];

/// So many pods come at once.
const AT_ONCE: usize = 16;

/// Beginning of the names of their priorities. No pod is evicted for such a pod.
const CLASS: &str = "promises";

/// Holds each of them until it is its turn.
const SCHEDULING_GATE: &str = "example.internal/turn";

impl Cluster<'_> {
    /// Draws nodes, makes pods at once, and clears up.
    pub(super) async fn play_together(&mut self, round: u64) -> Result<Count> {
        let class = |value: usize| {
            json!({
                "apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass",
                "metadata": { "name": format!("{CLASS}-{value}") },
                "value": value, "preemptionPolicy": "Never",
            })
        };
        let classes: Vec<Value> = (0..AT_ONCE).map(class).collect();
        let classes = json!({ "apiVersion": "v1", "kind": "List", "items": classes });
        self.world.cluster.apply(&classes.to_string())?;
        let n_nodes = self.chance.usize(3..=6);
        self.make_nodes(round, n_nodes).await?;
        let mut pods = self.draw_pods(round, AT_ONCE);
        let mut priorities: Vec<usize> = (0..AT_ONCE).collect();
        self.chance.shuffle(&mut priorities);
        for (pod, value) in pods.iter_mut().zip(priorities) {
            draw::without_others(pod);
            pod["spec"]["priorityClassName"] = json!(format!("{CLASS}-{value}"));
            pod["spec"]["priority"] = json!(value);
            pod["spec"]["preemptionPolicy"] = json!("Never");
        }
        let plans = self.plan(&pods, &["--arrival", "together"]).await?;
        self.world.cluster.stop(deployed::KUBE_SCHEDULER);
        // It learns of nodes first and then of pods, as one that has run for long.
        self.start_extender()?;
        for pod in &pods {
            let mut kept = pod.clone();
            kept["metadata"]["finalizers"] = json!([FINALIZER]);
            kept["spec"]["schedulingGates"] = json!([{ "name": SCHEDULING_GATE }]);
            self.send("POST", PODS, &kept).await?;
        }
        let mut changes = Box::pin(watch::<Pods>(&self.client, Some("default")));
        self.world.restart_kube_scheduler(&[])?;
        let mut count = Count::default();
        for planned in &plans {
            let name = &planned["name"];
            let path = format!("{PODS}/{}", name.as_str().context("no name")?);
            let free = json!({ "spec": { "schedulingGates": null } });
            self.send("PATCH", &path, &free).await?;
            let fate = self.fate(&mut changes, name).await?;
            match held(planned, &fate, &mut count) {
                Ok(true) => {}
                Ok(false) => break,
                Err(why) => {
                    let policy = self.policy;
                    let pods = json!(pods);
                    count.broken.push(format!(
                        "{policy}, together: {name}: {why:#}\npods: {pods}\nplan: {}\ncluster: {fate:?}",
                        json!(plans)
                    ));
                    break;
                }
            }
        }
        drop(changes);
        self.clear_up().await?;
        Ok(count)
    }
}
