//! A piece of code in a process of its own, run instruction by instruction, that can be killed
//! before each of them.
//!
//! The child is a fork of the test, stopped by a trap before the code and another after it, and
//! led by `ptrace`. It shares a mapping with its parent, and nothing else; because a fork of a
//! program with threads has locks that nobody opens, the code must not allocate.
#![expect(unsafe_code, reason = "fork and ptrace")]

use std::arch::asm;
use std::io;
use std::ptr;

use anyhow::{Context, Result, ensure};

/// The child's exit code if the system does not let it be led.
const NOT_ALLOWED: i32 = 77;

/// The child, stopped.
#[derive(Debug)]
pub(crate) struct Stepped {
    child: libc::pid_t,
}

/// Keeps this thread and its children on the processor it is on. They only ever run in turn, and
/// to wake somebody on another processor costs several times as much as a step.
pub(crate) fn stay_on_one_processor() {
    // SAFETY: plain data in which zeros are valid, changed through a live reference. Where the
    // system refuses, steps are slower.
    unsafe {
        let mut one: libc::cpu_set_t = std::mem::zeroed();
        if let Ok(this) = usize::try_from(libc::sched_getcpu()) {
            libc::CPU_SET(this, &mut one);
            libc::sched_setaffinity(0, size_of_val(&one), &raw const one);
        }
    }
}

impl Stepped {
    /// A child that stands before its first instruction of `code`; `None` where the system allows
    /// no `ptrace`.
    ///
    /// # Errors
    /// The system refused a process, or the child went astray.
    pub(crate) fn start(code: impl FnOnce()) -> Result<Option<Stepped>> {
        // SAFETY: the child calls nothing but system calls and `code`, and never returns.
        let child = match unsafe { libc::fork() } {
            -1 => return Err(io::Error::last_os_error()).context("fork"),
            0 => be_led(code),
            child => child,
        };
        let mut this = Stepped { child };
        let status = this.wait()?;
        if libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == NOT_ALLOWED {
            return Ok(None);
        }
        ensure!(
            is_stopped_by(status, libc::SIGTRAP),
            "the child went astray: status {status:#x}"
        );
        // Dies with us, whatever happens to us.
        this.ask(libc::PTRACE_SETOPTIONS, libc::PTRACE_O_EXITKILL)?;
        Ok(Some(this))
    }

    /// Runs one instruction; false if there was none left.
    ///
    /// # Errors
    /// The code ended in another way than at its end.
    pub(crate) fn step(&mut self) -> Result<bool> {
        self.ask(libc::PTRACE_SINGLESTEP, 0)?;
        let status = self.wait()?;
        if is_stopped_by(status, libc::SIGILL) {
            return Ok(false);
        }
        ensure!(
            is_stopped_by(status, libc::SIGTRAP),
            "the code failed: status {status:#x}"
        );
        Ok(true)
    }

    /// Kills it where it stands, and returns when nothing of it runs any more.
    ///
    /// # Errors
    /// It did not die of that.
    pub(crate) fn kill(mut self) -> Result<()> {
        // SAFETY: our own child, which is stopped and not yet waited for.
        unsafe { libc::kill(self.child, libc::SIGKILL) };
        let status = self.wait()?;
        let is_killed = libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGKILL;
        ensure!(is_killed, "the child was not killed: status {status:#x}");
        Ok(())
    }

    fn ask(&self, request: libc::c_uint, data: libc::c_int) -> Result<()> {
        let nowhere = ptr::null_mut::<libc::c_void>();
        // SAFETY: neither request that is made here reads or writes our memory.
        let done = unsafe { libc::ptrace(request, self.child, nowhere, libc::c_long::from(data)) };
        ensure!(done == 0, "ptrace: {}", io::Error::last_os_error());
        Ok(())
    }

    fn wait(&mut self) -> Result<libc::c_int> {
        let mut status = 0;
        // SAFETY: the status is written to a live place.
        let found = unsafe { libc::waitpid(self.child, &raw mut status, 0) };
        ensure!(
            found == self.child,
            "waitpid: {}",
            io::Error::last_os_error()
        );
        if !libc::WIFSTOPPED(status) {
            self.child = 0; // gone, and its number may be somebody else's
        }
        Ok(status)
    }
}

impl Drop for Stepped {
    fn drop(&mut self) {
        if self.child != 0 {
            // SAFETY: our own child, which is stopped and not yet waited for.
            unsafe {
                libc::kill(self.child, libc::SIGKILL);
                libc::waitpid(self.child, ptr::null_mut(), 0);
            }
        }
    }
}

fn is_stopped_by(status: libc::c_int, signal: libc::c_int) -> bool {
    libc::WIFSTOPPED(status) && libc::WSTOPSIG(status) == signal
}

/// The child. Two different traps, so that the end is told from a step.
fn be_led(code: impl FnOnce()) -> ! {
    let nothing = ptr::null_mut::<libc::c_void>();
    // SAFETY: asks to be led by the parent, which waits for it. The traps stop this process.
    unsafe {
        if libc::ptrace(libc::PTRACE_TRACEME, 0, nothing, nothing) != 0 {
            libc::_exit(NOT_ALLOWED);
        }
        asm!("int3");
        code();
        asm!("ud2", options(noreturn));
    }
}
