//! `dot-product`: the vector heuristic of Tetris (Grandl et al., SIGCOMM 2014) with the opposite
//! sign, as the FGD paper uses it. The smaller the product of the free amounts and the requests,
//! the better. Whole numbers as in [`best_fit`](super::best_fit).

use sublet_model::MiB;

use super::best_fit::{MAX_CPU, MAX_GPU, fullest};
use super::{Asked, Cost, Kind, Score, Site, Then};

pub(super) const DOT_PRODUCT: Kind = Kind {
    name: "dot-product",
    make: || Box::new(DotProduct),
};

#[derive(Debug, Clone)]
struct DotProduct;

impl Score for DotProduct {
    fn card(&self, site: &Site<'_>, _: &Asked<'_>, position: usize, _: MiB) -> Cost {
        fullest(site, position)
    }

    fn node(&self, site: &Site<'_>, asked: &Asked<'_>, position: usize, _: Then<'_>) -> Cost {
        let gpu = |share: i64| share as f64 / MAX_GPU as f64;
        let cpu_asked = asked.host.cpu.get() as f64 / MAX_CPU;
        let cpu_product = site.cpu_left() as f64 / MAX_CPU * cpu_asked;
        let gpu_product = gpu(site.gpu_left()) * gpu(site.gpu_taken(asked, position));
        let product = (cpu_product + gpu_product) / 2.0;
        -((100.0 * (1.0 - product)) as Cost)
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
    fn dot_product_prefers_what_has_little_left() {
        // 100/8000 times 2000/8000, 1100/8000 and 100/8000: all round to 100, so the names decide.
        check(
            "options policy=dot-product
         a: 0/1000 0/1000
         b: 600/1000 300/1000
         filter p 100 everywhere
         -> a b
         filter q 2x
         -> a",
        );
    }
}
