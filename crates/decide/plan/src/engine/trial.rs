//! Trials: pods are placed and removed tentatively, and the result is then kept or undone.
//!
//! For questions such as "would all of these fit, if those went?" (a gang, or a quota that wants
//! its share back). The engine that would place the pods answers, so that no plan fails later.

use sublet_model::{Checkpoint, Entry, Hold, NodeIdx, PodUid, Standing, Time};

use super::Engine;

/// A trial on an engine. Unless it is kept, the engine is the same afterwards as before.
#[derive(Debug)]
#[must_use = "a trial that is dropped is undone"]
pub struct Trial<'a> {
    engine: &'a mut Engine,
    now: Time,
    /// `None` when the trial has been kept.
    begin: Option<Checkpoint>,
    /// The soft holds that the placed pods had before.
    holds: Vec<(PodUid, (Time, Hold))>,
}

/// A pod that is to be placed.
#[derive(Debug, Clone)]
pub struct Candidacy<'a> {
    /// The pod; its node, allocation and standing are filled in by the trial. It is `assigned` if no
    /// pod that looks like it has to wait until it has its devices.
    pub entry: Entry,
    /// The nodes that may take the pod by the rules that the engine does not know.
    pub nodes: &'a [NodeIdx],
}

impl Engine {
    /// Begins a trial.
    pub fn trial(&mut self, now: Time) -> Trial<'_> {
        self.expire(now);
        if self.options.policy.learns() {
            // Tables must describe the ledger as it is, not as the trial makes it. Until the trial
            // ends no pod comes, so they are not computed again.
            self.catch_up();
        }
        Trial {
            begin: Some(self.ledger.checkpoint()),
            engine: self,
            now,
            holds: Vec::new(),
        }
    }
}

impl Trial<'_> {
    /// The engine as it is within the trial.
    #[must_use]
    pub fn engine(&self) -> &Engine {
        self.engine
    }

    /// Takes a pod away, and returns its entry.
    pub fn evict(&mut self, uid: &PodUid) -> Option<Entry> {
        self.engine.ledger.remove(uid)
    }

    /// Places these pods one after another, each on the best node for it. If one of them finds no
    /// node, none is placed.
    ///
    /// # Errors
    /// The position of the first pod that finds no place.
    pub fn place(&mut self, pods: &[Candidacy<'_>]) -> Result<Vec<NodeIdx>, usize> {
        self.step(|trial| {
            let placed = pods.iter().enumerate();
            placed
                .map(|(at, pod)| trial.place_one(pod).ok_or(at))
                .collect()
        })
    }

    /// Does several things, all or none: if `step` fails, its changes are undone.
    ///
    /// # Errors
    /// As `step` says.
    pub fn step<T, E>(&mut self, step: impl FnOnce(&mut Self) -> Result<T, E>) -> Result<T, E> {
        let begin = self.engine.ledger.checkpoint();
        let holds = self.holds.len();
        let done = step(self);
        match done {
            Ok(_) => self.engine.ledger.keep(begin),
            Err(_) => {
                self.engine.ledger.roll_back(begin);
                self.give_back_holds(holds);
            }
        }
        done
    }

    /// Keeps the result of the trial.
    pub fn keep(mut self) {
        if let Some(begin) = self.begin.take() {
            self.engine.ledger.keep(begin);
        }
    }

    /// Takes the soft holds back that were dropped since there were so many.
    fn give_back_holds(&mut self, since: usize) {
        for (uid, (until, hold)) in self.holds.drain(since..) {
            self.engine.ledger.hold(&hold);
            self.engine.holds.insert(uid, (until, hold));
        }
    }

    fn place_one(&mut self, pod: &Candidacy<'_>) -> Option<NodeIdx> {
        let (uid, claim) = (&pod.entry.uid, &pod.entry.claim);
        let hold = self.engine.holds.get(uid).cloned();
        self.engine.drop_hold(uid);
        self.holds.extend(hold.map(|hold| (uid.clone(), hold)));
        let found = self.engine.find(uid, claim, pod.nodes, 1, |_| 0);
        let node = found.first()?.node;
        let mut entry = pod.entry.clone();
        entry.node = self.engine.ledger.book(node).name().clone();
        entry.standing = Standing::Reserved;
        self.engine.take(self.now, entry).ok()?;
        Some(node)
    }
}

impl Drop for Trial<'_> {
    fn drop(&mut self) {
        let Some(begin) = self.begin.take() else {
            return;
        };
        self.engine.ledger.roll_back(begin);
        self.give_back_holds(0);
    }
}
