//! `random`: any place that fits, drawn from the UID of the pod that asks.

use sublet_model::{MiB, NodeName, PodUid};

use super::{Asked, Cost, Kind, Score, Site, Then, signed};
use crate::scatter::scatter;

pub(super) const RANDOM: Kind = Kind {
    name: "random",
    make: || Box::new(Random),
};

#[derive(Debug, Clone)]
struct Random;

impl Score for Random {
    fn card(&self, _: &Site<'_>, asked: &Asked<'_>, position: usize, _: MiB) -> Cost {
        draw_card(asked.uid, position)
    }

    fn node(&self, site: &Site<'_>, asked: &Asked<'_>, _: usize, _: Then<'_>) -> Cost {
        draw_node(asked.uid, site.book.name())
    }

    fn sees_host(&self) -> bool {
        true
    }

    fn boxed(&self) -> Box<dyn Score> {
        Box::new(self.clone())
    }

    fn is_personal(&self) -> bool {
        true
    }
}

/// A node's cost, drawn from the pod's UID and the node's name.
fn draw_node(uid: &PodUid, node: &NodeName) -> Cost {
    let text = uid.as_str().bytes().chain([0]);
    signed(scatter(text.chain(node.as_str().bytes()), 0))
}

/// The cost of a card among those of its node, drawn from the pod's UID. A pod goes to only one
/// node, so the node's name would cost time and change nothing.
fn draw_card(uid: &PodUid, position: usize) -> Cost {
    signed(scatter(uid.as_str().bytes(), position as u64))
}

#[cfg(test)]
mod tests {
    #[test]
    fn random_is_the_same_for_one_pod_and_differs_between_pods() {
        use sublet_model::{NodeName, PodUid};
        let uid = |pod: &str| PodUid::new(pod).unwrap();
        let draw = |pod: &str, node| super::draw_node(&uid(pod), &NodeName::new(node).unwrap());
        assert_eq!(draw("p", "n"), draw("p", "n"));
        let (mut firsts, mut cards) = ([0; 4], [0; 4]);
        for pod in 0..4000 {
            let pod = format!("p{pod}");
            let costs = ["a", "b", "c", "d"].map(|node| draw(&pod, node));
            firsts[(0..4).min_by_key(|&at| costs[at]).unwrap()] += 1;
            let card = (0..4).min_by_key(|&at| super::draw_card(&uid(&pod), at));
            cards[card.unwrap()] += 1;
        }
        // 1000 each are expected, with a standard deviation of 27.
        for counts in [firsts, cards] {
            let all_near = counts.iter().all(|count| (850..1150).contains(count));
            assert!(all_near, "{counts:?}");
        }
    }
}
