//! Pods that come all at once: they are made while no scheduler runs, and it then takes them by
//! priority, with an extender that has seen all of them before the first. Each has a priority of its
//! own: a kube-scheduler that was just started takes those of one priority in any order.
//!
//! The answers are compared in that order, up to the first pod of which the plan left something open.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use serde_json::{Value, json};
use sublet_client::{Change, Pods, watch};
use sublet_testbed::deployed;

use super::super::draw;
use super::{Cluster, Count, FINALIZER, PODS, held, next};

/// The policies, one for each burst.
pub(super) const BURSTS: [&str; 5] = [
    "tiling",
    "binpack",
    "fgd-online=0.6,best-fit=0.4",
    "tiling",
    "spread",
];

/// So many pods come at once.
const AT_ONCE: usize = 16;

/// What the names of their priorities begin with. Nobody is evicted for such a pod.
const CLASS: &str = "promises";

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
        for pod in &pods {
            let mut kept = pod.clone();
            kept["metadata"]["finalizers"] = json!([FINALIZER]);
            self.send("POST", PODS, &kept).await?;
        }
        let mut changes = Box::pin(watch::<Pods>(&self.client, Some("default")));
        self.start_extender()?;
        self.world.restart_kube_scheduler(&[])?;
        let mut fates = BTreeMap::new();
        while fates.len() < pods.len() {
            let Change::Set(pod) = next(&mut changes).await? else {
                continue;
            };
            if !fates.contains_key(&pod.metadata.name)
                && let Some(fate) = self.decided(&pod).await?
            {
                fates.insert(pod.metadata.name, fate);
            }
        }
        drop(changes);
        let mut count = Count::default();
        for planned in &plans {
            let name = planned["name"].as_str().unwrap_or_default();
            let fate = fates.get(name).context("no fate")?;
            match held(planned, fate, &mut count) {
                Ok(true) => {}
                Ok(false) => break,
                Err(why) => {
                    let policy = self.policy;
                    let pods: Vec<&Value> = pods.iter().collect();
                    count.broken.push(format!(
                        "{policy}, together: {name}: {why:#}\npods: {pods:?}\nplan: {plans:?}\n\
                         cluster: {fates:?}"
                    ));
                    break;
                }
            }
        }
        self.clear_up().await?;
        Ok(count)
    }
}
