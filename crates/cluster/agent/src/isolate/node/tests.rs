//! The real arbiter on a fake machine, with containers that are only folders.

mod hands;
mod supervisor;
mod time;
mod unread;
mod whole;

use std::os::unix::fs::MetadataExt;
use std::sync::{Arc, LazyLock};

use sublet_arbiter::TimeSharing;
use sublet_model::{Class, ContainerName, Gpu, GpuIndex, GpuUuid, Milli, PodKey, PodUid, Role};
use sublet_share::ComputeRange;

use super::*;
use crate::allocate::CardLimit;
use crate::isolate::loadable::tests::library;
use crate::isolate::{FailureKind, StrictnessWord};

/// A library that looks for the settings of containers.
static INTERPOSER: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let base = tempfile::tempdir().unwrap();
    let source = r#"const char place[] = "/usr/local/sublet/lib/settings";"#;
    fs::read(library(base.path(), "a.so", source, &[])).unwrap()
});

struct Node {
    base: tempfile::TempDir,
}

impl Node {
    fn new() -> Node {
        let base = tempfile::tempdir().unwrap();
        let libraries = base.path().join("built");
        fs::create_dir(&libraries).unwrap();
        for name in ["cuda", "nvml", "preload", "fakecuda", "fakenvml"] {
            let contents: &[u8] = match name {
                "cuda" | "nvml" => &INTERPOSER,
                _ => name.as_bytes(),
            };
            fs::write(libraries.join(format!("libsublet_{name}.so")), contents).unwrap();
        }
        Node { base }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.base.path().join(name)
    }

    fn wanted(&self) -> Wanted {
        Wanted {
            // It is a program of tests.
            program: None,
            mode: StrictnessWord::Strict,
            library_dir: Some(self.path("built")),
            carried: None,
            state_dir: self.path("state"),
            run_folder: self.path("run"),
            local_jobs: false,
            time: TimeSharing::default(),
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

fn handed(pod: &str, container: &str, role: Role, card: u16, memory: u32) -> AllocationResponse {
    let uuid = inventory().gpus()[usize::from(card)].uuid.clone();
    AllocationResponse {
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
        whole: false,
        pinned: None,
        compute: ComputeRange::ANY,
        class: Class::Guaranteed,
        slice: None,
        isolated: true,
        environment: BTreeMap::new(),
        annotations: BTreeMap::new(),
        twins: Vec::new(),
        device: None,
    }
}

fn pod(name: &str) -> Pod {
    let mut pod = Pod::default();
    pod.metadata.uid = format!("uid-{name}");
    pod
}

/// The node's pods, asked for now.
fn now(pods: Vec<Pod>) -> PodList {
    PodList::new(pods, Instant::now())
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
    assert!(isolation.ended.borrow().is_some());
}

#[test]
fn a_container_that_is_not_to_be_isolated_gets_nothing() {
    let node = Node::new();
    let isolation = node.start();
    let free = AllocationResponse {
        isolated: false,
        ..handed("a", "main", Role::Main, 0, 300)
    };
    assert_eq!(isolation.admit(&free).unwrap(), Injection::default());
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
    let before = now(vec![]);
    for (pod, card) in [("a", 0), ("b", 1), ("c", 1)] {
        let handed = handed(pod, "main", Role::Main, card, 300);
        isolation.admit(&handed).unwrap();
    }
    // Gone while the agent is there. A list that was asked for before does not say so.
    assert!(!isolation.settle(&before), "who came since stays");
    assert_eq!(isolation.look().1.len(), 3);
    assert!(!isolation.settle(&now(vec![pod("a"), pod("c")])));
    assert_eq!(jobs(&isolation), "1:ns/a/main=300 3:ns/c/main=300");
    isolation.stop();
    let socket = node.path("state/containers/uid-a/main-0/tenant/tenant.sock");
    assert!(!socket.exists());

    let isolation = node.start();
    assert!(socket.exists());
    assert_eq!(jobs(&isolation), "1:ns/a/main=300 3:ns/c/main=300");
    // Gone while it was away.
    assert!(!isolation.settle(&now(vec![pod("c")])));
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
fn a_containers_limit_of_pinned_memory_outlives_the_agent() {
    let node = Node::new();
    let isolation = node.start();
    let limited = AllocationResponse {
        pinned: Some(MiB::from(64)),
        ..handed("a", "main", Role::Main, 0, 300)
    };
    isolation.admit(&limited).unwrap();
    let free = handed("b", "main", Role::Main, 0, 300);
    isolation.admit(&free).unwrap();
    let limits = |isolation: &Isolation| -> Vec<Option<u64>> {
        let rows = isolation.snapshot().tenants;
        rows.iter().map(|row| row.pinned_limit_mib).collect()
    };
    assert_eq!(limits(&isolation), [Some(64), None]);
    isolation.stop();
    let isolation = node.start();
    assert_eq!(limits(&isolation), [Some(64), None]);
    isolation.stop();
}

#[test]
fn a_containers_compute_time_outlives_the_agent() {
    let node = Node::new();
    let isolation = node.start();
    let milli = |value| Milli::new(value).unwrap();
    let promised = AllocationResponse {
        compute: ComputeRange::new(milli(300), milli(600)).unwrap(),
        ..handed("a", "main", Role::Main, 0, 300)
    };
    let gives_way = AllocationResponse {
        class: Class::Opportunistic,
        ..handed("b", "main", Role::Main, 0, 300)
    };
    isolation.admit(&promised).unwrap();
    isolation.admit(&gives_way).unwrap();
    let shown = |isolation: &Isolation| {
        let snapshot = isolation.snapshot();
        let rows = snapshot.tenants.into_iter();
        let each = rows.map(|row| {
            let (request, limit) = (row.compute_request_percent, row.compute_limit_percent);
            (row.class.unwrap(), request.unwrap(), limit.unwrap())
        });
        let each: Vec<_> = each.collect();
        (each, snapshot.gpus[0].compute_promised_percent)
    };
    let both = vec![
        ("guaranteed".to_owned(), 30.0, 60.0),
        ("opportunistic".to_owned(), 0.0, 100.0),
    ];
    assert_eq!(shown(&isolation), (both.clone(), 30.0));
    isolation.stop();
    let isolation = node.start();
    assert_eq!(shown(&isolation), (both, 30.0));
    isolation.stop();
}

#[test]
fn containers_that_run_one_after_the_other_have_their_limits_at_once() {
    let node = Node::new();
    let isolation = node.start();
    // More than the card has, but never at one time.
    for (name, role, memory) in [
        ("prepare", Role::Init, 900),
        ("log", Role::Sidecar, 100),
        ("main", Role::Main, 850),
    ] {
        let handed = AllocationResponse {
            position: usize::from(role == Role::Sidecar),
            ..handed("a", name, role, 0, memory)
        };
        isolation.admit(&handed).unwrap();
    }
    let all = "1:ns/a/prepare=900 2:ns/a/log=100 3:ns/a/main=850";
    assert_eq!(jobs(&isolation), all);
    let granted = |isolation: &Isolation| isolation.snapshot().gpus[0].granted_mib;
    assert_eq!(granted(&isolation), 950);
    // One that has ended is started again with a new sandbox, and kubelet mounts the same
    // folder.
    let mut pod = pod("a");
    pod.status.init_container_statuses = vec![sublet_api::object::ContainerStatus {
        name: "prepare".to_owned(),
        state: sublet_api::object::ContainerState {
            terminated: Some(sublet_api::object::Anything),
            ..Default::default()
        },
        ..Default::default()
    }];
    assert!(!isolation.settle(&now(vec![pod.clone()])));
    assert_eq!(jobs(&isolation), all);
    let socket = node.path("state/containers/uid-a/init-0/tenant/tenant.sock");
    assert!(socket.exists());
    // Another agent counts them as this one did.
    isolation.stop();
    let isolation = node.start();
    assert_eq!(
        (jobs(&isolation), granted(&isolation)),
        (all.to_owned(), 950)
    );
    assert!(!isolation.settle(&now(vec![])));
    assert_eq!((jobs(&isolation).as_str(), granted(&isolation)), ("", 0));
    isolation.stop();
}

#[test]
fn jobs_of_this_machine_are_refused_unless_the_operator_lets_them_in() {
    use sublet_arbiter::admin::{Client, Mode, Reply, Request, Submit};
    let node = Node::new();
    let submit = || {
        let mut folders = fs::read_dir(node.path("run")).unwrap();
        let folder = folders.find_map(|entry| {
            let path = entry.unwrap().path();
            path.join("admin.sock").exists().then_some(path)
        });
        let mut client = Client::connect(&folder.unwrap().join("admin.sock")).unwrap();
        let submit = Submit {
            name: "train".to_owned(),
            memory: Some("100MiB".to_owned()),
            pinned_memory: None,
            compute: None,
            class: Class::Guaranteed,
            slice: None,
            gpus: 1,
            cards: None,
            wait: false,
            priority: 0,
            mode: Mode::Strict,
        };
        let patience = Duration::from_secs(20);
        client.call(&Request::Submit(submit), patience).unwrap()
    };
    let isolation = node.start();
    let Reply::Refused {
        reason,
        is_final,
        hint,
    } = submit()
    else {
        panic!("it was not refused");
    };
    assert!(is_final && reason.contains("are a cluster's"), "{reason}");
    let hint = hint.unwrap_or_default();
    assert!(hint.contains("--allow-local-jobs"), "{hint}");
    isolation.stop();
    let wanted = Wanted {
        local_jobs: true,
        ..node.wanted()
    };
    let isolation = Isolation::start(&wanted, &Cards::Simulated(&inventory())).unwrap();
    let reply = submit();
    assert!(matches!(reply, Reply::Placed(_)), "{reply:?}");
    isolation.stop();
}

/// Kubelet starts a container again with the mounts of its first start, whatever has become of
/// the agent.
#[test]
fn libraries_stay_while_a_container_can_come_back_to_them() {
    let node = Node::new();
    let folders = || {
        let entries = fs::read_dir(node.path("state/libraries")).unwrap();
        entries.map(|one| one.unwrap().path()).collect::<Vec<_>>()
    };
    let isolation = node.start();
    let injection = isolation.admit(&handed("a", "main", Role::Main, 0, 300));
    let mounts = injection.unwrap().mounts;
    isolation.stop();
    drop(isolation);
    let first = folders();
    assert_eq!(first.len(), 2);
    let is_mounted = |folder: &PathBuf| {
        let folder = folder.display().to_string();
        mounts.iter().any(|mount| mount.host_path == folder)
    };
    assert!(first.iter().all(is_mounted));

    // An agent of a later version, after some time.
    for name in ["cuda", "fakecuda"] {
        let file = node.path(&format!("built/libsublet_{name}.so"));
        fs::write(file, [&INTERPOSER, &b"new"[..]].concat()).unwrap();
    }
    let then = std::time::SystemTime::now() - Duration::from_secs(200_000);
    let age = |folder: &PathBuf| fs::File::open(folder).unwrap().set_modified(then).unwrap();
    first.iter().for_each(age);
    let isolation = node.start();
    assert!(!isolation.settle(&now(vec![pod("a")])));
    isolation.clear_libraries();
    assert_eq!(folders().len(), 4);
    if fs::read_link("/proc/self/ns/pid").unwrap() != Path::new("pid:[4026531836]") {
        println!("skipped: in a PID name space of its own the agent removes nothing");
        return;
    }
    // Its pod is gone. A test beside this one may be starting a program, which has the first
    // agent's locks until it runs.
    let deadline = Instant::now() + Duration::from_secs(30);
    while folders().len() > 2 && Instant::now() < deadline {
        assert!(!isolation.settle(&now(vec![])));
        isolation.clear_libraries();
    }
    let left = folders();
    isolation.stop();
    assert_eq!(left.len(), 2, "{left:?}");
    assert!(left.iter().all(|folder| !first.contains(folder)));
}

/// A record of an agent that wrote no folders may mean any of them.
#[test]
fn libraries_stay_while_a_record_says_nothing_of_them() {
    let node = Node::new();
    let isolation = node.start();
    isolation
        .admit(&handed("a", "main", Role::Main, 0, 300))
        .unwrap();
    isolation.stop();
    drop(isolation);
    let mut old = read_all(&node.path("state/containers")).unwrap().records;
    assert_eq!(old[0].libraries.len(), 2);
    let text = serde_json::to_string(&old[0]).unwrap();
    let start = text.find(",\"libraries\"").unwrap();
    let earlier: Record = serde_json::from_str(&format!("{}}}", &text[..start])).unwrap();
    assert_eq!(earlier.libraries, [""; 0].map(PathBuf::from));
    old[0] = earlier;
    old[0].write(&node.path("state/containers")).unwrap();
    let unknown = node.path("state/libraries/sublet-0");
    fs::create_dir(&unknown).unwrap();
    let then = std::time::SystemTime::now() - Duration::from_secs(200_000);
    fs::File::open(&unknown)
        .unwrap()
        .set_modified(then)
        .unwrap();
    let isolation = node.start();
    assert!(!isolation.settle(&now(vec![pod("a")])));
    isolation.clear_libraries();
    assert!(unknown.exists());
    isolation.stop();
}

#[test]
fn what_is_missing_is_told() {
    let node = Node::new();
    let start = |wanted: &Wanted, inventory: &Inventory| {
        let started = Isolation::start(wanted, &Cards::Simulated(inventory));
        started.err().map(|error| (error.to_string(), error.kind()))
    };
    let none = Inventory::new(vec![], vec![], vec![], vec![]).unwrap();
    let (why, _) = start(&node.wanted(), &none).unwrap();
    assert_eq!(why, "this node has no GPU");
    let elsewhere = Wanted {
        library_dir: Some(node.path("elsewhere")),
        ..node.wanted()
    };
    let (why, kind) = start(&elsewhere, &inventory()).unwrap();
    assert!(why.starts_with("libsublet_cuda.so is in none of "), "{why}");
    assert_eq!(kind, FailureKind::Permanent);
    // The kernel's own folder, where not even root may write.
    let closed = Wanted {
        state_dir: PathBuf::from("/sys/sublet"),
        ..node.wanted()
    };
    let (why, kind) = start(&closed, &inventory()).unwrap();
    let words = "there is no folder for our libraries: /sys/sublet/libraries: ";
    assert!(
        why.starts_with(words) && why.contains("(os error "),
        "{why}"
    );
    assert_eq!(kind, FailureKind::Transient);
    let isolation = node.start();
    let (why, kind) = start(&node.wanted(), &inventory()).unwrap();
    assert!(
        why.starts_with("an arbiter looks after these GPUs already"),
        "{why}"
    );
    assert_eq!(kind, FailureKind::Transient, "it may be about to end");
    isolation.stop();
}

#[test]
fn nothing_is_handed_out_after_the_arbiter_has_ended() {
    let node = Node::new();
    let isolation = node.start();
    let a = handed("a", "main", Role::Main, 0, 300);
    isolation.admit(&a).unwrap();
    isolation.stop();
    // Neither a container that had its limits nor a new one.
    assert!(isolation.admit(&a).is_err());
    let b = handed("b", "main", Role::Main, 0, 300);
    assert!(isolation.admit(&b).is_err());
}
