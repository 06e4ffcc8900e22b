//! Plans of the queue, which extenders obey: every holder of the controller's token may write any.

use serde_json::json;
use sublet_api::gang_plan::{GangPlan, GangPlanObject};
use sublet_model::Unit;

use crate::{Target, text};

pub(super) const TARGET: Target = Target {
    name: "gang_plan",
    run,
};

fn run(bytes: &[u8]) {
    let read = text(bytes).map(serde_json::from_str::<GangPlanObject>);
    let Some(Ok(plan)) = read.map(|read| read.map(|object| GangPlan::of(&object))) else {
        return;
    };
    let Ok(plan) = plan else { return };
    let _ = plan.entries(|role| role.claim(Unit::MiB));
    let mut written = plan.to_object();
    written["status"] = plan.status_to_object()["status"].clone();
    // The API server keeps these.
    written["metadata"] = json!({ "name": *plan.name, "resourceVersion": *plan.version });
    let object: GangPlanObject = serde_json::from_value(written).unwrap();
    assert_eq!(GangPlan::of(&object).unwrap(), plan);
}
