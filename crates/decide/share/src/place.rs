//! The choice of cards: shows the machine as a cluster of one node, so that `sublet run` and
//! the cluster choose by the same engine and the same policy. It only translates, and keeps no
//! account of its own beside the engine's ledger.
//!
//! A job's request of a card may depend on the card: a share of it, or all of it. So a job is
//! placed card by card, each time with the excluded cards marked sick in a copy. A card that
//! serves one part serves all that are left, so taking the best one again and again finds a
//! place whenever there is one.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use sublet_model::{
    Allocation, CardRef, Claim, Class, ContainerClaim, ContainerName, Count, Demand, Entry,
    GpuIndex, Grant, Identity, Inventory, MiB, Milli, NodeFacts, NodeIdx, NodeName, Part, PodKey,
    PodUid, Portion, Role, Sharing, Standing,
};
use sublet_plan::{Engine, EngineOptions, Policy, Preference};

use crate::job::{Amount, Holding, JobAsk, JobId};
use crate::refusal::JobRefusal;

/// The machine's cards, and the parts that are taken.
#[derive(Debug, Clone)]
pub(crate) struct Cards {
    engine: Engine,
    node: NodeIdx,
    facts: NodeFacts,
    /// Memory that the operator keeps from jobs on each card.
    reserved: MiB,
    /// The same, with the use of processes outside any job.
    kept: Vec<MiB>,
    /// Part taken by each job, by card.
    charges: BTreeMap<(usize, JobId), (Part, Class)>,
    /// Cards that a job has for itself.
    whole: BTreeMap<usize, JobId>,
    changes: u64,
}

impl Cards {
    pub(crate) fn new(inventory: Arc<Inventory>, policy: Policy, reserved: MiB) -> Cards {
        let mut engine = Engine::new(EngineOptions::of(policy));
        let name = NodeName::new("machine").expect("a fixed name that is right");
        let facts = NodeFacts {
            sharing: Sharing::Both,
            // The arbiter knows whose process it talks to: look-alikes do not matter.
            identity: Identity::Nri,
            ..NodeFacts::plain(name, inventory)
        };
        let node = engine.set_node(facts.clone());
        let mut cards = Cards {
            engine,
            node,
            kept: vec![MiB::ZERO; facts.inventory.gpus().len()],
            facts,
            reserved,
            charges: BTreeMap::new(),
            whole: BTreeMap::new(),
            changes: 0,
        };
        for card in 0..cards.kept.len() {
            cards.keep(card, MiB::ZERO);
        }
        cards
    }

    pub(crate) fn inventory(&self) -> &Arc<Inventory> {
        &self.facts.inventory
    }

    /// Counts the changes of anything that an answer of theirs can depend on. While it stays the same,
    /// so do all answers.
    pub(crate) fn changes(&self) -> u64 {
        self.changes
    }

    pub(crate) fn total(&self) -> Count {
        Count::new(u32::try_from(self.kept.len()).unwrap_or(u32::MAX))
    }

    /// The cards' health changed, or the cards themselves: then their number must be the same.
    pub(crate) fn set_inventory(&mut self, inventory: Arc<Inventory>) {
        if inventory.gpus().len() == self.kept.len() {
            self.changes += 1;
            self.facts.inventory = inventory;
            self.engine.set_node(self.facts.clone());
        }
    }

    /// Sets the use of a card by processes outside any job.
    pub(crate) fn keep(&mut self, card: usize, strangers: MiB) {
        let kept = self.reserved.plus(strangers).min(self.capacity(card));
        if self.kept[card] == kept {
            return;
        }
        self.kept[card] = kept;
        // Nobody has promised strangers any compute time.
        self.enter(card, "kept", (Part::of_memory(kept), Class::Opportunistic));
    }

    /// Sets a job's part of a card, from now on; nothing removes it.
    pub(crate) fn charge(&mut self, card: usize, job: JobId, part: Part, class: Class) {
        let charge = Some((part, class)).filter(|(part, _)| !part.is_zero());
        let before = match charge {
            None => self.charges.remove(&(card, job)),
            Some(charge) => self.charges.insert((card, job), charge),
        };
        if before != charge {
            self.enter(card, &format!("job-{job}"), (part, class));
        }
    }

    /// The job has that card for itself, or no longer.
    pub(crate) fn set_whole(&mut self, card: usize, job: JobId, whole: bool) {
        self.changes += 1;
        if whole {
            self.whole.insert(card, job);
        } else if self.whole.get(&card) == Some(&job) {
            self.whole.remove(&card);
        }
    }

    pub(crate) fn capacity(&self, card: usize) -> MiB {
        self.facts.inventory.gpus()[card].memory
    }

    pub(crate) fn kept(&self, card: usize) -> MiB {
        self.kept[card]
    }

    /// Memory that jobs take from a card.
    pub(crate) fn granted(&self, card: usize) -> MiB {
        let from = (card, JobId(0));
        let to = (card, JobId(u64::MAX));
        self.charges
            .range(from..=to)
            .map(|(_, (part, _))| part.memory)
            .sum()
    }

    /// Memory that a job can have on a card if others have `others`.
    pub(crate) fn room_beside(&self, card: usize, others: MiB) -> MiB {
        let taken = others.plus(self.kept[card]);
        self.capacity(card).saturating_sub(taken)
    }

    /// Memory that a job could have without strangers there.
    pub(crate) fn free_of_jobs(&self, card: usize) -> MiB {
        let taken = self.granted(card).plus(self.reserved);
        self.capacity(card).saturating_sub(taken)
    }

    /// Memory that a new job could have.
    pub(crate) fn open(&self, card: usize) -> MiB {
        if self.whole.contains_key(&card) {
            return MiB::ZERO;
        }
        self.engine.ledger().book(self.node).cards()[card]
            .free()
            .memory
    }

    /// Compute time that is promised to jobs.
    pub(crate) fn promised(&self, card: usize) -> Milli {
        let here = &self.engine.ledger().book(self.node).cards()[card];
        Milli::WHOLE.saturating_sub(here.unpromised())
    }

    /// True if the engine's accounts are the sums of ours.
    pub(crate) fn is_conserved(&self) -> bool {
        let cards = self.engine.ledger().book(self.node).cards();
        self.engine.ledger().is_conserved()
            && cards
                .iter()
                .enumerate()
                .all(|(at, card)| card.used.memory == self.granted(at).plus(self.kept[at]))
    }

    /// Checks whether the request could ever be granted, on this machine without other jobs.
    ///
    /// # Errors
    /// The reason why not.
    pub(crate) fn check(&self, ask: &JobAsk) -> Result<(), JobRefusal> {
        let asked = ask.gpus;
        let nothing = match ask.memory {
            Amount::Memory(memory) => memory.is_zero(),
            Amount::Share(share) => share.get() == 0,
            Amount::Whole => false,
        };
        if nothing || asked == Count::ZERO {
            return Err(JobRefusal::Nothing);
        }
        let promise = ask.compute.request();
        if ask.class == Class::Opportunistic && promise > Milli::ZERO {
            return Err(JobRefusal::Opportunistic { asked: promise });
        }
        let total = self.total();
        if asked > total {
            return Err(JobRefusal::TooFew { asked, total });
        }
        let named = self.named(ask);
        if (asked.get() as usize) > named.clone().count() {
            return Err(JobRefusal::TooFewNamed {
                asked,
                named: self.indices(named),
            });
        }
        let grantable = |card| self.capacity(card).saturating_sub(self.reserved);
        let all = named;
        let fitting = all
            .clone()
            .filter(|&card| self.amount(ask.memory, card) <= grantable(card))
            .count();
        if fitting >= asked.get() as usize {
            return Ok(());
        }
        let others = all.filter(|&card| self.amount(ask.memory, card) > grantable(card));
        let gpu = others
            .max_by_key(|&card| (grantable(card), usize::MAX - card))
            .unwrap_or(0);
        Err(JobRefusal::TooLarge {
            asked: self.amount(ask.memory, gpu),
            gpus: asked,
            fitting: Count::new(fitting as u32),
            gpu: self.facts.inventory.gpus()[gpu].index,
            largest: grantable(gpu),
        })
    }

    /// The best cards for a job, in order of their position.
    ///
    /// # Errors
    /// The reason why there are none.
    pub(crate) fn find(&self, ask: &JobAsk) -> Result<Vec<Holding>, JobRefusal> {
        self.check(ask)?;
        let mut scratch = self.engine.clone();
        let mut parts: Vec<Holding> = Vec::new();
        while parts.len() < ask.gpus.get() as usize {
            let taken: BTreeSet<usize> = parts.iter().map(|part| part.card).collect();
            let Some(part) = self.best(&mut scratch, ask, &taken) else {
                return Err(self.no_room(ask, &taken));
            };
            parts.push(part);
        }
        parts.sort_unstable_by_key(|part| part.card);
        Ok(parts)
    }

    /// The best single card outside `taken`.
    fn best(&self, scratch: &mut Engine, ask: &JobAsk, taken: &BTreeSet<usize>) -> Option<Holding> {
        let gpus = self.facts.inventory.gpus();
        // Cards from which the same amount is asked compete in one question to the engine.
        let mut groups: BTreeMap<MiB, BTreeSet<usize>> = BTreeMap::new();
        for card in (0..gpus.len()).filter(|card| !taken.contains(card)) {
            if self.may_take(ask, card) {
                let amount = self.now(ask.memory, card);
                groups.entry(amount).or_default().insert(card);
            }
        }
        let mut best: Option<((Preference, i64), Holding)> = None;
        for (amount, members) in groups.into_iter().filter(|(amount, _)| !amount.is_zero()) {
            let out = (0..gpus.len()).filter(|card| !members.contains(card));
            let out = out.map(|card| gpus[card].index).collect();
            let inventory = self.facts.inventory.with_sick(&out, "out of the question");
            scratch.set_node(NodeFacts {
                inventory: Arc::new(inventory),
                ..self.facts.clone()
            });
            let uid = uid("asking", 0);
            let part = Part {
                memory: amount,
                compute: ask.compute.request(),
                ..Part::ZERO
            };
            let Ok(found) = scratch.fit(&uid, &claim(part, ask.class), self.node) else {
                continue;
            };
            let holding = Holding {
                card: found.position,
                limit: part,
                compute_limit: ask.compute.limit(),
            };
            let cost = (found.preference, found.cost());
            if best.is_none_or(|(least, best)| (cost, holding.card) < (least, best.card)) {
                best = Some((cost, holding));
            }
        }
        best.map(|(_, part)| part)
    }

    /// Checks whether a job on a card can be promised this part of its compute time.
    ///
    /// # Errors
    /// The reason why not. A sick card is no reason: the job is on it.
    pub(crate) fn check_promise(
        &self,
        (card, job): (usize, JobId),
        compute: Milli,
        class: Class,
    ) -> Result<(), JobRefusal> {
        let mut others = self.clone();
        others.charge(card, job, Part::ZERO, class);
        let here = &others.engine.ledger().book(self.node).cards()[card];
        if here.can_promise(compute, class) {
            return Ok(());
        }
        Err(JobRefusal::NoCompute {
            asked: compute,
            gpu: self.facts.inventory.gpus()[card].index,
            left: here.unpromised(),
        })
    }

    /// The cards where a job may run, whatever other jobs are there.
    fn named<'a>(&self, ask: &'a JobAsk) -> impl Iterator<Item = usize> + Clone + 'a {
        (0..self.kept.len()).filter(|card| ask.allows(*card))
    }

    fn indices(&self, cards: impl Iterator<Item = usize>) -> Vec<GpuIndex> {
        let gpus = self.facts.inventory.gpus();
        cards.map(|card| gpus[card].index).collect()
    }

    /// Checks whether the card is open to this job at all, whatever is free there.
    fn may_take(&self, ask: &JobAsk, card: usize) -> bool {
        ask.allows(card)
            && !self.whole.contains_key(&card)
            && (ask.memory != Amount::Whole || self.granted(card).is_zero())
    }

    /// Amount of an empty card that is asked for.
    fn amount(&self, memory: Amount, card: usize) -> MiB {
        let capacity = self.capacity(card);
        match memory {
            Amount::Memory(memory) => memory,
            Amount::Share(share) => {
                // At most 2^44 times 1000.
                let part = capacity.get() * u64::from(share.get()) / 1000;
                MiB::new(part.max(1)).unwrap_or(capacity)
            }
            Amount::Whole => capacity.saturating_sub(self.reserved).max(MiB::from(1)),
        }
    }

    /// Amount of a card as it is now: for a whole card, all memory that is not kept from jobs.
    pub(crate) fn now(&self, memory: Amount, card: usize) -> MiB {
        match memory {
            Amount::Whole => self.capacity(card).saturating_sub(self.kept[card]),
            memory => self.amount(memory, card),
        }
    }

    fn no_room(&self, ask: &JobAsk, taken: &BTreeSet<usize>) -> JobRefusal {
        let gpus = self.facts.inventory.gpus();
        if ask.memory == Amount::Whole {
            let idle = (0..gpus.len())
                .filter(|&card| self.may_take(ask, card) && gpus[card].health.is_healthy());
            return JobRefusal::NotIdle {
                asked: ask.gpus,
                idle: Count::new(idle.count() as u32),
                total: self.total(),
                named: match ask.cards {
                    Some(_) => self.indices(self.named(ask)),
                    None => Vec::new(),
                },
            };
        }
        let fits = |card: usize| self.amount(ask.memory, card) <= self.capacity(card);
        let amounts = self.engine.ledger().book(self.node).cards();
        let roomy = self.named(ask).filter(|&card| {
            let memory = Part::of_memory(self.amount(ask.memory, card));
            let here = amounts[card].left_beside(memory, Class::Opportunistic);
            !taken.contains(&card) && self.may_take(ask, card) && here.is_some()
        });
        let most = roomy.max_by_key(|&card| (amounts[card].free().compute, usize::MAX - card));
        if let Some(card) = most {
            return JobRefusal::NoCompute {
                asked: ask.compute.request(),
                gpu: gpus[card].index,
                left: amounts[card].free().compute,
            };
        }
        let sick = self
            .named(ask)
            .filter(|&card| !gpus[card].health.is_healthy() && fits(card))
            .count();
        // The card that lacks least, among those that could ever do.
        let lacks = |card: usize| {
            self.amount(ask.memory, card)
                .saturating_sub(self.open(card))
        };
        let nearest = self
            .named(ask)
            .filter(|card| !taken.contains(card) && fits(*card))
            .min_by_key(|&card| (lacks(card), card))
            .unwrap_or(0);
        JobRefusal::NoRoom {
            asked: self.amount(ask.memory, nearest),
            gpus: ask.gpus,
            fitting: Count::new(taken.len() as u32),
            gpu: gpus[nearest].index,
            free: self.open(nearest),
            kept: self.kept[nearest],
            sick: Count::new(sick as u32),
        }
    }

    fn enter(&mut self, card: usize, who: &str, (part, class): (Part, Class)) {
        self.changes += 1;
        let uid = uid(who, card);
        if part.is_zero() {
            self.engine.forget(&uid);
            return;
        }
        let gpu = &self.facts.inventory.gpus()[card];
        let grant = Grant {
            container: container(),
            card: CardRef {
                index: gpu.index,
                uuid: gpu.uuid.clone(),
            },
            memory: part.memory,
        };
        let pod = PodKey::new("machine", uid.as_str()).expect("made of letters and numbers");
        self.engine.observe(Entry {
            pod,
            uid,
            node: self.facts.name.clone(),
            claim: claim(part, class),
            allocation: Some(Allocation {
                grants: vec![grant],
            }),
            standing: Standing::Bound,
            assigned: true,
            priority: 0,
        });
    }
}

/// The engine knows pods; a job is one pod on each of its cards.
fn uid(who: &str, card: usize) -> PodUid {
    PodUid::new(&format!("{who}-gpu-{card}")).expect("made of letters and numbers")
}

fn container() -> ContainerName {
    ContainerName::new("job").expect("a fixed name that is right")
}

fn claim(part: Part, class: Class) -> Arc<Claim> {
    let container = ContainerClaim {
        name: container(),
        position: 0,
        role: Role::Main,
        demand: Demand {
            portion: Portion::Part(part),
            ..Demand::of_memory(part.memory)
        },
    };
    let claim = Claim::new(None, vec![container], false);
    let claim = claim.and_then(|claim| claim.with_class(class));
    Arc::new(claim.expect("one container with a part of one card"))
}

#[cfg(test)]
mod tests;
