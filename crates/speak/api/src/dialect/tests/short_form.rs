//! Sublet's own form.

use proptest::prelude::*;

use super::*;

#[test]
fn it_says_what_sublet_run_says() {
    for (picture, expected) in [
        ("a sublet.dev/gpu=2", "a: 2 x whole"),
        // --memory 4GiB
        ("a sublet.dev/gpu-memory=4Gi", "a: 1 x 4096 MiB"),
        ("a sublet.dev/gpu-memory=4G", "a: 1 x 3815 MiB"),
        ("a sublet.dev/gpu-memory=1", "a: 1 x 1 MiB"),
        // --memory 4GiB --compute 30% --gpus 2
        (
            "a sublet.dev/gpu=2 sublet.dev/gpu-memory=4Gi sublet.dev/gpu-compute=30",
            "a: 2 x 4096 MiB and 30 % of compute time",
        ),
        // --memory 25%
        (
            "a sublet.dev/gpu-memory-percent=25; init: b sublet.dev/gpu-memory=1Mi; c cpu=1",
            "b: 1 x 1 MiB; a: 1 x 25 % of its memory",
        ),
        ("a sublet.dev/gpu=0 sublet.dev/gpu-memory=0", "nothing"),
        ("a cpu=1", "nothing"),
    ] {
        assert_eq!(said(&pod(picture)), expected, "{picture}");
    }
    let limited = |picture, limit| said(&annotated(picture, &[(keys::COMPUTE_LIMIT, limit)]));
    let promised = "a sublet.dev/gpu-memory=4Gi sublet.dev/gpu-compute=30";
    assert_eq!(
        limited(promised, "80"),
        "a: 1 x 4096 MiB and 30 % of compute time, at most 80 %"
    );
    assert_eq!(
        limited("a sublet.dev/gpu=2", "80"),
        "a: 2 x whole, at most 80 %"
    );
    assert_eq!(limited("a cpu=1", "80"), "nothing");
}

#[test]
fn the_length_of_turns_stands_beside_any_way_of_asking() {
    for picture in [
        "a sublet.dev/gpu-memory=4Gi",
        "a aliyun.com/gpu-mem=4",
        "a nvidia.com/gpu=1 nvidia.com/gpumem=4",
    ] {
        let pod = |slice| annotated(picture, &[(keys::SLICE, slice)]);
        assert_eq!(said(&pod("2ms")), said(&annotated(picture, &[])));
        let length = slice_of(&pod("2ms")).unwrap();
        assert_eq!(
            length.map(|length| length.to_string()).as_deref(),
            Some("2ms")
        );
        for wrong in ["2", "2s", "0ms", "21ms"] {
            let mut pod = pod(wrong);
            assert_eq!(
                said(&pod),
                format!(
                    "`sublet.dev/slice` is `{wrong}`: write a length of turns in whole \
                     milliseconds, from `1ms` to `20ms`"
                )
            );
            // An annotation can be changed at any time. What a pod has already counts all the same.
            pod.spec.node_name = "n".to_owned();
            assert_eq!(said(&pod), said(&annotated(picture, &[])));
        }
    }
    assert_eq!(slice_of(&annotated("a", &[])), Ok(None));
}

#[test]
fn its_class_is_the_label() {
    let mut pod = pod("a sublet.dev/gpu-memory=4Gi");
    let label = (keys::CLASS_LABEL.to_owned(), "opportunistic".to_owned());
    pod.metadata.labels.extend([label]);
    assert_eq!(said(&pod), "opportunistic a: 1 x 4096 MiB");
}

#[test]
fn what_does_not_go_together_is_named() {
    for (picture, limit, expected) in [
        (
            "a sublet.dev/gpu-memory=4Gi sublet.dev/gpu-memory-percent=50",
            None,
            "container a: `sublet.dev/gpu-memory` and `sublet.dev/gpu-memory-percent` both say \
             how much memory it gets: leave one of them out",
        ),
        (
            "a sublet.dev/gpu=1 sublet.dev/gpu-compute=50",
            None,
            "container a: `sublet.dev/gpu-compute` goes with a part of a card: add \
             `sublet.dev/gpu-memory` or `sublet.dev/gpu-memory-percent`; whole cards come with \
             all of their compute time",
        ),
        (
            "a sublet.dev/gpu-memory-percent=101",
            None,
            "container a: `sublet.dev/gpu-memory-percent` is `101`: it is too large",
        ),
        (
            "a sublet.dev/gpu-memory=99E",
            None,
            "container a: `sublet.dev/gpu-memory` is `99E`: it is too large",
        ),
        (
            "a sublet.dev/gpu-memory=-4Gi",
            None,
            "container a: `sublet.dev/gpu-memory` is `-4Gi`: it is negative",
        ),
        (
            "a sublet.dev/gpu=65 sublet.dev/gpu-memory=4Gi",
            None,
            "container a asks for parts of 65 GPUs; a pod can have parts of 1 to 64 GPUs",
        ),
        (
            "a sublet.dev/gpu-memory=4Gi",
            Some("0"),
            "`sublet.dev/compute-limit` is `0`: write a whole number of percent, from 1 to 100",
        ),
        (
            "a sublet.dev/gpu-memory=4Gi sublet.dev/gpu-compute=30",
            Some("20"),
            "container a asks for 30 % of a GPU's compute time, and may use 20 % at most",
        ),
        (
            "a nvidia.com/gpu=1",
            Some("20"),
            "the pod asks for `nvidia.com/gpu` and for `sublet.dev/compute-limit`; a pod can use \
             one way of asking for GPUs",
        ),
    ] {
        let limit = limit.map(|limit| (keys::COMPUTE_LIMIT, limit));
        let pod = annotated(picture, limit.as_slice());
        assert_eq!(said(&pod), expected, "{picture}");
    }
}

#[test]
fn slots_carry_allocate() {
    let claim = claim("a sublet.dev/gpu=1 sublet.dev/gpu-slot=1", Unit::MiB);
    let claim = claim.unwrap().unwrap();
    assert_eq!(resource_of(&claim), Some(keys::GPU_SLOT));
    assert!(claim.has_slot());
    let refused = said(&pod("a sublet.dev/gpu-slot=1"));
    assert!(refused.contains(" or `sublet.dev/gpu`"), "{refused}");
}

proptest! {
    #[test]
    fn any_amount_and_any_limit_is_a_claim_or_names_its_field(
        resource in proptest::sample::select(&[
            keys::GPU, keys::GPU_MEMORY, keys::GPU_MEMORY_PERCENT, keys::GPU_COMPUTE,
        ][..]),
        amount in "[0-9]{1,22}|-?[0-9.]{0,6}(Mi|Gi|k|m|E)?|[!-~]{0,12}",
        limit in "[0-9]{0,6}|[ -~]{0,12}",
    ) {
        let amount = amount.replace(['=', ';', ':', ' '], "");
        let pod = pod(&format!("a sublet.dev/gpu-memory=1Mi {resource}={amount}"));
        if let Err(error) = claim_of(&pod, Unit::MiB) {
            prop_assert!(error.to_string().contains("container a"), "{error}");
        }
        let pod = annotated("a sublet.dev/gpu-memory=1Mi", &[(keys::COMPUTE_LIMIT, &limit)]);
        if let Err(error) = claim_of(&pod, Unit::MiB) {
            prop_assert!(error.to_string().contains(keys::COMPUTE_LIMIT), "{error}");
        }
    }
}
