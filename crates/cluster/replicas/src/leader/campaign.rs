//! Campaigns for a Lease: reads and writes it as `Election` decides.

use std::time::{Duration, Instant};

use anyhow::Context;
use k8s_openapi::api::coordination::v1::Lease;
use kube::{Api, Client};
use prometheus_client::metrics::gauge::Gauge;
use serde_json::Value;
use sublet_client::{ObjectAddress, Write, WriteError, perform, perform_returning};

use super::{Campaigner, Election, LeaseTiming};

/// Interval of looks at a Lease that this process no longer wants.
const OBSERVE: Duration = Duration::from_millis(50);
/// Maximum number of tries to give a Lease back while another process writes to it.
const GIVE_BACK_TRIES: usize = 3;

/// The field manager of Leases.
const MANAGER: &str = "sublet-leader";

impl Campaigner {
    /// Tells for ever the holder of the Lease, after a campaign that has ended: this process may
    /// have to ask the others until it ends too.
    pub async fn observe(self, client: Client, lease: ObjectAddress) {
        let api = api_of(client, &lease);
        loop {
            if let Ok(Some(lease)) = api.get_opt(&lease.name).await {
                let holder = lease.spec.and_then(|spec| spec.holder_identity);
                self.tell_holder(holder.unwrap_or_default());
            }
            tokio::time::sleep(OBSERVE).await;
        }
    }
}

fn api_of(client: Client, lease: &ObjectAddress) -> Api<Lease> {
    Api::namespaced(client, lease.namespace.as_deref().unwrap_or_default())
}

/// Campaigns for a Lease until `stop` is ready, and then gives it back: this process may begin no
/// write any more. `me` must differ from process to process. `leading` shows the state. Returns
/// the observer that can still tell the holder of the Lease.
pub async fn campaign(
    client: Client,
    lease: ObjectAddress,
    me: String,
    timing: LeaseTiming,
    campaigner: Campaigner,
    leading: Gauge,
    stop: impl Future<Output = ()>,
) -> Campaigner {
    let api = api_of(client.clone(), &lease);
    let mut election = Election::new(me.clone(), timing);
    let mut stop = std::pin::pin!(stop);
    let mut was_late = false;
    loop {
        let round = round(&client, &api, &lease, &mut election);
        tokio::select! {
            () = round => {}
            () = &mut stop => break,
        }
        let holder = election.observed.as_ref().map(|seen| seen.holder.clone());
        campaigner.tell_holder(holder.unwrap_or_default());
        let current = election.tenure;
        let is_late = current.is_some_and(|tenure| tenure.until <= Instant::now());
        leading.set(i64::from(current.is_some() && !is_late));
        if std::mem::replace(&mut was_late, is_late) != is_late {
            let state = if is_late { "late" } else { "in time again" };
            tracing::warn!(%me, "the Lease is renewed {state}");
        }
        campaigner.tenure.send_if_modified(|known| {
            let led = known.is_some();
            let changed = *known != current;
            *known = current;
            match (led, known.is_some()) {
                (false, true) => tracing::info!(%me, "leads"),
                (true, false) => tracing::warn!(%me, "leads no more"),
                _ => {}
            }
            changed
        });
        tokio::select! {
            () = tokio::time::sleep(election.pause(Instant::now())) => {}
            () = &mut stop => break,
        }
    }
    campaigner.tenure.send_replace(None);
    if campaigner.all_answered() {
        give_back(&client, &api, &lease, &mut election).await;
    } else {
        tracing::info!("a write is open: the Lease is left to end by itself");
    }
    campaigner
}

/// Frees the Lease. If this does not arrive, the next replica waits until it has stood still.
async fn give_back(
    client: &Client,
    api: &Api<Lease>,
    lease: &ObjectAddress,
    election: &mut Election,
) {
    let limit = election.timing.retry;
    // A renewal that was given up may still come between the look and the write.
    for _ in 0..GIVE_BACK_TRIES {
        let seen = tokio::time::timeout(limit, api.get_opt(&lease.name)).await;
        if let Ok(Ok(seen)) = seen {
            election.read(seen.as_ref(), Instant::now());
        }
        let Some(act) = election.release() else {
            return;
        };
        let write = Write {
            to: lease.clone(),
            act,
        };
        let given_back = perform(client, &write, MANAGER, limit).await;
        if !matches!(given_back, Err(WriteError::Refused { .. })) {
            return;
        }
    }
}

/// The machine's name for people, and a number that no other process has.
///
/// # Errors
/// The kernel does not say them.
pub fn process_name() -> anyhow::Result<String> {
    let read = |file: &str| {
        let text = std::fs::read_to_string(file).with_context(|| format!("cannot read {file}"))?;
        anyhow::Ok(text.trim().to_owned())
    };
    let host = read("/proc/sys/kernel/hostname")?;
    Ok(format!("{host}_{}", read("/proc/sys/kernel/random/uuid")?))
}

/// The version of a Lease as a number.
fn version_of(lease: &Value) -> u64 {
    let version = &lease["metadata"]["resourceVersion"];
    let number = version.as_str().and_then(|text| text.parse().ok());
    number.unwrap_or_else(|| {
        tracing::warn!(%version, "the API server's versions are no numbers");
        0
    })
}

/// Reads the Lease once, and writes it if it is ours or free.
async fn round(
    client: &Client,
    api: &Api<Lease>,
    address: &ObjectAddress,
    election: &mut Election,
) {
    let limit = election.timing.retry.max(Duration::from_secs(1));
    let seen = match tokio::time::timeout(limit, api.get_opt(&address.name)).await {
        Ok(Ok(seen)) => seen,
        Ok(Err(error)) => return tracing::warn!(%error, "cannot read the Lease"),
        Err(_) => return tracing::warn!("the Lease cannot be read in time"),
    };
    let step = election.read(seen.as_ref(), Instant::now());
    let Some(act) = election.act(&step, jiff::Timestamp::now()) else {
        return;
    };
    let write = Write {
        to: address.clone(),
        act,
    };
    let sent = Instant::now();
    let answer = perform_returning(client, &write, MANAGER, limit).await;
    let answer = answer.map(|lease| version_of(&lease));
    if let Err(error) = &answer {
        tracing::debug!(?step, ?error, "the Lease was not written");
    }
    election.written(sent, &answer);
}
