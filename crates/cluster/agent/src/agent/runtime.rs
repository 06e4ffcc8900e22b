//! The part of the loop that is the runtime's plugin, if the runtime names its containers.

use std::convert::Infallible;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context;
use sublet_client::Client;
use sublet_model::NodeName;
use tokio::sync::oneshot;

use crate::nri::{Created, RuntimePlugin};
use crate::pods::WatchedPods;

/// The agent's side towards the runtime, as its plugin.
pub(super) struct RuntimeSide {
    pub(super) socket: PathBuf,
    /// The pods of the node, as the watch brings them.
    pub(super) pods: Arc<WatchedPods>,
    /// The containers that the runtime has created.
    pub(super) created: Created,
}

/// Watches the node's pods, makes what they need and answers the runtime, for ever. It fails if no
/// thread can be started.
pub(super) async fn serve(
    plugin: RuntimePlugin,
    socket: PathBuf,
    client: Client,
    node: NodeName,
) -> anyhow::Result<Infallible> {
    let plugin = Arc::new(plugin);
    let answering = Arc::clone(&plugin);
    let answering = async move { answering.keep(&socket).await };
    let mut answers = on_its_own_thread(answering)?;
    let pods = Arc::clone(&plugin.pods);
    tokio::select! {
        never = pods.keep(client, node) => match never {},
        never = plugin.keep_ahead() => match never {},
        () = answers.closed() => {
            anyhow::bail!("the thread that answers the runtime has ended")
        }
    }
}

/// The runtime creates no other container while it waits for an answer, so no other work of the
/// agent may come first. The thread ends when the returned sender is dropped. The sender is closed
/// if the thread has ended by itself: by a panic.
fn on_its_own_thread(
    answering: impl Future<Output = Infallible> + Send + 'static,
) -> anyhow::Result<oneshot::Sender<Infallible>> {
    let (answers, ended) = oneshot::channel();
    let executor = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start an executor")?;
    let body = move || {
        executor.block_on(async {
            tokio::select! {
                never = answering => match never {},
                _dropped = ended => {}
            }
        });
    };
    std::thread::Builder::new()
        .name("nri".to_owned())
        .spawn(body)
        .context("cannot start the thread that answers the runtime")?;
    Ok(answers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_thread_that_panics_is_noticed() {
        let mut answers = on_its_own_thread(async { panic!("a bug") }).unwrap();
        answers.closed().await;
        let answers = on_its_own_thread(std::future::pending()).unwrap();
        assert!(!answers.is_closed());
    }
}
