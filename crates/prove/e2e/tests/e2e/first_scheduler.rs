//! The cluster's own scheduler, which pods get that name none: without our extender, where
//! such pods get no card, and with it, by the configuration that GPUShare published.

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use sublet_e2e::{Placed, World, eventually, yaml};

/// Starts it; with the lines of extenders.
fn start(world: &World, extenders: &str) -> Result<()> {
    let kubeconfig = world.cluster.kubeconfig("system:kube-scheduler")?;
    let config = format!(
        "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n\
         leaderElection: {{leaderElect: false}}\n\
         clientConnection: {{kubeconfig: {}}}\n{extenders}",
        kubeconfig.display()
    );
    world
        .cluster
        .start_scheduler("kube-scheduler", &kubeconfig, &config, &[])
}

/// The published configuration, with a kube-scheduler that sends whole nodes.
fn published(port: u16) -> String {
    format!(
        "extenders:\n- urlPrefix: http://127.0.0.1:{port}/gpushare-scheduler\n  \
         filterVerb: filter\n  bindVerb: bind\n  enableHTTPS: false\n  \
         nodeCacheCapable: false\n  ignorable: false\n  \
         managedResources:\n  - {{name: aliyun.com/gpu-mem, ignoredByScheduler: false}}\n"
    )
}

/// A pod that names no scheduler.
fn plain(name: &str, memory: u32) -> String {
    let pod = yaml::Pod {
        name,
        limits: &[&format!("aliyun.com/gpu-mem: {memory}")],
        ..yaml::Pod::default()
    };
    pod.yaml()
        .replace("  schedulerName: sublet-scheduler\n", "")
}

/// The warning that kubectl shows when these objects are created; nothing is kept of them.
fn warning(world: &World, yaml: &str) -> Option<String> {
    let args = [
        "apply",
        "--dry-run=server",
        "--warnings-as-errors",
        "-f",
        "-",
    ];
    let answer = world.cluster.kubectl_with_input(&args, yaml);
    answer.err().map(|error| format!("{error:#}"))
}

#[test]
fn without_our_extender_a_pod_is_warned_of_and_told_why_it_has_no_card() -> Result<()> {
    let Some(world) = World::start()? else {
        return Ok(());
    };
    start(&world, "")?;
    world.cluster.apply(&yaml::share_node("n1", 2, 32_552))?;
    let deployment = yaml::Pod {
        name: "many",
        limits: &["aliyun.com/gpu-mem: 100"],
        ..yaml::Pod::default()
    }
    .deployment(2);
    let named = deployment.clone();
    let unnamed = deployment.replace("schedulerName: sublet-scheduler", "dnsPolicy: Default");
    let no_gpu = plain("web", 1).replace("aliyun.com/gpu-mem: 1", "cpu: 1");
    eventually(|| {
        let words = warning(&world, &plain("a", 100)).context("no warning")?;
        ensure!(
            words.contains("Warning: ")
                && words.contains("the scheduler default-scheduler does not ask Sublet")
                && words.contains("set schedulerName: sublet-scheduler"),
            "{words}"
        );
        Ok(())
    })?;
    let words = warning(&world, &unnamed).context("no warning")?;
    assert!(
        words.contains("set schedulerName: sublet-scheduler"),
        "{words}"
    );
    assert_eq!(warning(&world, &named), None);
    assert_eq!(warning(&world, &no_gpu), None);
    where_pods_are_assigned_workloads_are_not_warned_of(&world, &unnamed)?;
    // The API server has found nothing to say against the policy's expressions.
    eventually(|| {
        let policy = world.get(&["validatingadmissionpolicy", "sublet-scheduler-named"])?;
        let checked = &policy["status"]["typeChecking"];
        ensure!(*checked == serde_json::json!({}), "{checked}");
        Ok(())
    })?;

    world.cluster.apply(&plain("a", 100))?;
    assert_eq!(
        world.until_placed("a")?,
        Placed {
            node: "n1".into(),
            card: String::new()
        }
    );
    let cause = "it was placed by the scheduler default-scheduler, which does not ask Sublet";
    let event = world.until_event("a", cause)?;
    assert!(
        event.contains("100 MiB of each GPU of node n1 is kept free"),
        "{event}"
    );
    assert!(
        event.contains("give it `schedulerName: sublet-scheduler`"),
        "{event}"
    );
    let (code, text, notes) = world.sublet(&["explain", "pod", "a"])?;
    assert_eq!(code, 0);
    assert!(text.contains(cause), "{text}");
    assert!(
        notes.contains("hint: give it `schedulerName: sublet-scheduler`"),
        "{notes}"
    );
    Ok(())
}

/// A workload is judged before the webhook names the scheduler of its pods: by its namespace's label, or
/// for all namespaces. A pod itself is judged after it.
fn where_pods_are_assigned_workloads_are_not_warned_of(world: &World, unnamed: &str) -> Result<()> {
    let kubectl = |args: &[&str]| world.cluster.kubectl(args).map(drop);
    let until = |warned: bool| {
        eventually(|| {
            let words = warning(world, unnamed);
            ensure!(words.is_some() == warned, "{words:?}");
            Ok(words.unwrap_or_default())
        })
    };
    let label = |name: &str| {
        let label = format!("sublet.dev/assign-scheduler{name}");
        kubectl(&["label", "namespace", "default", "--overwrite", &label])
    };
    label("=sublet-scheduler")?;
    until(false)?;
    ensure!(
        warning(world, &plain("a", 100)).is_some(),
        "no webhook runs"
    );
    label("=other")?;
    let words = until(true)?;
    ensure!(
        words.contains("the scheduler other does not ask"),
        "{words}"
    );
    label("-")?;
    until(true)?;
    let assign = |to: &str| {
        let data = format!(r#"{{"data":{{"assigned":"{to}"}}}}"#);
        let of_ours = ["-n", "sublet-system", "-p", &data];
        kubectl(&[&["patch", "configmap", "sublet-schedulers"], &of_ours[..]].concat())
    };
    assign("sublet-scheduler")?;
    until(false)?;
    label("=default-scheduler")?;
    until(true)?;
    label("-")?;
    assign("")?;
    until(true).map(drop)
}

#[test]
fn with_the_published_configuration_it_sends_whole_nodes_and_places_pods_by_card() -> Result<()> {
    let both = ["sublet-scheduler", "default-scheduler"];
    let flags = both.map(|name| ["--scheduler-name", name]);
    let Some(world) = World::start_with(&flags.concat())? else {
        return Ok(());
    };
    start(&world, &published(world.port))?;
    let list = r#"{"data":{"names":"sublet-scheduler default-scheduler"}}"#;
    let map = [
        "patch",
        "configmap",
        "sublet-schedulers",
        "-n",
        "sublet-system",
        "-p",
        list,
    ];
    world.cluster.kubectl(&map)?;
    eventually(|| match warning(&world, &plain("a", 1)) {
        None => Ok(()),
        Some(words) => anyhow::bail!("{words}"),
    })?;
    let nodes = yaml::share_node("n1", 2, 32_552) + &yaml::share_node("n2", 1, 16_276);
    world.cluster.apply(&nodes)?;
    for (name, memory) in [("a", 12_207), ("b", 12_207), ("c", 12_207)] {
        world.cluster.apply(&plain(name, memory))?;
    }
    let mut places = Vec::new();
    for name in ["a", "b", "c"] {
        let Placed { node, card } = world.until_placed(name)?;
        places.push(format!("{node}/{card}"));
    }
    places.sort();
    assert_eq!(places, ["n1/0", "n1/1", "n2/0"]);
    // The sum of n1 is enough, and no card.
    world.cluster.apply(&plain("d", 8_138))?;
    let words = world.until_refused("d")?;
    assert!(words.contains("no GPU has 8138 MiB free"), "{words}");
    world.until_event("d", "n1: GPU 0 lacks 4069 MiB")?;
    let events = world.get(&["events"])?.to_string();
    assert!(!events.contains("GpuUnknown"), "{events}");
    let explain = ["explain", "pod", "d", "--scheduler-name"];
    let (_, text, _) = world.sublet(&[&explain[..], &["default-scheduler"]].concat())?;
    assert!(text.contains("it waits for room"), "{text}");
    world.cluster.kubectl(&["delete", "pod", "b"])?;
    world.until_placed("d")?;
    eventually(|| {
        let page: Value = serde_json::from_str(&world.page("/gpushare-scheduler/inspect")?)?;
        let nodes = page["nodes"].as_array().cloned().unwrap_or_default();
        let used = nodes.iter().filter_map(|node| node["usedGPU"].as_u64());
        let used: u64 = used.sum();
        ensure!(used == 2 * 12_207 + 8_138, "{used} MiB in use");
        Ok(())
    })
}
