//! Options that `sublet install` and `sublet uninstall` have in common: the cluster's facts and the
//! output.

use std::path::PathBuf;

use crate::answer::Format;

/// Options of both commands.
#[derive(Debug, clap::Args)]
pub(super) struct ClusterArgs {
    /// The folder of static pods, where the cluster's own scheduler is patched
    #[arg(long, value_name = "FOLDER", default_value = MANIFESTS)]
    pub(super) manifests_dir: PathBuf,
    /// Time limit for the cluster's own scheduler to be healthy again, in seconds. After it, the
    /// scheduler is restored as it was before the patch
    #[arg(long, value_name = "SECONDS", default_value_t = SCHEDULER_LIMIT)]
    pub(super) scheduler_timeout: u64,
    /// Output format
    #[arg(short, long, value_enum, default_value_t)]
    pub(super) output: Format,
    /// The kubeconfig file; otherwise KUBECONFIG or ~/.kube/config, as kubectl does
    #[arg(long, value_name = "FILE")]
    pub(super) kubeconfig: Option<PathBuf>,
}

/// Default folder of kubeadm for kubelet's static pods.
const MANIFESTS: &str = "/etc/kubernetes/manifests";

/// Kubelet looks at its folder every 20 seconds, and begins to ask after 10.
const SCHEDULER_LIMIT: u64 = 60;
