//! `gpu-packing`: prefers shared cards, then idle cards of used nodes, then idle nodes. Whole
//! numbers as in [`best_fit`](super::best_fit).

use sublet_model::{Ask, MiB};

use super::best_fit::fullest;
use super::{Asked, Cost, Kind, Score, Site, Then};

pub(super) const GPU_PACKING: Kind = Kind {
    name: "gpu-packing",
    make: || Box::new(GpuPacking),
};

#[derive(Debug, Clone)]
struct GpuPacking;

impl Score for GpuPacking {
    fn card(&self, site: &Site<'_>, _: &Asked<'_>, position: usize, _: MiB) -> Cost {
        fullest(site, position)
    }

    fn node(&self, site: &Site<'_>, asked: &Asked<'_>, position: usize, _: Then<'_>) -> Cost {
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

    fn sees_host(&self) -> bool {
        true
    }

    fn boxed(&self) -> Box<dyn Score> {
        Box::new(self.clone())
    }
}

#[cfg(test)]
mod tests {
    use crate::script::check;

    #[test]
    fn gpu_packing_keeps_idle_cards_and_nodes() {
        check(
            "options policy=gpu-packing
         a: 0/1000 0/1000
         b: 0/1000 300/1000
         c: 500/1000 700/1000
         d: 900/1000 0/1000
         filter p 100 everywhere
         -> d c b a
         filter q 950 everywhere
         -> b d a
         filter r 1x everywhere
         -> b d a",
        );
    }
}
