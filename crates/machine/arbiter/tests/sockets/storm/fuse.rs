//! A file system of one file (FUSE). Its server never answers that the file was closed: `close`
//! waits for it without end. Only the arbiter has to wait; all others are answered.
//!
//! Source of the messages: `include/uapi/linux/fuse.h`, version 7.31.

use std::ffi::CString;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};

/// Its folder, which stands nowhere: nothing is left of it when this process ends.
pub(super) struct Fuse {
    folder: OwnedFd,
    is_over: Arc<AtomicBool>,
    server: Option<JoinHandle<()>>,
}

impl Fuse {
    /// Makes it; none if this machine or user cannot. `victim`: the process that is to wait.
    pub(super) fn new(place: &Path, victim: u32) -> Option<Fuse> {
        std::fs::create_dir(place).ok()?;
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        let device = rustix::fs::open("/dev/fuse", flags, Mode::empty()).ok()?;
        if let Err(error) = mount(&device, place) {
            println!("skipped: files of FUSE, which cannot be mounted: {error}");
            return None;
        }
        let is_over = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&is_over);
        let victim = PathBuf::from(format!("/proc/{victim}/task"));
        let server = thread::spawn(move || {
            while !told.load(Ordering::Relaxed) {
                serve(&device, &victim);
            }
        });
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let folder = rustix::fs::open(place, flags, Mode::empty()).ok()?;
        unmount(place);
        Some(Fuse {
            folder,
            is_over,
            server: Some(server),
        })
    }

    /// Path of its folder for other processes of this user.
    pub(super) fn place(&self) -> String {
        let (own, fd) = (std::process::id(), self.folder.as_raw_fd());
        format!("/proc/{own}/fd/{fd}")
    }
}

impl Drop for Fuse {
    /// With its server's descriptor it is gone, and the kernel tells the waiting processes.
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        let _ = self.server.take().map(JoinHandle::join);
    }
}

fn mount(device: &OwnedFd, place: &Path) -> std::io::Result<()> {
    let device = device.as_raw_fd();
    let options = format!("fd={device},rootmode=40000,user_id=0,group_id=0,allow_other");
    let options = CString::new(options)?;
    let place = CString::new(place.as_os_str().as_bytes())?;
    let flags = libc::MS_NOSUID | libc::MS_NODEV;
    // SAFETY: strings that end with a zero and live through the call.
    let done = unsafe {
        libc::mount(
            c"sublet".as_ptr(),
            place.as_ptr(),
            c"fuse".as_ptr(),
            flags,
            options.as_ptr().cast(),
        )
    };
    match done {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}

/// Removes its place; processes that have it open keep it.
fn unmount(place: &Path) {
    if let Ok(place) = CString::new(place.as_os_str().as_bytes()) {
        // SAFETY: a string that ends with a zero and lives through the call.
        let _ = unsafe { libc::umount2(place.as_ptr(), libc::MNT_DETACH) };
    }
}

const LOOKUP: u32 = 1;
const FORGET: u32 = 2;
const GETATTR: u32 = 3;
const OPEN: u32 = 14;
const RELEASE: u32 = 18;
const FLUSH: u32 = 25;
const INIT: u32 = 26;
const BATCH_FORGET: u32 = 42;

/// Answers requests, until none comes for a moment.
fn serve(device: &OwnedFd, victim: &Path) {
    let moment = Timespec {
        tv_sec: 0,
        tv_nsec: 50_000_000,
    };
    let mut request = vec![0_u8; 1 << 18];
    while matches!(
        poll(&mut [PollFd::new(device, PollFlags::IN)], Some(&moment)),
        Ok(1..)
    ) {
        let n = match rustix::io::read(device, &mut request) {
            Ok(n) if n >= 40 => n,
            _ => return,
        };
        let word = |at: usize| {
            let bytes = request[..n].get(at..at + 4).and_then(|b| b.try_into().ok());
            u32::from_ne_bytes(bytes.unwrap_or_default())
        };
        let (operation, unique, node, thread) = (word(4), &request[8..16], word(16), word(32));
        let answer = match operation {
            FORGET | BATCH_FORGET => continue,
            FLUSH if victim.join(thread.to_string()).exists() => continue,
            INIT => Ok(init()),
            LOOKUP => Ok([&[2, 0, 0, 0, 0, 0, 0, 0][..], &[0; 32], &attributes(2)].concat()),
            GETATTR => Ok([&[0; 16][..], &attributes(node)].concat()),
            OPEN => Ok(vec![0; 16]),
            RELEASE | FLUSH => Ok(Vec::new()),
            _ => Err(libc::ENOSYS),
        };
        let (error, body) = match answer {
            Ok(body) => (0, body),
            Err(error) => (-error, Vec::new()),
        };
        let len = u32::try_from(16 + body.len()).unwrap();
        let reply = [&len.to_ne_bytes()[..], &error.to_ne_bytes(), unique, &body].concat();
        let _ = rustix::io::write(device, &reply);
    }
}

/// `struct fuse_init_out`.
fn init() -> Vec<u8> {
    let mut body = vec![0; 64];
    body[..4].copy_from_slice(&7_u32.to_ne_bytes());
    body[4..8].copy_from_slice(&31_u32.to_ne_bytes());
    body[20..24].copy_from_slice(&4096_u32.to_ne_bytes());
    body
}

/// `struct fuse_attr`: a folder, and in it a file that all may read.
fn attributes(node: u32) -> Vec<u8> {
    let mode: u32 = match node {
        1 => 0o040_755,
        _ => 0o100_644,
    };
    let mut body = vec![0; 88];
    body[..4].copy_from_slice(&node.to_ne_bytes());
    body[60..64].copy_from_slice(&mode.to_ne_bytes());
    body[64..68].copy_from_slice(&1_u32.to_ne_bytes());
    body
}
