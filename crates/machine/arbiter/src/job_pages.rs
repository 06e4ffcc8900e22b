//! One job's shared pages, with functions that write limits, slots and overheads to them. It
//! carries out the decisions of `sublet-share` and decides nothing.

use std::collections::BTreeMap;

use rustix::thread::futex;
use sublet_abi::control::{DeviceTerms, Terms};
use sublet_abi::message::SlotClaim;
use sublet_abi::{DeviceIndex, GateWord, Mode, SlotIndex, Units};
use sublet_model::{Bytes, MiB};
use sublet_share::{Holding, Pid};
use tracing::warn;

use crate::gauge::Figures;
use crate::pages::{ControlMemory, LedgerMemory, PagesError};

/// A job's card, as its pages have it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct JobCard {
    /// Position in the machine's inventory.
    pub(crate) card: usize,
    pub(crate) uuid: [u8; 16],
    pub(crate) capacity: MiB,
    pub(crate) limit: MiB,
    pub(crate) figures: Figures,
}

/// A job's pages: nothing but its terms until its first process came.
#[derive(Debug)]
pub(crate) struct JobPages {
    id: u64,
    mode: Mode,
    /// In the order of the pages.
    pub(crate) cards: Vec<JobCard>,
    /// Made when its first process comes, or brings the ledger of before.
    pages: Option<(ControlMemory, LedgerMemory)>,
    /// Processes may come back with a ledger, as long as none was made.
    pub(crate) expects_ledger: bool,
    /// Number of processes that each slot has had.
    generations: BTreeMap<u32, u32>,
    /// State of its gate, with or without pages.
    gate: GateWord,
    gate_terms: GateTerms,
    /// Limit of compute time that MPS keeps, in percent, for a job that was told of MPS.
    pub(crate) mps_percent: Option<u32>,
}

/// Behaviour of a job's processes at their gates, beside the word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct GateTerms {
    /// For how many thousandths of the time they launch work while no arbiter is there.
    without_arbiter: u32,
    /// Work that each process keeps queued, in microseconds.
    queue_us: u32,
}

/// All of the time, without an arbiter.
pub(crate) const ALWAYS: u32 = 1000;

/// Until the turns say otherwise, a process has a quarter of a second queued.
const FIRST_QUEUE_US: u32 = 250_000;

impl JobPages {
    pub(crate) fn new(id: u64, mode: Mode, expects_ledger: bool) -> JobPages {
        JobPages {
            id,
            mode,
            cards: Vec::new(),
            pages: None,
            expects_ledger,
            generations: BTreeMap::new(),
            gate: GateWord::default(),
            gate_terms: GateTerms {
                without_arbiter: ALWAYS,
                queue_us: FIRST_QUEUE_US,
            },
            mps_percent: None,
        }
    }

    /// The job's number, as the pages have it.
    pub(crate) fn tenant(&self) -> u64 {
        self.id
    }

    pub(crate) fn mode(&self) -> Mode {
        self.mode
    }

    pub(crate) fn are_made(&self) -> bool {
        self.pages.is_some()
    }

    pub(crate) fn ledger(&self) -> Option<&LedgerMemory> {
        self.pages.as_ref().map(|(_, ledger)| ledger)
    }

    pub(crate) fn control(&self) -> Option<&ControlMemory> {
        self.pages.as_ref().map(|(control, _)| control)
    }

    /// Makes the pages; `pinned_limit` is the job's limit of pinned host memory, `None` for no
    /// limit.
    pub(crate) fn make(
        &mut self,
        epoch: u64,
        now_ms: u64,
        pinned_limit: Option<MiB>,
    ) -> Result<(), PagesError> {
        let ledger = LedgerMemory::new(self.id)?;
        self.adopt(epoch, now_ms, ledger, pinned_limit)
    }

    /// Takes over a ledger, and makes a control page.
    pub(crate) fn adopt(
        &mut self,
        epoch: u64,
        now_ms: u64,
        ledger: LedgerMemory,
        pinned_limit: Option<MiB>,
    ) -> Result<(), PagesError> {
        let devices: Vec<DeviceTerms> = self.cards.iter().map(JobCard::terms).collect();
        let control = ControlMemory::new(&Terms {
            tenant: self.id,
            epoch,
            mode: self.mode,
            devices: &devices,
            host_limit_bytes: pinned_limit.map(|limit| Bytes::from(limit).get()),
            now_ms,
        })?;
        let writer = control.writer();
        let terms = self.gate_terms;
        writer.set_gate_rules(terms.without_arbiter, terms.queue_us);
        writer.set_mps_percent(self.mps_percent);
        control.set_gate(self.gate);
        self.pages = Some((control, ledger));
        self.expects_ledger = false;
        Ok(())
    }

    /// Opens or closes the job's gate, of all its cards.
    pub(crate) fn set_gate(&mut self, word: GateWord) {
        self.gate = word;
        if let Some(control) = self.control() {
            control.set_gate(word);
        }
    }

    /// Sets the share of the time in which its processes launch work without an arbiter, in
    /// thousandths.
    pub(crate) fn set_without_arbiter(&mut self, thousandths: u32) {
        self.set_gate_terms(GateTerms {
            without_arbiter: thousandths.clamp(1, ALWAYS),
            ..self.gate_terms
        });
    }

    /// Sets what each of its processes may have queued, in microseconds.
    pub(crate) fn set_queue(&mut self, queue_us: u32) {
        self.set_gate_terms(GateTerms {
            queue_us,
            ..self.gate_terms
        });
    }

    fn set_gate_terms(&mut self, terms: GateTerms) {
        if self.gate_terms == terms {
            return;
        }
        self.gate_terms = terms;
        if let Some(control) = self.control() {
            let writer = control.writer();
            writer.set_gate_rules(terms.without_arbiter, terms.queue_us);
        }
    }

    /// The cards with their numbers on the pages.
    pub(crate) fn devices(&self) -> impl Iterator<Item = (DeviceIndex, &JobCard)> {
        DeviceIndex::all().zip(&self.cards)
    }

    /// Could these claims be about our cards, in our order?
    pub(crate) fn matches(&self, held: &SlotClaim) -> bool {
        held.claims.iter().enumerate().all(|(at, claim)| {
            let ours = self.cards.get(at).map(|card| card.uuid);
            claim.uuid == [0; 16] || Some(claim.uuid) == ours
        })
    }

    /// Writes limits; when it returns, no reservation against an old one can succeed.
    pub(crate) fn set_limits(&mut self, parts: &[Holding]) {
        for (device, card) in DeviceIndex::all().zip(&mut self.cards) {
            let Some(part) = parts.iter().find(|part| part.card == card.card) else {
                continue;
            };
            card.limit = part.limit.memory;
            let Some((control, ledger)) = &self.pages else {
                continue;
            };
            let bytes = Bytes::from(part.limit.memory).get();
            control.writer().set_limit_bytes(device, bytes);
            if ledger.page().settle(device).is_err() {
                warn!(job = self.id, "somebody scribbles on the job's ledger");
            }
        }
    }

    /// Writes its limit of pinned host memory; after the return, no reservation against an old
    /// limit can succeed.
    pub(crate) fn set_pinned_limit(&self, limit: MiB) {
        let Some((control, ledger)) = &self.pages else {
            return;
        };
        let bytes = Bytes::from(limit).get();
        control.writer().set_host_limit_bytes(Some(bytes));
        if ledger.page().host().settle().is_err() {
            warn!(job = self.id, "somebody scribbles on the job's ledger");
        }
    }

    /// Its pinned host memory, and the last refusal there: bytes, and time.
    pub(crate) fn pinned(&self) -> (Bytes, Option<(u64, u64)>) {
        let Some(ledger) = self.ledger() else {
            return (Bytes::new(0), None);
        };
        let host = ledger.page().host();
        (Bytes::new(host.total().bytes()), host.last_refusal())
    }

    /// Sets the arbiter's own account of a card.
    pub(crate) fn set_overhead(&self, position: usize, bytes: Bytes) {
        let Some((_, ledger)) = &self.pages else {
            return;
        };
        let want = Units::taken_by(bytes.get()).unwrap_or(Units::MAX);
        for (device, _) in self.devices().filter(|(_, card)| card.card == position) {
            let page = ledger.page();
            let have = page.held(SlotIndex::ARBITER, device);
            let done = if want > have {
                let more = want.saturating_sub(have);
                page.charge(SlotIndex::ARBITER, device, more).is_ok()
            } else {
                let less = have.saturating_sub(want);
                page.release(SlotIndex::ARBITER, device, less).is_ok()
            };
            if !done {
                warn!(job = self.id, "the job's ledger cannot take its overhead");
            }
        }
    }

    /// Writes a process into its slot. Returns the slot's generation.
    pub(crate) fn hand_out(&mut self, slot: SlotIndex, pid: Pid) -> u32 {
        let generation = self.generations.entry(slot.get()).or_default();
        *generation = generation.wrapping_add(1);
        let generation = *generation;
        if let Some((_, ledger)) = &self.pages {
            ledger.page().slot(slot).hand_out(pid.0, generation);
        }
        generation
    }

    /// The generation of a slot's present process.
    pub(crate) fn generation(&self, slot: SlotIndex) -> u32 {
        self.generations.get(&slot.get()).copied().unwrap_or(0)
    }

    /// Notes the generation of a slot that was taken over with its ledger.
    pub(crate) fn remember(&mut self, slot: SlotIndex, generation: u32) {
        self.generations.insert(slot.get(), generation);
    }

    /// Charges a process that comes back with another ledger for the memory that it claims.
    pub(crate) fn charge_claims(&self, slot: SlotIndex, held: &SlotClaim) {
        let Some((_, ledger)) = &self.pages else {
            return;
        };
        for (device, card) in self.devices() {
            let claim = held.claims.iter().find(|claim| claim.uuid == card.uuid);
            let most = Bytes::from(card.capacity).get();
            let bytes = claim.map_or(0, |claim| claim.bytes.min(most));
            let units = Units::taken_by(bytes).unwrap_or(Units::MAX);
            if units > Units::ZERO && ledger.page().charge(slot, device, units).is_err() {
                warn!(
                    job = self.id,
                    "the job's ledger cannot take what is claimed"
                );
            }
        }
        let units = Units::taken_by(held.host_bytes).unwrap_or(Units::MAX);
        if units > Units::ZERO && ledger.page().host().charge(slot, units).is_err() {
            warn!(
                job = self.id,
                "the job's ledger cannot take what is claimed of the host"
            );
        }
    }

    /// Gives back a slot's memory. Its process must be gone.
    pub(crate) fn reclaim(&self, slot: SlotIndex) {
        let Some((_, ledger)) = &self.pages else {
            return;
        };
        for device in DeviceIndex::all() {
            if ledger.page().reclaim(slot, device).is_err() {
                warn!(job = self.id, "somebody scribbles on the job's ledger");
            }
        }
        if ledger.page().host().reclaim(slot).is_err() {
            warn!(job = self.id, "somebody scribbles on the job's ledger");
        }
        ledger.page().slot(slot).take_back();
    }

    /// True if the process in that slot waits for a reading of the driver.
    pub(crate) fn awaits_reading(&self, slot: SlotIndex) -> bool {
        self.ledger().is_some_and(|ledger| {
            let slot = ledger.page().slot(slot);
            let mut devices = self.devices();
            devices.any(|(device, _)| slot.awaited_reading(device).is_some())
        })
    }

    /// Tells the process in that slot that the reading of that card is done, and wakes it.
    pub(crate) fn finish_reading(&self, slot: SlotIndex, position: usize, number: u32) {
        let Some(ledger) = self.ledger() else {
            return;
        };
        let slot = ledger.page().slot(slot);
        for (device, _) in self.devices().filter(|(_, card)| card.card == position) {
            slot.finish_reading(device, number);
            // It wakes whoever waits, and fails for no word that is mapped.
            let word = slot.finished_reading(device);
            let _ = futex::wake(word, futex::Flags::empty(), u32::MAX);
        }
    }

    /// Says that the arbiter is alive.
    pub(crate) fn beat(&self, now_ms: u64) {
        if let Some((control, _)) = &self.pages {
            control.writer().beat(now_ms);
        }
    }

    /// The job's use of each card, by its ledger.
    pub(crate) fn totals(&self) -> impl Iterator<Item = (usize, Bytes)> {
        self.devices()
            .map(|(device, card)| (card.card, self.total(device)))
    }

    /// The sum on its page for one device.
    pub(crate) fn total(&self, device: DeviceIndex) -> Bytes {
        let total = self.ledger().map(|ledger| ledger.page().total(device));
        Bytes::new(total.map_or(0, Units::bytes))
    }

    /// The sum on its page for one device, and the total of these slots' accounts with the
    /// arbiter's own, both of one moment. `None` for the accounts if they were never at rest.
    pub(crate) fn sums(&self, device: DeviceIndex, slots: &[SlotIndex]) -> (Bytes, Option<Bytes>) {
        let at_rest = self.sums_at_rest(device, slots);
        let (total, accounts) = at_rest.unzip();
        (total.unwrap_or_else(|| self.total(device)), accounts)
    }

    fn sums_at_rest(&self, device: DeviceIndex, slots: &[SlotIndex]) -> Option<(Bytes, Bytes)> {
        const TRIES: u32 = 4;
        let page = self.ledger()?.page();
        let all = || slots.iter().chain(&[SlotIndex::ARBITER]);
        let operations = || {
            let each = all().map(|slot| page.operation(*slot, device));
            (page.total(device), each.fold(0_u32, u32::wrapping_add))
        };
        (0..TRIES).find_map(|_| {
            // Whoever changed the sum last may not have come to write it into its account.
            page.settle(device).ok()?;
            let before = operations();
            let held = all().map(|slot| page.held(*slot, device).bytes());
            let sum = held.fold(0_u64, u64::saturating_add);
            let total = Bytes::new(before.0.bytes());
            (before == operations()).then_some((total, Bytes::new(sum)))
        })
    }

    /// One slot's record of each card.
    pub(crate) fn slot_use(&self, slot: SlotIndex) -> impl Iterator<Item = SlotCard> {
        self.devices().filter_map(move |(device, card)| {
            let page = self.ledger()?.page();
            Some(SlotCard {
                card: card.card,
                operation: page.operation(slot, device),
                used: Bytes::new(page.held(slot, device).bytes()),
                context: Bytes::new(page.slot(slot).context_bytes(device)),
                awaited: page.slot(slot).awaited_reading(device),
            })
        })
    }
}

/// A slot's record of a card.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SlotCard {
    pub(crate) card: usize,
    /// Another one after each operation.
    pub(crate) operation: u32,
    pub(crate) used: Bytes,
    /// Part of that reserved for contexts.
    pub(crate) context: Bytes,
    /// Number of the reading of the driver that its process waits for.
    pub(crate) awaited: Option<u32>,
}

impl JobCard {
    fn terms(&self) -> DeviceTerms {
        DeviceTerms {
            uuid: self.uuid,
            capacity_bytes: Bytes::from(self.capacity).get(),
            limit_bytes: Bytes::from(self.limit).get(),
            context_bytes: self.figures.context.map_or(0, Bytes::get),
            packing: self.figures.packing,
        }
    }
}
