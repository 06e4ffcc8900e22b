//! Loads, one after another: the check before, the measure after.
//!
//! The measure is the arbiter's: the driver's figure of this process alone, of which all that no
//! account explains is charged to the job ([`Link::read_driver`](crate::link::Link::read_driver)).
//! The charge stands in the arbiter's own account, and goes when the memory does, so that nothing
//! is charged twice. That takes about as long as the load of a large module, so it is done only
//! after a load that took memory: the card's free memory, which costs little to ask for, is another
//! than before. If nothing changed there, and nobody of the job took or gave anything meanwhile,
//! the driver took nothing.
//!
//! A job that is over its limit loads nothing, and its processes load one after another on each
//! card. So it never has more than one module beyond its limit. Nobody waits for another's load for
//! longer than [`PATIENCE`]: a load can depend on work of another process.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

use sublet_abi::{DeviceIndex, MAX_DEVICES, SlotIndex};

use crate::cuda::c::*;
use crate::cuda::stream::Relaxed;
use crate::cuda::tenant::{CachesMemory, Tenant, current_device, refusal};
use crate::cuda::{locked, real};
use crate::guard::{Inside, catch_panic};
use crate::link::{self, Budget};

/// Something in loaded code that the driver may load only when it is asked for it: the code's
/// handle, and a number for its name.
pub(super) type PartKey = (usize, u64);

/// Longest wait for another load of the job on the same card.
const PATIENCE: Duration = Duration::from_secs(1);

/// Pauses between two looks whether the other load is done.
const BETWEEN_LOOKS: Duration = Duration::from_micros(200);

/// For so long an arbiter that did not answer is not asked again.
const SILENCE_MS: u64 = 2000;

/// Code of this process, as far as its memory is concerned.
#[derive(Debug, Default)]
pub struct Modules {
    /// By card: a thread is loading.
    loading: [AtomicBool; MAX_DEVICES],
    /// By card: memory that loads seem to have taken without a measure.
    unmeasured: [Unmeasured; MAX_DEVICES],
    /// By card: memory may have been freed, and the arbiter was not asked since.
    freed: [AtomicBool; MAX_DEVICES],
    /// By card, where the driver loads lazily: its free memory with what the job has of it, after
    /// the last load; 0 before the first. With the job's own calls the sum stays.
    levels: [AtomicU64; MAX_DEVICES],
    /// When the arbiter last did not answer.
    unanswered_ms: AtomicU64,
    /// The parts that were asked for.
    known: Mutex<HashSet<PartKey>>,
    /// Does the driver load lazily?
    are_lazy: OnceLock<bool>,
}

/// Memory that loads seem to have taken, and that the arbiter has not measured: it is gone, or
/// will do so later.
#[derive(Debug, Default)]
struct Unmeasured {
    bytes: AtomicU64,
    /// The arbiter's own account when the first of it was taken. As that grows, it is measured.
    charged_before: AtomicU64,
}

impl Unmeasured {
    fn add(&self, bytes: u64, charged: u64) {
        if self.bytes.fetch_add(bytes, Ordering::Relaxed) == 0 {
            self.charged_before.store(charged, Ordering::Relaxed);
        }
    }

    fn forget(&self) {
        self.bytes.store(0, Ordering::Relaxed);
    }

    /// The part of it that is not in the arbiter's account.
    fn left(&self, charged: u64) -> u64 {
        let before = self.charged_before.load(Ordering::Relaxed);
        let bytes = self.bytes.load(Ordering::Relaxed);
        bytes.saturating_sub(charged.saturating_sub(before))
    }
}

/// Memory of a card in the arbiter's own account.
fn charged(tenant: &Tenant, card: DeviceIndex) -> u64 {
    let ledger = tenant.link.ledger();
    ledger.held(SlotIndex::ARBITER, card).bytes()
}

impl Modules {
    /// True if the driver loads functions when they are first used.
    pub(super) fn are_lazy(&self) -> bool {
        if let Some(known) = self.are_lazy.get() {
            return *known;
        }
        let mut mode = CU_MODULE_EAGER_LOADING;
        // SAFETY: writes the number it is given.
        let told = unsafe { real::cuModuleGetLoadingMode(&raw mut mode) };
        let is_lazy = mode == CU_MODULE_LAZY_LOADING;
        told == CUDA_SUCCESS && *self.are_lazy.get_or_init(|| is_lazy)
    }

    /// True if nobody asked for a part before.
    pub(super) fn is_new(&self, part: PartKey) -> bool {
        !locked(&self.known).contains(&part)
    }

    /// Notes that a part is loaded.
    pub(super) fn remember(&self, part: PartKey) {
        locked(&self.known).insert(part);
    }

    /// Forgets all parts of code that is gone, or of code before it with the same handle.
    pub(super) fn forget(&self, code: usize) {
        locked(&self.known).retain(|(of, _)| *of != code);
    }

    /// Notes that the driver may have freed code on all cards. It is given back when the arbiter
    /// next reads the driver: soon, or as soon as memory lacks.
    pub fn note_freed(&self) {
        for freed in &self.freed {
            freed.store(true, Ordering::Relaxed);
        }
    }

    /// Has the arbiter measure. `taken` is what a load seems to have taken of each card; it counts
    /// while the arbiter does not answer.
    fn measure(&self, tenant: &Tenant, cards: &[DeviceIndex], taken: u64) -> bool {
        let now = link::now_ms();
        let unanswered = self.unanswered_ms.load(Ordering::Relaxed);
        let is_silent = unanswered > 0 && now.saturating_sub(unanswered) < SILENCE_MS;
        let freed = || cards.iter().map(|card| &self.freed[card.place()]);
        freed().for_each(|freed| freed.store(false, Ordering::Relaxed));
        let is_measured = !is_silent && tenant.link.read_driver(cards);
        if !is_measured {
            freed().for_each(|freed| freed.store(true, Ordering::Relaxed));
        }
        for card in cards {
            let unmeasured = &self.unmeasured[card.place()];
            if is_measured {
                unmeasured.forget();
            } else {
                unmeasured.add(taken, charged(tenant, *card));
            }
        }
        if !is_silent {
            let unanswered = if is_measured { 0 } else { now };
            self.unanswered_ms.store(unanswered, Ordering::Relaxed);
        }
        is_measured
    }

    /// Has the arbiter measure if a launch since the last load may have loaded something.
    fn catch_up(&self, tenant: &Tenant, cards: &[DeviceIndex]) {
        let Some(card) = only(cards).filter(|_| self.are_lazy()) else {
            return;
        };
        let before = self.levels[card.place()].load(Ordering::Relaxed);
        let now = Figures::now(tenant, cards).level(tenant, card);
        if before > 0 && now.is_some_and(|now| now != before) {
            self.measure(tenant, cards, 0);
        }
    }

    /// Notes the card's state after a load that is charged.
    fn note_level(&self, tenant: &Tenant, cards: &[DeviceIndex], after: &Figures) {
        if let Some(card) = only(cards).filter(|_| self.are_lazy()) {
            let level = after.level(tenant, card).unwrap_or(0);
            self.levels[card.place()].store(level, Ordering::Relaxed);
        }
    }

    /// True if the job is over its limit on one of the cards.
    fn are_over(&self, tenant: &Tenant, cards: &[DeviceIndex]) -> bool {
        let beyond = |card: DeviceIndex| {
            let total = tenant.link.ledger().total(card).bytes();
            let unmeasured = self.unmeasured[card.place()].left(charged(tenant, card));
            let limit = tenant.link.control().device(card).limit().bytes();
            total.saturating_add(unmeasured).saturating_sub(limit)
        };
        cards.iter().any(|card| {
            if beyond(*card) == 0 {
                return false;
            }
            tenant.release_unused(*card);
            self.measure(tenant, &[*card], 0);
            let bytes = beyond(*card);
            if bytes > 0 {
                tenant.link.note_refusal(*card, bytes);
            }
            bytes > 0
        })
    }
}

impl CachesMemory for Modules {
    fn release_unused(&self, tenant: &Tenant, budget: Budget) -> bool {
        let Budget::Device(card) = budget else {
            return false;
        };
        let has_freed = self.freed[card.place()].load(Ordering::Relaxed);
        has_freed && self.measure(tenant, &[card], 0)
    }

    fn look_again(&self, tenant: &Tenant, device: DeviceIndex) {
        self.release_unused(tenant, device.into());
    }
}

/// The cards on which a call may take memory: that of the thread's context. Without one, the
/// driver can load a library into all contexts that there are.
fn cards(tenant: &Tenant) -> Vec<DeviceIndex> {
    if let Some(device) = current_device() {
        return tenant.place(device).listed().into_iter().collect();
    }
    if locked(&tenant.accounts.contexts).handles().is_empty() {
        return Vec::new();
    }
    let devices = tenant.link.control().devices();
    devices.map(|(index, _)| index).collect()
}

/// The card, if there is one alone.
fn only(cards: &[DeviceIndex]) -> Option<DeviceIndex> {
    match cards {
        [card] => Some(*card),
        _ => None,
    }
}

/// Figures that change when memory of the cards is taken or given.
#[derive(Debug)]
struct Figures {
    /// Free memory on the card of the thread's context; `None` without one.
    free: Option<u64>,
    /// Words of the job's ledger, by card.
    states: Vec<u64>,
}

impl Figures {
    fn now(tenant: &Tenant, cards: &[DeviceIndex]) -> Self {
        let ledger = tenant.link.ledger();
        let _relaxed = Relaxed::enter();
        let (mut free, mut total) = (0, 0);
        // SAFETY: writes both numbers.
        let told = unsafe { real::cuMemGetInfo_v2(&raw mut free, &raw mut total) };
        Self {
            free: (told == CUDA_SUCCESS).then_some(free as u64),
            states: cards.iter().map(|card| ledger.state(*card)).collect(),
        }
    }

    /// The card's free memory with what the job has of it now.
    fn level(&self, tenant: &Tenant, card: DeviceIndex) -> Option<u64> {
        let total = tenant.link.ledger().total(card).bytes();
        self.free.map(|free| free.saturating_add(total))
    }

    /// True if nothing was taken or given between the two.
    fn are(&self, after: &Self) -> bool {
        self.free.is_some() && self.free == after.free && self.states == after.states
    }

    /// Memory that was taken between the two, if nobody else took or gave any.
    fn taken(&self, after: &Self) -> u64 {
        let both = self.free.zip(after.free);
        both.map_or(0, |(before, after)| before.saturating_sub(after))
    }
}

/// The right to load on cards: one thread of one process of the job has it.
#[derive(Debug)]
struct LoadTurn<'a> {
    tenant: &'a Tenant,
    held: Vec<DeviceIndex>,
}

impl<'a> LoadTurn<'a> {
    /// Waits for it. A card whose turn does not come in time is loaded on without.
    fn take(tenant: &'a Tenant, cards: &[DeviceIndex]) -> Self {
        let begin = Instant::now();
        let mut held = Vec::new();
        for card in cards {
            let mut has_it = take_turn(tenant, *card);
            while !has_it && begin.elapsed() < PATIENCE {
                std::thread::sleep(BETWEEN_LOOKS);
                has_it = take_turn(tenant, *card);
            }
            if has_it {
                held.push(*card);
            }
        }
        Self { tenant, held }
    }
}

fn take_turn(tenant: &Tenant, card: DeviceIndex) -> bool {
    let loading = &tenant.accounts.modules.loading[card.place()];
    if loading.swap(true, Ordering::Acquire) {
        return false;
    }
    let marks = tenant.link.marks();
    let has_it = marks.is_none_or(|marks| marks.take_turn(card));
    if !has_it {
        loading.store(false, Ordering::Release);
    }
    has_it
}

impl Drop for LoadTurn<'_> {
    fn drop(&mut self) {
        for card in &self.held {
            if let Some(marks) = self.tenant.link.marks() {
                marks.give_turn(*card);
            }
            let loading = &self.tenant.accounts.modules.loading[card.place()];
            loading.store(false, Ordering::Release);
        }
    }
}

/// A call that may load code. `loads` is true if it does, as far as that is known; `made` notes its
/// success.
pub(super) fn loading(
    loads: impl FnOnce(&Tenant) -> bool,
    call: impl FnOnce() -> CUresult,
    made: impl FnOnce(&Tenant),
) -> CUresult {
    let Some(_inside) = Inside::enter() else {
        return call();
    };
    let Some(tenant) = catch_panic(Tenant::current).flatten() else {
        return call();
    };
    let begin = || {
        let cards = loads(&tenant).then(|| cards(&tenant))?;
        let turn = (!cards.is_empty()).then(|| LoadTurn::take(&tenant, &cards))?;
        tenant.accounts.modules.catch_up(&tenant, &cards);
        let is_over = tenant.accounts.modules.are_over(&tenant, &cards);
        let before = (!is_over).then(|| Figures::now(&tenant, &cards));
        Some((turn, cards, before))
    };
    let begun = match catch_panic(begin).flatten() {
        Some((_, _, None)) => return refusal(),
        Some((turn, cards, Some(before))) => Some((turn, cards, before)),
        None => None,
    };
    let result = call();
    let _ = catch_panic(|| {
        if result == CUDA_SUCCESS {
            made(&tenant);
        }
        // A load that fails may leave something behind.
        if let Some((_turn, cards, before)) = begun {
            let after = Figures::now(&tenant, &cards);
            if !before.are(&after) {
                let taken = before.taken(&after);
                tenant.accounts.modules.measure(&tenant, &cards, taken);
            }
            tenant.accounts.modules.note_level(&tenant, &cards, &after);
        }
    });
    result
}

/// A call that unloads code. What it gives back is measured when it matters: a program that ends
/// unloads all it has, one after another.
pub(super) fn unloading(code: usize, call: impl FnOnce() -> CUresult) -> CUresult {
    let Some(_inside) = Inside::enter() else {
        return call();
    };
    let result = call();
    if result == CUDA_SUCCESS {
        let _ = catch_panic(|| {
            if let Some(tenant) = Tenant::current() {
                tenant.accounts.modules.forget(code);
                tenant.accounts.modules.note_freed();
            }
        });
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_measured_counts_until_the_arbiter_charges_it() {
        let unmeasured = Unmeasured::default();
        assert_eq!(unmeasured.left(70), 0);
        unmeasured.add(30, 70);
        unmeasured.add(20, 80);
        assert_eq!(unmeasured.left(70), 50);
        assert_eq!(unmeasured.left(90), 30);
        assert_eq!(unmeasured.left(200), 0);
        assert_eq!(unmeasured.left(0), 50);
        unmeasured.forget();
        unmeasured.add(10, 200);
        assert_eq!(unmeasured.left(200), 10);
    }
}
