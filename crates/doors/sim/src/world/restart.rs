//! The scheduler starts again in the middle of a run: a new engine that is told the API server's
//! knowledge, nodes and placed pods, and nothing else.

use sublet_model::{Entry, Standing};
use sublet_plan::{Engine, EngineOptions};

use super::World;

impl World {
    /// Forgets all that it learnt and kept, and learns it again from the pods that are placed.
    pub(crate) fn restart(&mut self) {
        self.rebuild(self.engine.options().clone());
    }

    /// From now on every cost is worked out for every pod.
    pub(crate) fn keep_nothing(&mut self) {
        self.rebuild(EngineOptions {
            cache_costs: false,
            ..self.engine.options().clone()
        });
    }

    fn rebuild(&mut self, options: EngineOptions) {
        let before = std::mem::replace(&mut self.engine, Engine::new(options));
        self.engine.foretell(&self.foretold);
        for &node in &self.nodes {
            let facts = before.ledger().book(node).facts();
            let entered = self.engine.set_node(facts.expect("it was entered").clone());
            debug_assert_eq!(entered, node, "slots are given in order");
        }
        // In the order of their names: the API server tells nothing of when they came.
        for entry in before.ledger().entries() {
            self.engine.learn(&entry.claim);
            self.engine.observe(Entry {
                standing: Standing::Bound,
                ..entry.clone()
            });
        }
    }
}
