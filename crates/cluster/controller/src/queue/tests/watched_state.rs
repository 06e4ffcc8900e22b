//! Tests of the fields kept of objects that are read as data.

use super::*;

/// While a control plane is upgraded, a PodGroup is seen in one version of its API and in another.
#[test]
fn a_pod_group_is_one_whatever_the_version() {
    let mut watched = WatchedState::default();
    let group = || {
        let group = serde_json::from_value(json!({
            "metadata": {"name": "g", "namespace": "a", "uid": "u-g"},
            "spec": {"schedulingPolicy": {"gang": {"minCount": 2}}},
        }));
        Change::Set(group.unwrap())
    };
    for version in ["scheduling.k8s.io/v1alpha2", "scheduling.k8s.io/v1beta1"] {
        for change in [Change::ListBegins, group(), Change::ListEnds] {
            watched.object(version, "PodGroup", change);
        }
        let facts: Vec<_> = watched
            .pod_groups
            .values()
            .map(|group| &group.facts)
            .collect();
        assert_eq!(facts.len(), 1, "{facts:?}");
        assert_eq!((&*facts[0].api_version, facts[0].terms.min), (version, 2));
    }
}

#[test]
fn a_default_priority_counts_as_long_as_its_class_is_there() {
    let mut watched = WatchedState::default();
    let mut class = |name: &str, value: i32, is_default: bool, gone: bool| {
        let object = serde_json::from_value(json!({
            "metadata": {"name": name}, "value": value, "globalDefault": is_default,
        }));
        let object = object.unwrap();
        let change = if gone {
            Change::Gone(object)
        } else {
            Change::Set(object)
        };
        watched.object("scheduling.k8s.io/v1", "PriorityClass", change);
        watched.classes.value("")
    };
    assert_eq!(class("high", 9, false, false), None);
    assert_eq!(class("usual", 5, true, false), Some(5));
    assert_eq!(class("least", 3, true, false), Some(3));
    assert_eq!(class("least", 3, false, false), Some(5));
    assert_eq!(class("usual", 5, true, true), None);
}
