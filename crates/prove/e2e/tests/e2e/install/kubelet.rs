//! The part of kubelet that matters here: it runs a static pod and mirrors it.

use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::Value;
use sublet_testbed::free_port;

use super::Site;

/// Runs the static pod `kube-scheduler.yaml` and mirrors it, as kubelet does; nothing else.
pub(super) struct Kubelet<'a> {
    site: &'a Site,
    /// Whether it starts a patched manifest.
    pub(super) starts_patched: AtomicBool,
    ends: AtomicBool,
}

impl<'a> Kubelet<'a> {
    pub(super) fn new(site: &'a Site) -> Kubelet<'a> {
        Kubelet {
            site,
            starts_patched: AtomicBool::new(true),
            ends: AtomicBool::new(false),
        }
    }

    /// While `work` goes on.
    pub(super) fn during<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<T> {
        /// Whatever becomes of the work, the thread must end.
        struct Ends<'b>(&'b AtomicBool);
        impl Drop for Ends<'_> {
            fn drop(&mut self) {
                self.0.store(true, Ordering::SeqCst);
            }
        }
        self.ends.store(false, Ordering::SeqCst);
        thread::scope(|scope| {
            let loops = scope.spawn(|| self.keep_running());
            let done = {
                let _ends = Ends(&self.ends);
                work()
            };
            let kept = loops
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            done.and_then(|done| kept.map(|()| done))
        })
    }

    fn keep_running(&self) -> Result<()> {
        let mut running = String::new();
        let mut count = 0;
        while !self.ends.load(Ordering::SeqCst) {
            let manifest = self.site.manifest()?;
            let passes =
                self.starts_patched.load(Ordering::SeqCst) || !manifest.contains("--config=");
            if manifest != running && passes {
                self.site.cluster.stop(&format!("static-{count}"));
                count += 1;
                self.start(&manifest, &format!("static-{count}"))?;
                running = manifest;
            }
            thread::sleep(Duration::from_millis(100));
        }
        self.site.cluster.stop(&format!("static-{count}"));
        Ok(())
    }

    /// Its command line as it stands, with another port; then its mirror.
    fn start(&self, manifest: &str, name: &str) -> Result<()> {
        let cluster = &self.site.cluster;
        let gone = [
            "delete",
            "pod",
            "-n",
            "kube-system",
            "kube-scheduler-cp",
            "--now",
            "--ignore-not-found",
        ];
        cluster.kubectl(&gone)?;
        let args = ["create", "--dry-run=client", "-o", "json", "-f", "-"];
        let mut pod: Value = serde_json::from_str(&cluster.kubectl_with_input(&args, manifest)?)?;
        let words = pod["spec"]["containers"][0]["command"]
            .as_array()
            .context("no command")?;
        let mut words = words.iter().filter_map(Value::as_str);
        let program = words.next().context("an empty command")?;
        let port = free_port()?;
        let mut command = Command::new(cluster.binaries().cluster(program));
        command.args(words).arg(format!("--secure-port={port}"));
        cluster.spawn(name, command)?;
        cluster.wait_https(name, port, "/livez")?;
        pod["metadata"]["name"] = "kube-scheduler-cp".into();
        pod["metadata"]["annotations"]["kubernetes.io/config.mirror"] = name.into();
        pod["spec"]["nodeName"] = "cp".into();
        cluster.apply(&pod.to_string())?;
        Ok(())
    }
}
