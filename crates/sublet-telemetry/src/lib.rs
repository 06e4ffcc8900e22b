//! Logs and metrics: one way for all processes.
//!
//! Logs are fields, not sentences, on standard error. Metrics are declared here and nowhere
//! else, so that their names and help texts can be read in one place. This crate decides
//! nothing and knows nothing of Kubernetes.

pub mod metrics;

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

/// Starts logging to standard error: text for people on a terminal, JSON lines elsewhere.
/// `SUBLET_LOG` sets what is shown (`info` unless set; `sublet=debug,warn` and the like).
///
/// # Errors
/// `SUBLET_LOG` cannot be read, or logging has been started before.
pub fn start_logging() -> anyhow::Result<()> {
    let filter = match std::env::var("SUBLET_LOG") {
        Ok(text) => EnvFilter::try_new(&text)
            .map_err(|cause| anyhow::anyhow!("SUBLET_LOG is `{text}`: {cause}"))?,
        Err(_) => EnvFilter::new("info"),
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
