//! `gpu-clustering`: puts pods of one class together; among equal nodes the fullest is best. Whole
//! numbers as in [`best_fit`](super::best_fit).

use std::sync::Arc;

use sublet_model::{Ask, Book, Ledger, MiB};

use super::best_fit::{MAX_GPU, fullest};
use super::{Asked, Cost, Kind, Prepared, Score, Site, Then};

pub(super) const GPU_CLUSTERING: Kind = Kind {
    name: "gpu-clustering",
    make: || Box::new(GpuClustering),
};

#[derive(Debug, Clone)]
struct GpuClustering;

/// The number of pods of each class that a node has. The classes are: parts of a card, and 1, 2, 4
/// or 8 and more cards.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Classes([u32; 5]);

impl Score for GpuClustering {
    fn card(&self, site: &Site<'_>, _: &Asked<'_>, position: usize, _: MiB) -> Cost {
        fullest(site, position)
    }

    fn node(&self, site: &Site<'_>, asked: &Asked<'_>, _: usize, _: Then<'_>) -> Cost {
        let (Some(class), Some(Classes(pods))) = (class_of(asked.ask), site.prepared()) else {
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

    fn prepare(&self, ledger: &Ledger, book: &Book) -> Prepared {
        let mut classes = Classes::default();
        for entry in book.pods().filter_map(|uid| ledger.entry(uid)) {
            if let Some(class) = class_of(entry.claim.ask()) {
                classes.0[class] += 1;
            }
        }
        Some(Arc::new(classes))
    }

    fn sees_host(&self) -> bool {
        true
    }

    fn boxed(&self) -> Box<dyn Score> {
        Box::new(self.clone())
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

#[cfg(test)]
mod tests {
    use crate::script::check;

    #[test]
    fn gpu_clustering_puts_like_to_like() {
        check(
            "options policy=gpu-clustering
         a: 0/1000 0/1000
         b: 1000/1000w 0/1000
         c: 500/1000 0/1000
         d: 1000/1000w 500/1000
         filter p 100 everywhere
         -> c d a b
         filter q 1x everywhere
         -> b a c",
        );
    }
}
