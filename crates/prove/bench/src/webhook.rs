//! Figure e: how long the webhook for pods takes, beside one that decides nothing, and one that reads
//! the pod and then decides nothing.
//!
//! All speak HTTPS with the same certificate, on the same HTTP stack, and are called as an API
//! server calls them: one connection that stays open, HTTP/1.1, an AdmissionReview with a whole pod.

use std::hint::black_box;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use axum::Router;
use axum::body::Bytes;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use serde::Deserialize;
use serde::de::{DeserializeOwned, IgnoredAny};
use sublet_api::object::Pod;
use sublet_listener::{Door, Ending, Limits, listen};
use sublet_telemetry::metrics::Refused;
use sublet_testbed::deployed::{self, CONTROLLER, ControllerPorts};
use sublet_testbed::{FORMS, PodForm, free_port};
use tokio::sync::watch;

use crate::caller::Caller;
use crate::objects::{SIZES_MIB, call_pod};
use crate::report::{Report, Verdict, short};
use crate::stage::until;
use crate::stats::{ms, percentile};
use crate::world::{World, memory_mib};

/// The process of the webhook that decides nothing.
const EMPTY: &str = "empty-webhook";

/// The process of the webhook that reads the pod first, as a program that decides about pods has
/// to.
const READER: &str = "reading-webhook";

/// Calls of one webhook before the other's turn.
const TURN: usize = 100;

/// Percentiles that are shown.
const SHARES: [(&str, f64); 3] = [("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999)];

/// The most that a call may take, in milliseconds and as a multiple of the empty webhook (issue 17).
const TARGET_MS: f64 = 5.0;
const TARGET_RATIO: f64 = 2.0;

/// Run a webhook that allows every pod and reads no more than it must (the benchmarks start it).
#[derive(Debug, clap::Args)]
pub(crate) struct EmptyArguments {
    /// Address for the API server's calls
    #[arg(long, value_name = "ADDRESS")]
    listen: SocketAddr,
    /// The certificates that the controller has stored
    #[arg(long, value_name = "FILE")]
    certificates: PathBuf,
    /// Read the fields of each pod that our own webhook reads
    #[arg(long)]
    read_pod: bool,
}

/// As much of what the controller stores as is needed.
#[derive(Deserialize)]
struct Certificates {
    served: Served,
}

#[derive(Deserialize)]
struct Served {
    certificate: String,
    key: String,
    authority: String,
}

/// Runs until it is killed.
///
/// # Errors
/// No usable certificate, or an address that cannot be listened on.
pub(crate) fn run_empty(arguments: &EmptyArguments) -> Result<()> {
    let text = std::fs::read(&arguments.certificates)
        .with_context(|| format!("cannot read {}", arguments.certificates.display()))?;
    let Served {
        certificate, key, ..
    } = serde_json::from_slice::<Certificates>(&text)?.served;
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(certificate.as_bytes()).collect();
    let mut tls = ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(chain?, PrivateKeyDer::from_pem_slice(key.as_bytes())?)?;
    tls.alpn_protocols = vec![b"http/1.1".to_vec()];
    let limits = Limits {
        body_size: 8 << 20,
        ..Limits::PAGES
    };
    let never = Ending {
        farewell: Duration::ZERO,
        drain: Duration::ZERO,
    };
    let (_stored, certificates) = watch::channel(Some(Arc::new(tls)));
    let admit = match arguments.read_pod {
        true => post(allow::<Pod>),
        false => post(allow::<IgnoredAny>),
    };
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("cannot start threads")?
        .block_on(async {
            let router = Router::new().route("/admit", admit);
            let door = Door::new(listen(arguments.listen)?, limits, &Refused::default());
            let door = door.with_tls(certificates);
            door.serve(router, never, std::future::pending()).await
        })
}

/// Allows whatever it is, after the object of the call was read as such.
async fn allow<T: DeserializeOwned>(body: Bytes) -> Response {
    #[derive(Deserialize)]
    struct Review<T> {
        request: Request<T>,
    }
    #[derive(Deserialize)]
    struct Request<T> {
        uid: String,
        object: T,
    }
    match serde_json::from_slice::<Review<T>>(&body) {
        Err(error) => (StatusCode::BAD_REQUEST, error.to_string()).into_response(),
        Ok(Review { request }) => {
            black_box(request.object);
            let answer = format!(
                r#"{{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","response":{{"uid":"{}","allowed":true}}}}"#,
                request.uid
            );
            ([(header::CONTENT_TYPE, "application/json")], answer).into_response()
        }
    }
}

/// The body of a call about a new pod.
fn review(number: usize) -> Vec<u8> {
    let form = PodForm::part(number % FORMS, SIZES_MIB[number % SIZES_MIB.len()]);
    let uid = format!("{number:08x}-0000-4000-8000-000000000000");
    let pod = call_pod(&uid, &form);
    format!(
        r#"{{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{{"uid":"{uid}","kind":{{"group":"","version":"v1","kind":"Pod"}},"resource":{{"group":"","version":"v1","resource":"pods"}},"name":"asking","namespace":"default","operation":"CREATE","userInfo":{{"username":"admin","groups":["system:authenticated"]}},"object":{pod},"oldObject":null,"dryRun":false,"options":{{"apiVersion":"meta.k8s.io/v1","kind":"CreateOptions"}}}}}}"#
    )
    .into_bytes()
}

/// One of them.
struct Webhook {
    label: &'static str,
    process: &'static str,
    caller: Caller,
    /// Milliseconds of each call.
    took: Vec<f64>,
    /// CPU seconds of its process.
    cpu: f64,
}

impl Webhook {
    fn new(label: &'static str, process: &'static str, caller: Caller) -> Webhook {
        Webhook {
            label,
            process,
            caller,
            took: Vec::new(),
            cpu: 0.0,
        }
    }

    fn turn(&mut self, world: &World, numbers: std::ops::Range<usize>) -> Result<()> {
        let before = world.cluster.cpu_seconds(self.process)?;
        for number in numbers {
            let (took, answer) = self.caller.post("/admit", &review(number))?;
            let answer: serde_json::Value = serde_json::from_slice(answer)?;
            ensure!(answer["response"]["allowed"] == true, "{answer}");
            self.took.push(ms(took));
        }
        self.cpu += world.cluster.cpu_seconds(self.process)? - before;
        Ok(())
    }
}

/// Measures and prints the figure.
pub(crate) fn measure(
    world: &mut World,
    repository: &Path,
    pods: usize,
    calls: usize,
    report: &mut Report,
) -> Result<()> {
    world.progress.say(&format!(
        "(e) {calls} calls of each webhook (full size: about 30 s)"
    ));
    let [ours, empty, reader] = start(world, repository)?;
    let mut all = [
        Webhook::new("**ours**", CONTROLLER, ours),
        Webhook::new("empty webhook", EMPTY, empty),
        Webhook::new("empty webhook that reads the pod (bound)", READER, reader),
    ];
    // The first calls meet cold caches and new threads.
    for one in &mut all {
        one.turn(world, calls..calls + TURN)?;
        one.took.clear();
        one.cpu = 0.0;
    }
    let mut done = 0;
    while done < calls {
        let end = (done + TURN).min(calls);
        for one in &mut all {
            one.turn(world, done..end)?;
        }
        done = end;
    }
    report.say("## (e) The webhook for pods");
    report.say(&format!(
        "{calls} calls of each, in turns of {TURN}, one at a time over a kept HTTPS connection; \
         each call has a pod of {} KB in the form of one of {FORMS} systems. The controller leads \
         and follows {pods} bound pods. The empty webhook has the same HTTP stack and certificate, \
         finds the call's UID and allows. The bound reads the fields of the pod that ours reads, \
         too, as whoever decides about pods has to, and then allows. Milliseconds.",
        call_pod("u", &PodForm::part(0, SIZES_MIB[0])).len() / 1000
    ));
    let mut head = vec!["webhook".to_owned()];
    head.extend(SHARES.map(|(name, _)| name.to_owned()));
    head.extend(["CPU of a call".to_owned(), "ours / this, p99".to_owned()]);
    let p99 = |one: &Webhook| percentile(&one.took, 0.99);
    let rows = all.iter().map(|one| {
        let mut row = vec![one.label.to_owned()];
        row.extend(SHARES.map(|(_, share)| short(percentile(&one.took, share))));
        row.push(short(one.cpu * 1e3 / one.took.len() as f64));
        row.push(format!("{:.2}", p99(&all[0]) / p99(one)));
        row
    });
    let rows: Vec<Vec<String>> = [head].into_iter().chain(rows).collect();
    report.table(&rows);
    let pid = world.cluster.pid(CONTROLLER)?;
    report.say(&format!(
        "Resident memory of the controller after these calls: {} MiB (no target).",
        short(memory_mib(pid, "VmRSS")?)
    ));
    report.verdicts(&[
        Verdict::at_most("webhook, p99", p99(&all[0]), TARGET_MS, "ms"),
        Verdict::at_most_times(
            "webhook, p99, ours / empty",
            p99(&all[0]) / p99(&all[1]),
            TARGET_RATIO,
        ),
        Verdict::at_most_times(
            "webhook, p99, ours / empty that reads the pod",
            p99(&all[0]) / p99(&all[2]),
            TARGET_RATIO,
        ),
    ]);
    Ok(())
}

/// Starts them, and connects to them: ours, the empty one, the one that reads.
fn start(world: &World, repository: &Path) -> Result<[Caller; 3]> {
    for file in [
        "00-namespace.yaml",
        "15-flavors.yaml",
        "16-sharepods.yaml",
        "19-secrets.yaml",
    ] {
        let path = repository.join("deploy/kubernetes").join(file);
        world.cluster.apply(&std::fs::read_to_string(path)?)?;
    }
    let ports = ControllerPorts {
        calls: free_port()?,
        health: free_port()?,
    };
    let mut command = Command::new(&world.sublet);
    command
        .args([
            "controller",
            "--listen",
            &format!("127.0.0.1:{}", ports.calls),
        ])
        .args(["--health-listen", &format!("127.0.0.1:{}", ports.health)])
        .arg("--kubeconfig")
        .arg(world.cluster.kubeconfig("admin")?);
    world.cluster.spawn(CONTROLLER, command)?;
    deployed::apply_webhook(&world.cluster, repository, ports.calls)?;
    deployed::until_controller_ready(&world.cluster, CONTROLLER, ports)?;

    let secrets: Api<Secret> = Api::namespaced(world.client.clone(), "sublet-system");
    let secret = world
        .executor
        .block_on(secrets.get("sublet-webhook-certificates"))?;
    let stored = secret.data.unwrap_or_default();
    let stored = stored.get("certificates.json").context("no certificates")?;
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("certificates.json");
    std::fs::write(&file, &stored.0)?;
    let spawn = |process, flags: &[&str]| {
        let port = free_port()?;
        let mut command = Command::new(std::env::current_exe()?);
        command
            .args(["empty-webhook", "--listen", &format!("127.0.0.1:{port}")])
            .arg("--certificates")
            .arg(&file)
            .args(flags);
        world.cluster.spawn(process, command)?;
        anyhow::Ok(port)
    };
    let (empty, reader) = (spawn(EMPTY, &[])?, spawn(READER, &["--read-pod"])?);
    let authority = serde_json::from_slice::<Certificates>(&stored.0)?
        .served
        .authority;
    let connect = |port| {
        until("a webhook", Duration::from_millis(50), || {
            Caller::connect_tls(port, &authority)
        })
    };
    Ok([connect(ports.calls)?, connect(empty)?, connect(reader)?])
}
