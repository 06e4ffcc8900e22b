//! May it be installed, and will it work? A list of checks, each with its finding and advice.
//!
//! Pure: it judges [`Facts`] that were read before.

mod rivals;
#[cfg(test)]
mod tests;

use serde::Serialize;
use serde_json::Value;
use sublet_api::{NotIsolated, keys};

use super::helm::WITHOUT;
use super::host::Trouble;
use super::manifests::{NAMESPACE, RELEASE};
use super::values::CONTROL_PLANE;

/// `ValidatingAdmissionPolicy` is stable since.
const OLDEST: (u32, u32) = (1, 30);
/// The tests run this one.
const NEWEST: (u32, u32) = (1, 36);

/// The label of nodes whose cards are shared.
const SHARED: (&str, &str) = ("gpushare", "true");

/// The machines that Sublet is built for, by the name that Kubernetes has for them.
const ARCHITECTURE: &str = "amd64";

/// Severity of a check's result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Severity {
    Ok,
    Warning,
    /// Nothing is installed.
    Error,
}

/// One thing that was looked at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Check {
    pub(super) name: &'static str,
    pub(super) severity: Severity,
    pub(super) found: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) advice: Option<String>,
}

impl Check {
    fn ok(name: &'static str, found: impl Into<String>) -> Check {
        Check {
            name,
            severity: Severity::Ok,
            found: found.into(),
            advice: None,
        }
    }

    fn bad(
        name: &'static str,
        severity: Severity,
        found: impl Into<String>,
        advice: impl Into<String>,
    ) -> Check {
        Check {
            name,
            severity,
            found: found.into(),
            advice: Some(advice.into()),
        }
    }
}

/// Facts read from a cluster.
#[derive(Debug, Default)]
pub(super) struct Facts {
    /// The version of the helm that will be run.
    pub(super) helm: Option<String>,
    /// The API server's version, such as `v1.36.3`.
    pub(super) version: String,
    /// Needed rights that the user lacks, such as `create deployments.apps`.
    pub(super) lacking: Vec<String>,
    /// Whether the user may give roles rights that they do not have themselves.
    pub(super) may_grant: bool,
    pub(super) nodes: Vec<Value>,
    pub(super) daemon_sets: Vec<Value>,
    pub(super) deployments: Vec<Value>,
    /// Definitions of the names that ours have.
    pub(super) definitions: Vec<Value>,
    /// Sublet's image, if it was chosen.
    pub(super) image: Option<String>,
    /// The stock scheduler's image, chosen or found in the cluster.
    pub(super) kube_scheduler_image: Option<String>,
    /// Whether the manifest of the cluster's own scheduler can be patched, if it shall be.
    pub(super) patch: Option<Result<String, Trouble>>,
}

/// All checks, in the order in which a person would make them.
pub(super) fn checks(facts: &Facts) -> Vec<Check> {
    let mut checks = vec![helm(facts), version(&facts.version), rights(facts)];
    if !facts.lacking.is_empty() {
        // The rest could not be read.
        return checks;
    }
    checks.extend(other_installations(facts));
    checks.extend(rivals::conflicts(facts));
    checks.extend(facts.definitions.iter().filter_map(definition));
    checks.push(nodes(facts));
    checks.push(architecture(facts));
    checks.extend(isolation(facts));
    checks.push(images(facts));
    checks.extend(scheduler_version(facts));
    if let Some(patch) = &facts.patch {
        checks.push(default_scheduler(patch));
        checks.push(control_planes(facts));
    }
    checks
}

/// The severest result; `Ok` of nothing.
pub(super) fn worst(checks: &[Check]) -> Severity {
    let severities = checks.iter().map(|check| check.severity);
    severities.max().unwrap_or(Severity::Ok)
}

/// Helm before 4 cannot take over what kubectl has applied.
fn helm(facts: &Facts) -> Check {
    const NAME: &str = "helm";
    let found = match &facts.helm {
        Some(version) if minor_version(version) >= Some((4, 0)) => {
            return Check::ok(NAME, format!("it is {version}"));
        }
        Some(version) => format!("it is {version}, and Helm 4 or newer is needed"),
        None => "there is no `helm` on this machine that runs".to_owned(),
    };
    Check::bad(NAME, Severity::Error, found, WITHOUT)
}

fn version(text: &str) -> Check {
    const NAME: &str = "API server";
    match minor_version(text) {
        Some(version) if version < OLDEST => Check::bad(
            NAME,
            Severity::Error,
            format!("it is {text}, and has no stable ValidatingAdmissionPolicy"),
            "upgrade to Kubernetes 1.30 or newer",
        ),
        Some(version) if version > NEWEST => Check::bad(
            NAME,
            Severity::Warning,
            format!("it is {text}, newer than what Sublet was tested with"),
            format!(
                "tested up to {}.{}; watch the first pods",
                NEWEST.0, NEWEST.1
            ),
        ),
        Some(_) => Check::ok(NAME, format!("it is {text}")),
        None => Check::bad(
            NAME,
            Severity::Warning,
            format!("it says that it is {text}, which is no version"),
            "Kubernetes 1.30 or newer is needed",
        ),
    }
}

/// The first two numbers of a version such as `v1.36.3`.
fn minor_version(text: &str) -> Option<(u32, u32)> {
    let numbers = text.trim_start_matches('v').split(['.', '-', '+']);
    let mut numbers = numbers.map_while(|number| number.parse().ok());
    numbers.next().zip(numbers.next())
}

fn rights(facts: &Facts) -> Check {
    const NAME: &str = "your rights";
    if !facts.lacking.is_empty() {
        return Check::bad(
            NAME,
            Severity::Error,
            lacking(&facts.lacking),
            "use a kubeconfig of cluster-admin; on a kubeadm node: \
             --kubeconfig /etc/kubernetes/admin.conf",
        );
    }
    if !facts.may_grant {
        return Check::bad(
            NAME,
            Severity::Warning,
            "you may write roles, but give them only rights that you have yourself",
            "if the API server refuses a role, use a kubeconfig of cluster-admin",
        );
    }
    Check::ok(NAME, "they suffice")
}

/// A few of them: a user who lacks one right mostly lacks dozens.
fn lacking(rights: &[String]) -> String {
    const SAID: usize = 4;
    let said = rights.get(..SAID).unwrap_or(rights).join(", ");
    match rights.len().saturating_sub(SAID) {
        0 => format!("you may not {said}"),
        more => format!("you may not {said}, and {more} other things"),
    }
}

/// Whether an object belongs to the release that we install.
pub(super) fn is_released(object: &Value) -> bool {
    let annotations = &object["metadata"]["annotations"];
    annotations["meta.helm.sh/release-name"] == RELEASE
        && annotations["meta.helm.sh/release-namespace"] == NAMESPACE
}

/// Checks for another installation of Sublet.
fn other_installations(facts: &Facts) -> Vec<Check> {
    const NAME: &str = "another Sublet";
    let others = facts.deployments.iter().filter(|deployment| {
        let labels = &deployment["metadata"]["labels"];
        labels["app.kubernetes.io/name"] == "sublet"
            && labels["app.kubernetes.io/component"] == "scheduler"
            && !is_released(deployment)
    });
    let mut checks = Vec::new();
    for deployment in others {
        let namespace = text(&deployment["metadata"]["namespace"]);
        let release = &deployment["metadata"]["annotations"]["meta.helm.sh/release-name"];
        if let Some(release) = release.as_str() {
            checks.push(Check::bad(
                NAME,
                Severity::Error,
                format!("Helm's release {release} in {namespace} has installed it"),
                format!("helm upgrade {release} …, or helm uninstall {release} -n {namespace}"),
            ));
        } else if namespace != NAMESPACE {
            checks.push(Check::bad(
                NAME,
                Severity::Error,
                format!(
                    "there is one in namespace {namespace}; both would give out the same memory"
                ),
                format!("remove that one first: kubectl delete namespace {namespace}"),
            ));
        }
    }
    if checks.is_empty() {
        checks.push(Check::ok(NAME, "there is none"));
    }
    checks
}

/// A definition of one of our names that was made by others.
fn definition(definition: &Value) -> Option<Check> {
    const NAME: &str = "definitions";
    if definition["metadata"]["labels"]["app.kubernetes.io/name"] == "sublet" {
        return None;
    }
    Some(Check::bad(
        NAME,
        Severity::Warning,
        format!(
            "{} is there already and not Sublet's; objects of it stay, and it becomes Sublet's",
            text(&definition["metadata"]["name"])
        ),
        "remove the programs that serve it first, or both will serve it",
    ))
}

fn nodes(facts: &Facts) -> Check {
    const NAME: &str = "nodes";
    match shared_nodes(facts).count() {
        0 => Check::bad(
            NAME,
            Severity::Warning,
            format!("none of {} has the label gpushare=true", facts.nodes.len()),
            "kubectl label node NODE gpushare=true, for each whose GPUs are to be shared",
        ),
        count => Check::ok(NAME, format!("{count} have the label gpushare=true")),
    }
}

/// Warns of nodes with another architecture: they run nothing of ours, since the workloads do not
/// select them. Kubelet reports a node's architecture; a node without a report is not judged.
fn architecture(facts: &Facts) -> Check {
    const NAME: &str = "architecture";
    let named = |node: &Value| {
        let text = node["status"]["nodeInfo"]["architecture"].as_str()?;
        Some(text.to_owned()).filter(|text| !text.is_empty() && text != ARCHITECTURE)
    };
    let others = facts.nodes.iter().filter_map(named).count();
    if others > 0 && others == facts.nodes.len() {
        return Check::bad(
            NAME,
            Severity::Error,
            format!("none of {others} nodes is {ARCHITECTURE}, for which Sublet is built"),
            format!("add a node of {ARCHITECTURE} for the scheduler and the controller"),
        );
    }
    let mut shared = shared_nodes(facts).filter_map(|node| Some((node, named(node)?)));
    match shared.next() {
        None => Check::ok(NAME, format!("nodes to be shared are {ARCHITECTURE}")),
        Some((node, found)) => {
            let name = text(&node["metadata"]["name"]);
            Check::bad(
                NAME,
                Severity::Warning,
                format!(
                    "{} of the nodes with the label gpushare=true are not {ARCHITECTURE}, for which Sublet is \
                     built: {name} is {found}; no agent goes there",
                    shared.count().saturating_add(1)
                ),
                format!("kubectl label node {name} gpushare-, and leave its GPUs to others"),
            )
        }
    }
}

/// Checks what agents that already run report about isolation on their nodes.
fn isolation(facts: &Facts) -> Vec<Check> {
    const NAME: &str = "isolation";
    let note = |node: &Value| {
        let text = node["metadata"]["annotations"][keys::NOT_ISOLATED].as_str()?;
        Some(NotIsolated::from_text(text))
    };
    let said = facts.nodes.iter().filter_map(|node| {
        let name = text(&node["metadata"]["name"]);
        let (found, advice) = match note(node)? {
            NotIsolated::Pending(why) => (
                format!(
                    "node {name} hands out no part of a GPU until its agent can limit it: {why}"
                ),
                "mend that on the node; the agent tries again by itself",
            ),
            NotIsolated::Unsupported(why) => (
                format!("containers on node {name} can use more than their part: {why}"),
                "give the node what it lacks and restart its agent; if it is meant so, \
                 --isolation off says it",
            ),
        };
        Some(Check::bad(NAME, Severity::Warning, found, advice))
    });
    let mut checks: Vec<Check> = said.collect();
    if checks.is_empty() {
        checks.push(Check::ok(
            NAME,
            "no agent says that it cannot limit containers",
        ));
    }
    checks
}

fn images(facts: &Facts) -> Check {
    const NAME: &str = "images";
    let (Some(image), Some(scheduler)) = (&facts.image, &facts.kube_scheduler_image) else {
        let flag = match facts.image {
            None => "--image",
            Some(_) => "--kube-scheduler-image",
        };
        return Check::bad(
            NAME,
            Severity::Warning,
            format!(
                "without {flag} it is the one that other values name, or the chart's, which every \
                 node must already have"
            ),
            format!("{flag} REGISTRY/NAME:TAG"),
        );
    };
    Check::ok(NAME, format!("{image} and {scheduler}"))
}

/// Kubernetes' own rule: a kube-scheduler is not newer than the API server, and at most one minor
/// version older. A tag that is no version is not judged.
fn scheduler_version(facts: &Facts) -> Option<Check> {
    const NAME: &str = "kube-scheduler";
    let image = facts.kube_scheduler_image.as_deref()?;
    let (repository, tag) = image.split('@').next()?.rsplit_once(':')?;
    let (server, scheduler) = (minor_version(&facts.version)?, minor_version(tag)?);
    let one_older = (server.0, server.1.saturating_sub(1));
    let found = format!("it is {tag} beside an API server of {}", facts.version);
    if (one_older..=server).contains(&scheduler) {
        return Some(Check::ok(NAME, found));
    }
    Some(Check::bad(
        NAME,
        Severity::Error,
        format!("{found}: it may be one minor version older, and never newer"),
        format!("--kube-scheduler-image {repository}:{}", facts.version),
    ))
}

fn default_scheduler(patch: &Result<String, Trouble>) -> Check {
    const NAME: &str = "default scheduler";
    match patch {
        Ok(found) => Check::ok(NAME, found.clone()),
        Err(trouble) => Check::bad(NAME, Severity::Error, trouble.to_string(), trouble.advice()),
    }
}

/// The extender is on one node's loopback, so the scheduler that leads must be there too.
fn control_planes(facts: &Facts) -> Check {
    const NAME: &str = "control plane";
    let has_role = |node: &&Value| node["metadata"]["labels"].get(CONTROL_PLANE).is_some();
    match facts.nodes.iter().filter(has_role).count() {
        1 => Check::ok(NAME, "it is one node"),
        0 => Check::bad(
            NAME,
            Severity::Error,
            "no node has the role of a control plane, so there is none for the extender",
            format!("kubectl label node NODE {CONTROL_PLANE}="),
        ),
        count => Check::bad(
            NAME,
            Severity::Error,
            format!(
                "it is {count} nodes: when another scheduler leads, it cannot reach the extender, \
                 and GPU pods wait"
            ),
            "leave out --patch-default-scheduler; pods with `schedulerName: sublet-scheduler` need \
             no patch",
        ),
    }
}

fn shared_nodes(facts: &Facts) -> impl Iterator<Item = &Value> {
    let (key, value) = SHARED;
    let nodes = facts.nodes.iter();
    nodes.filter(move |node| node["metadata"]["labels"][key] == value)
}

/// The image of the cluster's own scheduler, by the pods that mirror static ones: it has the
/// cluster's version, and its nodes can fetch it.
pub(super) fn scheduler_image(pods: &[Value]) -> Option<String> {
    let mut mirrors = pods
        .iter()
        .filter(|pod| pod["metadata"]["annotations"].get(keys::MIRROR).is_some());
    let image = mirrors.find_map(|pod| pod["spec"]["containers"][0]["image"].as_str())?;
    Some(image.to_owned())
}

/// `deployments.apps`, as kubectl names a resource.
pub(super) fn resource_title(group: &str, plural: &str) -> String {
    match group {
        "" => plural.to_owned(),
        group => format!("{plural}.{group}"),
    }
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}
