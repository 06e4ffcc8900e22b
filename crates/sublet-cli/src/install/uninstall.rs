//! `sublet uninstall`: removes the objects that `sublet install` created, and the marks that
//! Sublet's processes wrote outside pods. Objects that users made stay, and so do the definitions
//! of their kinds.

use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use kube::core::{ApiResource, GroupVersionKind};
use serde_json::{Map, Value, json};
use sublet_api::{dialect, keys};
use sublet_client::{Client, ObjectAddress, delete_whole, list_whole, merge_whole, read_object};
use tokio::time::{Instant, sleep};

use super::host::Place;
use super::manifests::{self, Choices, NAMESPACE, Object};
use super::preflight::resource_title;
use super::print::{Applied, Outcome, Report};
use super::{ClusterArgs, MANAGER, apply, progress};
use crate::answer::{Advised, Answer, api_error, connected};

/// Pause between two checks while waiting.
const PAUSE: Duration = Duration::from_millis(500);

/// Arguments of `sublet uninstall`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Pods that run on GPUs go on. Definitions of which there are objects (GpuFlavor, SharePod) stay, and
are named. On the nodes, remove /var/lib/sublet and /run/sublet when no such pod is left.

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

/// Removes Sublet: the patch of the cluster's own scheduler first, then the objects that the API
/// server asks about pods, then the processes, then all else.
///
/// # Errors
/// The cluster cannot be asked or refuses something, or the scheduler's manifest is elsewhere.
pub async fn run(args: &Args) -> anyhow::Result<Answer> {
    let client = connected(args.cluster.kubeconfig.as_deref(), None).await?;
    let deadline = Instant::now() + Duration::from_secs(args.timeout);
    let mut report = Report::default();
    let mut objects = manifests::objects(&Choices::default());
    objects.reverse();
    restore(&client, args, &objects, &mut report).await?;
    let (namespace, others): (Vec<Object>, Vec<Object>) = objects
        .into_iter()
        .partition(|object| object.is("Namespace"));
    for object in &others {
        remove(&client, object, &mut report).await?;
    }
    // While an agent runs it writes; and until the policies are gone nobody else may.
    until(deadline, async || {
        let pods = apply::pods(&client, NAMESPACE, "app.kubernetes.io/name=sublet").await?;
        Ok((!pods.is_empty()).then(|| format!("{} pods of Sublet are still there", pods.len())))
    })
    .await?;
    clean_nodes(&client, deadline).await?;
    for object in &namespace {
        remove(&client, object, &mut report).await?;
        until(deadline, async || {
            let there = read_object(&client, &object.address).await;
            let there = there.map_err(|error| api_error("cannot read the namespace", error))?;
            let is_kept = there.as_ref().is_none_or(|found| !is_going(found));
            Ok((!is_kept).then(|| format!("{} is still there", object.title())))
        })
        .await?;
    }
    if report.objects.is_empty() {
        report
            .notes
            .push("nothing is installed that `sublet install` has put there".to_owned());
    }
    report.answer(args.cluster.output)
}

/// Puts the cluster's own scheduler back before the extender that it asks goes away.
async fn restore(
    client: &Client,
    args: &Args,
    objects: &[Object],
    report: &mut Report,
) -> anyhow::Result<()> {
    let place = Place::new(&args.cluster.manifests_dir);
    let mut serves = false;
    for object in objects.iter().filter(|object| object.is("Deployment")) {
        let found = read_object(client, &object.address).await;
        let found =
            found.map_err(|error| api_error(&format!("cannot read {}", object.title()), error))?;
        serves |= found.is_some_and(|found| manifests::served_port(&found).is_some());
    }
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
        if let Err(lacking) = apply::until_scheduler_back(client, None, limit).await {
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

async fn remove(client: &Client, object: &Object, report: &mut Report) -> Result<(), Advised> {
    let title = object.title();
    let failed = |error| api_error(&format!("cannot delete {title}"), error);
    let Some(found) = read_object(client, &object.address).await.map_err(failed)? else {
        return Ok(());
    };
    let why_kept = match applied_by_us(&found) {
        false => Some("`sublet install` has not put it there".to_owned()),
        true if object.is("CustomResourceDefinition") => holds(client, &object.value).await?,
        true => None,
    };
    let outcome = match &why_kept {
        Some(why) => {
            report.notes.push(format!("{title}: kept, because {why}"));
            Outcome::Kept
        }
        None => {
            delete_whole(client, &object.address)
                .await
                .map_err(failed)?;
            progress(&format!("{title}: deleted"));
            Outcome::Deleted
        }
    };
    report.objects.push(Applied {
        object: title,
        outcome,
    });
    Ok(())
}

/// Lists the users' objects of a kind, in words; `None` if there are none.
async fn holds(client: &Client, definition: &Value) -> Result<Option<String>, Advised> {
    let spec = &definition["spec"];
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let kind = GroupVersionKind::gvk(
        &text(&spec["group"]),
        &text(&spec["versions"][0]["name"]),
        &text(&spec["names"]["kind"]),
    );
    let kind = ApiResource::from_gvk_with_plural(&kind, &text(&spec["names"]["plural"]));
    let listed = list_whole(client, &kind, None, None).await;
    let count = listed
        .map_err(|error| api_error(&format!("cannot list {}", kind.plural), error))?
        .len();
    Ok((count > 0).then(|| {
        format!(
            "{count} of its objects are there (kubectl get {} -A)",
            resource_title(&kind.group, &kind.plural)
        )
    }))
}

fn applied_by_us(object: &Value) -> bool {
    let managers = object["metadata"]["managedFields"].as_array();
    managers
        .into_iter()
        .flatten()
        .any(|entry| entry["manager"] == MANAGER)
}

fn is_going(object: &Value) -> bool {
    object["metadata"].get("deletionTimestamp").is_some()
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
        let address = ObjectAddress::of::<Node>(None, name);
        // A policy is asked for a moment after it is deleted.
        until(deadline, async || {
            for (status, patch) in [(true, &amounts), (false, &annotations)] {
                if let Err(error) = merge_whole(client, &address, status, patch).await {
                    return Ok(Some(format!(
                        "node {name} keeps what the agent wrote: {error}"
                    )));
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

/// Polls until nothing is lacking.
///
/// # Errors
/// The objects still lacking at the deadline, or an error of the check.
async fn until(
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

    #[test]
    fn what_others_applied_is_not_ours() {
        let by = |manager: &str| json!({"metadata": {"managedFields": [{"manager": manager}]}});
        assert!(applied_by_us(&by("sublet-install")));
        assert!(!applied_by_us(&by("kubectl-client-side-apply")));
    }
}
