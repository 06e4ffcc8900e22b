//! An arbiter that does not start, or ends: parts of cards wait for it, whole cards do not.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use sublet_api::keys;
use sublet_api::object::Node as NodeObject;
use sublet_arbiter::ArbiterError;
use sublet_telemetry::metrics::AgentMetrics;
use sublet_telemetry::metrics::print;
use tokio::sync::watch;
use tokio::time::timeout;

use super::*;
use crate::isolate::supervisor::{
    IsolationState, IsolationSupervisor, IsolationWatch, StartIsolation, state_for,
};

impl Node {
    /// Starts of the real arbiter on this node.
    fn starts(&self) -> Arc<StartIsolation> {
        let wanted = self.wanted();
        Arc::new(move |cards: &Inventory| match cards.gpus().is_empty() {
            true => Err(IsolationError::NoCards),
            false => Isolation::start(&wanted, &Cards::Simulated(cards)),
        })
    }
}

/// An inventory that stays as it is, for as long as the sender lives.
fn steady() -> watch::Sender<Arc<Inventory>> {
    watch::Sender::new(Arc::new(inventory()))
}

fn begin(
    start: Arc<StartIsolation>,
    cards: &watch::Sender<Arc<Inventory>>,
) -> Result<IsolationSupervisor, IsolationError> {
    let metrics = AgentMetrics::default();
    IsolationSupervisor::begin(Some(start), false, cards.subscribe(), metrics)
}

/// Waits until the state is on.
async fn until_on(states: &mut IsolationWatch) -> Arc<Isolation> {
    let is_on = states.wait_for(|state| state.on().is_some());
    let state = timeout(Duration::from_secs(60), is_on).await;
    let state = state.expect("it is not tried again").unwrap();
    Arc::clone(state.on().unwrap())
}

/// The reason why that container cannot start in this state.
fn refusal(state: &IsolationState, handed: &AllocationResponse) -> Option<String> {
    let admitted = match state.on() {
        Some(_) => return None,
        None => state.admit(handed),
    };
    admitted.err().map(|error| error.to_string())
}

/// A container with a part of a card, and one with a whole card.
fn part_and_whole() -> (AllocationResponse, AllocationResponse) {
    let part = handed("a", "main", Role::Main, 0, 300);
    let whole = AllocationResponse {
        whole: true,
        ..handed("b", "main", Role::Main, 1, 1000)
    };
    (part, whole)
}

#[tokio::test]
async fn no_part_is_handed_out_until_the_arbiter_starts() {
    let node = Node::new();
    fs::create_dir(node.path("state")).unwrap();
    fs::write(node.path("state/containers"), "no folder").unwrap();
    let cards = steady();
    let supervisor = begin(node.starts(), &cards).unwrap();
    let mut states = supervisor.state();
    let before = states.borrow().clone();
    let (part, whole) = part_and_whole();
    let why = before.admit(&part).unwrap_err().to_string();
    let folder = node.path("state/containers").display().to_string();
    assert!(why.starts_with("making") && why.contains(&folder), "{why}");
    assert!(why.ends_with("; the agent tries again"), "{why}");
    assert_eq!(before.admit(&whole).unwrap(), Injection::default());
    // The operator's label says that nothing is to be limited.
    let free = AllocationResponse {
        isolated: false,
        ..part.clone()
    };
    assert_eq!(before.admit(&free).unwrap(), Injection::default());

    // Kubelet's Allocate waits for it, and the runtime, which asks again, does not.
    let at_once = state_for(&part, &states, Duration::ZERO).await;
    assert!(at_once.is_err());
    assert!(state_for(&whole, &states, Duration::ZERO).await.is_ok());
    let kept = tokio::spawn(supervisor.keep());
    fs::remove_file(node.path("state/containers")).unwrap();
    let now = state_for(&part, &states, Duration::from_secs(60)).await;
    let now = now.unwrap();
    let isolation = until_on(&mut states).await;
    assert!(!now.admit(&part).unwrap().mounts.is_empty());
    assert_eq!(jobs(&isolation), "1:ns/a/main=300");
    kept.abort();
    isolation.stop();
}

#[tokio::test]
async fn an_arbiter_that_ends_is_started_again_with_its_containers() {
    let node = Node::new();
    // What is in the way of the second start.
    let (blocked, start) = (Arc::new(AtomicBool::new(false)), node.starts());
    let is_blocked = Arc::clone(&blocked);
    let start: Arc<StartIsolation> =
        Arc::new(
            move |cards: &Inventory| match is_blocked.swap(false, Ordering::Relaxed) {
                true => Err(IsolationError::io("writing", Path::new("a full disk"))(
                    std::io::ErrorKind::StorageFull.into(),
                )),
                false => start(cards),
            },
        );
    let cards = steady();
    let supervisor = begin(start, &cards).unwrap();
    let mut states = supervisor.state();
    let kept = tokio::spawn(supervisor.keep());
    let first = until_on(&mut states).await;
    let (part, _) = part_and_whole();
    first.admit(&part).unwrap();
    blocked.store(true, Ordering::Relaxed);
    first.stop();
    // Who has looked before it ended is refused too.
    assert!(first.admit(&part).is_err());
    let is_pending = |state: &IsolationState| matches!(state, IsolationState::Pending(_));
    let pending = timeout(Duration::from_secs(60), states.wait_for(is_pending));
    assert!(pending.await.is_ok(), "nobody notices that it has ended");
    let why = refusal(&states.borrow(), &part).unwrap();
    assert!(why.starts_with("the arbiter has ended: "), "{why}");
    let is_full = |state: &IsolationState| {
        let why = refusal(state, &part);
        why.is_some_and(|why| why.contains("a full disk"))
    };
    let full = timeout(Duration::from_secs(60), states.wait_for(is_full));
    assert!(full.await.is_ok(), "the second start was to fail");
    let second = until_on(&mut states).await;
    assert_eq!(jobs(&second), "1:ns/a/main=300");
    kept.abort();
    second.stop();
}

#[tokio::test]
async fn a_node_whose_cards_come_later_limits_them_then() {
    let node = Node::new();
    let none = Inventory::new(vec![], vec![], vec![], vec![]).unwrap();
    let cards = watch::Sender::new(Arc::new(none));
    let supervisor = begin(node.starts(), &cards).unwrap();
    let mut states = supervisor.state();
    let (part, _) = part_and_whole();
    assert!(refusal(&states.borrow(), &part).is_some());
    let kept = tokio::spawn(supervisor.keep());
    cards.send_replace(Arc::new(inventory()));
    let isolation = until_on(&mut states).await;
    kept.abort();
    isolation.stop();
}

#[test]
fn only_what_can_never_be_leaves_isolation_off() {
    let node = Node::new();
    let elsewhere = Wanted {
        library_dir: Some(node.path("elsewhere")),
        ..node.wanted()
    };
    let no_libraries: Arc<StartIsolation> =
        Arc::new(move |cards| Isolation::start(&elsewhere, &Cards::Simulated(cards)));
    let cards = steady();
    let (part, _) = part_and_whole();
    let off = begin(Arc::clone(&no_libraries), &cards).unwrap().state();
    assert!(matches!(&*off.borrow(), IsolationState::Unsupported(_)));
    assert_eq!(off.borrow().admit(&part).unwrap(), Injection::default());
    // The operator can say that this is an error.
    let must = |start, cards: &watch::Sender<Arc<Inventory>>| {
        let metrics = AgentMetrics::default();
        let begun = IsolationSupervisor::begin(Some(start), true, cards.subscribe(), metrics);
        begun.err().map(|error| error.to_string())
    };
    let why = must(no_libraries, &cards).unwrap();
    assert!(why.starts_with("libsublet_cuda.so is in none of "), "{why}");
    let none = Inventory::new(vec![], vec![], vec![], vec![]).unwrap();
    let none = watch::Sender::new(Arc::new(none));
    assert_eq!(must(node.starts(), &none).unwrap(), "this node has no GPU");
    // A wrong flag is for the operator to see at once.
    let wrong: Arc<StartIsolation> =
        Arc::new(|_| Err(ArbiterError::Setting("no card 7".to_owned()).into()));
    assert_eq!(begin(wrong, &cards).err().unwrap().to_string(), "no card 7");
}

#[test]
fn the_metric_and_the_node_s_note_say_the_state() {
    let cards = steady();
    let full: Arc<StartIsolation> = Arc::new(|_| {
        Err(IsolationError::io("writing", Path::new("/state"))(
            std::io::ErrorKind::StorageFull.into(),
        ))
    });
    let (metrics, registry) = AgentMetrics::registered();
    let supervisor = IsolationSupervisor::begin(Some(full), false, cards.subscribe(), metrics);
    let state = supervisor.unwrap().state();
    let page = print(&registry);
    for (label, value) in [
        ("on", 0),
        ("pending", 1),
        ("unsupported", 0),
        ("disabled", 0),
    ] {
        let line = format!("sublet_agent_isolation{{state=\"{label}\"}} {value}\n");
        assert!(page.contains(&line), "{line} is not in {page}");
    }
    let state = state.borrow().clone();
    let mut object = NodeObject::default();
    let (key, note) = state.news(&object, true).unwrap();
    let note = note.unwrap();
    assert!(
        note.starts_with("pending: writing /state failed: "),
        "{note}"
    );
    object.metadata.annotations.insert(key.clone(), note);
    assert_eq!(state.news(&object, true), None);
    // It goes when there is nothing to limit, and when all is well.
    let gone = Some((keys::NOT_ISOLATED.to_owned(), None));
    assert_eq!(state.news(&object, false), gone);
    assert_eq!(IsolationState::Disabled.news(&object, true), gone);
    assert_eq!(
        IsolationState::Disabled.news(&NodeObject::default(), true),
        None
    );
}
