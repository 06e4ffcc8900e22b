//! Each name stands once, and the shipped policies know the names that only Sublet may write.

use std::collections::BTreeSet;

use sublet_model::DialectName;

use super::*;
use crate::dialect::Dialect;

#[test]
fn every_name_stands_once_and_has_a_meaning() {
    let names: BTreeSet<_> = ALL.iter().map(|key| (key.name, key.kind)).collect();
    assert_eq!(names.len(), ALL.len());
    assert!(ALL.iter().all(|key| !key.meaning.trim().is_empty()));
    for name in shipped_results() {
        let key = ALL.iter().find(|key| key.name == name);
        let kind = key.map(|key| key.kind);
        let wanted = Some(KeyKind::PodAnnotation);
        assert_eq!(kind, wanted, "{name} is not in keys.rs under PodAnnotation");
    }
    for dialect in crate::dialect::shipped() {
        let resources = dialect.resources().iter().chain(dialect.node_resources());
        for name in resources.chain(dialect.marks()) {
            assert!(
                ALL.iter().any(|key| key.name == *name),
                "{name} is not in keys.rs"
            );
        }
    }
}

/// Result keys of the shipped dialects; the toy dialect is not shipped.
fn shipped_results() -> impl Iterator<Item = &'static str> {
    let own = crate::dialect::shipped().flat_map(Dialect::result_keys);
    own.copied()
        .chain([ALLOCATION, ASSIGNED, ASKED, PREEMPTING, SLOT])
}

const RESULT_POLICY: &str = include_str!("../../../../../deploy/kubernetes/30-result-policy.yaml");
const AGENT_POLICY: &str = include_str!("../../../../../deploy/kubernetes/32-agent-policy.yaml");

/// The text of a variable in a policy.
fn variable<'a>(policy: &'a str, name: &str) -> &'a str {
    let (_, rest) = policy.split_once(&format!("  - name: {name}\n")).unwrap();
    rest.split_once(']').unwrap().0
}

#[test]
fn the_shipped_policy_guards_every_result_key() {
    let guarded = variable(RESULT_POLICY, "keys");
    for key in shipped_results() {
        assert!(
            guarded.contains(&format!("'{key}'")),
            "{key} can be forged: add it to `keys` of 30-result-policy.yaml"
        );
    }
}

#[test]
fn the_shipped_policies_let_the_agent_write_what_it_must() {
    let claim = sublet_model::Claim::host_only(sublet_model::Host::ZERO);
    let says =
        crate::dialect::shipped().flat_map(|dialect| dialect.handed_over(&claim, 0).into_keys());
    let marks: Vec<String> = says.chain([ASSIGNED.to_owned()]).collect();
    for (file, list) in [
        (
            "agentKeys of 30-result-policy.yaml",
            variable(RESULT_POLICY, "agentKeys"),
        ),
        ("own of 32-agent-policy.yaml", variable(AGENT_POLICY, "own")),
    ] {
        for key in &marks {
            let quoted = format!("'{key}'");
            assert!(
                list.contains(&quoted),
                "the agent may not write {key}: add it to {file}"
            );
        }
    }
    // One amount that is not in the list, and the API server refuses those of all dialects.
    let amounts = variable(AGENT_POLICY, "resources");
    let offered = crate::dialect::shipped().flat_map(|dialect| {
        let asked = dialect.resources().iter();
        asked.chain(dialect.node_resources()).copied()
    });
    for resource in offered.chain([GPU_SLOT]) {
        assert!(
            amounts.contains(&format!("'{resource}'")),
            "the agent may not write {resource}: add it to `resources` of 32-agent-policy.yaml"
        );
    }
}

#[test]
fn the_shipped_warning_knows_every_dialect_of_parts() {
    let policy = include_str!("../../../../../deploy/kubernetes/33-scheduler-warning.yaml");
    let (resources, marks) = (variable(policy, "resources"), variable(policy, "marks"));
    for dialect in crate::dialect::shipped() {
        let DialectName(name) = dialect.name();
        let mut asked = dialect.resources().iter().chain(dialect.marks());
        let is_known = asked.any(|word| {
            let quoted = format!("'{word}'");
            resources.contains(&quoted) || marks.contains(&quoted)
        });
        // A pod asks for whole cards alone by this one.
        assert!(
            is_known || name == "nvidia",
            "nobody is warned of a pod of {name}: add it to 33-scheduler-warning.yaml"
        );
    }
}

#[test]
fn the_shipped_policy_lets_the_controller_write_what_it_must() {
    let policy = include_str!("../../../../../deploy/kubernetes/queue/34-controller-policy.yaml");
    for key in [
        PREEMPTING,
        SLOT,
        SCHEDULING_GATE,
        QUOTA_ENTITLEMENT,
        QUOTA_REQUEST,
        RECLAIMS,
        RECLAIMED_AT,
        PRIVILEGED_SHARE_PODS_LABEL,
    ] {
        assert!(policy.contains(&format!("'{key}'")), "no {key}");
    }
    let (_, jobs) = policy
        .split_once("name: sublet-controller-jobs\n")
        .expect("a policy for jobs");
    let (groups, _) = jobs.split_once("resources:").expect("resources");
    for kind in crate::group::shipped_jobs() {
        let Some(suspend) = kind.suspend() else {
            continue;
        };
        let group = kind.api().group;
        assert!(
            groups.contains(group),
            "{group}: its jobs can be of any content"
        );
        // The policy names both.
        assert!(
            matches!(
                suspend,
                ["spec", "suspend"] | ["spec", "runPolicy", "suspend"]
            ),
            "{suspend:?}: add it to `parts` of the policy for jobs"
        );
    }
}

#[test]
fn the_shipped_policy_guards_what_the_agent_says_of_a_node() {
    let policy = include_str!("../../../../../deploy/kubernetes/31-inventory-policy.yaml");
    for key in [
        INVENTORY,
        HANDED_OVER,
        MEASURED_USE,
        AGENT_AWAY,
        NOT_ISOLATED,
    ] {
        assert!(policy.contains(&format!("'{key}'")), "{key} can be forged");
    }
}

#[test]
fn the_shipped_scheduler_asks_us_about_every_pod() {
    // An extender that manages resources is asked only about pods that name one, and is
    // asked about all if it manages none.
    let config = include_str!("../../../../../deploy/kubernetes/40-scheduler-config.yaml");
    assert!(config.contains("bindVerb: bind\n"));
    assert!(!config.contains("managedResources:\n"));
    assert!(!config.contains("ignoredByScheduler:"));
}
