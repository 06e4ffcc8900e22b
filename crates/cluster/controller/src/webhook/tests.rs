//! Calls of the webhook without a socket, and bodies of any bytes.

use http::Request;
use proptest::prelude::*;
use serde_json::{Value, json};
use sublet_api::GpuFlavor;
use sublet_client::Change;
use sublet_model::Unit;
use tower::ServiceExt;

use super::*;
use crate::known::{NamespaceLabels, follow_flavors, follow_namespaces};

fn rules() -> AdmissionRules {
    AdmissionRules {
        unit: Unit::MiB,
        schedulers: ["sublet-scheduler".to_owned()].into(),
        assign: None,
        slots: false,
        queue: false,
    }
}

/// An API server with one GPU pod, `ns/p`, one node with our agent, `n1`, and trouble at `n2`.
fn api_server() -> Client {
    let answer = async |request: Request<kube::client::Body>| {
        let (status, object) = match request.uri().path() {
            "/api/v1/namespaces/ns/pods/p" => (
                200,
                review("other", &json!({"aliyun.com/gpu-mem": "5"}))["request"]["object"].clone(),
            ),
            "/api/v1/nodes/n1" => (
                200,
                json!({"metadata": {"name": "n1", "annotations": {keys::INVENTORY: "{}"}}}),
            ),
            "/api/v1/nodes/n2" => (
                500,
                json!({"kind": "Status", "status": "Failure", "code": 500, "message": "ill"}),
            ),
            _ => (
                404,
                json!({"kind": "Status", "status": "Failure", "code": 404, "message": "gone"}),
            ),
        };
        let body = kube::client::Body::from(object.to_string().into_bytes());
        http::Response::builder().status(status).body(body)
    };
    Client::new(tower::service_fn(answer), "default")
}

fn state(
    namespaces: Option<NamespaceLabels>,
) -> (watch::Sender<Option<NamespaceLabels>>, Arc<WebhookState>) {
    let (sender, namespaces) = watch::channel(namespaces);
    let (metrics, registry) = ControllerMetrics::registered();
    let state = WebhookState {
        rules: rules(),
        binding_rules: BindingRules {
            unit: Unit::MiB,
            schedulers: rules().schedulers,
            account: "ours".to_owned(),
        },
        client: api_server(),
        known: Known {
            namespaces,
            flavors: watch::channel(None).1,
            quotas: watch::channel(None).1,
        },
        certificate: watch::channel(None).1,
        metrics,
        registry,
    };
    (sender, Arc::new(state))
}

fn review(scheduler: &str, limits: &Value) -> Value {
    json!({
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": "705ab4f5-6393-11e8-b7cc-42010a800002",
            "kind": {"group": "", "version": "v1", "kind": "Pod"},
            "resource": {"group": "", "version": "v1", "resource": "pods"},
            "namespace": "ns",
            "operation": "CREATE",
            "userInfo": {"username": "eve", "groups": ["system:authenticated"]},
            "object": {
                "apiVersion": "v1", "kind": "Pod",
                "metadata": {"name": "p", "namespace": "ns"},
                "spec": {
                    "schedulerName": scheduler,
                    "containers": [{"name": "c0", "resources": {"limits": limits}}],
                },
            },
            "dryRun": false,
        },
    })
}

async fn call(state: &Arc<WebhookState>, body: Vec<u8>) -> (StatusCode, Vec<u8>) {
    call_at("/admit", state, body).await
}

async fn call_at(path: &str, state: &Arc<WebhookState>, body: Vec<u8>) -> (StatusCode, Vec<u8>) {
    let request = Request::post(path).header(header::CONTENT_TYPE, "application/json");
    let request = request.body(axum::body::Body::from(body)).unwrap();
    let response = router(state.clone()).oneshot(request).await.unwrap();
    let status = response.status();
    let body = axum::body::to_bytes(response.into_body(), crate::listener::CALLS.body_size).await;
    (status, body.unwrap().to_vec())
}

/// The message of a refused SharePod, or nothing where it is allowed.
async fn share_pod_refused(state: &Arc<WebhookState>, object: &Value) -> String {
    let mut review = review("", &json!({}));
    review["request"]["object"] = object.clone();
    let (status, body) = call_at("/sharepods", state, review.to_string().into_bytes()).await;
    assert_eq!(status, StatusCode::OK, "{}", String::from_utf8_lossy(&body));
    let answer: Value = serde_json::from_slice(&body).unwrap();
    let response = &answer["response"];
    assert_eq!(response.get("patch"), None);
    let message = response["status"]["message"].as_str().unwrap_or_default();
    assert_eq!(response["allowed"] == true, message.is_empty(), "{answer}");
    message.to_owned()
}

#[tokio::test]
async fn a_share_pod_is_judged_by_the_pod_that_would_come_of_it() {
    let none = NamespaceLabels::from([("ns".to_owned(), BTreeMap::new())]);
    let (_sender, state) = state(Some(none));
    let object = |memory: &str| {
        json!({
            "apiVersion": "kubeshare.nthu/v1", "kind": "SharePod",
            "metadata": {"name": "s", "namespace": "ns", "annotations": {
                "kubeshare/gpu_request": "0.5", "kubeshare/gpu_limit": "1.0",
                "kubeshare/gpu_mem": memory,
            }},
            "spec": {"containers": [{"name": "c0"}]},
        })
    };
    assert_eq!(share_pod_refused(&state, &object("5")).await, "");
    let refused = share_pod_refused(&state, &object("5Gi")).await;
    assert!(
        refused.contains("`kubeshare/gpu_mem` is `5Gi`"),
        "{refused}"
    );
    let (status, _) = call_at("/sharepods", &state, b"{}".to_vec()).await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
}

async fn reviewed(state: &Arc<WebhookState>, review: &Value) -> Value {
    let (status, body) = call(state, review.to_string().into_bytes()).await;
    assert_eq!(status, StatusCode::OK, "{}", String::from_utf8_lossy(&body));
    serde_json::from_slice(&body).unwrap()
}

#[tokio::test]
async fn a_review_is_answered_with_a_patch_or_a_refusal() {
    let none = NamespaceLabels::from([("ns".to_owned(), BTreeMap::new())]);
    let (_sender, state) = state(Some(none));
    let good = review("sublet-scheduler", &json!({"aliyun.com/gpu-mem": "5"}));
    let answer = reviewed(&state, &good).await;
    assert_eq!(answer["apiVersion"], "admission.k8s.io/v1");
    assert_eq!(answer["kind"], "AdmissionReview");
    let response = &answer["response"];
    assert_eq!(response["uid"], good["request"]["uid"]);
    assert_eq!(response["allowed"], true);
    assert_eq!(response["patchType"], "JSONPatch");

    let bad = review("sublet-scheduler", &json!({"aliyun.com/gpu-mem": "much"}));
    let response = &reviewed(&state, &bad).await["response"];
    assert_eq!(response["allowed"], false);
    let message = response["status"]["message"].as_str().unwrap();
    assert!(
        message.starts_with("container c0: `aliyun.com/gpu-mem` is `much`: "),
        "{message}"
    );

    let others = review("other", &json!({"aliyun.com/gpu-mem": "much"}));
    let response = &reviewed(&state, &others).await["response"];
    assert_eq!(response["allowed"], true);
    assert_eq!(response["patch"], Value::Null);

    let (status, _) = call(&state, b"{}".to_vec()).await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
    let page = print(&state.registry);
    for line in [
        "sublet_webhook_pods_total{outcome=\"changed\"} 1",
        "sublet_webhook_pods_total{outcome=\"refused\"} 1",
        "sublet_webhook_pods_total{outcome=\"unchanged\"} 1",
        "sublet_webhook_pods_total{outcome=\"unreadable\"} 1",
    ] {
        assert!(page.contains(line), "{line} is not in\n{page}");
    }
}

#[tokio::test]
async fn a_namespace_that_is_as_new_as_its_pod_is_waited_for() {
    let (sender, state) = state(None);
    let (changes, watched) = futures::channel::mpsc::unbounded();
    let follows = tokio::spawn(follow_namespaces(watched, sender));
    let namespace = |name: &str, labels: &Value| {
        let object = json!({"metadata": {"name": name, "labels": labels}});
        Ok::<_, String>(Change::Set(serde_json::from_value(object).unwrap()))
    };
    let send = |change| changes.unbounded_send(change).unwrap();
    send(Ok(Change::ListBegins));
    send(namespace("old", &json!({})));
    send(Ok(Change::ListEnds));
    let review = review("default-scheduler", &json!({"aliyun.com/gpu-mem": "5"}));
    let calling = tokio::spawn({
        let state = state.clone();
        async move { reviewed(&state, &review).await }
    });
    tokio::task::yield_now().await;
    send(namespace(
        "ns",
        &json!({"a": "b", keys::ASSIGN_SCHEDULER_LABEL: "sublet-scheduler"}),
    ));
    let answer = calling.await.unwrap();
    assert_ne!(answer["response"]["patch"], Value::Null);
    let known = state.known.namespaces.borrow().clone().unwrap();
    assert_eq!(known["old"], BTreeMap::new());
    assert_eq!(known["ns"].len(), 1);
    // A new list replaces what was known.
    send(Ok(Change::ListBegins));
    send(Ok(Change::ListEnds));
    drop(changes);
    follows.await.unwrap();
    assert_eq!(
        *state.known.namespaces.borrow(),
        Some(NamespaceLabels::new())
    );
}

#[tokio::test]
async fn a_flavor_that_is_as_new_as_its_pod_is_waited_for() {
    let none = NamespaceLabels::from([("ns".to_owned(), BTreeMap::new())]);
    let (_sender, state) = state(Some(none));
    let (sender, flavors) = watch::channel(None);
    let state = Arc::into_inner(state).map(|state| WebhookState {
        known: Known {
            flavors,
            ..state.known
        },
        ..state
    });
    let state = Arc::new(state.unwrap());
    let (changes, watched) = futures::channel::mpsc::unbounded();
    let follows = tokio::spawn(follow_flavors(watched, sender));
    let mut review = review("sublet-scheduler", &json!({}));
    review["request"]["object"]["metadata"]["labels"] = json!({keys::FLAVOR: "half"});
    let calling = tokio::spawn({
        let (state, review) = (state.clone(), review.clone());
        async move { reviewed(&state, &review).await }
    });
    tokio::task::yield_now().await;
    let half = json!({"metadata": {"name": "half"}, "spec": {"memoryPercent": 50}});
    let half = || serde_json::from_value(half.clone()).unwrap();
    let send = |change: Change<GpuFlavor>| changes.unbounded_send(Ok::<_, String>(change)).unwrap();
    send(Change::ListBegins);
    send(Change::ListEnds);
    send(Change::Set(half()));
    let answer = calling.await.unwrap();
    assert_eq!(answer["response"]["allowed"], true);
    assert_ne!(answer["response"]["patch"], Value::Null);
    // One that is deleted is refused, after a while.
    send(Change::Gone(half()));
    drop(changes);
    follows.await.unwrap();
    let response = &reviewed(&state, &review).await["response"];
    assert_eq!(response["allowed"], false);
    let message = response["status"]["message"].as_str().unwrap();
    assert!(message.ends_with("; there are none"), "{message}");
}

#[tokio::test]
async fn a_strangers_binding_is_looked_up_and_refused() {
    let (_sender, state) = state(None);
    let bind = async |user: &str, pod: &str, node: &str| {
        let mut review = review("other", &json!({}));
        let request = &mut review["request"];
        request["name"] = json!(pod);
        request["subResource"] = json!("binding");
        request["userInfo"]["username"] = json!(user);
        request["object"] = json!({
            "apiVersion": "v1", "kind": "Binding", "metadata": {"name": pod},
            "target": {"kind": "Node", "name": node},
        });
        let (status, body) = call_at("/bindings", &state, review.to_string().into_bytes()).await;
        let answer: Value = serde_json::from_slice(&body).unwrap_or_default();
        let message = answer["response"]["status"]["message"]
            .as_str()
            .map(str::to_owned);
        (
            status.as_u16(),
            answer["response"]["allowed"].as_bool(),
            message,
        )
    };
    assert_eq!(bind("ours", "p", "n2").await, (200, Some(true), None));
    assert_eq!(bind("eve", "plain", "n1").await, (200, Some(true), None));
    assert_eq!(bind("eve", "p", "gone").await, (200, Some(true), None));
    let (status, allowed, message) = bind("eve", "p", "n1").await;
    assert_eq!((status, allowed), (200, Some(false)));
    let message = message.unwrap();
    assert!(
        message.starts_with("pod ns/p asks for a GPU, and node n1 "),
        "{message}"
    );
    // Nobody knows: the API server takes it as no answer.
    assert_eq!(bind("eve", "p", "n2").await, (503, None, None));
    assert_eq!(bind("eve", "", "n1").await, (400, None, None));
    let page = print(&state.registry);
    for line in [
        "sublet_webhook_bindings_total{outcome=\"allowed\"} 3",
        "sublet_webhook_bindings_total{outcome=\"refused\"} 1",
        "sublet_webhook_bindings_total{outcome=\"unknown\"} 1",
        "sublet_webhook_bindings_total{outcome=\"unreadable\"} 1",
    ] {
        assert!(page.contains(line), "{line} is not in\n{page}");
    }
}

/// Reads a body and answers it, as a call does.
fn whatever(body: &[u8]) {
    if let Ok(request) = Review::read(body)
        && let Ok(sent) = sent(&request)
    {
        let _answer = decide((&request, &sent), &BTreeMap::new(), None, &rules());
    }
}

proptest! {
    #[test]
    fn any_bytes_are_answered_or_refused(body in proptest::collection::vec(any::<u8>(), 0..200)) {
        whatever(&body);
    }

    /// A review with some bytes overwritten.
    #[test]
    fn any_damaged_review_is_answered_or_refused(
        wrong in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let review = review("sublet-scheduler", &json!({"aliyun.com/gpu-mem": "5"}));
        let mut body = review.to_string().into_bytes();
        for (at, byte) in wrong {
            let at = at.index(body.len());
            body[at] = byte;
        }
        whatever(&body);
    }

    /// A review in which a value is another one.
    #[test]
    fn any_object_is_answered_or_refused(
        at in prop::sample::select(vec![
            "/request/object", "/request/object/metadata", "/request/object/spec",
            "/request/object/spec/containers", "/request/object/spec/containers/0",
            "/request/object/spec/containers/0/resources",
            "/request/object/spec/containers/0/resources/limits",
            "/request/object/spec/schedulerName", "/request/namespace",
        ]),
        value in prop::sample::select(vec![
            json!(null), json!(-1), json!([]), json!({}), json!("x"), json!([[]]), json!({"a": {}}),
            json!([{}]), json!({"aliyun.com/gpu-mem": 1e99}), json!({"aliyun.com/gpu-mem": -7}),
        ]),
    ) {
        let mut review = review("sublet-scheduler", &json!({"aliyun.com/gpu-mem": "5"}));
        *review.pointer_mut(at).unwrap() = value;
        whatever(review.to_string().as_bytes());
    }
}
