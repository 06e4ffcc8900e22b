//! The messages about pods that are still to be said, in turn, and the last message about each.
//!
//! It never has more than a few lines for each pod that there is, even if the API server takes none
//! for a long time. The same text said twice waits once, and a pod that goes takes its own along.

use std::collections::BTreeMap;
use std::hash::Hasher;
use std::sync::{Mutex, MutexGuard, PoisonError};

use sublet_client::EventText;
use sublet_model::{PodKey, PodUid};
use tokio::sync::Notify;

/// Time in which the same text is not posted again.
const QUIET_MS: u64 = 5 * 60 * 1000;

/// The work for a pod, in this order.
#[derive(Debug, Default)]
pub(super) struct Matters {
    /// Texts that are ready, by their reason.
    pub(super) texts: BTreeMap<&'static str, (PodKey, EventText)>,
    /// Is to be looked at why it waits?
    pub(super) waits: bool,
}

/// The notes on one pod.
#[derive(Debug, Default)]
struct Known {
    posted: Option<Posted>,
    /// Its turn, while there is something to do.
    turn: Option<u64>,
    matters: Matters,
}

#[derive(Debug)]
struct Posted {
    hash: u64,
    at_ms: u64,
}

impl Posted {
    fn is_fresh(&self, now_ms: u64) -> bool {
        now_ms < self.at_ms + QUIET_MS
    }
}

#[derive(Debug, Default)]
struct Book {
    pods: BTreeMap<PodUid, Known>,
    /// Pods with work to do, by their turn.
    turns: BTreeMap<u64, PodUid>,
    next_turn: u64,
    /// Time when stale notes were last thrown away.
    swept_ms: u64,
}

/// The texts to be posted, and the last posted text, by pod.
#[derive(Debug, Default)]
pub(crate) struct Events {
    book: Mutex<Book>,
    news: Notify,
}

impl Events {
    /// It is to be looked at why the pod waits.
    pub(super) fn waits(&self, uid: &PodUid) {
        self.book().enqueue(uid, |matters| matters.waits = true);
        self.news.notify_one();
    }

    /// A text is to be posted, unless the same one was a moment ago: false.
    pub(super) fn says(&self, pod: &PodKey, uid: &PodUid, text: EventText, now_ms: u64) -> bool {
        let mut book = self.book();
        if !book.admit(uid, &text, now_ms) {
            return false;
        }
        book.enqueue(uid, |matters| {
            matters.texts.insert(text.reason, (pod.clone(), text));
        });
        self.news.notify_one();
        true
    }

    /// Is this to be posted? Then it counts as posted.
    pub(super) fn admit(&self, uid: &PodUid, text: &EventText, now_ms: u64) -> bool {
        self.book().admit(uid, text, now_ms)
    }

    /// The next pod in turn and its work; waits until there is one.
    pub(super) async fn next(&self) -> (PodUid, Matters) {
        loop {
            // A notice that comes between the look and the wait is kept.
            if let Some(next) = self.book().next() {
                return next;
            }
            self.news.notified().await;
        }
    }

    /// A pod is gone.
    pub(crate) fn forget(&self, uid: &PodUid) {
        let mut book = self.book();
        if let Some(turn) = book.pods.remove(uid).and_then(|known| known.turn) {
            book.turns.remove(&turn);
        }
    }

    /// All pods are gone but these.
    pub(crate) fn keep(&self, stays: impl Fn(&PodUid) -> bool) {
        let mut book = self.book();
        book.pods.retain(|uid, _| stays(uid));
        book.turns.retain(|_, uid| stays(uid));
    }

    /// Number of pods with notes.
    #[cfg(test)]
    pub(crate) fn pods(&self) -> usize {
        self.book().pods.len()
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Book {
    fn enqueue(&mut self, uid: &PodUid, add: impl FnOnce(&mut Matters)) {
        let known = self.pods.entry(uid.clone()).or_default();
        add(&mut known.matters);
        if known.turn.is_none() {
            known.turn = Some(self.next_turn);
            self.turns.insert(self.next_turn, uid.clone());
            self.next_turn += 1;
        }
    }

    fn next(&mut self) -> Option<(PodUid, Matters)> {
        let (_, uid) = self.turns.pop_first()?;
        let known = self.pods.entry(uid.clone()).or_default();
        known.turn = None;
        Some((uid, std::mem::take(&mut known.matters)))
    }

    fn admit(&mut self, uid: &PodUid, text: &EventText, now_ms: u64) -> bool {
        self.sweep(now_ms);
        let mut hasher = rustc_hash::FxHasher::default();
        hasher.write(text.reason.as_bytes());
        hasher.write(text.message.as_bytes());
        let new = Posted {
            hash: hasher.finish(),
            at_ms: now_ms,
        };
        let posted = &mut self.pods.entry(uid.clone()).or_default().posted;
        let last = posted.as_ref();
        if last.is_some_and(|last| last.hash == new.hash && last.is_fresh(now_ms)) {
            return false;
        }
        *posted = Some(new);
        true
    }

    /// Throws away notes that say nothing any more. A text may be about a pod that the watch never
    /// tells of, such as one that went while it was bound.
    fn sweep(&mut self, now_ms: u64) {
        if now_ms < self.swept_ms + QUIET_MS {
            return;
        }
        self.swept_ms = now_ms;
        let is_fresh = |posted: &Posted| posted.is_fresh(now_ms);
        self.pods
            .retain(|_, known| known.turn.is_some() || known.posted.as_ref().is_some_and(is_fresh));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(message: &str) -> EventText {
        EventText {
            reason: "GpuUnavailable",
            message: message.to_owned(),
        }
    }

    fn pod(name: &str) -> (PodKey, PodUid) {
        (
            PodKey::new("default", name).unwrap(),
            PodUid::new(name).unwrap(),
        )
    }

    /// The next work, as `uid reasons waits`; empty if there is none.
    fn next(events: &Events) -> String {
        let next = events.book().next();
        next.map_or_else(String::new, |(uid, Matters { texts, waits })| {
            let texts: Vec<&str> = texts.values().map(|(_, text)| &*text.message).collect();
            format!("{uid} {} {waits}", texts.join(","))
        })
    }

    #[test]
    fn a_pod_waits_once_for_all_that_is_to_be_said_of_it() {
        let events = Events::default();
        let ((a, a_uid), (_, b_uid)) = (pod("a"), pod("b"));
        events.waits(&a_uid);
        events.waits(&b_uid);
        for message in ["x", "y"] {
            events.waits(&a_uid);
            assert!(events.says(&a, &a_uid, text(message), 0));
        }
        assert_eq!(next(&events), "a y true");
        events.waits(&a_uid);
        assert_eq!(next(&events), "b  true");
        assert_eq!(next(&events), "a  true");
        assert_eq!(next(&events), "");
    }

    #[test]
    fn the_same_text_is_not_posted_again_for_a_while() {
        let events = Events::default();
        let (key, uid) = pod("a");
        assert!(events.says(&key, &uid, text("x"), 1_000));
        assert!(!events.says(&key, &uid, text("x"), QUIET_MS));
        assert!(events.says(&key, &uid, text("y"), QUIET_MS));
        assert!(events.says(&key, &uid, text("y"), 2 * QUIET_MS));
    }

    #[test]
    fn a_pod_that_goes_takes_all_along() {
        let events = Events::default();
        for name in ["a", "b", "c"] {
            let (key, uid) = pod(name);
            events.waits(&uid);
            assert!(events.says(&key, &uid, text("x"), 0));
        }
        events.forget(&pod("b").1);
        assert_eq!(next(&events), "a x true");
        events.keep(|uid| uid.as_str() == "a");
        assert_eq!(next(&events), "");
        assert_eq!(events.pods(), 1);
    }

    #[test]
    fn what_nobody_told_the_end_of_goes_by_itself() {
        let events = Events::default();
        for name in ["a", "b"] {
            let (key, uid) = pod(name);
            assert!(events.says(&key, &uid, text("x"), 0));
        }
        assert_eq!(next(&events), "a x false");
        let (key, uid) = pod("c");
        assert!(events.says(&key, &uid, text("x"), QUIET_MS));
        assert_eq!(events.pods(), 2, "b has not been posted yet");
    }
}
