//! What one tick has worked out and the next need not work out again.
//!
//! It decides nothing: with an empty memo a tick comes to the same decisions, later.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::accounts::Dimensions;
use crate::{Group, MemberShape, QuotaTree};

/// Kept by whoever calls [`crate::plan`] again and again.
#[derive(Debug, Default)]
pub struct QueueMemo {
    dimensions: Dimensions,
    /// By the address of a shape, which is kept alive here so that no other gets its address: what
    /// it asks by dimension.
    rows: BTreeMap<usize, (Arc<MemberShape>, Vec<u64>)>,
}

impl QueueMemo {
    /// Learns the shapes of these groups, and forgets shapes that nobody has any more.
    pub(crate) fn learn(&mut self, tree: &QuotaTree, groups: &[Group]) {
        let dimensions = Dimensions::of(tree);
        if dimensions != self.dimensions {
            self.rows.clear();
            self.dimensions = dimensions;
        }
        self.rows
            .retain(|_, (shape, _)| Arc::strong_count(shape) > 1);
        for role in groups.iter().flat_map(Group::roles) {
            self.rows.entry(address(&role.pod)).or_insert_with(|| {
                let row = self.dimensions.row(&role.pod.amounts);
                (role.pod.clone(), row)
            });
        }
    }

    pub(crate) fn dimensions(&self) -> &Dimensions {
        &self.dimensions
    }

    /// What a member of that shape asks by dimension.
    pub(crate) fn row(&self, shape: &Arc<MemberShape>) -> &[u64] {
        let known = self.rows.get(&address(shape));
        known.map_or(&[], |(_, row)| row)
    }
}

fn address(shape: &Arc<MemberShape>) -> usize {
    Arc::as_ptr(shape).addr()
}
