//! Other software that gives out the same GPUs, and whether it is in the way.

use serde_json::Value;

use super::{Check, Facts, Severity, shared_nodes, text};

/// Another program with the same task as ours.
struct Rival {
    /// In the name or an image of its DaemonSet or Deployment.
    mark: &'static str,
    what: &'static str,
    /// Whether it is in the way only on nodes with our label.
    by_node: bool,
}

const RIVALS: [Rival; 6] = [
    Rival {
        mark: "gpushare-device-plugin",
        what: "GPUShare's device plugin registers aliyun.com/gpu-mem",
        by_node: true,
    },
    Rival {
        mark: "gpushare-sch",
        what: "GPUShare's extender gives out the same memory",
        by_node: false,
    },
    Rival {
        mark: "hami-device-plugin",
        what: "HAMi's device plugin gives out GPUs",
        by_node: true,
    },
    Rival {
        mark: "nvidia-device-plugin",
        what: "NVIDIA's device plugin registers nvidia.com/gpu",
        by_node: true,
    },
    Rival {
        mark: "k8s-device-plugin",
        what: "NVIDIA's device plugin registers nvidia.com/gpu",
        by_node: true,
    },
    Rival {
        mark: "kubeshare",
        what: "KubeShare makes the same pods of SharePods",
        by_node: false,
    },
];

pub(super) fn conflicts(facts: &Facts) -> Vec<Check> {
    const NAME: &str = "other GPU software";
    let shared: Vec<&Value> = shared_nodes(facts).collect();
    let mut checks = Vec::new();
    for workload in facts.daemon_sets.iter().chain(&facts.deployments) {
        let Some(rival) = RIVALS.iter().find(|rival| is_of(workload, rival.mark)) else {
            continue;
        };
        let is_daemon = workload["spec"]["template"]["spec"].is_object()
            && workload["spec"].get("replicas").is_none();
        let kind = if is_daemon { "daemonset" } else { "deployment" };
        let meta = &workload["metadata"];
        let (namespace, name) = (text(&meta["namespace"]), text(&meta["name"]));
        let title = format!("{kind} {namespace}/{name}");
        if !rival.by_node {
            checks.push(Check::bad(
                NAME,
                Severity::Error,
                format!("{}: {title}", rival.what),
                format!("kubectl delete {kind} -n {namespace} {name}"),
            ));
        } else if is_daemon {
            checks.push(on_nodes(NAME, rival, workload, &title, &shared));
        }
    }
    if checks.is_empty() {
        checks.push(Check::ok(NAME, "none is in the way"));
    }
    checks
}

/// Checks a device plugin, which is in the way if it and our agent are on one node.
fn on_nodes(
    name: &'static str,
    rival: &Rival,
    workload: &Value,
    title: &str,
    shared: &[&Value],
) -> Check {
    let pod = &workload["spec"]["template"]["spec"];
    let selector = pod["nodeSelector"].as_object();
    let may_run = |node: &&&Value| {
        let labels = &node["metadata"]["labels"];
        selector
            .into_iter()
            .flatten()
            .all(|(key, value)| labels[key] == *value)
    };
    let mut both = shared
        .iter()
        .filter(may_run)
        .map(|node| text(&node["metadata"]["name"]));
    let Some(first) = both.next() else {
        return Check::ok(name, format!("{title} is on other nodes"));
    };
    let found = format!(
        "{} on {first} and {} other nodes: {title}",
        rival.what,
        both.count()
    );
    let advice = "let it run on other nodes only (its nodeSelector, or an affinity that \
                  excludes gpushare=true), or delete it";
    // An affinity is not read here; it may keep it away.
    let severity = match pod["affinity"].is_object() {
        true => Severity::Warning,
        false => Severity::Error,
    };
    Check::bad(name, severity, found, advice)
}

fn is_of(workload: &Value, mark: &str) -> bool {
    let containers = workload["spec"]["template"]["spec"]["containers"].as_array();
    let mut images = containers
        .into_iter()
        .flatten()
        .map(|container| text(&container["image"]));
    text(&workload["metadata"]["name"]).contains(mark) || images.any(|image| image.contains(mark))
}
