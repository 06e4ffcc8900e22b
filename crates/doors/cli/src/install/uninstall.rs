//! `sublet uninstall`: puts the cluster's own scheduler back, has helm remove its release, and removes
//! the marks that Sublet's processes wrote on nodes. Objects that users made stay, and so do the
//! definitions of their kinds.

use std::time::Duration;

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Node;
use kube::core::ApiResource;
use serde_json::{Map, Value, json};
use sublet_api::{dialect, keys};
use sublet_client::{
    Act, Client, ObjectAddress, Write, WriteError, list_whole, perform, read_object,
};
use tokio::time::Instant;

use super::helm;
use super::host::Place;
use super::manifests::{NAMESPACE, RELEASE};
use super::options::ClusterArgs;
use super::preflight::is_released;
use super::print::{Report, progress};
use super::wait::{pods, until, until_scheduler_back};
use crate::answer::{Advised, Answer, api_error, connected};
use crate::paste;

/// Longest wait for the answer to one write.
const ANSWER: Duration = Duration::from_secs(5);

/// Arguments of `sublet uninstall`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
EXAMPLES
  sublet uninstall                   what `sublet install` has put on a cluster
  sublet uninstall --timeout 60      with a minute for its objects to be gone
  sudo sublet uninstall --kubeconfig /etc/kubernetes/admin.conf
                                     with the patch of the cluster's own scheduler, on its node

It runs `helm uninstall`. Pods that run on GPUs go on. The namespace stays, and so do definitions
(GpuFlavor, SharePod) with what users made of them; `kubectl delete crd --selector
app.kubernetes.io/name=sublet` removes all of these. On the nodes, remove /var/lib/sublet and
/run/sublet when no such pod is left.

EXIT CODES
  0  removed
  1  not, or not all of it; what is left is said
  2  wrong arguments")]
pub struct Args {
    /// Time limit for deleted objects to be gone, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 300)]
    timeout: u64,
    #[command(flatten)]
    cluster: ClusterArgs,
}

/// Removes Sublet: the patch of the cluster's own scheduler first, then the release, then what the
/// agents wrote on nodes.
///
/// # Errors
/// The cluster cannot be asked, helm or the API server refuses something, or the scheduler's
/// manifest is elsewhere.
pub async fn run(args: &Args) -> anyhow::Result<Answer> {
    let kubeconfig = args.cluster.kubeconfig.as_deref();
    let client = connected(kubeconfig, None).await?;
    let deadline = Instant::now() + Duration::from_secs(args.timeout);
    let mut report = Report::default();
    let extender = ObjectAddress::of::<Deployment>(Some(NAMESPACE), "sublet-scheduler");
    let extender = read_object(&client, &extender).await;
    let extender = extender.map_err(|error| api_error("cannot read the extender", error))?;
    if extender.as_ref().is_some_and(|found| !is_released(found)) {
        let program = paste::program();
        return Err(Advised::new(
            format!("helm has not installed the Sublet in {NAMESPACE}"),
            format!(
                "`{program} install` makes it one; what kubectl has applied goes by \
                 `{program} install --manifests | kubectl delete -f -`"
            ),
        )
        .into());
    }
    let serves = extender.as_ref().is_some_and(serves_default_scheduler);
    restore(&client, args, serves, &mut report).await?;
    let limit = format!("{}s", args.timeout);
    let words = [
        "uninstall",
        RELEASE,
        "--ignore-not-found",
        "--wait",
        "--timeout",
        &limit,
    ];
    report.helm = helm::run(kubeconfig, words)?;
    // While an agent runs it writes; and until the policies are gone nobody else may.
    until(deadline, async || {
        let pods = pods(&client, NAMESPACE, "app.kubernetes.io/name=sublet").await?;
        Ok((!pods.is_empty()).then(|| format!("{} pods of Sublet are still there", pods.len())))
    })
    .await?;
    clean_nodes(&client, deadline).await?;
    report.answer(args.cluster.output)
}

/// Puts the cluster's own scheduler back before the extender that it asks goes away.
async fn restore(
    client: &Client,
    args: &Args,
    serves: bool,
    report: &mut Report,
) -> anyhow::Result<()> {
    let place = Place::new(&args.cluster.manifests_dir);
    let change = match place.restored() {
        Ok(change) => change,
        // Most clusters' schedulers were never touched, and most machines are no control planes.
        Err(_) if !serves => return Ok(()),
        Err(trouble) => {
            let advice = trouble.advice();
            return Err(Advised::new(
                "the cluster's own scheduler asks Sublet, and its manifest cannot be put back",
                advice,
            )
            .caused_by(trouble)
            .into());
        }
    };
    if let Some(change) = change {
        progress(&format!(
            "{}: put back; waiting for the scheduler",
            place.manifest().display()
        ));
        place.make(&change)?;
        let limit = Duration::from_secs(args.cluster.scheduler_timeout);
        if let Err(lacking) = until_scheduler_back(client, None, limit).await {
            return Err(Advised::new(
                format!("the cluster's own scheduler has its old manifest, but: {lacking}"),
                "kubectl logs -n kube-system -l component=kube-scheduler says more; then run this \
                 again",
            )
            .into());
        }
        report
            .notes
            .push("the cluster's own scheduler is as it was".to_owned());
    }
    Ok(place.tidy()?)
}

/// Whether the cluster's own scheduler asks this extender.
fn serves_default_scheduler(extender: &Value) -> bool {
    let pod = &extender["spec"]["template"]["spec"];
    let args = pod["containers"][0]["args"].as_array();
    let mut args = args.into_iter().flatten();
    pod["hostNetwork"] == true && args.any(|word| word == "--scheduler-name=default-scheduler")
}

/// Removes the agents' marks from nodes.
async fn clean_nodes(client: &Client, deadline: Instant) -> Result<(), Advised> {
    let kind = ApiResource::erase::<Node>(&());
    let listed = list_whole(client, &kind, None, None).await;
    for node in listed.map_err(|error| api_error("cannot list nodes", error))? {
        let Some((annotations, amounts)) = traces(&node) else {
            continue;
        };
        let name = node["metadata"]["name"].as_str().unwrap_or_default();
        let writes = [Act::MergeStatus(amounts), Act::Merge(annotations)].map(|act| Write {
            to: ObjectAddress::of::<Node>(None, name),
            act,
        });
        // A policy is asked for a moment after it is deleted.
        until(deadline, async || {
            for write in &writes {
                match perform(client, write, "sublet", ANSWER).await {
                    Ok(()) | Err(WriteError::Refused { code: 404, .. }) => {}
                    Err(error) => {
                        return Ok(Some(format!(
                            "node {name} keeps what the agent wrote: {error}"
                        )));
                    }
                }
            }
            Ok(None)
        })
        .await?;
    }
    Ok(())
}

/// Patches that remove an agent's marks from its node: annotations, and amounts in the status.
/// `None` for a node that had no agent. Kubelet writes the amounts that a device plugin has
/// registered again.
fn traces(node: &Value) -> Option<(Value, Value)> {
    let written = [
        keys::INVENTORY,
        keys::HANDED_OVER,
        keys::MEASURED_USE,
        keys::AGENT_AWAY,
        keys::NOT_ISOLATED,
    ];
    let annotations = node["metadata"]["annotations"].as_object()?;
    if !written.iter().any(|key| annotations.contains_key(*key)) {
        return None;
    }
    let nothing = |keys: &mut dyn Iterator<Item = &str>| -> Map<String, Value> {
        keys.map(|key| (key.to_owned(), Value::Null)).collect()
    };
    let amounts = |list: &str| {
        let there = node["status"][list].as_object();
        let mut ours = dialect::device_resources()
            .filter(|name| there.is_some_and(|there| there.contains_key(*name)));
        nothing(&mut ours)
    };
    Some((
        json!({"metadata": {"annotations": nothing(&mut written.into_iter())}}),
        json!({"status": {"capacity": amounts("capacity"), "allocatable": amounts("allocatable")}}),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_loses_what_the_agent_wrote_and_nothing_else() {
        let node = json!({
            "metadata": {"annotations": {"sublet.dev/inventory": "x", "a": "b"}},
            "status": {"capacity": {"cpu": "1", "aliyun.com/gpu-mem": "9"}, "allocatable": {"cpu": "1"}},
        });
        let (annotations, amounts) = traces(&node).unwrap();
        let cleared = annotations["metadata"]["annotations"].as_object().unwrap();
        assert!(cleared.values().all(Value::is_null));
        assert!(cleared.contains_key("sublet.dev/inventory") && !cleared.contains_key("a"));
        assert_eq!(
            amounts,
            json!({"status": {"capacity": {"aliyun.com/gpu-mem": null}, "allocatable": {}}})
        );
        let foreign = json!({"metadata": {"annotations": {"a": "b"}}});
        assert_eq!(traces(&foreign), None);
    }
}
