//! Decides when a device is prepared and when it is cleaned: before the first container that gets
//! it, and after the last is gone. A shared device waits for the last of its pods. A device that
//! cannot be cleaned is sick and given to no pod; cleaning is tried again with growing pauses.
//! While a device is prepared or cleaned it is in hand, and given to no pod. Pure: owners of
//! devices go in, work to do comes out. Times are milliseconds on any clock that only rises.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use sublet_model::{Pauses, PodUid};

/// The name of a device among all of the node: a card's UUID, a file's path.
pub(crate) type DeviceName = String;

/// The pods that have each device.
pub(crate) type Held = BTreeMap<DeviceName, BTreeSet<PodUid>>;

/// Devices that cannot be cleaned, each with the reason.
pub(crate) type Ailing = BTreeMap<DeviceName, String>;

/// Time that cleaning may fail before the device is called sick: kubelet ends the remains of a pod
/// that was deleted by force within a second or two, of twenty at once within five.
const GRACE_MS: u64 = 10_000;

/// The pause until then.
const GRACE_PAUSE_MS: u64 = 200;

/// The pauses before a cleaning is tried again. It costs a look at the node's processes.
const PAUSES: Pauses = Pauses::new(Duration::from_secs(2), Duration::from_secs(300));

/// Time for which a device that was handed over counts as used although no pod is known to have it.
/// Kubelet writes its books within milliseconds.
const AWAITED_MS: u64 = 10_000;

/// The devices of a node that somebody had since they were clean. All others are clean.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Care {
    devices: BTreeMap<DeviceName, Use>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Use {
    /// Pods that have it, each with the earliest time since when.
    now: BTreeMap<PodUid, u64>,
    /// Pods that had it since it was clean.
    ever: BTreeSet<PodUid>,
    /// Time until which it counts as used even if no pod is known to have it.
    awaited_ms: u64,
    hand: Option<Hand>,
    trouble: Option<Trouble>,
}

/// Work in progress on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hand {
    Preparing,
    Cleaning,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Trouble {
    why: String,
    since_ms: u64,
    /// Since it is called sick.
    tries: u32,
    again_ms: u64,
}

/// News of a device, to be reported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum CareNews {
    /// It cannot be cleaned, or for another reason than before.
    Sick(String),
    /// It is clean after all.
    Well,
}

impl Care {
    /// Begins to give that device to a pod; `who` is empty if the pod is not known. True if no pod
    /// had it since it was clean: it is to be prepared first, and is in hand until then.
    ///
    /// # Errors
    /// It is not clean, or in hand, and why.
    pub(crate) fn begin(
        &mut self,
        device: &str,
        who: &[PodUid],
        now_ms: u64,
    ) -> Result<bool, String> {
        let is_first = !self.devices.contains_key(device);
        let of = self.devices.entry(device.to_owned()).or_default();
        if let Some(trouble) = &of.trouble {
            return Err(trouble.why.clone());
        }
        match of.hand {
            Some(Hand::Preparing) => return Err("it is being prepared".to_owned()),
            Some(Hand::Cleaning) => return Err("it is being cleaned".to_owned()),
            None => {}
        }
        of.now.extend(who.iter().map(|uid| (uid.clone(), now_ms)));
        of.ever.extend(who.iter().cloned());
        if who.is_empty() {
            of.awaited_ms = now_ms + AWAITED_MS;
        }
        of.hand = is_first.then_some(Hand::Preparing);
        Ok(is_first)
    }

    /// It is prepared, or was not cleaned to the end: it is put down as it is.
    pub(crate) fn put_down(&mut self, device: &str) {
        if let Some(of) = self.devices.get_mut(device) {
            of.hand = None;
        }
    }

    /// It could not be prepared, and nobody has got it.
    pub(crate) fn withdraw(&mut self, device: &str) {
        self.devices.remove(device);
    }

    /// Learns which pods existed at `asked_ms`, when they were asked for, and the devices of each;
    /// pods that are gone may be among them. A pod that got a device since then keeps it. `all`: no
    /// other pod can have got a device before that, so a device that no pod has is free.
    pub(crate) fn see(&mut self, live: &BTreeSet<PodUid>, held: &Held, asked_ms: u64, all: bool) {
        for (device, pods) in held {
            // What somebody had before this process began is as clean as it ever will be.
            let is_used = pods.iter().any(|uid| live.contains(uid));
            // No pod gets a device that is not clean. Kubelet's books list the waiting pods as its
            // owners all the same; if they counted, it would never be cleaned.
            let is_unclean = |of: &Use| of.trouble.is_some() || of.hand == Some(Hand::Cleaning);
            if self.devices.get(device).is_some_and(is_unclean) {
                continue;
            }
            if is_used || self.devices.contains_key(device) {
                let of = self.devices.entry(device.clone()).or_default();
                for uid in pods {
                    of.now.entry(uid.clone()).or_default();
                }
                of.ever.extend(pods.iter().cloned());
            }
        }
        for of in self.devices.values_mut() {
            of.now
                .retain(|uid, since_ms| *since_ms >= asked_ms || live.contains(uid));
            if all && of.awaited_ms < asked_ms.saturating_add(AWAITED_MS) {
                of.awaited_ms = 0;
            }
        }
    }

    /// Takes one in hand that is to be cleaned now; returns it with the pods that had it.
    pub(crate) fn take_due(&mut self, now_ms: u64) -> Option<(DeviceName, BTreeSet<PodUid>)> {
        let is_due = |of: &Use| {
            let is_time = of.trouble.as_ref().is_none_or(|one| one.again_ms <= now_ms);
            of.now.is_empty() && of.awaited_ms <= now_ms && is_time && of.hand.is_none()
        };
        let (device, of) = self.devices.iter_mut().find(|(_, of)| is_due(of))?;
        of.hand = Some(Hand::Cleaning);
        Some((device.clone(), of.ever.clone()))
    }

    /// A cleaning has ended.
    pub(crate) fn cleaned(
        &mut self,
        device: &str,
        outcome: Result<(), String>,
        now_ms: u64,
    ) -> Option<CareNews> {
        let of = self.devices.get_mut(device)?;
        of.hand = None;
        let before = of.trouble.take();
        match outcome {
            Ok(()) => {
                self.devices.remove(device);
                before.filter(|one| one.tries > 0).map(|_| CareNews::Well)
            }
            Err(why) => {
                let since_ms = before.as_ref().map_or(now_ms, |one| one.since_ms);
                let tries = before.as_ref().map_or(0, |one| one.tries);
                let is_sick = now_ms >= since_ms + GRACE_MS;
                let is_news = before.is_none_or(|one| one.tries == 0 || one.why != why);
                let tries = tries.saturating_add(u32::from(is_sick));
                let pause_ms = match is_sick {
                    true => u64::try_from(PAUSES.after(tries).as_millis()).unwrap_or(u64::MAX),
                    false => GRACE_PAUSE_MS,
                };
                of.trouble = Some(Trouble {
                    why: why.clone(),
                    since_ms,
                    tries,
                    again_ms: now_ms + pause_ms,
                });
                (is_sick && is_news).then_some(CareNews::Sick(why))
            }
        }
    }

    /// Devices that are sick because they cannot be cleaned, each with the reason.
    pub(crate) fn ailing(&self) -> Ailing {
        let ailing = self.devices.iter().filter_map(|(device, of)| {
            let trouble = of.trouble.as_ref().filter(|one| one.tries > 0)?;
            Some((device.clone(), trouble.why.clone()))
        });
        ailing.collect()
    }

    /// When something may be due that is not due now, if nobody comes or goes.
    pub(crate) fn next_ms(&self) -> Option<u64> {
        let idle = self.devices.values().filter(|of| of.now.is_empty());
        let times = idle.map(|of| {
            let again = of.trouble.as_ref().map_or(0, |one| one.again_ms);
            again.max(of.awaited_ms)
        });
        times.min()
    }
}

#[cfg(test)]
mod tests {
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
    fn due(care: &Care, now_ms: u64) -> Held {
        let mut care = care.clone();
        std::iter::from_fn(|| care.take_due(now_ms)).collect()
    }

    /// It is prepared at once.
    fn begin(care: &mut Care, device: &str, who: &[PodUid], now_ms: u64) -> Result<bool, String> {
        let begun = care.begin(device, who, now_ms);
        if begun == Ok(true) {
            care.put_down(device);
        }
        begun
    }

    /// The pods are asked for after all that happened.
    fn see(care: &mut Care, live: &BTreeSet<PodUid>, held: &Held, all: bool) {
        care.see(live, held, u64::MAX, all);
    }

    #[test]
    fn a_list_of_before_takes_nothing_from_who_came_since() {
        let mut care = Care::default();
        assert_eq!(begin(&mut care, "card", &[uid("a")], 10), Ok(true));
        care.see(&uids(""), &held(""), 10, true);
        assert_eq!(due(&care, 10), Held::new());
        care.see(&uids(""), &held(""), 11, true);
        assert_eq!(due(&care, 11), held("a"));
        // So with one of whom only kubelet's books will say it.
        assert_eq!(begin(&mut care, "other", &[], 20), Ok(true));
        care.see(&uids(""), &held(""), 20, true);
        assert_eq!(due(&care, 20), held("a"));
        care.see(&uids(""), &held(""), 21, true);
        assert_eq!(due(&care, 21).len(), 2);
    }

    #[test]
    fn nobody_gets_what_another_has_in_hand() {
        let mut care = Care::default();
        assert_eq!(care.begin("card", &[uid("a")], 0), Ok(true));
        let why = care.begin("card", &[uid("b")], 0).unwrap_err();
        assert_eq!(why, "it is being prepared");
        assert_eq!(care.take_due(u64::MAX), None);
        care.put_down("card");
        assert_eq!(care.begin("card", &[uid("b")], 0), Ok(false));
        see(&mut care, &uids(""), &held(""), true);
        assert_eq!(care.take_due(0), Some(("card".to_owned(), uids("a b"))));
        assert_eq!(care.take_due(0), None);
        let why = care.begin("card", &[uid("c")], 0).unwrap_err();
        assert_eq!(why, "it is being cleaned");
        // It was cut off.
        care.put_down("card");
        assert_eq!(due(&care, 0), held("a b"));
    }

    #[test]
    fn whoever_waits_for_a_device_does_not_keep_it_from_being_cleaned() {
        let mut care = Care::default();
        assert_eq!(begin(&mut care, "card", &[uid("a")], 0), Ok(true));
        see(&mut care, &uids("b"), &held(""), false);
        assert_eq!(due(&care, 0), held("a"));
        care.cleaned("card", Err("a process".to_owned()), 0);
        assert!(begin(&mut care, "card", &[uid("b")], 0).is_err());
        // Kubelet has allocated it, so that its books have it for `b`.
        see(&mut care, &uids("b"), &held("b"), false);
        assert_eq!(due(&care, GRACE_PAUSE_MS), held("a"));
        care.cleaned("card", Ok(()), GRACE_PAUSE_MS);
        assert_eq!(
            begin(&mut care, "card", &[uid("b")], GRACE_PAUSE_MS),
            Ok(true)
        );
    }

    #[test]
    fn a_device_is_prepared_for_the_first_and_cleaned_after_the_last() {
        let mut care = Care::default();
        assert_eq!(begin(&mut care, "card", &[uid("a")], 0), Ok(true));
        assert_eq!(begin(&mut care, "card", &[uid("b")], 0), Ok(false));
        see(&mut care, &uids("a b"), &held("a b"), true);
        assert_eq!(due(&care, 100_000), Held::new());
        see(&mut care, &uids("b"), &held("b"), true);
        assert_eq!(due(&care, 100_000), Held::new());
        see(&mut care, &uids(""), &held(""), true);
        assert_eq!(due(&care, 0), held("a b"));
        assert_eq!(care.cleaned("card", Ok(()), 0), None);
        assert_eq!(care, Care::default());
        assert_eq!(begin(&mut care, "card", &[uid("c")], 0), Ok(true));
    }

    #[test]
    fn what_cannot_be_cleaned_is_refused_and_tried_again_with_growing_pauses() {
        let mut care = Care::default();
        assert_eq!(begin(&mut care, "card", &[uid("a")], 0), Ok(true));
        see(&mut care, &uids(""), &held(""), true);
        // Kubelet has a moment to end what is left.
        assert_eq!(care.cleaned("card", Err("late".to_owned()), 0), None);
        assert_eq!(
            begin(&mut care, "card", &[uid("b")], 0),
            Err("late".to_owned())
        );
        assert_eq!((care.ailing(), care.next_ms()), (Ailing::new(), Some(200)));
        let mut now = GRACE_MS;
        let mut pauses = Vec::new();
        for tries in 0..9 {
            assert_eq!(due(&care, now), held("a"));
            let news = care.cleaned("card", Err("stuck".to_owned()), now);
            assert_eq!(
                news,
                (tries == 0).then(|| CareNews::Sick("stuck".to_owned()))
            );
            let next = care.next_ms().unwrap();
            assert_eq!(due(&care, next - 1), Held::new());
            pauses.push((next - now) / 1_000);
            now = next;
        }
        assert_eq!(pauses, [2, 4, 8, 16, 32, 64, 128, 256, 300]);
        assert_eq!(
            begin(&mut care, "card", &[uid("b")], now),
            Err("stuck".to_owned())
        );
        assert_eq!(
            care.ailing(),
            [("card".to_owned(), "stuck".to_owned())].into()
        );
        let other = care.cleaned("card", Err("worse".to_owned()), now);
        assert_eq!(other, Some(CareNews::Sick("worse".to_owned())));
        assert_eq!(care.cleaned("card", Ok(()), now), Some(CareNews::Well));
        assert_eq!((care.ailing(), care.next_ms()), (Ailing::new(), None));
    }

    #[test]
    fn a_device_in_unknown_hands_waits_for_kubelets_books() {
        let mut care = Care::default();
        assert_eq!(begin(&mut care, "card", &[], 1_000), Ok(true));
        see(&mut care, &uids("a"), &held(""), false);
        assert_eq!(due(&care, 10_999), Held::new());
        assert_eq!(due(&care, 11_000).len(), 1);
        // Of somebody who is gone already nothing is learnt but the name.
        see(
            &mut care,
            &uids(""),
            &[("else".to_owned(), uids("z"))].into(),
            false,
        );
        assert_eq!(due(&care, 11_000).len(), 1);
        // In the books, and then gone.
        see(&mut care, &uids("a"), &held("a"), false);
        assert_eq!(due(&care, 11_000), Held::new());
        see(&mut care, &uids(""), &held(""), false);
        assert_eq!(due(&care, 11_000), held("a"));
        // Kubelet has asked about another container since: the books say all.
        assert_eq!(begin(&mut care, "card", &[], 11_000), Ok(false));
        see(&mut care, &uids(""), &held(""), true);
        assert_eq!(due(&care, 11_000), held("a"));
        assert_eq!(begin(&mut care, "other", &[], 0), Ok(true));
        care.withdraw("other");
        assert_eq!(due(&care, 99_000).len(), 1);
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
            let (mut care, mut now) = (Care::default(), 0);
            let mut has: Held = Held::new();
            let mut dirty: BTreeSet<DeviceName> = BTreeSet::new();
            let live = |has: &Held| has.values().flatten().cloned().collect::<BTreeSet<_>>();
            for (number, step) in steps.into_iter().enumerate() {
                match step {
                    Step::Comes { pod, card } => {
                        // As the shell does: first who is gone, what is due, then the newcomer.
                        see(&mut care, &live(&has), &has, true);
                        for device in due(&care, now).into_keys() {
                            prop_assert!(has.get(&device).is_none_or(BTreeSet::is_empty));
                            care.cleaned(&device, Ok(()), now);
                            dirty.remove(&device);
                        }
                        let (uid, card) = (uid(&format!("p{pod}-{number}")), format!("card{card}"));
                        let users = has.entry(card.clone()).or_default();
                        if let Ok(is_first) = begin(&mut care, &card, std::slice::from_ref(&uid), now) {
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
                        care = Care::default();
                        dirty.retain(|card| has.get(card).is_some_and(|users| !users.is_empty()));
                        see(&mut care, &live(&has), &has, false);
                    }
                    Step::Cleans { works } => {
                        see(&mut care, &live(&has), &has, true);
                        for device in due(&care, now).into_keys() {
                            prop_assert!(has.get(&device).is_none_or(BTreeSet::is_empty));
                            let outcome = if works { Ok(()) } else { Err("no".to_owned()) };
                            care.cleaned(&device, outcome, now);
                            if works {
                                dirty.remove(&device);
                            }
                        }
                    }
                    Step::Waits { ms } => now += ms,
                }
            }
            has.clear();
            see(&mut care, &BTreeSet::new(), &has, true);
            now += 300_000;
            for device in due(&care, now).into_keys() {
                care.cleaned(&device, Ok(()), now);
            }
            prop_assert_eq!(care, Care::default());
        }
    }
}
