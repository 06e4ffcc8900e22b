//! The smallest possible policy, made by the recipe in CONTRIBUTING.md: this file, and its line in
//! [`ALL`](super::ALL). Every property test of the engine draws its policy from that list, and so
//! also this one. Only tests have it.

use std::sync::Arc;

use sublet_model::{Book, Ledger, MiB};

use super::{Asked, Cost, Kind, Prepared, Score, Site, Then};
use crate::learn::Known;

pub(super) const TOY: Kind = Kind {
    name: "toy",
    make: || Box::new(Toy::default()),
};

/// Nodes with the fewest pods first; with more than 16 pods in the cluster, those with the most.
#[derive(Debug, Clone, Default)]
struct Toy {
    is_full: bool,
}

struct Pods(usize);

impl Score for Toy {
    fn card(&self, site: &Site<'_>, _: &Asked<'_>, position: usize, _: MiB) -> Cost {
        Cost::from(site.book.cards()[position].tenants)
    }

    fn node(&self, site: &Site<'_>, _: &Asked<'_>, _: usize, _: Then<'_>) -> Cost {
        let pods = site.prepared::<Pods>().map_or(0, |pods| pods.0 as Cost);
        if self.is_full { -pods } else { pods }
    }

    fn prepare(&self, _: &Ledger, book: &Book) -> Prepared {
        Some(Arc::new(Pods(book.pods().count())))
    }

    fn learns(&self) -> bool {
        true
    }

    fn rework(&mut self, known: &Known<'_>) -> bool {
        let before = self.is_full;
        self.is_full = known.demand.total() > 16;
        self.is_full != before
    }

    fn sees_host(&self) -> bool {
        true
    }

    fn boxed(&self) -> Box<dyn Score> {
        Box::new(self.clone())
    }
}

#[test]
fn a_policy_is_one_file_and_one_line() {
    use crate::Policy;
    use crate::script::check;

    assert_eq!(Policy::names().last(), Some("toy"));
    let mixed: Policy = "toy=0.5,binpack=0.5".parse().unwrap();
    assert!(mixed.learns());
    check(
        "options policy=toy
         a: 1/16 1/16
         b: 1/16 0/16
         c: 1/16 1/16
         filter p 4 everywhere
         -> b a c
         reserve p b 4
         -> b/1",
    );
}
