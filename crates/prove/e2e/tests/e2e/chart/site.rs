//! A cluster with helm, and the controller that writes into what helm has made. Nobody schedules or
//! runs pods here: the workloads of a release stay as they are made.

use std::collections::BTreeSet;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use sublet_e2e::{binaries, eventually};
use sublet_testbed::{Cluster, ClusterOptions, Helm, chart_folder, deployed};

use super::{helm, repository};

const NAMESPACE: [&str; 2] = ["--namespace", "sublet-system"];

/// The configurations that the controller writes into.
const CALLED: [&str; 2] = [
    "mutatingwebhookconfigurations/sublet-pods",
    "validatingwebhookconfigurations/sublet-bindings",
];

/// Kinds of the Prometheus Operator that the chart makes objects of, without their fields.
const MONITORING: &str = "
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: podmonitors.monitoring.coreos.com}
spec:
  group: monitoring.coreos.com
  scope: Namespaced
  names: {kind: PodMonitor, plural: podmonitors, singular: podmonitor, listKind: PodMonitorList}
  versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}]
---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: prometheusrules.monitoring.coreos.com}
spec:
  group: monitoring.coreos.com
  scope: Namespaced
  names: {kind: PrometheusRule, plural: prometheusrules, singular: prometheusrule, listKind: PrometheusRuleList}
  versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}]
";

pub(super) struct Site {
    pub(super) cluster: Cluster,
    pub(super) helm: Helm,
    pub(super) sublet: PathBuf,
    /// The chart as it is.
    pub(super) chart: String,
}

impl Site {
    /// Starts the site. If this machine cannot, prints why and returns `None`.
    pub(super) fn start() -> Result<Option<Site>> {
        let (Some(binaries), Some(helm)) = (binaries()?, helm()) else {
            return Ok(None);
        };
        let sublet = std::env::var_os("SUBLET_BIN").context("SUBLET_BIN is not set")?;
        let mut options = ClusterOptions::new(binaries);
        options.users = deployed::accounts();
        options.kwok = false;
        let cluster = Cluster::start(options)?;
        cluster.apply(MONITORING)?;
        cluster.until_defined(&[
            "crd/podmonitors.monitoring.coreos.com",
            "crd/prometheusrules.monitoring.coreos.com",
        ])?;
        Ok(Some(Site {
            cluster,
            helm,
            sublet: sublet.into(),
            chart: chart_folder(repository()).display().to_string(),
        }))
    }

    /// Starts the controller, as in a pod of the release.
    pub(super) fn start_controller(&self) -> Result<()> {
        let name = deployed::CONTROLLER;
        deployed::start_controller(&self.cluster, &self.sublet, name, &[]).map(drop)
    }

    /// Runs helm on the release.
    pub(super) fn helm(&self, args: &[&str]) -> Result<String> {
        let kubeconfig = self.cluster.kubeconfig("admin")?;
        self.helm
            .run(&[args, &NAMESPACE].concat(), Some(&kubeconfig))
    }

    /// `helm upgrade` to this chart with these values beside those that there are.
    pub(super) fn upgrade(&self, chart: &str, values: &str) -> Result<()> {
        let upgrade = ["upgrade", "sublet", chart, "--reset-then-reuse-values"];
        let set = ["--set", values];
        self.helm(&[&upgrade[..], &set].concat()).map(drop)
    }

    pub(super) fn get(&self, args: &[&str]) -> Result<Value> {
        let text = self
            .cluster
            .kubectl(&[&["get"], args, &["--output=json"]].concat())?;
        Ok(serde_json::from_str(&text)?)
    }

    /// Objects that belong to the release, such as `deployment.apps/sublet-scheduler`.
    pub(super) fn said(&self) -> Result<BTreeSet<String>> {
        self.names(&self.helm(&["get", "manifest", "sublet"])?)
    }

    /// The objects of a manifest.
    pub(super) fn names(&self, manifest: &str) -> Result<BTreeSet<String>> {
        let dry = [
            "create",
            "--dry-run=client",
            "--output=name",
            "--filename=-",
        ];
        let names = self.cluster.kubectl_with_input(&dry, manifest)?;
        Ok(names.lines().map(str::to_owned).collect())
    }

    /// Objects of the release that are there, of the kinds of `known`.
    pub(super) fn there(&self, known: &BTreeSet<String>) -> Result<BTreeSet<String>> {
        let kinds = known.iter().filter_map(|name| name.split('/').next());
        let kinds: BTreeSet<&str> = kinds.collect();
        let kinds: Vec<&str> = kinds.into_iter().collect();
        let kinds = kinds.join(",");
        let ours = "--selector=app.kubernetes.io/instance=sublet";
        let get = ["get", &kinds, "--all-namespaces", ours, "--output=name"];
        let names = self.cluster.kubectl(&get)?;
        Ok(names.lines().map(str::to_owned).collect())
    }

    /// Waits until the API server trusts every webhook that the release has.
    pub(super) fn until_trusted(&self) -> Result<()> {
        eventually(|| {
            for configuration in CALLED {
                let found = self.get(&[configuration])?;
                let webhooks = found["webhooks"].as_array().context("no webhook")?;
                let lacking = webhooks
                    .iter()
                    .find(|one| !one["clientConfig"]["caBundle"].is_string());
                ensure!(lacking.is_none(), "not trusted: {lacking:?}");
            }
            Ok(())
        })
        .with_context(|| self.cluster.log_tail(deployed::CONTROLLER))
    }
}
