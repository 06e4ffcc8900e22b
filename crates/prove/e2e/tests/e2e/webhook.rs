//! The webhooks, called by the real API server: what becomes of a pod when it is created, and of a
//! Binding by a stranger; and that nothing stops when the webhooks are away.

use std::collections::BTreeMap;
use std::fmt::Write;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use sublet_e2e::{World, eventually, yaml};
use sublet_testbed::{Signal, deployed, free_port};

/// A pod of one container, in a namespace.
fn pod(name: &str, namespace: &str, limits: &Value) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "automountServiceAccountToken": false,
            "terminationGracePeriodSeconds": 1,
            "containers": [{
                "name": "c0", "image": "sublet.test/busybox:1",
                "resources": {"limits": limits},
            }],
        },
    })
}

fn named(mut pod: Value, scheduler: &str) -> Value {
    pod["spec"]["schedulerName"] = json!(scheduler);
    pod
}

/// The pod as the API server would store it, under another name.
fn tried(world: &World, pod: &Value) -> Result<Value> {
    let namespace = &pod["metadata"]["namespace"];
    let mut pod = pod.clone();
    pod["metadata"] = json!({"generateName": "tried-", "namespace": namespace});
    let args = [
        "create",
        "--filename",
        "-",
        "--dry-run=server",
        "--output=json",
    ];
    let made = world.cluster.kubectl_with_input(&args, &pod.to_string())?;
    Ok(serde_json::from_str(&made)?)
}

fn make(world: &World, pod: &Value) -> Result<()> {
    let args = ["create", "--filename", "-"];
    world
        .cluster
        .kubectl_with_input(&args, &pod.to_string())
        .map(drop)
}

/// Field path of the allocation in the environment of the first container.
fn field(pod: &Value) -> Option<&str> {
    let env = pod["spec"]["containers"][0]["env"].as_array()?;
    let ours = env
        .iter()
        .rev()
        .find(|one| one["name"] == "SUBLET_ALLOCATION")?;
    ours["valueFrom"]["fieldRef"]["fieldPath"].as_str()
}

const PART: &str = "aliyun.com/gpu-mem";

/// Waits until a pod for our scheduler is completed.
fn until_asked(world: &World) -> Result<()> {
    let part = named(
        pod("asked", "default", &json!({PART: "1"})),
        "sublet-scheduler",
    );
    eventually(|| {
        let made = tried(world, &part)?;
        field(&made)
            .context("the webhook is not asked yet")
            .map(drop)
    })
}

fn label(world: &World, namespace: &str, labels: &[&str]) -> Result<()> {
    let whom = ["label", "namespace", namespace, "--overwrite"];
    world
        .cluster
        .kubectl(&[&whom[..], labels].concat())
        .map(drop)
}

fn start() -> Result<Option<World>> {
    let Some(world) = World::start()? else {
        return Ok(None);
    };
    world.cluster.apply(&yaml::share_node("n1", 2, 32_552))?;
    world.start_controller(&[])?;
    until_asked(&world)?;
    Ok(Some(world))
}

#[test]
fn gpu_pods_are_completed_and_bad_ones_refused_at_creation() -> Result<()> {
    let Some(world) = start()? else {
        return Ok(());
    };
    completes(&world)?;
    leaves_alone(&world)?;
    refuses(&world)?;
    outlives_the_webhook(&world)
}

fn completes(world: &World) -> Result<()> {
    let part = pod("part", "default", &json!({PART: "100"}));
    // It names no scheduler, and nobody has said which it should get.
    let made = tried(world, &part)?;
    assert_eq!(made["spec"]["schedulerName"], "default-scheduler");
    assert_eq!(field(&made), None);

    label(
        world,
        "default",
        &["sublet.dev/assign-scheduler=sublet-scheduler"],
    )?;
    let made = eventually(|| {
        let made = tried(world, &part)?;
        ensure!(
            made["spec"]["schedulerName"] == "sublet-scheduler",
            "{}",
            made["spec"]
        );
        Ok(made)
    })?;
    assert_eq!(
        field(&made),
        Some("metadata.annotations['sublet.dev/allocation']")
    );
    make(world, &part)?;
    assert_eq!(world.until_placed("part")?.node, "n1");
    let allocation =
        world.get(&["pod", "part"])?["metadata"]["annotations"]["sublet.dev/allocation"].clone();
    ensure!(allocation.is_string(), "no allocation: {allocation}");

    // Written again by somebody who copies it, it stays as it is.
    assert_eq!(
        tried(world, &made)?["spec"]["containers"],
        made["spec"]["containers"]
    );

    label(world, "default", &["sublet.dev/add-slots=true"])?;
    eventually(|| {
        let made = tried(world, &part)?;
        let asked = &made["spec"]["containers"][0]["resources"];
        for list in ["limits", "requests"] {
            ensure!(asked[list]["sublet.dev/gpu-slot"] == "1", "{asked}");
        }
        Ok(())
    })?;
    label(world, "default", &["sublet.dev/add-slots-"])?;

    // A namespace and its first pod in one go.
    let mut both = String::new();
    writeln!(
        both,
        "{{apiVersion: v1, kind: Namespace, metadata: {{name: team, labels: \
         {{sublet.dev/assign-scheduler: sublet-scheduler}}}}}}\n---"
    )?;
    writeln!(both, "{}", pod("first", "team", &json!({PART: "100"})))?;
    world
        .cluster
        .kubectl_with_input(&["create", "--filename", "-"], &both)?;
    let first = world.get(&["pod", "first", "--namespace=team"])?;
    assert_eq!(first["spec"]["schedulerName"], "sublet-scheduler");
    Ok(())
}

fn leaves_alone(world: &World) -> Result<()> {
    let part = json!({PART: "100"});
    for namespace in ["kube-system", "sublet-system"] {
        label(
            world,
            namespace,
            &["sublet.dev/assign-scheduler=sublet-scheduler"],
        )?;
        let odd = named(
            pod(
                "odd",
                namespace,
                &json!({PART: "1k", "nvidia.com/gpu": "1"}),
            ),
            "sublet-scheduler",
        );
        let made = tried(world, &odd)?;
        assert_eq!(field(&made), None, "{namespace}");
    }
    let plain = tried(world, &pod("plain", "default", &json!({"cpu": "1"})))?;
    assert_eq!(plain["spec"]["schedulerName"], "default-scheduler");
    assert_eq!(field(&plain), None);
    let others = tried(world, &named(pod("others", "default", &part), "other"))?;
    assert_eq!(others["spec"]["schedulerName"], "other");
    assert_eq!(field(&others), None);
    Ok(())
}

const TWO_WAYS: &str = "the pod asks for `aliyun.com/gpu-mem` and for `nvidia.com/gpu`";

fn refuses(world: &World) -> Result<()> {
    for (limits, words) in [
        (json!({PART: "1", "nvidia.com/gpu": "1"}), TWO_WAYS),
        (
            json!({"aliyun.com/gpu-core.percentage": "30"}),
            "container c0 asks for `aliyun.com/gpu-core.percentage` but for no `aliyun.com/gpu-mem`",
        ),
    ] {
        let bad = named(pod("bad", "default", &limits), "sublet-scheduler");
        let error = make(world, &bad).expect_err("it is refused").to_string();
        let said = format!("admission webhook \"pods.sublet.dev\" denied the request: {words}");
        ensure!(error.contains(&said), "{error}");
    }
    // Nobody would choose the card. What a kubelet runs from a file is there already.
    let part = json!({PART: "100"});
    let mut there = named(pod("there", "default", &part), "sublet-scheduler");
    there["spec"]["nodeName"] = json!("n1");
    let error = make(world, &there).expect_err("it is refused").to_string();
    ensure!(error.contains("`spec.nodeName` is `n1`"), "{error}");
    there["metadata"]["annotations"] = json!({"kubernetes.io/config.mirror": "x"});
    make(world, &there)?;
    let (_, text, notes) = world.sublet(&["explain", "pod", "there"])?;
    ensure!(text.contains("it is a static pod"), "{text}");
    ensure!(notes.contains("take the GPU out of that file"), "{notes}");
    // GPUShare's own samples mean GiB.
    let few = named(
        pod("few", "default", &json!({PART: "2"})),
        "sublet-scheduler",
    );
    let args = [
        "create",
        "--dry-run=server",
        "--warnings-as-errors",
        "-f",
        "-",
    ];
    let warned = world.cluster.kubectl_with_input(&args, &few.to_string());
    let warned = warned.err().context("no warning")?.to_string();
    ensure!(
        warned.contains("asks for 2 of `aliyun.com/gpu-mem`"),
        "{warned}"
    );
    make(world, &few)?;
    world.until_event("few", "that is 2 MiB of a GPU")?;
    // Whoever makes pods for others says it where people look.
    let deployed = yaml::Pod {
        name: "deployed",
        limits: &["aliyun.com/gpu-mem: 1, nvidia.com/gpu: 1"],
        ..yaml::Pod::default()
    };
    world.cluster.apply(&deployed.deployment(1))?;
    eventually(|| {
        let events = world.get(&["events", "--field-selector=reason=FailedCreate"])?;
        ensure!(events.to_string().contains(TWO_WAYS), "{events}");
        Ok(())
    })
}

/// Without the webhook all is as it was before there was one.
fn outlives_the_webhook(world: &World) -> Result<()> {
    world.cluster.kill(deployed::CONTROLLER, Signal::KILL)?;
    let part = named(
        pod("later", "default", &json!({PART: "100"})),
        "sublet-scheduler",
    );
    make(world, &part)?;
    assert_eq!(field(&world.get(&["pod", "later"])?), None);
    world.until_placed("later")?;
    let bad = json!({PART: "1", "nvidia.com/gpu": "1"});
    make(
        world,
        &named(pod("bad", "default", &bad), "sublet-scheduler"),
    )?;
    world.until_event("bad", TWO_WAYS)?;

    // And back, with what is stored.
    world.cluster.start_again(deployed::CONTROLLER)?;
    until_asked(world)
}

/// Names of the pods of `lacking`, and whether each has its slot.
fn lacking(world: &World) -> Result<BTreeMap<String, bool>> {
    let pods = world.get(&["pods", "--selector=app=lacking"])?;
    let pods = pods["items"].as_array().cloned().unwrap_or_default();
    let pods = pods
        .iter()
        .filter(|pod| pod["metadata"]["deletionTimestamp"].is_null());
    let slot = |pod: &Value| {
        let limits = &pod["spec"]["containers"][0]["resources"]["limits"];
        !limits["sublet.dev/gpu-slot"].is_null()
    };
    let name = |pod: &Value| {
        pod["metadata"]["name"]
            .as_str()
            .unwrap_or_default()
            .to_owned()
    };
    Ok(pods.map(|pod| (name(pod), slot(pod))).collect())
}

/// Waits until the controller says this of a pod.
fn until_advised(world: &World, pod: &str, words: &str) -> Result<()> {
    eventually(|| {
        let field = format!("involvedObject.name={pod},reason=IncompletePod");
        let events = world
            .get(&["events", "--field-selector", &field])?
            .to_string();
        ensure!(events.contains(words), "{pod}: {events}");
        Ok(())
    })
}

/// The API server does not reach the webhook, and the controller runs: each pod goes once and no
/// more. When it does, the rest follows.
#[test]
fn pods_that_nobody_completed_are_made_anew_once() -> Result<()> {
    let Some(world) = World::start()? else {
        return Ok(());
    };
    world.cluster.apply(&yaml::share_node("n1", 2, 32_552))?;
    let ports = world.start_controller(&[])?;
    until_asked(&world)?;
    world.call_webhook_at(free_port()?)?;
    until_not_asked(&world)?;

    make_pods_that_lack_a_slot(&world)?;
    replicas_are_made_anew_once(&world)?;
    until_advised(&world, "lone", "delete the pod and create it again")?;
    let of_job = world.get(&["pods", "--selector=of=once"])?;
    let of_job = of_job["items"][0]["metadata"]["name"]
        .as_str()
        .context("no pod")?
        .to_owned();
    until_advised(&world, &of_job, "counts this one as a failure")?;
    world.get(&["pod", &of_job])?;

    // The webhook is back, as a pod shows that comes now.
    world.call_webhook_at(ports.calls)?;
    until_asked(&world)?;
    world
        .cluster
        .kubectl(&["scale", "deployment/lacking", "--replicas=3"])?;
    until_all_replicas_have_slots(&world)?;
    // Nothing that waits for something else goes.
    world.get(&["pod", "lone"]).map(drop)
}

fn until_not_asked(world: &World) -> Result<()> {
    eventually(|| {
        let part = named(
            pod("asked", "default", &json!({PART: "1"})),
            "sublet-scheduler",
        );
        ensure!(field(&tried(world, &part)?).is_none(), "it is still asked");
        Ok(())
    })
}

/// Makes two pods of a Deployment, one that nobody looks after, and one of a Job.
fn make_pods_that_lack_a_slot(world: &World) -> Result<()> {
    let many = yaml::Pod {
        name: "lacking",
        limits: &["sublet.dev/gpu-memory: 4Gi"],
        ..yaml::Pod::default()
    };
    world.cluster.apply(&many.deployment(2))?;
    let own = json!({"sublet.dev/gpu-memory": "4Gi"});
    make(
        world,
        &named(pod("lone", "default", &own), "sublet-scheduler"),
    )?;
    let mut job = named(pod("", "default", &own), "sublet-scheduler");
    job["spec"]["restartPolicy"] = json!("Never");
    let job = json!({
        "apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "once"},
        "spec": {"template": {
            "metadata": {"labels": {"of": "once"}}, "spec": job["spec"],
        }},
    });
    make(world, &job)
}

fn replicas_are_made_anew_once(world: &World) -> Result<()> {
    let both = |pods: BTreeMap<String, bool>| {
        ensure!(pods.len() == 2, "{pods:?}");
        Ok(pods)
    };
    let first = eventually(|| both(lacking(world)?))?;
    let second = eventually(|| {
        let pods = both(lacking(world)?)?;
        ensure!(
            pods.keys().all(|name| !first.contains_key(name)),
            "{pods:?}"
        );
        Ok(pods)
    })?;
    ensure!(second.values().all(|has| !has), "{second:?}");
    for name in second.keys() {
        until_advised(world, name, "it was made anew already, and lacks it again")?;
    }
    ensure!(lacking(world)? == second, "made anew twice");
    Ok(())
}

/// The controller looks at them when something changes, or every few minutes.
fn until_all_replicas_have_slots(world: &World) -> Result<()> {
    let mut look = 0;
    eventually(|| {
        look += 1;
        let whom = ["label", "pods", "--selector=app=lacking", "--overwrite"];
        world
            .cluster
            .kubectl(&[&whom[..], &[&format!("look={look}")]].concat())?;
        let pods = lacking(world)?;
        ensure!(pods.len() == 3 && pods.values().all(|has| *has), "{pods:?}");
        Ok(())
    })
}

/// The name of the cluster's own scheduler.
const STRANGER: &str = "system:kube-scheduler";

#[test]
fn a_strangers_binding_of_a_gpu_pod_is_refused_at_once() -> Result<()> {
    let Some(world) = start()? else {
        return Ok(());
    };
    world.cluster.apply(&yaml::share_node("n2", 2, 32_552))?;
    // n1 has our agent.
    world.report_as_agent("n1", "size-and-order", &[16_276])?;

    // Nobody schedules these.
    let part = json!({PART: "100"});
    for name in ["strange", "elsewhere", "unseen"] {
        make(&world, &named(pod(name, "default", &part), "nobody"))?;
    }
    let plain = pod("plain", "default", &json!({"cpu": "10m"}));
    make(&world, &named(plain, "nobody"))?;
    let bind = |name: &str, node: &str| world.bind_as(STRANGER, name, node, &json!({}));
    // The API server may not trust the webhook yet, and would let a Binding through.
    let refused = eventually(|| {
        let tried = world.try_binding_as(STRANGER, "strange", "n1");
        let refused = tried.err().context("the webhook is not asked yet")?;
        Ok(refused.to_string())
    })?;
    let words = format!(
        "admission webhook \"bindings.sublet.dev\" denied the request: pod default/strange asks for \
         a GPU, and node n1 hands out only cards that Sublet has chosen; this Binding by {STRANGER} \
         chooses none; create it with `schedulerName: sublet-scheduler`, or bind it to a node \
         without Sublet's agent"
    );
    ensure!(refused.contains(&words), "{refused}");
    let error = bind("strange", "n1")
        .expect_err("it is refused")
        .to_string();
    ensure!(error.contains(&words), "{error}");
    let pod = world.get(&["pod", "strange"])?;
    assert_eq!(pod["spec"]["nodeName"], Value::Null);

    // Other pods, other nodes, and our own scheduler.
    bind("plain", "n1")?;
    bind("elsewhere", "n2")?;
    let ours = named(self::pod("ours", "default", &part), "sublet-scheduler");
    make(&world, &ours)?;
    world.until_placed("ours")?;

    // Away, it holds nobody up; the agent is the second line (`real_node`).
    world.cluster.kill(deployed::CONTROLLER, Signal::KILL)?;
    bind("unseen", "n1")
}
