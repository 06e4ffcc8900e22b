//! Tests which container is meant: a node with its pods as a picture, questions from kubelet, the
//! answers.

use proptest::prelude::*;
use sublet_api::allocation_to_json;
use sublet_api::object::{Container, ContainerState, ContainerStatus, Quantity};
use sublet_model::{
    CardRef, ContainerName, GpuIndex, Grant, Identity, Inventory, NodeName, Sharing, Unit,
};

use super::*;

mod behind;
mod compute;
mod named;
mod pinned;
mod twins;

/// Pods, one a line: `name @card init:warm=8 main=3 ; words`. `@-` is bound by somebody
/// else; a whole-card pod has one card per container, `@0,1`. Amounts are of `resource`.
/// Words: `done:main`, `over`, `ended` (but a container runs), `deleting`, `elsewhere`,
/// `slot:main`, `index` (no UUID), `old` (the original's annotations), `junk` (garbage), `static:x`
/// (the mirror of the static pod with UID `x`).
pub(crate) fn pods(picture: &str, resource: &str) -> Vec<Pod> {
    let lines = picture.lines().map(str::trim);
    let lines = lines.filter(|line| !line.is_empty());
    lines.map(|line| pod(line, resource)).collect()
}

fn pod(line: &str, resource: &str) -> Pod {
    let (spec, words) = line.split_once(';').unwrap_or((line, ""));
    let mut spec = spec.split_whitespace();
    let mut pod = Pod::default();
    let name = spec.next().unwrap();
    pod.metadata.name = name.to_owned();
    pod.metadata.namespace = "ns".to_owned();
    pod.metadata.uid = format!("uid-{name}");
    pod.spec.node_name = "n1".to_owned();
    pod.status.phase = "Pending".to_owned();
    let cards = spec.next().unwrap().strip_prefix('@').unwrap();
    for word in spec {
        let (list, word) = match word.strip_prefix("init:") {
            Some(rest) => (&mut pod.spec.init_containers, rest),
            None => (&mut pod.spec.containers, word),
        };
        let (name, amount) = word.split_once('=').unwrap();
        let mut container = Container {
            name: name.to_owned(),
            ..Container::default()
        };
        let limits = &mut container.resources.limits;
        limits.insert(resource.to_owned(), Quantity(amount.to_owned()));
        list.push(container);
    }
    let words: Vec<&str> = words.split_whitespace().collect();
    if cards != "-" {
        annotate(&mut pod, cards, &words);
    }
    for word in words {
        apply(&mut pod, word);
    }
    pod
}

/// The annotations of a Binding.
fn annotate(pod: &mut Pod, cards: &str, words: &[&str]) {
    let cards: Vec<u16> = cards.split(',').map(|card| card.parse().unwrap()).collect();
    let claim = dialect::claim_of(pod, Unit::MiB).unwrap().unwrap();
    let mut grants = Vec::new();
    for (at, container) in claim.containers().iter().enumerate() {
        let memory = match container.demand.portion {
            Portion::Part(part) => part.memory,
            Portion::Whole => MiB::from(100),
        };
        let count = container.demand.gpus.get() as usize;
        for n in 0..count {
            let index = cards[(at * count + n) % cards.len()];
            let uuid = GpuUuid::new(&format!("GPU-{index}")).ok();
            grants.push(Grant {
                container: container.name.clone(),
                card: CardRef {
                    index: GpuIndex(index),
                    uuid: uuid.filter(|_| !words.contains(&"index")),
                },
                memory,
            });
        }
    }
    let text = allocation_to_json(&Allocation { grants });
    let annotations = &mut pod.metadata.annotations;
    annotations.insert(keys::ALLOCATION.to_owned(), text);
    annotations.insert(keys::ASSIGNED.to_owned(), "[]".to_owned());
    annotations.insert(keys::ALIYUN_IDX.to_owned(), cards[0].to_string());
    annotations.insert(keys::ALIYUN_ASSIGNED.to_owned(), "false".to_owned());
}

fn apply(pod: &mut Pod, word: &str) {
    let annotations = &mut pod.metadata.annotations;
    match word.split_once(':').unwrap_or((word, "")) {
        ("done", names) => {
            let names: Vec<&str> = names.split(',').collect();
            let list = format!("[\"{}\"]", names.join("\",\""));
            annotations.insert(keys::ASSIGNED.to_owned(), list);
        }
        ("slot", names) => {
            let spec = &mut pod.spec;
            let all = spec.init_containers.iter_mut().chain(&mut spec.containers);
            for container in all.filter(|one| names.split(',').any(|name| name == one.name)) {
                let limits = &mut container.resources.limits;
                limits.insert(keys::GPU_SLOT.to_owned(), Quantity("1".to_owned()));
            }
        }
        ("old", _) => {
            annotations.remove(keys::ALLOCATION);
            annotations.remove(keys::ASSIGNED);
        }
        ("junk", _) => {
            annotations.insert(keys::ALLOCATION.to_owned(), "{".to_owned());
        }
        ("over", _) => pod.status.phase = "Failed".to_owned(),
        ("ended", _) => {
            pod.status.phase = "Succeeded".to_owned();
            let running = Some(sublet_api::object::Anything);
            pod.status.container_statuses = vec![ContainerStatus {
                state: ContainerState {
                    running,
                    ..ContainerState::default()
                },
                ..ContainerStatus::default()
            }];
        }
        ("static", uid) => {
            annotations.insert(keys::MIRROR.to_owned(), uid.to_owned());
        }
        ("deleting", _) => pod.metadata.deletion_timestamp = Some("now".to_owned()),
        ("elsewhere", _) => pod.spec.node_name = "n2".to_owned(),
        ("index", _) => {}
        _ => panic!("no such word: {word}"),
    }
}

/// Two cards of 100 MiB; GPU 2 is sick.
pub(crate) fn site() -> Site {
    let gpu = |index: u16| Gpu {
        uuid: GpuUuid::new(&format!("GPU-{index}")).ok(),
        health: match index {
            2 => Health::Sick("xid 79".into()),
            _ => Health::Healthy,
        },
        ..Gpu::plain(GpuIndex(index), MiB::from(100))
    };
    let gpus = (0..3).map(gpu).collect();
    Site {
        facts: NodeFacts {
            sharing: Sharing::Both,
            identity: Identity::SizeAndOrder,
            ..NodeFacts::plain(
                NodeName::new("n1").unwrap(),
                Arc::new(Inventory::new(gpus, vec![], vec![], vec![]).unwrap()),
            )
        },
        no_isolation: false,
    }
}

const MEM: &str = keys::ALIYUN_GPU_MEM;

/// `ns/a.main -> GPU-1`, or why not.
fn say(answer: Result<AllocationResponse, AllocateError>) -> String {
    match answer {
        Ok(handed) => format!(
            "{}.{} -> {}",
            handed.pod,
            handed.container,
            handed.environment[keys::NVIDIA_VISIBLE_DEVICES]
        ),
        Err(refusal) => refusal.to_string(),
    }
}

fn check(picture: &str, resource: &'static str, count: u64) -> String {
    // Slots carry Allocate for pods that ask for memory.
    let slot = resource == keys::GPU_SLOT;
    let written = if slot { MEM } else { resource };
    let asked = KubeletAsk { resource, count };
    say(decide(
        &pods(picture, written),
        &site(),
        asked,
        &Given::default(),
        7,
    ))
}

/// Kubelet's questions one after the other, each answer written on the pod as the agent
/// does it.
fn ask_all(pods: &mut [Pod], resource: &'static str, counts: &[u64]) -> Vec<String> {
    let mut answers = Vec::new();
    for &count in counts {
        let asked = KubeletAsk { resource, count };
        let answer = decide(pods, &site(), asked, &Given::default(), 7);
        if let Ok(handed) = &answer {
            let uid = handed.uid.as_str();
            let pod = pods.iter_mut().find(|pod| pod.metadata.uid == uid).unwrap();
            let written = handed.annotations.clone();
            pod.metadata.annotations.extend(written);
        }
        answers.push(say(answer));
    }
    answers
}

#[test]
fn the_pod_of_that_size_is_meant() {
    let picture = "
        a @0 main=3
        b @1 main=5";
    assert_eq!(check(picture, MEM, 5), "ns/b.main -> GPU-1");
    assert_eq!(check(picture, MEM, 3), "ns/a.main -> GPU-0");
    assert_eq!(
        check(picture, MEM, 8),
        "no pod on node n1 waits for 8 aliyun.com/gpu-mem in one container; \
         waiting for other amounts: ns/a and ns/b"
    );
    assert_eq!(
        check("", MEM, 8),
        "no pod on node n1 waits for 8 aliyun.com/gpu-mem in one container; none waits for any GPU"
    );
    assert!(check(picture, keys::NVIDIA_GPU, 3).starts_with("no pod"));
}

#[test]
fn two_pods_of_one_size_are_both_named_and_nothing_is_guessed() {
    assert_eq!(
        check("a @0 main=3\n b @1 x=5 y=3\n c @1 main=4", MEM, 3),
        "ns/a and ns/b both wait for 3 aliyun.com/gpu-mem, and kubelet does not say which of \
         them it means; delete all but one"
    );
    let many: String = (0..12).map(|i| format!("p{i} @0 main=3\n")).collect();
    let refused = check(&many, MEM, 3);
    assert!(
        refused.contains("ns/p6, ns/p7 and 4 more all wait"),
        "{refused}"
    );
    // One that is marked for deletion may be the one kubelet is starting.
    assert!(check("a @0 main=3\n b @1 main=3; deleting", MEM, 3).contains("ns/a and ns/b"));
}

#[test]
fn pods_that_cannot_be_meant_are_out() {
    for word in ["done:main", "over", "elsewhere"] {
        let picture = format!("a @0 main=3\n b @1 main=3; {word}");
        assert_eq!(check(&picture, MEM, 3), "ns/a.main -> GPU-0", "{word}");
    }
    assert_eq!(check("b @1 main=3; old", MEM, 3), "ns/b.main -> GPU-1");
}

#[test]
fn a_pods_containers_are_served_in_the_order_in_which_they_start() {
    let picture = "a @1 init:warm=8 main=3 side=3";
    let mut one = pods(picture, MEM);
    assert_eq!(
        ask_all(&mut one, MEM, &[8, 3]),
        ["ns/a.warm -> GPU-1", "ns/a.main -> GPU-1"]
    );
    let note = &one[0].metadata.annotations;
    assert_eq!(note[keys::ASSIGNED], r#"["warm","main"]"#);
    assert_eq!(note[keys::ALIYUN_ASSIGNED], "false", "one container waits");
    // The agent restarts here: all it knows is on the pod.
    assert_eq!(ask_all(&mut one, MEM, &[3]), ["ns/a.side -> GPU-1"]);
    let note = &one[0].metadata.annotations;
    assert_eq!(note[keys::ALIYUN_ASSIGNED], "true");
    assert_eq!(note[keys::ALIYUN_ASSUME_TIME], "7");
    assert!(ask_all(&mut one, MEM, &[3])[0].contains("none waits for any GPU"));
}

#[test]
fn slots_carry_no_size() {
    let slot = |picture: &str| check(picture, keys::GPU_SLOT, 1);
    assert_eq!(slot("a @1 main=3; slot:main"), "ns/a.main -> GPU-1");
    assert!(slot("a @1 main=3; slot:main\n b @0 main=9; slot:main").contains("both wait for 1"));
    assert!(slot("a @1 main=3").contains("waiting for other amounts: ns/a"));
    let mut part = pods("a @1 init:warm=8 main=3 side=2; slot:warm,side", MEM);
    assert_eq!(
        ask_all(&mut part, keys::GPU_SLOT, &[1, 1]),
        ["ns/a.warm -> GPU-1", "ns/a.side -> GPU-1"]
    );
    let note = &part[0].metadata.annotations;
    assert_eq!(
        note[keys::ALIYUN_ASSIGNED],
        "true",
        "nobody will ask for main"
    );
}

#[test]
fn a_container_is_held_to_what_its_pod_claims() {
    let limits = |picture: &str, resource, count, site: &Site| {
        let written = if resource == keys::GPU_SLOT {
            MEM
        } else {
            resource
        };
        let asked = KubeletAsk { resource, count };
        let pods = pods(picture, written);
        let handed = decide(&pods, site, asked, &Given::default(), 7).unwrap();
        let cards = handed.cards.iter();
        let cards = cards.map(|card| format!("{}={}", card.index, card.memory.get()));
        let cards = cards.collect::<Vec<_>>().join(" ");
        (cards, handed.isolated, handed.role, handed.position)
    };
    let main = |cards: &str, position| (cards.to_owned(), true, Role::Main, position);
    assert_eq!(limits("a @1 x=5 y=3", MEM, 3, &site()), main("1=3", 1));
    assert_eq!(
        limits("a @1 init:i=3 x=5", MEM, 3, &site()),
        ("1=3".to_owned(), true, Role::Init, 0)
    );
    let slot = "a @0 main=30; slot:main";
    assert_eq!(limits(slot, keys::GPU_SLOT, 1, &site()), main("0=30", 0));
    // Whole cards: what the card has, whatever the annotation says.
    let whole = limits("a @0,1 main=2", keys::NVIDIA_GPU, 2, &site());
    assert_eq!(whole, main("0=100 1=100", 0));
    let free = Site {
        no_isolation: true,
        ..site()
    };
    assert!(!limits("a @1 main=3", MEM, 3, &free).1);
}

#[test]
fn whole_cards_are_counted() {
    let picture = "
        a @0,1 main=2
        b @1 main=1; over";
    assert_eq!(
        check(picture, keys::NVIDIA_GPU, 2),
        "ns/a.main -> GPU-0,GPU-1"
    );
    assert!(check(picture, keys::NVIDIA_GPU, 1).starts_with("no pod"));
    let asked = KubeletAsk {
        resource: MEM,
        count: 2,
    };
    let whole = pods(picture, keys::NVIDIA_GPU);
    let other = decide(&whole, &site(), asked, &Given::default(), 7);
    assert!(say(other).starts_with("no pod"), "a count is no memory");
}

#[test]
fn whose_cards_are_unknown_is_told() {
    assert_eq!(
        check("a @- main=3\n b @0 main=3; junk", MEM, 3),
        "no pod on node n1 waits for 3 aliyun.com/gpu-mem in one container; \
         bound without an allocation, not by Sublet: ns/a; \
         pod ns/b: annotation `sublet.dev/allocation` cannot be read"
    );
    let mut odd = pods("a @- main=3", MEM);
    let limits = &mut odd[0].spec.containers[0].resources.limits;
    limits.insert(MEM.to_owned(), Quantity("0.5".to_owned()));
    let asked = KubeletAsk {
        resource: MEM,
        count: 1,
    };
    let refused = say(decide(&odd, &site(), asked, &Given::default(), 7));
    assert!(refused.ends_with("`aliyun.com/gpu-mem` is `0.5`: it is not a whole number"));
}

#[test]
fn the_last_referee_objects() {
    assert_eq!(
        check(
            "a @1 main=30; done:main\n b @1 main=80\n c @0 main=20",
            MEM,
            80
        ),
        "pod ns/b: GPU 1 lacks 10 MiB: 110 MiB of its 100 MiB are promised to 2 pods"
    );
    // Its container runs, so its memory is not free.
    assert!(check("a @1 main=30; ended\n b @1 main=80", MEM, 80).contains("lacks 10 MiB"));
    assert!(check("a @1 main=30; over\n b @1 main=80", MEM, 80).contains("-> GPU-1"));
    assert_eq!(
        check("a @7 main=3", MEM, 3),
        "pod ns/a: GPU GPU-7 is not on node n1; delete the pod so that it is placed anew"
    );
    assert!(check("a @7 main=3; index", MEM, 3).starts_with("pod ns/a: GPU 7 is not on"));
    assert_eq!(
        check("a @2 main=3", MEM, 3),
        "pod ns/a: GPU 2 is unhealthy (xid 79); delete the pod so that it is placed anew"
    );
    assert!(
        check("a @0 main=1\n b @0 main=1; done:main", keys::NVIDIA_GPU, 1)
            .starts_with("pod ns/a: GPU 0 lacks 100 MiB")
    );
}

#[test]
fn the_environment_is_the_originals_with_uuids() {
    let mut site = site();
    site.no_isolation = true;
    let asked = KubeletAsk {
        resource: MEM,
        count: 3,
    };
    let pods = pods("a @1 init:warm=20 main=3 side=4; index", MEM);
    let handed = decide(&pods, &site, asked, &Given::default(), 7).unwrap();
    let environment = handed.environment.iter();
    let environment: Vec<String> = environment.map(|(k, v)| format!("{k}={v}")).collect();
    assert_eq!(
        environment,
        [
            "ALIYUN_COM_GPU_MEM_CONTAINER=3",
            "ALIYUN_COM_GPU_MEM_DEV=100",
            "ALIYUN_COM_GPU_MEM_IDX=1",
            "ALIYUN_COM_GPU_MEM_POD=20",
            "CGPU_DISABLE=true",
            "NVIDIA_VISIBLE_DEVICES=GPU-1",
        ]
    );
}

#[test]
fn preferred_ids_are_those_of_the_pods_card() {
    let check = |picture: &str, resource: &'static str, available: &str, must: &str, count| {
        let asked = KubeletAsk { resource, count };
        let ids = |text: &str| {
            text.split_whitespace()
                .map(str::to_owned)
                .collect::<Vec<_>>()
        };
        let pods = pods(picture, resource);
        let (available, must) = (ids(available), ids(must));
        prefer(
            &pods,
            &site().facts,
            asked,
            &Given::default(),
            &available,
            &must,
        )
        .map_or_else(|error| error.to_string(), |ids| ids.join(" "))
    };
    let units = "GPU-0-_-0 GPU-1-_-0 GPU-0-_-1 GPU-1-_-1 GPU-1-_-2";
    let one = "a @1 main=2";
    assert_eq!(check(one, MEM, units, "", 2), "GPU-1-_-0 GPU-1-_-1");
    assert_eq!(
        check(one, MEM, units, "GPU-0-_-1", 2),
        "GPU-0-_-1 GPU-1-_-0"
    );
    let two = check("a @1 main=2\n b @0 main=2", MEM, units, "", 2);
    assert!(two.starts_with("ns/a and ns/b both wait for 2"), "{two}");
    let whole = "a @1,0 main=2";
    let cards = "GPU-2 GPU-1 GPU-0";
    assert_eq!(check(whole, keys::NVIDIA_GPU, cards, "", 2), "GPU-1 GPU-0");
    assert!(check(whole, keys::NVIDIA_GPU, cards, "", 1).starts_with("no pod on node"));
}

proptest! {
    /// Pods of different sizes: in whatever order kubelet starts them, each gets its own
    /// card and nobody else's.
    #[test]
    fn h22_the_order_of_allocates_moves_nobody(
        order in Just((0..12u64).collect::<Vec<_>>()).prop_shuffle(),
        cards in proptest::collection::vec(0..2u16, 6),
    ) {
        let picture: String = cards
            .iter()
            .enumerate()
            .map(|(i, card)| format!("p{i} @{card} init:warm={} main={}\n", 2 * i + 1, 2 * i + 2))
            .collect();
        let mut pods = pods(&picture, MEM);
        let counts: Vec<u64> = order.iter().map(|at| at + 1).collect();
        let answers = ask_all(&mut pods, MEM, &counts);
        for (at, answer) in order.iter().zip(answers) {
            let pod = at / 2;
            let container = if at % 2 == 0 { "warm" } else { "main" };
            let card = cards[usize::try_from(pod).unwrap()];
            prop_assert_eq!(answer, format!("ns/p{pod}.{container} -> GPU-{card}"));
        }
        for pod in &pods {
            prop_assert_eq!(&pod.metadata.annotations[keys::ALIYUN_ASSIGNED], "true");
        }
    }
}
