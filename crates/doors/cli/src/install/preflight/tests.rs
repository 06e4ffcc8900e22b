//! Each row is a cluster that differs in one thing from a healthy one.

use std::path::PathBuf;

use serde_json::json;

use super::*;

fn node(name: &str, labels: &Value) -> Value {
    let info = json!({"architecture": "amd64"});
    json!({"metadata": {"name": name, "labels": labels}, "status": {"nodeInfo": info}})
}

fn arm64(node: &mut Value) {
    node["status"]["nodeInfo"]["architecture"] = "arm64".into();
}

fn daemons(namespace: &str, name: &str, image: &str, selector: &Value) -> Value {
    json!({
        "metadata": {"namespace": namespace, "name": name},
        "spec": {"template": {"spec": {"nodeSelector": selector, "containers": [{"image": image}]}}},
    })
}

fn deployment(namespace: &str, name: &str, image: &str) -> Value {
    json!({
        "metadata": {"namespace": namespace, "name": name, "labels": {}},
        "spec": {"replicas": 1, "template": {"spec": {"containers": [{"image": image}]}}},
    })
}

/// Facts of a healthy cluster.
fn facts() -> Facts {
    Facts {
        helm: Some("v4.3.1".to_owned()),
        version: "v1.36.3".to_owned(),
        may_grant: true,
        nodes: vec![
            node("cp", &json!({CONTROL_PLANE: ""})),
            node("g1", &json!({"gpushare": "true", "pool": "a"})),
        ],
        daemon_sets: vec![daemons(
            "kube-system",
            "kube-proxy",
            "kube-proxy:1",
            &json!({}),
        )],
        image: Some("r.test/sublet:1".to_owned()),
        kube_scheduler_image: Some("r.test:5000/kube-scheduler:v1.36.3".to_owned()),
        patch: Some(Ok("it can be patched".to_owned())),
        ..Facts::default()
    }
}

/// The checks that are not ok, as `severity name: found`.
fn bad(facts: &Facts) -> Vec<String> {
    let checks = checks(facts);
    let bad = checks.iter().filter(|check| check.severity > Severity::Ok);
    bad.map(|check| {
        assert!(check.advice.is_some(), "{check:?}");
        format!("{:?} {}: {}", check.severity, check.name, check.found)
    })
    .collect()
}

#[test]
fn where_all_is_well_each_check_says_so() {
    let facts = facts();
    assert_eq!(bad(&facts), Vec::<String>::new());
    assert_eq!(checks(&facts).len(), 12);
}

/// Makes one thing of a cluster different.
type Change = fn(&mut Facts);

/// Faults of a cluster, and the check that names each.
const FAULTS: &[(Change, &str)] = &[
    (|f| f.helm = None, "Error helm: there is no `helm`"),
    (
        |f| f.helm = Some("v3.19.2+g8766e71".into()),
        "Error helm: it is v3.19.2+g8766e71, and Helm 4 or newer is needed",
    ),
    (
        |f| {
            f.version = "v1.29.4".into();
            f.kube_scheduler_image = Some("k:v1.29.4".into());
        },
        "Error API server: it is v1.29.4, and has no stable",
    ),
    (
        |f| {
            let note = "pending: making /var/lib/sublet failed: No space left on device";
            f.nodes[1]["metadata"]["annotations"] = json!({keys::NOT_ISOLATED: note});
        },
        "Warning isolation: node g1 hands out no part of a GPU until its agent can limit it: \
         making /var/lib/sublet failed",
    ),
    (
        |f| {
            let note = json!({keys::NOT_ISOLATED: "unsupported: no libraries"});
            f.nodes[1]["metadata"]["annotations"] = note;
        },
        "Warning isolation: containers on node g1 can use more than their part: no libraries",
    ),
    (
        |f| arm64(&mut f.nodes[1]),
        "Warning architecture: 1 of the nodes with the label gpushare=true are not amd64, for which Sublet is built: g1 is arm64",
    ),
    (
        |f| f.nodes.iter_mut().for_each(arm64),
        "Error architecture: none of 2 nodes is amd64, for which Sublet is built",
    ),
    (
        |f| f.kube_scheduler_image = Some("r.test/kube-scheduler:v1.29.4".into()),
        "Error kube-scheduler: it is v1.29.4 beside an API server of v1.36.3: it may be one",
    ),
    (
        |f| f.kube_scheduler_image = Some("r.test/k:v1.37.0@sha256:0".into()),
        "Error kube-scheduler: it is v1.37.0 beside an API server of v1.36.3: it may be one",
    ),
    (
        |f| {
            f.version = "v1.40.0-rc.1".into();
            f.kube_scheduler_image = Some("k:v1.40.0".into());
        },
        "Warning API server: it is v1.40.0-rc.1, newer",
    ),
    (
        |f| f.version = "unknown".into(),
        "Warning API server: it says",
    ),
    (
        |f| f.lacking = vec!["create deployments.apps".into()],
        "Error your rights: you may not create",
    ),
    (
        |f| f.may_grant = false,
        "Warning your rights: you may write roles",
    ),
    (
        |f| {
            f.daemon_sets.push(daemons(
                "kube-system",
                "gpushare-device-plugin-ds",
                "x",
                &json!({"gpushare": "true"}),
            ));
        },
        "Error other GPU software: GPUShare's device plugin registers aliyun.com/gpu-mem on g1 and 0 other nodes",
    ),
    (
        |f| {
            f.daemon_sets.push(daemons(
                "gpu",
                "plugin",
                "r.test/k8s-device-plugin:v0.17",
                &json!({}),
            ));
        },
        "Error other GPU software: NVIDIA's device plugin registers nvidia.com/gpu on g1",
    ),
    (
        |f| {
            f.deployments
                .push(deployment("kube-system", "gpushare-schd-extender", "x"));
        },
        "Error other GPU software: GPUShare's extender gives out the same memory: deployment kube-system/gpushare-schd-extender",
    ),
    (
        |f| {
            f.daemon_sets.push(daemons(
                "kube-system",
                "kubeshare-device-manager",
                "x",
                &json!({}),
            ));
        },
        "Error other GPU software: KubeShare makes the same pods",
    ),
    (
        |f| {
            let mut other = deployment("gpu", "sublet-scheduler", "sublet:1");
            other["metadata"]["labels"] = json!({"app.kubernetes.io/name": "sublet", "app.kubernetes.io/component": "scheduler"});
            f.deployments.push(other);
        },
        "Error another Sublet: there is one in namespace gpu",
    ),
    (
        |f| {
            let mut other = deployment("sublet-system", "sublet-scheduler", "sublet:1");
            other["metadata"]["labels"] = json!({"app.kubernetes.io/name": "sublet", "app.kubernetes.io/component": "scheduler"});
            other["metadata"]["annotations"] = json!({"meta.helm.sh/release-name": "gpus"});
            f.deployments.push(other);
        },
        "Error another Sublet: Helm's release gpus in sublet-system has installed it",
    ),
    (
        |f| {
            f.definitions
                .push(json!({"metadata": {"name": "sharepods.kubeshare.nthu"}}));
        },
        "Warning definitions: sharepods.kubeshare.nthu is there already",
    ),
    (
        |f| drop(f.nodes.pop()),
        "Warning nodes: none of 1 has the label",
    ),
    (
        |f| f.image = None,
        "Warning images: without --image it is the one that other values name",
    ),
    (
        |f| f.kube_scheduler_image = None,
        "Warning images: without --kube-scheduler-image",
    ),
    (
        |f| {
            f.patch = Some(Err(Trouble::Missing(PathBuf::from(
                "/m/kube-scheduler.yaml",
            ))));
        },
        "Error default scheduler: there is no /m/kube-scheduler.yaml",
    ),
    (
        |f| f.nodes.push(node("cp2", &json!({CONTROL_PLANE: ""}))),
        "Error control plane: it is 2 nodes",
    ),
    (
        |f| drop(f.nodes.remove(0)),
        "Error control plane: no node has the role",
    ),
];

#[test]
fn what_is_wrong_is_named_with_its_severity() {
    for (change, expected) in FAULTS {
        let mut facts = facts();
        change(&mut facts);
        let bad = bad(&facts);
        assert_eq!(bad.len(), 1, "{bad:?}");
        assert!(bad[0].starts_with(expected), "{bad:?}");
    }
}

/// An upgrade of the control plane leaves the scheduler one version behind for a while. The check
/// skips a version that cannot be read, a node without GPUs of ours, and a node whose kubelet has
/// reported nothing.
#[test]
fn what_kubernetes_allows_and_what_says_nothing_is_in_nobodys_way() {
    let mut facts = facts();
    for image in [
        "k:v1.35.9",
        "k:v1.36.0-site.1",
        "k:latest",
        "k",
        "r.test:5000/k",
        "k@sha256:0",
    ] {
        facts.kube_scheduler_image = Some(image.to_owned());
        assert_eq!(bad(&facts), Vec::<String>::new(), "{image}");
    }
    let mut other = node("arm", &json!({}));
    arm64(&mut other);
    facts.nodes.push(other);
    facts
        .nodes
        .push(json!({"metadata": {"name": "new", "labels": {"gpushare": "true"}}}));
    assert_eq!(bad(&facts), Vec::<String>::new());
}

#[test]
fn a_device_plugin_on_other_nodes_is_in_nobodys_way() {
    let mut facts = facts();
    facts.daemon_sets.push(daemons(
        "k",
        "hami-device-plugin",
        "x",
        &json!({"gpu": "on"}),
    ));
    assert_eq!(bad(&facts), Vec::<String>::new());
    facts
        .nodes
        .push(node("g2", &json!({"gpushare": "true", "gpu": "on"})));
    assert!(bad(&facts)[0].starts_with("Error other GPU software: HAMi's"));
    // An affinity may keep it away, and is not read.
    facts.daemon_sets[1]["spec"]["template"]["spec"]["affinity"] = json!({"nodeAffinity": {}});
    assert!(bad(&facts)[0].starts_with("Warning other GPU software: HAMi's"));
}

/// Helm takes over what kubectl has installed, and goes on with its own release.
#[test]
fn an_installation_of_our_own_is_no_other() {
    let mut facts = facts();
    let mut own = deployment(NAMESPACE, "sublet-scheduler", "sublet:1");
    own["metadata"]["labels"] =
        json!({"app.kubernetes.io/name": "sublet", "app.kubernetes.io/component": "scheduler"});
    facts.deployments.push(own);
    let label = json!({"app.kubernetes.io/name": "sublet"});
    facts
        .definitions
        .push(json!({"metadata": {"name": "gpuflavors.sublet.dev", "labels": label}}));
    assert_eq!(bad(&facts), Vec::<String>::new());
    assert!(!is_released(&facts.deployments[0]));
    facts.deployments[0]["metadata"]["annotations"] = json!({
        "meta.helm.sh/release-name": RELEASE,
        "meta.helm.sh/release-namespace": NAMESPACE,
    });
    assert_eq!(bad(&facts), Vec::<String>::new());
    assert!(is_released(&facts.deployments[0]));
}
