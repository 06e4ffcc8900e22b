//! Containers with more cards than a job's pages have room for.

use sublet_api::keys;

use super::*;
use crate::allocate::tests::{pods, site};
use crate::allocate::{Given, KubeletAsk, decide};

/// A node with so many cards of 100 MiB.
fn cards(count: u16) -> Inventory {
    let gpu = |index: u16| Gpu {
        uuid: GpuUuid::new(&format!("GPU-{index}")).ok(),
        ..Gpu::plain(GpuIndex(index), MiB::from(100))
    };
    Inventory::new((0..count).map(gpu).collect(), vec![], vec![], vec![]).unwrap()
}

/// The devices of a pod that asks for so many whole cards.
fn whole(pod: &str, count: u16, inventory: &Arc<Inventory>) -> AllocationResponse {
    let all: Vec<String> = (0..count).map(|index| index.to_string()).collect();
    let picture = format!("{pod} @{} main={count}", all.join(","));
    let mut site = site();
    site.facts.inventory = Arc::clone(inventory);
    let count = u64::from(count);
    let asked = KubeletAsk {
        resource: keys::NVIDIA_GPU,
        count,
    };
    let pods = pods(&picture, keys::NVIDIA_GPU);
    decide(&pods, &site, asked, &Given::default(), 7).unwrap()
}

#[test]
fn whole_cards_start_whatever_their_number_and_lose_no_limit_that_fits() {
    let node = Node::new();
    // A fake machine has no more than 16 cards, and the arbiter is not asked about the last one.
    let (fake, inventory) = (cards(16), Arc::new(cards(17)));
    let start = || Isolation::start(&node.wanted(), &Cards::Simulated(&fake)).unwrap();
    let isolation = start();
    let few = whole("few", 16, &inventory);
    assert!(few.whole && few.cards.len() == MAX_DEVICES);
    let injection = isolation.admit(&few).unwrap();
    assert!(!injection.mounts.is_empty());
    assert_eq!(jobs(&isolation), "1:ns/few/main=100");
    let limits = &isolation.look().1[&1].cards;
    assert_eq!((limits.len(), limits[15].limit_mib), (16, 100));
    // One more than a job's pages have room for: nobody else is on any of them.
    let many = whole("many", 17, &inventory);
    assert!(many.whole && many.environment[keys::NVIDIA_VISIBLE_DEVICES].contains("GPU-16"));
    assert_eq!(isolation.admit(&many).unwrap(), Injection::default());
    assert_eq!(jobs(&isolation), "1:ns/few/main=100");
    // Parts of so many would have no limit.
    let parts = AllocationResponse {
        whole: false,
        ..many
    };
    let why = isolation.admit(&parts).unwrap_err().to_string();
    let words = "a container can have parts of at most 16 GPUs, and pod ns/many asks for 17";
    assert_eq!(why, words);
    isolation.stop();
    let isolation = start();
    assert_eq!(jobs(&isolation), "1:ns/few/main=100");
    isolation.stop();
}
