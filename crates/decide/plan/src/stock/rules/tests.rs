//! Tables of pods and nodes: which pod may go where, and the reason if it may not.

use proptest::prelude::*;

use super::*;

/// `n1 zone=a disk= gpu=yes:NoSchedule cordoned`: a node, its labels, its taints.
fn node(picture: &str) -> NodeRules {
    let mut words = picture.split_whitespace();
    let mut node = NodeRules {
        name: Arc::from(words.next().unwrap_or("n")),
        labels: BTreeMap::new(),
        taints: Vec::new(),
        unschedulable: false,
    };
    for word in words {
        if word == "cordoned" {
            node.unschedulable = true;
        } else if let Some((mark, effect)) = word.split_once(':') {
            let (key, value) = mark.split_once('=').unwrap_or((mark, ""));
            node.taints.push(Taint {
                key: Arc::from(key),
                value: Arc::from(value),
                effect: effect_of(effect),
            });
        } else {
            let (key, value) = word.split_once('=').unwrap();
            node.labels.insert(Arc::from(key), Arc::from(value));
        }
    }
    node
}

fn effect_of(text: &str) -> TaintEffect {
    match text {
        "NoSchedule" => TaintEffect::NoSchedule,
        "PreferNoSchedule" => TaintEffect::PreferNoSchedule,
        _ => TaintEffect::NoExecute,
    }
}

/// `zone in a,b`, `zone notin a`, `zone`, `!zone`, `cores > 8`, `name in n1`.
fn requirement(text: &str) -> Requirement {
    let words: Vec<&str> = text.split_whitespace().collect();
    let values = |text: &str| text.split(',').map(Arc::from).collect();
    let (key, operator) = match words[..] {
        [key, "in", list] => (key, Operator::In(values(list))),
        [key, "notin", list] => (key, Operator::NotIn(values(list))),
        [key, ">", bound] => (key, Operator::Gt(bound.parse().unwrap())),
        [key, "<", bound] => (key, Operator::Lt(bound.parse().unwrap())),
        [key] => match key.strip_prefix('!') {
            Some(key) => (key, Operator::DoesNotExist),
            None => (key, Operator::Exists),
        },
        _ => panic!("`{text}` is no requirement"),
    };
    Requirement {
        key: Arc::from(key),
        operator,
    }
}

/// Reads requirements joined by `&`.
fn term(text: &str) -> Term {
    let mut term = Term::default();
    for wish in text.split('&').map(str::trim).filter(|t| !t.is_empty()) {
        match wish.strip_prefix("name ") {
            Some(rest) => term
                .names
                .push(requirement(&format!("metadata.name {rest}"))),
            None => term.labels.push(requirement(wish)),
        }
    }
    term
}

fn wants(terms: &[&str]) -> PodRules {
    PodRules {
        required: Some(terms.iter().map(|text| term(text)).collect()),
        ..PodRules::default()
    }
}

fn tolerates(key: &str, value: Option<&str>, effect: Option<TaintEffect>) -> PodRules {
    let toleration = Toleration {
        key: Arc::from(key),
        value: value.map(Arc::from),
        effect,
    };
    PodRules {
        tolerations: vec![toleration],
        ..PodRules::default()
    }
}

/// The reason for a refusal, or `yes`.
fn check(pod: &PodRules, picture: &str) -> String {
    match pod.check(&node(picture)) {
        Ok(()) => "yes".to_owned(),
        Err(reason) => reason.to_string(),
    }
}

#[test]
fn taints_keep_away_whom_they_must() {
    let any = PodRules::default();
    let all = tolerates("", None, None);
    let gpu = tolerates("gpu", Some("yes"), Some(TaintEffect::NoSchedule));
    let cases = [
        (&any, "n", "yes"),
        (&any, "n a:PreferNoSchedule", "yes"),
        (
            &any,
            "n a:NoExecute",
            "the pod does not tolerate the taint a:NoExecute",
        ),
        (&all, "n a:NoExecute gpu=yes:NoSchedule", "yes"),
        (&gpu, "n gpu=yes:NoSchedule", "yes"),
        (
            &gpu,
            "n gpu=no:NoSchedule",
            "the pod does not tolerate the taint gpu=no:NoSchedule",
        ),
        (
            &gpu,
            "n gpu=yes:NoExecute",
            "the pod does not tolerate the taint gpu=yes:NoExecute",
        ),
        (
            &gpu,
            "n gpu=yes:NoSchedule b:NoSchedule",
            "the pod does not tolerate the taint b:NoSchedule",
        ),
        (
            &any,
            "n cordoned",
            "the node takes no new pods: it is cordoned",
        ),
        (&all, "n cordoned", "yes"),
    ];
    for (pod, picture, expected) in cases {
        assert_eq!(check(pod, picture), expected, "{picture}");
    }
    let daemon = tolerates(
        "node.kubernetes.io/unschedulable",
        None,
        Some(TaintEffect::NoSchedule),
    );
    assert_eq!(check(&daemon, "n cordoned"), "yes");
    let soft = node("n a:PreferNoSchedule b=1:PreferNoSchedule c:NoSchedule");
    assert_eq!((any.soft_taints(&soft), all.soft_taints(&soft)), (2, 0));
    let one = tolerates("b", Some("1"), Some(TaintEffect::PreferNoSchedule));
    assert_eq!(one.soft_taints(&soft), 1);
}

#[test]
fn a_selector_wants_every_label() {
    let labels = [("disk", "ssd"), ("zone", "a")];
    let pod = PodRules {
        selector: labels.map(|(k, v)| (Arc::from(k), Arc::from(v))).into(),
        ..PodRules::default()
    };
    assert_eq!(check(&pod, "n disk=ssd zone=a"), "yes");
    assert_eq!(
        check(&pod, "n disk=ssd"),
        "the pod selects zone=a, and the node has no such label"
    );
    assert_eq!(
        check(&pod, "n disk=hdd zone=a"),
        "the pod selects disk=ssd, and the node has hdd"
    );
    assert_eq!(
        check(&pod, "n disk= zone=a"),
        "the pod selects disk=ssd, and the node has it empty"
    );
}

#[test]
fn one_term_of_the_required_affinity_must_match_whole() {
    let cases: &[(&[&str], &str, bool)] = &[
        (&["zone in a,b"], "n zone=b", true),
        (&["zone in a,b"], "n zone=c", false),
        (&["zone in a,b"], "n", false),
        (&["zone notin a"], "n zone=b", true),
        (&["zone notin a"], "n zone=a", false),
        (&["zone notin a"], "n", true),
        (&["zone"], "n zone=", true),
        (&["zone"], "n", false),
        (&["!zone"], "n", true),
        (&["!zone"], "n zone=a", false),
        (&["cores > 8"], "n cores=9", true),
        (&["cores > 8"], "n cores=8", false),
        (&["cores > 8"], "n cores=many", false),
        (&["cores > 8"], "n", false),
        (&["cores < 8"], "n cores=-3", true),
        (&["cores < 8"], "n cores=8", false),
        (&["name in n1"], "n1", true),
        (&["name in n1"], "n2", false),
        (&["name notin n1"], "n2", true),
        (&["name in n1 & zone in a"], "n1 zone=b", false),
        (&["zone in a & disk"], "n zone=a disk=ssd", true),
        (&["zone in a & disk"], "n zone=a", false),
        // One of several terms is enough. An empty term matches nothing, nor does a list without
        // terms.
        (&["zone in a", "disk"], "n disk=ssd", true),
        (&["", "disk"], "n disk=ssd", true),
        (&["", "disk"], "n", false),
        (&[""], "n", false),
        (&[], "n", false),
    ];
    for (terms, picture, matches) in cases {
        let pod = wants(terms);
        assert_eq!(
            pod.check(&node(picture)).is_ok(),
            *matches,
            "{terms:?} on {picture}"
        );
    }
    assert_eq!(
        check(&wants(&["zone in a,b"]), "n zone=c"),
        "the pod's node affinity asks zone in (a, b), and the node has c"
    );
    assert_eq!(
        check(&wants(&["cores > 8", "!x"]), "n x=1"),
        "none of the 2 terms of the pod's node affinity matches; the first asks cores > 8, and the \
         node has no such label"
    );
    assert_eq!(
        check(&wants(&[]), "n"),
        "the pod's node affinity asks nothing, which no node matches"
    );
}

#[test]
fn preferred_terms_are_worth_their_weight() {
    let pod = PodRules {
        preferred: vec![(10, term("zone in a")), (5, term("disk")), (7, term(""))],
        ..PodRules::default()
    };
    let worth = |picture| pod.preference(&node(picture));
    assert_eq!(
        (worth("n zone=a disk=x"), worth("n disk=x"), worth("n")),
        (15, 5, 0)
    );
}

proptest! {
    /// A requirement and its opposite never agree if both can be answered.
    #[test]
    fn opposites(value in proptest::option::of("[ab]|-?[0-9]{1,3}"), other in "[ab]", bound in -200..200i64) {
        let accepts = |operator| Requirement { key: Arc::from("k"), operator }.accepts(value.as_deref());
        let list = vec![Arc::from(&*other)];
        prop_assert_ne!(accepts(Operator::In(list.clone())), accepts(Operator::NotIn(list)));
        prop_assert_ne!(accepts(Operator::Exists), accepts(Operator::DoesNotExist));
        prop_assert!(!(accepts(Operator::Gt(bound)) && accepts(Operator::Lt(bound))));
    }
}
