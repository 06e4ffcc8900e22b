//! An agent that stands still: kubelet's probe, as the chart asks for it, starts it again.

use std::fs;

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use sublet_e2e::eventually;

use super::{NAMESPACE, Site};

/// The chart's probe, without its patience. Its port and its path stay the chart's.
const QUICK: &str = r#"{"spec": {"template": {"spec": {
    "terminationGracePeriodSeconds": 1,
    "containers": [{
        "name": "agent",
        "livenessProbe": {"initialDelaySeconds": 5, "periodSeconds": 1}
    }]
}}}}"#;

impl Site {
    /// Stops the agent's process, as a kernel or a driver may, and waits until kubelet has put
    /// another in its place. Running programs go on, and new programs of a pod come under its limit
    /// again.
    pub(super) fn check_standstill(&self, pod: &str) -> Result<()> {
        let agent = ["--namespace", NAMESPACE, "daemonset/sublet-agent"];
        let patch = ["patch", "--patch", QUICK];
        self.cluster.kubectl(&[&patch[..], &agent].concat())?;
        let rollout = ["rollout", "status", "--timeout", "120s"];
        self.cluster.kubectl(&[&rollout[..], &agent].concat())?;
        let (uid, before) = self.agent()?;
        kill_process(agent_process(&uid)?, Signal::STOP)?;
        eventually(|| {
            let (same, restarts) = self.agent()?;
            ensure!(
                same == uid && restarts > before,
                "{restarts} restarts of {same}"
            );
            Ok(())
        })?;
        self.cluster.kubectl(&[&rollout[..], &agent].concat())?;
        // Its programs wait until the next agent has taken the container back.
        self.check_pod(pod)
    }

    /// The UID of the agent's pod, and how often its container was started again.
    fn agent(&self) -> Result<(String, u64)> {
        let label = "app.kubernetes.io/component=agent";
        let pods = self.get(&["pods", "--namespace", NAMESPACE, "--selector", label])?;
        let mut all = pods["items"].as_array().into_iter().flatten();
        let is_there = |pod: &&Value| pod["metadata"]["deletionTimestamp"].is_null();
        let pod = all.find(is_there).context("the agent has no pod")?;
        let uid = pod["metadata"]["uid"].as_str().context("no UID")?;
        let restarts = &pod["status"]["containerStatuses"][0]["restartCount"];
        Ok((uid.to_owned(), restarts.as_u64().context("no restarts")?))
    }
}

/// The agent's own process in that pod; the one that measures the cards for it is another.
fn agent_process(uid: &str) -> Result<Pid> {
    for entry in fs::read_dir("/proc")? {
        let process = entry?.path();
        let name = process.file_name().and_then(|name| name.to_str());
        let pid = name.and_then(|name| name.parse().ok());
        let Some(pid) = pid.and_then(Pid::from_raw) else {
            continue;
        };
        // It may end between two looks.
        let read = |file: &str| fs::read_to_string(process.join(file)).unwrap_or_default();
        let groups = read("cgroup").replace('_', "-");
        let line = read("cmdline");
        let words: Vec<&str> = line.split('\0').collect();
        if groups.contains(uid) && words.get(1) == Some(&"agent") && !words.contains(&"--measure") {
            return Ok(pid);
        }
    }
    anyhow::bail!("no process of the agent's in pod {uid}")
}
