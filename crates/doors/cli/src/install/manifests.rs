//! The Helm chart, and `deploy/kubernetes/`, which is that chart with its default values. This
//! executable carries both, so that it installs from the one file alone. It sends nothing.

#[cfg(test)]
mod tests;

use serde_json::Value;

/// Files below a folder of `deploy/`, by their names there.
macro_rules! files {
    ($folder:literal: $($name:literal)+) => {
        &[$((
            $name,
            include_str!(concat!("../../../../../deploy/", $folder, "/", $name)),
        )),+]
    };
}

/// The chart.
pub(super) const CHART: &[(&str, &str)] = files!("chart/sublet":
    "Chart.yaml" "files/alerts.yaml" "files/dashboards/cluster.json" "files/dashboards/node.json"
    "templates/10-accounts.yaml" "templates/15-flavors.yaml" "templates/16-sharepods.yaml"
    "templates/17-queue-crds.yaml" "templates/18-gang-plans.yaml" "templates/19-secrets.yaml"
    "templates/20-rbac-scheduler.yaml" "templates/21-rbac-kube-scheduler.yaml"
    "templates/22-rbac-agent.yaml" "templates/23-rbac-controller.yaml"
    "templates/30-result-policy.yaml" "templates/31-inventory-policy.yaml"
    "templates/32-agent-policy.yaml" "templates/33-scheduler-warning.yaml"
    "templates/34-controller-policy.yaml" "templates/35-lease-policy.yaml"
    "templates/40-scheduler-config.yaml" "templates/50-scheduler.yaml" "templates/60-agent.yaml"
    "templates/70-controller.yaml" "templates/71-webhook.yaml" "templates/72-network.yaml"
    "templates/80-monitor.yaml" "templates/81-alerts.yaml" "templates/82-dashboards.yaml"
    "templates/NOTES.txt" "templates/_names.tpl" "values.schema.json" "values.yaml"
);

/// Its rendering with default values, in the order in which kubectl applies it.
pub(super) const RENDERED: &[(&str, &str)] = files!("kubernetes":
    "00-namespace.yaml" "10-accounts.yaml" "15-flavors.yaml" "16-sharepods.yaml" "19-secrets.yaml"
    "20-rbac-scheduler.yaml" "21-rbac-kube-scheduler.yaml" "22-rbac-agent.yaml"
    "23-rbac-controller.yaml" "30-result-policy.yaml" "31-inventory-policy.yaml"
    "32-agent-policy.yaml" "33-scheduler-warning.yaml" "34-controller-policy.yaml"
    "35-lease-policy.yaml" "40-scheduler-config.yaml" "50-scheduler.yaml" "60-agent.yaml"
    "70-controller.yaml" "71-webhook.yaml" "72-network.yaml"
);

/// The namespace of Sublet's own processes, which kubectl makes first and helm by itself.
pub(super) const NAMESPACE_MANIFEST: &str =
    include_str!("../../../../../deploy/kubernetes/00-namespace.yaml");

/// Namespace of Sublet's own processes, and of Helm's release.
pub(super) const NAMESPACE: &str = "sublet-system";

/// Name of Helm's release.
pub(super) const RELEASE: &str = "sublet";

/// The rendering as one stream of YAML documents.
pub(super) fn rendered() -> String {
    let documents = RENDERED.iter().flat_map(|(_, text)| ["---\n", *text]);
    documents.collect()
}

/// The objects of the rendering.
pub(super) fn objects() -> impl Iterator<Item = Value> {
    RENDERED.iter().flat_map(|(name, text)| {
        let read = serde_saphyr::from_multiple::<Value>(text);
        read.unwrap_or_else(|error| panic!("{name}: {error}"))
    })
}

/// The extender's entry in the configuration of the second scheduler.
pub(super) fn extender() -> Value {
    let configuration = objects().find_map(|object| {
        let text = object["data"]["scheduler.yaml"].as_str()?;
        serde_saphyr::from_str::<Value>(text).ok()
    });
    let found = configuration.map(|found| found["extenders"][0].clone());
    found.expect("40-scheduler-config.yaml has an extender")
}
