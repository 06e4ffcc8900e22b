//! The chart and the image that is handed out, on a real node: `sublet install` brings it from
//! nothing to a pod under its limit, and helm's upgrade, rollback and removal leave that pod alone.
//!
//! All of Sublet runs as pods here, beside the cluster's own scheduler. The node's pods have no
//! network, so that ours use the node's, on loopback. The cards are played.

mod standstill;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use sublet_e2e::{PodStream, Recorder, audit, binaries, eventually, yaml};
use sublet_testbed::{Cluster, ClusterOptions, Helm, Node, NodeOptions, chart_folder, free_port};

use crate::chart::{helm, repository};
use crate::real_node_isolation::{pod, stage_below};

const NAMESPACE: &str = "sublet-system";
const SCHEDULER_IMAGE: &str = "sublet.test/kube-scheduler:v1.36.3";

/// Until everything is as it should be.
const WAIT: [&str; 3] = ["--wait", "--timeout", "120s"];

/// The version that is released, and another name of the same image.
const FIRST: &str = env!("CARGO_PKG_VERSION");
const SECOND: &str = "second";

/// A node with images and no trace of Sublet.
struct Site {
    // Declared before the cluster, because the node leaves the cluster when it is dropped.
    node: Node,
    cluster: Cluster,
    helm: Helm,
    ports: Vec<u16>,
}

/// Folder in which the agent looks for others' descriptions of devices; kubelet makes the folder.
const FIXED_CDI: &str = "/etc/cdi";

impl Drop for Site {
    fn drop(&mut self) {
        // Only an empty folder goes: then it is one that was made for us.
        let _in_use = fs::remove_dir(FIXED_CDI);
    }
}

impl Site {
    /// Starts the site. If this machine cannot, prints why and returns `None`.
    fn start() -> Result<Option<Site>> {
        let (Some(binaries), Some(helm)) = (binaries()?, helm()) else {
            return Ok(None);
        };
        let Some(file) = std::env::var_os("SUBLET_ONE_FILE") else {
            println!("skipped: SUBLET_ONE_FILE is not set; run `cargo xtask test`");
            return Ok(None);
        };
        if let Err(reason) = Node::available(&binaries) {
            println!("skipped: {reason}");
            return Ok(None);
        }
        let mut options = ClusterOptions::new(binaries.clone());
        options.kwok = false;
        options.audit = true;
        let cluster = Cluster::start(options)?;
        let kubeconfig = cluster.kubeconfig("system:kube-scheduler")?;
        let config = format!(
            "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n\
             leaderElection: {{leaderElect: false}}\n\
             clientConnection: {{kubeconfig: {}}}\n",
            kubeconfig.display()
        );
        cluster.start_scheduler("kube-scheduler", &kubeconfig, &config, &[])?;
        let node = Node::start(&cluster, &NodeOptions::default())?;
        let archive = format!("sublet-{FIRST}-x86_64.oci.tar");
        node.import_image(&binaries, &Path::new(&file).with_file_name(archive))?;
        let name = |tag| format!("sublet.dev/sublet:{tag}");
        node.name_image(&binaries, &name(FIRST), &name(SECOND))?;
        let archive = cluster.dir().join("kube-scheduler.tar");
        let made = Command::new(repository().join("control-plane/node/image.sh"))
            .arg(SCHEDULER_IMAGE)
            .args([&binaries.cluster("kube-scheduler"), &archive])
            .status()?;
        ensure!(made.success(), "control-plane/node/image.sh: {made}");
        node.import_image(&binaries, &archive)?;
        let label = ["label", "node", &node.name(), "gpushare=true"];
        cluster.kubectl(&label)?;
        let ports = (0..9).map(|_| free_port()).collect::<Result<_>>()?;
        Ok(Some(Site {
            node,
            cluster,
            helm,
            ports,
        }))
    }

    /// File of values that a user would write for such a cluster.
    fn values(&self) -> Result<PathBuf> {
        let server = self.cluster.server();
        let (host, port) = server
            .trim_start_matches("https://")
            .split_once(':')
            .context("no port")?;
        let [
            extender,
            health,
            replicas,
            stand_in,
            kube_scheduler,
            webhook,
            controller,
            agent,
            top,
        ] = self.ports[..]
        else {
            unreachable!("there are nine");
        };
        let (repository, tag) = SCHEDULER_IMAGE.split_once(':').context("no tag")?;
        let values = json!({
            "image": {"repository": "sublet.dev/sublet", "pullPolicy": "Never"},
            "hostNetwork": true,
            "listen": "127.0.0.1",
            "apiServer": {"host": host, "port": port.parse::<u16>()?},
            "scheduler": {
                "image": {"repository": repository, "tag": tag},
                "replicas": 1,
                "ports": {
                    "extender": extender, "health": health, "replicas": replicas,
                    "standIn": stand_in, "kubeScheduler": kube_scheduler,
                },
            },
            "controller": {"replicas": 1, "ports": {"webhook": webhook, "health": controller}},
            "webhook": {"url": format!("https://127.0.0.1:{webhook}")},
            "agent": {
                "simulated": "gpus: [{memory: 16276MiB, count: 2}]",
                "stateDir": self.node.dir().join("sublet"),
                "runtimeDir": self.node.dir().join("run"),
                "nriDir": self.node.dir(),
                "cdiDir": self.node.dir().join("cdi"),
                "ports": {"health": agent, "top": top},
            },
            "isolation": {"enabled": true},
        });
        let file = self.cluster.dir().join("values.json");
        fs::write(&file, values.to_string())?;
        Ok(file)
    }

    /// Runs helm on the release.
    fn helm(&self, args: &[&str]) -> Result<String> {
        let namespace = ["--namespace", NAMESPACE];
        let kubeconfig = self.cluster.kubeconfig("admin")?;
        let said = self
            .helm
            .run(&[args, &namespace].concat(), Some(&kubeconfig));
        said.with_context(|| self.pods().unwrap_or_default())
    }

    /// State of our pods, for the error of a test.
    fn pods(&self) -> Result<String> {
        let args = ["--namespace", NAMESPACE];
        let pods = [&["get", "pods", "--output", "wide"][..], &args].concat();
        let logs = ["logs", "--all-containers", "--prefix", "--tail", "8"];
        let logs = [
            &logs[..],
            &["--selector", "app.kubernetes.io/name=sublet"],
            &args,
        ]
        .concat();
        Ok(self.cluster.kubectl(&pods)? + &self.cluster.kubectl(&logs)?)
    }

    fn get(&self, args: &[&str]) -> Result<Value> {
        let args = [&["get"], args, &["--output", "json"]].concat();
        Ok(serde_json::from_str(&self.cluster.kubectl(&args)?)?)
    }

    /// The image of each running pod of ours.
    fn images(&self) -> Result<BTreeSet<String>> {
        let pods = self.get(&["pods", "--namespace", NAMESPACE])?;
        let pods = pods["items"].as_array().cloned().unwrap_or_default();
        let image = |pod: &Value| {
            let first = &pod["spec"]["containers"][0]["image"];
            first.as_str().unwrap_or_default().to_owned()
        };
        Ok(pods.iter().map(image).collect())
    }

    /// The names of all objects of every kind that the API server lists, without those that it and
    /// its controllers write by themselves.
    fn objects(&self) -> Result<BTreeSet<String>> {
        const BY_THEMSELVES: [&str; 2] = ["events", "events.events.k8s.io"];
        let kinds = ["api-resources", "--verbs=list", "--output=name"];
        let kinds = self.cluster.kubectl(&kinds)?;
        let kinds: Vec<&str> = kinds
            .lines()
            .filter(|kind| !BY_THEMSELVES.contains(kind))
            .collect();
        let kinds = kinds.join(",");
        let line = "{range .items[*]}{.kind} {.metadata.namespace} {.metadata.name}{\"\\n\"}{end}";
        let line = format!("jsonpath={line}");
        let get = ["get", &kinds, "--all-namespaces", "--output", &line];
        let objects = self.cluster.kubectl(&get)?;
        // The node's heartbeat, which may begin while a test runs.
        let heartbeat = |line: &&str| line.starts_with("Lease kube-node-lease ");
        let objects = objects.lines().filter(|line| !heartbeat(line));
        Ok(objects.map(str::to_owned).collect())
    }
}

/// Objects that stay when the release has gone: what users made and what it is defined by, and what
/// Kubernetes makes by itself in the namespace, which helm leaves too.
const STAY: [&str; 9] = [
    "APIService  v1.kubeshare.nthu",
    "APIService  v1alpha1.sublet.dev",
    "ConfigMap sublet-system kube-root-ca.crt",
    "CustomResourceDefinition  gpuflavors.sublet.dev",
    "CustomResourceDefinition  sharepods.kubeshare.nthu",
    "GpuFlavor  half",
    "Namespace  sublet-system",
    "Pod default first",
    "ServiceAccount sublet-system default",
];

const FLAVOR: &str = "{apiVersion: sublet.dev/v1alpha1, kind: GpuFlavor, metadata: {name: half}, \
                      spec: {memoryPercent: 50}}";

/// A pod as a user writes it: the webhook adds the slot.
const ASKED: &str = "sublet.dev/gpu-memory: 2Gi";
const ASKED_BYTES: u64 = 2 << 30;

impl Site {
    /// Starts a pod with a program that holds a little of its part, and waits for its first line.
    fn start_pod(&self, name: &str, stage: &Path) -> Result<()> {
        let workload = "/lib64/sublet-workload alloc --size 10MiB --hold 100000";
        let pod = pod(name, ASKED, stage, workload);
        // The API server asks a new webhook a moment after that is ready, and a pod that is made
        // before has no slot for ever.
        eventually(|| {
            let dry = [
                "create",
                "--dry-run=server",
                "-o",
                "json",
                "--filename",
                "-",
            ];
            let made = self.cluster.kubectl_with_input(&dry, &pod)?;
            ensure!(
                made.contains("sublet.dev/gpu-slot"),
                "not completed: {made}"
            );
            Ok(())
        })?;
        self.cluster.apply(&pod)?;
        eventually(|| {
            let log = self.cluster.kubectl(&["logs", name])?;
            ensure!(log.starts_with('{'), "{name}: {log}");
            Ok(())
        })
        .with_context(|| self.pods().unwrap_or_default())
    }

    /// The pod runs as it was started, and CUDA and NVML in its container show its part; another
    /// program in it gets no byte beyond.
    fn check_pod(&self, name: &str) -> Result<()> {
        let also = |workload: &[&str]| -> Result<Value> {
            let program = ["exec", name, "--", "/lib64/sublet-workload"];
            let said = self.cluster.kubectl(&[&program, workload].concat())?;
            let line = said.lines().find(|line| line.starts_with('{'));
            Ok(serde_json::from_str(line.context(said.clone())?)?)
        };
        let seen = also(&["info", "--nvml"])?;
        assert_eq!(seen["devices"][0]["totalMem"], ASKED_BYTES, "{seen}");
        let nvml = &seen["nvml"]["devices"];
        assert_eq!(nvml[0]["memory"]["total"], ASKED_BYTES, "{seen}");
        assert_eq!(nvml.as_array().map(Vec::len), Some(1), "{seen}");
        let took = also(&["alloc", "--size", "2MiB", "--until-oom", "--down-to", "512"])?;
        assert_eq!(took["refused"]["code"], 2, "{took}");
        // The program's own context counts too, from when the driver has been read.
        let bytes = took["bytes"].as_u64().context("no bytes")?;
        assert!(bytes > 0 && bytes < ASKED_BYTES, "{took}");
        assert_eq!(took["memory"]["free"], 0, "{took}");
        let pod = self.get(&["pod", name])?;
        let container = &pod["status"]["containerStatuses"][0];
        assert_eq!(container["restartCount"], 0, "{container}");
        Ok(())
    }

    /// `sublet top` reaches the agent's pod through the API server and kubelet.
    fn check_seen_from_afar(&self, name: &str, sublet: &Path) -> Result<()> {
        let mut top = Command::new(sublet);
        top.args(["top", "--node", &self.node.name(), "--output", "json"]);
        let kubeconfig = self.cluster.kubeconfig("admin")?;
        let told = top.arg("--kubeconfig").arg(kubeconfig).output()?;
        let error = String::from_utf8_lossy(&told.stderr);
        ensure!(told.status.success(), "{}: {error}", told.status);
        let seen: Value = serde_json::from_slice(&told.stdout)?;
        let name = format!("default/{name}/main");
        let mut tenants = seen["jobs"].as_array().into_iter().flatten();
        let tenant = tenants.find(|one| one["name"] == *name);
        let limit = tenant.map(|one| &one["limitMiB"]);
        ensure!(limit == Some(&json!(ASKED_BYTES >> 20)), "{seen}");
        Ok(())
    }

    /// Helm's own check of an object's owner keeps two releases apart.
    fn check_no_second_release(&self, chart: &str) -> Result<()> {
        let kubeconfig = self.cluster.kubeconfig("admin")?;
        let second = ["install", "other", chart, "--namespace", "default"];
        let said = self.helm.run(&second, Some(&kubeconfig));
        let said = said.map_or_else(|error| error.to_string(), |_| "it was made".to_owned());
        ensure!(
            said.contains("cannot be imported into the current release"),
            "{said}"
        );
        Ok(())
    }

    /// Contents of the Secrets that our processes fill.
    fn certificates(&self) -> Result<Vec<Value>> {
        let names = [
            "sublet-extender-certificates",
            "sublet-webhook-certificates",
        ];
        let secrets = [&["--namespace", NAMESPACE, "secrets"][..], &names].concat();
        let secrets = self.get(&secrets)?;
        let data = secrets["items"].as_array().into_iter().flatten();
        let data: Vec<Value> = data.map(|secret| secret["data"].clone()).collect();
        let is_filled = |data: &Value| data["certificates.json"].is_string();
        ensure!(data.len() == 2 && data.iter().all(is_filled), "{data:?}");
        Ok(data)
    }

    fn only_image(&self, tag: &str) -> Result<()> {
        let image = format!("sublet.dev/sublet:{tag}");
        eventually(|| {
            let images = self.images()?;
            ensure!(images == BTreeSet::from([image.clone()]), "{images:?}");
            Ok(())
        })
    }
}

/// Pods that come and go while the scheduler, the controller and the agent are replaced, seen by the
/// API server's watch.
struct Flow {
    pods: PodStream,
    seen: Recorder,
}

impl Flow {
    /// A node of two cores starts a pod in less than a second.
    const EVERY: Duration = Duration::from_secs(1);

    fn start(site: &Site) -> Result<Flow> {
        let kubeconfig = site.cluster.kubeconfig("admin")?;
        Ok(Flow {
            seen: Recorder::start(&kubeconfig)?,
            pods: PodStream::start(&kubeconfig, Flow::EVERY, yaml::small_pod_spec())?,
        })
    }

    /// Each of them was bound and has run; none failed.
    fn end(self) -> Result<()> {
        let made = self.pods.stop()?;
        let seen = self.seen.stop()?;
        println!("{made} pods while everything was replaced");
        assert_eq!(seen.failed, BTreeSet::new());
        assert_eq!(seen.broken, Vec::<String>::new());
        ensure!(made >= 5 && seen.bound.len() >= made, "{made}: {seen:?}");
        Ok(())
    }
}

#[test]
fn the_chart_brings_a_node_from_nothing_to_pods_under_their_limits() -> Result<()> {
    let Some(site) = Site::start()? else {
        return Ok(());
    };
    let chart = chart_folder(repository()).display().to_string();
    let sublet = PathBuf::from(std::env::var_os("SUBLET_BIN").context("SUBLET_BIN is not set")?);
    let state = site.node.dir().join("sublet");
    let stage = stage_below(&state, &sublet)?;
    let before = site.objects()?;

    installs(&site, &stage)?;
    site.check_seen_from_afar("first", &sublet)?;
    site.check_no_second_release(&chart)?;
    let certificates = site.certificates()?;
    upgrades(&site, &chart, &stage)?;
    ensure!(
        site.certificates()? == certificates,
        "the upgrade emptied it"
    );
    site.helm(&[&["rollback", "sublet"][..], &WAIT].concat())?;
    site.only_image(FIRST)?;
    ensure!(
        site.certificates()? == certificates,
        "the rollback emptied it"
    );
    site.check_pod("first")?;
    site.check_pod("second")?;
    site.cluster.kubectl(&["delete", "pod", "second"])?;
    site.check_standstill("first")?;
    site.cluster.apply(FLAVOR)?;
    assert_eq!(audit::forbidden(&site.cluster)?, []);
    leaves_what_users_made(&site, &before)
}

/// The one file that is handed out installs it, and the first pod runs under its limit.
fn installs(site: &Site, stage: &Path) -> Result<()> {
    let file = std::env::var_os("SUBLET_ONE_FILE").context("SUBLET_ONE_FILE is not set")?;
    let mut install = Command::new(file);
    site.helm.put_on_path(&mut install);
    install.args(["install", "--timeout", "120", "--values"]);
    install.arg(site.values()?).arg("--kubeconfig");
    install.arg(site.cluster.kubeconfig("admin")?);
    let began = Instant::now();
    let output = install.output()?;
    let errors = String::from_utf8_lossy(&output.stderr);
    let told = String::from_utf8_lossy(&output.stdout);
    ensure!(output.status.success(), "{told}{errors}");
    ensure!(
        told.contains("kubectl label node NODE gpushare=true"),
        "{told}"
    );
    let installed = began.elapsed().as_secs_f64();
    site.start_pod("first", stage)?;
    let first = began.elapsed().as_secs_f64();
    println!("sublet install: {installed:.1} s; install to first pod: {first:.1} s");
    site.only_image(FIRST)?;
    site.check_pod("first")
}

/// Pods come and go meanwhile; the first stays as it is, and a second starts.
fn upgrades(site: &Site, chart: &str, stage: &Path) -> Result<()> {
    let more = format!("image.tag={SECOND},scheduler.policy=binpack");
    let upgrade = [
        "upgrade",
        "sublet",
        chart,
        "--reset-then-reuse-values",
        "--set",
        &more,
    ];
    let flow = Flow::start(site)?;
    site.helm(&[&upgrade[..], &WAIT].concat())?;
    site.only_image(SECOND)?;
    flow.end()?;
    site.check_pod("first")?;
    site.start_pod("second", stage)?;
    site.check_pod("second")
}

/// A removal takes the rest. `before`: objects before there was a release.
fn leaves_what_users_made(site: &Site, before: &BTreeSet<String>) -> Result<()> {
    let told = site.helm(&[&["uninstall", "sublet"][..], &WAIT].concat())?;
    for kept in ["gpuflavors.sublet.dev", "sharepods.kubeshare.nthu"] {
        ensure!(told.contains(kept), "{told}");
    }
    eventually(|| {
        let now = site.objects()?;
        let left: Vec<&str> = now.difference(before).map(String::as_str).collect();
        ensure!(left == STAY, "{left:?}");
        Ok(())
    })?;
    let pod = site.get(&["pod", "first"])?;
    assert_eq!(
        pod["status"]["containerStatuses"][0]["ready"], true,
        "{pod}"
    );
    Ok(())
}
