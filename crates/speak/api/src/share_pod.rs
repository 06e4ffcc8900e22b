//! SharePods: KubeShare 1's own kind of object (`kubeshare.nthu/v1`, branch release-1.0), which a
//! user writes as a pod with annotations.
//!
//! The amounts in the annotations are read from the pod that is made from the object
//! (`dialect/share_pod`).

use serde::Deserialize;
use serde_json::{Map, Value};

use crate::object::{Meta, or_default};

/// A SharePod. Its spec is a pod's and goes into one unread.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct SharePod {
    /// Its metadata.
    pub metadata: Meta,
    /// The spec of its pod.
    #[serde(deserialize_with = "or_default")]
    pub spec: Map<String, Value>,
    /// The last report about its pod.
    pub status: Value,
}
