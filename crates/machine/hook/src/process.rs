//! State of this process, which a child made by fork does not inherit.
//!
//! A child of `fork` has its parent's memory, but neither its slot, nor its GPU contexts, nor
//! its threads: locks that those held stay locked for ever. So all state hangs on one pointer,
//! and a child gets a new [`Process`] at its first call that needs one; the old one is left
//! where it is, not even read.
//!
//! A child recognizes itself by one page of memory that the kernel empties in every child
//! (`MADV_WIPEONFORK`). Reading the page costs a load; `getpid` costs a system call (144 ns
//! measured). There is also no handler that a program could forget to run, as there is with
//! `pthread_atfork` under a bare `clone`.

use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, Ordering};

use crate::cuda::CudaAccounts;
use crate::gate;
use crate::link::{self, LinkState};

/// All that is known in one process. It is never dropped.
#[derive(Debug, Default)]
pub struct Process {
    contact: link::FirstContact,
    state: OnceLock<LinkState>,
    /// This process's memory and work, by card.
    pub accounts: CudaAccounts,
}

impl Process {
    /// Says hello to the arbiter, and does not wait for the answer.
    pub fn greet(&self) {
        self.contact.begin();
    }

    /// Returns this process's relation to the arbiter. The first call connects: some milliseconds
    /// at most while the arbiter is well, and at most [`link::PATIENCE`] twice while it is not.
    pub fn state(&self) -> &LinkState {
        if let Some(known) = self.state.get() {
            return known;
        }
        let state = self.state.get_or_init(|| self.contact.end());
        // When nobody waits for that any more.
        if let Some(link) = state.link() {
            link.keep();
        }
        state
    }

    /// The same, without connecting.
    #[must_use]
    pub fn known_state(&self) -> Option<&LinkState> {
        self.state.get()
    }
}

/// This process's state, new in a child.
pub fn current() -> &'static Process {
    let mark = mark();
    if mark.is_ready() {
        let process = CURRENT.load(Ordering::Acquire);
        // SAFETY: the mark is made ready after the pointer was stored, and what it points to
        // is never freed.
        return unsafe { &*process };
    }
    build(mark)
}

static CURRENT: AtomicPtr<Process> = AtomicPtr::new(ptr::null_mut());

const EMPTY: u32 = 0;
const BUILDING: u32 = 1;
const READY: u32 = 2;

/// The word that a child finds empty.
#[derive(Clone, Copy)]
struct Mark {
    word: &'static AtomicU32,
    /// The process that made the word ready, on kernels that do not empty pages.
    owner: Option<&'static AtomicI32>,
}

impl Mark {
    fn is_ready(self) -> bool {
        self.word.load(Ordering::Acquire) == READY && self.is_own()
    }

    fn is_own(self) -> bool {
        // SAFETY: getpid has no preconditions.
        self.owner
            .is_none_or(|owner| owner.load(Ordering::Acquire) == unsafe { libc::getpid() })
    }
}

/// Apart from [`current`], which would otherwise touch each page of the stack that a new process
/// is made on, at every call: 80 ns measured.
#[cold]
#[inline(never)]
fn build(mark: Mark) -> &'static Process {
    if !mark.is_own() {
        mark.word.store(EMPTY, Ordering::Release);
        if let Some(owner) = mark.owner {
            // SAFETY: getpid has no preconditions.
            owner.store(unsafe { libc::getpid() }, Ordering::Release);
        }
    }
    loop {
        let state =
            mark.word
                .compare_exchange(EMPTY, BUILDING, Ordering::Acquire, Ordering::Acquire);
        match state {
            Ok(_) => {
                let process: &'static Process = Box::leak(Box::default());
                if !CURRENT.load(Ordering::Acquire).is_null() {
                    gate::forget_parent();
                }
                CURRENT.store(ptr::from_ref(process).cast_mut(), Ordering::Release);
                mark.word.store(READY, Ordering::Release);
                return process;
            }
            // SAFETY: the word is ready, so the pointer was stored; see `current`.
            Err(READY) => return unsafe { &*CURRENT.load(Ordering::Acquire) },
            // Another thread allocates a few hundred bytes.
            Err(_) => std::thread::yield_now(),
        }
    }
}

/// The page, made at the first call. Threads that race make two and keep one.
fn mark() -> Mark {
    static PAGE: AtomicPtr<AtomicU32> = AtomicPtr::new(ptr::null_mut());
    static PLAIN: AtomicU32 = AtomicU32::new(EMPTY);
    static OWNER: AtomicI32 = AtomicI32::new(0);
    let known = PAGE.load(Ordering::Acquire);
    let page = if known.is_null() {
        let made = wiped_page().unwrap_or(ptr::from_ref(&PLAIN).cast_mut());
        match PAGE.compare_exchange(ptr::null_mut(), made, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => made,
            // The loser's page stays mapped: four KiB, at most once for each racing thread.
            Err(winner) => winner,
        }
    } else {
        known
    };
    Mark {
        // SAFETY: either a static or a mapping that is never undone.
        word: unsafe { &*page },
        owner: ptr::eq(page, &PLAIN).then_some(&OWNER),
    }
}

fn wiped_page() -> Option<*mut AtomicU32> {
    const BYTES: usize = 4096;
    // SAFETY: a new private mapping at an address of the kernel's choice.
    let page = unsafe {
        libc::mmap(
            ptr::null_mut(),
            BYTES,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    if page == libc::MAP_FAILED {
        return None;
    }
    // SAFETY: the mapping made above. Kernels before 4.14, and gVisor, know no such advice.
    if unsafe { libc::madvise(page, BYTES, libc::MADV_WIPEONFORK) } == 0 {
        return Some(page.cast());
    }
    // SAFETY: undoes the mapping, which nobody else has seen.
    unsafe { libc::munmap(page, BYTES) };
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    /// True in the child of a fork, if `check` is true there.
    fn in_child(check: impl FnOnce() -> bool) -> bool {
        // SAFETY: the child calls nothing but `check` and `_exit`.
        match unsafe { libc::fork() } {
            0 => {
                let code = i32::from(!check());
                // SAFETY: ends the child at once, without the parent's destructors.
                unsafe { libc::_exit(code) }
            }
            child => {
                let mut status = 0;
                // SAFETY: waits for the child made above.
                let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
                waited == child && libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0
            }
        }
    }

    #[test]
    fn a_process_keeps_its_state_and_a_child_gets_its_own() {
        let parent = ptr::from_ref(current());
        assert!(ptr::eq(current(), parent));
        let others: Vec<_> = (0..4)
            .map(|_| std::thread::spawn(|| ptr::from_ref(current()).addr()))
            .collect();
        for other in others {
            assert_eq!(other.join().expect("the thread ends"), parent.addr());
        }
        assert!(in_child(|| {
            let child = ptr::from_ref(current());
            let grandchild_differs = in_child(|| !ptr::eq(current(), child));
            !ptr::eq(child, parent) && ptr::eq(current(), child) && grandchild_differs
        }));
        assert!(ptr::eq(current(), parent), "the parent is as before");
    }

    #[test]
    fn a_new_process_touches_few_pages() {
        assert!(size_of::<Process>() < 2 * 4096, "{}", size_of::<Process>());
    }

    #[test]
    fn a_kernel_that_empties_no_pages_is_asked_for_the_process_instead() {
        static WORD: AtomicU32 = AtomicU32::new(EMPTY);
        static OWNER: AtomicI32 = AtomicI32::new(0);
        let mark = Mark {
            word: &WORD,
            owner: Some(&OWNER),
        };
        assert!(!mark.is_ready());
        build(mark);
        assert!(mark.is_ready());
        assert!(in_child(|| !mark.is_ready() && {
            build(mark);
            mark.is_ready()
        }));
    }
}
