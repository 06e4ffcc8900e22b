//! Compute time that a container is handed; it is promised only once.

use sublet_api::keys::{ALIYUN_GPU_CORE, CLASS_LABEL, SLICE};

use super::*;
use crate::isolate::record::Record;

/// Pods that ask for compute time too in the containers that ask for `3`.
fn asking(picture: &str, percent: &str, class: &str) -> Vec<Pod> {
    let mut pods = pods(picture, MEM);
    for pod in &mut pods {
        let label = (CLASS_LABEL.to_owned(), class.to_owned());
        pod.metadata.labels.extend([label]);
        for container in &mut pod.spec.containers {
            let limits = &mut container.resources.limits;
            if limits[MEM].0 == "3" {
                limits.insert(ALIYUN_GPU_CORE.to_owned(), Quantity(percent.to_owned()));
            }
        }
    }
    pods
}

#[test]
fn a_container_has_the_compute_time_and_the_class_of_its_pod() {
    let handed = |picture: &str, percent: &str, class: &str, count| {
        let asked = KubeletAsk {
            resource: MEM,
            count,
        };
        let pods = asking(picture, percent, class);
        let handed = decide(&pods, &site(), asked, &Given::default(), 7);
        handed.map_or_else(
            |error| error.to_string(),
            |handed| format!("{} {}", handed.class.word(), handed.compute),
        )
    };
    let both = "a @1 x=5 y=3";
    assert_eq!(
        handed(both, "30", "guaranteed", 3),
        "guaranteed 30 %..100 %"
    );
    assert_eq!(handed(both, "30", "guaranteed", 5), "guaranteed 0 %..100 %");
    assert_eq!(
        handed(both, "0", "opportunistic", 3),
        "opportunistic 0 %..100 %"
    );
    // Whoever bound them.
    let two = "a @1 x=3; done:x
               b @1 y=3";
    assert_eq!(handed(two, "50", "guaranteed", 3), "guaranteed 50 %..100 %");
    assert_eq!(
        handed(two, "60", "guaranteed", 3),
        "pod ns/b: 120 % of the compute time of GPU 1 are promised to 2 pods"
    );
}

#[test]
fn a_container_has_the_length_of_turns_of_its_pod() {
    for (text, expected) in [(None, None), (Some("3ms"), Some("3ms")), (Some("3s"), None)] {
        let mut pods = pods("a @1 x=3", MEM);
        let slice = text.map(|text| (SLICE.to_owned(), text.to_owned()));
        pods[0].metadata.annotations.extend(slice);
        let asked = KubeletAsk {
            resource: MEM,
            count: 3,
        };
        let handed = decide(&pods, &site(), asked, &Given::default(), 7).unwrap();
        let slice = handed.slice.map(|slice| slice.to_string());
        assert_eq!(slice.as_deref(), expected);
        // An agent that starts anew reads it again.
        assert_eq!(Record::of(&handed).slice(), handed.slice);
    }
}
