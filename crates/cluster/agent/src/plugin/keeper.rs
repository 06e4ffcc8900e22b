//! Keeps one plugin served and registered. Kubelet forgets its plugins when it starts
//! anew and empties the folder, and it drops a plugin whose stream breaks without ever
//! dialling it again; either way it is on the plugin to come back. This loop looks ten times
//! a second at two files and one counter: two system calls, and no state that a missed
//! notification could leave wrong.

use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::time::Duration;

use sublet_kubelet::deviceplugin::registration_client::RegistrationClient;
use sublet_kubelet::deviceplugin::{KUBELET_SOCKET, RegisterRequest, VERSION};
use sublet_model::Pauses;
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior};
use tonic::transport::Endpoint;
use tracing::{debug, info, warn};

use super::Plugin;
use super::service::{Place, Serving, options};
use super::socket::{self, FileMark};

/// Interval between looks at the files. A kubelet that starts anew admits the node's pods some 0.7
/// s after it made its socket. If it does not know the plugin by then, it ends each pod that has an
/// init container with devices which has already exited: "no healthy devices present"
/// (pkg/kubelet/cm/devicemanager/manager.go, `devicesToAllocate`, v1.36.3).
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// The pauses after tries. The first often meets the socket of a kubelet that has ended, or of one that
/// does not listen yet; and kubelet may refuse for minutes while it starts.
const PAUSES: Pauses = Pauses::new(Duration::from_millis(100), Duration::from_secs(30));

/// Time that kubelet may take after a registration to open ListAndWatch before it counts as lost.
/// Kubelet opens it at once; the rest is for a busy machine.
const STREAM_WAIT: Duration = Duration::from_secs(5);

/// Longest time of a registration. Kubelet dials the plugin before it answers, and gives that ten
/// seconds (plugin/v1beta1/client.go, v1.36.3).
const REGISTER_TIME: Duration = Duration::from_secs(15);

impl Plugin {
    /// Serves the resource in kubelet's device plugin `folder` until `stop` becomes true
    /// or its sender is dropped, then removes the socket. Nothing that kubelet does ends
    /// it: where kubelet is absent it waits, where kubelet refuses it tries again later,
    /// and the log says so once per cause.
    pub async fn run(self, folder: PathBuf, mut stop: watch::Receiver<bool>) {
        let mut keeper = Keeper::new(self, folder);
        tokio::select! {
            never = keeper.keep() => match never {},
            // An error means that the sender is gone, and with it who could stop us.
            _ = stop.wait_for(|stop| *stop) => {}
        }
        keeper.close().await;
    }
}

/// A plugin, and how far it is with kubelet.
struct Keeper {
    plugin: Plugin,
    folder: PathBuf,
    serving: Option<Serving>,
    /// The kubelet socket that took our registration.
    registered: Option<FileMark>,
    /// The kubelet socket that the pauses below count for.
    seen: Option<FileMark>,
    tries: u32,
    next_try: Instant,
    /// Last problem that was logged, so that a lasting cause is logged once.
    complaint: String,
}

impl Keeper {
    fn new(plugin: Plugin, folder: PathBuf) -> Keeper {
        Keeper {
            plugin,
            folder,
            serving: None,
            registered: None,
            seen: None,
            tries: 0,
            next_try: Instant::now(),
            complaint: String::new(),
        }
    }

    /// Serves and registers, for ever.
    async fn keep(&mut self) -> Infallible {
        let mut clock = tokio::time::interval(LOOK_EVERY);
        clock.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            clock.tick().await;
            if self.serve().await {
                self.register().await;
            }
        }
    }

    /// Stops serving and removes the socket.
    async fn close(&mut self) {
        if let Some(serving) = self.serving.take() {
            serving.close().await;
        }
    }

    /// Whether a server stands on a socket that kubelet can reach; makes one if not.
    async fn serve(&mut self) -> bool {
        match self.serving.as_ref().map_or(Place::Gone, Serving::place) {
            Place::Ours => return true,
            Place::Taken => {
                self.complain("not serving", "another process took over the socket");
                return false;
            }
            Place::Gone => {}
        }
        self.close().await;
        self.registered = None;
        let path = self.folder.join(&self.plugin.spec.socket_name);
        match socket::bind(&path) {
            Ok(bound) => {
                debug!(resource = %self.plugin.spec.resource, path = %path.display(), "serving");
                self.serving = Some(Serving::start(&self.plugin, path, bound));
                self.next_try = Instant::now();
                true
            }
            Err(error) => {
                self.complain("socket not made", &format!("{}: {error}", path.display()));
                false
            }
        }
    }

    /// Registers if kubelet is there and does not know the plugin.
    async fn register(&mut self) {
        let kubelet_path = self.folder.join(KUBELET_SOCKET);
        let kubelet = FileMark::of(&kubelet_path);
        let watched = self.serving.as_ref().is_some_and(Serving::is_watched);
        if kubelet.is_none() || (watched && self.registered == kubelet) {
            self.tries = 0;
            self.next_try = Instant::now();
            return;
        }
        if self.seen != kubelet {
            self.seen = kubelet;
            self.tries = 0;
            self.next_try = Instant::now();
        }
        if Instant::now() < self.next_try {
            return;
        }
        let outcome = ask_to_register(&kubelet_path, &self.plugin).await;
        self.tries = self.tries.saturating_add(1);
        let pause = PAUSES.after(self.tries);
        match outcome {
            Ok(()) => {
                info!(
                    resource = %self.plugin.spec.resource,
                    devices = self.plugin.devices.borrow().len(),
                    "registered with kubelet",
                );
                // The receiver may have gone; then nobody wants to know.
                let resource = self.plugin.spec.resource.clone();
                let _ = self.plugin.registered.send(resource);
                self.registered = kubelet;
                self.complaint.clear();
                self.next_try = Instant::now() + pause.max(STREAM_WAIT);
            }
            Err(status) => {
                self.complain("kubelet refused", &describe(&status));
                self.next_try = Instant::now() + pause;
            }
        }
    }

    fn complain(&mut self, what: &'static str, why: &str) {
        let resource = &self.plugin.spec.resource;
        if self.complaint == why {
            debug!(%resource, why, "{what} again");
        } else {
            warn!(%resource, why, "{what}, will try again");
            why.clone_into(&mut self.complaint);
        }
    }
}

async fn ask_to_register(kubelet: &Path, plugin: &Plugin) -> Result<(), tonic::Status> {
    let endpoint = Endpoint::from_shared(format!("unix:{}", kubelet.display()))
        .map_err(|error| tonic::Status::from_error(error.into()))?
        .timeout(REGISTER_TIME)
        .connect_timeout(REGISTER_TIME);
    let channel = endpoint
        .connect()
        .await
        .map_err(|error| tonic::Status::from_error(error.into()))?;
    let request = RegisterRequest {
        version: VERSION.to_owned(),
        endpoint: plugin.spec.socket_name.clone(),
        resource_name: plugin.spec.resource.clone(),
        options: Some(options(plugin)),
    };
    RegistrationClient::new(channel).register(request).await?;
    Ok(())
}

/// The status with its causes: tonic's own text for a refused connection is
/// "transport error", and the reason hangs below it.
fn describe(status: &tonic::Status) -> String {
    let mut text = status.message().to_owned();
    let mut cause = std::error::Error::source(status);
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        cause = error.source();
    }
    text
}
