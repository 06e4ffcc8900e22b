//! When the node says anew how busy its cards were: seldom enough for thousands of nodes, and
//! often enough to place pods by.

use std::time::Duration;

use sublet_api::object::Node;
use sublet_api::{NodeUse, keys, measured_use, use_to_json};

/// The least time between two writes. Every write is an event for every watcher of nodes.
const WRITE_EVERY: Duration = Duration::from_secs(60);

/// After so long any difference is written: a card that is a little busier than it says is not
/// wrong forever.
const STALE_AFTER: Duration = Duration::from_secs(600);

/// A difference that matters, in thousandths of a card.
const NEWS: u16 = 100;

/// The annotation that is to be written, or removed. `measured` is nothing while it is not known
/// yet, and without cards where nobody measures; `since_written` is the time since the last write.
#[must_use]
pub fn news(
    node: &Node,
    measured: Option<&NodeUse>,
    since_written: Duration,
) -> Option<(String, Option<String>)> {
    let key = keys::MEASURED_USE;
    let measured = measured?;
    if measured.is_empty() {
        let says = node.metadata.annotations.contains_key(key);
        return says.then(|| (key.to_owned(), None));
    }
    let said = match node.metadata.annotations.contains_key(key) {
        // What cannot be read is overwritten.
        true => measured_use(node).ok(),
        false => None,
    };
    let is_due = is_due(said.as_ref(), measured, since_written);
    is_due.then(|| (key.to_owned(), Some(use_to_json(measured))))
}

/// Is the measurement news beside the node's annotation?
fn is_due(said: Option<&NodeUse>, measured: &NodeUse, since_written: Duration) -> bool {
    if since_written < WRITE_EVERY {
        return false;
    }
    let Some(said) = said else {
        return true;
    };
    let is_stale = since_written >= STALE_AFTER && said != measured;
    let alike = measured
        .iter()
        .zip(said)
        .all(|((gpu, now), (other, before))| {
            let moved = now.busy.get().abs_diff(before.busy.get());
            gpu == other && now.pods == before.pods && moved < NEWS
        });
    is_stale || !alike || said.len() != measured.len()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use sublet_api::use_from_json;
    use sublet_model::{GpuIndex, MeasuredUse, Milli};

    use super::*;

    /// `0=40/2 1=5/0`: cards, percent, pods.
    fn cards(picture: &str) -> NodeUse {
        let card = |word: &str| {
            let (index, rest) = word.split_once('=').unwrap();
            let (percent, pods) = rest.split_once('/').unwrap();
            let measured = MeasuredUse {
                busy: Milli::new(10 * percent.parse::<u16>().unwrap()).unwrap(),
                pods: pods.parse().unwrap(),
            };
            (GpuIndex(index.parse().unwrap()), measured)
        };
        picture.split_whitespace().map(card).collect()
    }

    /// The text that is written on a node that says `said` (`-`: nothing), so many seconds after
    /// the last write.
    fn written(said: &str, measured: Option<&str>, seconds: u64) -> String {
        let mut node = Node::default();
        let text = match said {
            "-" => None,
            "garbage" => Some("garbage".to_owned()),
            said => Some(use_to_json(&cards(said))),
        };
        let annotation = text.map(|text| (keys::MEASURED_USE.to_owned(), text));
        node.metadata.annotations.extend(annotation);
        let measured = measured.map(cards);
        match news(&node, measured.as_ref(), Duration::from_secs(seconds)) {
            None => "nothing".to_owned(),
            Some((_, None)) => "removed".to_owned(),
            Some((_, Some(text))) => {
                assert_eq!(use_from_json(&text).ok(), measured);
                "new".to_owned()
            }
        }
    }

    #[test]
    fn ten_points_pods_and_cards_are_news_at_most_once_a_minute() {
        for (said, measured, seconds, expected) in [
            ("-", "0=40/1", 60, "new"),
            ("-", "0=40/1", 59, "nothing"),
            ("garbage", "0=40/1", 60, "new"),
            ("garbage", "0=40/1", 5, "nothing"),
            ("0=40/1", "0=49/1", 60, "nothing"),
            ("0=40/1", "0=50/1", 60, "new"),
            ("0=40/1", "0=30/1", 60, "new"),
            ("0=40/1", "0=50/1", 59, "nothing"),
            ("0=40/1", "0=40/2", 60, "new"),
            ("0=40/1", "0=40/1 1=0/0", 60, "new"),
            ("0=40/1 1=0/0", "0=40/1", 60, "new"),
            ("0=40/1", "1=40/1", 60, "new"),
            ("0=40/1 1=0/0", "0=40/1 1=10/0", 60, "new"),
            ("0=40/1", "0=41/1", 599, "nothing"),
            ("0=40/1", "0=41/1", 600, "new"),
            ("0=40/1", "0=40/1", 6000, "nothing"),
        ] {
            let answer = written(said, Some(measured), seconds);
            assert_eq!(answer, expected, "{said} → {measured} after {seconds} s");
        }
    }

    #[test]
    fn nothing_is_written_before_something_is_known_and_the_old_goes_where_nobody_measures() {
        assert_eq!(written("0=40/1", None, 6000), "nothing");
        assert_eq!(written("-", None, 6000), "nothing");
        assert_eq!(written("0=40/1", Some(""), 0), "removed");
        assert_eq!(written("garbage", Some(""), 0), "removed");
        assert_eq!(written("-", Some(""), 6000), "nothing");
    }

    fn minute() -> impl Strategy<Value = NodeUse> {
        let card = (0..=100_u16, 0..3_u32).prop_map(|(percent, pods)| MeasuredUse {
            busy: Milli::new(10 * percent).unwrap(),
            pods,
        });
        prop::collection::btree_map((0..3_u16).prop_map(GpuIndex), card, 1..4)
    }

    proptest! {
        /// A node is looked at every half minute; whatever is measured, writes are a minute apart,
        /// and what it says is within ten points a minute later.
        #[test]
        fn what_the_node_says_follows_what_is_measured(minutes in prop::collection::vec(minute(), 1..20)) {
            let (mut node, mut written_at) = (Node::default(), 0);
            for half in 2..2 * minutes.len() as u64 {
                let (now, measured) = (30 * half, &minutes[(half / 2) as usize]);
                let since = Duration::from_secs(now - written_at);
                if let Some((key, text)) = news(&node, Some(measured), since) {
                    prop_assert!(since >= WRITE_EVERY);
                    node.metadata.annotations.insert(key, text.unwrap());
                    written_at = now;
                }
                if now - written_at >= 60 {
                    let said = measured_use(&node).unwrap();
                    prop_assert!(said.keys().eq(measured.keys()));
                    let apart = said.values().zip(measured.values());
                    for (said, measured) in apart {
                        prop_assert_eq!(said.pods, measured.pods);
                        prop_assert!(said.busy.get().abs_diff(measured.busy.get()) < NEWS);
                    }
                }
            }
        }
    }
}
