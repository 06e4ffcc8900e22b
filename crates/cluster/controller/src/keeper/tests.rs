//! Each decision of the keeper about certificates is a few writes, in the version that was seen.

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
    let decide = |secret: SecretSnapshot, bundle: Option<&str>| {
        let snapshot = CertificateSnapshot {
            secret,
            bindings: None,
            fresh: Some(fresh.clone()),
        };
        keeper.decide(&configuration(bundle), &snapshot, now)
    };
    let stored = Stored::first(fresh.clone());
    let kept = |stored| SecretSnapshot {
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
            act: Act::JsonPatch(patch),
        },
    ] = &untrusted.writes[..]
    else {
        panic!("{untrusted:?}")
    };
    assert_eq!(to.name, "w");
    let value = ByteString(stored.bundle().into_bytes());
    let trust = [
        json!({ "op": "test", "path": "/metadata/resourceVersion", "value": "5" }),
        json!({ "op": "add", "path": "/webhooks/0/clientConfig/caBundle", "value": value }),
    ];
    assert_eq!(*patch, json!(trust));
    let done = decide(kept(Some(Box::new(stored.clone()))), Some(&stored.bundle()));
    assert_eq!(done.writes, []);
    assert_eq!(done.again, Some(Duration::from_secs(600)));
}

/// The Secret can be deleted, or replaced by one that cannot be written. Its content is trusted all
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
        let snapshot = CertificateSnapshot {
            secret: SecretSnapshot::of(secret),
            bindings: None,
            fresh: Some(fresh.clone()),
        };
        let decision = keeper.decide(&configuration(trusted), &snapshot, now);
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
        let snapshot = CertificateSnapshot {
            secret: SecretSnapshot {
                room: Ok(version_7()),
                stored: Some(Box::new(stored.clone())),
            },
            bindings: Some(Arc::new(bindings)),
            fresh: Some(fresh.clone()),
        };
        let decision = keeper().decide(&configuration(trusted), &snapshot, now);
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
    let snapshot = CertificateSnapshot {
        secret: SecretSnapshot::of(None),
        bindings: None,
        fresh: None,
    };
    let decision = keeper().decide(&configuration(None), &snapshot, Timestamp::now());
    assert_eq!(decision, Decision::default());
}
