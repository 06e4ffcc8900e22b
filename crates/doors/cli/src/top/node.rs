//! `sublet top --node`: a node of a cluster, as its agent sees it. The agent gives the same answer
//! as an arbiter on its machine, so the tables are the same; jobs are containers, by namespace, pod
//! and name. It reads only.

use kube::Client;
use serde::Serialize;
use sublet_arbiter::admin::{Reply, Request, Snapshot, UseHistory};
use sublet_client::{AgentConnection, AgentPod, find_agent};

use super::Args;
use crate::align::columns;
use crate::answer::{Advised, Answer, DONE, Format, api_error, connected, document};
use crate::jobs;

/// Facts about a node.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct NodeTop<'a> {
    node: &'a str,
    #[serde(flatten)]
    snapshot: &'a Snapshot,
    #[serde(skip_serializing_if = "Option::is_none")]
    history: Option<Vec<JobHistory>>,
}

/// Usage of a container over the last hour.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct JobHistory {
    id: u64,
    name: String,
    every_ms: u64,
    per_gpu: Vec<GpuHistory>,
}

/// Usage of one of its cards: each point, and the figures that people see.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct GpuHistory {
    #[serde(flatten)]
    points: UseHistory,
    minutes: u64,
    #[serde(rename = "usedMeanMiB")]
    used_mean_mib: u64,
    #[serde(rename = "usedMaxMiB")]
    used_max_mib: u64,
    compute_used_mean_percent: u64,
    compute_used_max_percent: u64,
}

impl GpuHistory {
    fn of(points: UseHistory, every_ms: u64) -> GpuHistory {
        let n = points.memory_mib.len().max(points.compute_percent.len());
        let max = |all: &[u64]| all.iter().copied().max().unwrap_or(0);
        let mean = |all: &[u64]| all.iter().sum::<u64>() / (all.len() as u64).max(1);
        GpuHistory {
            minutes: n as u64 * every_ms / 60_000,
            used_mean_mib: mean(&points.memory_mib),
            used_max_mib: max(&points.memory_mib),
            compute_used_mean_percent: mean(&points.compute_percent),
            compute_used_max_percent: max(&points.compute_percent),
            points,
        }
    }
}

/// Answers `sublet top --node`.
///
/// # Errors
/// There is no agent on that node, it is too old, or this account has no right to it.
pub async fn on_node(args: &Args) -> anyhow::Result<Answer> {
    let node = args.node().unwrap_or_default();
    let client = connected(args.kubeconfig.as_deref(), None).await?;
    let mut agent = Agent::of(&client, node).await?;
    let snapshot = agent.snapshot().await?;
    let mut history = None;
    if args.history {
        let mut all = Vec::new();
        for job in &snapshot.tenants {
            if let Some(id) = job.id {
                all.push(agent.history(id, &job.name).await?);
            }
        }
        history = Some(all);
    }
    let top = NodeTop {
        node,
        snapshot: &snapshot,
        history,
    };
    Ok(Answer {
        text: print(&top, args.output)?,
        notes: Vec::new(),
        code: DONE,
    })
}

/// The containers of a node, and their usage: a table.
///
/// # Errors
/// As [`on_node`].
pub(crate) async fn look(client: &Client, node: &str) -> Result<String, Advised> {
    let snapshot = Agent::of(client, node).await?.snapshot().await?;
    Ok(jobs::text(&snapshot, false))
}

/// A node's agent, connected to.
struct Agent {
    connection: AgentConnection,
    pod: AgentPod,
}

impl Agent {
    async fn of(client: &Client, node: &str) -> Result<Agent, Advised> {
        let found = find_agent(client, node).await;
        let found = found.map_err(|error| api_error("cannot look for the node's agent", error))?;
        let labels = "-A -l app.kubernetes.io/component=agent -o wide";
        let Some(pod) = found else {
            return Err(Advised::new(
                format!("no agent of Sublet runs on node {node}"),
                format!("`kubectl get pods {labels}` shows where there is one"),
            ));
        };
        let (namespace, name) = (&pod.namespace, &pod.name);
        if !pod.is_running {
            return Err(Advised::new(
                format!("the agent of node {node} does not run"),
                format!("`kubectl describe pod -n {namespace} {name}` says why"),
            ));
        }
        let Some(port) = pod.port else {
            return Err(Advised::new(
                format!(
                    "the agent of node {node} answers nobody: its pod has no port called `top`"
                ),
                "it is older than this command, or runs without --top-listen; update the manifests",
            ));
        };
        let opened = AgentConnection::open(client, &pod, port).await;
        let connection = opened.map_err(|error| {
            Advised::new(
                format!("no port-forward to the agent of node {node}"),
                format!(
                    "this account needs the rights `get` and `create` for pods/portforward in \
                     namespace {namespace}"
                ),
            )
            .caused_by(error)
        })?;
        Ok(Agent { connection, pod })
    }

    async fn ask(&mut self, request: &Request) -> Result<Reply, Advised> {
        let (namespace, name) = (&self.pod.namespace, &self.pod.name);
        let failed = |cause: Box<dyn std::error::Error + Send + Sync>| {
            Advised::new(
                format!("pod {name} does not answer"),
                format!("`kubectl logs -n {namespace} {name}` may say why"),
            )
            .caused_by(cause)
        };
        let question = serde_json::to_string(request).map_err(|error| failed(error.into()))?;
        let answer = self.connection.ask(&question).await;
        let answer = answer.map_err(|error| failed(error.into()))?;
        match serde_json::from_str(&answer).map_err(|error| failed(error.into()))? {
            Reply::Error { reason } => Err(Advised::new(
                format!("the agent says: {reason}"),
                format!("`kubectl logs -n {namespace} {name}` may say more"),
            )),
            reply => Ok(reply),
        }
    }

    async fn snapshot(&mut self) -> Result<Snapshot, Advised> {
        match self.ask(&Request::List).await? {
            Reply::Snapshot(snapshot) => Ok(*snapshot),
            _ => Err(unexpected()),
        }
    }

    async fn history(&mut self, id: u64, name: &str) -> Result<JobHistory, Advised> {
        match self.ask(&Request::History { id }).await? {
            Reply::History { every_ms, per_gpu } => Ok(JobHistory {
                id,
                name: name.to_owned(),
                every_ms,
                per_gpu: per_gpu
                    .into_iter()
                    .map(|points| GpuHistory::of(points, every_ms))
                    .collect(),
            }),
            _ => Err(unexpected()),
        }
    }
}

fn unexpected() -> Advised {
    Advised::new(
        "the agent did not understand the question",
        "is it of another version of sublet?",
    )
}

fn print(top: &NodeTop<'_>, format: Format) -> anyhow::Result<String> {
    match format {
        Format::Table => {
            let mut text = jobs::text(top.snapshot, true);
            if let Some(history) = &top.history {
                text.push('\n');
                text += &hour(history);
            }
            Ok(text)
        }
        Format::Json => document(top, false),
        Format::Yaml => document(top, true),
    }
}

/// Usage of each container on each of its cards: a line.
fn hour(history: &[JobHistory]) -> String {
    let mut rows = Vec::new();
    for job in history {
        for card in &job.per_gpu {
            rows.push(vec![
                job.name.clone(),
                card.points.index.to_string(),
                card.minutes.to_string(),
                jobs::mib(card.used_mean_mib),
                jobs::mib(card.used_max_mib),
                format!("{} %", card.compute_used_mean_percent),
                format!("{} %", card.compute_used_max_percent),
            ]);
        }
    }
    let keys = [
        "name",
        "gpu",
        "minutes",
        "usedMeanMiB",
        "usedMaxMiB",
        "computeUsedMeanPercent",
        "computeUsedMaxPercent",
    ];
    columns(&keys, &rows)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::jobs::tests::{example, example_of_shares};

    fn history() -> Vec<JobHistory> {
        let points = UseHistory {
            index: 1,
            ago_ms: 5,
            memory_mib: vec![100, 300, 200, 200, 200, 200],
            compute_percent: vec![0, 60, 0, 0, 0, 0],
        };
        vec![JobHistory {
            id: 1,
            name: "ns/pod/c0".to_owned(),
            every_ms: 10_000,
            per_gpu: vec![GpuHistory::of(points, 10_000)],
        }]
    }

    /// Table and JSON of an example.
    pub(crate) fn answers() -> Vec<[String; 2]> {
        let snapshot = example_of_shares();
        let top = NodeTop {
            node: "n1",
            snapshot: &snapshot,
            history: Some(history()),
        };
        vec![[Format::Table, Format::Json].map(|form| print(&top, form).unwrap())]
    }

    #[test]
    fn an_hour_is_a_line_for_people() {
        let text = hour(&history());
        let line = text.lines().nth(1).unwrap();
        let words: Vec<&str> = line.split_whitespace().collect();
        assert_eq!(
            words,
            [
                "ns/pod/c0",
                "1",
                "1",
                "200",
                "MiB",
                "300",
                "MiB",
                "10",
                "%",
                "60",
                "%"
            ]
        );
    }

    /// These names are a promise: scripts read them.
    #[test]
    fn programs_find_what_the_machine_says_and_each_point() {
        let snapshot = example();
        let top = NodeTop {
            node: "n1",
            snapshot: &snapshot,
            history: Some(history()),
        };
        let json = print(&top, Format::Json).unwrap();
        let json: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!(json["node"], "n1");
        assert!(json["gpus"][0]["memoryMiB"].is_u64() && json["jobs"][0]["name"].is_string());
        let job = &json["history"][0];
        assert_eq!(
            (&job["name"], &job["everyMs"]),
            (&"ns/pod/c0".into(), &10_000.into())
        );
        let gpu = &job["perGpu"][0];
        assert_eq!((&gpu["gpu"], &gpu["minutes"]), (&1.into(), &1.into()));
        assert_eq!(
            (&gpu["usedMiB"][1], &gpu["usedMaxMiB"]),
            (&300.into(), &300.into())
        );
        assert_eq!(gpu["computeUsedPercent"][1], 60);
    }
}
