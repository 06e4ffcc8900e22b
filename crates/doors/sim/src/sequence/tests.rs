//! Orders as files say them, and as seeds draw them.

use proptest::prelude::*;

use super::*;
use crate::trace::{BadLines, read_nodes, read_pods};

fn lists(n_pods: usize) -> (NodeList, PodList) {
    let nodes = "sn,cpu_milli,memory_mib,gpu\na,1,1,2\nb,1,1,2\n";
    let (nodes, _) = read_nodes(nodes.as_bytes(), BadLines::Stop).unwrap();
    let mut text = "name,cpu_milli,memory_mib,num_gpu,gpu_milli\n".to_owned();
    for at in 0..n_pods {
        text += &format!("p{at:03},0,0,{},{}\n", at % 3, [0, 300, 1000][at % 3]);
    }
    let (pods, _) = read_pods(text.as_bytes(), &nodes, BadLines::Stop).unwrap();
    (nodes, pods)
}

#[test]
fn a_sequence_is_read_and_checked_against_its_lists() {
    let (nodes, pods) = lists(3);
    let read = |text: &str| Sequence::read(text, &nodes, &pods).map_err(|error| error.to_string());
    let good = read("nodes 1 0\npods 2 0 0\n").unwrap();
    assert_eq!((good.ranks, good.arrivals), (vec![1, 0], vec![2, 0, 0]));
    let check = |text: &str, said: &str| assert_eq!(read(text).unwrap_err(), said);
    check("", "line 1: it must begin with `nodes`");
    check("nodes 0 1\nnodes", "line 2: it must begin with `pods`");
    check(
        "nodes 0 2\npods",
        "line 1, word 3: `2` is not a whole number below 2",
    );
    check(
        "nodes 0 1\npods -1",
        "line 2, word 2: `-1` is not a whole number below 3",
    );
    check("nodes 0\npods", "line 1: 1 ranks for 2 nodes");
    check("nodes 1 1\npods", "line 1: rank 1 is given twice");
}

#[test]
fn a_share_of_nothing_is_drawn_too() {
    let (nodes, _) = lists(0);
    let (_, pods) = lists(0);
    assert_eq!(Sequence::draw(1, &nodes, &pods, 1300).arrivals, [0; 0]);
    let (_, pods) = lists(1);
    // A pod of no GPU comes once: drawing it again brings no GPU nearer.
    assert_eq!(Sequence::draw(1, &nodes, &pods, 1300).arrivals, [0]);
}

proptest! {
    #[test]
    fn arrivals_reach_the_share_and_every_pod_comes(seed: u64, n_pods in 2..60usize, share in 0..3000u32) {
        let (nodes, pods) = lists(n_pods);
        let sequence = Sequence::draw(seed, &nodes, &pods, share);
        prop_assert_eq!(&sequence, &Sequence::draw(seed, &nodes, &pods, share));
        let asked = |at: &u32| Gauge::of(&nodes).milli(&pods.rows[*at as usize].claim);
        let sum: u64 = sequence.arrivals.iter().map(asked).sum();
        let target = 4 * u64::from(share);
        let all: u64 = (0..n_pods as u32).map(|at| asked(&at)).sum();
        if all <= target {
            // One that asks for two cards may go beyond by one; then, or at the first that
            // would go beyond by itself, the drawing ends.
            prop_assert!(sum <= target + 1000 && sum + 2000 > target, "{sum} of {target}");
            for at in 0..n_pods as u32 {
                prop_assert!(sequence.arrivals.contains(&at));
            }
        } else {
            prop_assert!(sum <= target);
        }
        let mut ranks = sequence.ranks;
        ranks.sort_unstable();
        prop_assert_eq!(ranks, [0, 1]);
    }

    #[test]
    fn any_text_is_answered(text in "(nodes|pods)?[0-9 \n-]{0,40}(pods)?[0-9 ]{0,20}") {
        let (nodes, pods) = lists(3);
        let _answered = Sequence::read(&text, &nodes, &pods);
    }
}
