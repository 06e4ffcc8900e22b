//! Whole objects of any kind, for commands that set a cluster up or look at it once: listed as
//! data. Every call is one request; nothing is tried again and nothing is decided.

use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec,
};
use kube::Client;
use kube::api::{Api, ListParams, PostParams};
use kube::core::{ApiResource, DynamicObject};
use serde_json::Value;

use crate::write::found;

/// All objects of a kind, of all namespaces or of one, with these labels; empty if the cluster does
/// not know the kind.
///
/// # Errors
/// The API server's answer, or none.
pub async fn list_whole(
    client: &Client,
    kind: &ApiResource,
    namespace: Option<&str>,
    labels: Option<&str>,
) -> Result<Vec<Value>, kube::Error> {
    let params = ListParams {
        label_selector: labels.map(str::to_owned),
        ..ListParams::default()
    };
    let list = found(api(client, kind, namespace).list(&params).await)?;
    list.into_iter()
        .flatten()
        .map(|object| value(&object))
        .collect()
}

/// Names of objects of a kind, in all namespaces or in one: the first ones, in the API server's order.
///
/// # Errors
/// The API server's answer, or none.
pub async fn list_names(
    client: &Client,
    kind: &ApiResource,
    namespace: Option<&str>,
    most: u32,
) -> Result<Vec<String>, kube::Error> {
    let params = ListParams::default().limit(most);
    let list = api(client, kind, namespace).list_metadata(&params).await?;
    let names = list.items.into_iter();
    Ok(names.filter_map(|object| object.metadata.name).collect())
}

fn api(client: &Client, kind: &ApiResource, namespace: Option<&str>) -> Api<DynamicObject> {
    match namespace {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, kind),
        None => Api::all_with(client.clone(), kind),
    }
}

/// Whether this client's user may do that. `group` and `resource` as in a role: `*` is any.
///
/// # Errors
/// The API server's answer, or none.
pub async fn may(
    client: &Client,
    verb: &str,
    group: &str,
    resource: &str,
) -> Result<bool, kube::Error> {
    let text = |text: &str| Some(text.to_owned());
    let review = SelfSubjectAccessReview {
        spec: SelfSubjectAccessReviewSpec {
            resource_attributes: Some(ResourceAttributes {
                verb: text(verb),
                group: text(group),
                resource: text(resource),
                ..ResourceAttributes::default()
            }),
            ..SelfSubjectAccessReviewSpec::default()
        },
        ..SelfSubjectAccessReview::default()
    };
    let api: Api<SelfSubjectAccessReview> = Api::all(client.clone());
    let answer = api.create(&PostParams::default(), &review).await?;
    Ok(answer.status.is_some_and(|status| status.allowed))
}

fn value(object: &DynamicObject) -> Result<Value, kube::Error> {
    serde_json::to_value(object).map_err(kube::Error::SerdeError)
}
