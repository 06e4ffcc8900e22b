//! `sublet controller`: the webhooks for created pods and for Bindings, and the controllers of
//! objects of the cluster.
//!
//! The webhooks answer on every replica; all writers run on the leader alone. All state is in the
//! API server. It never binds a pod and never speaks to a node.
//!
//! Suggested reading order: shell; hosts, keeper; admission, flavors, bindings, quotas, known,
//! review, webhook, listener; pace, ledger, preemptor, incomplete, share_pods, queue.
//!
//! # Modules
//! - `shell`: the frame of every controller. A `Control` says what it watches (with kube's
//!   `Controller`), what else it sees, and decides; the shell runs it while this process leads,
//!   sends its writes, and tries again with growing pauses.
//! - `ledger`: the one ledger of preemptor and queue, new in each tenure.
//! - `preemptor`: evicts pods where the stock scheduler cannot see that one must go: note,
//!   evictions, nomination. Members of groups have others evicted only by the queue.
//! - `incomplete`: deletes pods without a node that the webhook did not complete, if a controller
//!   makes them anew; once each, by a note on their owner.
//! - `share_pods`: makes a pod of each SharePod of KubeShare 1, and keeps its status.
//! - `queue/`: the job queue. Its decision is about the whole cluster, so it has a loop of its
//!   own: `watched_state` and `watching` (the objects), `round` (one look: groups, the engine's decision,
//!   plans), `steps` (the protocol's words as writes), `reclaims` (the count of groups that go for others),
//!   `report` (status, events), `memory` (state of one leadership), `reporter` (writes status and events, beside the decisions). Only
//!   `watching`, `reporter` and `mod` do I/O. `pace` holds its writes to a rate. `quotas`: may a
//!   quota be as it is, beside the others?
//! - `keeper`: the controller of the webhook's certificates, with one Secret and the bundle in
//!   both webhook configurations. `hosts` reads from those the addresses of webhooks.
//! - `admission`: the webhook's decision about a pod, as a pure function: patches, or a refusal
//!   in the scheduler's words. `flavors`: the amounts that a pod asks for by a flavor's name;
//!   claims and the ledger know no flavor. `patch`: one operation of a patch. `bindings`: may this
//!   user bind this pod to this node? Pure; the agent is the second line. `known`: namespaces'
//!   labels and flavors, kept by watches. `webhook` makes bytes of all answers, on every replica,
//!   and looks pod and node of a Binding up. `listener` has the limits under which
//!   `sublet-listener` serves it.

mod admission;
mod bindings;
mod flavors;
mod hosts;
mod incomplete;
mod keeper;
mod known;
mod ledger;
mod listener;
mod pace;
mod patch;
mod preemptor;
mod queue;
mod quotas;
mod review;
mod share_pods;
pub mod shell;
mod webhook;

pub use review::Review;

use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use futures::StreamExt;
use jiff::SignedDuration;
use k8s_openapi::api::coordination::v1::Lease;
use kube::Client;
use kube::runtime::WatchStreamExt;
use rustls::ServerConfig;
use rustls::server::danger::ClientCertVerifier;
use sublet_api::flags::{self, QueueRuleArgs};
use sublet_api::group::QueueScope;
use sublet_client::{ElasticQuotas, Flavors, Namespaces, ObjectAddress};
use sublet_listener::{Door, Limits, listen, stopped};
use sublet_model::Unit;
use sublet_plan::Policy;
use sublet_replicas::leader::{Leadership, SWIFT, campaign, candidacy, process_name};
use sublet_replicas::secret::{is_empty, stored_in};
use sublet_tasks::{Vital, VitalTask, vital};
use sublet_telemetry::metrics::ControllerMetrics;
use tokio::sync::watch;

use admission::AdmissionRules;
use bindings::BindingRules;
use incomplete::IncompletePods;
use keeper::CertificateKeeper;
use known::Known;
use ledger::LedgerKeeper;
use listener::{CALLS, ENDING};
use preemptor::Preemptor;
use queue::{QueueKeeper, keep_queue};
use share_pods::SharePodKeeper;
use shell::{PAUSES, govern};
use webhook::WebhookState;

/// The Lease and the Secret, in the namespace of the controller.
const LEASE: &str = "sublet-controller";
const SECRET: &str = "sublet-webhook-certificates";

/// Check and complete GPU pods when they are created and bound (webhooks), and look after the
/// webhooks' certificates.
#[derive(Debug, clap::Args)]
#[command(group = QueueRuleArgs::need_queue())]
#[command(after_help = "\
EXAMPLES
  sublet controller                                     in the cluster, two replicas
  sublet controller --assign-scheduler sublet-scheduler GPU pods need not name a scheduler
  sublet controller --listen 10.0.0.5:9443 --kubeconfig ~/.kube/config
                                                        outside of the cluster, for a trial

The API server calls what deploy/kubernetes/71-webhook.yaml names: a Service, or with `url:` any
host. Certificates for that host are made, trusted and renewed without further help.
Answers /healthz, /readyz (once there is a certificate) and /metrics.")]
pub struct Args {
    /// Address for the API server's calls, over HTTPS
    #[arg(long, value_name = "ADDRESS", default_value = "0.0.0.0:9443")]
    listen: SocketAddr,
    /// Authorities (PEM) for the certificates of callers of --listen; one of them must have signed
    /// the caller's certificate. For API servers that show one (a kubeconfig of
    /// --admission-control-config-file). Not the cluster's own authority, which signs for its users
    /// too [default: everybody is answered]
    #[arg(long, value_name = "FILE")]
    client_ca: Option<PathBuf>,
    /// Address for /healthz, /readyz and /metrics
    #[arg(long, value_name = "ADDRESS", default_value = "0.0.0.0:39996")]
    health_listen: SocketAddr,
    /// Kubeconfig for the API server [default: as kubectl does, or the pod's account]
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Namespace of its Lease and its Secret
    #[arg(long, value_name = "NAMESPACE", default_value = "sublet-system")]
    namespace: String,
    /// The MutatingWebhookConfiguration that calls it
    #[arg(long, value_name = "NAME", default_value = "sublet-pods")]
    webhook_configuration: String,
    /// The ValidatingWebhookConfiguration that calls it about Bindings
    #[arg(long, value_name = "NAME", default_value = "sublet-bindings")]
    binding_configuration: String,
    /// User that the extender binds as. GPU pods that others bind to nodes with Sublet's agent are
    /// refused
    #[arg(
        long,
        value_name = "USER",
        default_value = "system:serviceaccount:sublet-system:sublet-scheduler"
    )]
    scheduler_account: String,
    /// Unit of aliyun.com/gpu-mem, MiB or GiB
    #[arg(long, default_value_t, value_parser = flags::unit())]
    memory_unit: Unit,
    /// A scheduler that asks Sublet, as the extender's flag; can be given several times. Pods of
    /// other schedulers are left alone
    #[arg(long, default_value = "sublet-scheduler", value_name = "NAME")]
    scheduler_name: Vec<String>,
    /// Scheduler for GPU pods that name none. A namespace's label sublet.dev/assign-scheduler wins
    /// over it [default: pods stay as they are]
    #[arg(long, value_name = "NAME")]
    assign_scheduler: Option<String>,
    /// Give containers that ask for aliyun.com/gpu-mem the resource sublet.dev/gpu-slot. Use it
    /// only if all nodes hand out memory by slots: other nodes cannot take such a pod. A
    /// namespace's label sublet.dev/add-slots wins over it. Containers that always need a slot get
    /// one in any case
    #[arg(long)]
    add_slots: bool,
    /// Make no pods of SharePods. The controller then needs no right to create pods
    #[arg(long)]
    no_share_pods: bool,
    /// Queue jobs, by quotas and in groups that start together: pods that belong to a group, name a
    /// quota, or are in a namespace with the label sublet.dev/queue=enabled. The extender needs the
    /// same flag
    #[arg(long)]
    queue: bool,
    /// Policy of the queue among places that fit, the same as the extender's; or a mix, such as
    /// fgd=0.7,best-fit=0.3
    #[arg(long, default_value_t, value_name = "POLICY", requires = "queue",
          value_parser = flags::policy())]
    policy: Policy,
    #[command(flatten)]
    queue_rules: QueueRuleArgs,
    /// Most requests that the queue writes per second, events included [default: as many as the API
    /// server answers]
    #[arg(long, value_name = "N", requires = "queue")]
    writes_per_second: Option<NonZeroU32>,
    /// Lifetime of a certificate; it is renewed when a third of that is left
    #[arg(long, value_name = "DURATION", default_value = "8760h", value_parser = validity)]
    certificate_validity: Duration,
}

/// At least as long as a renewal takes on a slow cluster.
fn validity(text: &str) -> Result<Duration, String> {
    let given: SignedDuration = text.parse().map_err(|_| "write it as in `720h` or `90m`")?;
    match Duration::try_from(given) {
        Ok(given) if given >= Duration::from_secs(30) => Ok(given),
        _ => Err("30s is the shortest".to_owned()),
    }
}

/// Runs until SIGTERM or Ctrl-C.
///
/// # Errors
/// No usable configuration, or an address that cannot be listened on.
pub fn run(args: Args) -> anyhow::Result<()> {
    let executor = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("cannot start threads")?;
    let ended = executor.block_on(serve(args));
    // A look-up of a name can take seconds, and nobody waits for it any more.
    executor.shutdown_background();
    ended
}

async fn serve(args: Args) -> anyhow::Result<()> {
    let client = sublet_client::connect(args.kubeconfig.as_deref()).await?;
    // Before anything is done: another process may have the port.
    let calls = listen(args.listen)?;
    let health = listen(args.health_listen)?;
    let clients = args.client_ca.as_deref().map(listener::clients);
    let clients = clients.transpose()?;
    let (metrics, registry) = ControllerMetrics::registered();
    let (vital, mut vigil) = vital();
    let known = follow_all(&client, args.queue, &vital);
    let (certificate, certificate_known) = watch::channel(None);
    let controllers = Controllers::new(&args, &known, &certificate_known, &vital);
    let following = follow_certificate(
        controllers.keeper.clone(),
        client.clone(),
        certificate,
        clients,
        metrics.clone(),
    );
    vital.start("the watch of the certificate", following);
    let lease = ObjectAddress::of::<Lease>(Some(&args.namespace), LEASE);
    let address = args.listen;
    let (rules, binding_rules) = rules(args);
    let state = Arc::new(WebhookState {
        rules,
        binding_rules,
        client: client.clone(),
        known,
        certificate: certificate_known.clone(),
        metrics: metrics.clone(),
        registry,
    });
    let door = Door::new(health, Limits::PAGES, &metrics.refused);
    let page = webhook::health_router(state.clone());
    let serving = door.serve(page, ENDING, std::future::pending());
    vital.start("the listener for health", serving);

    let (campaigner, leadership) = candidacy();
    let governing = controllers.start(&client, &leadership, &metrics, &vital);
    let (stop, mut stopping) = watch::channel(());
    let campaign = campaign(
        client,
        lease,
        process_name()?,
        SWIFT,
        campaigner,
        metrics.leading.clone(),
        async move {
            let _told = stopping.changed().await;
        },
    );
    let campaigning = vital.start_for_now("the election", campaign);

    let door = Door::new(calls, CALLS, &metrics.refused).with_tls(certificate_known);
    tracing::info!(%address, "listening");
    let serving = door.serve(webhook::router(state), ENDING, stopped());
    // If a vital task ends the Lease is not given back: others may still write.
    vigil.beside(serving).await??;
    // In this order: nobody writes any more when the Lease is given back.
    for task in governing {
        task.end().await;
    }
    drop(stop);
    campaigning.ended().await.context("the election failed")?;
    tracing::info!("stopped");
    Ok(())
}

/// Watches the facts that judge objects, for as long as the process lives.
fn follow_all(client: &Client, queue: bool, vital: &Vital) -> Known {
    let (namespaces, namespaces_known) = watch::channel(None);
    let (flavors, flavors_known) = watch::channel(None);
    let (quotas, quotas_known) = watch::channel(None);
    let changes = sublet_client::watch::<Namespaces>(client, None);
    let following = known::follow_namespaces(changes, namespaces);
    vital.start("the watch of namespaces", following);
    let changes = sublet_client::watch::<Flavors>(client, None);
    let following = known::follow_flavors(changes, flavors);
    vital.start("the watch of flavors", following);
    if queue {
        let changes = sublet_client::watch::<ElasticQuotas>(client, None);
        let following = known::follow_quotas(changes, quotas);
        vital.start("the watch of quotas", following);
    }
    Known {
        namespaces: namespaces_known,
        flavors: flavors_known,
        quotas: quotas_known,
    }
}

/// The controllers: they look after objects while this process leads.
struct Controllers {
    keeper: CertificateKeeper,
    preemptor: Preemptor,
    incomplete: IncompletePods,
    share_pods: Option<SharePodKeeper>,
    queue: Option<QueueKeeper>,
}

impl Controllers {
    fn new(
        args: &Args,
        known: &Known,
        certificate: &watch::Receiver<Option<Arc<ServerConfig>>>,
        vital: &Vital,
    ) -> Controllers {
        let keeper = CertificateKeeper {
            configuration: args.webhook_configuration.clone(),
            binding_configuration: args.binding_configuration.clone(),
            namespace: args.namespace.clone(),
            secret: SECRET.to_owned(),
            validity: args.certificate_validity,
        };
        let rules = admission_rules(args);
        let policy = args.queue.then(|| args.policy.clone());
        let ledgers = Arc::new(LedgerKeeper::new(rules.unit, policy, vital.clone()));
        let preemptor = Preemptor {
            schedulers: rules.schedulers.clone(),
            ledgers: ledgers.clone(),
        };
        let queue = args.queue.then(|| QueueKeeper {
            scope: QueueScope {
                schedulers: rules.schedulers.iter().cloned().collect(),
                assign: rules.assign.clone(),
                unit: rules.unit,
            },
            ledgers,
            rules: args.queue_rules.rules(),
            known: known.clone(),
            vital: vital.clone(),
            writes_a_second: args.writes_per_second,
        });
        let incomplete = IncompletePods {
            rules: rules.clone(),
            known: known.clone(),
            namespace: args.namespace.clone(),
            certificate: certificate.clone(),
        };
        let share_pods = (!args.no_share_pods).then(|| SharePodKeeper {
            rules,
            known: known.clone(),
        });
        Controllers {
            keeper,
            preemptor,
            incomplete,
            share_pods,
            queue,
        }
    }

    /// Starts all of them, each in a task of its own.
    fn start(
        self,
        client: &Client,
        leadership: &Leadership,
        metrics: &ControllerMetrics,
        vital: &Vital,
    ) -> Vec<VitalTask<()>> {
        let (client, leads, metrics) =
            (|| client.clone(), || leadership.clone(), || metrics.clone());
        let keeping = govern(self.keeper, client(), leads(), PAUSES, metrics());
        let preempting = govern(self.preemptor, client(), leads(), PAUSES, metrics());
        let completing = govern(self.incomplete, client(), leads(), PAUSES, metrics());
        let mut tasks = vec![
            vital.start_for_now("the keeper of certificates", keeping),
            vital.start_for_now("the preemptor", preempting),
            vital.start_for_now("the keeper of incomplete pods", completing),
        ];
        if let Some(keeper) = self.share_pods {
            let sharing = govern(keeper, client(), leads(), PAUSES, metrics());
            tasks.push(vital.start_for_now("the keeper of SharePods", sharing));
        }
        if let Some(keeper) = self.queue {
            let queueing = keep_queue(keeper, client(), leads(), metrics());
            tasks.push(vital.start_for_now("the queue", queueing));
        }
        tasks
    }
}

fn admission_rules(args: &Args) -> AdmissionRules {
    AdmissionRules {
        unit: args.memory_unit,
        schedulers: args.scheduler_name.clone(),
        assign: args.assign_scheduler.clone(),
        slots: args.add_slots,
        queue: args.queue,
    }
}

fn rules(args: Args) -> (AdmissionRules, BindingRules) {
    let rules = admission_rules(&args);
    let binding_rules = BindingRules {
        unit: rules.unit,
        schedulers: rules.schedulers.clone(),
        account: args.scheduler_account,
    };
    (rules, binding_rules)
}

/// Hands on the certificate that is to be served, whenever another one is stored.
async fn follow_certificate(
    keeper: CertificateKeeper,
    client: Client,
    certificate: watch::Sender<Option<Arc<ServerConfig>>>,
    clients: Option<Arc<dyn ClientCertVerifier>>,
    metrics: ControllerMetrics,
) {
    let secrets = keeper.watch_secret(&client).applied_objects();
    let mut secrets = std::pin::pin!(secrets);
    let mut served = None;
    while let Some(secret) = secrets.next().await {
        let stored = match secret {
            Err(error) => {
                tracing::warn!(%error, "the watch of the Secret is broken");
                continue;
            }
            // The leader fills it.
            Ok(secret) if is_empty(&secret) => continue,
            Ok(secret) => stored_in(&secret),
        };
        let loaded = stored.and_then(|stored| {
            let config = stored.served.server_config(clients.clone())?;
            Ok((stored.served, config))
        });
        match loaded {
            Err(error) => tracing::warn!(%error, "the Secret is of no use"),
            Ok((credential, _)) if served.as_ref() == Some(&credential) => {}
            Ok((credential, config)) => {
                tracing::info!(until = %credential.until, "another certificate");
                metrics.certificate_end.set(credential.until.as_second());
                served = Some(credential);
                certificate.send_replace(Some(config));
            }
        }
    }
}
