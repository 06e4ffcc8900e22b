//! Trees of quotas: Koordinator's cases by their number, and properties of trees at random.

use proptest::prelude::*;

use super::*;

const CPU: &str = "cpu";

fn amounts(amount: u64) -> Amounts {
    [(Arc::from(CPU), amount)].into()
}

/// Amounts of the cluster's own tree.
fn own(total: u64) -> TreeTotals {
    [(Arc::from(""), amounts(total))].into()
}

/// `name parent min max lends`: with `-` for no parent, and `@tree` behind the name of one that is
/// in another tree.
fn quota(line: &str) -> Quota {
    let words: Vec<&str> = line.split_whitespace().collect();
    let [name, parent, min, max, lends] = words[..] else {
        panic!("five words: {line}");
    };
    let (name, tree) = name.split_once('@').unwrap_or((name, ""));
    Quota {
        name: name.into(),
        tree: tree.into(),
        parent: (parent != "-").then(|| parent.into()),
        lends: lends == "lends",
        min: amounts(min.parse().unwrap()),
        max: amounts(max.parse().unwrap()),
        ..Quota::default()
    }
}

fn tree(lines: &[&str]) -> QuotaTree {
    QuotaTree::new(lines.iter().map(|line| quota(line)).collect()).unwrap()
}

/// `name request`, and what each gets, by name.
fn entitlements(tree: &QuotaTree, total: u64, requests: &[(&str, u64)]) -> Vec<u64> {
    let asked = |name: &str| {
        let its = requests.iter().find(|(of, _)| *of == name);
        its.map_or(0, |(_, request)| *request)
    };
    let all = tree.entitlements(CPU, &own(total), asked, MinScaling::On);
    all.into_values().map(|has| has.amount).collect()
}

#[test]
fn q7_what_is_not_lent_stays_at_every_level() {
    for (lends, expected) in [
        ("FFF", [[20, 20, 60], [40, 20, 60], [60, 20, 80]]),
        ("TFT", [[20, 0, 20], [40, 0, 40], [60, 0, 60]]),
        ("TFF", [[20, 20, 40], [40, 20, 60], [60, 20, 80]]),
    ] {
        let word = |at: usize| match lends.as_bytes()[at] {
            b'T' => "lends",
            _ => "keeps",
        };
        let tree = tree(&[
            &format!("root - 60 100 {}", word(0)),
            &format!("c1 root 20 100 {}", word(1)),
            &format!("c2 root 20 100 {}", word(2)),
        ]);
        for (request, expected) in [0, 40, 60].into_iter().zip(expected) {
            let found = entitlements(&tree, 100, &[("c1", request)]);
            assert_eq!(found, expected, "{lends}, c1 asks {request}");
        }
    }
}

#[test]
fn q10_a_child_has_no_more_than_its_parent_got() {
    let narrow = tree(&["parent - 0 300 lends", "child parent 0 500 lends"]);
    assert_eq!(entitlements(&narrow, 600, &[("child", 400)]), [300, 300]);
    let wide = tree(&["parent - 0 600 lends", "child parent 0 600 lends"]);
    assert_eq!(entitlements(&wide, 300, &[("child", 500)]), [300, 300]);
}

#[test]
fn q11_who_is_above_hears_no_more_than_the_limit() {
    let chain = tree(&["a - 0 500 lends", "b a 0 30 lends", "c b 0 30 lends"]);
    let all = chain.entitlements(
        CPU,
        &own(500),
        |name| if name == "c" { 55 } else { 0 },
        MinScaling::On,
    );
    let requests: Vec<u64> = all.values().map(|has| has.request).collect();
    assert_eq!(requests, [30, 30, 55], "a, b, c");
}

#[test]
fn a_resource_that_nobody_names_concerns_nobody() {
    let mut plain = quota("a - 1 2 lends");
    plain.min = [(Arc::from("memory"), 1)].into();
    let tree = QuotaTree::new(vec![plain, quota("b a 0 9 lends"), quota("c - 0 9 lends")]).unwrap();
    let names = |resource| {
        let all = tree.entitlements(resource, &own(9), |_| 9, MinScaling::On);
        all.into_keys().collect::<Vec<_>>()
    };
    assert_eq!(names("memory"), ["a".into()]);
    assert_eq!(names("gpu"), []);
    // "a" is above somebody who names it, and has no limit itself.
    assert_eq!(names(CPU), ["a".into(), "b".into(), "c".into()]);
}

#[test]
fn a_weight_of_nothing_is_no_weight_unless_others_are() {
    let with = |weight: Option<&[(&str, u64)]>| {
        let mut a = quota("a - 0 100 lends");
        let named = |weights: &[(&str, u64)]| {
            let each = weights
                .iter()
                .map(|&(name, weight)| (Arc::from(name), weight));
            each.collect::<Amounts>()
        };
        a.weight = weight.map(named);
        let tree = QuotaTree::new(vec![a, quota("b - 0 100 lends")]).unwrap();
        entitlements(&tree, 90, &[("a", 100), ("b", 100)])
    };
    assert_eq!(with(None), [45, 45]);
    assert_eq!(with(Some(&[(CPU, 50)])), [30, 60]);
    assert_eq!(with(Some(&[(CPU, 0)])), [45, 45]);
    assert_eq!(with(Some(&[("gpu", 8)])), [0, 90]);
}

#[test]
fn what_is_no_tree_is_named() {
    let wrong = |lines: &[&str]| {
        let quotas = lines.iter().map(|line| quota(line)).collect();
        QuotaTree::new(quotas).unwrap_err().to_string()
    };
    assert_eq!(
        wrong(&["a - 0 1 lends", "a - 0 1 lends"]),
        "there are two quotas a"
    );
    assert_eq!(
        wrong(&["a b 0 1 lends"]),
        "quota a has the parent b, which is not there"
    );
    assert_eq!(
        wrong(&["a@x - 0 1 lends", "b a 0 1 lends"]),
        "quota b is not of the tree of its parent a"
    );
    let circle = wrong(&["a b 0 1 lends", "b a 0 1 lends", "c - 0 1 lends"]);
    assert_eq!(
        circle,
        "quota a is its own parent, directly or through others"
    );
}

#[test]
fn promises_that_cannot_be_kept_are_named() {
    let tree = tree(&[
        "a - 10 5 lends",
        "b a 7 9 lends",
        "c a 6 9 lends",
        "d - 900 900 lends",
    ]);
    let problems: Vec<String> = tree.problems().iter().map(ToString::to_string).collect();
    assert_eq!(
        problems,
        [
            "quota a: min of cpu is 10, above its max of 5",
            "quota a: min of cpu is 10, and its children have 13 together",
        ]
    );
}

#[test]
fn each_tree_divides_what_it_has_itself() {
    let trees = tree(&[
        "a - 2 9 lends",
        "b - 2 9 lends",
        "x@t - 2 9 lends",
        "y@t x 1 9 lends",
        "z@u - 5 9 lends",
    ]);
    let totals: TreeTotals = [("", 8), ("t", 6)]
        .map(|(tree, total)| (Arc::from(tree), amounts(total)))
        .into();
    let of = |asked: &[(&str, u64)]| -> Vec<u64> {
        let asked = |name: &str| {
            let its = asked.iter().find(|(of, _)| *of == name);
            its.map_or(0, |(_, request)| *request)
        };
        let all = trees.entitlements(CPU, &totals, asked, MinScaling::On);
        all.into_values().map(|has| has.amount).collect()
    };
    // Of tree u nobody knows what it has.
    assert_eq!(
        of(&[("a", 9), ("b", 9), ("y", 9), ("z", 9)]),
        [4, 4, 6, 6, 0]
    );
    // What one tree does not ask for stays in it.
    assert_eq!(of(&[("a", 9), ("z", 9)]), [8, 0, 0, 0, 0]);
    assert_eq!(of(&[("a", 1), ("y", 9)]), [1, 0, 6, 6, 0]);
}

/// Trees of up to 12 quotas. A quota with a parent at or after itself stands at the top.
fn any_tree() -> impl Strategy<Value = (QuotaTree, Vec<u64>, u64)> {
    let one = (0..12usize, 0..50u64, 0..200u64, 0..100u64, any::<bool>());
    let all = prop::collection::vec(one, 1..12);
    (all, 0..300u64).prop_map(|(all, total)| {
        let quotas = all
            .iter()
            .enumerate()
            .map(|(at, &(parent, min, more, _, lends))| Quota {
                name: format!("q{at:02}").into(),
                parent: (parent < at).then(|| format!("q{parent:02}").into()),
                lends,
                min: amounts(min),
                max: amounts(min + more),
                ..Quota::default()
            });
        let requests = all.iter().map(|&(_, _, _, request, _)| request).collect();
        (QuotaTree::new(quotas.collect()).unwrap(), requests, total)
    })
}

fn index(name: &str) -> usize {
    name[1..].parse().unwrap()
}

proptest! {
    #[test]
    fn no_level_gives_out_more_than_it_has((tree, requests, total) in any_tree()) {
        let all = tree.entitlements(CPU, &own(total), |name| requests[index(name)], MinScaling::On);
        let mut sums: BTreeMap<Option<Arc<str>>, u64> = BTreeMap::new();
        for (quota, _) in tree.quotas() {
            let has = all[&quota.name];
            *sums.entry(quota.parent.clone()).or_default() += has.amount;
            prop_assert!(has.amount <= quota.max[CPU]);
            prop_assert!(has.amount <= has.request);
        }
        for (parent, sum) in sums {
            prop_assert!(sum <= parent.map_or(total, |parent| all[&parent].amount));
        }
    }

    #[test]
    fn who_asks_for_more_is_entitled_to_no_less(
        (tree, mut requests, total) in any_tree(),
        at in any::<prop::sample::Index>(),
        more in 0..100u64,
    ) {
        let at = at.index(requests.len());
        let name: Arc<str> = format!("q{at:02}").into();
        let entitlement = |requests: &[u64]| {
            let all = tree.entitlements(CPU, &own(total), |name| requests[index(name)], MinScaling::On);
            all[&name].amount
        };
        let before = entitlement(&requests);
        requests[at] += more;
        prop_assert!(entitlement(&requests) >= before);
    }

    #[test]
    fn the_order_in_which_quotas_come_changes_nothing(
        (tree, requests, total) in any_tree(),
        seed in any::<u64>(),
    ) {
        let mut quotas: Vec<Quota> = tree.quotas().map(|(quota, _)| quota.clone()).collect();
        quotas.rotate_left(usize::try_from(seed % 12).unwrap_or(0) % requests.len());
        quotas.reverse();
        let other = QuotaTree::new(quotas).unwrap();
        let asked = |name: &str| requests[index(name)];
        prop_assert_eq!(
            tree.entitlements(CPU, &own(total), asked, MinScaling::On),
            other.entitlements(CPU, &own(total), asked, MinScaling::On)
        );
    }

    #[test]
    fn another_tree_changes_nothing(
        (tree, requests, total) in any_tree(),
        (other, asks, more) in any_tree(),
    ) {
        let asked = |name: &str| match name.strip_prefix('x') {
            Some(name) => asks[index(name)],
            None => requests[index(name)],
        };
        let moved = |name: &Arc<str>| -> Arc<str> { format!("x{name}").into() };
        let those = tree.quotas().map(|(quota, _)| quota.clone());
        let others = other.quotas().map(|(quota, _)| Quota {
            name: moved(&quota.name),
            tree: "x".into(),
            parent: quota.parent.as_ref().map(moved),
            ..quota.clone()
        });
        let both = QuotaTree::new(those.chain(others).collect()).unwrap();
        let mut totals = own(total);
        totals.insert("x".into(), amounts(more));
        let mut expected = tree.entitlements(CPU, &own(total), asked, MinScaling::On);
        let alone = other.entitlements(CPU, &own(more), |name| asks[index(name)], MinScaling::On);
        expected.extend(alone.into_iter().map(|(name, has)| (moved(&name), has)));
        prop_assert_eq!(both.entitlements(CPU, &totals, asked, MinScaling::On), expected);
    }
}
