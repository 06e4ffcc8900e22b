//! The first contact with the arbiter, and the thread that finds it again.
//!
//! The thread waits for the socket to close and does nothing else while the arbiter lives. When
//! it goes, the process keeps its limits and its account, and a successor is asked for the
//! same slot; what it sends is a new control page, to which one pointer is turned. A ledger
//! other than the one in use is never taken: what this process has is written in that one.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use sublet_abi::message::{Held, WELCOME_DESCRIPTORS};
use sublet_abi::{
    Claim, ControlPage, Hello, MAX_DEVICES, OLDEST, Reply, Request, VERSION, Welcome,
};

use super::socket::{Socket, Watched};
use super::{Link, PATIENCE, Why, pages};
use crate::gate;

/// Between two attempts to find a successor. It starts within milliseconds if it is restarted
/// at once; later attempts are rarer, since a missing file costs a system call each.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(1000);

/// What the arbiter gave.
struct Met {
    socket: Socket,
    welcome: Welcome,
    control: &'static ControlPage,
    ledger: OwnedFd,
}

/// Gets a slot, and starts the thread.
pub(super) fn first_contact(path: &Path) -> Result<&'static Link, Why> {
    let met = meet(path, None)?;
    let ledger = system("map the ledger", pages::ledger(met.ledger.as_fd()))?;
    ledger
        .slot(met.welcome.slot)
        .tell_own_pid(std::process::id());
    let link: &'static Link = Box::leak(Box::new(Link {
        ledger,
        slot: met.welcome.slot,
        generation: AtomicU32::new(met.welcome.generation),
        control: AtomicPtr::new(ptr::from_ref(met.control).cast_mut()),
        turns: Default::default(),
    }));
    gate::follow(met.control);
    let ledger_fd = system("keep the ledger", Watched::new(met.ledger))?;
    let (socket, path) = (met.socket, path.to_path_buf());
    system(
        "start a thread",
        without_signals(|| {
            thread::Builder::new()
                .name("sublet".into())
                .stack_size(256 << 10)
                .spawn(move || stay(link, socket, &ledger_fd, &path))
        }),
    )?;
    Ok(link)
}

/// The thread's whole life. It ends with the process.
fn stay(link: &'static Link, first: Socket, ledger: &Watched, path: &Path) {
    let mut socket = first;
    loop {
        socket.wait_for_end();
        let mut pause = FIRST_PAUSE;
        socket = loop {
            match crate::guard::calm(|| come_back(link, ledger, path)) {
                Some(Ok(socket)) => break socket,
                Some(Err(_)) | None => thread::sleep(pause),
            }
            pause = (pause * 2).min(LONGEST_PAUSE);
        };
    }
}

/// Asks a successor for the slot that this process has.
fn come_back(link: &'static Link, ledger: &Watched, path: &Path) -> Result<Socket, Why> {
    let control = link.control();
    let mut claims = [Claim::default(); MAX_DEVICES];
    for ((index, device), claim) in control.devices().zip(&mut claims) {
        claim.uuid = device.uuid();
        claim.bytes = link.ledger.held(link.slot, index).bytes();
    }
    let fd = ledger
        .get()
        .ok_or_else(|| Why::Nonsense("the program closed our ledger's descriptor".into()))?;
    let held = Held {
        slot: link.slot,
        generation: link.generation.load(Ordering::Relaxed),
        claims,
    };
    // SAFETY: looked at just now; this thread is the only one that closes it.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    let met = meet(path, Some((held, fd)))?;
    if met.welcome.slot != link.slot {
        return Err(Why::Nonsense("another slot than before".into()));
    }
    let sent = system("look at the ledger", Watched::new(met.ledger))?;
    if !sent.is_same(ledger) {
        return Err(Why::Nonsense("another ledger than before".into()));
    }
    let order = |page: &'static ControlPage| page.devices().map(|(_, device)| device.uuid());
    if !order(control).eq(order(met.control).take(control.devices().count())) {
        return Err(Why::Nonsense("other devices than before".into()));
    }
    link.generation
        .store(met.welcome.generation, Ordering::Relaxed);
    link.switch_to(met.control);
    Ok(met.socket)
}

/// Says hello and reads the answer.
fn meet(path: &Path, held: Option<(Held, BorrowedFd<'_>)>) -> Result<Met, Why> {
    let socket = system("connect", Socket::connect(path, PATIENCE))?;
    let (held, fd) = held.unzip();
    let hello = Hello {
        min_version: OLDEST,
        max_version: VERSION,
        held,
    };
    let fd = fd.map(|fd| std::os::fd::AsRawFd::as_raw_fd(&fd));
    system(
        "say hello",
        socket.send(&Request::Hello(hello).encode(), fd),
    )?;
    let received = system("wait for the answer", socket.receive())?;
    if received.bytes.is_empty() {
        return Err(Why::Nonsense("it closed the connection".into()));
    }
    let reply = Reply::parse(&received.bytes).map_err(|why| Why::Nonsense(why.to_string()))?;
    let welcome = match reply {
        Reply::Welcome(welcome) => welcome,
        Reply::Refused(refused) => {
            return Err(Why::Refused {
                code: refused.code,
                text: refused.text.as_str().into(),
            });
        }
    };
    let descriptors: Result<[OwnedFd; WELCOME_DESCRIPTORS], _> = received.descriptors.try_into();
    let Ok([control, ledger]) = descriptors else {
        return Err(Why::Nonsense("a welcome without its two pages".into()));
    };
    let control = system("map the control page", pages::control(control.as_fd()))?;
    Ok(Met {
        socket,
        welcome,
        control,
        ledger,
    })
}

fn system<T>(doing: &'static str, result: io::Result<T>) -> Result<T, Why> {
    result.map_err(|cause| Why::System { doing, cause })
}

/// A thread inherits the mask of signals of the one that starts it. The program's signals are
/// for the program's threads.
fn without_signals<T>(start: impl FnOnce() -> T) -> T {
    // SAFETY: an all-zero set is valid, and both are written before they are read.
    let (mut all, mut before): (libc::sigset_t, libc::sigset_t) =
        unsafe { (std::mem::zeroed(), std::mem::zeroed()) };
    // SAFETY: both sets are live.
    unsafe {
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
    }
    let result = start();
    // SAFETY: the set that was there before.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, ptr::null_mut()) };
    result
}
