//! The gate of a job, closed and opened from outside.
//!
//! Nobody shares compute time yet, so nothing of the product closes a gate. Root can: it writes
//! the word in the arbiter's own memory, where alone the page can be written. Everything else is
//! as it is for users, the heartbeat too, without which a closed gate counts as open.
#![expect(unsafe_code, reason = "asks the page's type where its gate is")]

use std::fs::{self, File};
use std::os::unix::fs::FileExt;

use anyhow::{Context, Result, ensure};
use sublet_abi::{AnyControl, GateState, GateWord, VERSION};
use sublet_e2e::one_machine::Machine;

/// The gate of the machine's only job. It is open again when this is dropped.
pub(crate) struct Gate {
    memory: File,
    /// Where the word is in the arbiter's memory.
    at: u64,
}

/// Bytes of a page of today's version.
const BYTES: usize = AnyControl::bytes(VERSION).expect("it is known");

/// A page's memory, aligned as pages are.
#[repr(align(4096))]
struct Room([u8; BYTES]);

impl Gate {
    /// Finds it; `None`, and a line that says why, for users who cannot.
    pub(crate) fn of_only_job(machine: &Machine) -> Result<Option<Gate>> {
        if !rustix::process::geteuid().is_root() {
            println!("skipped: only root can write the arbiter's memory");
            return Ok(None);
        }
        let arbiter = format!("/proc/{}", machine.arbiter()?.as_raw_nonzero());
        let maps = fs::read_to_string(format!("{arbiter}/maps"))?;
        let mut pages = maps
            .lines()
            .filter(|line| line.contains("memfd:sublet-control"));
        let page = pages.next().context("no job has a page")?;
        ensure!(pages.next().is_none(), "more than one job:\n{maps}");
        let start = page.split('-').next().unwrap_or_default();
        let start = u64::from_str_radix(start, 16)?;
        let memory = File::options()
            .read(true)
            .write(true)
            .open(format!("{arbiter}/mem"))?;
        let at = start + offset(&memory, start)?;
        Ok(Some(Gate { memory, at }))
    }

    /// From now on launches wait.
    pub(crate) fn close(&self) -> Result<()> {
        let closed = GateWord::new(GateState::Closed, 1).bits();
        Ok(self.memory.write_all_at(&closed.to_ne_bytes(), self.at)?)
    }

    /// Launches go on; who waits notices within a tenth of a second.
    pub(crate) fn open(&self) -> Result<()> {
        Ok(self.memory.write_all_at(&0_u32.to_ne_bytes(), self.at)?)
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        let _arbiter_is_gone = self.open();
    }
}

/// Where the gate is in a page.
fn offset(memory: &File, start: u64) -> Result<u64> {
    let room = Box::leak(Box::new(Room([0; BYTES])));
    memory.read_exact_at(&mut room.0, start)?;
    // SAFETY: so many bytes, aligned, that live for ever and that nobody writes any more.
    let page = unsafe { AnyControl::from_ptr(room.0.as_ptr(), BYTES) };
    let page = page.ok().context("this is no control page")?;
    let gate = page.gate().address().addr();
    Ok((gate - room.0.as_ptr().addr()) as u64)
}
