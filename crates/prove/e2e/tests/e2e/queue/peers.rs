//! Objects that the documents of Koordinator and scheduler-plugins tell their users to apply do,
//! unchanged, what these documents say. scheduler-plugins' pages are read out of its own module;
//! the objects of Koordinator's manual are in `fixtures/peers`.

use std::fs;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use sublet_e2e::{Lease, World, eventually};
use sublet_testbed::{GoModule, Helm, KOORDINATOR, SCHEDULER_PLUGINS, kwok_node};

use super::{running, until_running, until_told};

const GANG: &str = include_str!("../../../../../../fixtures/peers/koordinator-gang.yaml");
const ANNOTATED: &str =
    include_str!("../../../../../../fixtures/peers/koordinator-gang-annotations.yaml");
const QUOTA: &str = include_str!("../../../../../../fixtures/peers/koordinator-quota.yaml");
const QUOTA_OF_NAMESPACE: &str =
    include_str!("../../../../../../fixtures/peers/koordinator-quota-namespace.yaml");

/// The cluster, whose kube-scheduler answers to the peers' names; and a node with so many CPUs.
fn world_with(cpus: u32) -> Result<Option<Lease>> {
    if Helm::from_env().is_none() {
        println!("skipped: SUBLET_HELM is not set; run `cargo xtask test`");
        return Ok(None);
    }
    let Some(world) = World::lease_queueing()? else {
        return Ok(None);
    };
    let node = kwok_node("n1", &[], &[]).replace("cpu: '64'", &format!("cpu: '{cpus}'"));
    world.cluster.apply(&node)?;
    Ok(Some(world))
}

/// A namespace, with these labels, in which pods can be created at once.
fn namespace(world: &World, name: &str, labels: &str) -> Result<()> {
    world.cluster.apply(&format!(
        "{{apiVersion: v1, kind: Namespace, metadata: {{name: {name}, labels: {{{labels}}}}}}}"
    ))?;
    eventually(|| {
        world
            .get(&["serviceaccount", "default", "-n", name])
            .map(drop)
    })
}

fn apply_in(world: &World, namespace: &str, manifest: &str) -> Result<()> {
    let args = ["apply", "--namespace", namespace, "--filename", "-"];
    world.cluster.kubectl_with_input(&args, manifest).map(drop)
}

/// The first block of code on a page that has all these words, without its indentation.
fn block(module: GoModule, page: &str, words: &[&str]) -> Result<String> {
    let path = module.folder()?.join(page);
    let text = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
    let mut found: Option<(usize, String)> = None;
    for line in text.lines() {
        let is_fence = line.trim_start().starts_with("```");
        match found.take() {
            None if is_fence => {
                found = Some((line.len() - line.trim_start().len(), String::new()));
            }
            None => {}
            Some((_, block)) if is_fence && words.iter().all(|word| block.contains(word)) => {
                return Ok(block);
            }
            Some(_) if is_fence => {}
            Some((indent, block)) => {
                let line = line.get(indent..).unwrap_or_default();
                found = Some((indent, block + line + "\n"));
            }
        }
    }
    anyhow::bail!("{page} has no block with {words:?}");
}

/// Objects that the commands of a block apply.
fn applied(block: &str) -> String {
    let documents = block.split("kubectl apply -f -\n").skip(1);
    let documents = documents.filter_map(|rest| rest.split_once("\nEOF"));
    documents
        .map(|(document, _)| format!("---\n{document}\n"))
        .collect()
}

fn until_status(
    world: &World,
    kind: &str,
    (namespace, name): (&str, &str),
    status: &Value,
) -> Result<()> {
    eventually(|| {
        let object = world.get(&[kind, name, "-n", namespace])?;
        let wanted = status.as_object().context("no fields")?;
        for (field, value) in wanted {
            ensure!(object["status"][field] == *value, "{object}");
        }
        Ok(())
    })
}

/// Number of pods of a namespace that are on a node and stay.
fn placed(world: &World, namespace: &str) -> Result<usize> {
    let list = world.get(&["pods", "-n", namespace])?;
    let pods = list["items"].as_array().context("no list")?;
    let stays = |pod: &&Value| {
        pod["spec"]["nodeName"].is_string() && pod["metadata"]["deletionTimestamp"].is_null()
    };
    Ok(pods.iter().filter(stays).count())
}

/// `pkg/coscheduling/README.md`: a cluster that can only afford three of the pods. With a minimum of
/// four all are pending, with three as many run.
#[test]
fn the_demo_of_coscheduling_runs_three_of_six() -> Result<()> {
    let Some(world) = world_with(10)? else {
        return Ok(());
    };
    let demo = block(
        SCHEDULER_PLUGINS,
        "pkg/coscheduling/README.md",
        &["kind: PodGroup", "kind: ReplicaSet"],
    )?;
    // On the page it is the cluster's only scheduler.
    namespace(
        &world,
        "coscheduling",
        "sublet.dev/assign-scheduler: sublet-scheduler",
    )?;
    apply_in(
        &world,
        "coscheduling",
        &demo.replace("minMember: 3", "minMember: 4"),
    )?;
    until_told(
        &world,
        "coscheduling",
        "nginx",
        "4 members that start together",
    )?;
    assert_eq!(placed(&world, "coscheduling")?, 0);
    apply_in(&world, "coscheduling", &demo)?;
    until_running(&world, &[("nginx", 3)])?;
    until_told(
        &world,
        "coscheduling",
        "nginx",
        "it runs, and more of it wait",
    )?;
    let status = serde_json::json!({"phase": "Running", "running": 3});
    let group = "podgroups.scheduling.x-k8s.io";
    until_status(&world, group, ("coscheduling", "nginx"), &status)?;
    assert_eq!(placed(&world, "coscheduling")?, 3);
    Ok(())
}

/// `doc/install.md`, as a second scheduler: two pods of a group of three are pending; with a third all
/// run.
#[test]
fn the_test_of_the_installation_runs_when_the_third_pod_comes() -> Result<()> {
    let Some(world) = world_with(10)? else {
        return Ok(());
    };
    let page = "doc/install.md";
    let group = block(SCHEDULER_PLUGINS, page, &["# podgroup.yaml"])?;
    let deployment = block(SCHEDULER_PLUGINS, page, &["# deploy.yaml"])?;
    // As the note on the page says for who runs it as a second scheduler.
    let named = "    spec:\n      schedulerName: scheduler-plugins-scheduler\n      containers:";
    let deployment = deployment.replace("    spec:\n      containers:", named);
    ensure!(deployment.contains(named), "{deployment}");
    world.cluster.apply(&group)?;
    world.cluster.apply(&deployment)?;
    until_told(
        &world,
        "default",
        "pg1",
        "2 members that wait, and starts when there are 3",
    )?;
    assert_eq!(placed(&world, "default")?, 0);
    let scale = ["scale", "deploy", "pause", "--replicas=3"];
    world.cluster.kubectl(&scale)?;
    until_running(&world, &[("pause", 3)])?;
    let status = serde_json::json!({"phase": "Running", "running": 3});
    let group = "podgroups.scheduling.x-k8s.io";
    until_status(&world, group, ("default", "pg1"), &status)
}

/// The demo of capacity scheduling: of four pods three run by what another team does not use, and
/// one of them goes when that team asks for its part.
#[test]
fn the_demo_of_capacity_scheduling_lends_and_takes_back() -> Result<()> {
    let Some(world) = world_with(8)? else {
        return Ok(());
    };
    let page = "pkg/capacityscheduling/README.md";
    let quotas = block(
        SCHEDULER_PLUGINS,
        page,
        &["create ns quota1", "create ns quota2"],
    )?;
    let app = |namespace: &str| {
        let word = format!("namespace: {namespace}\n");
        block(SCHEDULER_PLUGINS, page, &["kind: Deployment", &word])
    };
    for name in ["quota1", "quota2"] {
        // Pods that name no gang and no quota queue where their namespace says so.
        let labels = "sublet.dev/queue: enabled, sublet.dev/assign-scheduler: sublet-scheduler";
        namespace(&world, name, labels)?;
    }
    let quota = |name: &str, used: &str| {
        let status = serde_json::json!({"used": {"cpu": used}});
        let kind = "elasticquotas.scheduling.x-k8s.io";
        until_status(&world, kind, (name, name), &status)
    };
    world.cluster.apply(&applied(&quotas))?;
    world.cluster.apply(&applied(&app("quota1")?))?;
    quota("quota1", "6")?;
    assert_eq!(placed(&world, "quota1")?, 3);
    world.cluster.apply(&applied(&app("quota2")?))?;
    quota("quota2", "4")?;
    quota("quota1", "4")?;
    assert_eq!(
        (placed(&world, "quota1")?, placed(&world, "quota2")?),
        (2, 2)
    );
    Ok(())
}

/// Koordinator's manual: the first pod of a gang of two waits for the second.
#[test]
fn gangs_of_koordinators_manual_wait_for_their_second_pod() -> Result<()> {
    let Some(world) = world_with(8)? else {
        return Ok(());
    };
    for (manifest, told) in [(GANG, "gang-example"), (ANNOTATED, "pod-example1")] {
        let (first, second) = manifest.rsplit_once("---\n").context("one document")?;
        world.cluster.apply(first)?;
        until_told(
            &world,
            "default",
            told,
            "1 members that wait, and starts when there are 2",
        )?;
        assert_eq!(placed(&world, "default")?, 0, "{told}");
        world.cluster.apply(second)?;
        until_running(&world, &[("pod", 2)])?;
        if manifest == GANG {
            let status = serde_json::json!({"phase": "Running", "running": 2, "scheduled": 2});
            let kind = "podgroups.scheduling.sigs.k8s.io";
            until_status(&world, kind, ("default", "gang-example"), &status)?;
        }
        let delete = ["delete", "--now", "--filename", "-"];
        world.cluster.kubectl_with_input(&delete, manifest)?;
    }
    Ok(())
}

/// Koordinator's manual: a pod is counted by the label that names its quota, or by the name of its
/// namespace; and a quota goes after its pods.
#[test]
fn pods_of_koordinators_manual_are_counted_by_label_and_by_namespace() -> Result<()> {
    let Some(world) = world_with(8)? else {
        return Ok(());
    };
    let kind = "elasticquotas.scheduling.sigs.k8s.io";
    namespace(&world, "quota-example", "sublet.dev/queue: enabled")?;
    for (manifest, namespace) in [(QUOTA, "default"), (QUOTA_OF_NAMESPACE, "quota-example")] {
        world.cluster.apply(manifest)?;
        // 40m and 40Mi, as on the page.
        let used = serde_json::json!({"cpu": "40m", "memory": "40Mi"});
        let status = serde_json::json!({ "used": used });
        until_status(&world, kind, (namespace, "quota-example"), &status)?;
        let quota = world.get(&[kind, "quota-example", "-n", namespace])?;
        let request = &quota["metadata"]["annotations"]["quota.scheduling.koordinator.sh/request"];
        let request: Value = serde_json::from_str(request.as_str().context("no request")?)?;
        assert_eq!(request, used);
        until_running(&world, &[("pod", 1)])?;

        let delete = ["delete", kind, "quota-example", "-n", namespace];
        let refused = world
            .cluster
            .kubectl(&delete)
            .map_err(|error| format!("{error:#}"));
        let said = refused.err().context("a quota goes while it has pods")?;
        ensure!(
            said.contains("quota quota-example has pods: status.used"),
            "{said}"
        );
        let pod = ["delete", "pod", "pod-example", "-n", namespace, "--now"];
        world.cluster.kubectl(&pod)?;
        eventually(|| world.cluster.kubectl(&delete).map(drop))?;
    }
    assert!(running(&world)?.is_empty());
    Ok(())
}

/// Koordinator's proposal of several trees: its root, and a child that names no tree, because
/// Koordinator's webhook would write that into it.
#[test]
fn a_tree_of_koordinators_proposal_has_children_and_pods() -> Result<()> {
    let Some(world) = world_with(8)? else {
        return Ok(());
    };
    let page = "docs/proposals/scheduling/20240206-multi-tree-quota.md";
    let root = block(KOORDINATOR, page, &["kind: ElasticQuota\n", "is-root"])?;
    world.cluster.apply(&root)?;
    let child = "{apiVersion: scheduling.sigs.k8s.io/v1alpha1, kind: ElasticQuota, metadata: {name: \
                 test-child, namespace: kube-system, labels: \
                 {quota.scheduling.koordinator.sh/parent: cn-hangzhou-k-amd64-root-quota}}, spec: \
                 {max: {cpu: 3, memory: 6Gi}, min: {cpu: 3, memory: 6Gi}}}";
    eventually(|| world.cluster.apply(child).map(drop))?;
    let pod = QUOTA.rsplit_once("---\n").context("one document")?.1;
    world
        .cluster
        .apply(&pod.replace("\"quota-example\"", "test-child"))?;
    until_running(&world, &[("pod", 1)])?;
    let used = serde_json::json!({"used": {"cpu": "40m", "memory": "40Mi"}});
    let kind = "elasticquotas.scheduling.sigs.k8s.io";
    for quota in ["test-child", "cn-hangzhou-k-amd64-root-quota"] {
        until_status(&world, kind, ("kube-system", quota), &used)?;
    }
    let (code, text, notes) = world.sublet(&["queue", "--cluster", "-o", "json"])?;
    assert_eq!(code, 0, "{text}{notes}");
    Ok(())
}
