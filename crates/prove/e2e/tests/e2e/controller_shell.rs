//! The shell of all controllers, with a toy controller on the real API server: which replica
//! writes, what becomes of a write that is refused, and that a deposed leader writes nothing more.
//!
//! A toy says a text and a namespace; its controller keeps a ConfigMap there with the same text and
//! the name of the replica that wrote it, and notes the text in the toy's status. Each replica is a
//! thread with an executor of its own and a user of its own: it can be killed or frozen as a process
//! can, and the audit log tells the replicas apart.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::core::{ApiResource, DynamicObject, GroupVersionKind};
use kube::runtime::{Controller, watcher};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};
use sublet_client::{Act, ObjectAddress, Write, connect};
use sublet_controller::shell::{Control, Decision, govern};
use sublet_e2e::{audit, binaries, eventually};
use sublet_model::Pauses;
use sublet_replicas::leader::{SWIFT, campaign, candidacy};
use sublet_tasks::{TaskEnded, vital};
use sublet_telemetry::metrics::ControllerMetrics;
use sublet_testbed::{Cluster, ClusterOptions, User};
use tokio::sync::oneshot;

const CRD: &str = r"
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: toys.sublet.test}
spec:
  group: sublet.test
  names: {kind: Toy, listKind: ToyList, plural: toys, singular: toy}
  scope: Namespaced
  versions:
  - name: v1alpha1
    served: true
    storage: true
    subresources: {status: {}}
    schema:
      openAPIV3Schema:
        type: object
        properties:
          spec:
            type: object
            properties: {text: {type: string}, into: {type: string}}
          status:
            type: object
            properties: {text: {type: string}, by: {type: string}}
";

fn toys() -> ApiResource {
    ApiResource::from_gvk(&GroupVersionKind::gvk("sublet.test", "v1alpha1", "Toy"))
}

/// The toy controller. While `frozen` is set its replica does nothing at all, as a process does
/// that is stopped in the middle of a decision.
struct ToyControl {
    me: String,
    frozen: Arc<AtomicBool>,
    is_frozen: Arc<AtomicBool>,
}

impl Control for ToyControl {
    type Object = DynamicObject;
    type Caches = ();
    type Snapshot = ();

    const NAME: &'static str = "toys";

    fn watch(&self, client: &Client, _: u64) -> (Controller<DynamicObject>, ()) {
        let all = Api::all_with(client.clone(), &toys());
        let made = Api::<ConfigMap>::all(client.clone());
        let ours = watcher::Config::default().labels("sublet.test/toy");
        let toy = |map: ConfigMap| {
            let name = map.labels().get("sublet.test/toy")?;
            let toy = kube::runtime::reflector::ObjectRef::new_with(name, toys());
            Some(toy.within("default"))
        };
        let toys = Controller::new_with(all, watcher::Config::default(), toys());
        (toys.watches(made, ours, toy), ())
    }

    async fn see(&self, (): &(), _: &DynamicObject) {}

    fn decide(&self, toy: &DynamicObject, (): &(), _: Timestamp) -> Decision {
        while self.frozen.load(Ordering::SeqCst) {
            self.is_frozen.store(true, Ordering::SeqCst);
            std::thread::sleep(Duration::from_millis(10));
        }
        let (spec, status) = (&toy.data["spec"], &toy.data["status"]);
        assert_ne!(spec["text"], format!("bane of {}", self.me), "a bug");
        if status["text"] == spec["text"] {
            return Decision::default();
        }
        let name = toy.name_any();
        let map = ObjectAddress::of::<ConfigMap>(spec["into"].as_str(), &name);
        let said = json!({
            "metadata": {"labels": {"sublet.test/toy": name}},
            "data": {"text": spec["text"], "by": self.me},
        });
        let own = ObjectAddress {
            kind: toys(),
            namespace: toy.namespace(),
            name,
        };
        let status = json!({"status": {"text": spec["text"], "by": self.me}});
        let write = |(to, act)| Write { to, act };
        Decision {
            writes: [(map, Act::Apply(said)), (own, Act::ApplyStatus(status))]
                .map(write)
                .into(),
            again: None,
        }
    }
}

/// A replica of the toy controller.
struct Replica {
    thread: Option<std::thread::JoinHandle<Result<(), TaskEnded>>>,
    stop: Option<oneshot::Sender<bool>>,
    frozen: Arc<AtomicBool>,
    is_frozen: Arc<AtomicBool>,
}

impl Replica {
    fn start(cluster: &Cluster, me: &str) -> Result<Replica> {
        let _installed = rustls::crypto::ring::default_provider().install_default();
        let kubeconfig = cluster.kubeconfig(me)?;
        let (stop, stopped) = oneshot::channel();
        let frozen = Arc::new(AtomicBool::new(false));
        let is_frozen = Arc::new(AtomicBool::new(false));
        let control = ToyControl {
            me: me.to_owned(),
            frozen: frozen.clone(),
            is_frozen: is_frozen.clone(),
        };
        let life = async move {
            let client = connect(Some(&kubeconfig)).await.expect("a client");
            let (campaigner, leadership) = candidacy();
            let lease = ObjectAddress::of::<Lease>(Some("default"), "toys");
            let (metrics, _) = ControllerMetrics::registered();
            let pauses = Pauses::new(Duration::from_millis(100), Duration::from_secs(1));
            let me = control.me.clone();
            let (vital, mut vigil) = vital();
            let governs = govern(control, client.clone(), leadership, pauses, metrics.clone());
            let _governs = vital.start_for_now("the toys' controller", governs);
            let (end, ended) = oneshot::channel::<()>();
            let leading = metrics.leading;
            let campaigns = campaign(client, lease, me, SWIFT, campaigner, leading, async {
                let _gone = ended.await;
            });
            let mut campaigns = std::pin::pin!(campaigns);
            let gracefully = async {
                tokio::select! {
                    _ = &mut campaigns => false,
                    gracefully = stopped => gracefully == Ok(true),
                }
            };
            // Killed: nothing is said to anybody. Else the Lease is given back.
            if vigil.beside(gracefully).await? {
                drop(end);
                campaigns.await;
            }
            Ok(())
        };
        let thread = std::thread::spawn(|| {
            let mut executor = tokio::runtime::Builder::new_current_thread();
            let executor = executor.enable_all().build().expect("an executor");
            executor.block_on(life)
        });
        Ok(Replica {
            thread: Some(thread),
            stop: Some(stop),
            frozen,
            is_frozen,
        })
    }

    fn freeze(&self) {
        self.frozen.store(true, Ordering::SeqCst);
    }

    fn thaw(&self) {
        self.frozen.store(false, Ordering::SeqCst);
    }

    /// Ends it, and waits until it has ended.
    fn end(&mut self, gracefully: bool) {
        self.thaw();
        let told = self.stop.take().map(|stop| stop.send(gracefully));
        if told.is_some() {
            let _why = self.ended();
        }
    }

    /// Waits until it has ended; returns why, if it did unasked.
    fn ended(&mut self) -> Result<(), TaskEnded> {
        let thread = self.thread.take();
        thread.map_or(Ok(()), |thread| {
            thread.join().expect("its panics are its tasks'")
        })
    }
}

impl Drop for Replica {
    fn drop(&mut self) {
        self.end(false);
    }
}

fn start_cluster() -> Result<Option<Cluster>> {
    let Some(binaries) = binaries()? else {
        return Ok(None);
    };
    let mut options = ClusterOptions::new(binaries);
    options.kwok = false;
    options.audit = true;
    options.users = ["toy-a", "toy-b"]
        .map(|me| User::new(me, &["system:masters"]))
        .into();
    let cluster = Cluster::start(options)?;
    cluster.apply(CRD)?;
    cluster.until_defined(&["crd/toys.sublet.test"])?;
    Ok(Some(cluster))
}

/// Makes or changes a toy.
fn say(cluster: &Cluster, name: &str, text: &str, into: &str) -> Result<()> {
    let toy = format!(
        "{{apiVersion: sublet.test/v1alpha1, kind: Toy, metadata: {{name: {name}}}, \
         spec: {{text: {text}, into: {into}}}}}"
    );
    cluster.apply(&toy).map(drop)
}

fn status(cluster: &Cluster, name: &str) -> Result<Value> {
    let toy = cluster.kubectl(&["get", "toy", name, "-o", "json"])?;
    Ok(serde_json::from_str::<Value>(&toy)?["status"].clone())
}

/// Waits until a toy's status says this.
fn until_said(cluster: &Cluster, name: &str, text: &str, by: &str) -> Result<()> {
    eventually(|| {
        let status = status(cluster, name)?;
        ensure!(
            status == json!({"text": text, "by": by}),
            "{name}: {status}"
        );
        Ok(())
    })
}

/// Number of writes of toys and ConfigMaps that a replica has sent and that arrived.
fn writes(cluster: &Cluster, me: &str) -> Result<usize> {
    let requests = audit::requests(cluster)?;
    let own = requests.iter().filter(|request| {
        request.user == me && request.verb == "patch" && request.resource != "leases"
    });
    Ok(own.count())
}

fn holder(cluster: &Cluster) -> Result<String> {
    let path = "jsonpath={.spec.holderIdentity}";
    cluster.kubectl(&["get", "lease", "toys", "-o", path])
}

#[test]
fn the_next_replica_leads_when_the_leader_is_killed_or_ends() -> Result<()> {
    let Some(cluster) = start_cluster()? else {
        return Ok(());
    };
    let mut first = Replica::start(&cluster, "toy-a")?;
    say(&cluster, "one", "hello", "default")?;
    until_said(&cluster, "one", "hello", "toy-a")?;
    let mut second = Replica::start(&cluster, "toy-b")?;
    eventually(|| {
        let asked = audit::requests(&cluster)?;
        ensure!(
            asked.iter().any(|request| request.user == "toy-b"),
            "not yet"
        );
        Ok(())
    })?;
    say(&cluster, "one", "again", "default")?;
    until_said(&cluster, "one", "again", "toy-a")?;
    assert_eq!(writes(&cluster, "toy-b")?, 0);

    first.end(false);
    say(&cluster, "one", "widowed", "default")?;
    say(&cluster, "two", "new", "default")?;
    until_said(&cluster, "one", "widowed", "toy-b")?;
    until_said(&cluster, "two", "new", "toy-b")?;
    let map = cluster.kubectl(&["get", "configmap", "two", "-o", "jsonpath={.data.text}"])?;
    assert_eq!(map, "new");

    // Whoever ends in order gives the Lease back at once.
    let mut third = Replica::start(&cluster, "toy-a")?;
    second.end(true);
    let given_back = holder(&cluster)?;
    assert_ne!(given_back, "toy-b");
    say(&cluster, "two", "inherited", "default")?;
    until_said(&cluster, "two", "inherited", "toy-a")?;
    third.end(true);
    assert_eq!(holder(&cluster)?, "");
    Ok(())
}

/// The leader would renew its Lease for ever, and do nothing.
#[test]
fn a_leader_whose_controller_panics_ends_and_another_one_goes_on() -> Result<()> {
    let Some(cluster) = start_cluster()? else {
        return Ok(());
    };
    let mut first = Replica::start(&cluster, "toy-a")?;
    say(&cluster, "one", "hello", "default")?;
    until_said(&cluster, "one", "hello", "toy-a")?;
    let _second = Replica::start(&cluster, "toy-b")?;
    say(&cluster, "one", "bane of toy-a", "default")?;
    let ended = first.ended();
    assert_eq!(ended, Err(TaskEnded::Panicked("the toys' controller")));
    // It has not given its Lease back, as none that is killed does.
    assert_ne!(holder(&cluster)?, "");
    until_said(&cluster, "one", "bane of toy-a", "toy-b")
}

#[test]
fn a_write_that_is_refused_is_tried_again() -> Result<()> {
    let Some(cluster) = start_cluster()? else {
        return Ok(());
    };
    let _replica = Replica::start(&cluster, "toy-a")?;
    say(&cluster, "lost", "hello", "nowhere")?;
    // Others do not wait for it.
    say(&cluster, "fine", "hello", "default")?;
    until_said(&cluster, "fine", "hello", "toy-a")?;
    eventually(|| {
        let requests = audit::requests(&cluster)?;
        let refused = requests.iter().filter(|request| {
            request.user == "toy-a" && request.namespace == "nowhere" && request.code == 404
        });
        ensure!(refused.count() >= 3, "not tried three times");
        Ok(())
    })?;
    assert_eq!(status(&cluster, "lost")?, Value::Null);
    cluster.kubectl(&["create", "namespace", "nowhere"])?;
    until_said(&cluster, "lost", "hello", "toy-a")
}

#[test]
fn a_deposed_leader_writes_nothing_more() -> Result<()> {
    let Some(cluster) = start_cluster()? else {
        return Ok(());
    };
    let old = Replica::start(&cluster, "toy-a")?;
    say(&cluster, "one", "hello", "default")?;
    until_said(&cluster, "one", "hello", "toy-a")?;
    let _new = Replica::start(&cluster, "toy-b")?;

    // It has seen the toy, and stands still before it writes.
    old.freeze();
    say(&cluster, "one", "changed", "default")?;
    eventually(|| {
        let frozen = old.is_frozen.load(Ordering::SeqCst);
        ensure!(frozen, "it does not decide");
        Ok(())
    })?;
    let before = writes(&cluster, "toy-a")?;
    until_said(&cluster, "one", "changed", "toy-b")?;
    old.thaw();
    // It has noticed: its next look at the Lease comes after what it had decided to write.
    let looks = |cluster: &Cluster| -> Result<usize> {
        let requests = audit::requests(cluster)?;
        let own = |request: &&audit::Request| request.user == "toy-a" && request.verb == "get";
        Ok(requests.iter().filter(own).count())
    };
    let looked = looks(&cluster)?;
    eventually(|| {
        let now = looks(&cluster)?;
        ensure!(
            now >= looked + 3,
            "{now} looks at the Lease, after {looked}"
        );
        Ok(())
    })?;
    say(&cluster, "two", "new", "default")?;
    until_said(&cluster, "two", "new", "toy-b")?;
    until_said(&cluster, "one", "changed", "toy-b").context("the deposed leader wrote")?;
    assert_eq!(writes(&cluster, "toy-a")?, before);
    Ok(())
}
