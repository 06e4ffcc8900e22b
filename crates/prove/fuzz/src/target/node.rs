//! Nodes, as their annotations, labels and amounts have them: by our agent, and by every device
//! plugin that speaks a dialect. The form is that of [`crate::object`].

use sublet_api::{
    NodeDefaults, facts_of, facts_with_stock, facts_without_gpu, measured_use, node_amounts, stock,
};
use sublet_model::Unit;

use crate::{Target, object, text};

pub(super) const TARGET: Target = Target { name: "node", run };

fn run(bytes: &[u8]) {
    let Some(text) = text(bytes) else { return };
    let node = object::node(text);
    for unit in [Unit::MiB, Unit::GiB] {
        let defaults = NodeDefaults { unit };
        let with = facts_with_stock(&node, defaults);
        if let Ok(Some(facts)) = facts_of(&node, defaults) {
            assert_eq!(facts.name.as_str(), node.metadata.name);
            assert!(with.is_err() || with.is_ok_and(|with| with.inventory == facts.inventory));
        }
        let _ = facts_without_gpu(&node, defaults);
    }
    let _ = (measured_use(&node), node_amounts(&node));
    let _ = stock::node_rules(&node);
}
