//! Jobs of every kind and PodGroups of every API, as their owners write them.

use serde_json::Value;
use sublet_api::group::{GANG_DIALECTS, JOB_KINDS, read_job, read_pod_group};
use sublet_model::{MiB, Unit};

use crate::{Target, text};

pub(super) const TARGET: Target = Target {
    name: "queue_object",
    run,
};

fn run(bytes: &[u8]) {
    let Some(Ok(object)) = text(bytes).map(serde_saphyr::from_str::<Value>) else {
        return;
    };
    for &kind in JOB_KINDS {
        if let Ok(job) = read_job(kind, &object) {
            let all = job.shape.roles.iter().map(|role| u64::from(role.replicas));
            assert!(u64::from(job.terms.min) <= all.sum());
            for role in &job.shape.roles {
                assert!(role.min.unwrap_or(0) <= role.replicas);
                let _ =
                    sublet_api::group::member_shape(&role.template, Unit::MiB, MiB::from(81_920));
            }
        }
    }
    for dialect in GANG_DIALECTS {
        for version in dialect.versions() {
            let api = format!("{}/{version}", dialect.api_group());
            if let Ok(facts) = read_pod_group(&api, &object) {
                assert_eq!(facts.map(|facts| facts.api_version), Some(api));
            }
        }
    }
}
