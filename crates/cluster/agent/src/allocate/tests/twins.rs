//! Equal pods at the same time: one answer serves each of them, or no pod is served.

use std::time::Instant;

use super::*;
use crate::checkpoint::KubeletCheckpoint;

/// Decides with a checkpoint in which these pods are served; `None`: without a checkpoint.
fn ask(picture: &str, served: Option<&[&str]>) -> Result<AllocationResponse, AllocateError> {
    let pods = pods(picture, MEM);
    let checkpoint = served.map(|served| {
        let entry = |name: &&str| {
            format!(
                r#"{{"PodUID":"uid-{name}","ContainerName":"main","ResourceName":"{MEM}",
                     "DeviceIDs":{{"-1":["GPU-0-_-1"]}}}}"#
            )
        };
        let entries: Vec<String> = served.iter().map(entry).collect();
        let text = format!(
            r#"{{"Data":{{"PodDeviceEntries":[{}]}}}}"#,
            entries.join(",")
        );
        KubeletCheckpoint::from_json(text.as_bytes()).unwrap()
    });
    let mut given = Given::default();
    given.learn(&pods, checkpoint.as_ref(), Instant::now());
    let asked = KubeletAsk {
        resource: MEM,
        count: 3,
    };
    decide(&pods, &site(), asked, &given, 7)
}

fn twins(answer: &Result<AllocationResponse, AllocateError>) -> Vec<String> {
    let handed = answer.as_ref().unwrap();
    let names = handed.twins.iter().map(|twin| twin.pod.name().to_owned());
    names.collect()
}

#[test]
fn equal_pods_on_one_card_are_served_in_any_order() {
    let three = "a @1 main=3\n b @1 main=3\n c @1 main=3\n d @0 main=4";
    assert_eq!(twins(&ask(three, Some(&[]))), ["a", "b", "c"]);
    let handed = ask(three, Some(&[])).unwrap();
    assert_eq!(handed.environment[keys::NVIDIA_VISIBLE_DEVICES], "GPU-1");
    // Whom kubelet has served it does not mean again. The last one is certain.
    assert_eq!(twins(&ask(three, Some(&["b"]))), ["a", "c"]);
    let last = ask(three, Some(&["b", "a"]));
    assert_eq!(
        (say(last.clone()), twins(&last)),
        ("ns/c.main -> GPU-1".to_owned(), vec![])
    );
    assert!(say(ask(three, Some(&["a", "b", "c"]))).starts_with("no pod"));
}

#[test]
fn nobody_is_served_who_might_get_what_is_anothers() {
    for (picture, why) in [
        ("a @0 main=3\n b @1 main=3", "another card"),
        ("a @1 main=3\n b @1 other=3", "another container"),
        ("a @1 main=3\n b @1 main=3 side=3", "kubelet asks twice"),
        ("a @1 main=3 side=3\n b @1 main=3 side=3", "of each"),
        (
            "a @1 init:main=3\n b @1 init:main=3",
            "kubelet may ask again",
        ),
    ] {
        let refused = say(ask(picture, Some(&[])));
        assert!(
            refused.contains("ns/a and ns/b both wait"),
            "{why}: {refused}"
        );
    }
    let twins = "a @1 main=3\n b @1 main=3";
    let refused = say(ask(twins, None));
    assert!(
        refused.contains("ns/a and ns/b both wait"),
        "without a checkpoint: {refused}"
    );
    // The same objection to both is said, and not that there are two.
    let over = "a @1 main=3\n b @1 main=3\n e @1 main=9999999";
    assert!(
        say(ask(over, Some(&[]))).contains("lacks"),
        "{}",
        say(ask(over, Some(&[])))
    );
}

#[test]
fn another_limit_of_ordinary_memory_is_another_pod() {
    let mut pods = pods("a @1 main=3\n b @1 main=3", MEM);
    let limits = &mut pods[1].spec.containers[0].resources.limits;
    limits.insert("memory".to_owned(), Quantity("1Gi".to_owned()));
    let mut given = Given::default();
    given.learn(&pods, Some(&KubeletCheckpoint::default()), Instant::now());
    let asked = KubeletAsk {
        resource: MEM,
        count: 3,
    };
    let refused = say(decide(&pods, &site(), asked, &given, 7));
    assert!(refused.contains("both wait"), "{refused}");
}
