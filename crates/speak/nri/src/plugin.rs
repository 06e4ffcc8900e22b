//! A plugin's side of one connection: registers, and answers the runtime's calls one after the
//! other, as the runtime makes them. It does not connect, and does not try again.

use std::io;

use prost::{DecodeError, Message as _};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

use crate::frame::{Decoder, FrameError, Message, MessageKind, PLUGIN_SERVICE, RUNTIME_SERVICE};
use crate::generated::{
    ConfigureRequest, ConfigureResponse, Container, ContainerAdjustment, CreateContainerRequest,
    CreateContainerResponse, Event, PodSandbox, RegisterPluginRequest, SynchronizeRequest,
    SynchronizeResponse,
};
use crate::ttrpc::{Request, Response, Status};

/// The service in which a runtime registers plugins.
const RUNTIME: &str = "nri.pkg.api.v1alpha1.Runtime";

/// gRPC's error numbers.
const UNKNOWN: i32 = 2;
const INVALID_ARGUMENT: i32 = 3;
const UNIMPLEMENTED: i32 = 12;

/// Questions of a runtime. It waits two seconds for an answer, and creates no other container
/// meanwhile. A plugin that answers later is cut off.
pub trait NriPlugin: Send + Sync {
    /// Called with the runtime's name and version.
    fn configured(&self, runtime: &ConfigureRequest);

    /// Told of all that there is: once for each connection, before the first
    /// [`create`](NriPlugin::create).
    fn synchronized(&self, pods: Vec<PodSandbox>, containers: Vec<Container>);

    /// Changes to a container that is about to be created.
    ///
    /// # Errors
    /// The reason why the container must not be created. Kubelet shows it to people.
    fn create(
        &self,
        pod: PodSandbox,
        container: Container,
    ) -> impl Future<Output = Result<ContainerAdjustment, String>> + Send;
}

/// Reason why a connection ended.
#[derive(Debug, thiserror::Error)]
pub enum NriError {
    /// The runtime refused the plugin.
    #[error("the runtime refused to register the plugin: {0}")]
    Refused(String),
    /// The received bytes are not NRI.
    #[error("not NRI")]
    Frame(#[from] FrameError),
    /// A message of NRI that cannot be read.
    #[error("not a message of ttrpc")]
    Message(#[from] DecodeError),
    /// The connection broke.
    #[error("the connection broke")]
    Broken(#[from] io::Error),
}

/// Serves one connection until the runtime closes it.
///
/// # Errors
/// The reason of any other end.
pub async fn serve(
    mut stream: UnixStream,
    name: &str,
    index: &str,
    plugin: &impl NriPlugin,
) -> Result<(), NriError> {
    let register = RegisterPluginRequest {
        plugin_name: name.to_owned(),
        plugin_idx: index.to_owned(),
    };
    let request = Request {
        service: RUNTIME.to_owned(),
        method: "RegisterPlugin".to_owned(),
        payload: register.encode_to_vec(),
        timeout_nano: 0,
    };
    let message = Message {
        service: RUNTIME_SERVICE,
        call: 1,
        kind: MessageKind::Request,
        payload: request.encode_to_vec(),
    };
    stream.write_all(&message.encode()).await?;
    let mut decoder = Decoder::default();
    let mut known = Known::default();
    let mut bytes = vec![0; 64 * 1024];
    loop {
        let count = stream.read(&mut bytes).await?;
        if count == 0 {
            return Ok(());
        }
        for message in decoder.push(&bytes[..count])? {
            match (message.service, message.kind) {
                (PLUGIN_SERVICE, MessageKind::Request) => {
                    let request = Request::decode(&message.payload[..])?;
                    let response = answer(plugin, &mut known, &request).await;
                    let message = Message {
                        kind: MessageKind::Response,
                        payload: response.encode_to_vec(),
                        ..message
                    };
                    stream.write_all(&message.encode()).await?;
                }
                (RUNTIME_SERVICE, MessageKind::Response) => {
                    let status = Response::decode(&message.payload[..])?.status;
                    let status = status.unwrap_or_default();
                    if status.code != 0 {
                        return Err(NriError::Refused(status.message));
                    }
                }
                // A runtime does not answer on the one, and does not call on the other.
                _ => {}
            }
        }
    }
}

/// Parts of a Synchronize message received so far.
#[derive(Default)]
struct Known {
    pods: Vec<PodSandbox>,
    containers: Vec<Container>,
}

async fn answer(plugin: &impl NriPlugin, known: &mut Known, request: &Request) -> Response {
    let outcome = match request.method.as_str() {
        "Configure" => decoded(request).map(|runtime: ConfigureRequest| {
            plugin.configured(&runtime);
            ConfigureResponse {
                events: 1 << (Event::CreateContainer as i32 - 1),
            }
            .encode_to_vec()
        }),
        "Synchronize" => decoded(request).map(|part: SynchronizeRequest| {
            known.pods.extend(part.pods);
            known.containers.extend(part.containers);
            if !part.more {
                let Known { pods, containers } = std::mem::take(known);
                plugin.synchronized(pods, containers);
            }
            SynchronizeResponse { more: part.more }.encode_to_vec()
        }),
        "CreateContainer" => match decoded::<CreateContainerRequest>(request) {
            Ok(asked) => {
                let pod = asked.pod.unwrap_or_default();
                let container = asked.container.unwrap_or_default();
                let created = plugin.create(pod, container).await;
                let created = created.map(|adjust| {
                    let adjust = Some(adjust);
                    CreateContainerResponse { adjust }.encode_to_vec()
                });
                created.map_err(|message| Status {
                    code: UNKNOWN,
                    message,
                })
            }
            Err(status) => Err(status),
        },
        // The runtime ends, and closes the connection next.
        "Shutdown" => Ok(Vec::new()),
        other => Err(Status {
            code: UNIMPLEMENTED,
            message: format!("this plugin has no {other}, and did not subscribe to it"),
        }),
    };
    let (status, payload) = match outcome {
        Ok(payload) => (None, payload),
        Err(status) => (Some(status), Vec::new()),
    };
    Response { status, payload }
}

fn decoded<M: prost::Message + Default>(request: &Request) -> Result<M, Status> {
    M::decode(&request.payload[..]).map_err(|error| Status {
        code: INVALID_ARGUMENT,
        message: format!("{} cannot be read: {error}", request.method),
    })
}
