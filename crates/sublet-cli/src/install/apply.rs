//! Sends the decided changes, and waits for their effects.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::core::ApiResource;
use serde_json::Value;
use sublet_client::{Client, apply_whole, list_whole, read_object};
use tokio::time::{Instant, sleep};

use super::manifests::{NAMESPACE, Object};
use super::print::{Applied, Outcome};
use super::{MANAGER, readiness};
use crate::answer::{Advised, api_error};

/// Pause between two checks while waiting.
const PAUSE: Duration = Duration::from_millis(500);

/// Applies objects one after the other, and returns the result for each.
///
/// # Errors
/// The first that is refused; those before it are applied.
pub(super) async fn objects(
    client: &Client,
    objects: &[Object],
    dry_run: bool,
    progress: &mut impl FnMut(&str),
) -> Result<Vec<Applied>, Advised> {
    let mut applied = Vec::new();
    let mut namespace_is_new = false;
    for object in objects {
        let failed = |error| api_error(&format!("cannot apply {}", object.title()), error);
        let before = read_object(client, &object.address).await.map_err(failed)?;
        namespace_is_new |= object.is("Namespace") && before.is_none();
        // The API server does not check what is in a namespace that is not there.
        let outcome = if dry_run && namespace_is_new && object.address.namespace.is_some() {
            Outcome::Created
        } else {
            let after = apply_whole(client, &object.address, &object.value, MANAGER, dry_run)
                .await
                .map_err(failed)?;
            outcome(before.as_ref(), &after)
        };
        if outcome != Outcome::Unchanged && !dry_run {
            progress(&format!("{}: {outcome}", object.title()));
        }
        applied.push(Applied {
            object: object.title(),
            outcome,
        });
    }
    Ok(applied)
}

fn outcome(before: Option<&Value>, after: &Value) -> Outcome {
    /// Removes the fields that change with every write, even if nothing else does.
    fn meant(object: &Value) -> Value {
        let mut object = object.clone();
        if let Some(meta) = object["metadata"].as_object_mut() {
            for key in ["managedFields", "resourceVersion", "generation"] {
                meta.remove(key);
            }
        }
        if let Some(fields) = object.as_object_mut() {
            fields.remove("status");
        }
        object
    }
    match before {
        None => Outcome::Created,
        Some(before) if meant(before) == meant(after) => Outcome::Unchanged,
        Some(_) => Outcome::Changed,
    }
}

/// Waits until all workloads are ready. Returns those that are not, with kubelet's or the
/// scheduler's reasons.
///
/// # Errors
/// The API server cannot be asked.
pub(super) async fn until_ready(
    client: &Client,
    objects: &[Object],
    limit: Duration,
    progress: &mut impl FnMut(&str),
) -> Result<Vec<String>, Advised> {
    let workloads = objects
        .iter()
        .filter(|object| object.is("Deployment") || object.is("DaemonSet"));
    let workloads: Vec<&Object> = workloads.collect();
    let deadline = Instant::now() + limit;
    let mut said = BTreeMap::new();
    while !limit.is_zero() {
        let mut waiting = Vec::new();
        for workload in &workloads {
            let title = workload.title();
            let now = read_object(client, &workload.address).await;
            let now = now.map_err(|error| api_error(&format!("cannot read {title}"), error))?;
            let lacking = match &now {
                Some(now) => readiness::lacking(now),
                None => Some("somebody has deleted it".to_owned()),
            };
            let line = format!("{title}: {}", lacking.as_deref().unwrap_or("ready"));
            if said.get(&title) != Some(&line) {
                progress(&line);
                said.insert(title, line.clone());
            }
            if lacking.is_some() {
                waiting.push(line);
            }
        }
        if waiting.is_empty() {
            break;
        }
        if Instant::now() > deadline {
            let pods = pods(client, NAMESPACE, "app.kubernetes.io/name=sublet").await?;
            waiting.extend(readiness::complaints(&pods));
            return Ok(waiting);
        }
        sleep(PAUSE).await;
    }
    Ok(Vec::new())
}

/// Waits until kubelet runs the scheduler whose manifest has this mark, and finds it healthy.
///
/// # Errors
/// The state that is still missing when the time is over.
pub(super) async fn until_scheduler_back(
    client: &Client,
    mark: Option<&str>,
    limit: Duration,
) -> Result<(), String> {
    let deadline = Instant::now() + limit;
    loop {
        // The API server may be away for a moment too; that is one more reason to wait.
        let lacking = match pods(client, "kube-system", "component=kube-scheduler").await {
            Ok(pods) => match readiness::is_back(&pods, mark) {
                Ok(()) => return Ok(()),
                Err(lacking) => lacking,
            },
            Err(error) => error.to_string(),
        };
        if Instant::now() > deadline {
            return Err(lacking);
        }
        sleep(PAUSE).await;
    }
}

pub(super) async fn pods(
    client: &Client,
    namespace: &str,
    labels: &str,
) -> Result<Vec<Value>, Advised> {
    let kind = ApiResource::erase::<Pod>(&());
    let listed = list_whole(client, &kind, Some(namespace), Some(labels)).await;
    listed.map_err(|error| api_error(&format!("cannot list pods of {namespace}"), error))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_what_somebody_meant_is_a_change() {
        let stored = json!({"metadata": {"name": "a", "resourceVersion": "1", "managedFields": []},
            "data": {"x": "1"}, "status": {"n": 1}});
        let mut same = stored.clone();
        same["metadata"]["resourceVersion"] = "2".into();
        same["status"]["n"] = 2.into();
        let mut other = stored.clone();
        other["data"]["x"] = "2".into();
        assert_eq!(outcome(None, &stored), Outcome::Created);
        assert_eq!(outcome(Some(&stored), &same), Outcome::Unchanged);
        assert_eq!(outcome(Some(&stored), &other), Outcome::Changed);
    }
}
