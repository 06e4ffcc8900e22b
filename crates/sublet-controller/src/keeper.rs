//! The controller of the webhook's certificates: carries out the steps of
//! `sublet_replicas::credentials`.
//!
//! It looks after one object, the webhook configuration for pods, with the one for Bindings beside
//! it, and keeps one Secret. It never makes a configuration: without the first there is nothing to
//! keep, and without the second nobody is asked about Bindings. Nor does it make the Secret: without
//! one it says what to apply, and the replicas serve what they have. Every replica reads the
//! Secret; this runs on the leader alone, and two leaders could still not disagree, for a Secret is
//! replaced only in the version that was seen.

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

use crate::hosts::{names_of, trust};
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
    /// How long a certificate is good for.
    pub(crate) validity: Duration,
}

impl CertificateKeeper {
    /// How long API servers and replicas may take to hear of a change. Their watches take about a
    /// second; certificates that are good for minutes belong to tests.
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

/// What there is of the Secret.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct SecretSight {
    /// What to write to, or why nothing can be written.
    pub(crate) room: Result<Box<ObjectMeta>, NoRoom>,
    /// What is in it, if that can be read and served.
    pub(crate) stored: Option<Box<Stored>>,
}

impl SecretSight {
    fn of(secret: Option<&Secret>) -> SecretSight {
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
        SecretSight {
            room: room.cloned().map(Box::new),
            stored: stored.map(Box::new),
        }
    }
}

/// When to look again at a Secret that cannot be written, though nothing has changed: the log then
/// says again what is to be done.
const NO_ROOM_AGAIN: Duration = Duration::from_secs(60);

/// What a decision about certificates looks at.
#[derive(Debug)]
pub(crate) struct CertificateSight {
    /// The Secret.
    pub(crate) secret: SecretSight,
    /// The configuration for Bindings, if there is one.
    pub(crate) bindings: Option<Arc<ValidatingWebhookConfiguration>>,
    /// A new credential; `None` where no configuration names a host.
    pub(crate) fresh: Option<Credential>,
}

/// What a decision looks at beside the configuration for pods.
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
    type Sight = CertificateSight;

    const NAME: &'static str = "sublet-certificates";

    fn watch(
        &self,
        client: &Client,
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
    ) -> CertificateSight {
        let CertificateCaches { secrets, bindings } = caches;
        // They fail only if the watch is gone, and then so is this.
        let _ready = secrets.wait_until_ready().await;
        let _ready = bindings.wait_until_ready().await;
        let bindings = bindings.get(&ObjectRef::new(&self.binding_configuration));
        let place = ObjectRef::new(&self.secret).within(&self.namespace);
        let secret = SecretSight::of(secrets.get(&place).as_deref());
        let names = names_of(called(configuration, bindings.as_deref()));
        let fresh = Credential::make(&names, Timestamp::now(), self.validity);
        let fresh = fresh.inspect_err(|error| tracing::error!(%error, ?names, "no certificate"));
        CertificateSight {
            secret,
            bindings,
            fresh: fresh.ok().filter(|_| !names.is_empty()),
        }
    }

    fn decide(
        &self,
        configuration: &MutatingWebhookConfiguration,
        sight: &CertificateSight,
        now: Timestamp,
    ) -> Decision {
        let Some(fresh) = &sight.fresh else {
            return Decision::default();
        };
        let SecretSight { room, stored } = &sight.secret;
        let stored = stored.as_deref();
        let bindings = sight.bindings.as_deref();
        let trusted =
            stored.is_some_and(|stored| trust(called(configuration, bindings), &stored.bundle()));
        let (writes, again) = match next_step(stored, trusted, fresh, self.settle(), now) {
            CertificateStep::Store(new) => match room {
                Ok(seen) => (
                    vec![storing(&self.namespace, &self.secret, seen, &new)],
                    None,
                ),
                Err(_) => (Vec::new(), Some(NO_ROOM_AGAIN)),
            },
            CertificateStep::Trust(bundle) => {
                let pods = called(configuration, None);
                let pods = (!trust(pods, &bundle)).then(|| {
                    let webhooks = configuration.webhooks.iter().flatten();
                    believe(
                        configuration,
                        webhooks.map(|one| one.name.as_str()),
                        &bundle,
                    )
                });
                let bindings = bindings.and_then(|bindings| {
                    let webhooks = || bindings.webhooks.iter().flatten();
                    let trusting = trust(webhooks().map(|one| &one.client_config), &bundle);
                    let names = webhooks().map(|one| one.name.as_str());
                    (!trusting).then(|| believe(bindings, names, &bundle))
                });
                (pods.into_iter().chain(bindings).collect(), None)
            }
            CertificateStep::Wait(time) => (Vec::new(), Some(time)),
        };
        Decision { writes, again }
    }
}

/// How all webhooks of these configurations are called.
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

/// Puts a bundle into every webhook of a configuration, by name, and changes nothing else of it.
fn believe<'a, K: Resource<DynamicType = ()>>(
    configuration: &K,
    webhooks: impl Iterator<Item = &'a str>,
    bundle: &str,
) -> Write {
    let bundle = ByteString(bundle.as_bytes().to_vec());
    let webhooks: Vec<Value> = webhooks
        .map(|name| json!({ "name": name, "clientConfig": { "caBundle": bundle } }))
        .collect();
    Write {
        to: ObjectAddress::of::<K>(None, &configuration.name_any()),
        act: Act::Apply(json!({
            // Of what was seen: it must not come back if somebody deletes it.
            "metadata": { "resourceVersion": configuration.resource_version() },
            "webhooks": webhooks,
        })),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use k8s_openapi::api::admissionregistration::v1::{MutatingWebhook, ValidatingWebhook};

    use super::*;

    fn keeper() -> CertificateKeeper {
        CertificateKeeper {
            configuration: "w".to_owned(),
            binding_configuration: "b".to_owned(),
            namespace: "ns".to_owned(),
            secret: "s".to_owned(),
            validity: Duration::from_secs(900),
        }
    }

    fn configuration(bundle: Option<&str>) -> MutatingWebhookConfiguration {
        let webhook = MutatingWebhook {
            name: "pods.sublet.dev".to_owned(),
            client_config: WebhookClientConfig {
                url: Some("https://127.0.0.1:1/admit".to_owned()),
                ca_bundle: bundle.map(|text| ByteString(text.as_bytes().to_vec())),
                service: None,
            },
            ..MutatingWebhook::default()
        };
        let mut configuration = MutatingWebhookConfiguration {
            webhooks: Some(vec![webhook]),
            ..MutatingWebhookConfiguration::default()
        };
        configuration.metadata.name = Some("w".to_owned());
        configuration.metadata.resource_version = Some("5".to_owned());
        configuration
    }

    /// A Secret that was made by helm.
    fn version_7() -> Box<ObjectMeta> {
        let helm = ("meta.helm.sh/release-name".to_owned(), "a".to_owned());
        Box::new(ObjectMeta {
            resource_version: Some("7".to_owned()),
            annotations: Some(BTreeMap::from([helm])),
            ..ObjectMeta::default()
        })
    }

    #[test]
    fn each_step_is_one_write_in_the_version_that_was_seen() {
        let now = Timestamp::now();
        let keeper = keeper();
        let fresh = Credential::make(
            &names_of(called(&configuration(None), None)),
            now,
            keeper.validity,
        );
        let fresh = fresh.unwrap();
        let decide = |secret: SecretSight, bundle: Option<&str>| {
            let sight = CertificateSight {
                secret,
                bindings: None,
                fresh: Some(fresh.clone()),
            };
            keeper.decide(&configuration(bundle), &sight, now)
        };
        let stored = Stored::first(fresh.clone());
        let kept = |stored| SecretSight {
            room: Ok(version_7()),
            stored,
        };

        let broken = decide(kept(None), None);
        let [
            Write {
                act: Act::Replace(secret),
                ..
            },
        ] = &broken.writes[..]
        else {
            panic!("{broken:?}")
        };
        assert_eq!(secret["metadata"], json!(version_7()));
        let secret: Secret = serde_json::from_value(secret.clone()).unwrap();
        let _installed = rustls::crypto::ring::default_provider().install_default();
        assert_eq!(stored_in(&secret).unwrap(), stored);

        let untrusted = decide(kept(Some(Box::new(stored.clone()))), Some("old"));
        let [
            Write {
                to,
                act: Act::Apply(patch),
            },
        ] = &untrusted.writes[..]
        else {
            panic!("{untrusted:?}")
        };
        assert_eq!(
            (to.name.as_str(), &patch["metadata"]["resourceVersion"]),
            ("w", &json!("5"))
        );
        assert_eq!(patch["webhooks"][0]["name"], "pods.sublet.dev");
        let done = decide(kept(Some(Box::new(stored.clone()))), Some(&stored.bundle()));
        assert_eq!(done.writes, []);
        assert_eq!(done.again, Some(Duration::from_secs(600)));
    }

    /// It can be deleted, or replaced by one that cannot be written. What is in it is trusted all
    /// the same, for it is served.
    #[test]
    fn a_secret_without_room_is_said_again_and_never_made() {
        let now = Timestamp::now();
        let keeper = keeper();
        let names = names_of(called(&configuration(None), None));
        let fresh = Credential::make(&names, now, keeper.validity).unwrap();
        let due = Stored::first(Credential {
            until: now,
            ..fresh.clone()
        });
        let stored = Stored::first(fresh.clone());
        let _installed = rustls::crypto::ring::default_provider().install_default();
        let holding = |stored: &Stored, immutable| Secret {
            immutable,
            ..match storing("ns", "s", &version_7(), stored).act {
                Act::Replace(secret) => serde_json::from_value(secret).unwrap(),
                other => panic!("{other:?}"),
            }
        };
        let decide = |secret: Option<&Secret>, trusted: Option<&str>| {
            let sight = CertificateSight {
                secret: SecretSight::of(secret),
                bindings: None,
                fresh: Some(fresh.clone()),
            };
            let decision = keeper.decide(&configuration(trusted), &sight, now);
            let kinds = decision.writes.iter().map(|write| &*write.to.kind.kind);
            (kinds.map(str::to_owned).collect::<Vec<_>>(), decision.again)
        };
        let nothing = (Vec::new(), Some(NO_ROOM_AGAIN));
        let fixed = Some(true);
        assert_eq!(decide(None, None), nothing);
        assert_eq!(decide(None, Some(&stored.bundle())), nothing);
        let secret = holding(&due, fixed);
        assert_eq!(decide(Some(&secret), Some(&due.bundle())), nothing);
        let told = (vec!["MutatingWebhookConfiguration".to_owned()], None);
        assert_eq!(decide(Some(&holding(&due, fixed)), None), told);
        // As soon as it can be written, it is.
        let stores = (vec!["Secret".to_owned()], None);
        let secret = holding(&due, None);
        assert_eq!(decide(Some(&secret), Some(&due.bundle())), stores);
    }

    #[test]
    fn the_webhook_for_bindings_is_trusted_with_the_other() {
        let now = Timestamp::now();
        let pods = configuration(None)
            .webhooks
            .unwrap()
            .remove(0)
            .client_config;
        let hosts = names_of(called(&configuration(None), None));
        let fresh = Credential::make(&hosts, now, keeper().validity).unwrap();
        let stored = Stored::first(fresh.clone());
        let written = |trusted: Option<&str>, bindings: Option<&str>| {
            let webhook = ValidatingWebhook {
                name: "bindings.sublet.dev".to_owned(),
                client_config: WebhookClientConfig {
                    ca_bundle: bindings.map(|text| ByteString(text.as_bytes().to_vec())),
                    ..pods.clone()
                },
                ..ValidatingWebhook::default()
            };
            let mut bindings = ValidatingWebhookConfiguration {
                webhooks: Some(vec![webhook]),
                ..ValidatingWebhookConfiguration::default()
            };
            bindings.metadata.name = Some("b".to_owned());
            let sight = CertificateSight {
                secret: SecretSight {
                    room: Ok(version_7()),
                    stored: Some(Box::new(stored.clone())),
                },
                bindings: Some(Arc::new(bindings)),
                fresh: Some(fresh.clone()),
            };
            let decision = keeper().decide(&configuration(trusted), &sight, now);
            let to = decision.writes.into_iter().map(|write| write.to);
            to.map(|to| format!("{} {}", to.kind.kind, to.name))
                .collect::<Vec<_>>()
        };
        let (first, second) = (
            "MutatingWebhookConfiguration w",
            "ValidatingWebhookConfiguration b",
        );
        let bundle = stored.bundle();
        let bundle = Some(bundle.as_str());
        assert_eq!(written(None, Some("old")), [first, second]);
        assert_eq!(written(bundle, None), [second]);
        assert_eq!(written(Some("old"), bundle), [first]);
        assert_eq!(written(bundle, bundle), [""; 0]);
    }

    #[test]
    fn a_configuration_without_a_host_needs_no_certificate() {
        let sight = CertificateSight {
            secret: SecretSight::of(None),
            bindings: None,
            fresh: None,
        };
        let decision = keeper().decide(&configuration(None), &sight, Timestamp::now());
        assert_eq!(decision, Decision::default());
    }
}
