//! The faults of the simulation, and the checks once there are none any more.

use super::*;

impl Play {
    /// A process leads from now on.
    pub(super) fn elect(&mut self, who: usize) {
        self.version += 1;
        self.transitions += 1;
        let epoch = match self.epochs {
            Epochs::Versions | Epochs::Unsure => self.version,
            Epochs::Transitions => self.transitions,
        };
        self.holder = who;
        self.leaders[who] = Leader {
            epoch,
            renewed: self.now,
            outranking: BTreeMap::new(),
            sees: self.objects.clone(),
        };
    }

    /// The plans beside which a leader was confirmed that are of a higher epoch than its own.
    pub(super) fn confirmed(&mut self, who: usize) -> BTreeSet<Arc<str>> {
        let leader = &mut self.leaders[who];
        let (plans, epoch) = (&leader.sees.plans, leader.epoch);
        let outranks = |name: &Arc<str>, version: u64| {
            let plan = plans.get(name);
            plan.is_some_and(|(is, plan)| *is == version && plan.epoch > epoch)
        };
        leader
            .outranking
            .retain(|name, (version, _)| outranks(name, *version));
        for (name, (version, plan)) in plans {
            if plan.epoch > epoch {
                let first = (*version, self.now);
                leader.outranking.entry(name.clone()).or_insert(first);
            }
        }
        if self.epochs != Epochs::Versions {
            return BTreeSet::new();
        }
        let confirmed = leader.outranking.iter();
        let confirmed = confirmed.filter(|(_, (_, since))| leader.renewed > *since);
        confirmed.map(|(name, _)| name.clone()).collect()
    }

    pub(super) fn fault(&mut self) {
        match self.chance.u64(..6) {
            // Another process leads; the one before does not know it yet, or is gone with its writes.
            0 => {
                let who = self.chance.usize(..2);
                self.elect(who);
            }
            1 => {
                let who = self.chance.usize(..2);
                self.leaders[who].epoch = 0;
                self.under_way.truncate(self.under_way.len() / 2);
            }
            2 => {
                let at = node(self.chance.u64(..NODES));
                if !self.objects.lost.remove(&at) {
                    self.objects
                        .pods
                        .retain(|_, (_, pod)| pod.bound.as_ref() != Some(&at));
                    self.objects.lost.insert(at);
                }
            }
            3 => {
                let uid = self.objects.pods.keys().next().cloned();
                uid.map(|uid| self.objects.pods.remove(&uid));
            }
            4 => {
                let bound = self.objects.pods.values_mut();
                let mut bound = bound.filter(|(_, pod)| pod.bound.is_some() && !pod.ended);
                if let Some((_, pod)) = bound.next() {
                    pod.ended = true;
                }
            }
            _ => self.meddle(),
        }
    }

    /// Somebody deletes the Lease, which is then made anew, or all plans, or puts one back.
    fn meddle(&mut self) {
        match self.chance.u64(..8) {
            0 => {
                self.transitions = 0;
                let who = self.chance.usize(..2);
                self.elect(who);
            }
            1 => self.objects.plans.clear(),
            2 => {
                self.version += 1;
                let version = self.version;
                if let Some((is, plan)) = self.objects.plans.values_mut().next() {
                    *is = version;
                    plan.epoch += 1_000_000;
                }
            }
            _ => {}
        }
    }

    /// Without faults it becomes quiet, no gang is there in part, and nobody waits in vain.
    pub(super) fn calm(&mut self) {
        self.faults = false;
        self.elect(0);
        self.leaders[1].epoch = 0;
        self.objects.lost.clear();
        self.changed_at = self.now;
        let begun = self.now;
        while self.now < self.changed_at + QUIET {
            if self.now >= begun + 100 * QUIET {
                self.stuck = Some(format!("it does not become quiet: {:?}", self.objects));
                return;
            }
            self.step();
        }
        if let Some((_, plan)) = self.objects.plans.values().next() {
            self.stuck = Some(format!("nobody touches {plan:?}"));
        }
        let free = NODES as usize - self.objects.taken().len();
        for (id, owner) in &self.objects.groups {
            let own = self.objects.pods.values().filter(|(group, _)| group == id);
            let bound = own.filter(|(_, pod)| pod.bound.is_some() && !pod.ended);
            let bound = bound.count();
            let whole = bound == 0 || bound >= owner.size as usize || owner.satisfied;
            if !whole {
                self.stuck = Some(format!("{bound} of {} of {id} run", owner.size));
            }
            let missing = (owner.size as usize).saturating_sub(bound);
            if (1..=free).contains(&missing) {
                self.stuck = Some(format!("{missing} of {id} wait, and {free} nodes are free"));
            }
        }
        self.faults = true;
    }
}
