//! Checks whether objects are ready, and what they wait for if not. Pure: objects in, an answer
//! out.

use serde_json::Value;
use sublet_api::keys;

use super::static_pod;

/// Condition that a Deployment or a DaemonSet still waits for; `None` when all its pods are ready.
pub(super) fn lacking(workload: &Value) -> Option<String> {
    let number = |path: &str| workload.pointer(path).and_then(Value::as_i64);
    let generation = number("/metadata/generation").unwrap_or(0);
    if number("/status/observedGeneration").unwrap_or(0) < generation {
        return Some("its controller has not seen it yet".to_owned());
    }
    let status = |field: &str| number(&format!("/status/{field}")).unwrap_or(0);
    let (wanted, updated, ready) = match workload["kind"].as_str() {
        Some("DaemonSet") => (
            status("desiredNumberScheduled"),
            status("updatedNumberScheduled"),
            status("numberAvailable"),
        ),
        _ => (
            number("/spec/replicas").unwrap_or(1),
            status("updatedReplicas"),
            status("availableReplicas"),
        ),
    };
    if updated < wanted {
        return Some(format!("{updated} of {wanted} pods are of this version"));
    }
    // While pods of an earlier version are there, they may be those that are ready.
    let old = status("replicas") - updated;
    if old > 0 && workload["kind"] == "Deployment" {
        return Some(format!("{old} pods of an earlier version are still there"));
    }
    (ready < wanted).then(|| format!("{ready} of {wanted} pods are ready"))
}

/// Reasons why pods do not get ready, in the words of kubelet or the scheduler.
pub(super) fn complaints(pods: &[Value]) -> Vec<String> {
    let mut complaints = Vec::new();
    for pod in pods {
        let name = pod["metadata"]["name"].as_str().unwrap_or_default();
        if let Some(why) = complaint(pod) {
            complaints.push(format!("pod {name}: {why}"));
        }
    }
    complaints
}

fn complaint(pod: &Value) -> Option<String> {
    let said = |state: &Value| {
        let reason = state["reason"].as_str()?;
        Some(match state["message"].as_str() {
            Some(message) => format!("{reason}: {}", message.trim()),
            None => reason.to_owned(),
        })
    };
    let states = pod["status"]["containerStatuses"]
        .as_array()
        .into_iter()
        .flatten();
    let waiting = states.clone().find_map(|status| {
        let waiting = said(&status["state"]["waiting"])?;
        // Why it ended says more than that it ended.
        let ended = said(&status["lastState"]["terminated"]);
        Some(ended.map_or(waiting.clone(), |ended| format!("{waiting} ({ended})")))
    });
    waiting.or_else(|| {
        let conditions = pod["status"]["conditions"].as_array()?;
        let refused = |condition: &&Value| {
            condition["type"] == "PodScheduled" && condition["status"] == "False"
        };
        said(conditions.iter().find(refused)?)
    })
}

/// Checks whether kubelet runs the kube-scheduler whose manifest has this mark (`None`: an
/// unpatched one), and finds it healthy. `pods`: the mirror pods of static pods. The error names
/// the missing state.
pub(super) fn is_back(pods: &[Value], mark: Option<&str>) -> Result<(), String> {
    let mirrors = pods
        .iter()
        .filter(|pod| pod["metadata"]["annotations"].get(keys::MIRROR).is_some());
    let mut found = mirrors.filter(|pod| static_pod::mark(pod) == mark);
    let Some(pod) = found.next() else {
        return Err("kubelet has not started it from the new manifest".to_owned());
    };
    let conditions = pod["status"]["conditions"].as_array().into_iter().flatten();
    let is_ready =
        |condition: &Value| condition["type"] == "Ready" && condition["status"] == "True";
    if pod["metadata"].get("deletionTimestamp").is_none() && conditions.clone().any(is_ready) {
        return Ok(());
    }
    Err(complaint(pod).unwrap_or_else(|| "it is not ready".to_owned()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_workload_is_ready_when_all_pods_of_the_newest_version_are() {
        let deployment = |observed: i64, status: Value| {
            let mut status = status;
            status["observedGeneration"] = observed.into();
            json!({"kind": "Deployment", "metadata": {"generation": 2}, "spec": {"replicas": 2}, "status": status})
        };
        let daemons = |status: Value| json!({"kind": "DaemonSet", "status": status});
        let table = [
            (deployment(1, json!({})), Some("not seen it")),
            (
                deployment(2, json!({"replicas": 2, "updatedReplicas": 1})),
                Some("1 of 2 pods are of"),
            ),
            (
                deployment(
                    2,
                    json!({"replicas": 3, "updatedReplicas": 2, "availableReplicas": 3}),
                ),
                Some("1 pods of an earlier"),
            ),
            (
                deployment(2, json!({"replicas": 2, "updatedReplicas": 2})),
                Some("0 of 2 pods are ready"),
            ),
            (
                deployment(
                    2,
                    json!({"replicas": 2, "updatedReplicas": 2, "availableReplicas": 2}),
                ),
                None,
            ),
            (daemons(json!({})), None),
            (
                daemons(json!({"desiredNumberScheduled": 1, "updatedNumberScheduled": 1})),
                Some("0 of 1"),
            ),
            (
                daemons(
                    json!({"desiredNumberScheduled": 1, "updatedNumberScheduled": 1, "numberAvailable": 1}),
                ),
                None,
            ),
        ];
        for (workload, words) in table {
            let lacks = lacking(&workload);
            assert_eq!(lacks.is_some(), words.is_some(), "{workload} {lacks:?}");
            assert!(
                lacks
                    .unwrap_or_default()
                    .contains(words.unwrap_or_default())
            );
        }
    }

    #[test]
    fn a_pod_says_why_it_does_not_get_ready() {
        let pods = [
            json!({"metadata": {"name": "a"}, "status": {"containerStatuses": [
                {"state": {"waiting": {"reason": "CrashLoopBackOff"}},
                 "lastState": {"terminated": {"reason": "Error", "message": "no such flag\n"}}}]}}),
            json!({"metadata": {"name": "b"}, "status": {"conditions": [
                {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes"}]}}),
            json!({"metadata": {"name": "c"}, "status": {"phase": "Running"}}),
        ];
        assert_eq!(
            complaints(&pods),
            [
                "pod a: CrashLoopBackOff (Error: no such flag)",
                "pod b: Unschedulable: 0/1 nodes"
            ]
        );
    }

    #[test]
    fn the_scheduler_is_back_when_its_own_manifest_runs_and_is_ready() {
        let pod = |mark: Option<&str>, ready: &str| {
            let mut pod = json!({
                "metadata": {"annotations": {"kubernetes.io/config.mirror": "x"}},
                "status": {"conditions": [{"type": "Ready", "status": ready}]},
            });
            if let Some(mark) = mark {
                pod["metadata"]["annotations"][keys::SCHEDULER_MARK] = mark.into();
            }
            pod
        };
        assert_eq!(is_back(&[pod(Some("m"), "True")], Some("m")), Ok(()));
        assert_eq!(is_back(&[pod(None, "True")], None), Ok(()));
        for pods in [
            vec![],
            vec![pod(None, "True")],
            vec![pod(Some("old"), "True")],
            vec![pod(Some("m"), "False")],
        ] {
            assert!(is_back(&pods, Some("m")).is_err(), "{pods:?}");
        }
        // A pod of that name that no kubelet runs from a file says nothing.
        let stranger = json!({"metadata": {}, "status": {"conditions": [{"type": "Ready", "status": "True"}]}});
        assert!(is_back(&[stranger], None).is_err());
    }
}
