//! Objects that `sublet install` applies: the manifests of `deploy/kubernetes/`, which this
//! executable carries, with the images and the schedulers of this cluster put in. It sends nothing.

#[cfg(test)]
mod tests;

use kube::core::{ApiResource, GroupVersionKind};
use serde_json::{Value, json};
use sublet_client::ObjectAddress;

use super::static_pod::EXTENDER_PORT;

/// A file of `deploy/kubernetes/`, by its name.
macro_rules! file {
    ($name:literal) => {
        (
            $name,
            include_str!(concat!("../../../../deploy/kubernetes/", $name)),
        )
    };
}

/// In the order in which they are applied; the numbers are the order.
const FILES: [(&str, &str); 21] = [
    file!("00-namespace.yaml"),
    file!("10-accounts.yaml"),
    file!("15-flavors.yaml"),
    file!("16-sharepods.yaml"),
    file!("19-secrets.yaml"),
    file!("20-rbac-scheduler.yaml"),
    file!("21-rbac-kube-scheduler.yaml"),
    file!("22-rbac-agent.yaml"),
    file!("23-rbac-controller.yaml"),
    file!("30-result-policy.yaml"),
    file!("31-inventory-policy.yaml"),
    file!("32-agent-policy.yaml"),
    file!("33-scheduler-warning.yaml"),
    file!("34-controller-policy.yaml"),
    file!("35-lease-policy.yaml"),
    file!("40-scheduler-config.yaml"),
    file!("50-scheduler.yaml"),
    file!("60-agent.yaml"),
    file!("70-controller.yaml"),
    file!("71-webhook.yaml"),
    file!("72-network.yaml"),
];

/// Namespace of Sublet's own processes.
pub(super) const NAMESPACE: &str = "sublet-system";

/// The schedulers that ask us if the cluster's own does too.
const BOTH_SCHEDULERS: [&str; 2] = ["sublet-scheduler", "default-scheduler"];

/// The second kube-scheduler's port in the host's network, where the first one has 10259.
const SECOND_PORT: u16 = 39_993;

/// Differences from the shipped files.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Choices {
    /// Sublet's image.
    pub(super) image: Option<String>,
    /// The stock kube-scheduler's.
    pub(super) kube_scheduler_image: Option<String>,
    /// The cluster's own scheduler asks the extender too, at this port of its node's loopback.
    pub(super) default_scheduler: Option<u16>,
}

/// One object of the manifests.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Object {
    pub(super) address: ObjectAddress,
    pub(super) value: Value,
}

impl Object {
    fn new(value: Value) -> Object {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let version = text(&value["apiVersion"]);
        let (group, version) = version.split_once('/').unwrap_or(("", &version));
        let kind = GroupVersionKind::gvk(group, version, &text(&value["kind"]));
        let address = ObjectAddress {
            kind: ApiResource::from_gvk(&kind),
            namespace: value["metadata"]["namespace"].as_str().map(str::to_owned),
            name: text(&value["metadata"]["name"]),
        };
        Object { address, value }
    }

    pub(super) fn is(&self, kind: &str) -> bool {
        self.address.kind.kind == kind
    }

    /// `Deployment sublet-system/sublet-scheduler`.
    pub(super) fn title(&self) -> String {
        let ObjectAddress {
            kind,
            namespace,
            name,
        } = &self.address;
        match namespace {
            Some(namespace) => format!("{} {namespace}/{name}", kind.kind),
            None => format!("{} {name}", kind.kind),
        }
    }
}

/// All objects, in the order in which they are applied.
pub(super) fn objects(choices: &Choices) -> Vec<Object> {
    let mut objects: Vec<Object> = shipped().map(Object::new).collect();
    for object in &mut objects {
        put_images(&mut object.value, choices);
        if let Some(port) = choices.default_scheduler {
            serve_default_scheduler(object, port);
        }
    }
    objects
}

/// The extender's entry in the configuration of the second scheduler.
pub(super) fn extender() -> Value {
    let configuration = shipped().find_map(|object| {
        let text = object["data"]["scheduler.yaml"].as_str()?;
        serde_saphyr::from_str::<Value>(text).ok()
    });
    let found = configuration.map(|found| found["extenders"][0].clone());
    found.expect("40-scheduler-config.yaml has an extender")
}

/// The port at which a Deployment of the cluster serves the cluster's own scheduler too.
pub(super) fn served_port(deployment: &Value) -> Option<u16> {
    let meta = &deployment["metadata"];
    let pod = &deployment["spec"]["template"]["spec"];
    let is_ours = meta["name"] == "sublet-scheduler" && meta["namespace"] == NAMESPACE;
    if !is_ours || pod["hostNetwork"] != true {
        return None;
    }
    let args = pod["containers"]
        .as_array()?
        .iter()
        .flat_map(|container| container["args"].as_array());
    let mut words = args.flatten().filter_map(Value::as_str);
    words.find_map(|word| word.strip_prefix("--listen=127.0.0.1:")?.parse().ok())
}

/// The documents of all files.
fn shipped() -> impl Iterator<Item = Value> {
    FILES.iter().flat_map(|(name, text)| {
        let read = serde_saphyr::from_multiple::<Value>(text);
        read.unwrap_or_else(|error| panic!("{name}: {error}"))
    })
}

fn put_images(object: &mut Value, choices: &Choices) {
    for container in containers(object) {
        let Some(image) = container["image"].as_str() else {
            continue;
        };
        let name = image.rsplit('/').next().unwrap_or(image);
        let chosen = match name.split(':').next() {
            Some("sublet") => &choices.image,
            Some("kube-scheduler") => &choices.kube_scheduler_image,
            _ => &None,
        };
        if let Some(chosen) = chosen {
            container["image"] = chosen.clone().into();
        }
    }
}

/// The extender goes to the control plane's node and into its network: the cluster's own scheduler
/// reaches it there on loopback. Every workload that goes by scheduler names learns of the second
/// one.
fn serve_default_scheduler(object: &mut Object, port: u16) {
    match (&*object.address.kind.kind, &*object.address.name) {
        ("Deployment", "sublet-scheduler") => to_the_hosts_network(&mut object.value, port),
        ("Deployment", "sublet-controller") => {
            for container in containers(&mut object.value) {
                name_schedulers(container);
            }
        }
        ("ConfigMap", "sublet-schedulers") => {
            object.value["data"]["names"] = BOTH_SCHEDULERS.join(" ").into();
        }
        ("ConfigMap", "sublet-kube-scheduler") => {
            let text = object.value["data"]["scheduler.yaml"].as_str();
            let moved = text.map(|text| {
                let shipped = format!("http://127.0.0.1:{EXTENDER_PORT}/");
                text.replace(&shipped, &format!("http://127.0.0.1:{port}/"))
            });
            object.value["data"]["scheduler.yaml"] = moved.into();
        }
        _ => {}
    }
}

fn to_the_hosts_network(deployment: &mut Value, port: u16) {
    // One pod: its ports are the host's, and the next can take them only when it has gone.
    deployment["spec"]["replicas"] = 1.into();
    deployment["spec"]["strategy"] = json!({"type": "Recreate"});
    let pod = &mut deployment["spec"]["template"]["spec"];
    pod["hostNetwork"] = true.into();
    // The second scheduler's kubeconfig has the cluster's own name of the API server.
    pod["dnsPolicy"] = "ClusterFirstWithHostNet".into();
    pod["nodeSelector"]["node-role.kubernetes.io/control-plane"] = "".into();
    for container in containers(deployment) {
        set_flag(container, "--listen", &format!("127.0.0.1:{port}"));
        if container["name"] == "extender" {
            name_schedulers(container);
        } else if set_flag(container, "--secure-port", &SECOND_PORT.to_string()) {
            for probe in ["livenessProbe", "readinessProbe", "startupProbe"] {
                if let Some(get) = container.get_mut(probe).and_then(|p| p.get_mut("httpGet")) {
                    get["port"] = SECOND_PORT.into();
                }
            }
        }
    }
}

fn name_schedulers(container: &mut Value) {
    if let Some(args) = args(container) {
        args.retain(|word| {
            !word
                .as_str()
                .unwrap_or_default()
                .starts_with("--scheduler-name=")
        });
        args.extend(BOTH_SCHEDULERS.map(|name| format!("--scheduler-name={name}").into()));
    }
}

/// Changes a flag if it is there. Returns whether it was there.
fn set_flag(container: &mut Value, flag: &str, value: &str) -> bool {
    let mut found = false;
    for word in args(container).into_iter().flatten() {
        let name = word.as_str().and_then(|word| word.split('=').next());
        if name == Some(flag) {
            *word = format!("{flag}={value}").into();
            found = true;
        }
    }
    found
}

fn args(container: &mut Value) -> Option<&mut Vec<Value>> {
    container.get_mut("args")?.as_array_mut()
}

/// The containers of a Deployment or a DaemonSet.
fn containers(object: &mut Value) -> impl Iterator<Item = &mut Value> {
    let spec = object.pointer_mut("/spec/template/spec/containers");
    spec.and_then(Value::as_array_mut).into_iter().flatten()
}
