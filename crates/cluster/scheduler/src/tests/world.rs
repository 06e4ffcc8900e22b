//! A scheduler whose API server misbehaves as a script says, and the three nodes of R1.3.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::http::{Request, Response, StatusCode};
use serde_json::{Value, json};
use sublet_client::Client;
use sublet_model::Standing;
use sublet_plan::{EngineOptions, Policy};
use tokio::sync::watch;
use tower::ServiceExt;

use crate::state::{Listed, Patience, Scheduler};

/// The API server's answer to a Binding.
#[derive(Debug, Clone, Copy)]
pub(super) enum Answer {
    Accept,
    Status(u16),
    /// The connection breaks, and nothing was written.
    Break,
    /// The connection breaks after the write.
    AcceptAndBreak,
    /// HTTP 504 after the write.
    AcceptAndTimeOut,
    /// The connection breaks, and the write comes through while the pod is read.
    AcceptLater,
}

#[derive(Default)]
pub(super) struct ApiServer {
    pub(super) script: Mutex<VecDeque<Answer>>,
    pub(super) pod: Mutex<Option<Value>>,
    late: Mutex<Option<Value>>,
    pub(super) bindings: Mutex<Vec<Value>>,
    /// When pods were listed.
    pub(super) lists: Mutex<Vec<Instant>>,
    /// The events that came, answered or not.
    pub(super) events: Mutex<Vec<Value>>,
    /// No event is answered while this is true.
    pub(super) stuck: watch::Sender<bool>,
}

impl ApiServer {
    pub(super) fn client(self: Arc<Self>) -> Client {
        let service = tower::service_fn(move |request: Request<kube::client::Body>| {
            let api = self.clone();
            async move {
                let (parts, body) = request.into_parts();
                let body = body.collect_bytes().await.unwrap_or_default();
                if parts.uri.path().ends_with("/events") {
                    let event = serde_json::from_slice(&body).unwrap();
                    api.events.lock().unwrap().push(event);
                    let mut stuck = api.stuck.subscribe();
                    stuck.wait_for(|stuck| !*stuck).await.unwrap();
                }
                api.answer(parts.method.as_str(), parts.uri.path(), &body)
            }
        });
        Client::new(service, "default")
    }

    fn answer(
        &self,
        method: &str,
        path: &str,
        body: &[u8],
    ) -> Result<Response<Body>, std::io::Error> {
        if method == "GET" && path == "/api/v1/pods" {
            self.lists.lock().unwrap().push(Instant::now());
            return Ok(status(500));
        }
        if method == "GET" {
            let pod = self.pod.lock().unwrap().clone();
            if let Some(binding) = self.late.lock().unwrap().take() {
                self.write(&binding);
            }
            return Ok(match pod {
                Some(pod) => reply(200, &pod),
                None => status(404),
            });
        }
        if !path.ends_with("/binding") {
            return Ok(reply(201, &json!({})));
        }
        let binding: Value = serde_json::from_slice(body).unwrap();
        self.bindings.lock().unwrap().push(binding.clone());
        let next = self
            .script
            .lock()
            .unwrap()
            .pop_front()
            .unwrap_or(Answer::Accept);
        let broken = || Err(std::io::Error::other("connection broken"));
        match next {
            Answer::Accept => {
                self.write(&binding);
                Ok(reply(201, &json!({})))
            }
            Answer::Status(code) => Ok(status(code)),
            Answer::Break => broken(),
            Answer::AcceptAndBreak => {
                self.write(&binding);
                broken()
            }
            Answer::AcceptAndTimeOut => {
                self.write(&binding);
                Ok(status(504))
            }
            Answer::AcceptLater => {
                *self.late.lock().unwrap() = Some(binding);
                broken()
            }
        }
    }

    pub(super) fn write(&self, binding: &Value) {
        let mut pod = self.pod.lock().unwrap();
        let Some(pod) = pod.as_mut() else { return };
        pod["spec"]["nodeName"] = binding["target"]["name"].clone();
        pod["metadata"]["annotations"] = binding["metadata"]["annotations"].clone();
    }
}

fn reply(code: u16, body: &Value) -> Response<Body> {
    Response::builder()
        .status(code)
        .body(Body::from(body.to_string()))
        .unwrap()
}

fn status(code: u16) -> Response<Body> {
    reply(
        code,
        &json!({ "kind": "Status", "status": "Failure", "code": code, "message": "no" }),
    )
}

pub(super) struct World {
    pub(super) api: Arc<ApiServer>,
    pub(super) scheduler: Arc<Scheduler>,
}

impl World {
    /// The three nodes of R1.3, each with two cards of 16,276 MiB: n1 full, n2 with 4,069 free on
    /// each card, n3 with 8,138 free on one. The policy is `binpack`, so that a reader can work out
    /// the order.
    pub(super) fn of_three() -> World {
        let world = World::of_none(EngineOptions::of(Policy::binpack()));
        let used = [
            ("n1", [16_276, 16_276]),
            ("n2", [12_207, 12_207]),
            ("n3", [8_138, 16_276]),
        ];
        for (node, cards) in used {
            world.node(node, 32_552, 2);
            for (index, memory) in cards.into_iter().enumerate() {
                world.bound(&format!("{node}-{index}"), node, index, memory);
            }
        }
        world.node("cpu", 0, 0);
        world.ready();
        world
    }

    /// Two nodes with two cards of 16,276 MiB each, and an extender that obeys plans.
    pub(super) fn of_queue() -> World {
        let options = EngineOptions::of(Policy::binpack());
        let world = World::made(options, Scheduler::queued);
        world.node("n1", 32_552, 2);
        world.node("n2", 32_552, 2);
        world.ready();
        world.scheduler.mark_listed(Listed::Plans);
        world
    }

    /// No node and no pod, and the lists not complete yet.
    pub(super) fn of_none(options: EngineOptions) -> World {
        World::made(options, |scheduler| scheduler)
    }

    fn made(options: EngineOptions, as_what: impl FnOnce(Scheduler) -> Scheduler) -> World {
        let api = Arc::new(ApiServer::default());
        let scheduler = Scheduler::new(api.clone().client(), options, vec!["sublet".to_owned()]);
        let mut scheduler = as_what(scheduler);
        scheduler.patience = Patience {
            deadline: Duration::from_millis(20),
            settle: Duration::from_millis(500),
        };
        World {
            api,
            scheduler: Arc::new(scheduler),
        }
    }

    pub(super) fn ready(&self) {
        self.scheduler.mark_listed(Listed::Nodes);
        self.scheduler.mark_listed(Listed::Pods);
        self.scheduler.mark_listed(Listed::Quotas);
    }

    pub(super) fn node(&self, name: &str, memory: u64, count: u64) {
        let node = json!({ "metadata": { "name": name }, "status": { "capacity": {
            "aliyun.com/gpu-mem": memory.to_string(), "aliyun.com/gpu-count": count.to_string() } } });
        self.scheduler
            .state()
            .set_node(&serde_json::from_value(node).unwrap());
    }

    pub(super) fn bound(&self, name: &str, node: &str, index: usize, memory: u64) {
        let mut pod = pod(name, memory);
        pod["spec"]["nodeName"] = json!(node);
        pod["metadata"]["annotations"] = json!({ "ALIYUN_COM_GPU_MEM_IDX": index.to_string() });
        self.scheduler
            .state()
            .set_pod(&serde_json::from_value(pod).unwrap());
    }

    pub(super) fn waiting(&self, name: &str, memory: u64) {
        let pod = pod(name, memory);
        *self.api.pod.lock().unwrap() = Some(pod.clone());
        self.scheduler
            .state()
            .set_pod(&serde_json::from_value(pod).unwrap());
    }

    pub(super) async fn call(&self, path: &str, body: &str) -> (StatusCode, String) {
        let method = if body.is_empty() { "GET" } else { "POST" };
        let request = Request::builder()
            .method(method)
            .uri(path)
            .body(Body::from(body.to_owned()))
            .unwrap();
        let answer = crate::router(self.scheduler.clone())
            .oneshot(request)
            .await
            .unwrap();
        let code = answer.status();
        let body = axum::body::to_bytes(answer.into_body(), usize::MAX)
            .await
            .unwrap();
        (code, String::from_utf8(body.to_vec()).unwrap())
    }

    pub(super) async fn filter(&self, pod: &Value, names: &[&str]) -> Value {
        let body = json!({ "Pod": pod, "Nodes": null, "NodeNames": names }).to_string();
        let (code, text) = self.call("/sublet/filter", &body).await;
        assert_eq!(code, StatusCode::OK);
        serde_json::from_str(&text).unwrap()
    }

    pub(super) async fn bind(&self, name: &str, node: &str) -> String {
        let body =
            json!({ "PodName": name, "PodNamespace": "default", "PodUID": name, "Node": node });
        let (_, text) = self.call("/sublet/bind", &body.to_string()).await;
        let answer: Value = serde_json::from_str(&text).unwrap();
        answer["Error"].as_str().unwrap().to_owned()
    }

    /// A pod's standing in the ledger: `reserved`, `bound` or nothing.
    pub(super) fn standing(&self, name: &str) -> Option<Standing> {
        let uid = sublet_model::PodUid::new(name).unwrap();
        self.scheduler
            .state()
            .engine
            .ledger()
            .entry(&uid)
            .map(|entry| entry.standing)
    }
}

pub(super) fn pod(name: &str, memory: u64) -> Value {
    json!({
        "metadata": { "name": name, "namespace": "default", "uid": name },
        "spec": { "containers": [
            { "name": "main", "resources": { "limits": { "aliyun.com/gpu-mem": memory.to_string() } } }
        ] },
    })
}
