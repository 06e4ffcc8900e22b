//! Koordinator's form. Tests k1 to k13 are the cases of its own tests that are about claims and
//! results, in our words.

use proptest::prelude::*;
use sublet_model::{Gpu, GpuIndex, GpuUuid, NodeFacts};

use super::*;

/// A node of two cards with 32 GiB; minors count down where indices count up.
fn node() -> NodeFacts {
    let card = |index: u16| Gpu {
        uuid: Some(GpuUuid::new(&format!("GPU-{index}")).unwrap()),
        minor: Some(1 - index),
        ..Gpu::plain(GpuIndex(index), MiB::from(32 << 10))
    };
    let inventory = Inventory::new(vec![card(0), card(1)], vec![], vec![], vec![]);
    NodeFacts::plain(NodeName::new("n1").unwrap(), Arc::new(inventory.unwrap()))
}

/// `a core=50 ratio=50` with the long names.
fn long(picture: &str) -> String {
    let words = picture.split(' ').map(|word| match word.split_once('=') {
        Some(("nvidia", n)) => format!("nvidia.com/gpu={n}"),
        Some(("gpu", n)) => format!("koordinator.sh/gpu={n}"),
        Some(("core", n)) => format!("koordinator.sh/gpu-core={n}"),
        Some(("mem", n)) => format!("koordinator.sh/gpu-memory={n}"),
        Some(("ratio", n)) => format!("koordinator.sh/gpu-memory-ratio={n}"),
        Some(("shared", n)) => format!("koordinator.sh/gpu.shared={n}"),
        _ => word.to_owned(),
    });
    words.collect::<Vec<_>>().join(" ")
}

fn asks(picture: &str) -> String {
    said(&pod(&long(picture)))
}

#[test]
fn k1_valid_sets_are_read() {
    for (picture, expected) in [
        ("a nvidia=2", "a: 2 x whole"),
        (
            "a gpu=50",
            "a: 1 x 50 % of its memory and 50 % of compute time",
        ),
        ("a gpu=200", "a: 2 x whole"),
        ("a mem=64Gi", "a: 1 x 65536 MiB"),
        ("a mem=1", "a: 1 x 1 MiB"),
        ("a ratio=30", "a: 1 x 30 % of its memory"),
        ("a ratio=200", "a: 2 x whole"),
        ("a ratio=100", "a: 1 x whole"),
        (
            "a core=30 mem=8Gi",
            "a: 1 x 8192 MiB and 30 % of compute time",
        ),
        // Its webhook makes two cards of it.
        (
            "a core=200 mem=64Gi",
            "a: 2 x 32768 MiB and 100 % of compute time",
        ),
        (
            "a core=30 ratio=60",
            "a: 1 x 60 % of its memory and 30 % of compute time",
        ),
        ("a shared=2 mem=16Gi", "a: 2 x 8192 MiB"),
        ("a shared=2 ratio=100", "a: 2 x 50 % of its memory"),
        ("a shared=2 ratio=200", "a: 2 x whole"),
        (
            "a shared=2 core=100 mem=64Gi",
            "a: 2 x 32768 MiB and 50 % of compute time",
        ),
        (
            "a shared=1 core=100 mem=64Gi",
            "a: 1 x 65536 MiB and 100 % of compute time",
        ),
        ("a cpu=1", "nothing"),
        ("a ratio=0", "nothing"),
    ] {
        assert_eq!(asks(picture), expected, "{picture}");
    }
}

#[test]
fn k1_invalid_sets_are_named_with_those_that_are_valid() {
    let valid = "do not go together: write `nvidia.com/gpu` alone, or `koordinator.sh/gpu` alone, \
         or one of `koordinator.sh/gpu-memory` and `koordinator.sh/gpu-memory-ratio`, with or \
         without `koordinator.sh/gpu-core` and `koordinator.sh/gpu.shared`";
    for (picture, named) in [
        ("a core=101", "`koordinator.sh/gpu-core`"),
        ("a core=100", "`koordinator.sh/gpu-core`"),
        ("a shared=2", "`koordinator.sh/gpu.shared`"),
        (
            "a gpu=50 mem=1Gi",
            "`koordinator.sh/gpu`, `koordinator.sh/gpu-memory`",
        ),
        (
            "a mem=1Gi ratio=5",
            "`koordinator.sh/gpu-memory`, `koordinator.sh/gpu-memory-ratio`",
        ),
        (
            "a nvidia=2 gpu=200 core=200 mem=32Gi ratio=200",
            "`nvidia.com/gpu`, `koordinator.sh/gpu`, `koordinator.sh/gpu-core`, \
             `koordinator.sh/gpu-memory`, `koordinator.sh/gpu-memory-ratio`",
        ),
    ] {
        assert_eq!(
            asks(picture),
            format!("container a: {named} {valid}"),
            "{picture}"
        );
    }
    for (picture, named) in [
        ("a gpu=101", "`koordinator.sh/gpu` is 101 for 1 card:"),
        (
            "a core=100 ratio=101",
            "`koordinator.sh/gpu-memory-ratio` is 101 for 1 card:",
        ),
        (
            "a core=150 ratio=200",
            "`koordinator.sh/gpu-core` is 150 for 2 cards:",
        ),
        (
            "a core=300 ratio=200",
            "`koordinator.sh/gpu-core` is 300 for 2 cards:",
        ),
        (
            "a core=200 ratio=50",
            "`koordinator.sh/gpu-core` is 200 for 1 card:",
        ),
        (
            "a ratio=101 shared=1",
            "`koordinator.sh/gpu-memory-ratio` is 101 for 1 card:",
        ),
        (
            "a ratio=101 shared=2",
            "`koordinator.sh/gpu-memory-ratio` is 101 for 2 cards:",
        ),
        (
            "a core=101 mem=64Gi shared=1",
            "`koordinator.sh/gpu-core` is 101 for 1 card:",
        ),
        (
            "a core=101 mem=64Gi shared=2",
            "`koordinator.sh/gpu-core` is 101 for 2 cards:",
        ),
    ] {
        let all = asks(picture);
        assert!(
            all.starts_with(&format!("container a: {named}")),
            "{picture}: {all}"
        );
    }
}

#[test]
fn k2_two_shared_cards_divide_what_is_asked() {
    assert_eq!(
        asks("a shared=2 core=100 ratio=100"),
        "a: 2 x 50 % of its memory and 50 % of compute time"
    );
}

#[test]
fn k3_two_hundred_percent_are_two_whole_cards() {
    assert_eq!(asks("a core=200 ratio=200"), "a: 2 x whole");
}

#[test]
fn k4_memory_and_all_compute_time_share_one_card() {
    assert_eq!(
        asks("a mem=1Ki core=100"),
        "a: 1 x 1 MiB and 100 % of compute time"
    );
}

/// Annotations of a Binding for a pod that got these cards.
fn written(picture: &str, cards: &[u16]) -> BTreeMap<String, String> {
    let claim = claim_of(&pod(&long(picture)), Unit::MiB).unwrap().unwrap();
    let facts = node();
    let grants = claim.containers().iter().flat_map(|container| {
        let cards = cards.iter().take(container.demand.gpus.get() as usize);
        cards.map(|index| {
            let gpu = &facts.inventory.gpus()[usize::from(*index)];
            sublet_model::Grant {
                container: container.name.clone(),
                card: sublet_model::CardRef {
                    index: gpu.index,
                    uuid: gpu.uuid.clone(),
                },
                memory: match container.demand.portion {
                    Portion::Whole => gpu.memory,
                    Portion::Part(part) => part.on(gpu.memory).memory,
                },
            }
        })
    });
    let allocation = Allocation {
        grants: grants.collect(),
    };
    assert!(allocation.answers(&claim), "{picture}");
    binding_annotations(&claim, &allocation, &facts, 7, [])
}

#[test]
fn k5_memory_and_ratio_follow_from_each_other_in_the_exact_json() {
    for (picture, cards, expected) in [
        (
            "a core=50 ratio=50",
            &[0][..],
            r#"{"gpu":[{"minor":1,"resources":{"koordinator.sh/gpu-core":"50","koordinator.sh/gpu-memory":"16Gi","koordinator.sh/gpu-memory-ratio":"50"},"id":"GPU-0"}]}"#,
        ),
        (
            "a core=50 mem=16Gi",
            &[1],
            r#"{"gpu":[{"minor":0,"resources":{"koordinator.sh/gpu-core":"50","koordinator.sh/gpu-memory":"16Gi","koordinator.sh/gpu-memory-ratio":"50"},"id":"GPU-1"}]}"#,
        ),
        (
            "a mem=1000Mi; b mem=24Mi",
            &[1],
            r#"{"gpu":[{"minor":0,"resources":{"koordinator.sh/gpu-memory":"1Gi","koordinator.sh/gpu-memory-ratio":"3"},"id":"GPU-1"}]}"#,
        ),
        (
            "a gpu=200",
            &[1, 0],
            r#"{"gpu":[{"minor":1,"resources":{"koordinator.sh/gpu-core":"100","koordinator.sh/gpu-memory":"32Gi","koordinator.sh/gpu-memory-ratio":"100"},"id":"GPU-0"},{"minor":0,"resources":{"koordinator.sh/gpu-core":"100","koordinator.sh/gpu-memory":"32Gi","koordinator.sh/gpu-memory-ratio":"100"},"id":"GPU-1"}]}"#,
        ),
    ] {
        let annotations = written(picture, cards);
        assert_eq!(
            annotations[keys::KOORDINATOR_ALLOCATED],
            expected,
            "{picture}"
        );
        assert_eq!(annotations[keys::KOORDINATOR_BOUND], "7");
    }
}

#[test]
fn k13_the_cards_are_sorted_for_nvidia_visible_devices() {
    assert_eq!(
        written("a gpu=200", &[1, 0])[keys::KOORDINATOR_MINORS],
        "0,1"
    );
    // The minor of this card is 0, and NVIDIA_VISIBLE_DEVICES=0 is another card.
    assert_eq!(written("a ratio=50", &[1])[keys::KOORDINATOR_MINORS], "1");
}

/// Allocation of a pod that Koordinator bound: `container:index/uuid/MiB`.
fn read_back(picture: &str, text: &str) -> String {
    let pod = annotated(&long(picture), &[(keys::KOORDINATOR_ALLOCATED, text)]);
    let claim = claim_of(&pod, Unit::MiB).unwrap().unwrap();
    match allocation_of(&pod, &claim) {
        Err(error) => error.to_string(),
        Ok(None) => "nothing".to_owned(),
        Ok(Some(allocation)) => {
            let grants = allocation.grants.iter().map(|grant| {
                let uuid = grant.card.uuid.as_ref().map(ToString::to_string);
                let (container, memory) = (&grant.container, grant.memory.get());
                let uuid = uuid.unwrap_or_default();
                format!("{container}:{}/{uuid}/{memory}", grant.card.index)
            });
            grants.collect::<Vec<_>>().join(" ")
        }
    }
}

#[test]
fn pods_that_koordinator_bound_are_read() {
    let one = r#"{"gpu":[{"minor":3,"id":"GPU-x","resources":{"koordinator.sh/gpu-core":"50","koordinator.sh/gpu-memory":"8Gi","koordinator.sh/gpu-memory-ratio":50}}]}"#;
    let two = r#"{"gpu":[{"minor":0,"resources":{"koordinator.sh/gpu-memory":"8Gi"}},{"minor":2}],"rdma":[{"minor":1}]}"#;
    assert_eq!(read_back("a mem=8Gi core=50", one), "a:3/GPU-x/8192");
    assert_eq!(
        read_back("a ratio=25; b ratio=25", one),
        "a:3/GPU-x/8192 b:3/GPU-x/8192"
    );
    assert_eq!(read_back("a shared=2 mem=2Gi", two), "a:0//1024 a:2//1024");
    assert_eq!(read_back("a gpu=100; b gpu=100", two), "a:0//8192 b:2//0");
    // Koordinator writes it for pods in NVIDIA's form, too.
    assert_eq!(read_back("a nvidia=1", one), "a:3/GPU-x/8192");
    assert_eq!(read_back("a ratio=25", ""), "nothing");
    let key = "annotation `scheduling.koordinator.sh/device-allocated`";
    let mismatch = format!("{key} does not answer what the pod's containers ask");
    for (picture, text, why) in [
        ("a ratio=25", two, mismatch.as_str()),
        ("a gpu=200", one, &mismatch),
        ("a ratio=25", r#"{"rdma":[{"minor":1}]}"#, &mismatch),
        ("a ratio=25", r#"{"gpu":null}"#, &mismatch),
        ("a ratio=25", "[]", &format!("{key} cannot be read")),
        (
            "a ratio=25",
            r#"{"gpu":[{"minor":-1}]}"#,
            &format!("{key} has `-1`, which is not the number of a GPU"),
        ),
    ] {
        assert_eq!(read_back(picture, text), why, "{text}");
    }
}

#[test]
fn compute_time_is_a_limit_where_koordlet_would_limit_it() {
    let mut pod = pod(&long("a core=30 mem=8Gi; b mem=8Gi"));
    let label = |value: &str| (keys::KOORDINATOR_ISOLATION.to_owned(), value.to_owned());
    pod.metadata.labels.extend([label("HAMi-core")]);
    assert_eq!(
        said(&pod),
        "a: 1 x 8192 MiB and 30 % of compute time, at most 30 %; b: 1 x 8192 MiB"
    );
    pod.metadata.labels.extend([label("none")]);
    assert!(said(&pod).starts_with("a: 1 x 8192 MiB and 30 % of compute time; b"));
}

#[test]
fn what_is_not_ours_to_hand_out_is_refused() {
    for (picture, named) in [
        (
            "a gpu=50 koordinator.sh/rdma=100",
            "a: Sublet does not hand out `koordinator.sh/rdma`",
        ),
        (
            "a nvidia=1; b koordinator.sh/rdma=1",
            "b: Sublet does not hand out `koordinator.sh/rdma`",
        ),
        (
            "a koordinator.sh/fpga=100",
            "a: Sublet does not hand out `koordinator.sh/fpga`",
        ),
        (
            "a ratio=50 huawei.com/npu-core=1",
            "a: Sublet does not hand out `huawei.com/npu-core`",
        ),
        (
            "a ratio=50 amd.com/gpu=1",
            "a: Sublet does not hand out `amd.com/gpu`",
        ),
    ] {
        let refused = asks(picture);
        assert!(
            refused.starts_with(&format!("container {named}")),
            "{picture}: {refused}"
        );
    }
    // Not Koordinator's, and not ours either.
    assert_eq!(asks("a amd.com/gpu=1"), "nothing");
}

#[test]
fn what_a_pod_requires_of_topology_is_served_or_refused() {
    let (hint, joint) = (keys::KOORDINATOR_HINT, keys::KOORDINATOR_JOINT);
    let partition = keys::KOORDINATOR_PARTITION;
    let numa = r#"{"gpu":{"requiredTopologyScope":"NUMANode","allocateStrategy":"ApplyForAll"}}"#;
    let wishes = |key, text| {
        let claim = claim_of(&annotated("a nvidia.com/gpu=2", &[(key, text)]), Unit::MiB);
        claim.map(|claim| {
            claim
                .unwrap()
                .wishes()
                .is_some_and(|wishes| wishes.one_numa)
        })
    };
    assert_eq!(wishes(hint, numa), Ok(true));
    for (key, text) in [
        (hint, r#"{"gpu":null,"rdma":{"selector":{}}}"#),
        (hint, r#"{"gpu":{"requiredTopologyScope":"Node"}}"#),
        (joint, r#"{"deviceTypes":["gpu","rdma"]}"#),
        (partition, r#"{"allocatePolicy":"BestEffort"}"#),
        (partition, "{}"),
    ] {
        assert_eq!(wishes(key, text), Ok(false), "{text}");
    }
    for (key, text, why) in [
        (
            hint,
            r#"{"gpu":{"selector":{"matchLabels":{"a":"b"}}}}"#,
            "no selector",
        ),
        (
            hint,
            r#"{"rdma":{"vfSelector":{"matchLabels":{"a":"b"}}}}"#,
            "no selector",
        ),
        (
            hint,
            r#"{"gpu":{"exclusivePolicy":"PCIeLevel"}}"#,
            "no `exclusivePolicy`",
        ),
        (
            hint,
            r#"{"gpu":{"requiredTopologyScope":"PCIe"}}"#,
            "`NUMANode` or `Node`",
        ),
        (hint, "gpu", "JSON such as"),
        (hint, r#"{"gpu":{"other":1}}"#, "JSON such as"),
        (
            joint,
            r#"{"deviceTypes":["gpu","rdma"],"requiredScope":"SamePCIe"}"#,
            "no `requiredScope`",
        ),
        (joint, "[1]", "JSON such as"),
        (
            partition,
            r#"{"allocatePolicy":"Restricted"}"#,
            "`BestEffort` as `allocatePolicy`",
        ),
        (
            partition,
            r#"{"ringBusBandwidth":"200Gi"}"#,
            "`BestEffort` as `allocatePolicy`",
        ),
        (partition, "1", "JSON such as"),
    ] {
        let refused = wishes(key, text).unwrap_err().to_string();
        assert!(
            refused.starts_with(&format!("`{key}` is `{text}`: write {why}")),
            "{refused}"
        );
    }
}

proptest! {
    #[test]
    fn any_amounts_are_a_claim_or_name_a_resource(
        words in proptest::collection::vec(
            ("nvidia|gpu|core|mem|ratio|shared", "[0-9]{1,4}|[0-9]{1,20}(Mi|Gi|k)?|-1|0[.]5"), 1..5,
        ),
    ) {
        let words: Vec<String> = words.iter().map(|(name, n)| format!("{name}={n}")).collect();
        let picture = long(&format!("a {}", words.join(" ")));
        if let Err(error) = claim_of(&pod(&picture), Unit::MiB) {
            prop_assert!(error.to_string().contains("container a"), "{error}");
        }
    }

    #[test]
    fn any_text_in_any_annotation_is_a_claim_or_names_it(
        key in proptest::sample::select(&[
            keys::KOORDINATOR_HINT, keys::KOORDINATOR_JOINT, keys::KOORDINATOR_PARTITION,
        ][..]),
        text in r#"[\[\]{}":,a-zA-Z0-9 .-]{0,40}|\{"gpu":\{"[a-zA-Z]{1,20}":("[A-Za-z]{0,9}"|\{\}|null)\}\}"#,
    ) {
        let pod = annotated("a koordinator.sh/gpu=50", &[(key, &text)]);
        if let Err(error) = claim_of(&pod, Unit::MiB) {
            prop_assert!(error.to_string().contains(key), "{error}");
        }
    }

    #[test]
    fn what_is_written_is_read_back(
        form in 0..3_u8, amount in 1..=100_u32, containers in 1..3_usize, cards in 1..=2_u16,
    ) {
        let asked = match form {
            0 => format!("shared={cards} mem={}Mi", amount * u32::from(cards)),
            1 => format!("shared={cards} ratio={}", amount * u32::from(cards) / 4 * u32::from(cards)),
            _ => format!("gpu={}", 100 * cards),
        };
        let containers = if form == 2 { 1 } else { containers };
        let picture = ["a", "b"].iter().take(containers).map(|name| format!("{name} {asked}"));
        let picture = picture.collect::<Vec<_>>().join("; ");
        let indices: Vec<u16> = (0..cards).collect();
        prop_assume!(claim_of(&pod(&long(&picture)), Unit::MiB).is_ok_and(|claim| claim.is_some()));
        let annotations = written(&picture, &indices);
        let text = &annotations[keys::KOORDINATOR_ALLOCATED];
        let pod = annotated(&long(&picture), &[(keys::KOORDINATOR_ALLOCATED, text)]);
        let claim = claim_of(&pod, Unit::MiB).unwrap().unwrap();
        let allocation = allocation_of(&pod, &claim).unwrap().unwrap();
        prop_assert!(allocation.answers(&claim));
        // The UUID says which card it is, whatever its minor.
        let facts = node();
        let card = |grant: &sublet_model::Grant| facts.inventory.position(&grant.card);
        let cards: Vec<_> = allocation.of(&claim.containers()[0].name).map(card).collect();
        prop_assert!(indices.iter().all(|index| cards.contains(&Some(usize::from(*index)))));
    }
}
