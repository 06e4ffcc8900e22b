//! A node's devices: the annotation that its agent writes, and the file that people write.

use sublet_api::{inventory_file, report_from_json, report_to_json};
use sublet_model::NodeName;

use crate::{Target, text};

pub(super) const TARGET: Target = Target {
    name: "inventory",
    run,
};

fn run(bytes: &[u8]) {
    let Some(text) = text(bytes) else { return };
    if let Ok(report) = report_from_json(text) {
        assert_eq!(report_from_json(&report_to_json(&report)).unwrap(), report);
    }
    let node = NodeName::new("node").unwrap();
    let _ = inventory_file::parse(text, &node);
}
