//! Processes that use the machine. Nobody watches over them. A process that holds the lock of its
//! slot's byte lives; one whose lock is free is dead. The first process that notices a dead one
//! cleans up after it, as a driver does.

use std::io;
use std::sync::Mutex;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use super::file::Mapped;
use super::layout::{SLOTS, Slot};

/// A program in a process, such that no other one at any time is taken for it. A process
/// that becomes another program by `exec` keeps its PID and the time when it started, but
/// loses its locks and everything that it had of the cards, as with a real driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Identity {
    pid: u64,
    namespace: u64,
    started: u64,
    program: u64,
}

impl Identity {
    /// This process. A number that `/proc` does not tell is 0: then a slot of our own
    /// can be taken for a stranger's, which the lock decides.
    pub(super) fn own() -> Identity {
        use std::os::unix::fs::MetadataExt;
        /// The last answer, of this process or of one that it was forked from. Each question about a
        /// card asks, and to read the line of a process costs more than the rest of it.
        static KNOWN: Mutex<Option<Identity>> = Mutex::new(None);
        let namespace = std::fs::metadata("/proc/self/ns/pid").map_or(0, |about| about.ino());
        let (pid, program) = (u64::from(std::process::id()), program());
        // Whoever forks while another thread has the lock never gets it.
        let mut known = KNOWN.try_lock().ok();
        let is_own =
            |it: &Identity| (it.pid, it.namespace, it.program) == (pid, namespace, program);
        if let Some(own) = known.as_ref().and_then(|known| known.filter(is_own)) {
            return own;
        }
        // The 22nd field; the second one, a name in brackets, may hold spaces.
        let started = std::fs::read_to_string("/proc/self/stat")
            .ok()
            .and_then(|stat| {
                let (_, rest) = stat.rsplit_once(')')?;
                rest.split_whitespace().nth(19)?.parse().ok()
            });
        let own = Identity {
            pid,
            namespace,
            started: started.unwrap_or(0),
            program,
        };
        if let Some(known) = &mut known {
            **known = Some(own);
        }
        own
    }

    fn of(slot: &Slot) -> Identity {
        Identity {
            pid: slot.pid.load(Relaxed),
            namespace: slot.namespace.load(Relaxed),
            started: slot.started.load(Relaxed),
            program: slot.program.load(Relaxed),
        }
    }

    fn write(self, slot: &Slot) {
        slot.pid.store(self.pid, Relaxed);
        slot.namespace.store(self.namespace, Relaxed);
        slot.started.store(self.started, Relaxed);
        slot.program.store(self.program, Relaxed);
    }
}

/// A number that the kernel draws for each program that it starts: the first bytes of
/// `AT_RANDOM`. All libraries of a program see the same; 0 where the kernel gives none.
fn program() -> u64 {
    // SAFETY: takes a number, gives a number.
    let address = unsafe { libc::getauxval(libc::AT_RANDOM) };
    if address == 0 {
        return 0;
    }
    // SAFETY: the kernel put 16 bytes there when it started the program, and nobody
    // takes that part of the stack away.
    unsafe { (address as *const u64).read_unaligned() }
}

/// Owner of a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Owner {
    /// Nobody's.
    Nobody,
    /// A process that has ended and left its slot uncleaned.
    Dead,
    /// A process that lives: its PID for us, 0 if it has none in our namespace.
    Alive(u32),
}

/// Returns the owner of slot number `index`.
pub(super) fn owner(mapped: &Mapped, index: usize, own: Identity) -> io::Result<Owner> {
    let slot = &mapped.shared().slots[index];
    if slot.state.load(Acquire) == 0 {
        return Ok(Owner::Nobody);
    }
    if Identity::of(slot) == own {
        // A process does not see its own locks.
        return Ok(Owner::Alive(u32::try_from(own.pid).unwrap_or(0)));
    }
    Ok(match mapped.holder(index)? {
        Some(pid) => Owner::Alive(pid),
        None => Owner::Dead,
    })
}

/// Maximum number of other processes that a new one asks about while there are slots that nobody
/// has had. To ask about all of them takes 300 processes that begin at once 45,000 calls, one
/// process at a time.
const QUESTIONS: usize = 8;

/// Takes a free slot: one that somebody gave back, else a dead process's if one is found soon. The
/// caller holds the accounts. `None` if there is none.
pub(super) fn claim(mapped: &Mapped, own: Identity) -> io::Result<Option<usize>> {
    let shared = mapped.shared();
    let (header, known) = (&shared.header, n_slots(mapped));
    let given_back = (0..known).filter(|index| shared.slots[*index].state.load(Acquire) == 0);
    // Processes that begin one after the other ask about different ones.
    let first = usize::try_from(own.pid).unwrap_or(0);
    let some = (0..known.min(QUESTIONS)).map(|n| first.wrapping_add(n) % known);
    for index in given_back.chain(some).chain(known..SLOTS).chain(0..known) {
        match owner(mapped, index, own)? {
            Owner::Alive(_) => continue,
            Owner::Dead => clean(mapped, index),
            Owner::Nobody => {}
        }
        if !mapped.claim(index)? {
            continue;
        }
        let slot = &mapped.shared().slots[index];
        slot.generation.fetch_add(1, Relaxed);
        own.write(slot);
        let n_slots = u32::try_from(index + 1).unwrap_or(u32::MAX);
        header.n_slots.fetch_max(n_slots, Relaxed);
        slot.state.store(1, Release);
        return Ok(Some(index));
    }
    Ok(None)
}

/// Everything that slot number `index` had is free again. The caller holds the accounts.
pub(super) fn clean(mapped: &Mapped, index: usize) {
    let slot = &mapped.shared().slots[index];
    for card in &slot.cards {
        card.bytes.store(0, Relaxed);
        card.context_bytes.store(0, Relaxed);
        card.n_contexts.store(0, Relaxed);
        card.rendezvous.store(0, Relaxed);
        card.n_rendezvous.store(0, Relaxed);
        card.n_met.store(0, Relaxed);
        for bucket in &card.buckets {
            bucket.eighth.store(0, Relaxed);
            bucket.busy.store(0, Relaxed);
        }
    }
    slot.pid.store(0, Relaxed);
    slot.started.store(0, Relaxed);
    slot.state.store(0, Release);
}

/// Returns the number of slots to look at.
pub(super) fn n_slots(mapped: &Mapped) -> usize {
    let n_slots = mapped.shared().header.n_slots.load(Acquire);
    usize::try_from(n_slots).unwrap_or(SLOTS).min(SLOTS)
}
