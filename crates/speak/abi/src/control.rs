//! The page that the arbiter writes and a tenant's processes only read.
//!
//! It holds the tenant's permissions: devices, limits, mode, gates. The arbiter maps it writable,
//! then seals the memfd (`F_SEAL_FUTURE_WRITE`, `SHRINK`, `GROW`, `SEAL`), and hands it over. From
//! then on nobody can map it writable, not even the arbiter's successor, which makes a new page
//! with a new epoch. A [`ControlPage`] can only be read, because a store to it would kill a
//! tenant's process; all that writes is on [`ControlWriter`], which the arbiter alone makes.

use core::ops::Deref;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::MAX_DEVICES;
use crate::gate::{GateRules, GateWord};
use crate::header::{self, Header, Layout, PageError, PageKind};
use crate::host::HostLimit;
use crate::message::Mode;
use crate::packing::Packing;
use crate::units::{DeviceIndex, Units, Uuid};

/// A tenant's limits, as its processes see them.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct ControlPage {
    header: Header,
    tenant: AtomicU64,
    epoch: AtomicU64,
    mode: AtomicU32,
    n_devices: AtomicU32,
    gate: GateRules,
    mps_percent: AtomicU32,
    reserved: AtomicU32,
    /// On a line of its own: it is written several times a second.
    heartbeat_ms: AtomicU64,
    reserved_beside_heartbeat: [AtomicU64; 7],
    devices: [ControlDevice; MAX_DEVICES],
    host: HostLimit,
}

/// One device of a tenant, on a cache line of its own.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct ControlDevice {
    uuid: [AtomicU64; 2],
    capacity_bytes: AtomicU64,
    limit_bytes: AtomicU64,
    context_bytes: AtomicU64,
    reserved: AtomicU32,
    /// [`Packing`], in three words; zero where nobody has found out.
    packing_block: AtomicU32,
    packing: [AtomicU64; 2],
}

const _: () = {
    use core::mem::offset_of;
    assert!(size_of::<ControlDevice>() == 64);
    assert!(offset_of!(ControlPage, gate) == 40);
    assert!(offset_of!(ControlPage, mps_percent) == 56);
    assert!(offset_of!(ControlPage, heartbeat_ms) == 64);
    assert!(offset_of!(ControlPage, devices) == 128);
    assert!(offset_of!(ControlPage, host) == 128 + 64 * MAX_DEVICES);
    assert!(size_of::<ControlPage>() == 128 + 64 * MAX_DEVICES + 64);
};

// SAFETY: `repr(C)`, the header first, and nothing but atomics after it.
unsafe impl Layout for ControlPage {
    const KIND: PageKind = PageKind::Control;
}

impl ControlPage {
    /// Bytes of a page, and so of its memfd.
    pub const BYTES: usize = size_of::<ControlPage>();

    /// The page that is mapped at `address`.
    ///
    /// # Errors
    /// If it is not a control page of our version.
    ///
    /// # Safety
    /// `len` bytes at `address` are mapped shared and readable for all of `'a`, from a memfd
    /// that can no longer be made shorter (`F_SEAL_SHRINK`).
    pub unsafe fn from_ptr<'a>(
        address: *const u8,
        len: usize,
    ) -> Result<&'a ControlPage, PageError> {
        // SAFETY: as the caller promises; nothing is written through what is returned.
        unsafe { header::open(address, len) }
    }

    /// The tenant's number. It is the same for all its processes and in [`Welcome`].
    ///
    /// [`Welcome`]: crate::Welcome
    #[must_use]
    pub fn tenant(&self) -> u64 {
        self.tenant.load(Ordering::Relaxed)
    }

    /// Returns the arbiter's incarnation that made this page. Never 0.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Relaxed)
    }

    /// When the arbiter was last alive: milliseconds of `CLOCK_MONOTONIC`, which is the same
    /// clock in every container of a machine unless it has a time namespace of its own.
    #[must_use]
    pub fn heartbeat_ms(&self) -> u64 {
        self.heartbeat_ms.load(Ordering::Relaxed)
    }

    /// Returns the behaviour of processes without an arbiter. A number from a later version is read
    /// as strict, which gives nothing away.
    #[must_use]
    pub fn mode(&self) -> Mode {
        Mode::of_number(self.mode.load(Ordering::Relaxed)).unwrap_or(Mode::Strict)
    }

    /// When the tenant's processes may launch work.
    #[must_use]
    pub fn gate(&self) -> &GateRules {
        &self.gate
    }

    /// Returns the limit of compute time that MPS keeps for the tenant, in whole percent of each
    /// card; `None` where MPS keeps none.
    #[must_use]
    pub fn mps_percent(&self) -> Option<u32> {
        let percent = self.mps_percent.load(Ordering::Relaxed);
        (1..100).contains(&percent).then_some(percent)
    }

    /// The tenant's devices, in the order of the ledger's accounts.
    pub fn devices(&self) -> impl Iterator<Item = (DeviceIndex, &ControlDevice)> {
        let n_devices = self.n_devices.load(Ordering::Acquire) as usize;
        let listed = self.devices.iter().take(n_devices);
        DeviceIndex::all().zip(listed)
    }

    /// The device at that place, also where the tenant has none: it then has no limit above 0.
    #[must_use]
    pub fn device(&self, device: DeviceIndex) -> &ControlDevice {
        &self.devices[device.place()]
    }

    /// Returns the place of the device with that UUID; `None` if the tenant does not have it.
    #[must_use]
    pub fn find(&self, uuid: &Uuid) -> Option<DeviceIndex> {
        self.devices()
            .find(|(_, device)| device.uuid() == *uuid)
            .map(|(index, _)| index)
    }

    /// Returns the limit of the host's memory that the tenant may pin.
    #[must_use]
    pub fn host(&self) -> &HostLimit {
        &self.host
    }
}

impl ControlDevice {
    /// The device as the driver names it.
    #[must_use]
    pub fn uuid(&self) -> Uuid {
        let mut uuid = Uuid::default();
        for (half, word) in uuid.chunks_exact_mut(8).zip(&self.uuid) {
            half.copy_from_slice(&word.load(Ordering::Relaxed).to_ne_bytes());
        }
        uuid
    }

    /// Returns the card's whole memory in bytes, for all users together.
    #[must_use]
    pub fn capacity_bytes(&self) -> u64 {
        self.capacity_bytes.load(Ordering::Relaxed)
    }

    /// The tenant's limit in bytes, as it was set. Reports show this number.
    #[must_use]
    pub fn limit_bytes(&self) -> u64 {
        self.limit_bytes.load(Ordering::Acquire)
    }

    /// The tenant's limit as reservations count it. It can change at any moment: give
    /// `|| device.limit()` to [`LedgerPage::reserve`], which reads it when it counts.
    ///
    /// [`LedgerPage::reserve`]: crate::LedgerPage::reserve
    #[must_use]
    pub fn limit(&self) -> Units {
        Units::allowed_by(self.limit_bytes())
    }

    /// Returns the cost of a process's context on this card, in bytes. The arbiter measured it with
    /// a process of its own; 0 if it could not. The amount is reserved before a context is made.
    #[must_use]
    pub fn context_bytes(&self) -> u64 {
        self.context_bytes.load(Ordering::Relaxed)
    }

    /// Returns the driver's packing of memory on this card: as the arbiter measured it, or as
    /// drivers are known to pack.
    #[must_use]
    pub fn packing(&self) -> Packing {
        let block = self.packing_block.load(Ordering::Relaxed);
        let [pieces, rest] = &self.packing;
        Packing::of_words(
            block,
            pieces.load(Ordering::Relaxed),
            rest.load(Ordering::Relaxed),
        )
    }

    fn set_packing(&self, packing: Option<Packing>) {
        let words = packing.and_then(|packing| packing.words());
        let (block, pieces, rest) = words.unwrap_or_default();
        self.packing[0].store(pieces, Ordering::Relaxed);
        self.packing[1].store(rest, Ordering::Relaxed);
        self.packing_block.store(block, Ordering::Relaxed);
    }
}

/// One device of a page that is being made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceTerms {
    /// The device as the driver names it.
    pub uuid: Uuid,
    /// The card's whole memory in bytes.
    pub capacity_bytes: u64,
    /// The tenant's limit in bytes.
    pub limit_bytes: u64,
    /// Expected cost of a context, in bytes.
    pub context_bytes: u64,
    /// The driver's packing of memory there, if it was measured.
    pub packing: Option<Packing>,
}

/// A page that is being made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Terms<'a> {
    /// The tenant's number.
    pub tenant: u64,
    /// This incarnation of the arbiter, not 0.
    pub epoch: u64,
    /// Behaviour of processes without an arbiter.
    pub mode: Mode,
    /// The devices; those after the sixteenth are left out. On a ledger that was adopted, in the
    /// order of the claims.
    pub devices: &'a [DeviceTerms],
    /// Limit of the host's memory that the tenant may pin, in bytes; `None` for no limit.
    pub host_limit_bytes: Option<u64>,
    /// The time now, in milliseconds of `CLOCK_MONOTONIC`.
    pub now_ms: u64,
}

/// The arbiter's writable side of a control page.
#[derive(Debug)]
pub struct ControlWriter<'a> {
    page: &'a ControlPage,
}

impl Deref for ControlWriter<'_> {
    type Target = ControlPage;

    fn deref(&self) -> &ControlPage {
        self.page
    }
}

impl<'a> ControlWriter<'a> {
    /// Makes a page in zeroed memory.
    ///
    /// # Errors
    /// If the memory is too short or not aligned.
    ///
    /// # Safety
    /// `len` bytes at `address` are zero, mapped shared and writable for all of `'a`, and
    /// cannot be made shorter.
    pub unsafe fn create(
        address: *mut u8,
        len: usize,
        terms: &Terms<'_>,
    ) -> Result<ControlWriter<'a>, PageError> {
        // SAFETY: as the caller promises.
        let page = unsafe { header::blank::<ControlPage>(address, len) }?;
        page.tenant.store(terms.tenant, Ordering::Relaxed);
        page.epoch.store(terms.epoch, Ordering::Relaxed);
        page.mode.store(terms.mode.number(), Ordering::Relaxed);
        page.heartbeat_ms.store(terms.now_ms, Ordering::Relaxed);
        for (place, device) in page.devices.iter().zip(terms.devices) {
            for (word, half) in place.uuid.iter().zip(device.uuid.chunks_exact(8)) {
                let half = half.try_into().unwrap_or_default();
                word.store(u64::from_ne_bytes(half), Ordering::Relaxed);
            }
            place
                .capacity_bytes
                .store(device.capacity_bytes, Ordering::Relaxed);
            place
                .limit_bytes
                .store(device.limit_bytes, Ordering::Relaxed);
            place
                .context_bytes
                .store(device.context_bytes, Ordering::Relaxed);
            place.set_packing(device.packing);
        }
        let n_devices = terms.devices.len().min(MAX_DEVICES);
        page.n_devices.store(n_devices as u32, Ordering::Release);
        page.host.set(terms.host_limit_bytes);
        page.header.write::<ControlPage>();
        Ok(ControlWriter { page })
    }

    /// The page, for readers in the arbiter's own process.
    #[must_use]
    pub fn page(&self) -> &'a ControlPage {
        self.page
    }

    /// Says that the arbiter is alive, at `now_ms` milliseconds of `CLOCK_MONOTONIC`.
    pub fn beat(&self, now_ms: u64) {
        self.page.heartbeat_ms.store(now_ms, Ordering::Relaxed);
    }

    /// Sets a limit in bytes. Reservations that have already read the old one may still
    /// succeed until [`LedgerPage::settle`] has been called for the device; after it, none.
    ///
    /// [`LedgerPage::settle`]: crate::LedgerPage::settle
    pub fn set_limit_bytes(&self, device: DeviceIndex, bytes: u64) {
        let limit = &self.page.device(device).limit_bytes;
        limit.store(bytes, Ordering::Release);
    }

    /// Sets the limit of the host's memory that the tenant may pin, in bytes; `None` for no limit.
    /// As for a device, the old limit counts until [`HostLedger::settle`] has been called.
    ///
    /// [`HostLedger::settle`]: crate::HostLedger::settle
    pub fn set_host_limit_bytes(&self, bytes: Option<u64>) {
        self.page.host.set(bytes);
    }

    /// Sets the expected cost of the next context, in bytes.
    pub fn set_context_bytes(&self, device: DeviceIndex, bytes: u64) {
        let context = &self.page.device(device).context_bytes;
        context.store(bytes, Ordering::Relaxed);
    }

    /// Sets how the driver packs memory on a device; `None` where nobody has found out.
    pub fn set_packing(&self, device: DeviceIndex, packing: Option<Packing>) {
        self.page.device(device).set_packing(packing);
    }

    /// Sets the gate of all the tenant's devices: a job whose launches stop on one of them waits
    /// for itself on the others. The caller must wake the waiters of the word afterwards.
    pub fn set_gate(&self, word: GateWord) {
        self.page.gate.set_word(word);
    }

    /// Sets how much of the time processes launch work while no arbiter is there, in thousandths
    /// from 1 to 1000, and how much work each of them keeps queued, with all of its threads
    /// together, in microseconds; 0 for no bound.
    pub fn set_gate_rules(&self, without_arbiter: u32, queue_us: u32) {
        self.page.gate.set(without_arbiter, queue_us);
    }

    /// Sets the limit of compute time that MPS keeps, in percent; `None` where MPS keeps none.
    pub fn set_mps_percent(&self, percent: Option<u32>) {
        let percent = percent.unwrap_or_default();
        self.page.mps_percent.store(percent, Ordering::Relaxed);
    }

    /// Sets the behaviour of processes without an arbiter.
    pub fn set_mode(&self, mode: Mode) {
        self.page.mode.store(mode.number(), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests;
