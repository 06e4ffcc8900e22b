//! Attacks with the stolen token of the controller: a thief can neither change the pods of others,
//! nor lead the webhooks elsewhere, nor start a pod that owns its node.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use sublet_e2e::{World, eventually};
use sublet_testbed::deployed;

use super::{Attack, all_refused, patched, refused};

const PODS: &str =
    "writes to pods only its own annotations and scheduling gate, and the nominated node";
const WEBHOOKS: &str = "writes to webhook configurations only the bundle of authorities";
const JOBS: &str = "writes to jobs only whether they are suspended";
const QUOTAS: &str = "writes to quotas and groups only their status and their share";
const SYSTEM: &str = "makes no pod in namespace";
const SHARE_PODS: &str = "makes pods of SharePods only";
const PRIVILEGES: &str = "the pod of a SharePod may not have";

const PROXY: &str = "v1 Pod kube-system/kube-proxy";
const OWN: &str = "v1 Pod default/own";
const OWN_STATUS: &str = "v1 Pod default/own status";
const CALLS: &str = "admissionregistration.k8s.io/v1 MutatingWebhookConfiguration sublet-pods";
const BINDINGS: &str =
    "admissionregistration.k8s.io/v1 ValidatingWebhookConfiguration sublet-bindings";
const JOB: &str = "batch/v1 Job default/work";
const QUOTA: &str = "scheduling.sigs.k8s.io/v1alpha1 ElasticQuota default/team";
const GROUP: &str = "scheduling.sigs.k8s.io/v1alpha1 PodGroup default/group";

/// Objects of others.
const OTHERS: &str = "
apiVersion: v1
kind: Pod
metadata: {name: kube-proxy, namespace: kube-system}
spec: {hostNetwork: true, containers: [{name: proxy, image: sublet.test/proxy:1}]}
---
apiVersion: v1
kind: Pod
metadata: {name: own, namespace: default}
spec:
  schedulingGates: [{name: sublet.dev/queue}, {name: example.org/later}]
  containers: [{name: c0, image: sublet.test/busybox:1}]
---
apiVersion: v1
kind: Pod
metadata: {name: placed, namespace: default}
spec: {nodeName: n1, containers: [{name: c0, image: sublet.test/busybox:1}]}
---
apiVersion: apps/v1
kind: ReplicaSet
metadata: {name: set, namespace: default}
spec:
  selector: {matchLabels: {of: set}}
  template:
    metadata: {labels: {of: set}}
    spec: {schedulerName: nobody, containers: [{name: c0, image: sublet.test/busybox:1}]}
---
apiVersion: batch/v1
kind: Job
metadata: {name: once, namespace: default}
spec:
  template:
    metadata: {labels: {of: job}}
    spec: {schedulerName: nobody, restartPolicy: Never, containers: [{name: c0, image: sublet.test/busybox:1}]}
---
apiVersion: batch/v1
kind: Job
metadata: {name: work, namespace: default}
spec:
  suspend: true
  template: {spec: {restartPolicy: Never, containers: [{name: c0, image: sublet.test/busybox:1}]}}
---
apiVersion: scheduling.sigs.k8s.io/v1alpha1
kind: ElasticQuota
metadata: {name: team, namespace: default}
spec: {min: {cpu: '1'}, max: {cpu: '2'}}
---
apiVersion: scheduling.sigs.k8s.io/v1alpha1
kind: PodGroup
metadata: {name: group, namespace: default}
spec: {minMember: 1}
---
apiVersion: v1
kind: Namespace
metadata: {name: privileged, labels: {sublet.dev/privileged-sharepods: allowed}}
";

/// Writes to what there is.
fn changes() -> Vec<Attack> {
    let refused = |why, rows: Vec<Try>| {
        let rows = rows.into_iter();
        rows.map(move |(attack, object, change)| (attack, object, change, why))
    };
    let pods = refused(PODS, pod_changes());
    let webhooks = refused(WEBHOOKS, webhook_changes());
    let jobs = refused(JOBS, job_changes());
    let quotas = refused(QUOTAS, quota_changes());
    pods.chain(webhooks).chain(jobs).chain(quotas).collect()
}

/// Name of a try, the object, and the change.
type Try = (&'static str, &'static str, Value);

fn metadata(field: &str, value: &Value) -> Value {
    json!({ "metadata": { field: value } })
}

fn pod_changes() -> Vec<Try> {
    let image = json!({ "spec": { "containers": [{ "name": "proxy", "image": "evil" }] } });
    let label = metadata("labels", &json!({ "app": "shop" }));
    let note = metadata("annotations", &json!({ "a": "b" }));
    let stays = metadata("finalizers", &json!(["a.b/c"]));
    let soon = json!({ "spec": { "activeDeadlineSeconds": 1 } });
    let foreign = json!([{ "op": "remove", "path": "/spec/schedulingGates/1" }]);
    let ip = json!({ "status": { "phase": "Running", "podIP": "10.9.9.9" } });
    vec![
        ("runs its own image as root", PROXY, image),
        ("has a Service choose a pod", OWN, label),
        ("writes what others read", OWN, note),
        ("keeps a pod for ever", OWN, stays),
        ("ends a pod", OWN, soon),
        ("lets a pod start that somebody holds", OWN, foreign),
        ("takes a Service's traffic", OWN_STATUS, ip),
    ]
}

fn webhook_changes() -> Vec<Try> {
    let set = |path: &str, value: Value| {
        let path = format!("/webhooks/0/{path}");
        json!([{ "op": "add", "path": path, "value": value }])
    };
    let elsewhere = || {
        set(
            "clientConfig",
            json!({ "url": "https://10.9.9.9:443/admit" }),
        )
    };
    let any = json!(["*"]);
    let all = json!([{
        "apiGroups": any, "apiVersions": any, "operations": any, "resources": any,
    }]);
    let everything = || set("rules", all.clone());
    let fails = set("failurePolicy", json!("Fail"));
    let everywhere = set("namespaceSelector", json!({}));
    let removed = json!([{ "op": "remove", "path": "/webhooks/0" }]);
    let label = metadata("labels", &json!({ "a": "b" }));
    vec![
        ("takes the webhook's calls", CALLS, elsewhere()),
        ("is called for every write", CALLS, everything()),
        ("stops all writes", CALLS, fails),
        ("is asked everywhere", CALLS, everywhere),
        ("has nobody asked", CALLS, removed),
        ("hides it from helm", CALLS, label),
        ("takes Bindings", BINDINGS, elsewhere()),
        ("judges every write", BINDINGS, everything()),
    ]
}

fn job_changes() -> Vec<Try> {
    let anywhere = json!({ "tolerations": [{ "operator": "Exists" }] });
    let template = json!({ "spec": { "suspend": false, "template": { "spec": anywhere } } });
    vec![
        ("changes what a job runs", JOB, template),
        (
            "runs more of it",
            JOB,
            json!({ "spec": { "parallelism": 9 } }),
        ),
        ("moves a job", JOB, metadata("labels", &json!({ "a": "b" }))),
        (
            "writes what others read of a job",
            JOB,
            metadata("annotations", &json!({ "a": "b" })),
        ),
    ]
}

fn quota_changes() -> Vec<Try> {
    let max = json!({ "spec": { "max": { "cpu": "999" } } });
    let note = metadata("annotations", &json!({ "a": "b" }));
    let members = json!({ "spec": { "minMember": 9 } });
    vec![
        ("gives a team all", QUOTA, max),
        (
            "moves a quota",
            QUOTA,
            metadata("labels", &json!({ "a": "b" })),
        ),
        ("writes what a quota counts", QUOTA, note),
        ("keeps a group from starting", GROUP, members),
    ]
}

/// Requests that the controller itself makes, so that none above is refused for another reason.
fn own() -> Vec<(&'static str, Value)> {
    let share = json!({ "quota.scheduling.koordinator.sh/runtime": "{}" });
    let slot = json!([
        { "op": "add", "path": "/metadata/annotations/sublet.dev~1slot", "value": "{}" },
        { "op": "remove", "path": "/spec/schedulingGates/0" },
    ]);
    let nominated = json!({ "status": { "nominatedNodeName": "n1" } });
    let went =
        json!({ "sublet.dev/reclaims": "1", "sublet.dev/reclaimed-at": "2026-01-01T00:00:00Z" });
    let went = metadata("annotations", &went);
    let used =
        json!({ "metadata": { "annotations": share }, "status": { "used": { "cpu": "1" } } });
    vec![
        (OWN, slot),
        (OWN_STATUS, nominated),
        (JOB, json!({ "spec": { "suspend": false } })),
        (JOB, went.clone()),
        (GROUP, went),
        (QUOTA, used),
        (GROUP, json!({ "status": { "phase": "Pending" } })),
    ]
}

/// Pods that it makes: how that is called, in which namespace, what of the pod is another, and the
/// refusal.
fn pods() -> Vec<Attack> {
    let spec = |field: &str, value: Value| json!({ "spec": { field: value } });
    let yes = |field: &str| spec(field, json!(true));
    let container = |more: Value| {
        let mut container = json!({ "name": "c0", "image": "evil" });
        json_patch::merge(&mut container, &more);
        spec("containers", json!([container]))
    };
    let secured = |security: Value| container(json!({ "securityContext": security }));
    let disk = spec(
        "volumes",
        json!([{ "name": "disk", "hostPath": { "path": "/" } }]),
    );
    let port = container(json!({ "ports": [{ "containerPort": 1, "hostPort": 443 }] }));
    let root = secured(json!({ "privileged": true }));
    let modules = secured(json!({ "capabilities": { "add": ["SYS_MODULE"] } }));
    let account = spec("serviceAccountName", json!("operator"));
    let stranger = metadata("ownerReferences", &json!(null));
    let node = spec("nodeName", json!("n1"));
    vec![
        (
            "takes an account of the system",
            "kube-system",
            json!({}),
            SYSTEM,
        ),
        ("takes one of ours", "sublet-system", json!({}), SYSTEM),
        ("makes any pod", "default", stranger, SHARE_PODS),
        ("chooses a node", "default", node, SHARE_PODS),
        (
            "listens on the node",
            "default",
            yes("hostNetwork"),
            PRIVILEGES,
        ),
        ("sees its processes", "default", yes("hostPID"), PRIVILEGES),
        ("reads its memory", "default", yes("hostIPC"), PRIVILEGES),
        ("mounts its disk", "default", disk, PRIVILEGES),
        ("takes its port", "default", port, PRIVILEGES),
        ("is root on it", "default", root, PRIVILEGES),
        ("loads modules", "default", modules, PRIVILEGES),
        ("is somebody else", "default", account, PRIVILEGES),
    ]
}

/// Would the API server take a pod of a SharePod from the holder of the token? It is as `change`
/// says.
fn make(world: &World, token: &Path, namespace: &str, change: &Value) -> Result<String> {
    let owner = json!([{
        "apiVersion": "kubeshare.nthu/v1", "kind": "SharePod", "name": "made", "uid": "1",
        "controller": true,
    }]);
    let mut pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": "made", "namespace": namespace, "ownerReferences": owner },
        "spec": {
            "automountServiceAccountToken": false,
            "containers": [{ "name": "c0", "image": "sublet.test/busybox:1" }],
        },
    });
    json_patch::merge(&mut pod, change);
    let args = ["create", "--dry-run=server", "--filename=-"];
    world
        .cluster
        .kubectl_by(token, &args, Some(&pod.to_string()))
}

/// Would it take an eviction?
fn evict(world: &World, token: &Path, pod: (&str, &str), options: &Value) -> Result<String> {
    let (namespace, name) = pod;
    let eviction = json!({
        "apiVersion": "policy/v1", "kind": "Eviction", "deleteOptions": options,
        "metadata": { "name": name, "namespace": namespace },
    });
    let path = format!("/api/v1/namespaces/{namespace}/pods/{name}/eviction?dryRun=All");
    let args = ["create", "--raw", &path, "--filename=-"];
    world
        .cluster
        .kubectl_by(token, &args, Some(&eviction.to_string()))
}

/// The pod with that label, once there is one.
fn pod_of(world: &World, label: &str) -> Result<String> {
    eventually(|| {
        let pods = world.get(&["pods", "--selector", &format!("of={label}")])?;
        let name = pods["items"][0]["metadata"]["name"].as_str();
        let name = name.context("there is none yet")?;
        Ok(format!("default/pods/{name}"))
    })
}

/// Would it delete a pod?
fn delete(world: &World, token: &Path, pod: &str) -> Result<String> {
    let path = format!("/api/v1/namespaces/{pod}?dryRun=All");
    world
        .cluster
        .kubectl_by(token, &["delete", "--raw", &path], None)
}

#[test]
fn a_stolen_controller_token_changes_nothing_that_others_run() -> Result<()> {
    let Some(world) = World::lease_queueing()? else {
        return Ok(());
    };
    let cluster = &world.cluster;
    cluster.apply(OTHERS)?;
    cluster.kubectl(&["create", "serviceaccount", "operator"])?;
    let token = cluster.kubeconfig(&deployed::account("sublet-controller").name)?;
    let tried = attacks(&world, &token);
    cluster.kubectl(&["delete", "serviceaccount", "operator"])?;
    cluster.kubectl(&["delete", "namespace", "privileged"])?;
    cluster.kubectl(&[
        "delete",
        "replicaset/set",
        "job/once",
        "pod/placed",
        "--force",
    ])?;
    tried
}

fn attacks(world: &World, token: &Path) -> Result<()> {
    let cluster = &world.cluster;
    all_refused(world, token, &changes())?;
    let mut through = Vec::new();
    for (attack, namespace, change, why) in pods() {
        match make(world, token, namespace, &change) {
            Ok(_) => through.push(attack),
            Err(error) => ensure!(error.to_string().contains(why), "{attack}: {error}"),
        }
    }
    ensure!(through.is_empty(), "these went through: {through:#?}");
    let at_once = json!({ "gracePeriodSeconds": 0 });
    for (attack, pod, options, why) in [
        (
            "evicts the system",
            ("kube-system", "kube-proxy"),
            json!({}),
            "evicts no pod in",
        ),
        (
            "kills a pod",
            ("default", "own"),
            at_once,
            "sets no terms for an eviction",
        ),
    ] {
        let error = refused(evict(world, token, pod, &options)).with_context(|| attack)?;
        ensure!(error.contains(why), "{attack}: {error}");
    }
    let of_job = pod_of(world, "job")?;
    for (pod, why) in [
        ("kube-system/pods/kube-proxy", "deletes no pod in namespace"),
        ("default/pods/placed", "deletes no pod that has a node"),
        ("default/pods/own", "deletes only pods that a ReplicaSet"),
        (of_job.as_str(), "deletes only pods that a ReplicaSet"),
    ] {
        let error = refused(delete(world, token, pod))?;
        ensure!(error.contains(why), "deletes {pod}: {error}");
    }
    for path in [
        "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/sublet-pods",
        "/apis/batch/v1/namespaces/default/jobs/work",
    ] {
        let error = refused(cluster.kubectl_by(token, &["delete", "--raw", path], None))?;
        ensure!(error.contains("is forbidden"), "deletes {path}: {error}");
    }

    for (object, change) in own() {
        patched(world, token, object, &change, true)
            .with_context(|| format!("{object} {change}"))?;
    }
    make(world, token, "default", &json!({}))?;
    delete(world, token, &pod_of(world, "set")?)?;
    let uid = world.get(&["pod", "own"])?["metadata"]["uid"].clone();
    let of_it = json!({ "preconditions": { "uid": uid } });
    evict(world, token, ("default", "own"), &of_it)?;
    // Whoever may label the namespace lets SharePods there do more.
    for (attack, namespace, change, _) in pods() {
        if namespace == "default" && change["spec"]["nodeName"].is_null() {
            let made = make(world, token, "privileged", &change);
            let is_allowed = change["metadata"].is_null();
            // The account is another one's, and not there.
            let is_allowed = is_allowed && change["spec"]["serviceAccountName"].is_null();
            ensure!(made.is_ok() == is_allowed, "{attack}: {made:?}");
        }
    }
    Ok(())
}

/// The API server reads policies against the kinds of objects that they are about.
#[test]
fn no_policy_has_a_mistake() -> Result<()> {
    let Some(world) = World::lease_queueing()? else {
        return Ok(());
    };
    eventually(|| {
        let policies = world.get(&["validatingadmissionpolicies"])?;
        let policies = policies["items"].as_array().context("no list")?;
        ensure!(policies.len() >= 12, "{} policies", policies.len());
        for policy in policies {
            let (name, status) = (&policy["metadata"]["name"], &policy["status"]);
            let seen = &status["observedGeneration"];
            ensure!(
                *seen == policy["metadata"]["generation"],
                "{name} is not read yet"
            );
            let warnings = &status["typeChecking"]["expressionWarnings"];
            ensure!(warnings.is_null(), "{name}: {warnings}");
        }
        Ok(())
    })
}
