//! The controller of the webhook's certificates: carries out the steps of
//! `sublet_replicas::credentials`.
//!
//! It looks after one object, the webhook configuration for pods, with the one for Bindings beside
//! it, and keeps one Secret. It never makes a configuration: without the first there is nothing to
//! keep, and without the second nobody is asked about Bindings. Nor does it make the Secret:
//! without one it names the manifest to apply, and the replicas serve the certificate that they
//! have. Every replica reads the Secret; this runs on the leader alone, and two leaders could still
//! not disagree, for a Secret is replaced, and a configuration patched, only in the version that
//! was seen.
//!
//! A bundle is written by a patch of positions, never by server-side apply: a client that applies
//! owns the webhooks that it names. If helm then takes such a webhook away, a torso remains, which
//! the API server refuses, and the upgrade fails. Fields that an earlier version owns by apply are
//! given up here.

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use jiff::Timestamp;
use k8s_openapi::ByteString;
use k8s_openapi::api::admissionregistration::v1::{
    MutatingWebhookConfiguration, ValidatingWebhookConfiguration, WebhookClientConfig,
};
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::runtime::reflector::{ObjectRef, Store, reflector, store};
use kube::runtime::watcher::{self, watcher};
use kube::runtime::{Controller, WatchStreamExt};
use kube::{Api, Client, Resource, ResourceExt};
use serde_json::{Value, json};
use sublet_client::{Act, ObjectAddress, Write};
use sublet_replicas::credentials::{CertificateStep, Credential, Stored, next_step};
use sublet_replicas::secret::{NoRoom, is_empty, room_in, stored_in, storing};

use crate::hosts::{names_of, trusts};
use crate::shell::{Control, Decision};

/// The controller of the certificates.
#[derive(Debug, Clone)]
pub(crate) struct CertificateKeeper {
    /// The name of the webhook configuration for pods.
    pub(crate) configuration: String,
    /// The name of the webhook configuration for Bindings.
    pub(crate) binding_configuration: String,
    /// The namespace of the Secret.
    pub(crate) namespace: String,
    /// The name of the Secret.
    pub(crate) secret: String,
    /// Lifetime of a certificate.
    pub(crate) validity: Duration,
}

impl CertificateKeeper {
    /// Time that API servers and replicas may take to hear of a change. Their watches take about a
    /// second. Certificates with a lifetime of minutes belong to tests.
    fn settle(&self) -> Duration {
        Duration::from_secs(60).min(self.validity / 6)
    }

    /// Watches the Secret alone.
    pub(crate) fn watch_secret(
        &self,
        client: &Client,
    ) -> impl futures::Stream<Item = Result<watcher::Event<Secret>, watcher::Error>> + Send + use<>
    {
        let api: Api<Secret> = Api::namespaced(client.clone(), &self.namespace);
        watcher(api, named(&self.secret)).default_backoff()
    }
}

fn named(name: &str) -> watcher::Config {
    watcher::Config::default().fields(&format!("metadata.name={name}"))
}

/// The view of the Secret.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct SecretSnapshot {
    /// The Secret to write to, or the reason why nothing can be written.
    pub(crate) room: Result<Box<ObjectMeta>, NoRoom>,
    /// The Secret's content, if it can be read and served.
    pub(crate) stored: Option<Box<Stored>>,
}

impl SecretSnapshot {
    fn of(secret: Option<&Secret>) -> SecretSnapshot {
        let room = room_in(secret);
        let room = room.inspect_err(|error| tracing::error!(%error, "no certificate is stored"));
        let filled = secret.filter(|secret| !is_empty(secret));
        let stored = filled.and_then(|secret| {
            let stored = stored_in(secret);
            let stored = stored.inspect_err(
                |error| tracing::warn!(%error, "the Secret is of no use, and is made anew"),
            );
            stored.ok()
        });
        SecretSnapshot {
            room: room.cloned().map(Box::new),
            stored: stored.map(Box::new),
        }
    }
}

/// Pause before another look at a Secret that cannot be written, though nothing has changed. The
/// log then repeats the advice.
const NO_ROOM_AGAIN: Duration = Duration::from_secs(60);

/// Data for a decision about certificates.
#[derive(Debug)]
pub(crate) struct CertificateSnapshot {
    /// The Secret.
    pub(crate) secret: SecretSnapshot,
    /// The configuration for Bindings, if there is one.
    pub(crate) bindings: Option<Arc<ValidatingWebhookConfiguration>>,
    /// A new credential; `None` where no configuration names a host.
    pub(crate) fresh: Option<Credential>,
}

/// Data for a decision, beside the configuration for pods.
pub(crate) struct CertificateCaches {
    secrets: Store<Secret>,
    bindings: Store<ValidatingWebhookConfiguration>,
}

/// Each change as a reason to decide again.
fn reasons<K>(
    changes: impl futures::Stream<Item = Result<K, watcher::Error>> + Send + 'static,
    what: &'static str,
) -> impl futures::Stream<Item = ()> + Send + 'static {
    changes.filter_map(move |change| {
        let broken = change.err();
        if let Some(error) = &broken {
            tracing::warn!(%error, "the watch of {what} is broken");
        }
        std::future::ready(broken.is_none().then_some(()))
    })
}

impl Control for CertificateKeeper {
    type Object = MutatingWebhookConfiguration;
    type Caches = CertificateCaches;
    type Snapshot = CertificateSnapshot;

    const NAME: &'static str = "sublet-certificates";

    fn watch(
        &self,
        client: &Client,
        _: u64,
    ) -> (Controller<MutatingWebhookConfiguration>, CertificateCaches) {
        let (secrets, writer) = store();
        let secret = reflector(writer, self.watch_secret(client)).touched_objects();
        let (bindings, writer) = store();
        let all: Api<ValidatingWebhookConfiguration> = Api::all(client.clone());
        let binding = watcher(all, named(&self.binding_configuration)).default_backoff();
        let binding = reflector(writer, binding).touched_objects();
        let configurations = Api::all(client.clone());
        let controller = Controller::new(configurations, named(&self.configuration))
            .reconcile_all_on(reasons(secret, "the Secret"))
            .reconcile_all_on(reasons(binding, "the webhook configuration for Bindings"));
        (controller, CertificateCaches { secrets, bindings })
    }

    async fn see(
        &self,
        caches: &CertificateCaches,
        configuration: &MutatingWebhookConfiguration,
    ) -> CertificateSnapshot {
        let CertificateCaches { secrets, bindings } = caches;
        // They fail only if the watch is gone, and then so is this.
        let _ready = secrets.wait_until_ready().await;
        let _ready = bindings.wait_until_ready().await;
        let bindings = bindings.get(&ObjectRef::new(&self.binding_configuration));
        let place = ObjectRef::new(&self.secret).within(&self.namespace);
        let secret = SecretSnapshot::of(secrets.get(&place).as_deref());
        let names = names_of(called(configuration, bindings.as_deref()));
        let fresh = Credential::make(&names, Timestamp::now(), self.validity);
        let fresh = fresh.inspect_err(|error| tracing::error!(%error, ?names, "no certificate"));
        CertificateSnapshot {
            secret,
            bindings,
            fresh: fresh.ok().filter(|_| !names.is_empty()),
        }
    }

    fn decide(
        &self,
        configuration: &MutatingWebhookConfiguration,
        snapshot: &CertificateSnapshot,
        now: Timestamp,
    ) -> Decision {
        let Some(fresh) = &snapshot.fresh else {
            return Decision::default();
        };
        let SecretSnapshot { room, stored } = &snapshot.secret;
        let stored = stored.as_deref();
        let bindings = snapshot.bindings.as_deref();
        let believing = |bundle: &str| {
            let pods = configuration.webhooks.iter().flatten();
            let pods = believe(configuration, pods.map(|one| &one.client_config), bundle);
            let bindings = bindings.and_then(|bindings| {
                let webhooks = bindings.webhooks.iter().flatten();
                believe(bindings, webhooks.map(|one| &one.client_config), bundle)
            });
            pods.into_iter().chain(bindings).collect::<Vec<Write>>()
        };
        let trusted = stored.is_some_and(|stored| believing(&stored.bundle()).is_empty());
        let (writes, again) = match next_step(stored, trusted, fresh, self.settle(), now) {
            CertificateStep::Store(new) => match room {
                Ok(seen) => (
                    vec![storing(&self.namespace, &self.secret, seen, &new)],
                    None,
                ),
                Err(_) => (Vec::new(), Some(NO_ROOM_AGAIN)),
            },
            CertificateStep::Trust(bundle) => (believing(&bundle), None),
            CertificateStep::Wait(time) => (Vec::new(), Some(time)),
        };
        Decision { writes, again }
    }
}

/// The client configurations of all webhooks in these configurations.
fn called<'a>(
    configuration: &'a MutatingWebhookConfiguration,
    bindings: Option<&'a ValidatingWebhookConfiguration>,
) -> impl Iterator<Item = &'a WebhookClientConfig> {
    let bindings = bindings.and_then(|bindings| bindings.webhooks.as_ref());
    let bindings = bindings.into_iter().flatten();
    let pods = configuration.webhooks.iter().flatten();
    pods.map(|webhook| &webhook.client_config)
        .chain(bindings.map(|webhook| &webhook.client_config))
}

/// Puts a bundle into each webhook of a configuration that lacks it, and changes nothing else; `None`
/// if none lacks it.
fn believe<'a, K: Resource<DynamicType = ()>>(
    configuration: &K,
    webhooks: impl Iterator<Item = &'a WebhookClientConfig>,
    bundle: &str,
) -> Option<Write> {
    let value = ByteString(bundle.as_bytes().to_vec());
    let lacking = webhooks.enumerate().filter(|(_, one)| !trusts(one, bundle));
    let added = lacking.map(|(at, _)| {
        let path = format!("/webhooks/{at}/clientConfig/caBundle");
        json!({ "op": "add", "path": path, "value": value })
    });
    let changes: Vec<Value> = added.collect();
    if changes.is_empty() {
        return None;
    }
    // Positions are those of what was seen.
    let seen = configuration.resource_version();
    let same = json!({ "op": "test", "path": "/metadata/resourceVersion", "value": seen });
    Some(Write {
        to: ObjectAddress::of::<K>(None, &configuration.name_any()),
        act: Act::JsonPatch([vec![same], changes].concat().into()),
    })
}
