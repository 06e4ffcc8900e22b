//! Decides when the agent writes HAMi's register and handshake, and when it takes them away. Pure.
//!
//! HAMi's own device plugin always wins: a register that is not ours is never touched, or two agents
//! would write in turns for ever. The handshake was a heartbeat of HAMi's plugin before 2.10 and is a
//! mark of HAMi's scheduler since. Ours is written with the register and not renewed: a write from
//! each node each half minute would reach every watcher of nodes, and our agent has nothing new
//! to say. If HAMi's scheduler asks (`Requesting_`), it gets no answer: it is not to count on
//! this node.

use std::collections::BTreeMap;

use jiff::Timestamp;
use sublet_api::dialect::hami::register::is_ours;
use sublet_api::keys;
use sublet_api::object::Node;

/// Does HAMi's device plugin report the node? Then nothing of ours is bound here.
#[must_use]
pub fn is_hamis(node: &Node) -> bool {
    let said = node.metadata.annotations.get(keys::HAMI_REGISTER);
    said.is_some_and(|text| !is_ours(text))
}

/// The annotations to write, or to remove. `register` is the text that the node should have, and
/// nothing where it should have none of ours.
#[must_use]
pub fn news(
    node: &Node,
    register: Option<&str>,
    now: Timestamp,
) -> BTreeMap<String, Option<String>> {
    let annotations = &node.metadata.annotations;
    let said = annotations.get(keys::HAMI_REGISTER).map(String::as_str);
    let has_handshake = annotations.contains_key(keys::HAMI_HANDSHAKE);
    if is_hamis(node) || (said == register && has_handshake == register.is_some()) {
        return BTreeMap::new();
    }
    if said.is_none() && register.is_none() {
        // A handshake alone is HAMi's scheduler's, which writes one to every node.
        return BTreeMap::new();
    }
    // As HAMi writes it: Go's `time.DateTime`.
    let handshake = register.map(|_| now.strftime("Reported_%Y-%m-%d %H:%M:%S").to_string());
    [
        (keys::HAMI_REGISTER, register.map(str::to_owned)),
        (keys::HAMI_HANDSHAKE, handshake),
    ]
    .map(|(key, text)| (key.to_owned(), text))
    .into()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const OURS: &str = r#"[{"id":"GPU-a","writer":"sublet.dev"}]"#;
    const OLDER: &str = r#"[{"id":"GPU-b","writer":"sublet.dev"}]"#;
    const HAMIS: &str = r#"[{"id":"GPU-a"}]"#;

    fn node(register: Option<&str>, handshake: Option<&str>) -> Node {
        let mut node = Node::default();
        let said = [
            (keys::HAMI_REGISTER, register),
            (keys::HAMI_HANDSHAKE, handshake),
        ];
        let said = said.map(|(key, text)| Some((key.to_owned(), text?.to_owned())));
        node.metadata.annotations = said.into_iter().flatten().collect();
        node
    }

    /// Carries out the due write; false if there is none.
    fn write(node: &mut Node, wanted: Option<&str>, second: i64) -> bool {
        let now = Timestamp::from_second(second).unwrap();
        let news = news(node, wanted, now);
        for (key, text) in &news {
            match text {
                Some(text) => node.metadata.annotations.insert(key.clone(), text.clone()),
                None => node.metadata.annotations.remove(key),
            };
        }
        !news.is_empty()
    }

    #[test]
    fn hami_s_is_left_alone_and_ours_is_kept_true() {
        let reported = "Reported_2026-11-24 09:30:00";
        let asking = "Requesting_2026-11-24 09:31:00";
        let deleted = "Deleted_2026-11-24 09:32:00";
        let none = (None, None);
        let own = (Some(OURS), Some(reported));
        for (before, wanted, after) in [
            (none, Some(OURS), own),
            (own, Some(OURS), own),
            ((Some(OLDER), Some(asking)), Some(OURS), own),
            ((Some(OURS), None), Some(OURS), own),
            // HAMi's scheduler is not answered.
            (
                (Some(OURS), Some(asking)),
                Some(OURS),
                (Some(OURS), Some(asking)),
            ),
            (
                (Some(OURS), Some(deleted)),
                Some(OURS),
                (Some(OURS), Some(deleted)),
            ),
            // The flag was taken away.
            (own, None, none),
            ((Some(OLDER), None), None, none),
            // HAMi's plugin has a register here.
            ((Some(HAMIS), None), Some(OURS), (Some(HAMIS), None)),
            (
                (Some(HAMIS), Some(reported)),
                None,
                (Some(HAMIS), Some(reported)),
            ),
            // HAMi's scheduler asks nodes without a GPU too.
            ((None, Some(asking)), None, (None, Some(asking))),
            ((None, Some(asking)), Some(OURS), own),
        ] {
            let mut changed = node(before.0, before.1);
            let written = write(&mut changed, wanted, 1_795_512_600);
            assert_eq!(written, before != after, "{before:?} {wanted:?}");
            let expected = node(after.0, after.1).metadata.annotations;
            assert_eq!(
                changed.metadata.annotations, expected,
                "{before:?} {wanted:?}"
            );
        }
        assert!(is_hamis(&node(Some(HAMIS), None)) && !is_hamis(&node(Some(OURS), None)));
    }

    proptest! {
        /// One write at most, however often the agent looks, and none while HAMi reports.
        #[test]
        fn whatever_stands_there_it_is_written_once(
            register in proptest::option::of(prop::sample::select(vec![OURS, OLDER, HAMIS, "", "[]", "garbage"])),
            handshake in proptest::option::of("(Reported_|Requesting_|Deleted_)?[0-9: -]{0,20}"),
            wanted in proptest::option::of(prop::sample::select(vec![OURS, OLDER])),
            seconds in proptest::collection::vec(0..4_000_000_000_i64, 1..6),
        ) {
            let mut node = node(register, handshake.as_deref());
            let hamis = is_hamis(&node);
            let writes = seconds.iter().filter(|second| write(&mut node, wanted, **second)).count();
            prop_assert!(writes <= usize::from(!hamis));
            if !hamis {
                let said = node.metadata.annotations.get(keys::HAMI_REGISTER);
                prop_assert_eq!(said.map(String::as_str), wanted);
            }
        }
    }
}
