//! `best-fit`: best fit in two dimensions, the less CPU and GPU is left the better. As the
//! heuristics that FGD was measured against (Weng et al., USENIX ATC 2023, §6.1) are in their
//! published simulator: with whole numbers from 0 to 100, whose coarse steps and ties are part
//! of the policy. Costs are those scores below zero.

use sublet_model::MiB;

use super::{After, Asked, Cost, Kind, Score, Site, signed};

/// The largest node of their cluster, by which scores are normalised: 128 cores, 8 GPUs.
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

    fn node(&self, site: &Site<'_>, asked: &Asked<'_>, position: usize, _: &After) -> Cost {
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

/// The cost of a card where the least free that fits is taken, as all these heuristics do.
pub(super) fn fullest(site: &Site<'_>, position: usize) -> Cost {
    i64::from(site.book.shares()[position].get())
}

#[cfg(test)]
mod tests {
    use crate::script::check;

    /// Nodes have cards of 1000 MiB, so that a MiB is a thousandth; nobody asks CPU.
    #[test]
    fn best_fit_leaves_least() {
        // Left of 8000 afterwards: a 1900, b 900, c does not fit. Halves of that are taken off.
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
