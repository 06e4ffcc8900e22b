//! Pods as users write them: reading their requests, and writing results on them.

use std::sync::Arc;

use sublet_model::{Ask, ContainerName, Count, Inventory, MiB, Milli, NodeName, Portion, Unit};

use super::*;
use crate::object::Container;

mod hami;
mod kai;
mod koordinator;
mod kubeshare;
mod several;
mod share_pod;
mod short_form;

/// `main aliyun.com/gpu-mem=3; init: warm aliyun.com/gpu-mem=8` as a pod.
fn pod(picture: &str) -> Pod {
    let mut pod = Pod::default();
    pod.metadata.name = "p".to_owned();
    for part in picture
        .split(';')
        .map(str::trim)
        .filter(|part| !part.is_empty())
    {
        let (list, part) = match part.strip_prefix("init:") {
            Some(rest) => (&mut pod.spec.init_containers, rest.trim()),
            None => (&mut pod.spec.containers, part),
        };
        let mut words = part.split_whitespace();
        let mut container = Container {
            name: words.next().unwrap().to_owned(),
            ..Container::default()
        };
        for word in words {
            let (resource, amount) = word.split_once('=').unwrap();
            let amount = crate::object::Quantity(amount.to_owned());
            container
                .resources
                .limits
                .insert(resource.to_owned(), amount);
        }
        list.push(container);
    }
    pod
}

fn claim(picture: &str, unit: Unit) -> Result<Option<Claim>, String> {
    claim_of(&pod(picture), unit).map_err(|error| error.to_string())
}

/// The pod of a picture, with these annotations.
fn annotated(picture: &str, annotations: &[(&str, &str)]) -> Pod {
    let mut pod = pod(picture);
    let pairs = annotations.iter();
    let pairs = pairs.map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
    pod.metadata.annotations = pairs.collect();
    pod
}

/// Request of a pod, container by container, or the reason of its refusal.
fn said(pod: &Pod) -> String {
    let claim = match claim_of(pod, Unit::MiB) {
        Ok(Some(claim)) => claim,
        Ok(None) => return "nothing".to_owned(),
        Err(error) => return error.to_string(),
    };
    let container = |one: &ContainerClaim| {
        let demand = one.demand;
        let portion = match demand.portion {
            Portion::Whole => "whole".to_owned(),
            Portion::Part(part) => part.to_string(),
        };
        let limit = match demand.compute_limit {
            Milli::WHOLE => String::new(),
            limit => format!(", at most {limit}"),
        };
        format!("{}: {} x {portion}{limit}", one.name, demand.gpus.get())
    };
    let all: Vec<String> = claim.containers().iter().map(container).collect();
    let class = match claim.class() {
        Class::Guaranteed => "",
        Class::Opportunistic => "opportunistic ",
    };
    format!("{class}{}", all.join("; "))
}

fn facts(unit: Unit) -> NodeFacts {
    NodeFacts {
        unit,
        ..NodeFacts::plain(
            NodeName::new("n1").unwrap(),
            Arc::new(Inventory::equal_cards(4, MiB::from(16_276)).unwrap()),
        )
    }
}

#[test]
fn claims_are_read_in_both_units_and_counted_as_kubernetes_counts() {
    let ask = |picture, unit| claim(picture, unit).unwrap().unwrap().ask().clone();
    assert_eq!(
        ask("a aliyun.com/gpu-mem=3", Unit::MiB),
        Ask::of_memory(MiB::from(3))
    );
    assert_eq!(
        ask("a aliyun.com/gpu-mem=3", Unit::GiB),
        Ask::of_memory(MiB::from(3072))
    );
    assert_eq!(
        ask(
            "a aliyun.com/gpu-mem=1; b aliyun.com/gpu-mem=2; init: i aliyun.com/gpu-mem=8",
            Unit::MiB
        ),
        Ask::of_memory(MiB::from(8))
    );
    assert_eq!(
        ask("a nvidia.com/gpu=2; b nvidia.com/gpu=1", Unit::MiB),
        Ask::WholeCards(Count::new(3))
    );
    assert_eq!(claim("a cpu=1", Unit::MiB), Ok(None));
    assert_eq!(claim("a aliyun.com/gpu-mem=0", Unit::MiB), Ok(None));
}

#[test]
fn few_units_of_a_mib_are_remarked_on() {
    let said = |picture: &str, unit| remarks(&claim(picture, unit).unwrap().unwrap(), unit);
    let few = "a aliyun.com/gpu-mem=2; b aliyun.com/gpu-mem=64; init: i aliyun.com/gpu-mem=63";
    let [init, main] = &said(few, Unit::MiB)[..] else {
        panic!("{:?}", said(few, Unit::MiB))
    };
    assert!(init.starts_with("container i asks for 63 of"), "{init}");
    assert_eq!(
        main,
        "container a asks for 2 of `aliyun.com/gpu-mem`, and one is a MiB here (--memory-unit): that \
         is 2 MiB of a GPU, too little for any CUDA program; if GiB are meant, write 2048"
    );
    assert!(said(few, Unit::GiB).is_empty());
    assert!(said("a nvidia.com/gpumem=2", Unit::MiB).is_empty());
    assert!(said("a nvidia.com/gpu=1", Unit::MiB).is_empty());
}

#[test]
fn bad_claims_are_named() {
    let refused = |picture| claim(picture, Unit::MiB).unwrap_err();
    assert_eq!(
        refused("a aliyun.com/gpu-mem=0.5"),
        "container a: `aliyun.com/gpu-mem` is `0.5`: it is not a whole number"
    );
    assert_eq!(
        refused("a aliyun.com/gpu-mem=-1"),
        "container a: `aliyun.com/gpu-mem` is `-1`: it is negative"
    );
    assert!(refused("a aliyun.com/gpu-mem=17592186044416").ends_with("it is too large"));
    assert!(refused("a nvidia.com/gpu=5G").ends_with("it is too large"));
    assert_eq!(
        refused("a aliyun.com/gpu-mem=1; b nvidia.com/gpu=1"),
        "the pod asks for `aliyun.com/gpu-mem` and for `nvidia.com/gpu`; a pod can use one way of asking for GPUs"
    );
    assert!(
        refused("a sublet.dev/gpu-slot=1")
            .starts_with("the pod asks for `sublet.dev/gpu-slot` but")
    );
}

#[test]
fn compute_time_is_a_part_of_the_claim_and_its_class_a_label() {
    let with_class = |picture: &str, class: &str| {
        let mut pod = pod(picture);
        let label = (keys::CLASS_LABEL.to_owned(), class.to_owned());
        pod.metadata.labels = BTreeMap::from([label]);
        claim_of(&pod, Unit::MiB)
    };
    let asks = "a aliyun.com/gpu-mem=3 aliyun.com/gpu-core.percentage=30; \
                b aliyun.com/gpu-mem=4 aliyun.com/gpu-core.percentage=70";
    let both = claim(asks, Unit::MiB).unwrap().unwrap();
    let Ask::Parts(parts) = both.ask() else {
        panic!("{:?}", both.ask());
    };
    let parts: Vec<String> = parts.iter().map(|part| part.to_string()).collect();
    assert_eq!(parts, ["7 MiB and 100 % of compute time"]);
    assert_eq!(both.class(), Class::Guaranteed);
    assert_eq!(with_class(asks, "guaranteed"), Ok(Some(both)));
    let plain = with_class("a aliyun.com/gpu-mem=3", "opportunistic").unwrap();
    assert_eq!(plain.unwrap().class(), Class::Opportunistic);
    // Of a pod without a GPU it says nothing.
    assert_eq!(with_class("a cpu=1", "best"), Ok(None));
    for (picture, class, why) in [
        (
            "a aliyun.com/gpu-mem=3 aliyun.com/gpu-core.percentage=101",
            "guaranteed",
            "container a: `aliyun.com/gpu-core.percentage` is `101`: it is too large",
        ),
        (
            "a aliyun.com/gpu-mem=3 aliyun.com/gpu-core.percentage=99999",
            "guaranteed",
            "container a: `aliyun.com/gpu-core.percentage` is `99999`: it is too large",
        ),
        (
            "a aliyun.com/gpu-mem=3 aliyun.com/gpu-core.percentage=0.5",
            "guaranteed",
            "container a: `aliyun.com/gpu-core.percentage` is `0.5`: it is not a whole number",
        ),
        (
            "a aliyun.com/gpu-core.percentage=30",
            "guaranteed",
            "container a asks for `aliyun.com/gpu-core.percentage` but for no \
             `aliyun.com/gpu-mem`: add it",
        ),
        (
            "a aliyun.com/gpu-mem=3 aliyun.com/gpu-core.percentage=60; \
             b aliyun.com/gpu-mem=3 aliyun.com/gpu-core.percentage=50",
            "guaranteed",
            "the containers of the pod ask for 1100 thousandths of the compute time of one GPU \
             together; there are 1000",
        ),
        (
            asks,
            "opportunistic",
            "container a asks for compute time, but its pod is opportunistic and gets what \
             others leave",
        ),
        (
            "a aliyun.com/gpu-mem=3",
            "best",
            "label `sublet.dev/class` is `best`; write `guaranteed` or `opportunistic`",
        ),
    ] {
        let refused = with_class(picture, class).unwrap_err();
        assert_eq!(refused.to_string(), why);
    }
}

#[test]
fn a_label_that_is_changed_later_hides_nothing_of_what_a_pod_has() {
    let mut pod = pod("a aliyun.com/gpu-mem=3 aliyun.com/gpu-core.percentage=30");
    let before = claim_of(&pod, Unit::MiB).unwrap();
    for class in ["best", "opportunistic", ""] {
        let label = (keys::CLASS_LABEL.to_owned(), class.to_owned());
        pod.metadata.labels.extend([label]);
        pod.spec.node_name = String::new();
        assert!(claim_of(&pod, Unit::MiB).is_err(), "{class}");
        pod.spec.node_name = "n1".to_owned();
        assert_eq!(claim_of(&pod, Unit::MiB).as_ref(), Ok(&before), "{class}");
    }
}

#[test]
fn a_binding_carries_the_five_annotations_of_the_original() {
    // G4: a 3 GiB pod on a card of 15 GiB.
    let claim = claim("a aliyun.com/gpu-mem=3", Unit::GiB).unwrap().unwrap();
    let facts = facts(Unit::GiB);
    let allocation = Allocation {
        grants: vec![sublet_model::Grant {
            container: ContainerName::new("a").unwrap(),
            card: sublet_model::CardRef {
                index: sublet_model::GpuIndex(1),
                uuid: None,
            },
            memory: MiB::from(3072),
        }],
    };
    let present = ["scheduler.framework.gpushare.allocation", "team"];
    let annotations = binding_annotations(
        &claim,
        &allocation,
        &facts,
        1_610_364_333_371_132_383,
        present,
    );
    let expected = [
        ("ALIYUN_COM_GPU_MEM_ASSIGNED", "false"),
        ("ALIYUN_COM_GPU_MEM_ASSUME_TIME", "1610364333371132383"),
        ("ALIYUN_COM_GPU_MEM_DEV", "15"),
        ("ALIYUN_COM_GPU_MEM_IDX", "1"),
        ("ALIYUN_COM_GPU_MEM_POD", "3"),
        (
            "scheduler.framework.gpushare.allocation",
            r#"{"0":{"1":3}}"#,
        ),
        (
            "sublet.dev/allocation",
            r#"[{"container":"a","index":1,"memoryMiB":3072}]"#,
        ),
        ("sublet.dev/assigned", "[]"),
    ];
    let got: Vec<_> = annotations
        .iter()
        .map(|(k, v)| (k.as_str(), v.as_str()))
        .collect();
    assert_eq!(got, expected);
    let environment = environment(&claim, &allocation, &claim.containers()[0], &facts);
    let got: Vec<_> = environment
        .iter()
        .map(|(k, v)| format!("{k}={v}"))
        .collect();
    assert_eq!(
        got.join(" "),
        "ALIYUN_COM_GPU_MEM_CONTAINER=3 ALIYUN_COM_GPU_MEM_DEV=15 ALIYUN_COM_GPU_MEM_IDX=1 \
         ALIYUN_COM_GPU_MEM_POD=3 NVIDIA_VISIBLE_DEVICES=1"
    );
}

#[test]
fn a_forged_key_of_another_dialect_is_blanked() {
    let claim = claim("a nvidia.com/gpu=1", Unit::MiB).unwrap().unwrap();
    let present = ["ALIYUN_COM_GPU_MEM_IDX"];
    let annotations = binding_annotations(
        &claim,
        &Allocation::default(),
        &facts(Unit::MiB),
        0,
        present,
    );
    assert_eq!(annotations["ALIYUN_COM_GPU_MEM_IDX"], "");
}

#[test]
fn every_form_of_an_allocation_is_read() {
    let mut pod = pod("a aliyun.com/gpu-mem=1; b aliyun.com/gpu-mem=2");
    let claim = claim_of(&pod, Unit::MiB).unwrap().unwrap();
    let mut check = |key: &str, value: &str| {
        pod.metadata.annotations = BTreeMap::from([(key.to_owned(), value.to_owned())]);
        match allocation_of(&pod, &claim) {
            Ok(None) => "nothing".to_owned(),
            Ok(Some(a)) => a
                .grants
                .iter()
                .map(|g| format!("{}@{} ", g.memory, g.card.index))
                .collect(),
            Err(error) => error.to_string(),
        }
    };
    assert_eq!(check("team", "x"), "nothing");
    assert_eq!(check(keys::ALIYUN_IDX, "3"), "1 MiB@3 2 MiB@3 ");
    assert_eq!(
        check(keys::ALIYUN_ALLOCATION, r#"{"0":{"2":1},"1":{"2":2}}"#),
        "1 MiB@2 2 MiB@2 "
    );
    assert_eq!(
        check(
            keys::ALLOCATION,
            r#"[{"container":"a","index":1,"memoryMiB":1},{"container":"b","index":1,"memoryMiB":2}]"#
        ),
        "1 MiB@1 2 MiB@1 "
    );
    for (key, value, expected) in [
        (
            keys::ALIYUN_IDX,
            "-1",
            "annotation `ALIYUN_COM_GPU_MEM_IDX` has `-1`, which is not the index of a GPU",
        ),
        (
            keys::ALIYUN_IDX,
            "99999",
            "annotation `ALIYUN_COM_GPU_MEM_IDX` has `99999`, which is not the index of a GPU",
        ),
        (
            keys::ALIYUN_ALLOCATION,
            r#"{"0":{"1":1},"1":{"2":2}}"#,
            "annotation `scheduler.framework.gpushare.allocation` does not answer what the pod's containers ask",
        ),
        (
            keys::ALIYUN_ALLOCATION,
            "[]",
            "annotation `scheduler.framework.gpushare.allocation` cannot be read",
        ),
        (
            keys::ALLOCATION,
            "[]",
            "annotation `sublet.dev/allocation` does not answer what the pod's containers ask",
        ),
    ] {
        assert_eq!(check(key, value), expected);
    }
}

#[test]
fn a_pod_is_assigned_when_every_container_is() {
    let mut pod = pod("a aliyun.com/gpu-mem=1; b aliyun.com/gpu-mem=2");
    let claim = claim_of(&pod, Unit::MiB).unwrap().unwrap();
    let mut check = |patch: BTreeMap<String, String>| {
        pod.metadata.annotations.extend(patch);
        is_assigned(&pod, &claim)
    };
    assert!(!check(BTreeMap::from([(
        keys::ASSIGNED.to_owned(),
        "[]".to_owned()
    )])));
    assert!(!check(assigned_annotations(&claim, &["b".to_owned()], 7)));
    assert!(check(assigned_annotations(
        &claim,
        &["b".to_owned(), "a".to_owned()],
        7
    )));
    assert_eq!(pod.metadata.annotations[keys::ALIYUN_ASSIGNED], "true");
    pod.metadata
        .annotations
        .insert(keys::ASSIGNED.to_owned(), "nonsense".to_owned());
    assert!(!is_assigned(&pod, &claim));
}

/// Checks CONTRIBUTING: one file and one line make a dialect known to all readers of dialects.
#[test]
fn a_dialect_is_one_file_and_one_line() {
    let asked = pod("a toy.dev/gpu=2 toy.dev/percent=30; b toy.dev/gpu=1");
    let claim = claim_of(&asked, Unit::MiB).unwrap().unwrap();
    assert_eq!(resource_of(&claim), Some("toy.dev/gpu"));
    let Ask::Parts(parts) = claim.ask() else {
        panic!("{:?}", claim.ask());
    };
    let parts: Vec<String> = parts.iter().map(|part| part.to_string()).collect();
    let thirty = "30 MiB and 30 % of compute time";
    assert_eq!(parts, [thirty, thirty]);
    let error = claim_of(&pod("a toy.dev/gpu=1 aliyun.com/gpu-mem=1"), Unit::MiB);
    assert!(matches!(error, Err(ClaimError::Dialects(..))));
    let error = claim_of(&pod("a toy.dev/percent=30"), Unit::MiB);
    assert!(matches!(error, Err(ClaimError::Lacks { .. })));

    // Without an agent, its node's cards are read from the status.
    let mut node = Node::default();
    node.metadata.name = "n1".to_owned();
    let count = crate::object::Quantity("3".to_owned());
    node.status.capacity.insert("toy.dev/gpu".to_owned(), count);
    let facts = crate::facts_of(&node, NodeDefaults::default())
        .unwrap()
        .unwrap();
    assert_eq!(facts.inventory.gpus().len(), 3);

    // Its result keys are nobody else's to write, and are counted where devices are.
    let present = ["toy.dev/card", "team"];
    let written = binding_annotations(&claim, &Allocation::default(), &facts, 7, present);
    assert_eq!(written["toy.dev/card"], "");
    assert!(written.contains_key(keys::ALLOCATION) && !written.contains_key("team"));
    assert!(device_resources().any(|resource| resource == "toy.dev/percent"));
}

#[test]
fn where_the_runtime_asks_a_binding_names_its_plugin() {
    let claim = claim("a aliyun.com/gpu-mem=3", Unit::GiB).unwrap().unwrap();
    let check = |identity, present: &[&'static str]| {
        let facts = NodeFacts {
            identity,
            ..facts(Unit::GiB)
        };
        let present = present.iter().copied();
        let written = binding_annotations(&claim, &Allocation::default(), &facts, 7, present);
        written.get(keys::REQUIRED_PLUGINS).cloned()
    };
    let ours = Some(r#"["sublet"]"#.to_owned());
    assert_eq!(check(Identity::Nri, &[]), ours);
    assert_eq!(check(Identity::Checkpoint, &[]), None);
    // Its author requires plugins that nobody else may drop.
    assert_eq!(check(Identity::Nri, &[keys::REQUIRED_PLUGINS]), None);
}

proptest::proptest! {
    #[test]
    fn any_amounts_and_any_class_are_answered(
        amounts in "[0-9]{1,5}|-?[0-9.]{0,4}[kMGm]?",
        memory in 0..100_u32,
        class in "guaranteed|opportunistic|[a-z]{0,3}",
    ) {
        let text = format!("a aliyun.com/gpu-mem={memory} aliyun.com/gpu-core.percentage={amounts}");
        let mut pod = pod(&text);
        pod.metadata.labels.insert(keys::CLASS_LABEL.to_owned(), class.clone());
        let claim = claim_of(&pod, Unit::MiB);
        if let Ok(Some(claim)) = &claim {
            let Ask::Parts(parts) = claim.ask() else {
                panic!("{:?}", claim.ask());
            };
            let part = parts.iter().next().unwrap_or_default();
            proptest::prop_assert_eq!(part.memory, MiB::from(memory));
            proptest::prop_assert_eq!(claim.class().word(), class);
            let is_promised = part.compute > Milli::ZERO;
            proptest::prop_assert!(!is_promised || claim.class() == Class::Guaranteed);
        }
    }

    #[test]
    fn any_text_in_any_annotation_is_answered(
        key in proptest::sample::select(result_keys().collect::<Vec<_>>()),
        text in r#"[\[\]{}":,a-z0-9 .-]{0,40}"#,
    ) {
        let mut pod = pod("a aliyun.com/gpu-mem=1; b aliyun.com/gpu-mem=2");
        let claim = claim_of(&pod, Unit::MiB).unwrap().unwrap();
        pod.metadata.annotations.insert(key.to_owned(), text);
        // What is read answers the claim; everything else is an error or nothing.
        if let Ok(Some(allocation)) = allocation_of(&pod, &claim) {
            proptest::prop_assert!(allocation.answers(&claim));
        }
        let _assigned: bool = is_assigned(&pod, &claim);
    }
}
