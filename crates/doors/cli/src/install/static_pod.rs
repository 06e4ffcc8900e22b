//! Changes the static pod of the cluster's own kube-scheduler so that it asks Sublet. The manifest
//! is as kubeadm writes it; it gets `--config` and a configuration that names our extender. Text to
//! text; it reads and writes no file.
//!
//! Everything else in the manifest stays as it is. The operator's own settings count: their
//! configuration gets our extender added, and flags that the scheduler ignores beside `--config`
//! move into the configuration. A setting that cannot be kept is refused with a reason.

mod configuration;
#[cfg(test)]
mod tests;

use std::hash::Hasher as _;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use sublet_api::keys;

pub(super) use self::configuration::EXTENDER_PORT;

/// The volume with our configuration.
const VOLUME: &str = "sublet-scheduler-configuration";

/// Reason why a manifest is left alone.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Refusal {
    #[error("it is no YAML: {0}")]
    NoYaml(String),
    #[error("`{0}` is missing or of another type; is this the manifest of a kube-scheduler?")]
    Field(&'static str),
    #[error("it has no container that runs kube-scheduler")]
    NoScheduler,
    #[error(
        "hostNetwork is not true, so this scheduler cannot reach the extender on the node's loopback"
    )]
    NoHostNetwork,
    #[error(
        "it runs as user {0}, and on the node's loopback the extender answers root alone; give it \
         --caller-uid={0} and name it in the configuration by hand"
    )]
    User(u64),
    #[error("the scheduler has neither --kubeconfig nor --config, so it is not kubeadm's")]
    NoKubeconfig,
    #[error("--config={0} lies in no hostPath volume of the pod, so it cannot be read here")]
    OutOfSnapshot(String),
    #[error("--{flag}={value} is no {wanted}, so it cannot be moved into a configuration")]
    Flag {
        flag: &'static str,
        value: String,
        wanted: &'static str,
    },
    #[error(
        "the scheduler's configuration is {0}; a `KubeSchedulerConfiguration` of \
         kubescheduler.config.k8s.io/v1 is needed"
    )]
    OtherConfiguration(String),
    #[error("the scheduler already has the extender {url}, which {what}; remove it first")]
    OtherExtender { url: String, what: String },
}

/// Settings that the scheduler shall get.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Wish {
    /// The file on the host for its configuration.
    pub(crate) configuration: PathBuf,
    /// The extender's port on the node's loopback.
    pub(crate) port: u16,
}

/// The texts of two files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Patched {
    /// For the folder of static pods.
    pub(crate) manifest: String,
    /// For the place that was wished.
    pub(crate) configuration: String,
    /// The mark by which a running pod shows that it has both.
    pub(crate) mark: String,
}

/// The file on the host that this scheduler's own `--config` means, if it has one.
///
/// # Errors
/// Not the manifest of a kube-scheduler, or a file that no volume holds.
pub(crate) fn own_configuration(manifest: &str) -> Result<Option<PathBuf>, Refusal> {
    let pod = original(read(manifest)?)?;
    let position = scheduler(&pod)?;
    let Some(inside) = flags(&pod, position).value("config") else {
        return Ok(None);
    };
    let out_of_sight = || Refusal::OutOfSnapshot(inside.clone());
    let mounts = list(&pod["spec"]["containers"][position]["volumeMounts"]);
    let volumes = list(&pod["spec"]["volumes"]);
    let found = mounts.filter_map(|mount| {
        let below = Path::new(mount["mountPath"].as_str()?);
        let rest = Path::new(&inside).strip_prefix(below).ok()?;
        let volume = volumes
            .clone()
            .find(|volume| volume["name"] == mount["name"])?;
        let outside = Path::new(volume["hostPath"]["path"].as_str()?);
        // Without the slash that joining an empty path would add to a file's name.
        let file = match rest.as_os_str().is_empty() {
            true => outside.to_owned(),
            false => outside.join(rest),
        };
        Some((below.components().count(), file))
    });
    // Of mounts one below the other the innermost shows.
    let (_, file) = found
        .max_by_key(|(depth, _)| *depth)
        .ok_or_else(out_of_sight)?;
    Ok(Some(file))
}

/// Makes the manifest and the configuration with which this scheduler asks Sublet. `own` is the
/// text of [`own_configuration`]. A manifest that was patched before is first restored in memory,
/// so a second call changes nothing.
///
/// # Errors
/// The setting that cannot be kept.
pub(crate) fn patch(manifest: &str, own: Option<&str>, wish: &Wish) -> Result<Patched, Refusal> {
    let mut pod = original(read(manifest)?)?;
    let position = scheduler(&pod)?;
    if pod["spec"]["hostNetwork"] != true {
        return Err(Refusal::NoHostNetwork);
    }
    if let Some(user) = user(&pod, position).filter(|user| *user != 0) {
        return Err(Refusal::User(user));
    }
    let flags = flags(&pod, position);
    let configuration = configuration::configuration(&flags, own, wish.port)?;
    let configuration = write(&configuration);
    let mark = digest(&configuration);

    let place = wish.configuration.display().to_string();
    let replaced = flags.value("config").unwrap_or_default();
    set_config(&mut pod["spec"]["containers"][position], &place);
    let container = &mut pod["spec"]["containers"][position];
    push(
        &mut container["volumeMounts"],
        json!({"mountPath": place, "name": VOLUME, "readOnly": true}),
    );
    push(
        &mut pod["spec"]["volumes"],
        json!({"hostPath": {"path": place, "type": "File"}, "name": VOLUME}),
    );
    pod["metadata"]["annotations"][keys::REPLACED_CONFIG] = replaced.into();
    pod["metadata"]["annotations"][keys::SCHEDULER_MARK] = mark.clone().into();
    Ok(Patched {
        manifest: write(&pod),
        configuration,
        mark,
    })
}

/// The manifest without the changes of [`patch`]; `None` for one that is not patched.
///
/// # Errors
/// Not the manifest of a kube-scheduler.
pub(crate) fn unpatch(manifest: &str) -> Result<Option<String>, Refusal> {
    let pod = read(manifest)?;
    match mark(&pod) {
        Some(_) => Ok(Some(write(&original(pod)?))),
        None => Ok(None),
    }
}

/// Whether two manifests say the same.
pub(crate) fn is_same(one: &str, other: &str) -> bool {
    matches!((read(one), read(other)), (Ok(one), Ok(other)) if one == other)
}

/// The mark of a pod whose manifest is patched.
pub(crate) fn mark(pod: &Value) -> Option<&str> {
    pod["metadata"]["annotations"][keys::SCHEDULER_MARK].as_str()
}

/// The mark in a manifest's text.
pub(crate) fn mark_of(manifest: &str) -> Option<String> {
    let pod = read(manifest).ok()?;
    mark(&pod).map(str::to_owned)
}

/// The pod as it was before it was patched.
fn original(mut pod: Value) -> Result<Value, Refusal> {
    if mark(&pod).is_none() {
        return Ok(pod);
    }
    let position = scheduler(&pod)?;
    let annotations = pod["metadata"]["annotations"]
        .as_object_mut()
        .ok_or(Refusal::Field("metadata.annotations"))?;
    annotations.remove(keys::SCHEDULER_MARK);
    let replaced = annotations.remove(keys::REPLACED_CONFIG);
    if annotations.is_empty() {
        remove(&mut pod["metadata"], "annotations");
    }
    let container = &mut pod["spec"]["containers"][position];
    match replaced.as_ref().and_then(Value::as_str) {
        Some(own) if !own.is_empty() => set_config(container, own),
        _ => take_config(container),
    }
    drop_named(container, "volumeMounts");
    drop_named(&mut pod["spec"], "volumes");
    Ok(pod)
}

/// Index of the scheduler's container.
fn scheduler(pod: &Value) -> Result<usize, Refusal> {
    if pod["kind"] != "Pod" {
        return Err(Refusal::Field("kind: Pod"));
    }
    let annotations = &pod["metadata"]["annotations"];
    if !pod["metadata"].is_object() || !(annotations.is_null() || annotations.is_object()) {
        return Err(Refusal::Field("metadata.annotations"));
    }
    let containers = pod["spec"]["containers"]
        .as_array()
        .ok_or(Refusal::Field("spec.containers"))?;
    let is_scheduler = |container: &Value| {
        let program = container["command"][0].as_str().map(Path::new);
        program.and_then(Path::file_name) == Some("kube-scheduler".as_ref())
    };
    let found = containers.iter().position(is_scheduler);
    found.ok_or(Refusal::NoScheduler)
}

/// As which user it runs, if the manifest says so: with kubeadm's `RootlessControlPlane` it does.
fn user(pod: &Value, position: usize) -> Option<u64> {
    let spec = &pod["spec"];
    let own = &spec["containers"][position]["securityContext"]["runAsUser"];
    let all = &spec["securityContext"]["runAsUser"];
    own.as_u64().or(all.as_u64())
}

/// The flags of a container, from `command` and `args`.
struct Flags(Vec<String>);

impl Flags {
    /// The value of `--name=value` or `--name value`; the last one counts.
    fn value(&self, name: &str) -> Option<String> {
        let long = format!("--{name}");
        let mut found = None;
        for (position, word) in self.0.iter().enumerate() {
            if let Some((flag, value)) = word.split_once('=') {
                if flag == long {
                    found = Some(value.to_owned());
                }
            } else if *word == long {
                found = self.0.get(position + 1).cloned();
            }
        }
        found
    }
}

fn flags(pod: &Value, position: usize) -> Flags {
    let container = &pod["spec"]["containers"][position];
    let words = ["command", "args"]
        .into_iter()
        .flat_map(|key| list(&container[key]));
    Flags(words.filter_map(Value::as_str).map(str::to_owned).collect())
}

/// Sets `--config=place` at the flag's present position, else at the end of the list with the
/// flags.
fn set_config(container: &mut Value, place: &str) {
    let flag = format!("--config={place}");
    for key in ["command", "args"] {
        let Some(words) = items(container, key) else {
            continue;
        };
        let Some(at) = words.iter().position(is_config) else {
            continue;
        };
        if words[at] == "--config" && at + 1 < words.len() {
            words.remove(at + 1);
        }
        words[at] = flag.into();
        return;
    }
    let key = match container["args"].is_array() {
        true => "args",
        false => "command",
    };
    push(&mut container[key], flag.into());
}

fn take_config(container: &mut Value) {
    for key in ["command", "args"] {
        if let Some(words) = items(container, key) {
            words.retain(|word| !is_config(word));
        }
    }
}

fn is_config(word: &Value) -> bool {
    let text = word.as_str().unwrap_or_default();
    text == "--config" || text.starts_with("--config=")
}

/// Takes our volume, or its mount, out of a list; and the list, if nothing else is in it.
fn drop_named(holder: &mut Value, key: &str) {
    if let Some(items) = items(holder, key) {
        items.retain(|item| item["name"] != VOLUME);
        if items.is_empty() {
            remove(holder, key);
        }
    }
}

/// A list in a map. (Indexing a map for writing would put a `null` where there is none.)
fn items<'a>(holder: &'a mut Value, key: &str) -> Option<&'a mut Vec<Value>> {
    holder.get_mut(key)?.as_array_mut()
}

fn remove(holder: &mut Value, key: &str) {
    if let Some(map) = holder.as_object_mut() {
        map.remove(key);
    }
}

fn push(items: &mut Value, item: Value) {
    match items.as_array_mut() {
        Some(items) => items.push(item),
        None => *items = json!([item]),
    }
}

fn list(value: &Value) -> impl Iterator<Item = &Value> + Clone {
    value.as_array().into_iter().flatten()
}

fn read(text: &str) -> Result<Value, Refusal> {
    serde_saphyr::from_str(text).map_err(|error| Refusal::NoYaml(error.to_string()))
}

/// As kubeadm writes it: keys in the order of the alphabet, no comments.
fn write(value: &Value) -> String {
    serde_saphyr::to_string(value).expect("a tree of maps, lists and scalars can be written")
}

/// Names a configuration. If a later compiler hashes otherwise, the scheduler is restarted once
/// without need.
fn digest(text: &str) -> String {
    let mut hasher = std::hash::DefaultHasher::new();
    hasher.write(text.as_bytes());
    format!("{:016x}", hasher.finish())
}
