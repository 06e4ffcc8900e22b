//! Pods that are written in two dialects.

use super::*;

/// A pod that asks by one resource, label or annotation of that dialect.
fn asking(dialect: &dyn Dialect) -> Pod {
    let mut pod = pod("a");
    ask(&mut pod, dialect);
    pod
}

fn ask(pod: &mut Pod, dialect: &dyn Dialect) {
    match (dialect.resources().first(), dialect.marks().first()) {
        (Some(resource), _) => {
            let amount = crate::object::Quantity("1".to_owned());
            let limits = &mut pod.spec.containers[0].resources.limits;
            limits.insert((*resource).to_owned(), amount);
        }
        (None, Some(mark)) => {
            let annotations = &mut pod.metadata.annotations;
            annotations.insert((*mark).to_owned(), "0.5".to_owned());
        }
        (None, None) => panic!("{:?} cannot be asked for", dialect.name()),
    }
}

#[test]
fn every_pair_of_dialects_is_refused_unless_one_extends_the_other() {
    for one in DIALECTS {
        for other in DIALECTS {
            let extends = |a: &dyn Dialect, b: &dyn Dialect| a.extends() == Some(b.name());
            if one.name() == other.name() || extends(*one, *other) || extends(*other, *one) {
                continue;
            }
            let mut pod = asking(*one);
            ask(&mut pod, *other);
            let refused = claim_of(&pod, Unit::MiB);
            let is_refused = matches!(refused, Err(ClaimError::Dialects(..)));
            assert!(
                is_refused,
                "{:?} {:?}: {refused:?}",
                one.name(),
                other.name()
            );
        }
    }
}

#[test]
fn a_mark_that_is_added_later_hides_nothing_of_what_a_pod_has() {
    for asked in [
        "aliyun.com/gpu-mem=3",
        "nvidia.com/gpu=1",
        "sublet.dev/gpu=1",
    ] {
        let mut pod = pod(&format!("a {asked}"));
        let before = claim_of(&pod, Unit::MiB).unwrap();
        for mark in DIALECTS.iter().flat_map(|dialect| dialect.marks()) {
            let annotation = ((*mark).to_owned(), "0.5".to_owned());
            pod.metadata.annotations = BTreeMap::from([annotation]);
            pod.spec.node_name = "n1".to_owned();
            let after = claim_of(&pod, Unit::MiB).unwrap().unwrap();
            let before = before.as_ref().unwrap();
            assert_eq!(after.ask(), before.ask(), "{asked} and {mark}");
        }
    }
}

/// A bound pod with what its Binding wrote.
fn bound(mut pod: Pod) -> Pod {
    let claim = claim_of(&pod, Unit::MiB).unwrap().unwrap();
    let facts = facts(Unit::MiB);
    let written = binding_annotations(&claim, &Allocation::default(), &facts, 7, []);
    pod.metadata.annotations.extend(written);
    pod.spec.node_name = "n1".to_owned();
    pod
}

#[test]
fn a_bound_pod_counts_with_what_it_asked_when_it_was_bound() {
    let kai = annotated(
        "a; b",
        &[(keys::KAI_FRACTION, "0.5"), (keys::KAI_DEVICES, "2")],
    );
    let mut kubeshare = pod("a");
    for (key, value) in [
        (keys::KUBESHARE_REQUEST, "0.25"),
        (keys::KUBESHARE_LIMIT, "0.5"),
        (keys::KUBESHARE_MEMORY, "1048576"),
    ] {
        let labels = &mut kubeshare.metadata.labels;
        labels.insert(key.to_owned(), value.to_owned());
    }
    let short = annotated(
        "a sublet.dev/gpu=2; init: i sublet.dev/gpu=1",
        &[(keys::COMPUTE_LIMIT, "80")],
    );
    for pod in [kai, kubeshare, short] {
        let before = claim_of(&pod, Unit::MiB).unwrap();
        let mut pod = bound(pod);
        assert_eq!(claim_of(&pod, Unit::MiB).unwrap(), before);
        let marks = DIALECTS.iter().flat_map(|dialect| dialect.marks());
        for mark in marks.chain([&keys::CLASS_LABEL]) {
            for map in [&mut pod.metadata.annotations, &mut pod.metadata.labels] {
                map.insert((*mark).to_owned(), "0.001".to_owned());
            }
        }
        assert_eq!(claim_of(&pod, Unit::MiB).unwrap(), before);
        // What cannot be read is as if it were not there.
        for text in [
            "",
            "{",
            r#"{"dialect":"kai","class":"guaranteed","containers":[]}"#,
        ] {
            let annotations = &mut pod.metadata.annotations;
            annotations.insert(keys::ASKED.to_owned(), text.to_owned());
            let _answered: Result<_, ClaimError> = claim_of(&pod, Unit::MiB);
        }
    }
    // Resources stay as they are, so nothing is said of those.
    let plain = bound(pod("a aliyun.com/gpu-mem=3"));
    assert!(!plain.metadata.annotations.contains_key(keys::ASKED));
    // Before a pod is bound, the record would be somebody else's.
    let mut forged = bound(annotated("a", &[(keys::KAI_FRACTION, "0.5")]));
    forged.spec.node_name = String::new();
    let annotations = &mut forged.metadata.annotations;
    annotations.insert(keys::KAI_FRACTION.to_owned(), "0.75".to_owned());
    assert_eq!(said(&forged), "a: 1 x 75 % of its memory");
}
