//! The controller of the webhook's certificates: carries out the steps of `certificates`.
//!
//! It looks after one object, the webhook configuration, and keeps one Secret. It never makes the
//! configuration: without it there is nobody to call, and nothing to keep. Every replica reads the
//! Secret; this runs on the leader alone, and two leaders could still not disagree, for a Secret is
//! made once and replaced only in the version that was seen.

use std::time::Duration;

use futures::StreamExt;
use jiff::Timestamp;
use k8s_openapi::ByteString;
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use k8s_openapi::api::core::v1::Secret;
use kube::runtime::reflector::{ObjectRef, Store, reflector, store};
use kube::runtime::watcher::{self, watcher};
use kube::runtime::{Controller, WatchStreamExt};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};
use sublet_client::{Act, ObjectAddress, Write};

use crate::certificates::{CertificateStep, Credential, Stored, names_of, next_step, trusts};
use crate::shell::{Control, Decision};

/// The one text in the Secret.
const TEXT: &str = "certificates.json";

/// The controller of the certificates.
#[derive(Debug, Clone)]
pub(crate) struct CertificateKeeper {
    /// The name of the webhook configuration.
    pub(crate) configuration: String,
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

/// What there is in the Secret.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum SecretSight {
    /// There is none.
    Absent,
    /// There is one, in this version; `None` if it cannot be read or served.
    Found(String, Option<Box<Stored>>),
}

/// What a decision about certificates looks at.
#[derive(Debug)]
pub(crate) struct CertificateSight {
    /// The Secret.
    pub(crate) secret: SecretSight,
    /// A new credential; `None` where the configuration names no host.
    pub(crate) fresh: Option<Credential>,
}

/// What is stored in a Secret, if it can be read and served.
pub(crate) fn stored_in(secret: &Secret) -> anyhow::Result<Stored> {
    let data = secret.data.as_ref().and_then(|data| data.get(TEXT));
    let text = data.ok_or_else(|| anyhow::anyhow!("the Secret has no `{TEXT}`"))?;
    let stored: Stored = serde_json::from_slice(&text.0)?;
    stored.served.server_config()?;
    Ok(stored)
}

impl Control for CertificateKeeper {
    type Object = MutatingWebhookConfiguration;
    type Caches = Store<Secret>;
    type Sight = CertificateSight;

    const NAME: &'static str = "sublet-certificates";

    fn watch(&self, client: &Client) -> (Controller<MutatingWebhookConfiguration>, Store<Secret>) {
        let (secrets, writer) = store();
        let changes = reflector(writer, self.watch_secret(client)).touched_objects();
        let reasons = changes.filter_map(|change| {
            let reason = match change {
                Ok(_) => Some(()),
                Err(error) => {
                    tracing::warn!(%error, "the watch of the Secret is broken");
                    None
                }
            };
            std::future::ready(reason)
        });
        let configurations = Api::all(client.clone());
        let controller = Controller::new(configurations, named(&self.configuration));
        (controller.reconcile_all_on(reasons), secrets)
    }

    async fn see(
        &self,
        secrets: &Store<Secret>,
        configuration: &MutatingWebhookConfiguration,
    ) -> CertificateSight {
        // It fails only if the watch is gone, and then so is this.
        let _ready = secrets.wait_until_ready().await;
        let place = ObjectRef::new(&self.secret).within(&self.namespace);
        let secret = match secrets.get(&place) {
            None => SecretSight::Absent,
            Some(secret) => {
                let stored = stored_in(&secret).inspect_err(|error| {
                    tracing::warn!(%error, "the Secret is of no use, and is made anew");
                });
                let version = secret.resource_version().unwrap_or_default();
                SecretSight::Found(version, stored.ok().map(Box::new))
            }
        };
        let names = names_of(configuration);
        let fresh = Credential::make(&names, Timestamp::now(), self.validity);
        let fresh = fresh.inspect_err(|error| tracing::error!(%error, ?names, "no certificate"));
        CertificateSight {
            secret,
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
        let stored = match &sight.secret {
            SecretSight::Found(_, Some(stored)) => Some(&**stored),
            _ => None,
        };
        let trusted = stored.is_some_and(|stored| trusts(configuration, &stored.bundle()));
        let (writes, again) = match next_step(stored, trusted, fresh, self.settle(), now) {
            CertificateStep::Store(new) => (vec![self.store(&sight.secret, &new)], None),
            CertificateStep::Trust(bundle) => (vec![trust(configuration, &bundle)], None),
            CertificateStep::Wait(time) => (Vec::new(), Some(time)),
        };
        Decision { writes, again }
    }
}

impl CertificateKeeper {
    /// Makes the Secret, or replaces it in the version that was seen.
    fn store(&self, seen: &SecretSight, new: &Stored) -> Write {
        let text = serde_json::to_vec(new).expect("texts and times are always JSON");
        let mut secret = json!({
            "metadata": { "labels": { "app.kubernetes.io/name": "sublet" } },
            "type": "Opaque",
            "data": { TEXT: ByteString(text) },
        });
        let act = match seen {
            SecretSight::Absent => Act::Create(secret),
            SecretSight::Found(version, _) => {
                secret["metadata"]["resourceVersion"] = version.clone().into();
                Act::Replace(secret)
            }
        };
        Write {
            to: ObjectAddress::of::<Secret>(Some(&self.namespace), &self.secret),
            act,
        }
    }
}

/// Puts a bundle into every webhook of a configuration, and changes nothing else of it.
fn trust(configuration: &MutatingWebhookConfiguration, bundle: &str) -> Write {
    let bundle = ByteString(bundle.as_bytes().to_vec());
    let webhooks = configuration.webhooks.iter().flatten();
    let webhooks: Vec<Value> = webhooks
        .map(|webhook| json!({ "name": webhook.name, "clientConfig": { "caBundle": bundle } }))
        .collect();
    Write {
        to: ObjectAddress::of::<MutatingWebhookConfiguration>(None, &configuration.name_any()),
        act: Act::Apply(json!({
            // Of what was seen: it must not come back if somebody deletes it.
            "metadata": { "resourceVersion": configuration.resource_version() },
            "webhooks": webhooks,
        })),
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::admissionregistration::v1::{MutatingWebhook, WebhookClientConfig};

    use super::*;

    fn keeper() -> CertificateKeeper {
        CertificateKeeper {
            configuration: "w".to_owned(),
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

    #[test]
    fn each_step_is_one_write_in_the_version_that_was_seen() {
        let now = Timestamp::now();
        let keeper = keeper();
        let fresh = Credential::make(&names_of(&configuration(None)), now, keeper.validity);
        let fresh = fresh.unwrap();
        let decide = |secret: SecretSight, bundle: Option<&str>| {
            let sight = CertificateSight {
                secret,
                fresh: Some(fresh.clone()),
            };
            keeper.decide(&configuration(bundle), &sight, now)
        };
        let stored = Stored::first(fresh.clone());
        let kept = |stored| SecretSight::Found("7".to_owned(), stored);

        let made = decide(SecretSight::Absent, None);
        assert!(
            matches!(
                made.writes[..],
                [Write {
                    act: Act::Create(_),
                    ..
                }]
            ),
            "{made:?}"
        );
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
        assert_eq!(secret["metadata"]["resourceVersion"], "7");
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

    #[test]
    fn a_configuration_without_a_host_needs_no_certificate() {
        let sight = CertificateSight {
            secret: SecretSight::Absent,
            fresh: None,
        };
        let decision = keeper().decide(&configuration(None), &sight, Timestamp::now());
        assert_eq!(decision, Decision::default());
    }
}
