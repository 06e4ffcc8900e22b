//! KubeShare 1's form. Test s5 is a case of its timeline and rules, in our words.

use proptest::prelude::*;
use sublet_model::{CardTags, GpuUuid};

use super::*;

/// The pod of a picture, with these annotations under `kubeshare/`.
fn annotated(picture: &str, annotations: &str) -> Pod {
    let mut pod = pod(picture);
    for word in annotations.split_whitespace() {
        let (key, value) = word.split_once('=').unwrap();
        let annotation = (format!("kubeshare/{key}"), value.to_owned());
        pod.metadata.annotations.extend([annotation]);
    }
    pod
}

fn asks(annotations: &str) -> String {
    said(&annotated("a", annotations))
}

const PART: &str = "gpu_request=0.3 gpu_limit=1.0 gpu_mem=1048577";

#[test]
fn its_parts_are_a_promise_and_a_limit() {
    for (annotations, expected) in [
        (PART, "a: 1 x 2 MiB and 30 % of compute time"),
        (
            "gpu_request=0.3 gpu_limit=0.5 gpu_mem=1048576",
            "a: 1 x 1 MiB and 30 % of compute time, at most 50 %",
        ),
        (
            "gpu_request=0 gpu_limit=0.5 gpu_mem=1048576",
            "opportunistic a: 1 x 1 MiB, at most 50 %",
        ),
        ("sched_affinity=x", "nothing"),
    ] {
        assert_eq!(asks(annotations), expected, "{annotations}");
    }
}

#[test]
fn s5_what_its_rules_forbid_is_named() {
    let share = "write a part of a card, from `0` to `1.0`";
    let limit = "write more than `0`, and at least as much as `kubeshare/gpu_request`";
    for (annotations, expected) in [
        (
            "gpu_request=0.5 gpu_limit=0.3 gpu_mem=5",
            format!("`kubeshare/gpu_limit` is `0.3`: {limit}"),
        ),
        (
            "gpu_request=0 gpu_limit=0 gpu_mem=5",
            format!("`kubeshare/gpu_limit` is `0`: {limit}"),
        ),
        (
            "gpu_request=0.5 gpu_limit=1.2 gpu_mem=5",
            format!("`kubeshare/gpu_limit` is `1.2`: {share}"),
        ),
        (
            "gpu_limit=1.0 gpu_mem=5",
            format!("`kubeshare/gpu_request` is ``: {share}"),
        ),
        (
            "gpu_request=0.5 gpu_limit=1.0",
            "`kubeshare/gpu_mem` is ``: write a whole number of bytes, at least `1`".to_owned(),
        ),
        (
            "gpu_request=0.5 gpu_limit=1.0 gpu_mem=4Gi",
            "`kubeshare/gpu_mem` is `4Gi`: write a whole number of bytes, at least `1`".to_owned(),
        ),
    ] {
        assert_eq!(asks(annotations), expected, "{annotations}");
    }
    let named = asks(&format!("{PART} GPUID=GPU-{}", "0".repeat(99)));
    assert!(named.ends_with("or a name of your own for one"), "{named}");
    let two = said(&annotated("a; b", PART));
    assert!(
        two.contains("ask for one container, and the pod has 2"),
        "{two}"
    );
}

#[test]
fn its_card_and_its_tags_are_wishes() {
    let tags = "GPUID=GPU-1 sched_affinity=a sched_anti-affinity=b sched_exclusion=c";
    let claim = claim_of(&annotated("a", &format!("{PART} {tags}")), Unit::MiB);
    let claim = claim.unwrap().unwrap();
    let wishes = claim.wishes().unwrap();
    let uuids: Vec<&str> = wishes.uuids.iter().map(GpuUuid::as_str).collect();
    assert_eq!(uuids, ["GPU-1"]);
    let CardTags {
        affinity,
        anti_affinity,
        exclusion,
        virtual_gpu,
    } = claim.tags();
    let tags = [affinity, anti_affinity, exclusion, virtual_gpu].map(|tag| tag.as_deref());
    assert_eq!(tags, [Some("a"), Some("b"), Some("c"), None]);

    let named = claim_of(&annotated("a", &format!("{PART} GPUID=zxcvb")), Unit::MiB);
    let named = named.unwrap().unwrap();
    assert_eq!(named.tags().virtual_gpu.as_deref(), Some("zxcvb"));
    assert!(named.wishes().unwrap().uuids.is_empty());
}

#[test]
fn a_bound_pod_keeps_the_tags_that_it_was_bound_with() {
    let pod = annotated("a", &format!("{PART} sched_exclusion=c"));
    let claim = claim_of(&pod, Unit::MiB).unwrap().unwrap();
    let asked = kept::to_json(&claim);
    let mut changed = annotated("a", &format!("{PART} sched_exclusion=other"));
    changed.spec.node_name = "n".to_owned();
    let tags = |pod: &Pod| claim_of(pod, Unit::MiB).unwrap().unwrap().tags().clone();
    assert_ne!(tags(&changed), *claim.tags());
    changed
        .metadata
        .annotations
        .insert(keys::ASKED.to_owned(), asked);
    assert_eq!(tags(&changed), *claim.tags());
}

proptest! {
    #[test]
    fn any_annotation_is_a_claim_or_is_named(
        key in "gpu_request|gpu_limit|gpu_mem|GPUID|sched_affinity",
        text in "[0-9]{0,25}|[0-9.]{0,8}|[ -~]{0,12}",
    ) {
        let mut pod = annotated("a", PART);
        pod.metadata.annotations.insert(format!("kubeshare/{key}"), text);
        if let Err(error) = claim_of(&pod, Unit::MiB) {
            prop_assert!(error.to_string().contains("kubeshare/"), "{error}");
        }
    }
}
