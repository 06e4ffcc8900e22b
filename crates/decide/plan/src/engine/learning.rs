//! The part of the engine that learns: pods that come and go change the tables of policies.

use sublet_model::Claim;

use super::Engine;
use crate::learn::{PodShape, ShapeCounts};

impl Engine {
    /// A pod with this claim has come: policies that learn count it.
    pub fn learn(&mut self, claim: &Claim) {
        if self.options.policy.learns() {
            self.learnt.came(PodShape::of(claim));
            self.catch_up();
        }
    }

    /// A pod that was learnt is gone for good: policies that learn no longer count it.
    pub fn unlearn(&mut self, claim: &Claim) {
        if self.options.policy.learns() {
            self.learnt.went(&PodShape::of(claim));
            self.catch_up();
        }
    }

    /// Computes the tables again from all that is known, once the lists of a start are complete.
    /// While they come, tables depend on which list is faster. Without pods nothing is done: the
    /// first one to come makes the tables.
    pub fn relearn(&mut self) {
        if self.learnt.pods() > 0 {
            self.learnt.node_changed();
            self.catch_up();
        }
    }

    /// Lets policies compute their tables again if that is due.
    pub(super) fn catch_up(&mut self) {
        if let Some(known) = self.learnt.due(&self.ledger) {
            self.scores.rework(&known);
        }
    }

    /// Number of pods that the policies count: pods that came and are not gone.
    #[must_use]
    pub fn learnt_pods(&self) -> u64 {
        self.learnt.pods()
    }

    /// Tells the policy `fgd` the demand in advance. Its paper takes the typical pods from the
    /// whole list of pods, before the first one has come.
    pub fn foretell(&mut self, demand: &ShapeCounts) {
        self.scores.foretell(demand);
    }
}
