//! KAI's form.

use proptest::prelude::*;

use super::*;

fn asks(picture: &str, annotations: &[(&str, &str)]) -> String {
    said(&annotated(picture, annotations))
}

#[test]
fn fractions_and_amounts_are_read() {
    let (fraction, memory) = (keys::KAI_FRACTION, keys::KAI_MEMORY);
    let (devices, container) = (keys::KAI_DEVICES, keys::KAI_CONTAINER);
    let pods = "init: i; a; b";
    for (annotations, expected) in [
        (&[(fraction, "0.5")][..], "a: 1 x 50 % of its memory"),
        (&[(fraction, "0.3333")], "a: 1 x 33.4 % of its memory"),
        (&[(fraction, ".9999")], "a: 1 x 100 % of its memory"),
        (&[(memory, "2000")], "a: 1 x 2000 MiB"),
        (&[(memory, "2000"), (devices, "2")], "a: 2 x 2000 MiB"),
        (
            &[(fraction, "0.5"), (container, "b")],
            "b: 1 x 50 % of its memory",
        ),
        (
            &[(fraction, "0.5"), (container, "i")],
            "i: 1 x 50 % of its memory",
        ),
        (&[(container, "b")], "nothing"),
    ] {
        assert_eq!(asks(pods, annotations), expected, "{annotations:?}");
    }
}

#[test]
fn what_its_admission_refuses_is_named() {
    let (fraction, memory) = (keys::KAI_FRACTION, keys::KAI_MEMORY);
    let below = "write a decimal number above 0 and below 1, such as `0.5`";
    for text in ["0", "1", "1.0", "-0.5", "half", "5e-1", "0.0", ""] {
        let expected = format!("`gpu-fraction` is `{text}`: {below}");
        assert_eq!(asks("a", &[(fraction, text)]), expected);
    }
    for (annotations, expected) in [
        (
            &[(memory, "0")][..],
            "`gpu-memory` is `0`: write a whole number of MiB, 1 or more",
        ),
        (
            &[(memory, "2Gi")],
            "`gpu-memory` is `2Gi`: write a whole number of MiB, 1 or more",
        ),
        (
            &[(memory, "2000"), (fraction, "0.5")],
            "container a: annotations `gpu-fraction` and `gpu-memory` both say how much memory it \
             gets: leave one of them out",
        ),
        (
            &[(keys::KAI_DEVICES, "2")],
            "`gpu-fraction-num-devices` is `2`: write `gpu-fraction` or `gpu-memory` beside it",
        ),
        (
            &[(fraction, "0.5"), (keys::KAI_DEVICES, "0")],
            "`gpu-fraction-num-devices` is `0`: write a whole number of cards, 1 or more",
        ),
        (
            &[(fraction, "0.5"), (keys::KAI_CONTAINER, "c")],
            "`gpu-fraction-container-name` is `c`: write the name of one of the pod's containers",
        ),
    ] {
        assert_eq!(asks("a", annotations), expected, "{annotations:?}");
    }
    assert_eq!(
        asks("a nvidia.com/gpu=1", &[(fraction, "0.5")]),
        "the pod asks for `nvidia.com/gpu` and for `gpu-fraction`; a pod can use one way of asking \
         for GPUs"
    );
}

proptest! {
    #[test]
    fn any_annotation_is_a_claim_or_is_named(
        key in proptest::sample::select(&[
            keys::KAI_FRACTION, keys::KAI_MEMORY, keys::KAI_DEVICES, keys::KAI_CONTAINER,
        ][..]),
        text in "[0-9]{0,25}|[0-9.]{0,8}|[ -~]{0,12}",
    ) {
        let mut pod = annotated("a", &[(keys::KAI_FRACTION, "0.5")]);
        pod.metadata.annotations.insert(key.to_owned(), text);
        if let Err(error) = claim_of(&pod, Unit::MiB) {
            let names_it = error.to_string().contains(key);
            let many = error.to_string().contains("a pod can have parts of 1 to 64 GPUs");
            prop_assert!(names_it || many, "{error}");
        }
    }
}
