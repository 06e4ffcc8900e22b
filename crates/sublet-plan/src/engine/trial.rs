//! Trying out: pods placed and taken away as if, and then kept or undone.
//!
//! What asks "would all of these fit, if those went?" (a gang, a quota that wants its share
//! back) asks it here, of the engine that would place them, so that no plan is refused later.

use sublet_model::{Checkpoint, Entry, Hold, NodeIdx, PodUid, Standing, Time};

use super::Engine;

/// A try on an engine. Unless it is kept, the engine is afterwards what it was before.
#[derive(Debug)]
#[must_use = "a trial that is dropped is undone"]
pub struct Trial<'a> {
    engine: &'a mut Engine,
    now: Time,
    /// `None` once it is kept.
    begin: Option<Checkpoint>,
    /// Soft holds of pods that were placed.
    holds: Vec<(PodUid, (Time, Hold))>,
}

/// A pod that is to be placed.
#[derive(Debug, Clone)]
pub struct Candidacy<'a> {
    /// The pod; its node, allocation and standing are filled in.
    pub entry: Entry,
    /// The nodes that may take it, as far as rules are concerned that the engine does not know.
    pub nodes: &'a [NodeIdx],
}

impl Engine {
    /// Begins a trial.
    pub fn trial(&mut self, now: Time) -> Trial<'_> {
        self.expire(now);
        if self.options.policy.learns() {
            // Tables are made of the ledger as it is, not as it might be: until the trial ends
            // no pod comes that would make them anew.
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
    /// The engine as it would be.
    #[must_use]
    pub fn engine(&self) -> &Engine {
        self.engine
    }

    /// Takes a pod away, and returns its entry.
    pub fn evict(&mut self, uid: &PodUid) -> Option<Entry> {
        self.engine.ledger.remove(uid)
    }

    /// Places these pods, one after the other, each on the best node for it; where one of them
    /// finds none, none is placed.
    ///
    /// # Errors
    /// The first that finds no place, by its position.
    pub fn place(&mut self, pods: &[Candidacy<'_>]) -> Result<Vec<NodeIdx>, usize> {
        let begin = self.engine.ledger.checkpoint();
        let placed = pods.iter().enumerate();
        let placed: Result<Vec<NodeIdx>, usize> = placed
            .map(|(at, pod)| self.place_one(pod).ok_or(at))
            .collect();
        match placed {
            Ok(_) => self.engine.ledger.keep(begin),
            Err(_) => self.engine.ledger.roll_back(begin),
        }
        placed
    }

    /// Leaves the engine as it would be.
    pub fn keep(mut self) {
        if let Some(begin) = self.begin.take() {
            self.engine.ledger.keep(begin);
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
        self.engine.reserve(self.now, entry).ok()?;
        Some(node)
    }
}

impl Drop for Trial<'_> {
    fn drop(&mut self) {
        let Some(begin) = self.begin.take() else {
            return;
        };
        self.engine.ledger.roll_back(begin);
        for (uid, (until, hold)) in self.holds.drain(..) {
            self.engine.ledger.hold(&hold);
            self.engine.holds.insert(uid, (until, hold));
        }
    }
}
