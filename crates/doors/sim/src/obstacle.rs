//! Finds the reason why a pod was dropped: the one obstacle that, if it were away, would have let
//! it in.
//!
//! Nodes refuse for many reasons at once, and the reason that the engine names first says little
//! about the cluster. So the question is asked again with one limit lifted after the other. The
//! limit behind the first answer "yes" is the reason. If no limit of the machine or of models
//! changes anything, GPUs are short.

use std::collections::BTreeMap;
use std::sync::Arc;

use sublet_model::{Ask, Claim, Host, Models, StockAsk};
use sublet_plan::Reason;

use crate::snapshot::Reach;
use crate::trace::PodRow;
use crate::world::{World, uid};

/// Dropped pods by reason: the engine's labels of reasons, and `several` where GPUs are free
/// and more than one thing stands in the way.
pub type Reasons = BTreeMap<&'static str, u32>;

/// Takes a limit off a claim.
type Lift = fn(&Claim) -> Claim;

/// The limits that are lifted, in this order, and their labels.
const LIFTED: [(&str, Lift); 4] = [
    ("cpu", without_cpu),
    ("host_memory", without_memory),
    ("model", without_models),
    ("several", without_limits),
];

fn without_cpu(claim: &Claim) -> Claim {
    let memory = claim.host().memory;
    claim.clone().with_host(Host {
        memory,
        ..Host::ZERO
    })
}

fn without_memory(claim: &Claim) -> Claim {
    let cpu = claim.host().cpu;
    claim.clone().with_host(Host { cpu, ..Host::ZERO })
}

fn without_models(claim: &Claim) -> Claim {
    claim.clone().with_models(Models::default())
}

fn without_limits(claim: &Claim) -> Claim {
    without_models(claim).with_host(Host::ZERO)
}

/// All that tells two dropped pods apart.
type Shape = (Ask, Host, Models, Option<Arc<StockAsk>>, Option<Reach>);

/// The results for a shape.
#[derive(Debug, Default)]
struct Known {
    /// For each limit, how many nodes have been passed: none of them takes the shape even with
    /// it lifted.
    passed: [usize; LIFTED.len()],
    /// The shortage of GPUs, once nothing else is short.
    gpus: Option<&'static str>,
}

/// Reasons, and earlier results. Good for a world that no pod leaves: a node that lacks something
/// then lacks it for ever.
#[derive(Debug, Default)]
pub(crate) struct Obstacles {
    known: BTreeMap<Shape, Known>,
}

impl Obstacles {
    /// The reason why that pod, which was just dropped, found no place.
    pub(crate) fn of(&mut self, world: &World, pod: &PodRow) -> &'static str {
        let claim = &pod.claim;
        let models = claim.models().clone();
        let stock = claim.stock().cloned();
        let ask = claim.ask().clone();
        let shape = (ask, claim.host(), models, stock, pod.reach.clone());
        let known = self.known.entry(shape).or_default();
        let (open, uid) = (world.open(pod), uid(usize::MAX));
        for ((label, lift), passed) in LIFTED.iter().zip(&mut known.passed) {
            let claim = lift(claim);
            let lacking = world.engine.first_open(&uid, &claim, &open[*passed..]);
            *passed += lacking.unwrap_or(open.len() - *passed);
            if lacking.is_some() {
                return label;
            }
        }
        known.gpus.get_or_insert_with(|| {
            let claim = without_limits(claim);
            let answers = world.engine.answers(&uid, &claim, &open);
            most_hopeful(answers.filter_map(Result::err))
        })
    }
}

/// The label of most refusals; refusals that would end if other pods went come first.
fn most_hopeful(refusals: impl Iterator<Item = Reason>) -> &'static str {
    let mut counts: BTreeMap<&'static str, (bool, u32)> = BTreeMap::new();
    for reason in refusals {
        let hopeful = !reason.is_final();
        counts.entry(reason.label()).or_insert((hopeful, 0)).1 += 1;
    }
    let best = counts.iter().max_by_key(|(_, of)| **of);
    best.map_or("no_node", |(label, _)| label)
}
