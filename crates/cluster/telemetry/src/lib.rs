//! Logs and metrics: one way for all processes.
//!
//! Logs are fields, not sentences, on standard error. Metrics are declared here and nowhere
//! else, so that their names and help texts can be read in one place. This crate decides
//! nothing and knows nothing of Kubernetes.

pub mod metrics;

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

/// Starts logging to standard error: text for people on a terminal, JSON lines elsewhere.
/// `SUBLET_LOG` chooses the lines (`sublet=debug,warn` and the like), else `LOG_LEVEL`
/// (GPUShare's variable), else `info`.
///
/// # Errors
/// `SUBLET_LOG` cannot be read, or logging has been started before.
pub fn start_logging() -> anyhow::Result<()> {
    let set = ["SUBLET_LOG", "LOG_LEVEL"]
        .into_iter()
        .find_map(|name| Some((name, std::env::var(name).ok()?)));
    let filter = match set {
        Some((name, text)) => EnvFilter::try_new(&text)
            .map_err(|cause| anyhow::anyhow!("{name} is `{text}`: {cause}"))?,
        // The client warns of each failed call without its cause; whoever called reports it
        // with one.
        None => EnvFilter::new("info,kube_client=off"),
    };
    let logs = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr);
    let started = if std::io::stderr().is_terminal() {
        logs.with_target(false).try_init()
    } else {
        logs.with_ansi(false).json().flatten_event(true).try_init()
    };
    started.map_err(|cause| anyhow::anyhow!("logging cannot start: {cause}"))
}
