//! Connection to a node's agent with kubectl's rights: a port-forward, through the API server and
//! kubelet, to the loopback of the agent's pod. No port of it is open to the network.

use std::io::{Error, ErrorKind};
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::api::{ListParams, Portforwarder};
use kube::{Api, Client};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, DuplexStream};
use tokio::time::timeout;

/// Label selector of the agents' pods.
const LABELS: &str = "app.kubernetes.io/name=sublet,app.kubernetes.io/component=agent";

/// The name of the port in their spec.
const PORT: &str = "top";

/// The longest answer that is read: a node with a thousand containers, for an hour.
const ANSWER_MAX: u64 = 16 << 20;

/// Time limit of an answer. The agent answers at once; the rest is for the connection.
const PATIENCE: Duration = Duration::from_secs(15);

/// The pod of a node's agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgentPod {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Does it run?
    pub is_running: bool,
    /// Port on which it answers; `None` for an agent that does not.
    pub port: Option<u16>,
}

impl AgentPod {
    fn of(pod: &Pod) -> AgentPod {
        let spec = pod.spec.as_ref();
        let containers = spec.into_iter().flat_map(|spec| &spec.containers);
        let mut ports = containers.flat_map(|one| one.ports.iter().flatten());
        let port = ports.find(|port| port.name.as_deref() == Some(PORT));
        let phase = pod
            .status
            .as_ref()
            .and_then(|status| status.phase.as_deref());
        AgentPod {
            namespace: pod.metadata.namespace.clone().unwrap_or_default(),
            name: pod.metadata.name.clone().unwrap_or_default(),
            is_running: phase == Some("Running"),
            port: port.and_then(|port| u16::try_from(port.container_port).ok()),
        }
    }
}

/// The pod of the agent on that node, one that runs if there is any.
///
/// # Errors
/// The API server's answer, or none.
pub async fn find_agent(client: &Client, node: &str) -> Result<Option<AgentPod>, kube::Error> {
    let pods: Api<Pod> = Api::all(client.clone());
    let here = ListParams::default().labels(LABELS);
    let here = here.fields(&format!("spec.nodeName={node}"));
    let found = pods.list(&here).await?;
    Ok(found
        .iter()
        .map(AgentPod::of)
        .max_by_key(|pod| pod.is_running))
}

/// A connection to an agent, which answers line by line.
pub struct AgentConnection {
    stream: BufReader<DuplexStream>,
    forwarder: Portforwarder,
    port: u16,
}

impl AgentConnection {
    /// Connects to that port of the pod.
    ///
    /// # Errors
    /// The API server's answer, or none.
    pub async fn open(
        client: &Client,
        pod: &AgentPod,
        port: u16,
    ) -> Result<AgentConnection, kube::Error> {
        let pods: Api<Pod> = Api::namespaced(client.clone(), &pod.namespace);
        let mut forwarder = pods.portforward(&pod.name, &[port]).await?;
        let stream = forwarder.take_stream(port);
        // It has one for each port that was asked for.
        let stream = stream.ok_or_else(|| kube::Error::Service("no such port".into()))?;
        Ok(AgentConnection {
            stream: BufReader::new(stream),
            forwarder,
            port,
        })
    }

    /// One question, one answer; both without their line's end.
    ///
    /// # Errors
    /// No agent answers; the text has kubelet's message about it.
    pub async fn ask(&mut self, line: &str) -> std::io::Result<String> {
        let answered = timeout(PATIENCE, self.exchange(line)).await;
        let why = match answered {
            Ok(Ok(answer)) => return Ok(answer),
            Ok(Err(error)) => error,
            Err(_late) => Error::from(ErrorKind::TimedOut),
        };
        let said = match self.forwarder.take_error(self.port) {
            Some(said) => timeout(Duration::from_millis(200), said).await,
            None => return Err(why),
        };
        Err(said.ok().flatten().map_or(why, Error::other))
    }

    async fn exchange(&mut self, line: &str) -> std::io::Result<String> {
        let mut answer = String::new();
        self.stream
            .write_all(format!("{line}\n").as_bytes())
            .await?;
        let mut limited = (&mut self.stream).take(ANSWER_MAX);
        limited.read_line(&mut answer).await?;
        match answer.strip_suffix('\n') {
            Some(answer) => Ok(answer.to_owned()),
            None => Err(ErrorKind::UnexpectedEof.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_agent_is_known_by_its_port() {
        let check = |ports: serde_json::Value, phase| {
            let pod = json!({
                "metadata": {"namespace": "gpu", "name": "a"},
                "spec": {"containers": [{"name": "agent", "ports": ports}]},
                "status": {"phase": phase},
            });
            let pod = AgentPod::of(&serde_json::from_value(pod).unwrap());
            assert_eq!((pod.namespace.as_str(), pod.name.as_str()), ("gpu", "a"));
            (pod.port, pod.is_running)
        };
        let top =
            json!([{"name": "metrics", "containerPort": 1}, {"name": "top", "containerPort": 2}]);
        assert_eq!(check(top, "Running"), (Some(2), true));
        assert_eq!(check(json!(null), "Pending"), (None, false));
        let none = json!([{"name": "top", "containerPort": 70000}]);
        assert_eq!(check(none, "Running"), (None, true));
    }
}
