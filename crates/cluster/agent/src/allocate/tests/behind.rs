//! Lists of pods that are older than the last hand-over.

use std::time::Instant;

use super::*;

#[test]
fn a_list_that_is_behind_hands_nothing_out_twice() {
    let stale = pods("a @0 main=3 side=3\n b @1 main=4", MEM);
    let mut given = Given::default();
    given.note(
        &PodUid::new("uid-a").unwrap(),
        &ContainerName::new("main").unwrap(),
        Instant::now(),
    );
    let ask = |given: &Given| {
        let asked = KubeletAsk {
            resource: MEM,
            count: 3,
        };
        decide(&stale, &site(), asked, given, 7)
    };
    let next = ask(&given).unwrap();
    assert_eq!(next.container.as_str(), "side");
    assert_eq!(next.annotations[keys::ASSIGNED], r#"["main","side"]"#);
    assert_eq!(next.annotations[keys::ALIYUN_ASSIGNED], "true");
    given.note(&next.uid, &next.container, Instant::now());
    assert!(say(ask(&given)).starts_with("no pod"));
    given.keep(&stale[1..], Instant::now());
    assert_eq!(ask(&given).unwrap().container.as_str(), "main", "forgotten");
}
