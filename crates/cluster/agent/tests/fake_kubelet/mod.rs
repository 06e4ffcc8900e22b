//! Kubelet's half of the device plugin protocol on a folder of its own: takes
//! registrations, dials the plugin inside the call as kubelet does, and reads its
//! devices under the message limit of 4 MiB. It keeps what it was told and asserts
//! nothing.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context, Result};
use sublet_kubelet::deviceplugin::device_plugin_client::DevicePluginClient;
use sublet_kubelet::deviceplugin::registration_server::{Registration, RegistrationServer};
use sublet_kubelet::deviceplugin::{
    AllocateRequest, AllocateResponse, ContainerAllocateRequest, DeviceList, Empty, HEALTHY,
    KUBELET_SOCKET, MESSAGE_LIMIT, RegisterRequest,
};
use tokio::net::UnixListener;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::{Channel, Endpoint, Server};
use tonic::{Request, Response, Status};

/// Kubelet's knowledge of one resource.
#[derive(Clone, Default)]
pub(crate) struct Known {
    /// Number of times it was registered.
    pub(crate) n_registered: usize,
    /// The last list of devices, unless its stream ended.
    pub(crate) devices: Option<DeviceList>,
    client: Option<DevicePluginClient<Channel>>,
}

impl Known {
    /// Number of healthy devices; none if the stream is gone.
    pub(crate) fn n_healthy(&self) -> usize {
        let healthy = |list: &DeviceList| list.iter().filter(|one| one.health == HEALTHY).count();
        self.devices.as_ref().map_or(0, healthy)
    }
}

#[derive(Clone, Default)]
struct Book {
    resources: Arc<Mutex<BTreeMap<String, Known>>>,
    streams: Arc<Mutex<Vec<JoinHandle<()>>>>,
    refuse: Arc<Mutex<usize>>,
    folder: PathBuf,
}

/// A running kubelet, as far as plugins see it; ends with the value.
pub(crate) struct FakeKubelet {
    book: Book,
    server: JoinHandle<()>,
}

impl FakeKubelet {
    /// Starts as kubelet does: empties the folder, then listens. The first `refuse`
    /// registrations fail.
    pub(crate) fn start(folder: &Path, refuse: usize) -> Result<FakeKubelet> {
        for entry in fs::read_dir(folder)? {
            fs::remove_file(entry?.path())?;
        }
        let listener = UnixListener::bind(folder.join(KUBELET_SOCKET))?;
        let book = Book {
            refuse: Arc::new(Mutex::new(refuse)),
            folder: folder.to_owned(),
            ..Book::default()
        };
        let service = RegistrationServer::new(book.clone());
        let server = tokio::spawn(async move {
            let incoming = UnixListenerStream::new(listener);
            let served = Server::builder().serve_with_incoming(service, incoming);
            served.await.expect("serve registrations");
        });
        Ok(FakeKubelet { book, server })
    }

    /// Returns its knowledge of `resource` now.
    pub(crate) fn knows(&self, resource: &str) -> Known {
        let resources = self.book.resources.lock().unwrap();
        resources.get(resource).cloned().unwrap_or_default()
    }

    /// Waits until the knowledge of `resource` is as wanted.
    pub(crate) async fn wait(&self, resource: &str, what: &str, wanted: impl Fn(&Known) -> bool) {
        let deadline = Instant::now() + Duration::from_secs(20);
        while !wanted(&self.knows(resource)) {
            assert!(
                Instant::now() < deadline,
                "kubelet never saw of {resource}: {what}"
            );
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Asks for the containers' devices, as at a pod's admission.
    pub(crate) async fn allocate(
        &self,
        resource: &str,
        containers: &[&[&str]],
    ) -> Result<AllocateResponse> {
        let mut client = self.knows(resource).client.context("no such plugin")?;
        let container_requests = containers
            .iter()
            .map(|ids| ContainerAllocateRequest {
                devices_ids: ids.iter().map(|&id| id.to_owned()).collect(),
            })
            .collect();
        Ok(client
            .allocate(AllocateRequest { container_requests })
            .await?
            .into_inner())
    }

    /// The connection to a plugin.
    pub(crate) fn client(&self, resource: &str) -> Result<DevicePluginClient<Channel>> {
        self.knows(resource).client.context("no such plugin")
    }

    /// Breaks every stream of devices, and stays.
    pub(crate) fn break_streams(&self) {
        for stream in self.book.streams.lock().unwrap().drain(..) {
            stream.abort();
        }
        for known in self.book.resources.lock().unwrap().values_mut() {
            known.devices = None;
            known.client = None;
        }
    }
}

impl Drop for FakeKubelet {
    fn drop(&mut self) {
        self.server.abort();
        self.break_streams();
    }
}

#[tonic::async_trait]
impl Registration for Book {
    async fn register(&self, request: Request<RegisterRequest>) -> Result<Response<Empty>, Status> {
        {
            let mut refuse = self.refuse.lock().unwrap();
            if *refuse > 0 {
                *refuse -= 1;
                return Err(Status::unavailable("not yet"));
            }
        }
        let request = request.into_inner();
        let path = self.folder.join(&request.endpoint);
        let endpoint = Endpoint::from_shared(format!("unix:{}", path.display()))
            .map_err(|error| Status::internal(error.to_string()))?;
        let channel = endpoint
            .connect()
            .await
            .map_err(|error| Status::internal(error.to_string()))?;
        let mut client = DevicePluginClient::new(channel).max_decoding_message_size(MESSAGE_LIMIT);
        client.get_device_plugin_options(Empty {}).await?;

        let resource = request.resource_name;
        let resources = Arc::clone(&self.resources);
        {
            let mut resources = resources.lock().unwrap();
            let known = resources.entry(resource.clone()).or_default();
            known.n_registered += 1;
            known.client = Some(client.clone());
        }
        let stream = tokio::spawn(async move {
            let keep = |devices: Option<DeviceList>| {
                resources
                    .lock()
                    .unwrap()
                    .entry(resource.clone())
                    .or_default()
                    .devices = devices;
            };
            if let Ok(lists) = client.list_and_watch(Empty {}).await {
                let mut lists = lists.into_inner();
                while let Ok(Some(list)) = lists.message().await {
                    keep(Some(list));
                }
            }
            keep(None);
        });
        self.streams.lock().unwrap().push(stream);
        Ok(Response::new(Empty {}))
    }
}
