//! An API server that does not answer one question delays only the container of that question.

use std::collections::BTreeSet;
use std::convert::Infallible;

use http::{Method, Request, Response};
use serde_json::{Value, json};
use sublet_api::keys;
use sublet_api::object::Pod;
use sublet_model::NodeName;
use sublet_telemetry::metrics::AgentMetrics;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::*;
use crate::allocate::tests::{pods, site};
use crate::isolate::supervisor::IsolationState;
use crate::node_events::node_events;

const MEM: &str = keys::ALIYUN_GPU_MEM;

/// Longer than anything takes here, and shorter than the API server is tried.
const LONG: Duration = Duration::from_secs(8);

/// The pods of the node `n1`. It answers no patch of these.
#[derive(Default)]
struct ApiServer {
    pods: Vec<Pod>,
    silent: Mutex<BTreeSet<String>>,
    /// Told of each patch that it does not answer.
    asked: Notify,
}

impl ApiServer {
    fn client(self: &Arc<ApiServer>) -> Client {
        let api = Arc::clone(self);
        let service = tower::service_fn(move |request: Request<kube::client::Body>| {
            let api = Arc::clone(&api);
            async move {
                let name = request.uri().path().rsplit('/').next().unwrap_or_default();
                let is_silent = api.silent.lock().unwrap().contains(name);
                if request.method() == Method::PATCH && is_silent {
                    api.asked.notify_one();
                    std::future::pending::<()>().await;
                }
                let answer = match *request.method() {
                    Method::GET => json!({
                        "kind": "PodList", "apiVersion": "v1", "metadata": {},
                        "items": api.pods.iter().map(wire).collect::<Vec<_>>(),
                    }),
                    _ => json!({}),
                };
                let body = kube::client::Body::from(answer.to_string().into_bytes());
                Ok::<_, Infallible>(Response::new(body))
            }
        });
        Client::new(service, "default")
    }
}

fn wire(pod: &Pod) -> Value {
    let containers = pod.spec.containers.iter().map(|one| {
        let limits = one.resources.limits.iter();
        let limits = limits.map(|(resource, amount)| (resource.clone(), json!(amount.0)));
        let limits: serde_json::Map<_, _> = limits.collect();
        json!({"name": one.name, "resources": {"limits": limits}})
    });
    json!({
        "metadata": {
            "name": pod.metadata.name, "namespace": pod.metadata.namespace,
            "uid": pod.metadata.uid, "annotations": pod.metadata.annotations,
        },
        "spec": {
            "nodeName": pod.spec.node_name, "containers": containers.collect::<Vec<_>>(),
        },
        "status": {"phase": pod.status.phase},
    })
}

struct World {
    allocator: Arc<CardAllocator>,
    lifecycles: Arc<LifecycleManager>,
    api: Arc<ApiServer>,
}

impl World {
    /// A node with these pods, which it lists, and no isolation.
    fn of(picture: &str) -> World {
        let api = Arc::new(ApiServer {
            pods: pods(picture, MEM),
            ..ApiServer::default()
        });
        let node = NodeName::new("n1").unwrap();
        let source = PodSource::Listed(api.client(), node.clone());
        let (events, _post) = node_events(api.client(), node);
        let lifecycles = LifecycleManager::new(events, source.clone(), "absent".into(), Vec::new());
        let (_, state) = watch::channel(IsolationState::Disabled);
        let (_, site) = watch::channel(Arc::new(site()));
        World {
            allocator: Arc::new(CardAllocator {
                client: api.client(),
                pods: source,
                is_named_later: false,
                injector: CardInjector {
                    isolation: state,
                    cdi: None,
                    metrics: AgentMetrics::default(),
                },
                site,
                given: Arc::default(),
                checkpoint: "absent".into(),
                doubt: Arc::default(),
            }),
            lifecycles: Arc::new(lifecycles),
            api,
        }
    }

    /// Kubelet's Allocate of so much.
    fn asks(&self, count: u64) -> JoinHandle<Result<String, String>> {
        let (allocator, lifecycles) = (Arc::clone(&self.allocator), Arc::clone(&self.lifecycles));
        tokio::spawn(async move {
            let devices = (0..count).map(|number| format!("GPU-0-_-{number}"));
            let devices: DeviceIds = devices.collect();
            let answer = allocator.allocate(MEM, &devices, &lifecycles).await;
            let answer = answer.map_err(|status| status.message().to_owned())?;
            Ok(answer.envs[keys::NVIDIA_VISIBLE_DEVICES].clone())
        })
    }

    async fn gets(&self, count: u64) -> Result<String, String> {
        timeout(LONG, self.asks(count))
            .await
            .expect("it waits")
            .unwrap()
    }
}

#[tokio::test]
async fn an_answer_that_the_api_server_owes_keeps_nobody_else_waiting() {
    let world = World::of("a @0 main=3\n b @1 main=4");
    world.api.silent.lock().unwrap().insert("a".to_owned());
    let waits = world.asks(3);
    timeout(LONG, world.api.asked.notified()).await.unwrap();
    // Another pod, and kubelet's question which devices it had best get.
    assert_eq!(world.gets(4).await.unwrap(), "GPU-1");
    let asked = ContainerPreferredAllocationRequest {
        available_device_i_ds: vec!["GPU-1-_-7".to_owned()],
        allocation_size: 4,
        ..ContainerPreferredAllocationRequest::default()
    };
    let advice = world.allocator.preferred(MEM, std::slice::from_ref(&asked));
    timeout(LONG, advice).await.expect("it waits");
    assert!(world.allocator.given.try_lock().is_ok());
    // Nobody else gets what is about to be handed over.
    let refused = world.gets(3).await.unwrap_err();
    assert!(
        refused.starts_with("no pod on node n1 waits for "),
        "{refused}"
    );
    // Kubelet hangs up, and asks again.
    waits.abort();
    assert!(waits.await.unwrap_err().is_cancelled());
    world.api.silent.lock().unwrap().clear();
    assert_eq!(world.gets(3).await.unwrap(), "GPU-0");
    // Its pod says nothing, and what was handed over is not forgotten.
    let refused = world.gets(3).await.unwrap_err();
    assert!(
        refused.starts_with("no pod on node n1 waits for "),
        "{refused}"
    );
}
