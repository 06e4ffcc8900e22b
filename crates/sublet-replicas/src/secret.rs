//! Credentials in a Secret: one text, read by all replicas, and replaced only in the version that
//! was seen.

use anyhow::Context;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::json;
use sublet_client::{Act, ObjectAddress, Write};

use crate::credentials::Stored;

/// The one text in the Secret.
const TEXT: &str = "certificates.json";

/// What is stored in a Secret.
///
/// # Errors
/// It cannot be read, or not be served.
pub fn stored_in(secret: &Secret) -> anyhow::Result<Stored> {
    let data = secret.data.as_ref().and_then(|data| data.get(TEXT));
    let text = data.with_context(|| format!("the Secret has no `{TEXT}`"))?;
    let stored: Stored = serde_json::from_slice(&text.0)?;
    stored.served.server_config()?;
    Ok(stored)
}

/// The metadata of an object that is put in place of one that was seen: its version, and all that
/// others have written there, such as helm's annotations of who owns it.
pub(crate) fn kept(seen: &ObjectMeta) -> ObjectMeta {
    ObjectMeta {
        managed_fields: None, // The API server keeps them by itself.
        ..seen.clone()
    }
}

/// Makes the Secret, or replaces its data in the version that was seen.
///
/// # Panics
/// Never: texts and times are always JSON.
#[must_use]
pub fn storing(namespace: &str, name: &str, seen: Option<&ObjectMeta>, new: &Stored) -> Write {
    let text = serde_json::to_vec(new).expect("texts and times are always JSON");
    let mut secret = json!({
        "metadata": { "labels": { "app.kubernetes.io/name": "sublet" } },
        "type": "Opaque",
        "data": { TEXT: ByteString(text) },
    });
    let act = match seen {
        None => Act::Create(secret),
        Some(seen) => {
            secret["metadata"] = json!(kept(seen));
            Act::Replace(secret)
        }
    };
    Write {
        to: ObjectAddress::of::<Secret>(Some(namespace), name),
        act,
    }
}
