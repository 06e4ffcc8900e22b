//! HAMi's pods and nodes: rows H of its tests that are about claims, results and codecs.

use sublet_model::{
    Allocation, Ask, CardRef, Gpu, GpuIndex, GpuUuid, Grant, Inventory, Ledger, MiB, Sharing, Unit,
};

use super::*;
use crate::{NodeDefaults, NodeReport, facts_of, report_to_json};

/// Request of a pod, part by part, or the reason of its refusal.
fn asks(picture: &str, annotations: &[(&str, &str)]) -> String {
    match claim_of(&annotated(picture, annotations), Unit::MiB) {
        Err(error) => error.to_string(),
        Ok(None) => "nothing".to_owned(),
        Ok(Some(claim)) => match claim.ask() {
            Ask::Parts(parts) => {
                let parts: Vec<String> = parts.iter().map(|part| part.to_string()).collect();
                parts.join(", ")
            }
            other => format!("{other:?}"),
        },
    }
}

#[test]
fn h12_h13_amounts_are_read_as_hami_reads_them() {
    for (picture, expected) in [
        ("a nvidia.com/gpu=1 nvidia.com/gpumem=3000", "3000 MiB"),
        (
            "a nvidia.com/gpu=2 nvidia.com/gpumem=3000 nvidia.com/gpucores=30",
            "3000 MiB and 30 % of compute time, 3000 MiB and 30 % of compute time",
        ),
        // The count is added where only amounts are given.
        ("a nvidia.com/gpumem=3000", "3000 MiB"),
        (
            "a nvidia.com/gpucores=30",
            "100 % of its memory and 30 % of compute time",
        ),
        (
            "a nvidia.com/gpu=1 nvidia.com/gpumem-percentage=50",
            "50 % of its memory",
        ),
        (
            "a nvidia.com/gpu=1 nvidia.com/gpumem-percentage=100",
            "100 % of its memory and 100 % of compute time",
        ),
        (
            "a nvidia.com/gpu=1 nvidia.com/gpumem=1 nvidia.com/gpumem-percentage=50",
            "1 MiB",
        ),
        // 0 is as good as nothing, and a pod of nothing else asks for whole cards.
        (
            "a nvidia.com/gpu=1 nvidia.com/gpumem=0 nvidia.com/gpucores=0",
            "WholeCards(Count(1))",
        ),
        (
            "a nvidia.com/gpucores=30 nvidia.com/gpumem-percentage=0",
            "100 % of its memory and 30 % of compute time",
        ),
        // HAMi fills in all cores here. The pod asked for 1 MiB.
        (
            "a nvidia.com/gpu=1 nvidia.com/gpumem=1 nvidia.com/gpumem-percentage=100",
            "1 MiB",
        ),
        // HAMi takes it for 100.
        (
            "a nvidia.com/gpumem=1 nvidia.com/gpucores=101",
            "container a: `nvidia.com/gpucores` is `101`: it is too large",
        ),
        // Of one pod, the container that names no amount has a card for itself.
        (
            "a nvidia.com/gpu=1; b nvidia.com/gpu=1 nvidia.com/gpumem=1",
            "1 MiB, 100 % of its memory and 100 % of compute time",
        ),
        (
            "a nvidia.com/gpu=1 nvidia.com/gpumem-percentage=101",
            "container a: `nvidia.com/gpumem-percentage` is `101`: it is too large",
        ),
        (
            "a nvidia.com/gpu=1 nvidia.com/gpumem=17592186044416",
            "container a: `nvidia.com/gpumem` is `17592186044416`: it is too large",
        ),
        (
            "a nvidia.com/gpumem=1 nvidia.com/priority=2",
            "container a: `nvidia.com/priority` is `2`: it is too large",
        ),
        // Without an amount or a wish these are whole cards.
        ("a nvidia.com/gpu=2", "WholeCards(Count(2))"),
        ("a cpu=1", "nothing"),
        (
            "a nvidia.com/gpumem=1; b aliyun.com/gpu-mem=1",
            "the pod asks for `aliyun.com/gpu-mem` and for `nvidia.com/gpumem`; a pod can use one way of asking for GPUs",
        ),
    ] {
        assert_eq!(asks(picture, &[]), expected, "{picture}");
    }
}

#[test]
fn a_pod_with_memory_beside_its_gpu_is_no_whole_card() {
    let picture =
        "a nvidia.com/gpu=1 nvidia.com/gpumem=3000; b nvidia.com/gpu=1 nvidia.com/gpumem=5000";
    let claim = claim_of(&pod(picture), Unit::MiB).unwrap().unwrap();
    let Ask::Parts(parts) = claim.ask() else {
        panic!("{claim:?}");
    };
    assert_eq!(
        parts.own().map(<[_]>::len),
        Some(2),
        "each chooses for itself"
    );
    assert_eq!(resource_of(&claim), Some("nvidia.com/gpu"));
}

#[test]
fn h7_wishes_are_lists_and_an_empty_one_wants_nothing() {
    let card = |uuid: &str, model: &str, numa| Gpu {
        uuid: GpuUuid::new(uuid).ok(),
        model: Arc::from(model),
        numa,
        ..Gpu::plain(GpuIndex(0), MiB::from(1))
    };
    let gpus = [
        card("GPU-a", "Tesla V100-PCIE", Some(0)),
        card("GPU-b", "NVIDIA A100-SXM4", Some(0)),
        card("GPU-c", "NVIDIA A100-SXM4", Some(1)),
    ];
    let groups = |annotations: &[(&str, &str)]| {
        let claim = claim_of(
            &annotated("a nvidia.com/gpu=1 nvidia.com/gpumem=1", annotations),
            Unit::MiB,
        );
        match claim {
            Err(error) => error.to_string(),
            Ok(claim) => match claim.unwrap().wishes() {
                None => "any".to_owned(),
                Some(wishes) => format!("{:?}", wishes.groups(&gpus)),
            },
        }
    };
    for (annotations, expected) in [
        (&[("nvidia.com/use-gputype", "")][..], "any"),
        (&[("nvidia.com/use-gputype", "a100, H100")], "[[1, 2]]"),
        (&[("nvidia.com/nouse-gputype", "A100")], "[[0]]"),
        (&[("nvidia.com/use-gpuuuid", "GPU-c,GPU-x")], "[[2]]"),
        (&[("nvidia.com/nouse-gpuuuid", "GPU-c")], "[[0, 1]]"),
        (&[("nvidia.com/use-gputype", "NVIDIA-Tesla V100")], "[[0]]"),
        (&[("nvidia.com/use-gpuuuid", "GPU-x")], "[]"),
        (&[("nvidia.com/numa-bind", "true")], "[[0, 1], [2]]"),
        (&[("nvidia.com/numa-bind", "True")], "[[0, 1], [2]]"),
        (&[("nvidia.com/numa-bind", "false")], "any"),
        (&[("nvidia.com/vgpu-mode", "hami-core")], "any"),
        (&[("nvidia.com/vgpu-mode", "mig,hami-core")], "any"),
        (&[("hami.io/gpu-scheduler-policy", "binpack,numa")], "any"),
        (
            &[("hami.io/gpu-scheduler-policy", "mutex")],
            "`hami.io/gpu-scheduler-policy` is `mutex`: write `binpack` or `spread`, and \
             `nvidia.com/gpucores: 100` for a card that no other guaranteed pod has",
        ),
        (
            &[("nvidia.com/vgpu-mode", "mig")],
            "`nvidia.com/vgpu-mode` is `mig`: write `hami-core`, or nothing",
        ),
        (
            &[("nvidia.com/numa-bind", "yes")],
            "`nvidia.com/numa-bind` is `yes`: write `true` or `false`",
        ),
    ] {
        assert_eq!(groups(annotations), expected, "{annotations:?}");
    }
}

fn grant(container: &str, uuid: &str, memory: u32) -> Grant {
    Grant {
        container: ContainerName::new(container).unwrap(),
        card: CardRef {
            index: GpuIndex(u16::MAX),
            uuid: GpuUuid::new(uuid).ok(),
        },
        memory: MiB::from(memory),
    }
}

#[test]
fn results_are_written_and_read_in_hami_s_encoding() {
    let picture = "init: i cpu=1; a nvidia.com/gpu=1 nvidia.com/gpumem=3000; log cpu=1; \
                   b nvidia.com/gpu=2 nvidia.com/gpumem=5000 nvidia.com/gpucores=30; web cpu=1";
    let mut pod = pod(picture);
    let claim = claim_of(&pod, Unit::MiB).unwrap().unwrap();
    let allocation = Allocation {
        grants: vec![
            grant("a", "GPU-a", 3000),
            grant("b", "GPU-a", 5000),
            grant("b", "GPU-b", 5000),
        ],
    };
    let written = binding_annotations(&claim, &allocation, &facts(Unit::MiB), 7_000_000_001, []);
    let devices = ";GPU-a,NVIDIA,3000,0:;;GPU-a,NVIDIA,5000,30:GPU-b,NVIDIA,5000,30:;;";
    for (key, value) in [
        ("hami.io/vgpu-node", "n1"),
        ("hami.io/vgpu-time", "7"),
        ("hami.io/bind-time", "7"),
        ("hami.io/bind-phase", "allocating"),
        ("hami.io/vgpu-devices-to-allocate", devices),
        ("hami.io/vgpu-devices-allocated", devices),
    ] {
        assert_eq!(written[key], value, "{key}");
    }
    let all = ["a".to_owned(), "b".to_owned()];
    let done = assigned_annotations(&claim, &all, 8);
    assert_eq!(done["hami.io/bind-phase"], "success");
    assert_eq!(done["hami.io/vgpu-devices-to-allocate"], ";;;;;");

    // Where HAMi bound the pod, its own annotation says what the pod has.
    pod.metadata
        .annotations
        .insert(keys::HAMI_ALLOCATED.to_owned(), devices.to_owned());
    assert_eq!(
        allocation_of(&pod, &claim).unwrap(),
        Some(allocation.clone())
    );
    pod.metadata.annotations.clear();
    pod.metadata
        .annotations
        .insert(keys::HAMI_TO_ALLOCATE.to_owned(), devices.to_owned());
    assert_eq!(
        allocation_of(&pod, &claim).unwrap(),
        Some(allocation.clone())
    );

    let found = environment(
        &claim,
        &allocation,
        &claim.containers()[1],
        &facts(Unit::MiB),
    );
    let found: Vec<String> = found
        .iter()
        .map(|(key, value)| format!("{key}={value}"))
        .collect();
    assert_eq!(
        found.join(" "),
        "CUDA_DEVICE_MEMORY_LIMIT_0=5000m CUDA_DEVICE_MEMORY_LIMIT_1=5000m \
         CUDA_DEVICE_SM_LIMIT=30 NVIDIA_VISIBLE_DEVICES=GPU-a,GPU-b"
    );
}

#[test]
fn h23_what_cannot_be_read_is_named_and_nothing_else_is_lost() {
    let mut pod = pod("a nvidia.com/gpu=1 nvidia.com/gpumem=3000");
    let claim = claim_of(&pod, Unit::MiB).unwrap().unwrap();
    for (text, why) in [
        (
            "GPU-a,NVIDIA,three,0:;",
            "annotation `hami.io/vgpu-devices-allocated` has `three`, which is not an amount of memory in MiB",
        ),
        (
            "GPU-a,NVIDIA,4000,0:;",
            "annotation `hami.io/vgpu-devices-allocated` does not answer what the pod's containers ask",
        ),
        (
            ";",
            "annotation `hami.io/vgpu-devices-allocated` does not answer what the pod's containers ask",
        ),
    ] {
        pod.metadata.annotations =
            BTreeMap::from([(keys::HAMI_ALLOCATED.to_owned(), text.to_owned())]);
        assert_eq!(allocation_of(&pod, &claim).unwrap_err().to_string(), why);
    }
}

#[test]
fn h8_a_node_of_hami_s_plugin_is_known_and_a_cordoned_card_is_sick() {
    let mut node = Node::default();
    node.metadata.name = "n1".to_owned();
    let report = "GPU-a,10,16276,100,NVIDIA-V100,0,true:GPU-b,10,16276,100,NVIDIA-V100,0,true:";
    let annotations = [
        (keys::HAMI_REGISTER, report),
        (keys::HAMI_CORDON, "GPU-x, GPU-b"),
    ];
    node.metadata.annotations = annotations
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .into();
    // Ten times each, which are no twenty cards.
    let amount = crate::object::Quantity("20".to_owned());
    node.status
        .capacity
        .insert("nvidia.com/gpu".to_owned(), amount);
    let facts = facts_of(&node, NodeDefaults::default()).unwrap().unwrap();
    assert_eq!(facts.plugin, Some("HAMi"));
    let healthy: Vec<bool> = facts
        .inventory
        .gpus()
        .iter()
        .map(|gpu| gpu.health.is_healthy())
        .collect();
    assert_eq!(healthy, [true, false]);
    node.metadata
        .annotations
        .insert(keys::HAMI_REGISTER.to_owned(), "GPU-a".to_owned());
    let error = facts_of(&node, NodeDefaults::default())
        .unwrap_err()
        .to_string();
    assert!(
        error.starts_with("annotation `hami.io/node-nvidia-register`: `GPU-a` is not"),
        "{error}"
    );
}

/// HAMi's plugin wins, with our agent there too; what our agent wrote for HAMi's readers is no
/// plugin of HAMi's, and without the agent's inventory it counts for nothing.
#[test]
fn the_register_of_our_agent_is_told_from_hami_s() {
    let gpu = Gpu {
        uuid: GpuUuid::new("GPU-a").ok(),
        ..Gpu::plain(GpuIndex(0), MiB::from(16_276))
    };
    let inventory = Inventory::new(vec![gpu], vec![], vec![], vec![]).unwrap();
    let ours = super::super::hami::register::write(&inventory, 10).unwrap();
    let hamis = ours.replace("sublet.dev", "hami");
    let report = report_to_json(&NodeReport {
        inventory,
        sharing: Sharing::Memory,
        identity: Identity::SizeAndOrder,
        advertise: sublet_model::Advertise::Units,
        unit: Unit::MiB,
        splits: None,
    });
    for (register, has_agent, expected) in [
        (Some(&ours), true, Some((16_276, None))),
        (Some(&hamis), true, Some((16_276, Some("HAMi")))),
        (Some(&hamis), false, Some((16_276, Some("HAMi")))),
        (Some(&ours), false, None),
        (None, true, Some((16_276, None))),
    ] {
        let mut node = Node::default();
        node.metadata.name = "n1".to_owned();
        let inventory = has_agent.then_some((keys::INVENTORY, &report));
        let said = register.map(|text| (keys::HAMI_REGISTER, text));
        let said = inventory.into_iter().chain(said);
        node.metadata.annotations = said
            .map(|(key, text)| (key.to_owned(), text.clone()))
            .collect();
        let facts = facts_of(&node, NodeDefaults::default()).unwrap();
        let found = facts.map(|facts| (facts.inventory.memory().get(), facts.plugin));
        assert_eq!(found, expected, "{register:?} {has_agent}");
    }
}

/// H20: HAMi lets a reservation shrink when the init containers have ended. Here the pod keeps what it
/// needs at its worst moment, since a container that starts anew needs it again.
#[test]
fn h20_what_hami_s_pods_hold_counts_on_its_nodes() {
    let mut node = Node::default();
    node.metadata.name = "n1".to_owned();
    let register = "GPU-a,10,16000,100,NVIDIA-V100,0,true:GPU-b,10,16000,100,NVIDIA-V100,0,true:";
    let register = (keys::HAMI_REGISTER.to_owned(), register.to_owned());
    node.metadata.annotations = BTreeMap::from([register]);
    let mut ledger = Ledger::new();
    let facts = facts_of(&node, NodeDefaults::default()).unwrap().unwrap();
    let n1 = ledger.set_node(facts);
    for (name, picture, key, text) in [
        (
            "init",
            "init: i nvidia.com/gpu=1 nvidia.com/gpumem=8000; a nvidia.com/gpu=1 nvidia.com/gpumem=3000",
            keys::HAMI_ALLOCATED,
            "GPU-b,NVIDIA,8000,0:;GPU-b,NVIDIA,3000,0:;",
        ),
        (
            "two-cards",
            "a nvidia.com/gpu=1 nvidia.com/gpumem=5000; b nvidia.com/gpu=1 nvidia.com/gpumem=4000 nvidia.com/gpucores=30",
            keys::HAMI_TO_ALLOCATE,
            "GPU-b,NVIDIA,5000,0:;GPU-a,NVIDIA,4000,30:;",
        ),
        (
            "half",
            "a nvidia.com/gpu=1 nvidia.com/gpumem-percentage=50",
            keys::HAMI_ALLOCATED,
            "GPU-a,NVIDIA,8000,0:;",
        ),
    ] {
        let mut pod = annotated(picture, &[(key, text), (keys::HAMI_PHASE, "success")]);
        pod.metadata.name = name.to_owned();
        pod.metadata.uid = name.to_owned();
        pod.spec.node_name = "n1".to_owned();
        let claim = claim_of(&pod, Unit::MiB).unwrap().unwrap();
        let (entry, problem) = crate::bound_entry(&pod, Arc::new(claim)).unwrap();
        assert!(problem.is_none() && entry.assigned, "{name}: {problem:?}");
        ledger.enter(entry);
    }
    let cards = ledger.book(n1).cards().iter();
    let used: Vec<String> = cards.map(|card| card.used.to_string()).collect();
    assert_eq!(
        used,
        ["12000 MiB and 30 % of compute time", "13000 MiB"],
        "4000 and half a card; 8000 and 5000"
    );
}

proptest::proptest! {
    #[test]
    fn any_text_of_hami_s_is_answered(
        devices in r"[A-Za-z0-9,:; .-]{0,40}|(GPU-[ab],NVIDIA,[0-9]{1,5},[0-9]{1,3}:){0,3};{0,2}",
        wish in r"[A-Za-z0-9, -]{0,20}",
        memory in "[0-9]{1,6}|-?[0-9.]{0,4}[kMGi]?",
        cores in "[0-9]{1,4}",
    ) {
        let picture = format!("a nvidia.com/gpu=1 nvidia.com/gpumem={memory} nvidia.com/gpucores={cores}; b nvidia.com/gpu=1");
        let mut pod = annotated(&picture, &[("nvidia.com/use-gputype", &wish), ("nvidia.com/use-gpuuuid", &wish), ("nvidia.com/numa-bind", &wish)]);
        pod.metadata.annotations.insert(keys::HAMI_ALLOCATED.to_owned(), devices);
        if let Ok(Some(claim)) = claim_of(&pod, Unit::MiB)
            && let Ok(Some(allocation)) = allocation_of(&pod, &claim)
        {
            proptest::prop_assert!(allocation.answers(&claim));
        }
    }
}
