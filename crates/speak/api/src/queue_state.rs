//! The queue's look at a cluster: its objects become quotas and groups. The controller and the
//! commands that show a queue look in the same way.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use sublet_plan::Engine;
use sublet_queue::{GroupId, MinScaling, QueueDecision};

use crate::group::{Gathered, QueueSources, QueuedGroup, ShapeMemo, WholeSnapshot, queued_groups};
use crate::quota_totals::{QuotaDemand, QuotaFigures, QuotaTotals, largest_card, quota_figures};

/// Quotas and groups of a cluster.
#[derive(Debug)]
pub struct QueueState {
    /// The quotas, and the totals that are divided among them.
    pub quotas: QuotaTotals,
    /// The groups, and the objects that cannot be read.
    pub gathered: Gathered,
}

impl QueueState {
    /// Looks at these objects. `engine`: the cards of all nodes. `ran`: did the group of that name
    /// run as a whole?
    pub fn of(
        sources: QueueSources<'_>,
        engine: &Engine,
        memo: &mut ShapeMemo,
        ran: impl FnMut(&str, WholeSnapshot) -> bool,
    ) -> QueueState {
        let quotas = QuotaTotals::of(&sources, engine);
        let card = largest_card(engine);
        let gathered = queued_groups(sources, (&quotas.index, card), memo, ran);
        QueueState { quotas, gathered }
    }

    /// Usage, request and entitlement of each quota, as the engine divides. A group that cannot
    /// start as things are has no part in it.
    #[must_use]
    pub fn figures(&self, decisions: &[QueueDecision]) -> BTreeMap<Arc<str>, QuotaFigures> {
        let idle = decisions.iter().filter_map(|decision| match decision {
            QueueDecision::Explain { group, reason, .. } if !reason.has_part() => Some(group),
            _ => None,
        });
        let idle: BTreeSet<&GroupId> = idle.collect();
        let counts = |queued: &QueuedGroup| !idle.contains(&queued.group.id);
        let demand = QuotaDemand::of_groups(&self.gathered.groups, counts);
        let QuotaTotals { tree, totals, .. } = &self.quotas;
        quota_figures(tree, totals, &demand, MinScaling::On)
    }
}
