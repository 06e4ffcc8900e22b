//! Memory of the node that a container may have pinned: up to its own limit of the node's memory.

use super::*;

#[test]
fn a_container_may_pin_what_it_may_have_of_the_nodes_memory() {
    let pinned = |picture: &str, memory: &str| {
        let mut pods = pods(picture, MEM);
        let spec = &mut pods[0].spec;
        for container in spec.init_containers.iter_mut().chain(&mut spec.containers) {
            // The others have another limit, or none.
            let own = container.resources.limits[MEM].0 == "3";
            let text = if own { memory } else { "77Gi" };
            let limits = &mut container.resources.limits;
            limits.insert("memory".to_owned(), Quantity(text.to_owned()));
            limits.retain(|_, quantity| !quantity.0.is_empty());
        }
        let asked = KubeletAsk {
            resource: MEM,
            count: 3,
        };
        let handed = decide(&pods, &site(), asked, &Given::default(), 7).unwrap();
        handed.pinned.map(MiB::get)
    };
    assert_eq!(pinned("a @1 x=5 y=3", "2Gi"), Some(2048));
    assert_eq!(pinned("a @1 init:i=3 x=5", "1500M"), Some(1430));
    assert_eq!(pinned("a @1 x=3", ""), None);
    assert_eq!(pinned("a @1 x=3", "a lot"), None);
}
