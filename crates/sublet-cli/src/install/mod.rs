//! `sublet install` and `sublet uninstall`: put Sublet onto a cluster that kubeadm made, and remove
//! it.
//!
//! Read `manifests` (the applied objects), `preflight` (the checks before), `static_pod` (the
//! change of the cluster's own scheduler), `readiness`; these are pure. `facts`, `apply` and `host`
//! read and write the cluster and the node's files; `uninstall` is the way back.

mod apply;
mod facts;
mod host;
mod manifests;
mod preflight;
mod print;
mod readiness;
mod static_pod;
mod uninstall;

use std::path::PathBuf;
use std::time::Duration;

use clap::ValueEnum;
use sublet_client::Client;

use self::facts::Read;
use self::host::{Change, Place};
use self::manifests::Choices;
use self::preflight::{Check, Severity};
use self::print::Report;
use crate::answer::{Advised, Answer, Format, connected, print_notes};

pub use self::uninstall::{Args as UninstallArgs, run as uninstall};

/// Field manager's name in the API server's records.
const MANAGER: &str = "sublet-install";

/// Kind of a dry run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum DryRun {
    /// Print the manifests, and ask no cluster.
    Client,
    /// Let the API server check every object, and print the changes it would make.
    Server,
}

/// Arguments of `sublet install`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
EXAMPLES
  sublet install --preflight                       what is in the way?
  sublet install --image REGISTRY/sublet:0.1.0     on a kubeadm cluster
  sublet install --dry-run client > sublet.yaml    only the manifests
  sudo sublet install --image REGISTRY/sublet:0.1.0 --patch-default-scheduler \\
      --kubeconfig /etc/kubernetes/admin.conf      on the control plane's node

A second time changes nothing, or what differs. `sublet uninstall` is the way back.

EXIT CODES
  0  installed, or nothing is in the way
  1  something is in the way, or did not get ready; what it was is said
  2  wrong arguments")]
pub struct Args {
    /// Only look whether anything is in the way
    #[arg(long)]
    preflight: bool,
    /// Change nothing
    #[arg(long, value_enum, conflicts_with = "preflight")]
    dry_run: Option<DryRun>,
    /// Sublet's image, in a registry that the nodes can reach
    #[arg(long, value_name = "IMAGE")]
    image: Option<String>,
    /// The stock kube-scheduler's; otherwise that of the cluster's own scheduler
    #[arg(long, value_name = "IMAGE")]
    kube_scheduler_image: Option<String>,
    /// Have the cluster's own scheduler ask Sublet about GPU pods, so that they need no
    /// schedulerName; run it as root on the control plane's node
    #[arg(long, conflicts_with = "dry_run")]
    patch_default_scheduler: bool,
    /// The extender's port on the node's loopback, with --patch-default-scheduler
    #[arg(long, value_name = "PORT", default_value_t = static_pod::EXTENDER_PORT)]
    extender_port: u16,
    /// Time limit for the workloads to get ready, in seconds; 0 does not wait
    #[arg(long, value_name = "SECONDS", default_value_t = 300)]
    timeout: u64,
    #[command(flatten)]
    cluster: ClusterArgs,
}

/// Options of both commands: the cluster's facts and the output.
#[derive(Debug, clap::Args)]
pub struct ClusterArgs {
    /// The folder of static pods, where the cluster's own scheduler is patched
    #[arg(long, value_name = "FOLDER", default_value = MANIFESTS)]
    manifests_dir: PathBuf,
    /// Time limit for the cluster's own scheduler to be healthy again, in seconds. After it, the
    /// scheduler is restored as it was before the patch
    #[arg(long, value_name = "SECONDS", default_value_t = SCHEDULER_LIMIT)]
    scheduler_timeout: u64,
    /// Output format
    #[arg(short, long, value_enum, default_value_t)]
    output: Format,
    /// The kubeconfig file; otherwise KUBECONFIG or ~/.kube/config, as kubectl does
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
}

/// Default folder of kubeadm for kubelet's static pods.
const MANIFESTS: &str = "/etc/kubernetes/manifests";

/// Kubelet looks at its folder every 20 seconds, and begins to ask after 10.
const SCHEDULER_LIMIT: u64 = 60;

/// Installs, or looks whether it can be.
///
/// # Errors
/// The cluster cannot be asked, or refuses something.
pub async fn run(args: &Args) -> anyhow::Result<Answer> {
    let mut choices = Choices {
        image: args.image.clone(),
        kube_scheduler_image: args.kube_scheduler_image.clone(),
        default_scheduler: args.patch_default_scheduler.then_some(args.extender_port),
    };
    if args.dry_run == Some(DryRun::Client) {
        return print::manifests(&manifests::objects(&choices));
    }
    let client = connected(
        args.cluster.kubeconfig.as_deref(),
        Some("install --dry-run client"),
    )
    .await?;
    let place = Place::new(&args.cluster.manifests_dir);
    let patched = args
        .patch_default_scheduler
        .then(|| place.patched(args.extender_port));
    let Read {
        mut facts,
        default_scheduler,
    } = facts::read(&client, &choices).await?;
    // What an earlier installation promised to the cluster's own scheduler is kept.
    choices.default_scheduler = choices.default_scheduler.or(default_scheduler);
    choices.kube_scheduler_image = facts.kube_scheduler_image.clone();
    let mut change = None;
    facts.patch = patched.map(|patched| {
        patched.map(|found| {
            let words = match found.is_none() {
                true => "it asks Sublet already".to_owned(),
                false => format!("{} can be patched", place.manifest().display()),
            };
            change = Some(found);
            words
        })
    });
    let mut report = Report {
        checks: preflight::checks(&facts),
        ..Report::default()
    };
    if args.preflight || worst(&report.checks) == Severity::Error {
        return report.answer(args.cluster.output);
    }
    if args.cluster.output == Format::Table {
        print_notes(&print::warnings(&report.checks));
    }
    let objects = manifests::objects(&choices);
    let dry_run = args.dry_run.is_some();
    report.objects = apply::objects(&client, &objects, dry_run, &mut progress).await?;
    if dry_run {
        return report.answer(args.cluster.output);
    }
    let limit = Duration::from_secs(args.timeout);
    report.unready = apply::until_ready(&client, &objects, limit, &mut progress).await?;
    if let Some(change) = change.filter(|change| !change.is_none()) {
        let note = match report.unready.is_empty() {
            true => {
                let limit = Duration::from_secs(args.cluster.scheduler_timeout);
                patch(&client, &place, &change, limit).await?;
                patched_note(&place)
            }
            false => UNPATCHED_NOTE.to_owned(),
        };
        report.notes.push(note);
    }
    report.answer(args.cluster.output)
}

/// Note where the scheduler was left alone.
const UNPATCHED_NOTE: &str =
    "the cluster's own scheduler is as it was: it would ask an extender that is not ready";

/// Note after the scheduler was changed.
fn patched_note(place: &Place) -> String {
    format!(
        "the cluster's own scheduler asks Sublet about GPU pods; what its manifest was is in {}",
        place.backup().display()
    )
}

/// Changes the manifest, and restores the earlier one if the scheduler does not come up.
async fn patch(
    client: &Client,
    place: &Place,
    change: &Change,
    limit: Duration,
) -> anyhow::Result<()> {
    progress(&format!(
        "{}: changed; waiting for the scheduler",
        place.manifest().display()
    ));
    place.make(change)?;
    let Err(lacking) = apply::until_scheduler_back(client, change.mark.as_deref(), limit).await
    else {
        return Ok(());
    };
    progress("it does not come up; putting its manifest back");
    let undone = change.undone();
    place.make(&undone)?;
    let after = match apply::until_scheduler_back(client, undone.mark.as_deref(), limit).await {
        Ok(()) => "its manifest is as it was, and it runs again".to_owned(),
        Err(still) => format!("its manifest is as it was, but it does not run: {still}"),
    };
    Err(Advised::new(
        format!("the cluster's own scheduler did not come up within {limit:?}: {lacking}; {after}"),
        "kubectl logs -n kube-system -l component=kube-scheduler, and kubelet's log, say more",
    )
    .into())
}

fn worst(checks: &[Check]) -> Severity {
    let severities = checks.iter().map(|check| check.severity);
    severities.max().unwrap_or(Severity::Ok)
}

fn progress(line: &str) {
    print_notes(&[line.to_owned()]);
}
