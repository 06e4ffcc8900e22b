//! KubeShare's form. Tests s1 and s5 are the cases of its timeline and its rules, in our words.

use proptest::prelude::*;

use super::*;

/// The pod of a picture, with these labels under `sharedgpu/`.
fn labelled(picture: &str, labels: &str) -> Pod {
    let mut pod = pod(picture);
    for label in labels.split_whitespace() {
        let (key, value) = label.split_once('=').unwrap();
        let label = (format!("sharedgpu/{key}"), value.to_owned());
        pod.metadata.labels.extend([label]);
    }
    pod
}

fn asks(labels: &str) -> String {
    said(&labelled("a", labels))
}

#[test]
fn s1_requests_become_shares_of_one_card_that_fit_together() {
    for (labels, expected) in [
        (
            "gpu_request=0.2 gpu_limit=1.0",
            "a: 1 x 20 % of its memory and 20 % of compute time",
        ),
        (
            "gpu_request=0.3 gpu_limit=0.3333",
            "a: 1 x 30 % of its memory and 30 % of compute time, at most 33.4 %",
        ),
        (
            "gpu_request=0.5 gpu_limit=1.0 gpu_mem=1048577 priority=100",
            "a: 1 x 2 MiB and 50 % of compute time",
        ),
        // One card is a part of one, as its own scheduler has it.
        (
            "gpu_request=1 gpu_limit=1.0",
            "a: 1 x 100 % of its memory and 100 % of compute time",
        ),
        ("gpu_request=2.0 gpu_limit=2 gpu_mem=5", "a: 2 x whole"),
        ("gpu_limit=0.0", "nothing"),
        ("gpu_limit=0 gpu_request=0.0 gpu_mem=5", "nothing"),
        ("priority=3 group_name=x", "nothing"),
    ] {
        assert_eq!(asks(labels), expected, "{labels}");
    }
}

#[test]
fn its_promise_is_kept_whatever_its_priority() {
    let class = |labels: &str| asks(&format!("gpu_limit=0.5 gpu_mem=1048576 {labels}"));
    assert_eq!(class(""), "opportunistic a: 1 x 1 MiB, at most 50 %");
    assert_eq!(
        class("priority=0"),
        "opportunistic a: 1 x 1 MiB, at most 50 %"
    );
    assert_eq!(class("priority=1"), "a: 1 x 1 MiB, at most 50 %");
    assert_eq!(
        class("priority=0 gpu_request=0.5"),
        "a: 1 x 1 MiB and 50 % of compute time, at most 50 %"
    );
}

#[test]
fn s5_what_its_rules_forbid_is_named() {
    for (labels, expected) in [
        (
            "gpu_request=0.5 gpu_limit=0.3",
            "`sharedgpu/gpu_limit` is `0.3`: write at least as much as `sharedgpu/gpu_request`",
        ),
        (
            "gpu_limit=1.2",
            "`sharedgpu/gpu_limit` is `1.2`: write `1.0` at most, or for several cards a whole \
             number that is the same as `sharedgpu/gpu_request`",
        ),
        (
            "gpu_request=1.5 gpu_limit=1.5",
            "`sharedgpu/gpu_limit` is `1.5`: write `1.0` at most, or for several cards a whole \
             number that is the same as `sharedgpu/gpu_request`",
        ),
        (
            "gpu_request=2 gpu_limit=3",
            "`sharedgpu/gpu_limit` is `3`: write `1.0` at most, or for several cards a whole \
             number that is the same as `sharedgpu/gpu_request`",
        ),
        (
            "gpu_request=0.5",
            "`sharedgpu/gpu_limit` is ``: write how much compute time the pod may use, such as \
             `1.0`",
        ),
        (
            "gpu_limit=0.5",
            "container a: `sharedgpu/gpu_limit` alone says no memory: add `sharedgpu/gpu_mem` or \
             `sharedgpu/gpu_request`",
        ),
        (
            "gpu_limit=half",
            "`sharedgpu/gpu_limit` is `half`: write a number of cards, such as `0.5` or `2`",
        ),
        (
            "gpu_limit=1.0 gpu_mem=4Gi",
            "`sharedgpu/gpu_mem` is `4Gi`: write a whole number of bytes",
        ),
        (
            "gpu_request=0.5 gpu_limit=1.0 priority=101",
            "`sharedgpu/priority` is `101`: write a whole number from 0 to 100",
        ),
        (
            "gpu_request=0.5 gpu_limit=1.0 group_name=a group_headcount=5",
            "`sharedgpu/group_name` is `a`: write no `sharedgpu/group_…`, but the label \
             `scheduling.x-k8s.io/pod-group` with the name of a PodGroup, whose `minMember` pods \
             start together where the queue is on (`queue.enabled`)",
        ),
        (
            "gpu_request=0.5 gpu_limit=1.0 group_threshold=0.2",
            "`sharedgpu/group_threshold` is `0.2`: write no `sharedgpu/group_…`, but the label \
             `scheduling.x-k8s.io/pod-group` with the name of a PodGroup, whose `minMember` pods \
             start together where the queue is on (`queue.enabled`)",
        ),
    ] {
        assert_eq!(asks(labels), expected, "{labels}");
    }
    let two = said(&labelled("a; b", "gpu_request=0.5 gpu_limit=1.0"));
    let why = "container a: labels such as `sharedgpu/gpu_limit` ask for one container, and the \
         pod has 2: leave one, or ask by `sublet.dev/gpu-memory` of each container";
    assert_eq!(two, why);
    let one = said(&labelled("init: i; a", "gpu_request=0.5 gpu_limit=1.0"));
    assert_eq!(one, "a: 1 x 50 % of its memory and 50 % of compute time");
}

#[test]
fn its_model_is_a_wish() {
    let pod = labelled(
        "a",
        "gpu_request=0.5 gpu_limit=1.0 gpu_model=NVIDIA-GeForce-GTX-1080",
    );
    let claim = claim_of(&pod, Unit::MiB).unwrap().unwrap();
    let models = &claim.wishes().unwrap().models;
    assert!(models.contains("nvidia-geforce-gtx-1080"));
    let any = claim_of(&labelled("a", "gpu_request=0.5 gpu_limit=1.0"), Unit::MiB);
    assert_eq!(any.unwrap().unwrap().wishes(), None);
}

/// Allocation of a pod with these labels, as that text says: `uuid/MiB`.
fn read_back(labels: &str, text: &str) -> String {
    let mut pod = labelled("a", labels);
    let annotation = (keys::KUBESHARE_UUID.to_owned(), text.to_owned());
    pod.metadata.annotations.extend([annotation]);
    let claim = claim_of(&pod, Unit::MiB).unwrap().unwrap();
    match allocation_of(&pod, &claim) {
        Err(error) => error.to_string(),
        Ok(None) => "nothing".to_owned(),
        Ok(Some(allocation)) => {
            let grants = allocation.grants.iter().map(|grant| {
                let uuid = grant.card.uuid.as_ref().unwrap();
                format!("{uuid}/{}", grant.memory.get())
            });
            grants.collect::<Vec<_>>().join(" ")
        }
    }
}

#[test]
fn its_cards_are_written_and_read_back() {
    let shared = "gpu_limit=1.0 gpu_mem=1048576";
    let whole = "gpu_request=2 gpu_limit=2";
    assert_eq!(read_back(shared, "GPU-a"), "GPU-a/1");
    assert_eq!(read_back(whole, "GPU-a,GPU-b,"), "GPU-a/0 GPU-b/0");
    assert_eq!(read_back(shared, ""), "nothing");
    let key = "annotation `sharedgpu/gpu_uuid`";
    let mismatch = format!("{key} does not answer what the pod's containers ask");
    assert_eq!(read_back(shared, "GPU-a,GPU-b,"), mismatch);
    assert_eq!(read_back(whole, "GPU-a,GPU-a,"), mismatch);
    assert_eq!(read_back(shared, ","), format!("{key} has a wrong name"));

    for (labels, uuids, expected) in [
        (shared, &["GPU-a"][..], "GPU-a"),
        (whole, &["GPU-b", "GPU-a"], "GPU-b,GPU-a,"),
    ] {
        let claim = claim_of(&labelled("a", labels), Unit::MiB)
            .unwrap()
            .unwrap();
        let grants = uuids.iter().map(|uuid| sublet_model::Grant {
            container: ContainerName::new("a").unwrap(),
            card: sublet_model::CardRef {
                index: sublet_model::GpuIndex(0),
                uuid: Some(sublet_model::GpuUuid::new(uuid).unwrap()),
            },
            memory: MiB::from(1),
        });
        let allocation = Allocation {
            grants: grants.collect(),
        };
        let present = [keys::KUBESHARE_CELL, keys::KUBESHARE_PORT];
        let written = binding_annotations(&claim, &allocation, &facts(Unit::MiB), 7, present);
        assert_eq!(written[keys::KUBESHARE_UUID], expected);
        // What somebody else wrote there is gone.
        assert_eq!(written[keys::KUBESHARE_CELL], "");
        assert!(read_back(labels, expected).starts_with(uuids[0]));
    }
}

proptest! {
    #[test]
    fn any_label_is_a_claim_or_is_named(
        key in "gpu_request|gpu_limit|gpu_mem|priority|group_name",
        text in "[0-9]{0,25}|[0-9.]{0,8}|[ -~]{0,12}",
    ) {
        let mut pod = labelled("a", "gpu_request=0.5 gpu_limit=1.0");
        let key = format!("sharedgpu/{key}");
        pod.metadata.labels.insert(key, text);
        if let Err(error) = claim_of(&pod, Unit::MiB) {
            prop_assert!(error.to_string().contains("sharedgpu/"), "{error}");
        }
    }

    #[test]
    fn any_text_of_its_result_is_answered(text in "[a-zA-Z0-9,-]{0,60}|[ -~]{0,20}") {
        let answer: String = read_back("gpu_request=2 gpu_limit=2", &text);
        prop_assert!(!answer.is_empty());
    }
}
