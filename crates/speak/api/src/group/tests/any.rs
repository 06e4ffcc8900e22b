//! For any text, the reader returns a value or names the fault.

use proptest::prelude::*;
use serde_json::Value;

use crate::group::{GANG_DIALECTS, JOB_KINDS, gang_of, read_job, read_pod_group};
use crate::keys;
use crate::object::Pod;

/// Any JSON, with the fields that jobs have more often than others.
fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        (0..5_u32).prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        "[a-zA-Z0-9:/{}\\[\\]\".-]{0,12}".prop_map(Value::from),
    ];
    let key = prop_oneof![
        Just("metadata"),
        Just("spec"),
        Just("status"),
        Just("template"),
        Just("replicas"),
        Just("parallelism"),
        Just("completions"),
        Just("conditions"),
        Just("type"),
        Just("runPolicy"),
        Just("schedulingPolicy"),
        Just("minAvailable"),
        Just("suspend"),
        Just("tfReplicaSpecs"),
        Just("mpiReplicaSpecs"),
        Just("replicatedJobs"),
        Just("Worker"),
        Just("leaderWorkerTemplate"),
        Just("size"),
        Just("minMember"),
        Just("gang"),
        Just("annotations"),
        Just("labels"),
        Just(keys::GANG_MIN),
        Just(keys::GANG_GROUPS),
        Just("replicaStatuses"),
        Just("succeeded"),
        Just("containers"),
    ];
    leaf.prop_recursive(6, 64, 6, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::vec((key.clone(), inner), 0..6).prop_map(|fields| {
                let fields = fields
                    .into_iter()
                    .map(|(key, value)| (key.to_owned(), value));
                Value::Object(fields.collect())
            }),
        ]
    })
}

proptest! {
    #[test]
    fn any_json_is_a_job_or_names_its_field(object in any_json(), at in 0..JOB_KINDS.len()) {
        match read_job(JOB_KINDS[at], &object) {
            Ok(job) => {
                let all = job.shape.roles.iter().map(|role| u64::from(role.replicas));
                prop_assert!(u64::from(job.terms.min) <= all.sum());
                let within = |role: &crate::group::JobRole| role.min.unwrap_or(0) <= role.replicas;
                prop_assert!(job.shape.roles.iter().all(within));
            }
            Err(error) => prop_assert!(!error.what.is_empty()),
        }
    }

    #[test]
    fn any_json_is_a_pod_group_or_names_its_field(object in any_json(), at in 0..GANG_DIALECTS.len()) {
        let dialect = GANG_DIALECTS[at];
        for version in dialect.versions() {
            let api = format!("{}/{version}", dialect.api_group());
            match read_pod_group(&api, &object) {
                Ok(facts) => prop_assert_eq!(facts.map(|facts| facts.api_version), Some(api)),
                Err(error) => prop_assert!(!error.what.is_empty()),
            }
        }
    }

    #[test]
    fn any_pod_is_of_a_gang_or_says_why_not(name in "\\PC{0,8}", text in "\\PC{0,20}", at in 0..7_usize) {
        let mut pod = Pod::default();
        pod.metadata.annotations.insert(keys::GANG_NAME.to_owned(), name.clone());
        let key = [
            keys::GANG_MIN, keys::GANG_TOTAL, keys::GANG_WAIT, keys::GANG_MODE, keys::GANG_GROUPS,
            keys::GANG_MATCH, keys::GANG_MATCH_ALIAS,
        ][at];
        pod.metadata.annotations.insert(keys::GANG_MIN.to_owned(), "1".to_owned());
        pod.metadata.annotations.insert(key.to_owned(), text);
        match gang_of(&pod) {
            Ok(found) => prop_assert_eq!(found.is_some(), !name.is_empty()),
            Err(error) => prop_assert_eq!(error.field, format!("metadata.annotations.{}", key)),
        }
    }
}
