//! Waits for effects of changes in the cluster.

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::core::ApiResource;
use serde_json::Value;
use sublet_client::{Client, list_whole};
use tokio::time::{Instant, sleep};

use super::readiness;
use crate::answer::{Advised, api_error};

/// Pause between two checks.
const PAUSE: Duration = Duration::from_millis(500);

/// Polls until nothing is lacking.
///
/// # Errors
/// The objects still lacking at the deadline, or an error of the check.
pub(super) async fn until(
    deadline: Instant,
    lacking: impl AsyncFn() -> Result<Option<String>, Advised>,
) -> Result<(), Advised> {
    while let Some(lacking) = lacking().await? {
        if Instant::now() > deadline {
            return Err(Advised::new(
                lacking,
                "look what keeps it, then run this again",
            ));
        }
        sleep(PAUSE).await;
    }
    Ok(())
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

/// Pods of a namespace with these labels.
///
/// # Errors
/// The API server refuses to list, or does not answer.
pub(super) async fn pods(
    client: &Client,
    namespace: &str,
    labels: &str,
) -> Result<Vec<Value>, Advised> {
    let kind = ApiResource::erase::<Pod>(&());
    let listed = list_whole(client, &kind, Some(namespace), Some(labels)).await;
    listed.map_err(|error| api_error(&format!("cannot list pods of {namespace}"), error))
}
