//! `best-fit`: best fit in two dimensions: the less CPU and GPU is left, the better. The heuristics
//! that FGD was compared with (Weng et al., USENIX ATC 2023, §6.1) are taken from their published
//! simulator. Its scores are whole numbers from 0 to 100, and these coarse steps and their ties
//! are part of the policy. A cost is the negative of the score.

use sublet_model::MiB;

use super::{Asked, Cost, Kind, Score, Site, Then, signed};

/// The size of the largest node of their cluster, which scales the scores: 128 cores, 8 GPUs.
pub(super) const MAX_CPU: f64 = 128_000.0;
pub(super) const MAX_GPU: i64 = 8_000;

pub(super) const BEST_FIT: Kind = Kind {
    name: "best-fit",
    make: || Box::new(BestFit),
};

#[derive(Debug, Clone)]
struct BestFit;

impl Score for BestFit {
    fn card(&self, site: &Site<'_>, _: &Asked<'_>, position: usize, _: MiB) -> Cost {
        fullest(site, position)
    }

    fn node(&self, site: &Site<'_>, asked: &Asked<'_>, position: usize, _: Then<'_>) -> Cost {
        let cpu_left = (site.cpu_left() - signed(asked.host.cpu.get())).max(0);
        let gpu_left = (site.gpu_left() - site.gpu_taken(asked, position)).max(0);
        let left = cpu_left as f64 / MAX_CPU * 0.5 + gpu_left as f64 / MAX_GPU as f64 * 0.5;
        -(((1.0 - left) * 100.0) as Cost)
    }

    fn sees_host(&self) -> bool {
        true
    }

    fn boxed(&self) -> Box<dyn Score> {
        Box::new(self.clone())
    }

    fn is_relative(&self) -> bool {
        true
    }
}

/// A cost by which the card with the least free share wins, as in all these heuristics.
pub(super) fn fullest(site: &Site<'_>, position: usize) -> Cost {
    i64::from(site.book.shares()[position].get())
}

#[cfg(test)]
mod tests {
    use crate::script::check;

    /// The nodes have cards of 1000 MiB, so that a MiB is a thousandth. No pod asks for CPU.
    #[test]
    fn best_fit_leaves_least() {
        // Left of 8000 afterwards: 1900 on a, 900 on b. c has no room. The score falls with half of
        // it.
        check(
            "options policy=best-fit
         a: 0/1000 0/1000
         b: 600/1000 300/1000
         c: 950/1000 950/1000
         filter p 100 everywhere
         -> b a
         reserve p b 100
         -> b/0",
        );
    }
}
