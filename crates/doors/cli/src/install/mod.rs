//! `sublet install` and `sublet uninstall`: put Sublet onto a cluster that kubeadm made, and remove
//! it. Helm does it, by the chart that this executable carries; here is what Helm cannot do.
//!
//! Read `manifests` (the chart, and its rendering), `values` (what our options mean to it),
//! `preflight` (the checks before), `static_pod` (the change of the cluster's own scheduler),
//! `readiness`; these are pure. `helm` runs it; `facts`, `wait` and `host` read and write the
//! cluster and the node's files; `uninstall` is the way back. `options` are those of both commands.

mod facts;
mod helm;
mod host;
mod manifests;
mod options;
mod preflight;
pub(crate) mod print;
mod readiness;
mod static_pod;
mod uninstall;
mod values;
mod wait;

use std::time::Duration;

use clap::ValueEnum;
use sublet_client::Client;

use self::host::{Change, Place};
use self::manifests::NAMESPACE;
use self::options::ClusterArgs;
use self::preflight::{Severity, worst};
use self::print::{Report, progress};
use self::values::{Choices, Image};
use crate::answer::{Advised, Answer, Format, connected, print_notes};
use crate::paste;

pub use self::uninstall::{Args as UninstallArgs, run as uninstall};

/// Kind of a dry run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum DryRun {
    /// Have helm print the manifests with these options, and ask no cluster.
    Client,
    /// Have helm compare with the cluster, and print the manifests that it would apply.
    Server,
}

/// Arguments of `sublet install`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
EXAMPLES
  sublet install --preflight                       what is in the way?
  sublet install --image REGISTRY/sublet:0.1.0     on a kubeadm cluster
  sublet install --set queue.enabled=true          the same with another value
  sublet install --manifests | kubectl apply -f -  where there is no helm
  sudo sublet install --image REGISTRY/sublet:0.1.0 --patch-default-scheduler \\
      --kubeconfig /etc/kubernetes/admin.conf      on the control plane's node

It runs `helm upgrade --install` with the chart inside this file. The release is `sublet` in
`sublet-system`. A second time changes nothing, or what differs, and keeps the values that were
given before. `sublet uninstall` is the way back.

EXIT CODES
  0  installed, or nothing is in the way
  1  something is in the way, or helm has failed; what it was is said
  2  wrong arguments")]
pub struct Args {
    /// Only look whether anything is in the way
    #[arg(long)]
    preflight: bool,
    /// Print the chart with its default values, for `kubectl apply`; it asks neither helm nor a
    /// cluster
    #[arg(long, conflicts_with_all = ["preflight", "dry_run"])]
    manifests: bool,
    /// Change nothing
    #[arg(long, value_enum, conflicts_with = "preflight")]
    dry_run: Option<DryRun>,
    /// Sublet's image, in a registry that the nodes can reach
    #[arg(long, value_name = "IMAGE")]
    image: Option<Image>,
    /// The stock kube-scheduler's; otherwise that of the cluster's own scheduler
    #[arg(long, value_name = "IMAGE")]
    kube_scheduler_image: Option<Image>,
    /// A value of the chart, as helm takes it; can be given several times
    #[arg(long, value_name = "NAME=VALUE")]
    set: Vec<String>,
    /// A file of the chart's values, as helm takes it; can be given several times
    #[arg(short = 'f', long, value_name = "FILE")]
    values: Vec<String>,
    /// Have the cluster's own scheduler ask Sublet about GPU pods, so that they need no
    /// schedulerName; run it as root on the control plane's node
    #[arg(long, conflicts_with = "dry_run")]
    patch_default_scheduler: bool,
    /// The extender's port on the node's loopback, with --patch-default-scheduler
    #[arg(long, value_name = "PORT", default_value_t = static_pod::EXTENDER_PORT,
          requires = "patch_default_scheduler")]
    extender_port: u16,
    /// Time limit for the workloads to get ready, in seconds; 0 does not wait
    #[arg(long, value_name = "SECONDS", default_value_t = 300)]
    timeout: u64,
    #[command(flatten)]
    cluster: ClusterArgs,
}

impl Args {
    fn choices(&self) -> Choices {
        Choices {
            image: self.image.clone(),
            kube_scheduler_image: self.kube_scheduler_image.clone(),
            default_scheduler: self.patch_default_scheduler.then_some(self.extender_port),
            files: self.values.clone(),
            set: self.set.clone(),
        }
    }

    /// Answer that needs no cluster, if that is asked for.
    fn printed(&self, choices: &Choices) -> anyhow::Result<Option<Answer>> {
        let text = if self.manifests {
            if *choices != Choices::default() {
                return Err(Advised::new(
                    "--manifests prints the default values, and only helm can put in others",
                    format!(
                        "`{} install --dry-run client` has helm do that",
                        paste::program()
                    ),
                )
                .of_input()
                .into());
            }
            manifests::rendered()
        } else if self.dry_run == Some(DryRun::Client) {
            let rendered = helm::with_chart(None, &["template"], choices)?;
            format!("---\n{}{rendered}", manifests::NAMESPACE_MANIFEST)
        } else {
            return Ok(None);
        };
        Ok(Some(Answer {
            text,
            ..Answer::default()
        }))
    }

    /// Has helm install or upgrade the release, whoever has made or changed an object before.
    /// Returns what it printed.
    fn upgrade(&self, choices: &Choices) -> anyhow::Result<String> {
        let limit = format!("{}s", self.timeout);
        let mut words = vec![
            "upgrade",
            "--install",
            "--create-namespace",
            "--reset-then-reuse-values",
            "--take-ownership",
            "--server-side=true",
            "--force-conflicts",
        ];
        if self.dry_run.is_some() {
            words.push("--dry-run=server");
        } else if self.timeout > 0 {
            words.extend(["--wait", "--timeout", &limit]);
        }
        helm::with_chart(self.cluster.kubeconfig.as_deref(), &words, choices)
    }
}

/// Installs, or looks whether it can be.
///
/// # Errors
/// The cluster cannot be asked, or helm or the API server refuses something.
pub async fn run(args: &Args) -> anyhow::Result<Answer> {
    let mut choices = args.choices();
    if let Some(answer) = args.printed(&choices)? {
        return Ok(answer);
    }
    let client = connected(
        args.cluster.kubeconfig.as_deref(),
        Some("install --manifests"),
    )
    .await?;
    let place = Place::new(&args.cluster.manifests_dir);
    let patched = args
        .patch_default_scheduler
        .then(|| place.patched(args.extender_port));
    let mut facts = facts::read(&client, &choices).await?;
    let image = facts.kube_scheduler_image.as_deref();
    choices.kube_scheduler_image = image.and_then(|name| name.parse().ok());
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
    let change = change.filter(|change| !change.is_none());
    progress("helm applies the chart, and waits until all is ready");
    let done = args.upgrade(&choices);
    if done.is_err() {
        print_notes(&after_failure(&client, change.is_some()).await);
    }
    report.helm = done?;
    if let Some(change) = change {
        let limit = Duration::from_secs(args.cluster.scheduler_timeout);
        patch(&client, &place, &change, limit).await?;
        report.notes.push(patched_note(&place));
    }
    report.answer(args.cluster.output)
}

/// Reasons why pods do not get ready, which helm does not say; and that the scheduler, if it was to
/// be changed, was left alone.
async fn after_failure(client: &Client, was_to_patch: bool) -> Vec<String> {
    let pods = wait::pods(client, NAMESPACE, "app.kubernetes.io/name=sublet").await;
    let mut notes = readiness::complaints(&pods.unwrap_or_default());
    if was_to_patch {
        notes.push("the cluster's own scheduler is as it was".to_owned());
    }
    notes
}

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
    let Err(lacking) = wait::until_scheduler_back(client, change.mark.as_deref(), limit).await
    else {
        return Ok(());
    };
    progress("it does not come up; putting its manifest back");
    let undone = change.undone();
    place.make(&undone)?;
    let after = match wait::until_scheduler_back(client, undone.mark.as_deref(), limit).await {
        Ok(()) => "its manifest is as it was, and it runs again".to_owned(),
        Err(still) => format!("its manifest is as it was, but it does not run: {still}"),
    };
    Err(Advised::new(
        format!("the cluster's own scheduler did not come up within {limit:?}: {lacking}; {after}"),
        "kubectl logs -n kube-system -l component=kube-scheduler, and kubelet's log, say more",
    )
    .into())
}
