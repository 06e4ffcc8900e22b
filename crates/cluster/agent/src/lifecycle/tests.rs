//! Devices whose pods come, go and are slow to go.

use proptest::prelude::*;

use super::*;

fn uid(name: &str) -> PodUid {
    PodUid::new(name).unwrap()
}

fn uids(names: &str) -> BTreeSet<PodUid> {
    names.split_whitespace().map(uid).collect()
}

/// `a b` have the card.
fn held(names: &str) -> Held {
    let pods = uids(names);
    if pods.is_empty() {
        Held::new()
    } else {
        [("card".to_owned(), pods)].into()
    }
}

/// All that is to be cleaned.
fn due(lifecycle: &Lifecycle, now_ms: u64) -> Held {
    let mut lifecycle = lifecycle.clone();
    std::iter::from_fn(|| lifecycle.take_due(now_ms)).collect()
}

/// It is prepared at once.
fn begin(
    lifecycle: &mut Lifecycle,
    device: &str,
    who: &[PodUid],
    now_ms: u64,
) -> Result<bool, String> {
    let begun = lifecycle.begin(device, who, now_ms);
    if begun == Ok(true) {
        lifecycle.put_down(device);
    }
    begun
}

/// The pods are asked for after all that happened.
fn see(lifecycle: &mut Lifecycle, live: &BTreeSet<PodUid>, held: &Held, all: bool) {
    lifecycle.see(live, held, u64::MAX, all);
}

#[test]
fn a_list_of_before_takes_nothing_from_who_came_since() {
    let mut lifecycle = Lifecycle::default();
    assert_eq!(begin(&mut lifecycle, "card", &[uid("a")], 10), Ok(true));
    lifecycle.see(&uids(""), &held(""), 10, true);
    assert_eq!(due(&lifecycle, 10), Held::new());
    lifecycle.see(&uids(""), &held(""), 11, true);
    assert_eq!(due(&lifecycle, 11), held("a"));
    // So with one of whom only kubelet's checkpoint will say it.
    assert_eq!(begin(&mut lifecycle, "other", &[], 20), Ok(true));
    lifecycle.see(&uids(""), &held(""), 20, true);
    assert_eq!(due(&lifecycle, 20), held("a"));
    lifecycle.see(&uids(""), &held(""), 21, true);
    assert_eq!(due(&lifecycle, 21).len(), 2);
}

#[test]
fn nobody_gets_what_another_has_in_hand() {
    let mut lifecycle = Lifecycle::default();
    assert_eq!(lifecycle.begin("card", &[uid("a")], 0), Ok(true));
    let why = lifecycle.begin("card", &[uid("b")], 0).unwrap_err();
    assert_eq!(why, "it is being prepared");
    assert_eq!(lifecycle.take_due(u64::MAX), None);
    lifecycle.put_down("card");
    assert_eq!(lifecycle.begin("card", &[uid("b")], 0), Ok(false));
    see(&mut lifecycle, &uids(""), &held(""), true);
    assert_eq!(
        lifecycle.take_due(0),
        Some(("card".to_owned(), uids("a b")))
    );
    assert_eq!(lifecycle.take_due(0), None);
    let why = lifecycle.begin("card", &[uid("c")], 0).unwrap_err();
    assert_eq!(why, "it is being cleaned");
    // It was cut off.
    lifecycle.put_down("card");
    assert_eq!(due(&lifecycle, 0), held("a b"));
}

#[test]
fn whoever_waits_for_a_device_does_not_keep_it_from_being_cleaned() {
    let mut lifecycle = Lifecycle::default();
    assert_eq!(begin(&mut lifecycle, "card", &[uid("a")], 0), Ok(true));
    see(&mut lifecycle, &uids("b"), &held(""), false);
    assert_eq!(due(&lifecycle, 0), held("a"));
    lifecycle.cleaned("card", Err("a process".to_owned()), 0);
    assert!(begin(&mut lifecycle, "card", &[uid("b")], 0).is_err());
    // Kubelet has allocated it, so that its checkpoint has it for `b`.
    see(&mut lifecycle, &uids("b"), &held("b"), false);
    assert_eq!(due(&lifecycle, GRACE_PAUSE_MS), held("a"));
    lifecycle.cleaned("card", Ok(()), GRACE_PAUSE_MS);
    assert_eq!(
        begin(&mut lifecycle, "card", &[uid("b")], GRACE_PAUSE_MS),
        Ok(true)
    );
}

#[test]
fn a_device_is_prepared_for_the_first_and_cleaned_after_the_last() {
    let mut lifecycle = Lifecycle::default();
    assert_eq!(begin(&mut lifecycle, "card", &[uid("a")], 0), Ok(true));
    assert_eq!(begin(&mut lifecycle, "card", &[uid("b")], 0), Ok(false));
    see(&mut lifecycle, &uids("a b"), &held("a b"), true);
    assert_eq!(due(&lifecycle, 100_000), Held::new());
    see(&mut lifecycle, &uids("b"), &held("b"), true);
    assert_eq!(due(&lifecycle, 100_000), Held::new());
    see(&mut lifecycle, &uids(""), &held(""), true);
    assert_eq!(due(&lifecycle, 0), held("a b"));
    assert_eq!(lifecycle.cleaned("card", Ok(()), 0), None);
    assert_eq!(lifecycle, Lifecycle::default());
    assert_eq!(begin(&mut lifecycle, "card", &[uid("c")], 0), Ok(true));
}

#[test]
fn what_cannot_be_cleaned_is_refused_and_tried_again_with_growing_pauses() {
    let mut lifecycle = Lifecycle::default();
    assert_eq!(begin(&mut lifecycle, "card", &[uid("a")], 0), Ok(true));
    see(&mut lifecycle, &uids(""), &held(""), true);
    // Kubelet has a moment to end what is left.
    assert_eq!(lifecycle.cleaned("card", Err("late".to_owned()), 0), None);
    assert_eq!(
        begin(&mut lifecycle, "card", &[uid("b")], 0),
        Err("late".to_owned())
    );
    assert_eq!(
        (lifecycle.ailing(), lifecycle.next_ms()),
        (Ailing::new(), Some(200))
    );
    let mut now = GRACE_MS;
    let mut pauses = Vec::new();
    for tries in 0..9 {
        assert_eq!(due(&lifecycle, now), held("a"));
        let news = lifecycle.cleaned("card", Err("stuck".to_owned()), now);
        assert_eq!(
            news,
            (tries == 0).then(|| LifecycleNews::Sick("stuck".to_owned()))
        );
        let next = lifecycle.next_ms().unwrap();
        assert_eq!(due(&lifecycle, next - 1), Held::new());
        pauses.push((next - now) / 1_000);
        now = next;
    }
    assert_eq!(pauses, [2, 4, 8, 16, 32, 64, 128, 256, 300]);
    assert_eq!(
        begin(&mut lifecycle, "card", &[uid("b")], now),
        Err("stuck".to_owned())
    );
    assert_eq!(
        lifecycle.ailing(),
        [("card".to_owned(), "stuck".to_owned())].into()
    );
    let other = lifecycle.cleaned("card", Err("worse".to_owned()), now);
    assert_eq!(other, Some(LifecycleNews::Sick("worse".to_owned())));
    assert_eq!(
        lifecycle.cleaned("card", Ok(()), now),
        Some(LifecycleNews::Well)
    );
    assert_eq!(
        (lifecycle.ailing(), lifecycle.next_ms()),
        (Ailing::new(), None)
    );
}

#[test]
fn a_device_in_unknown_hands_waits_for_kubelets_checkpoint() {
    let mut lifecycle = Lifecycle::default();
    assert_eq!(begin(&mut lifecycle, "card", &[], 1_000), Ok(true));
    see(&mut lifecycle, &uids("a"), &held(""), false);
    assert_eq!(due(&lifecycle, 10_999), Held::new());
    assert_eq!(due(&lifecycle, 11_000).len(), 1);
    // Of somebody who is gone already nothing is learnt but the name.
    see(
        &mut lifecycle,
        &uids(""),
        &[("else".to_owned(), uids("z"))].into(),
        false,
    );
    assert_eq!(due(&lifecycle, 11_000).len(), 1);
    // In the checkpoint, and then gone.
    see(&mut lifecycle, &uids("a"), &held("a"), false);
    assert_eq!(due(&lifecycle, 11_000), Held::new());
    see(&mut lifecycle, &uids(""), &held(""), false);
    assert_eq!(due(&lifecycle, 11_000), held("a"));
    // Kubelet has asked about another container since: the checkpoint says all.
    assert_eq!(begin(&mut lifecycle, "card", &[], 11_000), Ok(false));
    see(&mut lifecycle, &uids(""), &held(""), true);
    assert_eq!(due(&lifecycle, 11_000), held("a"));
    assert_eq!(begin(&mut lifecycle, "other", &[], 0), Ok(true));
    lifecycle.withdraw("other");
    assert_eq!(due(&lifecycle, 99_000).len(), 1);
}

/// Pods come and go. Each of four pods and two cards is named by a number.
#[derive(Clone, Debug)]
enum Step {
    Comes {
        pod: u8,
        card: u8,
    },
    Goes {
        pod: u8,
    },
    /// The agent starts anew: it knows what the pods have, and nothing of before.
    Restarts,
    /// Whatever is due is cleaned, or not.
    Cleans {
        works: bool,
    },
    Waits {
        ms: u64,
    },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0..4_u8, 0..2_u8).prop_map(|(pod, card)| Step::Comes { pod, card }),
        3 => (0..4_u8).prop_map(|pod| Step::Goes { pod }),
        1 => Just(Step::Restarts),
        4 => any::<bool>().prop_map(|works| Step::Cleans { works }),
        2 => (0..400_000_u64).prop_map(|ms| Step::Waits { ms }),
    ]
}

proptest! {
    /// No pod gets a card of a pod that is gone, unless the card was cleaned in between, or
    /// some pod had it all the time. No card is cleaned while a pod has it, and a free card is
    /// clean at last.
    #[test]
    fn whoever_comes_and_goes_a_device_is_clean_when_it_is_given(
        steps in proptest::collection::vec(step(), 1..60),
    ) {
        let (mut lifecycle, mut now) = (Lifecycle::default(), 0);
        let mut has: Held = Held::new();
        let mut dirty: BTreeSet<DeviceName> = BTreeSet::new();
        let live = |has: &Held| has.values().flatten().cloned().collect::<BTreeSet<_>>();
        for (number, step) in steps.into_iter().enumerate() {
            match step {
                Step::Comes { pod, card } => {
                    // As the shell does: first who is gone, what is due, then the newcomer.
                    see(&mut lifecycle, &live(&has), &has, true);
                    for device in due(&lifecycle, now).into_keys() {
                        prop_assert!(has.get(&device).is_none_or(BTreeSet::is_empty));
                        lifecycle.cleaned(&device, Ok(()), now);
                        dirty.remove(&device);
                    }
                    let (uid, card) = (uid(&format!("p{pod}-{number}")), format!("card{card}"));
                    let users = has.entry(card.clone()).or_default();
                    if let Ok(is_first) = begin(&mut lifecycle, &card, std::slice::from_ref(&uid), now) {
                        prop_assert_eq!(is_first, users.is_empty());
                        prop_assert!(!users.is_empty() || !dirty.contains(&card));
                        users.insert(uid);
                        dirty.insert(card);
                    } else {
                        prop_assert!(users.is_empty() && dirty.contains(&card));
                    }
                }
                Step::Goes { pod } => {
                    let begins = format!("p{pod}-");
                    for users in has.values_mut() {
                        users.retain(|uid| !uid.as_str().starts_with(&begins));
                    }
                }
                Step::Restarts => {
                    lifecycle = Lifecycle::default();
                    dirty.retain(|card| has.get(card).is_some_and(|users| !users.is_empty()));
                    see(&mut lifecycle, &live(&has), &has, false);
                }
                Step::Cleans { works } => {
                    see(&mut lifecycle, &live(&has), &has, true);
                    for device in due(&lifecycle, now).into_keys() {
                        prop_assert!(has.get(&device).is_none_or(BTreeSet::is_empty));
                        let outcome = if works { Ok(()) } else { Err("no".to_owned()) };
                        lifecycle.cleaned(&device, outcome, now);
                        if works {
                            dirty.remove(&device);
                        }
                    }
                }
                Step::Waits { ms } => now += ms,
            }
        }
        has.clear();
        see(&mut lifecycle, &BTreeSet::new(), &has, true);
        now += 300_000;
        for device in due(&lifecycle, now).into_keys() {
            lifecycle.cleaned(&device, Ok(()), now);
        }
        prop_assert_eq!(lifecycle, Lifecycle::default());
    }
}
