//! Figure: the same pods on the node shapes of another cluster. No policy was tuned on it.

use anyhow::{Context, Result};
use sublet_plan::Policy;
use sublet_sim::{Inflation, Outcome, Sequence, Variant, inflate};

use super::bank::{PERCENTS, paired, side_by_side};
use super::quality::{OURS, PEER, cells, deviating, dropped, head};
use super::setting::Setting;
use super::traces::{Traces, spot_nodes};
use crate::report::Report;

const POLICIES: [&str; 5] = ["best-fit", PEER, "binpack", "tiling-still", OURS];

pub(super) fn measure(
    setting: &Setting,
    traces: &Traces,
    seeds: &[u64],
    report: &mut Report,
) -> Result<()> {
    let nodes = spot_nodes(&setting.repository)?;
    let pods = traces.lists.get("default").context("no default list")?;
    let tasks: Vec<(&str, u64)> = POLICIES
        .iter()
        .flat_map(|policy| seeds.iter().map(|seed| (*policy, *seed)))
        .collect();
    let outcomes = side_by_side("spot-2026", &tasks, |(policy, seed)| {
        let policy: Policy = policy.parse()?;
        let sequence = Sequence::draw(*seed, &nodes, pods, 1300);
        let run = Inflation {
            nodes: &nodes,
            pods,
            sequence: &sequence,
            policy: &policy,
            variant: Variant::default(),
        };
        Ok(Outcome {
            placements: Vec::new(),
            ..inflate(run, |_| {})
        })
    })?;
    let gpus: usize = nodes
        .rows
        .iter()
        .map(|row| row.inventory.gpus().len())
        .sum();
    report.say("## Node shapes of spot-2026");
    report.say(&format!(
        "{} nodes with {gpus} GPUs, the shapes of Alibaba's spot cluster of 2026, of which most \
         have one GPU and the others nearly all eight. Its list gives no memory: 8 GiB for each \
         core is assumed, so that memory rarely is what lacks. Pods of openb's default list, \
         {} orders of arrival of our own. Unallocated GPU share in percent, mean ± standard \
         deviation.",
        nodes.rows.len(),
        seeds.len()
    ));
    let of = |policy: &str| -> Vec<&Outcome> {
        let pairs = tasks.iter().zip(&outcomes);
        let mine = pairs.filter(|((of, _), _)| *of == policy);
        mine.map(|(_, outcome)| outcome).collect()
    };
    print(&of, report);
    Ok(())
}

fn print<'a>(of: &dyn Fn(&str) -> Vec<&'a Outcome>, report: &mut Report) {
    let mut first = head("policy");
    let drops = ["parts", "× 1", "× 2", "× 4", "× 8", "no GPU"];
    first.extend(drops.map(|name| format!("dropped {name}")));
    let mut rows = vec![first];
    for policy in POLICIES {
        let mut row = vec![policy.to_owned()];
        row.extend(cells(&of(policy)));
        row.extend(dropped(&of(policy)));
        rows.push(row);
    }
    let mut difference = vec![format!("`{OURS}` minus `{PEER}`")];
    for percent in PERCENTS {
        let paired = paired(&of(OURS), &of(PEER), percent);
        difference.push(deviating(&paired, true));
    }
    difference.extend(drops.map(|_| "-".to_owned()));
    rows.push(difference);
    report.table(&rows);
}
