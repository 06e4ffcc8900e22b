//! Credentials in a Secret: one text, read by all replicas, and replaced only in the version that
//! was seen.
//!
//! It never makes a Secret: a process that may make one may make one of any name, and of the type
//! that Kubernetes fills with an account's token. The manifests make it, empty.

use std::collections::BTreeMap;

use anyhow::Context;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::json;
use sublet_client::{Act, ObjectAddress, Write};

use crate::credentials::Stored;

/// The one text in the Secret.
const TEXT: &str = "certificates.json";

/// The manifest that makes the Secrets.
const MANIFEST: &str = "19-secrets.yaml";

/// The type of Secret that the manifest makes, and the default type.
const TYPE: &str = "Opaque";

/// Reason why nothing can be stored.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoRoom {
    /// It was deleted, or never made.
    #[error("there is no such Secret; apply {MANIFEST} again (also: helm upgrade, sublet install)")]
    Absent,
    /// It differs from the manifest's, and the API server does not allow that change.
    #[error(
        "the Secret {0}; delete it and apply {MANIFEST} again (also: helm upgrade, sublet install)"
    )]
    Fixed(String),
}

/// The place to store: the metadata of the Secret, if there is one that can be written.
///
/// # Errors
/// There is none, or one of another form.
pub fn room_in(secret: Option<&Secret>) -> Result<&ObjectMeta, NoRoom> {
    let secret = secret.ok_or(NoRoom::Absent)?;
    if secret.immutable == Some(true) {
        return Err(NoRoom::Fixed("is immutable".to_owned()));
    }
    match secret.type_.as_deref().unwrap_or(TYPE) {
        TYPE => Ok(&secret.metadata),
        other => Err(NoRoom::Fixed(format!("is of type {other}, not {TYPE}"))),
    }
}

/// Returns true for a Secret as the manifest makes it, and as an operator leaves it to get
/// another certificate.
#[must_use]
pub fn is_empty(secret: &Secret) -> bool {
    secret.data.as_ref().is_none_or(BTreeMap::is_empty)
}

/// The credentials stored in a Secret.
///
/// # Errors
/// They cannot be read, or cannot be served.
pub fn stored_in(secret: &Secret) -> anyhow::Result<Stored> {
    let data = secret.data.as_ref().and_then(|data| data.get(TEXT));
    let text = data.with_context(|| format!("the Secret has no `{TEXT}`"))?;
    let stored: Stored = serde_json::from_slice(&text.0)?;
    stored.served.server_config(None)?;
    Ok(stored)
}

/// The metadata of an object that replaces a seen one: its version, and everything that others
/// have written there, such as helm's annotations of the owner.
pub(crate) fn kept(seen: &ObjectMeta) -> ObjectMeta {
    ObjectMeta {
        managed_fields: None, // The API server keeps them by itself.
        ..seen.clone()
    }
}

/// Replaces the data of the Secret in the version that was seen.
///
/// # Panics
/// Never: texts and times are always JSON.
#[must_use]
pub fn storing(namespace: &str, name: &str, seen: &ObjectMeta, new: &Stored) -> Write {
    let text = serde_json::to_vec(new).expect("texts and times are always JSON");
    Write {
        to: ObjectAddress::of::<Secret>(Some(namespace), name),
        act: Act::Replace(json!({
            "metadata": kept(seen),
            "type": TYPE,
            "data": { TEXT: ByteString(text) },
        })),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::credentials::Credential;

    fn secret(more: &serde_json::Value) -> Secret {
        let mut secret = json!({ "metadata": { "name": "s", "resourceVersion": "7" } });
        for (key, value) in more.as_object().into_iter().flatten() {
            secret[key] = value.clone();
        }
        serde_json::from_value(secret).unwrap()
    }

    #[test]
    fn only_what_the_manifest_makes_has_room() {
        for (more, room) in [
            (json!({}), "ok"),
            (json!({ "type": "Opaque", "immutable": false }), "ok"),
            (json!({ "type": "Opaque", "data": { TEXT: "e30=" } }), "ok"),
            (
                json!({ "type": "kubernetes.io/service-account-token" }),
                "the Secret is of type kubernetes.io/service-account-token, not Opaque; delete it \
                 and apply 19-secrets.yaml again (also: helm upgrade, sublet install)",
            ),
            (
                json!({ "immutable": true }),
                "the Secret is immutable; delete it and apply 19-secrets.yaml again (also: helm \
                 upgrade, sublet install)",
            ),
        ] {
            let secret = secret(&more);
            match room_in(Some(&secret)) {
                Ok(seen) => assert_eq!((room, seen), ("ok", &secret.metadata)),
                Err(error) => assert_eq!(room, error.to_string()),
            }
        }
        assert_eq!(room_in(None), Err(NoRoom::Absent));
    }

    #[test]
    fn emptied_and_new_are_the_same_and_garbage_is_neither() {
        assert!(is_empty(&secret(&json!({}))));
        assert!(is_empty(&secret(&json!({ "data": null }))));
        assert!(is_empty(&secret(&json!({ "data": {} }))));
        for garbage in ["", "e30=", "AAEC"] {
            let secret = secret(&json!({ "data": { TEXT: garbage } }));
            assert!(!is_empty(&secret));
            assert!(stored_in(&secret).is_err(), "{garbage}");
        }
    }

    /// No write of ours asks for the right to make one, whatever was there.
    #[test]
    fn a_secret_is_replaced_in_its_version_and_never_made() {
        let now = jiff::Timestamp::now();
        let hour = std::time::Duration::from_secs(3600);
        let credential = Credential::for_peers("a.internal", now, hour).unwrap();
        let stored = Stored::first(credential);
        let emptied = secret(&json!({ "type": "Opaque" }));
        let write = storing("ns", "s", room_in(Some(&emptied)).unwrap(), &stored);
        let Act::Replace(text) = &write.act else {
            panic!("{write:?}")
        };
        assert_eq!(text["metadata"]["resourceVersion"], "7");
        let _installed = rustls::crypto::ring::default_provider().install_default();
        let after: Secret = serde_json::from_value(text.clone()).unwrap();
        assert_eq!(stored_in(&after).unwrap(), stored);
        assert!(room_in(Some(&after)).is_ok(), "it is written a second time");
    }
}
