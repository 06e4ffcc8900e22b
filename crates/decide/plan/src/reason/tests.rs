//! Every reason with both texts. People read these texts, and the scheduler joins them, so a
//! changed word is a changed interface.

use std::collections::BTreeSet;
use std::sync::Arc;

use sublet_model::{
    Ask, Bytes, CardWishes, Count, GpuIndex, GpuUuid, HostPort, MiB, Milli, MilliCpu, Models,
    NodeName, Part, Parts, PodKey, Sharing, TagConflict, Unit,
};

use crate::stock::{Taint, TaintEffect};
use crate::{Reason, SickCards, Wire};

const WHOLE: Ask = Ask::WholeCards(Count::new(2));

fn part() -> Ask {
    Ask::of_memory(MiB::from(8138))
}

/// An ask for parts of two cards, with compute time.
fn parts() -> Ask {
    let part = Part {
        memory: MiB::from(8138),
        compute: Milli::new(300).unwrap(),
        ..Part::ZERO
    };
    Ask::Parts(Parts::new(vec![part; 2]).unwrap())
}

/// A pod that names models and a card, on a node with cards of two others.
fn unwanted(n: u32, numa_unknown: bool) -> Reason {
    let names = |names: &[&str]| names.iter().map(|name| Arc::from(*name)).collect();
    let wishes = CardWishes {
        models: names(&["a100", "h100", "l4", "l40", "l40s"]),
        not_models: names(&["t4"]),
        not_uuids: BTreeSet::from([GpuUuid::new("GPU-1").unwrap()]),
        one_numa: true,
        ..CardWishes::default()
    };
    Reason::Unwanted {
        wishes: Arc::new(wishes),
        models: vec![Arc::from(format!("Tesla T{n}")), Arc::from("NVIDIA P4")],
        numa_unknown,
    }
}

fn sick(n: u32) -> SickCards {
    SickCards {
        count: Count::new(n),
        why: Arc::from("xid 79"),
    }
}

/// Reasons that come from the node.
fn of_nodes() -> Vec<(Ask, Reason)> {
    vec![
        (part(), Reason::Unknown),
        (part(), Reason::NoGpu),
        (
            part(),
            Reason::Sharing {
                node: Sharing::Whole,
            },
        ),
        (
            WHOLE,
            Reason::Sharing {
                node: Sharing::Memory,
            },
        ),
        (
            part(),
            Reason::Unit {
                node: Unit::GiB,
                scheduler: Unit::MiB,
            },
        ),
        (part(), Reason::NoSlot),
        (WHOLE, Reason::SlotBeside),
        (WHOLE, Reason::Plugin { plugin: "HAMi" }),
    ]
}

/// Reasons that come from the pod's wishes.
fn of_wishes(n: u32) -> Vec<(Ask, Reason)> {
    let gpu = GpuIndex(n as u16);
    vec![
        (parts(), unwanted(n, false)),
        (parts(), unwanted(n, true)),
        (
            parts(),
            Reason::Tags {
                gpu,
                tag: TagConflict::AntiAffinity(Arc::from("a")),
            },
        ),
        (
            parts(),
            Reason::Tags {
                gpu,
                tag: TagConflict::Excluded(Arc::from(format!("e{n}"))),
            },
        ),
    ]
}

/// Reasons that come from the room on a card.
fn of_rooms(n: u32) -> Vec<(Ask, Reason)> {
    let (asked, less, gpu) = (MiB::from(8138), MiB::from(n), GpuIndex(n as u16));
    vec![
        (
            part(),
            Reason::TooSmall {
                asked,
                largest: less,
                gpu,
            },
        ),
        (
            part(),
            Reason::NoRoom {
                asked,
                hole: less,
                gpu,
                sick: sick(n),
                unsure: less,
            },
        ),
        (
            parts(),
            Reason::NoCompute {
                asked: Milli::new(300).unwrap(),
                left: Milli::new(100).unwrap(),
                gpu,
            },
        ),
        (parts(), Reason::Company { gpu }),
        (parts(), Reason::Overfull { gpu }),
        (part(), Reason::Splits { splits: 10 }),
    ]
}

/// Reasons that come from the number of cards.
fn of_numbers(n: u32) -> Vec<(Ask, Reason)> {
    let (cards, few) = (Count::new(2), Count::new(n));
    vec![
        (
            WHOLE,
            Reason::TooFew {
                asked: cards,
                total: few,
                chosen: false,
            },
        ),
        (
            parts(),
            Reason::TooFew {
                asked: cards,
                total: few,
                chosen: true,
            },
        ),
        (
            parts(),
            Reason::TooFewRooms {
                asked: cards,
                part: Part {
                    memory: MiB::from(8138),
                    compute: Milli::new(300).unwrap(),
                    ..Part::ZERO
                },
                fitting: few,
            },
        ),
        (
            parts(),
            Reason::TooFewForAll {
                containers: n + 3,
                fitting: n + 1,
            },
        ),
        (
            WHOLE,
            Reason::NoIdle {
                asked: cards,
                idle: few,
                total: few,
                sick: sick(n),
                unsure: few,
            },
        ),
    ]
}

/// Reasons that come from pods.
fn of_pods(n: u32) -> Vec<(Ask, Reason)> {
    vec![
        (
            part(),
            Reason::LookAlike {
                other: PodKey::new("ns", &format!("p{n}")).unwrap(),
            },
        ),
        (
            part(),
            Reason::Placed {
                node: NodeName::new("n1").unwrap(),
            },
        ),
    ]
}

/// Every reason, with numbers that depend on `n`, as they would differ from node to node.
fn all(n: u32) -> Vec<(Ask, Reason)> {
    [
        of_nodes(),
        of_wishes(n),
        of_rooms(n),
        of_numbers(n),
        of_pods(n),
    ]
    .concat()
}

/// A line of a table: the word, whether waiting may help, and both texts.
fn row(ask: &Ask, reason: &Reason) -> String {
    let never = match reason.is_final() {
        true => "never",
        false => "not now",
    };
    let (word, short) = (reason.label(), Wire(reason, ask));
    format!("{word} | {never} | {reason} | {short}")
}

#[test]
fn each_reason_is_told_in_full_and_in_short() {
    let reasons = all(1);
    let table: Vec<String> = reasons
        .iter()
        .map(|(ask, reason)| row(ask, reason))
        .collect();
    let expected = "\
unknown_node | not now | the node is not known, or its GPU inventory cannot be read | the node is not known, or its GPU inventory cannot be read
no_gpu | never | the node has no GPU | the node has no GPU
sharing | never | the node hands out whole GPUs only; its label sublet.dev/sharing=both, or agent.sharing of the chart, has it hand out parts too | the node hands out whole GPUs only; its label sublet.dev/sharing=both, or agent.sharing of the chart, has it hand out parts too
sharing | never | the node hands out parts of GPUs only; its label sublet.dev/sharing=both, or agent.sharing of the chart, has it hand out whole GPUs too | the node hands out parts of GPUs only; its label sublet.dev/sharing=both, or agent.sharing of the chart, has it hand out whole GPUs too
unit | never | the node counts GPU memory in GiB, the scheduler in MiB: give both the same --memory-unit | node counts GPU memory in another unit
no_slot | never | the node hands out what the pod asks for by slots, and the pod does not ask for sublet.dev/gpu-slot: 1 | node needs sublet.dev/gpu-slot in the pod
slot_beside | never | the node hands out what the pod asks for by devices of its own, and the pod also asks for sublet.dev/gpu-slot | the node hands out what the pod asks for by devices of its own, and the pod also asks for sublet.dev/gpu-slot
plugin | never | the device plugin of HAMi hands out the node's GPUs, and does not know what Sublet decides | the device plugin of HAMi hands out the node's GPUs, and does not know what Sublet decides
unwanted | never | the pod accepts only GPUs of model `a100`, `h100`, `l4`, `l40` or 1 more, not of model `t4`, without UUID `GPU-1`, of one NUMA node; the node has `Tesla T1` and `NVIDIA P4` | the pod accepts only GPUs of model `a100`, `h100`, `l4`, `l40` or 1 more, not of model `t4`, without UUID `GPU-1`, of one NUMA node
unwanted | never | the pod accepts only GPUs of model `a100`, `h100`, `l4`, `l40` or 1 more, not of model `t4`, without UUID `GPU-1`, of one NUMA node; the node does not say of which NUMA node its GPUs are | the pod accepts only GPUs of model `a100`, `h100`, `l4`, `l40` or 1 more, not of model `t4`, without UUID `GPU-1`, of one NUMA node
tags | not now | GPU 1 has enough room, but a pod on it has the same anti-affinity `a` as the pod | no GPU with enough room is without a pod of the same anti-affinity `a`
tags | not now | GPU 1 has enough room, but a pod on it has the exclusion `e1`, and the pod has none | no GPU with enough room is without pods of an exclusion
too_small | never | 8138 MiB asked of one GPU, but the largest, GPU 1, has 1 MiB in all (8137 MiB too few) | no GPU is as large as 8138 MiB
no_room | not now | GPU 1 lacks 8137 MiB: 8138 MiB asked, and the largest hole on this node is 1 MiB; 1 MiB more are kept for pods that do not say which GPU they have; 1 GPU is unhealthy (xid 79) | no GPU has 8138 MiB free
no_compute | not now | GPU 1 lacks 20 % of its compute time: 30 % asked, and 10 % is the most that is left of a GPU with enough memory | no GPU has 8138 MiB and 30 % of compute time free
company | not now | GPU 1 has room, but a guaranteed pod that asks for all of a GPU's compute time shares it with no other guaranteed pod | no GPU has 8138 MiB and 30 % of compute time free
overfull | not now | GPU 1 takes no other pod: those on it together ask more than it has | no GPU has 8138 MiB and 30 % of compute time free
splits | not now | GPUs have enough room, and 10 pods each already, as many as `--gpu-splits` of the node's agent allows beside a pod of this form | as many pods as the node offers each GPU with enough room (--gpu-splits)
too_few | never | 2 GPUs asked, but the node has 1 GPU | node has fewer than 2 GPUs
too_few | never | 2 GPUs asked, but the node has 1 GPU that the pod accepts together | node has fewer than 2 GPUs that the pod accepts together
too_few_rooms | not now | 2 GPUs with 8138 MiB and 30 % of compute time of each asked, but 1 of them can be had | fewer than 2 GPUs have 8138 MiB and 30 % of compute time free
too_few_for_all | not now | 4 containers of the pod ask for GPUs each for itself, and only the first 2 of them can have theirs | no GPUs are free for all containers of the pod
no_idle | not now | 2 GPUs asked, but 1 of 1 GPU idle; 1 GPU may be in use by pods that do not say which they have; 1 GPU is unhealthy (xid 79) | node has fewer than 2 idle GPUs
look_alike | not now | pod ns/p1 asks for the same amount and has not started yet; the node tells pods apart by size | a pod that looks the same is still starting on the node
placed | not now | the pod already has a place on node n1: an earlier bind holds, or is not settled yet | the pod already has a place on node n1: an earlier bind holds, or is not settled yet";
    assert_eq!(table.join("\n"), expected);
}

#[test]
fn a_claim_gets_at_most_ten_texts_however_many_nodes_there_are() {
    for ask in [part(), parts(), WHOLE] {
        let mut texts = BTreeSet::new();
        for n in 0..100 {
            // A filter call never answers `Placed`, and no node refuses both parts and whole cards.
            let of_filter = |(for_ask, reason): &(Ask, Reason)| {
                let any = matches!(
                    reason,
                    Reason::Unknown | Reason::NoGpu | Reason::LookAlike { .. }
                );
                (any || *for_ask == ask) && !matches!(reason, Reason::Placed { .. })
            };
            let reasons = all(n).into_iter().filter(of_filter);
            texts.extend(reasons.map(|(_, reason)| Wire(&reason, &ask).to_string()));
        }
        assert!(texts.len() <= 10, "{ask:?}: {texts:#?}");
    }
}

/// Reasons for which no text differs with the cards that a claim asks.
#[test]
fn a_reason_beside_the_cards_is_told_in_full_and_in_short() {
    let reasons = [
        Reason::Model {
            wanted: Models::new([Arc::from("a100")]),
            node: Arc::from("t4"),
        },
        Reason::Cpu {
            asked: MilliCpu::new(2000),
            left: MilliCpu::new(500),
        },
        Reason::HostMemory {
            asked: Bytes::new(2 << 20),
            left: Bytes::new(1 << 20),
        },
        Reason::KeptFor {
            other: PodKey::new("ns", "p").unwrap(),
        },
    ];
    let table: Vec<String> = reasons.iter().map(|reason| row(&part(), reason)).collect();
    let expected = [
        "model | never | the pod accepts only GPUs of model `a100`; the node has `t4` | the pod accepts only GPUs of model `a100`",
        "cpu | not now | 2 CPU asked, and 500m CPU is left on the node | too little CPU is left on the node",
        "host_memory | not now | 2 MiB of the machine's memory asked, and 1 MiB are left | too little memory is left on the node",
        "kept_for | not now | room was made here for pod ns/p of higher priority, which would find none beside this pod | room on the node is kept for a pod of higher priority",
    ];
    assert_eq!(table, expected);
}

/// Reasons of the stock scheduler's rules. They have no short text of their own: in a cluster the
/// stock scheduler itself reports them.
#[test]
fn a_rule_of_the_stock_scheduler_is_final_where_no_eviction_helps() {
    let port = HostPort {
        port: 80,
        protocol: Arc::from("TCP"),
        address: None,
    };
    let taint = Taint {
        key: Arc::from("gpu"),
        value: Arc::from(""),
        effect: TaintEffect::NoSchedule,
    };
    let reasons = [
        Reason::Unschedulable,
        Reason::Taint {
            taint: Arc::new(taint),
        },
        Reason::NodeSelector {
            wanted: Arc::from("a=b"),
            found: None,
        },
        Reason::NodeAffinity {
            terms: 0,
            unmet: None,
        },
        Reason::Pods { most: 110 },
        Reason::Resource {
            name: Arc::from("nic"),
            asked: 2,
            left: 1,
            allocatable: 4,
        },
        Reason::HostPort {
            port: Arc::new(port),
        },
    ];
    let said = reasons.map(|reason| format!("{} {}", reason.label(), reason.is_final()));
    let expected = [
        "unschedulable false",
        "taint true",
        "node_selector true",
        "node_affinity true",
        "pods false",
        "resource false",
        "host_port false",
    ];
    assert_eq!(said, expected);
}

/// Checks CONTRIBUTING: each variant stands in one of the tables above.
#[test]
fn each_reason_has_its_row() {
    let source = include_str!("../reason.rs");
    let (_, rest) = source.split_once("pub enum Reason {\n").unwrap();
    let (variants, _) = rest.split_once("\n}").unwrap();
    let word = |text: &'static str| {
        let end = text.find(|c: char| !c.is_alphanumeric());
        &text[..end.unwrap_or(text.len())]
    };
    // Fields stand further in than variants.
    let variants = variants
        .lines()
        .filter_map(|line| line.strip_prefix("    "));
    let variants = variants.filter(|line| line.starts_with(|c: char| c.is_ascii_uppercase()));
    let variants: BTreeSet<&str> = variants.map(word).collect();
    assert!(variants.len() > 30, "these are not all: {variants:?}");
    let named = include_str!("tests.rs").split("Reason::").skip(1);
    let named: BTreeSet<&str> = named.map(word).collect();
    let missing: Vec<&&str> = variants.difference(&named).collect();
    assert!(missing.is_empty(), "no row in reason/tests.rs: {missing:?}");
}
