//! The real arbiter on a fake machine, with containers that are only folders.

use std::os::unix::fs::MetadataExt;

use sublet_model::{ContainerName, Gpu, GpuIndex, GpuUuid, PodKey, PodUid, Role};

use super::*;
use crate::allocate::CardLimit;

struct Node {
    base: tempfile::TempDir,
}

impl Node {
    fn new() -> Node {
        let base = tempfile::tempdir().unwrap();
        let libraries = base.path().join("built");
        fs::create_dir(&libraries).unwrap();
        for name in ["cuda", "nvml", "preload", "fakecuda", "fakenvml"] {
            fs::write(libraries.join(format!("libsublet_{name}.so")), name).unwrap();
        }
        Node { base }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.base.path().join(name)
    }

    fn wanted(&self) -> Wanted {
        Wanted {
            mode: StrictnessWord::Strict,
            library_dir: Some(self.path("built")),
            state_dir: self.path("state"),
            runtime_dir: self.path("run"),
        }
    }

    fn start(&self) -> Isolation {
        Isolation::start(&self.wanted(), &Cards::Simulated(&inventory())).unwrap()
    }
}

/// Two cards of 1000 MiB, one of them with a UUID that no driver would print.
fn inventory() -> Inventory {
    let gpu = |index: u16, uuid: &str| Gpu {
        uuid: GpuUuid::new(uuid).ok(),
        ..Gpu::plain(GpuIndex(index), MiB::from(1000))
    };
    let gpus = vec![
        gpu(0, "GPU-00112233-4455-6677-8899-aabbccddeeff"),
        gpu(1, "my-card"),
    ];
    Inventory::new(gpus, vec![], vec![], vec![]).unwrap()
}

fn handed(pod: &str, container: &str, role: Role, card: u16, memory: u32) -> HandOver {
    let uuid = inventory().gpus()[usize::from(card)].uuid.clone();
    HandOver {
        pod: PodKey::new("ns", pod).unwrap(),
        uid: PodUid::new(&format!("uid-{pod}")).unwrap(),
        container: ContainerName::new(container).unwrap(),
        role,
        position: 0,
        cards: vec![CardLimit {
            index: GpuIndex(card),
            uuid,
            memory: MiB::from(memory),
        }],
        isolated: true,
        environment: BTreeMap::new(),
        annotations: BTreeMap::new(),
    }
}

fn pod(name: &str) -> Pod {
    let mut pod = Pod::default();
    pod.metadata.uid = format!("uid-{name}");
    pod
}

/// `ns/a/main=300 …` of what the arbiter looks after, by number.
fn jobs(isolation: &Isolation) -> String {
    let rows = isolation.snapshot().tenants;
    let rows = rows.iter().map(|row| {
        let limit = row.memory_limit_mib.unwrap_or(0);
        format!("{}:{}={limit}", row.id.unwrap_or(0), row.name)
    });
    rows.collect::<Vec<_>>().join(" ")
}

#[test]
fn a_container_gets_mounts_that_are_there_and_a_socket() {
    let node = Node::new();
    let isolation = node.start();
    let a = handed("a", "main", Role::Main, 1, 300);
    let injection = isolation.admit(&a).unwrap();
    assert_eq!(jobs(&isolation), "1:ns/a/main=300");
    for mount in &injection.mounts {
        assert!(Path::new(&mount.host_path).exists(), "{mount:?}");
    }
    let host = |inside: &str| {
        let found = injection.mounts.iter();
        let mut found = found.filter(|mount| mount.container_path == inside);
        PathBuf::from(&found.next().unwrap().host_path)
    };
    let mode = |path: PathBuf| fs::metadata(path).unwrap().mode() & 0o777;
    let tenant = host("/usr/local/sublet/tenant");
    assert_eq!(mode(tenant.join("tenant.sock")), 0o666);
    assert_eq!(mode(host("/usr/local/sublet/lib")), 0o755);
    assert_eq!(mode(host("/usr/local/sublet/machine")), 0o777);
    let preload = fs::read_to_string(host("/etc/ld.so.preload")).unwrap();
    for line in preload.lines() {
        let file = Path::new(line).file_name().unwrap();
        assert!(host("/usr/local/sublet/lib").join(file).is_file(), "{line}");
    }
    let text = fs::read_to_string(host("/usr/local/sublet/driver").join("libcuda.so.1"));
    assert_eq!(text.unwrap(), "fakecuda");
    isolation.stop();
    assert!(isolation.ended().borrow().is_some());
}

#[test]
fn a_container_that_is_not_to_be_isolated_gets_nothing() {
    let node = Node::new();
    let isolation = node.start();
    let free = HandOver {
        isolated: false,
        ..handed("a", "main", Role::Main, 0, 300)
    };
    assert_eq!(isolation.admit(&free).unwrap(), Injection::default());
    let mut many = handed("b", "main", Role::Main, 0, 300);
    many.cards = vec![many.cards[0].clone(); MAX_DEVICES + 1];
    assert_eq!(isolation.admit(&many).unwrap(), Injection::default());
    assert_eq!(jobs(&isolation), "");
    assert_eq!(
        fs::read_dir(node.path("state/containers")).unwrap().count(),
        0
    );
    isolation.stop();
}

#[test]
fn a_new_agent_finds_its_containers_with_their_numbers_and_limits() {
    let node = Node::new();
    let isolation = node.start();
    for (pod, card) in [("a", 0), ("b", 1), ("c", 1)] {
        let handed = handed(pod, "main", Role::Main, card, 300);
        isolation.admit(&handed).unwrap();
    }
    // Gone while the agent is there.
    assert!(!isolation.settle(&[pod("a"), pod("c")]));
    assert_eq!(jobs(&isolation), "1:ns/a/main=300 3:ns/c/main=300");
    isolation.stop();
    let socket = node.path("state/containers/uid-a/main-0/tenant/tenant.sock");
    assert!(!socket.exists());

    let isolation = node.start();
    assert!(socket.exists());
    assert_eq!(jobs(&isolation), "1:ns/a/main=300 3:ns/c/main=300");
    // Gone while it was away.
    assert!(!isolation.settle(&[pod("c")]));
    assert_eq!(jobs(&isolation), "3:ns/c/main=300");
    assert!(!node.path("state/containers/uid-a").exists());
    isolation
        .admit(&handed("d", "main", Role::Main, 0, 1000))
        .unwrap();
    assert_eq!(jobs(&isolation), "3:ns/c/main=300 4:ns/d/main=1000");
    let (_, records) = isolation.look();
    assert_eq!(records.keys().copied().collect::<Vec<_>>(), [3, 4]);
    isolation.stop();
}

#[test]
fn a_container_waits_until_the_one_before_it_has_ended() {
    let node = Node::new();
    let isolation = node.start();
    let mut first = pod("a");
    // More than the card has, but never at one time.
    isolation
        .admit(&handed("a", "prepare", Role::Init, 0, 900))
        .unwrap();
    isolation
        .admit(&handed("a", "main", Role::Main, 0, 400))
        .unwrap();
    assert_eq!(jobs(&isolation), "1:ns/a/prepare=900");
    assert!(isolation.settle(std::slice::from_ref(&first)));
    first.status.init_container_statuses = vec![sublet_api::object::ContainerStatus {
        name: "prepare".to_owned(),
        state: sublet_api::object::ContainerState {
            terminated: Some(sublet_api::object::Anything),
            ..Default::default()
        },
    }];
    assert!(!isolation.settle(std::slice::from_ref(&first)));
    let running = jobs(&isolation);
    assert!(
        running.ends_with(":ns/a/main=400") && !running.contains(' '),
        "{running}"
    );
    // Its folder stays: kubelet mounts the same one if it starts the container again.
    assert!(node.path("state/containers/uid-a/init-0/tenant").exists());
    isolation.stop();
}

#[test]
fn what_is_missing_is_told() {
    let node = Node::new();
    let start = |wanted: &Wanted, inventory: &Inventory| {
        let started = Isolation::start(wanted, &Cards::Simulated(inventory));
        started
            .err()
            .map(|error| (error.to_string(), error.is_passing()))
    };
    let none = Inventory::new(vec![], vec![], vec![], vec![]).unwrap();
    let (why, _) = start(&node.wanted(), &none).unwrap();
    assert_eq!(why, "this node has no GPU");
    let elsewhere = Wanted {
        library_dir: Some(node.path("elsewhere")),
        ..node.wanted()
    };
    let (why, passes) = start(&elsewhere, &inventory()).unwrap();
    assert!(why.starts_with("libsublet_cuda.so is in none of "), "{why}");
    assert!(!passes);
    let isolation = node.start();
    let (why, passes) = start(&node.wanted(), &inventory()).unwrap();
    assert!(
        why.starts_with("an arbiter looks after these GPUs already"),
        "{why}"
    );
    assert!(passes, "the other one may be about to end");
    isolation.stop();
}
