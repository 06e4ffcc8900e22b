//! The API server's questions to the webhooks about an object; any pod of the cluster can reach
//! their port.

use sublet_api::object::Pod;
use sublet_api::{ElasticQuota, SharePod};
use sublet_controller::Review;

use crate::Target;
use crate::target::pod;

pub(super) const TARGET: Target = Target {
    name: "admission_review",
    run,
};

fn run(bytes: &[u8]) {
    let Ok(review) = Review::read(bytes) else {
        return;
    };
    let objects = [review.object().ok(), review.deleted()];
    for object in objects.into_iter().flatten() {
        if let Ok(asked) = serde_json::from_str::<Pod>(object) {
            pod::read(&asked);
        }
        let _ = serde_json::from_str::<SharePod>(object);
        if let Ok(quota) = serde_json::from_str::<ElasticQuota>(object) {
            let _ = quota.facts();
        }
    }
}
