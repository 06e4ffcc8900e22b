//! Events on pods: however many pods wait, few are looked at and posted at once, a look at thousands
//! of nodes lets others have the lock, and a pod that goes is forgotten.

use std::pin::pin;
use std::time::Duration;

use serde_json::{Value, json};
use sublet_client::Change;
use sublet_model::PodUid;

use super::world::{World, pod};
use crate::events::{post_all, why_it_waits};
use crate::watches::{LOOKS, Listing, pods};

/// A pod that waits, as the stock scheduler has said.
fn refused(name: &str, memory: u64) -> Value {
    let mut refused = pod(name, memory);
    refused["spec"]["schedulerName"] = json!("sublet");
    refused["status"] = json!({ "conditions": [
        { "type": "PodScheduled", "status": "False", "reason": "Unschedulable" } ] });
    refused
}

fn uid(name: &str) -> PodUid {
    PodUid::new(name).unwrap()
}

impl World {
    /// The watch tells of a pod, or of its end.
    fn watch(&self, listed: &mut Listing<PodUid>, pod: &Value, gone: bool) {
        let pod = serde_json::from_value(pod.clone()).unwrap();
        let change = match gone {
            true => Change::Gone(pod),
            false => Change::Set(pod),
        };
        pods(&self.scheduler, listed, &change);
    }

    fn posting(&self) -> tokio::task::JoinHandle<()> {
        let scheduler = self.scheduler.clone();
        tokio::spawn(async move { post_all(&scheduler).await })
    }

    /// Waits for so many events; returns their texts, as `pod: text`.
    async fn events(&self, count: usize) -> Vec<String> {
        let there = async {
            while self.api.events.lock().unwrap().len() < count {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        let come = tokio::time::timeout(Duration::from_secs(20), there).await;
        let events = self.api.events.lock().unwrap();
        assert!(come.is_ok(), "{} events of {count}", events.len());
        let text = |event: &Value| {
            let (pod, text) = (&event["involvedObject"]["name"], &event["message"]);
            format!("{}: {}", pod.as_str().unwrap(), text.as_str().unwrap())
        };
        events.iter().map(text).collect()
    }
}

#[tokio::test]
async fn few_events_are_on_their_way_at_once_and_none_is_lost() {
    let world = World::of_three();
    world.api.stuck.send_replace(true);
    let posting = world.posting();
    for number in 0..300 {
        world.watch(&mut None, &refused(&format!("p{number}"), 9_000), false);
    }
    for _ in 0..2_000 {
        tokio::task::yield_now().await;
    }
    assert_eq!(world.events(4).await.len(), 4);
    world.api.stuck.send_replace(false);
    let mut told = world.events(300).await;
    told.sort_unstable();
    told.dedup_by_key(|text| text.split_once(':').unwrap().0.to_owned());
    assert_eq!(told.len(), 300);
    let why = "p0: n1: GPU 0 lacks 9000 MiB: 9000 MiB asked";
    assert!(told[0].starts_with(why), "{}", told[0]);
    posting.abort();
}

#[tokio::test]
async fn a_look_at_many_nodes_lets_others_have_the_lock() {
    let world = World::of_three();
    for number in 0..2 * LOOKS {
        world.node(&format!("m{number}"), 16_276, 1);
    }
    world.watch(&mut None, &refused("p", 17_000), false);
    let uid = uid("p");
    let mut look = pin!(why_it_waits(&world.scheduler, &uid));
    let mut pauses = 0;
    let found = loop {
        match futures::poll!(&mut look) {
            std::task::Poll::Ready(found) => break found,
            std::task::Poll::Pending => pauses += 1,
        }
        // A node that goes between two looks does not count, and does not end the look.
        world.scheduler.state().remove_node("m999");
    };
    assert_eq!(pauses, 3, "1004 nodes, {LOOKS} at once");
    let (pod, text) = found.unwrap();
    assert_eq!(pod.name(), "p");
    let more = "; and 996 more nodes (sublet explain pod p)";
    assert!(text.ends_with(more), "{text}");
}

#[tokio::test]
async fn nothing_is_said_of_a_pod_that_no_longer_waits() {
    let world = World::of_three();
    for name in ["gone", "bound", "fits", "waits"] {
        let memory = if name == "fits" { 100 } else { 9_000 };
        world.watch(&mut None, &refused(name, memory), false);
    }
    world.watch(&mut None, &refused("gone", 9_000), true);
    world.bound("bound", "n3", 0, 9_000);
    let mut mixed = refused("mixed", 1);
    mixed["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] = json!("1");
    world.watch(&mut None, &mixed, false);
    let posting = world.posting();
    let mut told = world.events(2).await;
    told.sort_unstable();
    assert!(
        told[0].contains("a pod can use one way of asking"),
        "{told:?}"
    );
    assert!(told[1].starts_with("waits: n1: "), "{told:?}");
    // The same is not said twice.
    world.watch(&mut None, &mixed, false);
    world.watch(&mut None, &refused("waits", 9_000), false);
    world.watch(&mut None, &refused("new", 9_000), false);
    assert!(world.events(3).await[2].starts_with("new: "));
    posting.abort();
}

#[tokio::test]
async fn a_pod_whose_end_the_watch_missed_is_forgotten_with_the_next_list() {
    let world = World::of_three();
    let posting = world.posting();
    for name in ["missed", "stays"] {
        world.watch(&mut None, &refused(name, 9_000), false);
    }
    world.events(2).await;
    posting.abort();
    assert_eq!(world.scheduler.events.pods(), 2);
    let mut listed = None;
    pods(&world.scheduler, &mut listed, &Change::ListBegins);
    world.watch(&mut listed, &refused("stays", 9_000), false);
    pods(&world.scheduler, &mut listed, &Change::ListEnds);
    assert_eq!(world.scheduler.events.pods(), 1);
}
