//! `sublet quota`: shows the entitlement of quotas.
//!
//! `plan` reads files and nothing else: `report` enters them into trees, `sublet-queue` decides, and
//! `print` shows the result.

mod print;
pub(crate) mod report;
#[cfg(test)]
pub(crate) mod tests;

use std::path::PathBuf;

use clap::Subcommand;

use crate::answer::{Answer, Format};
use crate::plan::Input;

/// Commands for quotas.
#[derive(Debug, Subcommand)]
pub enum QuotaCommand {
    /// Show the entitlement of each quota: the queue's own rule on files, without a cluster
    Plan(QuotaPlanArgs),
}

/// Arguments of `sublet quota plan`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
EXAMPLES
  sublet quota plan -f tree.yaml
  kubectl get elasticquotas,nodes,pods -A -o yaml | sublet quota plan -f - -o json

Input are Kubernetes objects as kubectl prints them, YAML or JSON: ElasticQuotas of
Koordinator (scheduling.sigs.k8s.io) and of scheduler-plugins (scheduling.x-k8s.io), nodes
and pods.
- There is what the nodes have. A quota's annotation total-resource says it for its tree.
- Pods ask, and those with a node also use: for the quota of their label, for the one called
  like their namespace, or for one that lists their namespace. If there is no pod at all, the
  quotas' annotations request and their status say both.

ENTITLEMENT is what a quota may use now: its min, and its part of what others leave. Amounts
in JSON and YAML are whole numbers: CPU in thousandths of a core, all else in its base unit.

EXIT CODES
  0  done
  1  an object cannot be read, or one of several trees is none
  2  bad arguments, a file that cannot be read, no quota, or nothing says what there is")]
pub struct QuotaPlanArgs {
    /// File with Kubernetes objects; - is standard input. Can be given several times
    #[arg(short, long = "filename", value_name = "FILE", required = true)]
    file: Vec<PathBuf>,
    /// Output format
    #[arg(short, long, value_enum, default_value_t)]
    output: Format,
    /// Keep minima unchanged even if their sum is larger than the total
    ///
    /// As Koordinator does without EnableMinQuotaScale. The promises are larger than the total
    /// then.
    #[arg(long)]
    keep_minima: bool,
}

/// Answers `sublet quota …`.
///
/// # Errors
/// None that files can cause: their faults are in the answer.
pub fn run(action: &QuotaCommand) -> anyhow::Result<Answer> {
    let QuotaCommand::Plan(args) = action;
    answer(Input::of_files(&args.file), args.keep_minima, args.output)
}

fn answer(input: Input, keep_minima: bool, format: Format) -> anyhow::Result<Answer> {
    print::answer(&report::enter(input, keep_minima), format)
}
