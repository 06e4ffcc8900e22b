//! An AdmissionReview, as much of it as the webhooks read.
//!
//! kube's own type reads all of the object's metadata, field by field, and is then made JSON again;
//! for a whole pod that took most of a call. Answers are kube's.

use kube::core::Status;
use kube::core::admission::AdmissionResponse;
use serde::Deserialize;
use serde_json::Value;

/// What the API server asks about an object.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Review {
    /// Which request it is; the answer repeats it.
    uid: String,
    /// The object's name; empty where the API server is to make one.
    #[serde(default)]
    pub(crate) name: String,
    /// Its namespace.
    #[serde(default)]
    pub(crate) namespace: String,
    user_info: User,
    object: Option<Value>,
    /// As it was, where something is changed or deleted.
    old_object: Option<Value>,
}

/// Who asks.
#[derive(Debug, Clone, PartialEq, Deserialize)]
struct User {
    #[serde(default)]
    username: String,
}

impl Review {
    /// The request in a body.
    ///
    /// # Errors
    /// Not such JSON.
    pub fn read(body: &[u8]) -> Result<Review, String> {
        #[derive(Deserialize)]
        struct Body {
            request: Option<Review>,
        }
        let body: Body =
            serde_json::from_slice(body).map_err(|error| format!("no AdmissionReview: {error}"))?;
        body.request
            .ok_or_else(|| "an AdmissionReview without a request".to_owned())
    }

    /// The object.
    ///
    /// # Errors
    /// There is none, as where something is deleted.
    pub fn object(&self) -> Result<&Value, String> {
        let object = self.object.as_ref();
        object.ok_or_else(|| "a request without an object".to_owned())
    }

    /// The object that goes; none where one comes or changes.
    #[must_use]
    pub fn deleted(&self) -> Option<&Value> {
        self.old_object.as_ref().filter(|_| self.object.is_none())
    }

    /// The name of who asks.
    pub(crate) fn user(&self) -> &str {
        &self.user_info.username
    }

    /// The answer that allows it.
    pub(crate) fn allow(&self) -> AdmissionResponse {
        let mut response = AdmissionResponse::invalid("");
        response.uid.clone_from(&self.uid);
        response.allowed = true;
        response.result = Status::default();
        response
    }
}
