//! The threads that launch, and whether each is between the gate and the driver's answer.
//!
//! Each thread that launches has a record of its own, in a list that only grows, so reading the
//! list needs no lock. A thread that ends gives its record back for the next thread.

use std::arch::{asm, global_asm};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};

/// A thread that launches. On cache lines of its own (two, since processors fetch pairs).
#[derive(Debug)]
#[repr(align(128))]
pub struct Launcher {
    /// Depth of nested gated calls: the driver's function may call another one.
    inside: AtomicU32,
    /// Only the thread itself uses these. Atomic, because others can reach them.
    last_noted: [AtomicU64; 3],
    n_left: AtomicU32,
    n_chunk: AtomicU32,
    marked_in: AtomicU32,
    is_taken: AtomicBool,
    /// The one that was made before it.
    next: AtomicPtr<Launcher>,
}

impl Launcher {
    const fn new() -> Self {
        Self {
            inside: AtomicU32::new(0),
            last_noted: [const { AtomicU64::new(0) }; 3],
            n_left: AtomicU32::new(0),
            n_chunk: AtomicU32::new(0),
            marked_in: AtomicU32::new(0),
            is_taken: AtomicBool::new(true),
            next: AtomicPtr::new(ptr::null_mut()),
        }
    }

    /// Only its own thread writes, so that no locked instruction is needed.
    #[inline(always)]
    pub(super) fn enter(&self) {
        let depth = self.inside.load(Ordering::Relaxed);
        self.inside.store(depth + 1, Ordering::Relaxed);
    }

    /// Notes that the launch is with the driver. In a child of a fork the count may have begun
    /// anew.
    #[inline(always)]
    pub fn leave(&self) {
        let depth = self.inside.load(Ordering::Relaxed);
        self.inside
            .store(depth.saturating_sub(1), Ordering::Release);
    }

    /// True inside a gated call that was made inside another one: it belongs to that.
    #[must_use]
    pub fn is_nested(&self) -> bool {
        self.inside.load(Ordering::Relaxed) > 1
    }

    /// A number that no other thread has at the same time.
    #[must_use]
    pub fn number(&self) -> usize {
        ptr::from_ref(self).addr()
    }

    /// Counts a launch down. False if there is nothing left to count from: then the launch is to be
    /// marked. A record that goes to another thread goes on where it was.
    #[inline(always)]
    #[must_use]
    pub fn counts_down(&self) -> bool {
        let n_left = self.n_left.load(Ordering::Relaxed);
        if n_left == 0 {
            return false;
        }
        self.n_left.store(n_left - 1, Ordering::Relaxed);
        true
    }

    /// Returns the number of launches that were counted down.
    #[must_use]
    pub fn n_counted(&self) -> u32 {
        let n_left = self.n_left.load(Ordering::Relaxed);
        self.n_chunk.load(Ordering::Relaxed).saturating_sub(n_left)
    }

    /// Counts down from so many launches.
    pub fn count_from(&self, n_launches: u32) {
        self.n_left.store(n_launches, Ordering::Relaxed);
        self.n_chunk.store(n_launches, Ordering::Relaxed);
    }

    /// Remembers that it made a mark in this piece of time. True if it is the first one.
    pub fn is_first_mark_in(&self, piece: u32) -> bool {
        let before = self.marked_in.load(Ordering::Relaxed);
        self.marked_in.store(piece, Ordering::Relaxed);
        before != piece
    }

    /// Remembers its last report, so that it need not repeat it. True if the report is new.
    pub fn is_news(&self, said: [u64; 3]) -> bool {
        let mut pairs = self.last_noted.iter().zip(said);
        let is_known = pairs.all(|(last, said)| last.load(Ordering::Relaxed) == said);
        for (last, said) in self.last_noted.iter().zip(said) {
            last.store(said, Ordering::Relaxed);
        }
        !is_known
    }
}

/// The newest record.
static NEWEST: AtomicPtr<Launcher> = AtomicPtr::new(ptr::null_mut());

// The calling thread's record: one word of each thread, zero at first, and there until the thread's
// last instruction. Rust would ask for it by a function call, around which a launch has to save its
// arguments. A TLS descriptor is a call that keeps all registers but one, two instructions long
// where the loader found room beside the thread's control block. Where it found none, the library
// still loads, which it would not if the word had to be there.
global_asm!(
    ".pushsection .tbss.sublet_own_launcher, \"awT\", @nobits",
    ".hidden sublet_own_launcher",
    ".globl sublet_own_launcher",
    ".p2align 3",
    ".type sublet_own_launcher, @object",
    ".size sublet_own_launcher, 8",
    "sublet_own_launcher:",
    ".zero 8",
    ".popsection",
);

/// Returns the address of the calling thread's word, from the thread's control block.
#[inline(always)]
fn place() -> usize {
    let place;
    // SAFETY: keeps all registers but this one and the flags; vector registers may be lost in
    // the C library's slow path before 2.39.
    unsafe {
        asm!(
            "lea rax, [rip + sublet_own_launcher@tlsdesc]",
            "call qword ptr [rax + sublet_own_launcher@tlscall]",
            out("rax") place,
            out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _,
            out("xmm4") _, out("xmm5") _, out("xmm6") _, out("xmm7") _,
            out("xmm8") _, out("xmm9") _, out("xmm10") _, out("xmm11") _,
            out("xmm12") _, out("xmm13") _, out("xmm14") _, out("xmm15") _,
        );
    }
    place
}

/// The calling thread's record; null if it has none.
#[inline(always)]
fn own_or_null() -> *const Launcher {
    let own;
    // SAFETY: a word of this thread.
    unsafe {
        asm!(
            "mov {own}, qword ptr fs:[{place}]",
            place = in(reg) place(),
            own = lateout(reg) own,
            options(nostack, preserves_flags, readonly),
        );
    }
    own
}

fn set_own(own: *const Launcher) {
    // SAFETY: a word of this thread, which only this module reads.
    unsafe {
        asm!(
            "mov qword ptr fs:[{place}], {own}",
            place = in(reg) place(),
            own = in(reg) own,
            options(nostack, preserves_flags),
        );
    }
}

/// The calling thread's record; `None` before its first launch.
#[inline(always)]
pub(super) fn known() -> Option<&'static Launcher> {
    // SAFETY: null, or a record; they are never freed.
    unsafe { own_or_null().as_ref() }
}

/// The calling thread's record.
pub(super) fn own() -> &'static Launcher {
    known().unwrap_or_else(begin)
}

fn all() -> impl Iterator<Item = &'static Launcher> {
    // SAFETY: null, or a record; they are never freed.
    let at = |place: &AtomicPtr<Launcher>| unsafe { place.load(Ordering::Acquire).as_ref() };
    std::iter::successors(at(&NEWEST), move |launcher| at(&launcher.next))
}

/// True if a thread other than the calling one is inside.
#[must_use]
pub fn is_anybody_inside() -> bool {
    let own = own_or_null();
    all().any(|one| one.inside.load(Ordering::Acquire) != 0 && !ptr::eq(one, own))
}

/// The calling thread's number ([`Launcher::number`]); zero if it has not launched anything.
#[must_use]
pub fn own_number() -> usize {
    own_or_null().addr()
}

/// Excludes the calling thread from the gate: it does the gate's own work.
pub fn stand_aside() {
    static ASIDE: Launcher = Launcher::new();
    ASIDE.inside.store(1, Ordering::Relaxed);
    set_own(&raw const ASIDE);
}

/// In a child, nobody is inside: the other threads are not there, and the one that is has just
/// begun. No record goes to another thread, for one of the parent's may be that thread's.
pub(super) fn forget_all() {
    for launcher in all() {
        launcher.inside.store(0, Ordering::Relaxed);
        launcher.count_from(0);
    }
}

/// A thread's first launch, or one after it gave its record back, as it ends.
#[cold]
#[inline(never)]
fn begin() -> &'static Launcher {
    let mut free = all();
    let free = free.find(|one| !one.is_taken.load(Ordering::Relaxed) && take(one));
    let launcher = free.unwrap_or_else(add);
    set_own(launcher);
    give_back_at_end(launcher);
    launcher
}

fn take(launcher: &Launcher) -> bool {
    let (taken, kept) = (Ordering::Acquire, Ordering::Relaxed);
    let before = launcher.is_taken.compare_exchange(false, true, taken, kept);
    before.is_ok()
}

fn add() -> &'static Launcher {
    let launcher: &'static Launcher = Box::leak(Box::new(Launcher::new()));
    let mut newest = NEWEST.load(Ordering::Acquire);
    loop {
        launcher.next.store(newest, Ordering::Relaxed);
        let itself = ptr::from_ref(launcher).cast_mut();
        let (set, kept) = (Ordering::AcqRel, Ordering::Acquire);
        match NEWEST.compare_exchange(newest, itself, set, kept) {
            Ok(_) => return launcher,
            Err(other) => newest = other,
        }
    }
}

/// Uses a key of the C library. Its destructors run after those of C++ and Rust, and once more if
/// one of them launches: then the thread has a record again. A record that no destructor gives back
/// is lost, and never counts as inside.
fn give_back_at_end(launcher: &'static Launcher) {
    if let Some(key) = key() {
        // SAFETY: a key of ours; the record is never freed.
        unsafe { libc::pthread_setspecific(key, ptr::from_ref(launcher).cast()) };
    }
}

unsafe extern "C" fn give_back(launcher: *mut libc::c_void) {
    set_own(ptr::null());
    // SAFETY: what was set for the key: a record, which is never freed.
    let launcher = unsafe { &*launcher.cast::<Launcher>() };
    launcher.inside.store(0, Ordering::Relaxed);
    launcher.is_news([0; 3]);
    launcher.is_taken.store(false, Ordering::Release);
}

/// Made once, without a lock, which a fork could leave taken for ever.
fn key() -> Option<libc::pthread_key_t> {
    /// One more than the key; zero while there is none.
    static KEY: AtomicU64 = AtomicU64::new(0);
    let of = |known: u64| libc::pthread_key_t::try_from(known.checked_sub(1)?).ok();
    if let Some(key) = of(KEY.load(Ordering::Acquire)) {
        return Some(key);
    }
    let mut made = 0;
    // SAFETY: writes the key it is given.
    if unsafe { libc::pthread_key_create(&raw mut made, Some(give_back)) } != 0 {
        return None;
    }
    let (set, known) = (Ordering::AcqRel, Ordering::Acquire);
    match KEY.compare_exchange(0, u64::from(made) + 1, set, known) {
        Ok(_) => Some(made),
        Err(other) => {
            // SAFETY: made above, and nobody has seen it.
            unsafe { libc::pthread_key_delete(made) };
            of(other)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    #[test]
    fn a_thread_that_ends_gives_its_record_back_and_is_not_inside() {
        let numbers: Vec<usize> = (0..64)
            .map(|_| {
                let thread = thread::spawn(|| {
                    let own = own();
                    own.enter();
                    own.number()
                });
                thread.join().expect("the thread ends")
            })
            .collect();
        let records: std::collections::BTreeSet<_> = numbers.iter().collect();
        // Other tests' threads may take one in between.
        assert!(records.len() < 32, "{} for 64 threads", records.len());
        assert!(!is_anybody_inside());
    }

    #[test]
    fn what_a_thread_says_is_news_once() {
        let one = Launcher::new();
        assert!(one.is_news([1, 2, 3]) && !one.is_news([1, 2, 3]));
        assert!(one.is_news([1, 2, 4]) && one.is_news([1, 2, 3]));
    }

    #[test]
    fn the_first_launch_is_marked_and_then_one_of_so_many() {
        let one = Launcher::new();
        assert!(!one.counts_down());
        one.count_from(2);
        assert!(one.counts_down() && one.n_counted() == 1);
        assert!(one.counts_down() && !one.counts_down() && !one.counts_down());
        assert_eq!(one.n_counted(), 2);
        assert!(one.is_first_mark_in(5) && !one.is_first_mark_in(5) && one.is_first_mark_in(6));
    }

    #[test]
    fn a_call_within_a_call_is_nested() {
        let one = Launcher::new();
        one.enter();
        assert!(!one.is_nested());
        one.enter();
        assert!(one.is_nested());
        one.leave();
        one.leave();
        one.leave();
        assert_eq!(one.inside.load(Ordering::Relaxed), 0);
    }
}
