//! The gRPC side of a plugin: one server on one socket, which streams the devices and
//! passes Allocate on. It knows nothing of registration, and lives no longer than the
//! socket file it was bound to.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures::stream::{self, BoxStream, StreamExt};
use sublet_kubelet::deviceplugin::device_plugin_server::{DevicePlugin, DevicePluginServer};
use sublet_kubelet::deviceplugin::{
    AllocateRequest, AllocateResponse, ContainerPreferredAllocationResponse, DeviceList,
    DevicePluginOptions, Empty, MESSAGE_LIMIT, PreStartContainerRequest, PreStartContainerResponse,
    PreferredAllocationRequest, PreferredAllocationResponse,
};
use tokio::net::UnixListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::Server;
use tonic::{Request, Response, Status};
use tracing::{debug, warn};

use super::socket::{self, FileMark};
use super::{Allocator, Plugin};

/// Time that calls in progress may take to end when the server closes. Kubelet tries an Allocate
/// that was cut off again with the pod, so this is only politeness.
const CLOSING_TIME: Duration = Duration::from_secs(2);

/// The longest message taken from kubelet. GetPreferredAllocation names every free
/// device and may name each a second time as one that must be in, so it can be longer
/// than twice the list of devices.
const REQUEST_LIMIT: usize = 4 * MESSAGE_LIMIT;

/// State of the path at which a server's socket file was made.
pub(super) enum Place {
    /// The file, and a server behind it.
    Ours,
    /// The socket of another process that answers. Two agents that took the place from
    /// each other every second would never let kubelet finish a registration.
    Taken,
    /// Nothing that answers.
    Gone,
}

/// A server that runs on a socket file of its own.
pub(super) struct Serving {
    path: PathBuf,
    mark: FileMark,
    streams: Arc<AtomicUsize>,
    close: watch::Sender<bool>,
    task: JoinHandle<()>,
}

impl Serving {
    /// Starts to answer on `listener`, whose file is `mark` at `path`.
    pub(super) fn start(
        plugin: &Plugin,
        path: PathBuf,
        (listener, mark): (UnixListener, FileMark),
    ) -> Serving {
        let (close, closed) = watch::channel(false);
        let streams = Arc::new(AtomicUsize::new(0));
        let service = Service {
            options: options(plugin),
            devices: plugin.devices.clone(),
            allocator: Arc::clone(&plugin.allocator),
            streams: Arc::clone(&streams),
            closed: closed.clone(),
        };
        let server = DevicePluginServer::new(service).max_decoding_message_size(REQUEST_LIMIT);
        let resource = plugin.spec.resource.clone();
        let task = tokio::spawn(async move {
            let incoming = UnixListenerStream::new(listener);
            let end = wait_until(closed);
            let served = Server::builder().serve_with_incoming_shutdown(server, incoming, end);
            if let Err(error) = served.await {
                warn!(%resource, %error, "device plugin server ended");
            }
        });
        Serving {
            path,
            mark,
            streams,
            close,
            task,
        }
    }

    /// Returns the place that kubelet's calls would reach.
    pub(super) fn place(&self) -> Place {
        match FileMark::of(&self.path) {
            _ if self.task.is_finished() => Place::Gone,
            Some(mark) if mark == self.mark => Place::Ours,
            Some(_) if socket::is_served(&self.path) => Place::Taken,
            _ => Place::Gone,
        }
    }

    /// Whether kubelet is listening for devices at the moment.
    pub(super) fn is_watched(&self) -> bool {
        self.streams.load(Ordering::Relaxed) > 0
    }

    /// Ends the streams and the server and removes the socket file.
    pub(super) async fn close(mut self) {
        if FileMark::of(&self.path) == Some(self.mark)
            && let Err(error) = std::fs::remove_file(&self.path)
        {
            warn!(path = %self.path.display(), %error, "socket not removed");
        }
        self.close.send_replace(true);
        if tokio::time::timeout(CLOSING_TIME, &mut self.task)
            .await
            .is_err()
        {
            debug!(path = %self.path.display(), "calls in progress cut off");
            self.task.abort();
        }
    }
}

/// Options of a plugin, which kubelet learns at registration and when it asks again.
pub(super) fn options(plugin: &Plugin) -> DevicePluginOptions {
    DevicePluginOptions {
        pre_start_required: false,
        get_preferred_allocation_available: plugin.spec.prefers,
    }
}

async fn wait_until(mut flag: watch::Receiver<bool>) {
    // An error means that the sender is gone: closed as well.
    let _ = flag.wait_for(|set| *set).await;
}

struct Service {
    options: DevicePluginOptions,
    devices: watch::Receiver<DeviceList>,
    allocator: Arc<dyn Allocator>,
    streams: Arc<AtomicUsize>,
    closed: watch::Receiver<bool>,
}

#[tonic::async_trait]
impl DevicePlugin for Service {
    type ListAndWatchStream = BoxStream<'static, Result<DeviceList, Status>>;

    async fn get_device_plugin_options(
        &self,
        _request: Request<Empty>,
    ) -> Result<Response<DevicePluginOptions>, Status> {
        Ok(Response::new(self.options))
    }

    async fn list_and_watch(
        &self,
        _request: Request<Empty>,
    ) -> Result<Response<Self::ListAndWatchStream>, Status> {
        let mut devices = self.devices.clone();
        devices.mark_changed();
        let listener = Listener::count_in(&self.streams);
        let lists = stream::unfold((devices, listener), |(mut devices, listener)| async {
            devices.changed().await.ok()?;
            let list = devices.borrow_and_update().clone();
            debug!(
                devices = list.len(),
                bytes = list.encoded_size(),
                "devices sent"
            );
            Some((Ok(list), (devices, listener)))
        });
        let lists = lists.take_until(wait_until(self.closed.clone()));
        Ok(Response::new(lists.boxed()))
    }

    async fn get_preferred_allocation(
        &self,
        request: Request<PreferredAllocationRequest>,
    ) -> Result<Response<PreferredAllocationResponse>, Status> {
        let asked = request.into_inner().container_requests;
        let n_asked = asked.len();
        let preferred = self.allocator.preferred(asked).await?;
        check_count(n_asked, preferred.len())?;
        let container_responses = preferred
            .into_iter()
            .map(|device_i_ds| ContainerPreferredAllocationResponse { device_i_ds })
            .collect();
        Ok(Response::new(PreferredAllocationResponse {
            container_responses,
        }))
    }

    async fn allocate(
        &self,
        request: Request<AllocateRequest>,
    ) -> Result<Response<AllocateResponse>, Status> {
        let asked = request.into_inner().container_requests;
        let n_asked = asked.len();
        let ids = asked.into_iter().map(|container| container.devices_ids);
        let container_responses = self.allocator.allocate(ids.collect()).await?;
        check_count(n_asked, container_responses.len())?;
        Ok(Response::new(AllocateResponse {
            container_responses,
        }))
    }

    /// Kubelet calls this only where the options ask for it, and ours never do; an
    /// answer is still due, and there is nothing to prepare.
    async fn pre_start_container(
        &self,
        _request: Request<PreStartContainerRequest>,
    ) -> Result<Response<PreStartContainerResponse>, Status> {
        Ok(Response::new(PreStartContainerResponse {}))
    }
}

/// Kubelet takes the answers by position, so a wrong number would give one container
/// what belongs to another.
fn check_count(n_asked: usize, n_answered: usize) -> Result<(), Status> {
    if n_asked == n_answered {
        return Ok(());
    }
    Err(Status::internal(format!(
        "{n_asked} containers asked for devices, {n_answered} got an answer"
    )))
}

/// One open ListAndWatch; counted for as long as it exists.
struct Listener(Arc<AtomicUsize>);

impl Listener {
    fn count_in(streams: &Arc<AtomicUsize>) -> Listener {
        streams.fetch_add(1, Ordering::Relaxed);
        Listener(Arc::clone(streams))
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
