//! Calls to the API server: the longest of them, the pauses between them, and the one that several
//! parts of the agent make, which lists the pods of the node. Nothing here decides anything.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use sublet_api::object::Pod;
use sublet_client::{Client, Pods, Write, WriteError, list, perform};
use sublet_model::{NodeName, Pauses};
use tokio::time::timeout;

/// Interval between looks at the node object when all is well. Others change it only when the node
/// is registered anew. A GET each half minute from each GPU node is a third of what kubelets send
/// for their leases.
pub(crate) const LOOK_EVERY: Duration = Duration::from_secs(30);

/// Interval just after a failure or a start of kubelet: kubelet writes the node's status within ten
/// seconds then, and may set our amounts to zero.
pub(crate) const HURRY_EVERY: Duration = Duration::from_secs(3);

/// The pauses after failures, for the agents of all nodes ask a server that comes back.
pub(crate) const PAUSES: Pauses = Pauses::new(HURRY_EVERY, LOOK_EVERY);

/// Timeout of one call.
const CALL_TIME: Duration = Duration::from_secs(5);

/// Reason why a call to the API server brought nothing.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CallError {
    #[error(transparent)]
    Server(#[from] kube::Error),
    #[error("no answer within {CALL_TIME:?}")]
    Late,
    #[error("the watch of pods has not brought a list yet")]
    NotYet,
}

/// All pods bound to the node.
pub(crate) async fn pods_on(client: &Client, node: &NodeName) -> Result<Vec<Pod>, CallError> {
    let fields = format!("spec.nodeName={node}");
    in_time(list::<Pods>(client, Some(&fields))).await
}

/// Waits for a call, but not for ever.
pub(crate) async fn in_time<T>(
    call: impl Future<Output = Result<T, kube::Error>>,
) -> Result<T, CallError> {
    match timeout(CALL_TIME, call).await {
        Ok(outcome) => Ok(outcome?),
        Err(_) => Err(CallError::Late),
    }
}

/// Sends a write as the agent, and waits for its answer, but not for ever.
pub(crate) async fn send(client: &Client, write: &Write) -> Result<(), WriteError> {
    perform(client, write, "sublet-agent", CALL_TIME).await
}

/// May the same call succeed a moment later? Not where the server has answered that it
/// is wrong: no such pod, another pod of that name, no right to.
pub(crate) fn is_passing(error: &CallError) -> bool {
    match error {
        CallError::Server(kube::Error::Api(status)) => status.code >= 500 || status.code == 429,
        CallError::Server(_) | CallError::Late | CallError::NotYet => true,
    }
}

/// Is the same write in vain also a moment later?
pub(crate) fn is_final(error: &WriteError) -> bool {
    matches!(error, WriteError::Refused { code, .. } if *code != 429)
}

pub(crate) fn now_ns() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| {
        u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
    })
}
