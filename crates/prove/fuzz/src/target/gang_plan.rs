//! Plans of the queue, which extenders obey: every holder of the controller's token may write any.

use serde_json::json;
use sublet_api::gang_plan::{GangPlanObject, plan_to_object, slot_entries};
use sublet_model::Unit;

use crate::{Target, text};

pub(super) const TARGET: Target = Target {
    name: "gang_plan",
    run,
};

fn run(bytes: &[u8]) {
    let read = text(bytes).map(serde_json::from_str::<GangPlanObject>);
    let Some(Ok(plan)) = read.map(|read| read.map(|object| object.read())) else {
        return;
    };
    let Ok(plan) = plan else { return };
    let _ = slot_entries(&plan, |role| role.claim(Unit::MiB));
    let mut written = plan_to_object(&plan);
    // The API server keeps these.
    written["metadata"] = json!({ "name": *plan.name, "resourceVersion": *plan.version });
    let object: GangPlanObject = serde_json::from_value(written).unwrap();
    assert_eq!(object.read().unwrap(), plan);
}
