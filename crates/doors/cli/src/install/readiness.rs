//! Checks whether pods are ready, and what they wait for if not. Pure: objects in, an answer out.

use serde_json::Value;
use sublet_api::keys;

use super::static_pod;

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
