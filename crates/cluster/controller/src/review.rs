//! An AdmissionReview, as much of it as the webhooks read.
//!
//! The object stays text, borrowed from the body, until the caller says which fields count: a tree
//! of JSON, as kube's own type makes, took most of a call. Answers are kube's.

use kube::core::Status;
use kube::core::admission::AdmissionResponse;
use serde::Deserialize;
use serde_json::value::RawValue;

/// The API server's question about an object.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Review<'a> {
    /// UID of the request; the answer repeats it.
    uid: String,
    /// The object's name; empty where the API server is to make one.
    #[serde(default)]
    pub(crate) name: String,
    /// Its namespace.
    #[serde(default)]
    pub(crate) namespace: String,
    user_info: User,
    #[serde(borrow)]
    object: Option<&'a RawValue>,
    /// As it was, where something is changed or deleted.
    #[serde(borrow)]
    old_object: Option<&'a RawValue>,
}

/// The user that sends the request.
#[derive(Debug, Clone, Deserialize)]
struct User {
    #[serde(default)]
    username: String,
}

impl<'a> Review<'a> {
    /// The request in a body.
    ///
    /// # Errors
    /// Not such JSON.
    pub fn read(body: &'a [u8]) -> Result<Review<'a>, String> {
        #[derive(Deserialize)]
        struct Body<'a> {
            #[serde(borrow)]
            request: Option<Review<'a>>,
        }
        let body: Body<'a> =
            serde_json::from_slice(body).map_err(|error| format!("no AdmissionReview: {error}"))?;
        body.request
            .ok_or_else(|| "an AdmissionReview without a request".to_owned())
    }

    /// The object's text.
    ///
    /// # Errors
    /// There is none, as where something is deleted.
    pub fn object(&self) -> Result<&'a str, String> {
        let object = self.object.map(RawValue::get);
        object.ok_or_else(|| "a request without an object".to_owned())
    }

    /// The text of the object that goes; none where one comes or changes.
    #[must_use]
    pub fn deleted(&self) -> Option<&'a str> {
        let old = self.old_object.filter(|_| self.object.is_none());
        old.map(RawValue::get)
    }

    /// Name of the user that sends the request.
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
