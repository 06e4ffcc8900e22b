//! The memory of one leadership between two looks. A successor does without it: at worst it asks or
//! tells something once more, or a group waits once more for as long as the minimum of its quota may
//! take.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::Value;
use sublet_api::group::{ShapeMemo, WholeSnapshot};
use sublet_model::{Pauses, Time};
use sublet_queue::{GroupId, QueueHold, QueueMemo};

/// A victim that was asked to go and is still there is asked again after this time: a disruption
/// budget may have been in the way.
const ASK_AGAIN_MS: u64 = 2_000;

/// Time that the watch may take to tell of a plan that was written.
const AWAIT_MS: u64 = 5_000;

/// Ended parts stay in a plan beside others for so long, so that one write removes more of them.
const TIDY_MS: u64 = 1_000;

/// The pauses of a group that did not start in time.
const GIVEN_UP: Pauses = Pauses::new(Duration::from_secs(10), Duration::from_secs(300));

/// The same reason is told with other numbers after these pauses: thousands that wait for hours would be
/// a load by their places in the line alone.
const SILENCE: Pauses = Pauses::new(Duration::from_secs(30), Duration::from_secs(480));

/// A group that starts within this time is told no reason why it waits: where thousands flow, each would
/// be told one, and nobody would read it.
pub(crate) const SOON_MS: u64 = 5_000;

/// The status of a group is written once in this time.
pub(crate) const STATUS_MS: u64 = 1_000;

/// The figures of a quota are written once in this time: one such write costs the API server as much as
/// the release of two Jobs, and the figures of a hundred busy quotas change all the time.
pub(crate) const FIGURES_MS: u64 = 3_000;

/// Notes on objects that make no group are forgotten after this time: the objects may be gone. The
/// API server forgets events by then, so reasons that still hold are told again.
const REMEMBER_MS: u64 = 3_600_000;

/// The memory.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    /// Plans that were written and not seen yet: since when, and the version that they had before.
    awaited: BTreeMap<String, (Option<String>, Time)>,
    /// Plans of a higher epoch than this leadership's: in which version, and since when.
    outranking: BTreeMap<String, (Arc<str>, Instant)>,
    /// Facts that were read of pods and jobs.
    pub(crate) shapes: ShapeMemo,
    /// Plans that have something in them that is over, and since when.
    untidy: BTreeMap<String, Time>,
    /// Results that the engine has worked out.
    pub(crate) engine: QueueMemo,
    /// Victims that were asked, by UID.
    asked: BTreeMap<String, Time>,
    /// Groups that did not start in time.
    given_up: BTreeMap<String, GivenUp>,
    /// Groups with members on nodes, and whether they ran as a whole.
    whole: BTreeMap<String, bool>,
    /// Groups that wait, and since when.
    waiting: BTreeMap<String, Time>,
    /// The last message about each subject.
    told: BTreeMap<String, ToldLast>,
    /// Something to tell or to write has no room, or its time has not come.
    pub(crate) is_behind: bool,
    /// Room that is kept for a group that has waited long.
    pub(crate) hold: Option<QueueHold>,
    /// Since when the minimum of its quota has had room for each group that waits.
    pub(crate) room_since: BTreeMap<GroupId, Time>,
    /// Groups on whose objects it was counted that they go, by plan.
    pub(crate) counted: BTreeMap<String, BTreeSet<GroupId>>,
    /// The last write to each place, and its time.
    written: BTreeMap<String, (Value, Time)>,
}

/// The last message about a subject.
#[derive(Debug)]
struct ToldLast {
    kind: String,
    text: String,
    /// Nothing else of this kind is told before.
    not_before: Time,
    /// The number of times that it was told in a row.
    times: u32,
}

/// A group that did not start in time.
#[derive(Debug)]
struct GivenUp {
    /// The last plan.
    plan: Arc<str>,
    /// Number of plans.
    times: u32,
    /// Until when it waits.
    until: Time,
}

impl Memory {
    /// A plan was written, in place of that version; until it is seen, nothing is decided.
    pub(crate) fn await_plan(&mut self, name: String, before: Option<String>, now: Time) {
        self.awaited.insert(name, (before, now));
    }

    /// Is the plan of that name as it was last written? `version`: in which it is seen.
    pub(crate) fn is_fresh(&self, name: &str, version: &str) -> bool {
        let awaited = self.awaited.get(name);
        awaited.is_none_or(|(before, _)| before.as_deref() != Some(version))
    }

    /// Is every plan seen that was written? `seen`: in which version.
    pub(crate) fn has_all(&mut self, seen: impl Fn(&str) -> Option<String>, now: Time) -> bool {
        self.awaited.retain(|name, (before, at)| {
            let found = seen(name);
            let is_seen = match before {
                None => found.is_some(),
                Some(before) => found.as_ref() != Some(before),
            };
            !is_seen && now.ms() < at.plus_ms(AWAIT_MS).ms()
        });
        self.awaited.is_empty()
    }

    /// A plan of a higher epoch is seen. Was this leadership confirmed, by a renewal of its Lease that
    /// was sent at `renewed`, since the plan is there in this version? Then it is no successor's.
    pub(crate) fn outranks_nobody(
        &mut self,
        plan: &str,
        version: &Arc<str>,
        (now, renewed): (Instant, Instant),
    ) -> bool {
        let known = self.outranking.get(plan);
        match known.filter(|(seen, _)| seen == version) {
            Some((_, since)) => renewed > *since,
            None => {
                let seen = (version.clone(), now);
                self.outranking.insert(plan.to_owned(), seen);
                false
            }
        }
    }

    /// Has something that is over been in that plan for long enough?
    pub(crate) fn tidies(&mut self, plan: &str, now: Time) -> bool {
        let since = *self.untidy.entry(plan.to_owned()).or_insert(now);
        let is_due = now >= since.plus_ms(TIDY_MS);
        if is_due {
            self.untidy.remove(plan);
        }
        is_due
    }

    /// Only these plans are there.
    pub(crate) fn keep_plans(&mut self, is_there: impl Fn(&str) -> bool) {
        self.untidy.retain(|plan, _| is_there(plan));
        self.counted.retain(|plan, _| is_there(plan));
        self.outranking.retain(|plan, _| is_there(plan));
    }

    /// The pod of this UID was asked to go.
    pub(crate) fn ask(&mut self, uid: String, now: Time) {
        self.asked
            .retain(|_, at| now.ms() < at.plus_ms(ASK_AGAIN_MS).ms());
        self.asked.insert(uid, now);
    }

    /// Was the pod asked a moment ago?
    pub(crate) fn was_asked(&self, uid: &str, now: Time) -> bool {
        let asked = self.asked.get(uid);
        asked.is_some_and(|at| now.ms() < at.plus_ms(ASK_AGAIN_MS).ms())
    }

    /// The plan of that name was given up for the group, which did not start in time.
    pub(crate) fn give_up(&mut self, group: &str, plan: &Arc<str>, now: Time) {
        let given_up = self.given_up.entry(group.to_owned());
        let given_up = given_up.or_insert_with(|| GivenUp {
            plan: Arc::from(""),
            times: 0,
            until: now,
        });
        if given_up.plan == *plan {
            return;
        }
        given_up.plan = plan.clone();
        given_up.times = given_up.times.saturating_add(1);
        given_up.until = now.plus(GIVEN_UP.after(given_up.times));
    }

    /// The plan that was last given up for the group.
    pub(crate) fn given_up(&self, group: &str) -> Option<Arc<str>> {
        Some(self.given_up.get(group)?.plan.clone())
    }

    /// Until when the group waits.
    pub(crate) fn not_before(&self, group: &str) -> Option<Time> {
        self.given_up.get(group).map(|given_up| given_up.until)
    }

    /// When something changes by itself in what this remembers: a victim is asked again, a group is
    /// tried again, a plan is tidied.
    pub(crate) fn again(&self, now: Time) -> Option<Time> {
        let asked = self.asked.values().map(|at| at.plus_ms(ASK_AGAIN_MS));
        let given_up = self.given_up.values().map(|given_up| given_up.until);
        let untidy = self.untidy.values().map(|since| since.plus_ms(TIDY_MS));
        let all = asked.chain(given_up).chain(untidy);
        all.filter(|at| *at > now).min()
    }

    /// Is there something that only another look can settle?
    pub(crate) fn is_unsettled(&self) -> bool {
        self.is_behind || !self.outranking.is_empty()
    }

    /// Does the group wait longer than one that starts soon? `since`: the time from which it says that
    /// it waits.
    pub(crate) fn has_waited(&mut self, group: &str, since: Time, now: Time) -> bool {
        let since = match self.waiting.get(group) {
            Some(known) => *known,
            None => {
                let since = since.min(now);
                self.waiting.insert(group.to_owned(), since);
                since
            }
        };
        now >= since.plus_ms(SOON_MS)
    }

    /// The group starts.
    pub(crate) fn starts(&mut self, group: &str) {
        self.waiting.remove(group);
    }

    /// Did the group run as a whole since somebody of it is there?
    pub(crate) fn ran_whole(&mut self, group: &str, whole: WholeSnapshot) -> bool {
        let ran = whole.ran(self.whole.get(group).copied());
        // Once nobody of it is left it begins anew.
        let known = whole.stays && ran;
        self.whole.insert(group.to_owned(), known);
        ran
    }

    /// Only these groups are there. Notes on other objects are forgotten after a while.
    pub(crate) fn keep(&mut self, is_there: impl Fn(&str) -> bool, now: Time) {
        self.given_up.retain(|group, _| is_there(group));
        self.whole.retain(|group, _| is_there(group));
        self.waiting.retain(|group, _| is_there(group));
        let is_new = |at: &Time| now.ms() < at.plus_ms(REMEMBER_MS).ms();
        // What is told of anything but a group has another form of name.
        self.told.retain(|about, last| match about.contains(' ') {
            true => is_new(&last.not_before),
            false => is_there(about),
        });
        self.written.retain(|_, (_, at)| is_new(at));
    }

    /// Is nothing of this kind told about it now, whatever the text?
    pub(crate) fn is_silent(&self, about: &str, kind: &str, now: Time) -> bool {
        let last = self.told.get(about);
        last.is_some_and(|last| last.kind == kind && now < last.not_before)
    }

    /// Is this to be told now? `kind`: another kind is told at once, another text of one kind after a
    /// while.
    pub(crate) fn tells(&mut self, about: &str, kind: &str, text: &str, now: Time) -> bool {
        let last = self.told.get(about).filter(|last| last.kind == kind);
        if last.is_some_and(|last| last.text == text || now < last.not_before) {
            return false;
        }
        let times = last.map_or(1, |last| last.times.saturating_add(1));
        let told = ToldLast {
            kind: kind.to_owned(),
            text: text.to_owned(),
            not_before: now.plus(SILENCE.after(times)),
            times,
        };
        self.told.insert(about.to_owned(), told);
        true
    }

    /// Is this to be written there? `seen`: the present value, as far as it is known. `pause_ms`:
    /// least time after the last write.
    pub(crate) fn writes(
        &mut self,
        at: &str,
        (value, seen): (&Value, &Value),
        pause_ms: u64,
        now: Time,
    ) -> bool {
        match self.written.get(at) {
            Some((last, _)) if last == value => false,
            Some((_, when)) if now.ms() < when.plus_ms(pause_ms).ms() => {
                self.is_behind = true;
                false
            }
            None if value == seen => false,
            _ => {
                self.written.insert(at.to_owned(), (value.clone(), now));
                true
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn at(ms: u64) -> Time {
        Time::from_ms(ms)
    }

    #[test]
    fn pauses_grow_and_one_plan_is_given_up_once() {
        let mut memory = Memory::default();
        let plan = |at: u64| -> Arc<str> { format!("p{at}").into() };
        assert_eq!((memory.not_before("g"), memory.given_up("g")), (None, None));
        memory.give_up("g", &plan(1), at(1_000));
        memory.give_up("g", &plan(1), at(2_000));
        assert_eq!(memory.not_before("g"), Some(at(11_000)));
        assert_eq!(memory.given_up("g"), Some(plan(1)));
        memory.give_up("g", &plan(2), at(11_000));
        assert_eq!(memory.not_before("g"), Some(at(31_000)));
        for next in 3..30 {
            memory.give_up("g", &plan(next), at(0));
            assert!(memory.not_before("g").unwrap().ms() <= 300_000);
        }
        memory.keep(|group| group != "g", at(0));
        assert_eq!(memory.not_before("g"), None);
    }

    #[test]
    fn another_reason_is_told_at_once_and_other_numbers_later() {
        let mut memory = Memory::default();
        assert!(memory.tells("g", "NoRoom", "3 of 8", at(0)));
        assert!(!memory.tells("g", "NoRoom", "3 of 8", at(60_000)));
        assert!(!memory.tells("g", "NoRoom", "4 of 8", at(1_000)));
        assert!(memory.tells("g", "NoRoom", "4 of 8", at(30_000)));
        // The longer it waits the less often its numbers are news.
        assert!(!memory.tells("g", "NoRoom", "5 of 8", at(89_999)));
        assert!(memory.tells("g", "NoRoom", "5 of 8", at(90_000)));
        let mut now = 90_000;
        for turn in 0..20 {
            let text = format!("{turn} of 8");
            now += 480_000;
            assert!(memory.tells("g", "NoRoom", &text, at(now)));
        }
        assert!(memory.tells("g", "OverQuota", "2", at(now + 1)));
        memory.keep(|_| false, at(now + 2));
        assert!(memory.tells("g", "OverQuota", "2", at(now + 2)));
        // What no group is made of may be gone.
        let after = 30_000 + REMEMBER_MS;
        assert!(memory.tells("quota q", "NotInTree", "?", at(0)));
        memory.keep(|_| false, at(after - 1));
        assert!(!memory.tells("quota q", "NotInTree", "?", at(after - 1)));
        memory.keep(|_| false, at(after));
        assert!(memory.tells("quota q", "NotInTree", "?", at(after)));
    }

    #[test]
    fn what_passes_by_itself_is_looked_at_in_time() {
        let mut memory = Memory::default();
        assert_eq!(memory.again(at(0)), None);
        memory.give_up("g", &"p".into(), at(1_000));
        assert_eq!(memory.again(at(1_000)), Some(at(11_000)));
        memory.ask("u".to_owned(), at(2_000));
        assert_eq!(memory.again(at(2_000)), Some(at(4_000)));
        assert_eq!(memory.again(at(4_000)), Some(at(11_000)));
        assert_eq!(memory.again(at(11_000)), None);
    }

    #[test]
    fn a_group_that_starts_soon_has_not_waited() {
        let mut memory = Memory::default();
        let mut waited = |since, now| memory.has_waited("g", at(since), at(now));
        assert!(!waited(0, 0));
        assert!(!waited(0, SOON_MS - 1));
        assert!(waited(SOON_MS, SOON_MS), "what it first said counts");
        memory.starts("g");
        assert!(!memory.has_waited("g", at(SOON_MS), at(SOON_MS)), "anew");
        memory.keep(|_| false, at(SOON_MS));
        assert!(
            memory.has_waited("g", at(0), at(SOON_MS)),
            "before this leadership"
        );
        // A clock may be ahead.
        assert!(!memory.has_waited("h", at(90_000), at(0)));
        assert!(memory.has_waited("h", at(90_000), at(SOON_MS)));
    }

    #[test]
    fn what_stands_there_is_not_written_again() {
        let mut memory = Memory::default();
        let (one, two) = (json!({"used": 1}), json!({"used": 2}));
        let mut writes =
            |value, seen, ms| memory.writes("q", (value, seen), STATUS_MS, Time::from_ms(ms));
        assert!(!writes(&one, &one, 0));
        assert!(writes(&two, &one, 0));
        // The watch may tell late of it.
        assert!(!writes(&two, &one, 5_000));
        assert!(!writes(&one, &two, STATUS_MS - 1));
        assert!(writes(&one, &two, STATUS_MS));
    }

    #[test]
    fn who_ran_as_a_whole_is_remembered_until_nobody_of_it_is_left() {
        let whole = |is_whole, stays, is_starting| WholeSnapshot {
            is_whole,
            stays,
            is_starting,
        };
        let mut memory = Memory::default();
        assert!(!memory.ran_whole("g", whole(false, false, false)));
        assert!(!memory.ran_whole("g", whole(false, true, true)));
        assert!(memory.ran_whole("g", whole(true, true, true)));
        assert!(memory.ran_whole("g", whole(false, true, false)), "one left");
        assert!(!memory.ran_whole("g", whole(false, false, false)));
        assert!(!memory.ran_whole("g", whole(false, true, false)), "anew");
        // Of a successor.
        let mut memory = Memory::default();
        assert!(memory.ran_whole("runs", whole(false, true, false)));
        assert!(!memory.ran_whole("starts", whole(false, true, true)));
    }

    #[test]
    fn a_plan_is_tidied_after_a_moment() {
        let mut memory = Memory::default();
        assert!(!memory.tidies("p", at(5_000)));
        assert!(!memory.tidies("p", at(5_999)));
        assert!(memory.tidies("p", at(6_000)));
        assert!(
            !memory.tidies("p", at(6_000)),
            "what comes later waits for itself"
        );
        memory.keep_plans(|plan| plan != "p");
        assert!(!memory.tidies("p", at(60_000)));
    }

    #[test]
    fn a_plan_outranks_nobody_once_the_leadership_is_confirmed_beside_it() {
        let mut memory = Memory::default();
        let begin = Instant::now();
        let at = |now: u64, renewed: u64| {
            let moment = |s| begin + Duration::from_secs(s);
            (moment(now), moment(renewed))
        };
        let (one, two): (Arc<str>, Arc<str>) = ("1".into(), "2".into());
        assert!(!memory.outranks_nobody("p", &one, at(10, 9)));
        assert!(!memory.outranks_nobody("p", &one, at(11, 10)));
        // A successor may have written it since.
        assert!(!memory.outranks_nobody("p", &two, at(12, 11)));
        assert!(!memory.outranks_nobody("p", &two, at(13, 11)));
        assert!(memory.outranks_nobody("p", &two, at(14, 13)));
        assert!(!memory.outranks_nobody("q", &one, at(14, 13)));
        memory.keep_plans(|plan| plan == "q");
        assert!(!memory.outranks_nobody("p", &two, at(15, 14)));
    }

    #[test]
    fn a_plan_is_awaited_and_a_victim_asked_for_a_while() {
        let mut memory = Memory::default();
        let version = |text: &'static str| move |_: &str| Some(text.to_owned());
        memory.await_plan("p".to_owned(), None, at(0));
        assert!(!memory.has_all(|_| None, at(10)));
        assert!(memory.has_all(version("1"), at(20)));
        memory.await_plan("p".to_owned(), Some("1".to_owned()), at(20));
        assert!(!memory.is_fresh("p", "1") && memory.is_fresh("p", "2"));
        assert!(!memory.has_all(version("1"), at(30)));
        assert!(memory.has_all(version("2"), at(40)));
        memory.await_plan("p".to_owned(), None, at(0));
        assert!(memory.has_all(|_| None, at(AWAIT_MS)));
        memory.ask("u".to_owned(), at(0));
        assert!(memory.was_asked("u", at(1_999)));
        assert!(!memory.was_asked("u", at(2_000)));
    }
}
