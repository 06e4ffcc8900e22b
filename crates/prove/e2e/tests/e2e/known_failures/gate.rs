//! The gate of a job, closed and opened from outside.
//!
//! Root can do it while the arbiter has no reason to: it writes the word in the arbiter's own
//! memory, where alone the page can be written, and wakes the waiting threads as the arbiter would.
//! Everything else is as it is for users, the heartbeat too, without which a gate opens by itself.
#![expect(
    unsafe_code,
    reason = "looks at the pages that the job and the arbiter share"
)]

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::ptr;
use std::sync::atomic::AtomicU32;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use rustix::mm::{MapFlags, ProtFlags};
use rustix::thread::futex;
use sublet_abi::{ControlPage, GateState, GateWord, LedgerPage, SlotIndex};
use sublet_e2e::one_machine::Machine;

/// Longest time until a process says that nothing of it runs.
const PATIENCE: Duration = Duration::from_secs(20);

/// The gate of the machine's only job. It is free again when this is dropped.
pub(crate) struct Gate {
    memory: File,
    /// Address of the word in the arbiter's memory.
    at: u64,
    control: &'static ControlPage,
    ledger: &'static LedgerPage,
    /// The number of the last closing.
    turn: u32,
}

impl Gate {
    /// Finds it; `None`, and a line that says why, for users who cannot.
    pub(crate) fn of_only_job(machine: &Machine) -> Result<Option<Gate>> {
        if !rustix::process::geteuid().is_root() {
            println!("skipped: only root can write the arbiter's memory");
            return Ok(None);
        }
        let arbiter = format!("/proc/{}", machine.arbiter()?.as_raw_nonzero());
        let (start, page) = map(&arbiter, "memfd:sublet-control", ControlPage::BYTES)?;
        // SAFETY: a page that the arbiter keeps, mapped for ever.
        let control = unsafe { ControlPage::from_ptr(page, ControlPage::BYTES) };
        let control = control.map_err(|why| anyhow!("no control page: {why}"))?;
        let (_, ledger) = map(&arbiter, "memfd:sublet-ledger", LedgerPage::BYTES)?;
        // SAFETY: as above.
        let ledger = unsafe { LedgerPage::from_ptr(ledger, LedgerPage::BYTES) };
        let ledger = ledger.map_err(|why| anyhow!("no ledger: {why}"))?;
        let mut memory = File::options();
        let memory = memory.read(true).write(true);
        let memory = memory.open(format!("{arbiter}/mem"))?;
        let offset = control.gate().address().addr() - page.addr();
        Ok(Some(Gate {
            memory,
            at: start + offset as u64,
            control,
            ledger,
            turn: 0,
        }))
    }

    /// From some microseconds on launches wait.
    pub(crate) fn close(&mut self) -> Result<()> {
        self.turn += 1;
        self.set(GateWord::new(GateState::Closed, self.turn))
    }

    /// The same. Returns when the job's first process says that nothing of it runs any more.
    pub(crate) fn close_and_drain(&mut self) -> Result<()> {
        self.close()?;
        let slot = SlotIndex::of_process(1).context("a slot")?;
        let turns = self.ledger.slot(slot).turns();
        let start = Instant::now();
        while turns.answered() != self.turn {
            ensure!(start.elapsed() < PATIENCE, "no answer: {turns:?}");
            thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    /// Launches go on.
    pub(crate) fn open(&self) -> Result<()> {
        self.set(GateWord::default())
    }

    fn set(&self, word: GateWord) -> Result<()> {
        let bytes = word.bits().to_ne_bytes();
        self.memory.write_all_at(&bytes, self.at)?;
        let address = self.control.gate().address().cast_mut();
        // SAFETY: nothing is written, and the mapping stays.
        let address = unsafe { AtomicU32::from_ptr(address) };
        futex::wake(address, futex::Flags::empty(), i32::MAX.cast_unsigned())?;
        Ok(())
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        let _arbiter_is_gone = self.open();
    }
}

/// The arbiter's only page of a kind: where it has it, and where it is mapped here, to be read.
fn map(arbiter: &str, name: &str, length: usize) -> Result<(u64, *mut u8)> {
    let maps = fs::read_to_string(format!("{arbiter}/maps"))?;
    let mut pages = maps.lines().filter(|line| line.contains(name));
    let page = pages.next().with_context(|| format!("no {name}"))?;
    ensure!(pages.next().is_none(), "more than one job:\n{maps}");
    let range = page.split(' ').next().unwrap_or_default();
    let start = range.split('-').next().unwrap_or_default();
    let start = u64::from_str_radix(start, 16)?;
    let file = File::open(format!("{arbiter}/map_files/{range}"))?;
    let (access, flags) = (ProtFlags::READ, MapFlags::SHARED);
    // SAFETY: a new mapping where the kernel likes, which is never undone.
    let mapped = unsafe { rustix::mm::mmap(ptr::null_mut(), length, access, flags, &file, 0) };
    Ok((start, mapped.context(range.to_owned())?.cast()))
}
