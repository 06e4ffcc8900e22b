//! The heuristics that FGD was measured against (Weng et al., USENIX ATC 2023, §6.1), as
//! their published simulator computes them: with whole numbers from 0 to 100, whose coarse
//! steps and ties are part of the policy. Costs are those scores below zero.

use sublet_model::{Ask, Book, Ledger, NodeName, PodUid};

use super::{Asked, Cost, Prepared, Site};
use crate::scatter::scatter;

/// The largest node of their cluster, by which scores are normalised: 128 cores, 8 GPUs.
const MAX_CPU: f64 = 128_000.0;
const MAX_GPU: i64 = 8_000;

/// Best fit in two dimensions: the less CPU and GPU is left, the better.
pub(super) fn best_fit(site: &Site<'_>, asked: &Asked<'_>, position: usize) -> Cost {
    let cpu_left = (site.cpu_left() - super::signed(asked.host.cpu.get())).max(0);
    let gpu_left = (site.gpu_left() - site.gpu_taken(asked, position)).max(0);
    let left = cpu_left as f64 / MAX_CPU * 0.5 + gpu_left as f64 / MAX_GPU as f64 * 0.5;
    -(((1.0 - left) * 100.0) as Cost)
}

/// The vector heuristic of Tetris (Grandl et al., SIGCOMM 2014) with its sign turned, as the
/// FGD paper uses it: the smaller the product of what is left and what is asked, the better.
pub(super) fn dot_product(site: &Site<'_>, asked: &Asked<'_>, position: usize) -> Cost {
    let gpu = |share: i64| share as f64 / MAX_GPU as f64;
    let cpu_product = site.cpu_left() as f64 / MAX_CPU * (asked.host.cpu.get() as f64 / MAX_CPU);
    let gpu_product = gpu(site.gpu_left()) * gpu(site.gpu_taken(asked, position));
    let product = (cpu_product + gpu_product) / 2.0;
    -((100.0 * (1.0 - product)) as Cost)
}

/// Shared cards first, then idle cards of used nodes, idle nodes last.
pub(super) fn gpu_packing(site: &Site<'_>, asked: &Asked<'_>, position: usize) -> Cost {
    let shares = site.book.shares();
    let idle = shares.iter().filter(|share| share.get() == 1000).count() as Cost;
    let (from_idle, on_shared) = match asked.ask {
        Ask::Nothing => return 0,
        Ask::WholeCards(count) => (Cost::from(count.get()), 0),
        Ask::Parts(_) => match shares.get(position).map_or(0, |share| share.get()) {
            1000 => (1, 0),
            left => (0, Cost::from(left) * 100 / 1000),
        },
    };
    let score = if idle == shares.len() as Cost {
        (33 - idle).max(idle)
    } else if from_idle > 0 {
        (50 - from_idle).max(33)
    } else {
        (100 - on_shared / 10).max(50)
    };
    -score
}

/// How many pods of each class are on a node: parts of a card, and 1, 2, 4 or 8 and more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Classes([u32; 5]);

impl Classes {
    pub(super) fn of(ledger: &Ledger, book: &Book) -> Classes {
        let mut classes = Classes::default();
        for entry in book.pods().filter_map(|uid| ledger.entry(uid)) {
            if let Some(class) = class_of(entry.claim.ask()) {
                classes.0[class] += 1;
            }
        }
        classes
    }
}

fn class_of(ask: &Ask) -> Option<usize> {
    match ask {
        Ask::Nothing => None,
        Ask::Parts(_) => Some(0),
        Ask::WholeCards(count) => Some(match count.get() {
            0 | 1 => 1,
            2 | 3 => 2,
            4..=7 => 3,
            _ => 4,
        }),
    }
}

/// Pods of one class together, on the fullest node of those that are alike.
pub(super) fn gpu_clustering(site: &Site<'_>, asked: &Asked<'_>) -> Cost {
    let (Some(class), Prepared::Classes(Classes(pods))) = (class_of(asked.ask), site.prepared)
    else {
        return 0;
    };
    let kinds = pods.iter().filter(|&&pods| pods > 0).count();
    let company = match (pods[class] > 0, kinds) {
        (true, 1) => 75,
        (true, _) => 50,
        (false, 0) => 25,
        (false, _) => 0,
    };
    -(25 * (MAX_GPU - site.gpu_left()) / MAX_GPU + company)
}

/// A node's cost, drawn from who asks and the node's name.
pub(super) fn draw_node(uid: &PodUid, node: &NodeName) -> Cost {
    let text = uid.as_str().bytes().chain([0]);
    super::signed(scatter(text.chain(node.as_str().bytes()), 0))
}

/// A card's cost among those of its node, drawn from who asks: a pod goes to one node, so that
/// the node's name would add nothing but time.
pub(super) fn draw_card(uid: &PodUid, position: usize) -> Cost {
    super::signed(scatter(uid.as_str().bytes(), position as u64))
}

#[cfg(test)]
mod tests;
