//! `sublet install` and `sublet uninstall` on a stock control plane, and the cluster's own
//! kube-scheduler started from the manifest that kubeadm wrote and `sublet install` patched.
//!
//! KWOK plays the nodes, so the workloads get ready without running. `kubelet` runs static pods.

mod kubelet;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::Ordering;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use sublet_e2e::{binaries, eventually, yaml};
use sublet_testbed::{Cluster, ClusterOptions, Helm, User, deployed, free_port, kwok_node};

use self::kubelet::Kubelet;
use crate::chart::helm;

const FIXTURE: &str = include_str!("../../../../../fixtures/kubeadm/plain.yaml");

const ALICE: &str = "alice";

/// A cluster without Sublet: a control plane's node, and a node with two cards.
struct Site {
    cluster: Cluster,
    helm: Helm,
    sublet: PathBuf,
    /// The folder of static pods.
    manifests: PathBuf,
}

impl Site {
    fn start() -> Result<Option<Site>> {
        let (Some(binaries), Some(helm)) = (binaries()?, helm()) else {
            return Ok(None);
        };
        let sublet = std::env::var_os("SUBLET_BIN").context("SUBLET_BIN is not set")?;
        let mut options = ClusterOptions::new(binaries);
        options.users = deployed::accounts();
        options.users.push(User::new(ALICE, &[]));
        let cluster = Cluster::start(options)?;
        let nodes = kwok_node("cp", &[], &[]) + &yaml::share_node("gpu", 2, 32_552);
        cluster.apply(&nodes)?;
        let role = "node-role.kubernetes.io/control-plane=";
        cluster.kubectl(&["label", "node", "cp", role])?;
        cluster.kubectl(&["label", "--overwrite", "node", "gpu", "gpushare=true"])?;
        // As kubeadm wrote it, but for where this cluster's kubeconfig is.
        let manifests = cluster.dir().join("kubernetes/manifests");
        fs::create_dir_all(&manifests)?;
        let kubeconfig = cluster.kubeconfig("system:kube-scheduler")?;
        let kubeconfig = kubeconfig.display().to_string();
        let text = FIXTURE.replace("/etc/kubernetes/scheduler.conf", &kubeconfig);
        fs::write(manifests.join("kube-scheduler.yaml"), text)?;
        Ok(Some(Site {
            cluster,
            helm,
            sublet: sublet.into(),
            manifests,
        }))
    }

    fn manifest(&self) -> Result<String> {
        Ok(fs::read_to_string(
            self.manifests.join("kube-scheduler.yaml"),
        )?)
    }

    /// Exit code, standard output and standard error of `sublet`.
    fn sublet_as(&self, user: &str, args: &[&str]) -> Result<(i32, String, String)> {
        let mut sublet = Command::new(&self.sublet);
        self.helm.put_on_path(&mut sublet);
        let kubeconfig = self.cluster.kubeconfig(user)?;
        let output = sublet.args(args).env("KUBECONFIG", kubeconfig).output()?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let code = output.status.code().unwrap_or(-1);
        Ok((code, text(&output.stdout), text(&output.stderr)))
    }

    /// The output of `sublet`, which must do what it is told.
    fn sublet(&self, args: &[&str]) -> Result<String> {
        let (code, text, notes) = self.sublet_as("admin", args)?;
        ensure!(code == 0, "sublet {args:?}: {code}\n{text}\n{notes}");
        Ok(text)
    }

    /// `sublet install` with the folder of static pods.
    fn patch(&self, port: u16, more: &[&str]) -> Result<(i32, String, String)> {
        let folder = self.manifests.display().to_string();
        let port = port.to_string();
        let patch = [
            "install",
            "--image",
            "r.test/sublet:1",
            "--patch-default-scheduler",
        ];
        let place = ["--manifests-dir", &folder, "--extender-port", &port];
        self.sublet_as("admin", &[&patch[..], &place, more].concat())
    }

    fn get(&self, args: &[&str]) -> Result<Value> {
        let text = self
            .cluster
            .kubectl(&[&["get"], args, &["-o", "json"]].concat())?;
        Ok(serde_json::from_str(&text)?)
    }

    /// Objects of the manifests that are there: `kind name revision`.
    fn objects(&self) -> Result<Vec<String>> {
        let manifests = self.sublet(&["install", "--manifests"])?;
        let args = ["get", "-f", "-", "--ignore-not-found", "-o", "json"];
        let text = self.cluster.kubectl_with_input(&args, &manifests)?;
        if text.trim().is_empty() {
            return Ok(Vec::new());
        }
        let found: Value = serde_json::from_str(&text)?;
        let one = [found.clone()];
        let items = found["items"]
            .as_array()
            .map_or(&one[..], |items| &items[..]);
        // The status of workloads changes as their pods come up, and that of policies when their
        // expressions have been checked.
        const CHANGE: [&str; 4] = [
            "Deployment",
            "DaemonSet",
            "PodDisruptionBudget",
            "ValidatingAdmissionPolicy",
        ];
        let title = |item: &Value| {
            let meta = &item["metadata"];
            let word = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            let (kind, name) = (word(&item["kind"]), word(&meta["name"]));
            match CHANGE.contains(&&*kind) {
                true => format!("{kind} {name}"),
                false => format!("{kind} {name} {}", word(&meta["resourceVersion"])),
            }
        };
        Ok(items.iter().map(title).collect())
    }

    /// The same without revisions.
    fn left(&self) -> Result<Vec<String>> {
        let kind_and_name = |object: String| {
            let words: Vec<&str> = object.split(' ').take(2).collect();
            words.join(" ")
        };
        Ok(self.objects()?.into_iter().map(kind_and_name).collect())
    }

    fn until_bound(&self, pod: &str) -> Result<Value> {
        eventually(|| {
            let pod = self.get(&["pod", pod])?;
            ensure!(
                pod["spec"]["nodeName"].is_string(),
                "not bound: {}",
                pod["status"]
            );
            Ok(pod)
        })
    }
}

#[test]
fn one_command_installs_it_and_one_removes_it_and_users_objects_stay() -> Result<()> {
    let Some(site) = Site::start()? else {
        return Ok(());
    };
    Kubelet::new(&site).during(|| {
        eventually(|| site.get(&["pod", "-n", "kube-system", "kube-scheduler-cp"]))?;
        looked_at_first(&site)?;

        let install = ["install", "--image", "r.test/sublet:1"];
        let text = site.sublet(&install)?;
        assert!(text.contains("kubectl label node NODE gpushare=true"), "{text}");
        // Its pods have the images that were said, and the scheduler that of the cluster's own.
        let pods = site.get(&["pods", "-n", "sublet-system"])?.to_string();
        for image in ["r.test/sublet:1", "registry.test/kube-scheduler:v1.36.3"] {
            assert!(pods.contains(image), "no {image}");
        }
        // A second time leaves in the Secrets what our processes have put there.
        for name in ["sublet-extender-certificates", "sublet-webhook-certificates"] {
            let fill = ["patch", "secret", name, "-n", "sublet-system", "-p", r#"{"data": {"a": "eA=="}}"#];
            site.cluster.kubectl(&fill)?;
        }
        let before = site.objects()?;
        site.sublet(&install)?;
        assert_eq!(site.objects()?, before);
        // Without the option the image stays, and a value of the chart is another.
        site.sublet(&["install", "--set", "scheduler.replicas=1"])?;
        let deployment = site.get(&["deployment", "-n", "sublet-system", "sublet-scheduler"])?;
        assert_eq!(deployment["spec"]["replicas"], 1);
        assert!(deployment.to_string().contains("r.test/sublet:1"), "{deployment}");

        let flavor = "apiVersion: sublet.dev/v1alpha1\nkind: GpuFlavor\nmetadata: {name: half}\nspec: {memoryPercent: 50}\n";
        site.cluster.apply(flavor)?;
        let [user, _, _, node] = deployed::as_agent_of("gpu");
        let annotated = ["annotate", "node", "gpu", "sublet.dev/inventory=x"];
        site.cluster.kubectl(&[&annotated[..], &[&user, &node]].concat())?;

        let text = site.sublet(&["uninstall"])?;
        assert!(text.contains("[CustomResourceDefinition] gpuflavors.sublet.dev"), "{text}");
        assert_eq!(site.left()?, STAY);
        site.get(&["gpuflavor", "half"])?;
        let node = site.get(&["node", "gpu"])?;
        assert_eq!(node["metadata"]["annotations"].get("sublet.dev/inventory"), None);
        // A second time there is nothing more to remove.
        site.sublet(&["uninstall"])?;
        assert_eq!(site.left()?, STAY);
        Ok(())
    })
}

/// Helm leaves these.
const STAY: [&str; 3] = [
    "Namespace sublet-system",
    "CustomResourceDefinition gpuflavors.sublet.dev",
    "CustomResourceDefinition sharepods.kubeshare.nthu",
];

/// Checks the messages before anything is done, for a user who may install and one who may not.
fn looked_at_first(site: &Site) -> Result<()> {
    let text = site.sublet(&["install", "--preflight"])?;
    for line in [
        "ok       API server",
        "ok       your rights",
        "ok       nodes               1 have the label",
        "warning  images              without --image",
    ] {
        assert!(text.contains(line), "{text}");
    }
    let (code, text, _) = site.sublet_as(ALICE, &["install"])?;
    assert_eq!(code, 1);
    assert!(text.contains("you may not create configmaps"), "{text}");
    let text = site.sublet(&["install", "--dry-run", "server"])?;
    assert!(text.contains("kind: DaemonSet"), "{text}");
    assert_eq!(site.objects()?, [""; 0], "a dry run has made something");
    let text = site.sublet(&[
        "install",
        "--dry-run",
        "client",
        "--image",
        "r.test/sublet:1",
    ])?;
    assert!(text.contains("image: r.test/sublet:1 "), "{text}");
    let (code, _, notes) = site.sublet_as(
        "admin",
        &["install", "--manifests", "--set", "memoryUnit=GiB"],
    )?;
    assert_eq!(code, 2);
    assert!(notes.contains("only helm can put in others"), "{notes}");
    // Helm's own words about a value.
    let (code, _, notes) = site.sublet_as("admin", &["install", "--set", "memoryUnit=MB"])?;
    assert_eq!(code, 1);
    assert!(
        notes.contains("value must be one of 'MiB', 'GiB'"),
        "{notes}"
    );
    assert_eq!(site.objects()?, [""; 0], "it was installed all the same");

    let plugin = "apiVersion: apps/v1\nkind: DaemonSet\nmetadata: {name: gpushare-device-plugin-ds, namespace: kube-system}\n\
        spec:\n  selector: {matchLabels: {a: b}}\n  template:\n    metadata: {labels: {a: b}}\n    \
        spec: {nodeSelector: {gpushare: 'true'}, containers: [{name: c, image: x}]}\n";
    site.cluster.apply(plugin)?;
    let (code, text, _) = site.sublet_as("admin", &["install"])?;
    assert_eq!(code, 1);
    assert!(
        text.contains("error    other GPU software")
            && text.contains("let it run on other nodes only"),
        "{text}"
    );
    assert_eq!(site.objects()?, [""; 0], "it was installed all the same");
    site.cluster.kubectl(&[
        "delete",
        "daemonset",
        "-n",
        "kube-system",
        "gpushare-device-plugin-ds",
    ])?;
    Ok(())
}

/// A pod that names no scheduler.
fn pod(name: &str, limits: &[&str]) -> String {
    let pod = yaml::Pod {
        name,
        limits,
        ..yaml::Pod::default()
    };
    pod.yaml()
        .replace("  schedulerName: sublet-scheduler\n", "")
}

#[test]
fn the_clusters_own_scheduler_asks_for_gpu_pods_and_no_other_pod_waits_for_the_extender()
-> Result<()> {
    let Some(site) = Site::start()? else {
        return Ok(());
    };
    let kubelet = Kubelet::new(&site);
    kubelet.during(|| {
        eventually(|| site.get(&["pod", "-n", "kube-system", "kube-scheduler-cp"]))?;
        let kubeadms = site.manifest()?;
        let port = free_port()?;

        kubelet.starts_patched.store(false, Ordering::SeqCst);
        let (code, _, notes) = site.patch(port, &["--scheduler-timeout", "3"])?;
        assert_eq!(code, 1, "{notes}");
        assert!(
            notes.contains("did not come up within 3s: kubelet has not started it")
                && notes.contains("its manifest is as it was, and it runs again"),
            "{notes}"
        );
        assert_eq!(site.manifest()?, kubeadms);

        kubelet.starts_patched.store(true, Ordering::SeqCst);
        let (code, text, notes) = site.patch(port, &[])?;
        assert_eq!(code, 0, "{text}{notes}");
        let patched = site.manifest()?;
        assert!(patched.contains("--config="), "{patched}");
        let (code, text, notes) = site.patch(port, &[])?;
        assert_eq!(code, 0, "{text}{notes}");
        assert_eq!(site.manifest()?, patched, "a second time");
        shares_the_loopback(&site, port)?;

        asks_for_gpu_pods_alone(&site, port)?;

        // Whoever installs again without the flag does not cut off the scheduler.
        site.sublet(&["install", "--image", "r.test/sublet:2"])?;
        let deployment = site.get(&["deployment", "-n", "sublet-system", "sublet-scheduler"])?;
        assert_eq!(deployment["spec"]["template"]["spec"]["hostNetwork"], true);
        // Nor does whoever removes it on a machine that has no manifest.
        let (code, _, notes) =
            site.sublet_as("admin", &["uninstall", "--manifests-dir", "/nonexistent"])?;
        assert_eq!(code, 1);
        assert!(notes.contains("its manifest cannot be put back"), "{notes}");

        let folder = site.manifests.display().to_string();
        let text = site.sublet(&["uninstall", "--manifests-dir", &folder])?;
        assert!(
            text.contains("the cluster's own scheduler is as it was"),
            "{text}"
        );
        assert_eq!(site.manifest()?, kubeadms);
        assert_eq!(site.left()?, STAY);
        assert!(
            !beside(&site.manifests, "sublet").exists(),
            "files are left"
        );
        site.cluster.apply(&pod("last", &["cpu: 1"]))?;
        site.until_bound("last")?;
        Ok(())
    })
}

fn beside(folder: &Path, name: &str) -> PathBuf {
    folder.with_file_name(name)
}

/// The extender is in the network of the control plane's node, and knows both schedulers; so does
/// whatever else goes by their names.
fn shares_the_loopback(site: &Site, port: u16) -> Result<()> {
    let ours = ["-n", "sublet-system"];
    let get = |what: &[&str]| site.get(&[&ours[..], what].concat());
    let pod = get(&["deployment", "sublet-scheduler"])?["spec"]["template"]["spec"].clone();
    assert_eq!(pod["hostNetwork"], true);
    let role = &pod["nodeSelector"]["node-role.kubernetes.io/control-plane"];
    assert_eq!(*role, "");
    let listen = format!("--listen=127.0.0.1:{port}");
    let both = "\"--scheduler-name=sublet-scheduler\",\"--scheduler-name=default-scheduler\"";
    for (at, flags) in [
        (0_usize, [&*listen, both]),
        (1, [&*listen, "--stand-in-for="]),
        (2, ["--secure-port=39993", "--config="]),
    ] {
        let args = pod["containers"][at]["args"].to_string();
        assert!(flags.iter().all(|flag| args.contains(*flag)), "{args}");
    }
    let controller = get(&["deployment", "sublet-controller"])?.to_string();
    assert!(controller.contains(both), "{controller}");
    let list = get(&["configmap", "sublet-schedulers"])?;
    assert_eq!(list["data"]["names"], "sublet-scheduler default-scheduler");
    let map = get(&["configmap", "sublet-kube-scheduler"])?.to_string();
    assert!(
        map.contains(&format!("http://127.0.0.1:{port}/sublet")),
        "{map}"
    );
    Ok(())
}

/// The real kube-scheduler, with the command line of the patched manifest, and the real extender.
fn asks_for_gpu_pods_alone(site: &Site, port: u16) -> Result<()> {
    let both = [
        "--scheduler-name",
        "sublet-scheduler",
        "--scheduler-name",
        "default-scheduler",
    ];
    deployed::start_extender_on(&site.cluster, &site.sublet, port, &both)?;
    site.cluster
        .apply(&pod("a", &["aliyun.com/gpu-mem: 12207"]))?;
    let bound = site.until_bound("a")?;
    let card = &bound["metadata"]["annotations"]["ALIYUN_COM_GPU_MEM_IDX"];
    assert!(card.is_string(), "{bound}");
    // Then 4,069 are free on each card: the sum has room for a third, and no card.
    for (name, limit) in [
        ("b", "aliyun.com/gpu-mem: 12207"),
        ("c", "aliyun.com/gpu-mem: 8138"),
    ] {
        site.cluster.apply(&pod(name, &[limit]))?;
    }
    eventually(|| {
        let pods = site.get(&["pods"])?.to_string();
        ensure!(
            pods.contains("no GPU has 8138 MiB free"),
            "nobody is refused"
        );
        Ok(())
    })?;

    site.cluster.stop(deployed::EXTENDER);
    site.cluster
        .apply(&pod("d", &["aliyun.com/gpu-mem: 100"]))?;
    site.cluster.apply(&pod("plain", &["cpu: 1"]))?;
    site.until_bound("plain")?;
    eventually(|| {
        let pod = site.get(&["pod", "d"])?;
        let Some(condition) = pod["status"]["conditions"][0]["message"].as_str() else {
            bail!("nothing is said of it: {}", pod["status"]);
        };
        ensure!(pod["spec"]["nodeName"].is_null(), "it was bound without us");
        ensure!(condition.contains("/sublet/filter"), "{condition}");
        Ok(())
    })?;
    deployed::start_extender_on(&site.cluster, &site.sublet, port, &both)?;
    site.until_bound("d")?;
    site.cluster.stop(deployed::EXTENDER);
    site.cluster
        .kubectl(&["delete", "pods", "--all", "--now"])?;
    Ok(())
}
