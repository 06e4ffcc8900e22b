//! A plugin and a runtime that is played: the calls that containerd makes, in its order.

use std::sync::Mutex;

use anyhow::{Context, Result, bail};
use prost::Message as _;
use sublet_nri::frame::{Decoder, Message, MessageKind, PLUGIN_SERVICE, RUNTIME_SERVICE};
use sublet_nri::{
    ConfigureRequest, ConfigureResponse, Container, ContainerAdjustment, CreateContainerRequest,
    CreateContainerResponse, KeyValue, NriError, NriPlugin, PodSandbox, RegisterPluginRequest,
    Request, Response, Status, SynchronizeRequest, SynchronizeResponse, serve,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

/// Records its calls, and gives each container its own name.
#[derive(Default)]
struct Recorder(Mutex<Vec<String>>);

impl Recorder {
    fn note(&self, line: String) {
        self.0.lock().unwrap().push(line);
    }
}

impl NriPlugin for Recorder {
    fn configured(&self, runtime: &ConfigureRequest) {
        self.note(format!(
            "{} {}",
            runtime.runtime_name, runtime.runtime_version
        ));
    }

    fn synchronized(&self, pods: Vec<PodSandbox>, containers: Vec<Container>) {
        let pods: Vec<&str> = pods.iter().map(|pod| pod.uid.as_str()).collect();
        let containers: Vec<&str> = containers.iter().map(|one| one.name.as_str()).collect();
        self.note(format!("{pods:?} {containers:?}"));
    }

    async fn create(
        &self,
        pod: PodSandbox,
        container: Container,
    ) -> Result<ContainerAdjustment, String> {
        if pod.uid.is_empty() {
            return Err("a pod without UID".to_owned());
        }
        let env = KeyValue {
            key: "WHO".to_owned(),
            value: format!("{}/{}", pod.uid, container.name),
        };
        Ok(ContainerAdjustment {
            env: vec![env],
            ..ContainerAdjustment::default()
        })
    }
}

/// The runtime's end of the connection.
struct Runtime {
    stream: UnixStream,
    decoder: Decoder,
    ready: Vec<Message>,
    calls: u32,
}

impl Runtime {
    fn new(stream: UnixStream) -> Runtime {
        Runtime {
            stream,
            decoder: Decoder::default(),
            ready: Vec::new(),
            calls: 1,
        }
    }

    async fn next(&mut self) -> Result<Message> {
        while self.ready.is_empty() {
            let mut bytes = [0; 100];
            let count = self.stream.read(&mut bytes).await?;
            if count == 0 {
                bail!("the plugin closed the connection");
            }
            self.ready = self.decoder.push(&bytes[..count])?;
        }
        Ok(self.ready.remove(0))
    }

    /// Takes the registration, and accepts or refuses it.
    async fn register(&mut self, status: Option<Status>) -> Result<RegisterPluginRequest> {
        let message = self.next().await?;
        assert_eq!(
            (message.service, message.kind),
            (RUNTIME_SERVICE, MessageKind::Request)
        );
        let request = Request::decode(&message.payload[..])?;
        assert_eq!(request.service, "nri.pkg.api.v1alpha1.Runtime");
        assert_eq!(request.method, "RegisterPlugin");
        let payload = Vec::new();
        let response = Response { status, payload };
        let answer = Message {
            kind: MessageKind::Response,
            payload: response.encode_to_vec(),
            ..message
        };
        self.stream.write_all(&answer.encode()).await?;
        Ok(RegisterPluginRequest::decode(&request.payload[..])?)
    }

    async fn call(&mut self, method: &str, payload: Vec<u8>) -> Result<Response> {
        let request = Request {
            service: "nri.pkg.api.v1alpha1.Plugin".to_owned(),
            method: method.to_owned(),
            payload,
            timeout_nano: 2_000_000_000,
        };
        self.calls += 2;
        let message = Message {
            service: PLUGIN_SERVICE,
            call: self.calls,
            kind: MessageKind::Request,
            payload: request.encode_to_vec(),
        };
        self.stream.write_all(&message.encode()).await?;
        let answer = self.next().await?;
        assert_eq!(
            (answer.service, answer.kind, answer.call),
            (PLUGIN_SERVICE, MessageKind::Response, self.calls)
        );
        Ok(Response::decode(&answer.payload[..])?)
    }

    /// The error's code and text.
    async fn refusal(&mut self, method: &str, payload: Vec<u8>) -> Result<(i32, String)> {
        let status = self.call(method, payload).await?.status;
        let status = status.context("accepted")?;
        Ok((status.code, status.message))
    }
}

fn sandbox(uid: &str) -> PodSandbox {
    PodSandbox {
        uid: uid.to_owned(),
        // Longer than one frame, as annotations can be.
        annotations: [("long".to_owned(), "x".repeat(20_000))].into(),
        ..PodSandbox::default()
    }
}

fn container(name: &str) -> Container {
    Container {
        name: name.to_owned(),
        ..Container::default()
    }
}

async fn play(mut runtime: Runtime) -> Result<()> {
    let registered = runtime.register(None).await?;
    assert_eq!(registered.plugin_name, "toy");
    assert_eq!(registered.plugin_idx, "07");
    let configure = ConfigureRequest {
        runtime_name: "containerd".to_owned(),
        runtime_version: "v2.3".to_owned(),
    };
    let answer = runtime.call("Configure", configure.encode_to_vec()).await?;
    // CreateContainer is event 4.
    assert_eq!(
        ConfigureResponse::decode(&answer.payload[..])?.events,
        0b1000
    );
    for (uid, name, more) in [("u1", "a", true), ("u2", "b", false)] {
        let part = SynchronizeRequest {
            pods: vec![sandbox(uid)],
            containers: vec![container(name)],
            more,
        };
        let answer = runtime.call("Synchronize", part.encode_to_vec()).await?;
        // Else the runtime takes the plugin for one that cannot do it in parts.
        let answer = SynchronizeResponse::decode(&answer.payload[..])?;
        assert_eq!(answer.more, more);
    }
    let create = |uid: &str| CreateContainerRequest {
        pod: Some(sandbox(uid)),
        container: Some(container("c")),
    };
    let answer = runtime
        .call("CreateContainer", create("u3").encode_to_vec())
        .await?;
    let answer = CreateContainerResponse::decode(&answer.payload[..])?;
    let adjust = answer.adjust.context("no adjustment")?;
    assert_eq!(adjust.env[0].value, "u3/c");
    let refused = runtime
        .refusal("CreateContainer", create("").encode_to_vec())
        .await?;
    assert_eq!(refused, (2, "a pod without UID".to_owned()));
    let (code, text) = runtime.refusal("CreateContainer", vec![255; 3]).await?;
    assert_eq!(code, 3);
    assert!(text.starts_with("CreateContainer cannot be read"), "{text}");
    let (code, text) = runtime.refusal("StopContainer", Vec::new()).await?;
    assert_eq!(code, 12, "{text}");
    assert_eq!(runtime.call("Shutdown", Vec::new()).await?.status, None);
    Ok(())
}

#[tokio::test]
async fn a_plugin_answers_what_a_runtime_asks() -> Result<()> {
    let (ours, theirs) = UnixStream::pair()?;
    let plugin = Recorder::default();
    let (served, played) = tokio::join!(
        serve(ours, "toy", "07", &plugin),
        play(Runtime::new(theirs))
    );
    played?;
    // The runtime has closed the connection.
    served?;
    let told = plugin.0.lock().unwrap();
    assert_eq!(*told, ["containerd v2.3", r#"["u1", "u2"] ["a", "b"]"#]);
    Ok(())
}

#[tokio::test]
async fn a_plugin_that_is_refused_or_hears_noise_says_so() -> Result<()> {
    let plugin = Recorder::default();
    let (ours, theirs) = UnixStream::pair()?;
    let mut runtime = Runtime::new(theirs);
    let status = Status {
        code: 2,
        message: "invalid plugin name".to_owned(),
    };
    let (served, registered) = tokio::join!(
        serve(ours, "toy", "07", &plugin),
        runtime.register(Some(status))
    );
    registered?;
    let error = served.unwrap_err();
    assert!(
        matches!(&error, NriError::Refused(why) if why == "invalid plugin name"),
        "{error}"
    );

    let (ours, mut theirs) = UnixStream::pair()?;
    theirs.write_all(&[0, 0, 0, 1, 255, 255, 255, 255]).await?;
    let error = serve(ours, "toy", "07", &plugin).await.unwrap_err();
    assert!(matches!(error, NriError::Frame(_)), "{error}");
    Ok(())
}
