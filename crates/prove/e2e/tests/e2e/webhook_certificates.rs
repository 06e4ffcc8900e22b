//! Certificates of the webhook: two replicas agree, and no call is lost while certificates change
//! and replicas come and go.
//!
//! The API server calls one address, and a proxy takes each connection to a replica that answers,
//! as a Service does. Beside the API server, whose connections last, a second caller makes a new
//! connection for every call, and trusts what the webhook configuration said a moment ago.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use k8s_openapi::api::core::v1::Pod;
use kube::api::PostParams;
use kube::{Api, Client};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use serde_json::{Value, json};
use sublet_client::connect;
use sublet_e2e::{World, audit, eventually};
use sublet_testbed::deployed::{self, ControllerPorts};
use sublet_testbed::{Signal, http_get};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use crate::chart;

const REPLICAS: [&str; 2] = ["sublet-controller-0", "sublet-controller-1"];

/// Renewed after 24 s, served 6 s later.
const VALIDITY: &str = "--certificate-validity=36s";

/// When a replica was told to end.
static ENDS: Mutex<[Option<Instant>; 2]> = Mutex::new([None; 2]);

/// Time for which a Service goes on to send connections to a pod that ends.
const ENDPOINTS_CHANGE: Duration = Duration::from_secs(1);

fn ends_since(replica: usize, when: Option<Instant>) {
    ENDS.lock().unwrap_or_else(PoisonError::into_inner)[replica] = when;
}

/// Does a Service still send connections there?
fn is_endpoint(replica: usize) -> bool {
    let ends = ENDS.lock().unwrap_or_else(PoisonError::into_inner)[replica];
    ends.is_none_or(|since| since.elapsed() < ENDPOINTS_CHANGE)
}

/// Takes connections to the first replica that accepts them, in turn, as a Service does.
async fn proxy(listener: TcpListener, replicas: [u16; 2]) {
    for turn in 0.. {
        let Ok((mut from, _)) = listener.accept().await else {
            continue;
        };
        tokio::spawn(async move {
            for at in 0..replicas.len() {
                let replica = (turn + at) % replicas.len();
                if !is_endpoint(replica) {
                    continue;
                }
                let port = replicas[replica];
                if let Ok(mut to) = TcpStream::connect(("127.0.0.1", port)).await {
                    let _ended = tokio::io::copy_bidirectional(&mut from, &mut to).await;
                    return;
                }
            }
        });
    }
}

fn pod() -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "p", "namespace": "default"},
        "spec": {
            "schedulerName": "sublet-scheduler",
            "containers": [{
                "name": "c0", "image": "sublet.test/busybox:1",
                "resources": {"limits": {"aliyun.com/gpu-mem": "1"}},
            }],
        },
    })
}

/// Results of the callers.
#[derive(Debug, Default)]
struct Calls {
    answered: usize,
    lost: Vec<String>,
}

type Tally = Arc<Mutex<Calls>>;

fn note(tally: &Tally, outcome: Result<()>) {
    let mut calls = tally.lock().unwrap_or_else(PoisonError::into_inner);
    match outcome {
        Ok(()) => calls.answered += 1,
        Err(error) => calls.lost.push(format!("{error:#}")),
    }
}

/// Has the API server ask about a pod.
async fn by_api_server(client: &Client) -> Result<()> {
    let pod: Pod = serde_json::from_value(pod())?;
    let dry = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    let made = Api::<Pod>::namespaced(client.clone(), "default")
        .create(&dry, &pod)
        .await?;
    let containers = made.spec.context("no spec")?.containers;
    let env = containers
        .into_iter()
        .flat_map(|one| one.env.unwrap_or_default());
    ensure!(
        env.into_iter().any(|one| one.name == "SUBLET_ALLOCATION"),
        "it was not completed"
    );
    Ok(())
}

/// Asks about a pod on a new connection.
async fn by_ourselves(port: u16, bundle: &[u8]) -> Result<()> {
    let authorities = CertificateDer::pem_slice_iter(bundle);
    let authorities = authorities.map(|one| Ok(one?.as_ref().to_vec()));
    let mut config = kube::Config::new(format!("https://127.0.0.1:{port}").parse()?);
    config.root_cert = Some(authorities.collect::<Result<_>>()?);
    let review = json!({
        "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
        "request": {
            "uid": "1", "operation": "CREATE", "namespace": "default", "userInfo": {},
            "kind": {"group": "", "version": "v1", "kind": "Pod"},
            "resource": {"group": "", "version": "v1", "resource": "pods"},
            "object": pod(),
        },
    });
    let request = http::Request::post("/admit")
        .header("Content-Type", "application/json")
        .body(review.to_string().into_bytes())?;
    let answer: Value = Client::try_from(config)?.request(request).await?;
    ensure!(answer["response"]["patch"].is_array(), "{answer}");
    Ok(())
}

/// The bundle that the API server is told to trust.
async fn bundle(client: &Client) -> Result<Vec<u8>> {
    let all = Api::<MutatingWebhookConfiguration>::all(client.clone());
    let webhooks = all.get("sublet-pods").await?.webhooks.unwrap_or_default();
    let bundle = webhooks
        .into_iter()
        .find_map(|webhook| webhook.client_config.ca_bundle);
    Ok(bundle.context("nothing is trusted yet")?.0)
}

/// Calls until it is told to stop.
async fn load(client: Client, port: u16, tally: Tally, stop: watch::Receiver<bool>) -> Result<()> {
    let mut trusted = bundle(&client).await?;
    while !*stop.borrow() {
        note(
            &tally,
            by_api_server(&client).await.context("by the API server"),
        );
        note(
            &tally,
            by_ourselves(port, &trusted)
                .await
                .context("on a new connection"),
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
        trusted = bundle(&client).await?;
    }
    Ok(())
}

fn metric(ports: ControllerPorts, name: &str) -> Result<i64> {
    let (_, page) = http_get(ports.health, "/metrics")?;
    let line = page
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    Ok(line.with_context(|| format!("no {name}"))?.parse()?)
}

/// When the certificates of these replicas end; they must be the same.
fn ends(ports: &[ControllerPorts]) -> Result<i64> {
    let name = "sublet_webhook_certificate_end_seconds";
    let mut all = ports.iter().map(|&ports| metric(ports, name));
    let first = all.next().context("no replica")??;
    for other in all {
        ensure!(other? == first, "the replicas serve different certificates");
    }
    Ok(first)
}

/// Waits until replicas serve another certificate than this one.
fn until_renewed(ports: &[ControllerPorts], before: i64) -> Result<i64> {
    eventually(|| {
        let now = ends(ports)?;
        ensure!(now > before, "still the certificate that ends at {before}");
        Ok(now)
    })
}

/// The positions of the replica that leads, and of the other.
fn ranks(ports: &[ControllerPorts; 2]) -> Result<(usize, usize)> {
    eventually(|| {
        let leads = |at: usize| metric(ports[at], "sublet_controller_leader");
        match (leads(0)?, leads(1)?) {
            (1, 0) => Ok((0, 1)),
            (0, 1) => Ok((1, 0)),
            other => bail!("who leads? {other:?}"),
        }
    })
}

/// Number of times a controller has successfully asked for this to be done to a Secret.
fn done_to_secrets(world: &World, verb: &str) -> Result<usize> {
    let requests = audit::requests(&world.cluster)?;
    let done = requests.iter().filter(|request| {
        (request.verb.as_str(), request.resource.as_str()) == (verb, "secrets")
            && request.namespace == "sublet-system"
            && request.user.ends_with(":sublet-controller")
            && matches!(request.code, 200 | 201)
    });
    Ok(done.count())
}

/// The Secret, as `kubectl --namespace=sublet-system VERB …` is told of it.
fn kubectl(world: &World, words: &[&str]) -> Result<String> {
    let namespace = "--namespace=sublet-system";
    world.cluster.kubectl(&[&[namespace], words].concat())
}

/// Content of the Secret.
fn stored(world: &World) -> Result<String> {
    let secret = ["get", "secret", "sublet-webhook-certificates"];
    kubectl(
        world,
        &[&secret[..], &["--output=jsonpath={.data}"]].concat(),
    )
}

/// Does what people do to the Secret, while this replica leads: they apply its manifest again,
/// empty it for another certificate, and delete it.
fn handle_secret(world: &World, replica: usize, ports: ControllerPorts) -> Result<()> {
    let manifest = chart::repository().join("deploy/kubernetes/19-secrets.yaml");
    let apply = ["apply", "--filename", &manifest.display().to_string()];
    let ours = std::slice::from_ref(&ports);
    let secret = ["secret", "sublet-webhook-certificates"];

    let told = kubectl(world, &apply)?;
    ensure!(
        told.contains("sublet-webhook-certificates unchanged"),
        "{told}"
    );
    ensure!(
        stored(world)?.contains("certificates.json"),
        "it was emptied"
    );

    let end = ends(ours)?;
    let empty = ["--type=merge", "--patch", r#"{"data": null}"#];
    kubectl(world, &[&["patch"], &secret[..], &empty].concat())?;
    let end = until_renewed(ours, end)?;
    ensure!(
        stored(world)?.contains("certificates.json"),
        "it stayed empty"
    );

    kubectl(world, &[&["delete"], &secret[..]].concat())?;
    let log = world.cluster.log(REPLICAS[replica]);
    eventually(|| {
        let log = std::fs::read_to_string(&log)?;
        ensure!(
            log.contains("no certificate is stored") && log.contains("apply 19-secrets.yaml again"),
            "nobody says what to do"
        );
        Ok(())
    })?;
    assert_eq!(ends(ours)?, end, "it serves what it has");
    kubectl(world, &apply)?;
    until_renewed(ours, end)?;
    Ok(())
}

/// Events that befall two replicas while they are called. No call may be lost.
fn events(world: &World, ports: &[ControllerPorts; 2]) -> Result<()> {
    let cluster = &world.cluster;
    let mut end = ends(ports)?;
    for _ in 0..2 {
        end = until_renewed(ports, end)?;
    }
    let (leader, other) = ranks(ports)?;
    // It ends in order, and the other renews.
    ends_since(leader, Some(Instant::now()));
    cluster.stop(REPLICAS[leader]);
    end = until_renewed(&ports[other..=other], end)?;
    cluster.start_again(REPLICAS[leader])?;
    deployed::until_controller_ready(cluster, REPLICAS[leader], ports[leader])?;
    ends_since(leader, None);
    assert_eq!(ends(ports)?, end);
    Ok(())
}

#[test]
fn no_call_is_lost_while_certificates_and_replicas_change() -> Result<()> {
    let Some(world) = World::start()? else {
        return Ok(());
    };
    let _installed = rustls::crypto::ring::default_provider().install_default();
    let cluster = &world.cluster;
    let start = |name| deployed::start_controller(cluster, world.sublet_path(), name, &[VALIDITY]);
    let ports = [start(REPLICAS[0])?, start(REPLICAS[1])?];

    let executor = tokio::runtime::Runtime::new()?;
    let listener = executor.block_on(TcpListener::bind(("127.0.0.1", 0)))?;
    let port = listener.local_addr()?.port();
    executor.spawn(proxy(listener, ports.map(|ports| ports.calls)));
    world.call_webhook_at(port)?;
    for (name, ports) in REPLICAS.iter().zip(ports) {
        deployed::until_controller_ready(cluster, name, ports)?;
    }
    ends(&ports)?;
    assert_eq!(done_to_secrets(&world, "update")?, 1);
    let kubeconfig = cluster.kubeconfig("admin")?;
    let client = executor.block_on(connect(Some(&kubeconfig)))?;
    eventually(|| executor.block_on(by_api_server(&client)))?;

    let tally = Tally::default();
    let (stop, stopping) = watch::channel(false);
    let calling = executor.spawn(load(client.clone(), port, tally.clone(), stopping));
    let happened = events(&world, &ports);
    stop.send_replace(true);
    executor.block_on(calling)??;
    happened?;
    let calls = std::mem::take(&mut *tally.lock().unwrap_or_else(PoisonError::into_inner));
    println!("{} calls, {} lost", calls.answered, calls.lost.len());
    assert_eq!(calls.lost, [""; 0]);
    ensure!(calls.answered > 100, "only {} calls", calls.answered);

    // Killed in the middle of anything, its calls are lost and pods are made all the same; the next
    // are completed by the other, which renews when it has taken over.
    let end = ends(&ports)?;
    let (leader, other) = ranks(&ports)?;
    cluster.kill(REPLICAS[leader], Signal::KILL)?;
    eventually(|| executor.block_on(by_api_server(&client)))?;
    until_renewed(&ports[other..=other], end)?;
    executor.block_on(by_api_server(&client))?;
    handle_secret(&world, other, ports[other])?;
    eventually(|| executor.block_on(by_api_server(&client)))?;
    assert_eq!(done_to_secrets(&world, "create")?, 0);
    assert_eq!(audit::forbidden(&world.cluster)?, []);
    Ok(())
}
