//! The configuration with which a kube-scheduler asks Sublet about GPU pods and about no others.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use sublet_api::dialect;

use super::{Flags, Refusal, list, read};
use crate::install::manifests;

/// Loopback port where the extender listens, as shipped.
pub(crate) const EXTENDER_PORT: u16 = 39_999;

const VERSION: &str = "kubescheduler.config.k8s.io/v1";

/// End of our extender's path, whatever its port.
const OURS: &str = "/sublet";

/// The operator's own configuration, or one with the meaning of these flags, with our extender in
/// it.
pub(super) fn configuration(flags: &Flags, own: Option<&str>, port: u16) -> Result<Value, Refusal> {
    let mut configuration = match own {
        Some(text) => read(text)?,
        None => of_flags(flags)?,
    };
    let version = &configuration["apiVersion"];
    if *version != VERSION || configuration["kind"] != "KubeSchedulerConfiguration" {
        let kind = configuration["kind"].as_str().unwrap_or("without a kind");
        let version = version.as_str().unwrap_or("no version");
        return Err(Refusal::OtherConfiguration(format!("{kind} of {version}")));
    }
    let ours = extender(port);
    let mut extenders = Vec::new();
    for other in list(&configuration["extenders"]) {
        if is_ours(other) {
            continue;
        }
        may_stand_beside_ours(other)?;
        extenders.push(other.clone());
    }
    // The last to filter sees what is left.
    extenders.push(ours);
    configuration["extenders"] = extenders.into();
    Ok(configuration)
}

/// The scheduler ignores these flags beside `--config`, so they go into the configuration.
fn of_flags(flags: &Flags) -> Result<Value, Refusal> {
    let kubeconfig = flags.value("kubeconfig").ok_or(Refusal::NoKubeconfig)?;
    let mut configuration = json!({
        "apiVersion": VERSION,
        "kind": "KubeSchedulerConfiguration",
        "clientConnection": {"kubeconfig": kubeconfig},
    });
    let connection = &mut configuration["clientConnection"];
    if let Some(kind) = flags.value("kube-api-content-type") {
        connection["contentType"] = kind.into();
    }
    for (flag, field) in [("kube-api-qps", "qps"), ("kube-api-burst", "burst")] {
        if let Some(number) = parsed::<u32>(flags, flag, "whole number")? {
            connection[field] = number.into();
        }
    }
    for (flag, field) in [
        ("profiling", "enableProfiling"),
        ("contention-profiling", "enableContentionProfiling"),
    ] {
        if let Some(choice) = parsed::<bool>(flags, flag, "truth value")? {
            configuration[field] = choice.into();
        }
    }
    Ok(configuration)
}

fn parsed<T: std::str::FromStr>(
    flags: &Flags,
    flag: &'static str,
    wanted: &'static str,
) -> Result<Option<T>, Refusal> {
    let Some(value) = flags.value(flag) else {
        return Ok(None);
    };
    let wrong = || Refusal::Flag {
        flag,
        value: value.clone(),
        wanted,
    };
    value.parse().map(Some).map_err(|_| wrong())
}

/// The entry of the second scheduler, but for GPU pods alone: a pod that names none of these
/// resources never waits for us.
fn extender(port: u16) -> Value {
    let mut extender = manifests::extender();
    extender["urlPrefix"] = format!("http://127.0.0.1:{port}{OURS}").into();
    let managed = managed_resources().into_iter();
    let managed = managed.map(|name| json!({"name": name, "ignoredByScheduler": false}));
    extender["managedResources"] = managed.collect();
    extender
}

fn managed_resources() -> BTreeSet<&'static str> {
    dialect::device_resources().collect()
}

fn is_ours(extender: &Value) -> bool {
    let url = extender["urlPrefix"].as_str().unwrap_or_default();
    url.starts_with("http://127.0.0.1:") && url.trim_end_matches('/').ends_with(OURS)
}

/// The scheduler refuses to start if two extenders bind pods or manage one resource.
fn may_stand_beside_ours(other: &Value) -> Result<(), Refusal> {
    let refused = |what: String| {
        let url = other["urlPrefix"].as_str().unwrap_or("without an address");
        Err(Refusal::OtherExtender {
            url: url.to_owned(),
            what,
        })
    };
    if other["bindVerb"]
        .as_str()
        .is_some_and(|verb| !verb.is_empty())
    {
        return refused("binds pods itself".to_owned());
    }
    let ours = managed_resources();
    let shared = list(&other["managedResources"])
        .filter_map(|resource| resource["name"].as_str())
        .find(|name| ours.contains(name));
    match shared {
        Some(name) => refused(format!("manages {name}")),
        None => Ok(()),
    }
}
