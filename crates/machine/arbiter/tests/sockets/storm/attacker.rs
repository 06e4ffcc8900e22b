//! One attacker: this executable started again, as another user if possible. It has no parent,
//! so it belongs to no job.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use fastrand::Rng;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use rustix::net::{RecvFlags, Shutdown, SocketType};

use super::arbiter::Struck;
use super::door::{self, Door};
use super::plan::{N_CONNECTIONS, Plan, Step};
use super::things::Maker;

const ORDER: &str = "SUBLET_TEST_ATTACK";

/// The attacker's user, if this process may choose.
const USER: u32 = 65_534;

/// A started one.
pub(super) struct Attacker {
    shell: Child,
    steps: u64,
    /// Number of its steps: eight bytes.
    count: File,
}

impl Attacker {
    pub(super) fn start(struck: &Struck, seed: u64, number: u64, steps: u64) -> Attacker {
        let count = struck.base().join(format!("attacker-{number}"));
        std::fs::write(&count, 0_u64.to_ne_bytes()).unwrap();
        let (base, fuse) = (struck.base().display(), struck.fuse().unwrap_or_default());
        let order = format!("{seed} {number} {steps} {base} {fuse}");
        // The shell ends at once, and its child is the child of the first process then. It ends when
        // its input does.
        let shell = Command::new("sh")
            .args(["-c", "exec 3<&0; \"$0\" \"$@\" <&3 & exec 3<&-"])
            .arg(std::env::current_exe().unwrap())
            .args(["--exact", "storm::attacker::an_attacker", "--nocapture"])
            .env(ORDER, order)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        Attacker {
            shell,
            steps,
            count: File::open(count).unwrap(),
        }
    }

    pub(super) fn step(&self) -> u64 {
        let mut bytes = [0; 8];
        let read = self.count.read_exact_at(&mut bytes, 0);
        read.map_or(0, |()| u64::from_ne_bytes(bytes))
    }

    pub(super) fn is_done(&self) -> bool {
        self.step() >= self.steps
    }
}

impl Drop for Attacker {
    fn drop(&mut self) {
        drop(self.shell.stdin.take());
        let _ = self.shell.wait();
    }
}

#[test]
fn an_attacker() {
    let Ok(order) = std::env::var(ORDER) else {
        // Nobody is struck: an attacker that finds no door does nothing.
        let nowhere = tempfile::tempdir().unwrap();
        let mut hands = Hands::new(nowhere.path(), None);
        let mut plan = Plan::new(1, 1);
        (0..500).for_each(|_| hands.perform(&plan.next_step()));
        assert!(hands.connections.iter().all(Option::is_none));
        return;
    };
    let mut words = order.split(' ');
    let mut number = || words.next().and_then(|word| word.parse().ok()).unwrap();
    let (seed, own, steps): (u64, u64, u64) = (number(), number(), number());
    let base = PathBuf::from(words.next().unwrap());
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let fuse = words
        .next()
        .map(|place| rustix::fs::open(place, flags, Mode::empty()));
    let fuse = fuse.and_then(Result::ok);
    let count = File::options()
        .write(true)
        .open(base.join(format!("attacker-{own}")));
    let count = count.unwrap();
    be_nobody();
    let mut plan = Plan::new(seed, own);
    let mut hands = Hands::new(&base, fuse);
    for step in 0..steps {
        if is_alone(Some(Duration::ZERO)) {
            return;
        }
        hands.perform(&plan.next_step());
        count.write_all_at(&(step + 1).to_ne_bytes(), 0).unwrap();
    }
    // What lingers does so while its other side is there.
    is_alone(None);
}

/// Becomes another user, if this one is root.
pub(crate) fn be_nobody() {
    if rustix::process::geteuid().is_root() {
        // SAFETY: plain numbers; glibc changes them for all threads.
        let done = unsafe {
            libc::setresgid(USER, USER, USER) == 0 && libc::setresuid(USER, USER, USER) == 0
        };
        assert!(done, "this process stays root");
    }
}

fn is_nobody() -> bool {
    rustix::process::geteuid().as_raw() == USER
}

/// Checks whether the starter is gone, for any reason, or goes within that time.
pub(crate) fn is_alone(time: Option<Duration>) -> bool {
    let stdin = std::io::stdin();
    let mut one = [PollFd::new(&stdin, PollFlags::IN)];
    let time = time.map(|time| Timespec::try_from(time).unwrap());
    !matches!(poll(&mut one, time.as_ref()), Ok(0))
}

/// An attacker's possessions.
struct Hands {
    /// First, so that the other sides of lingering files go first, and nothing here waits for
    /// them.
    maker: Maker,
    base: PathBuf,
    connections: [Option<OwnedFd>; N_CONNECTIONS],
    /// The ledger that it was handed last.
    ledger: Option<OwnedFd>,
}

impl Hands {
    fn new(base: &Path, fuse: Option<OwnedFd>) -> Hands {
        Hands {
            base: base.to_owned(),
            connections: [const { None }; N_CONNECTIONS],
            ledger: None,
            maker: Maker::new(base, fuse),
        }
    }

    fn perform(&mut self, step: &Step) {
        match step {
            // Whoever is the arbiter's user may change any job by its commands.
            Step::Connect {
                at,
                door: Door::Admin,
            } if !is_nobody() => self.connections[*at] = None,
            Step::Connect { at, door } => self.connections[*at] = door.connect(&self.base),
            Step::Leave { at } => self.connections[*at] = None,
            Step::Say { at, bytes, beside } => {
                let things: Vec<OwnedFd> =
                    (beside.iter().filter_map(|thing| self.maker.make(*thing))).collect();
                let beside: Vec<_> = things.iter().map(AsFd::as_fd).collect();
                let socket = self.connections[*at].as_ref();
                if !socket.is_some_and(|socket| door::send(socket, bytes, &beside)) {
                    unlinger(&things);
                }
                leave(things);
            }
            Step::Flood { at, bytes, times } => {
                if let Some(socket) = &self.connections[*at] {
                    let mut times = 0..*times;
                    while times.next().is_some() && door::send(socket, bytes, &[]) {}
                }
            }
            Step::Shut { at, writing } => {
                if let Some(socket) = &self.connections[*at] {
                    let half = match writing {
                        true => Shutdown::Write,
                        false => Shutdown::Read,
                    };
                    let _ = rustix::net::shutdown(socket, half);
                }
            }
            Step::Read { at } => {
                if let Some(socket) = &self.connections[*at] {
                    let (_, mut pages) = door::receive(socket, RecvFlags::DONTWAIT);
                    // The second one is the ledger.
                    if let (Some(ledger), 1) = (pages.pop(), pages.len()) {
                        self.ledger = Some(ledger);
                    }
                }
            }
            Step::Scribble { seed } => self.scribble(*seed),
        }
    }

    fn scribble(&self, seed: u64) {
        let Some(ledger) = &self.ledger else { return };
        let len = rustix::fs::fstat(ledger).map_or(0, |about| about.st_size as u64);
        let mut random = Rng::with_seed(seed);
        for _ in 0..64 {
            let word = random.u64(..) >> random.u8(..64);
            let at = random.u64(..len.max(8) / 8) * 8;
            let _ = rustix::io::pwrite(ledger, &word.to_ne_bytes(), at);
        }
    }
}

/// Closes them in a thread aside: if the arbiter was faster, this process closes them last, and
/// must not wait for itself.
fn leave(things: Vec<OwnedFd>) {
    if !things.is_empty() {
        let aside = std::thread::Builder::new().stack_size(64 << 10);
        let _ = aside.spawn(move || drop(things));
    }
}

/// No process took these: this process closes them last, and they need not linger.
pub(super) fn unlinger(things: &[OwnedFd]) {
    for thing in things {
        let _ = rustix::net::sockopt::set_socket_linger(thing, None);
        if rustix::net::sockopt::socket_type(thing) == Ok(SocketType::DGRAM) {
            let (_, inside) = door::receive(thing, RecvFlags::DONTWAIT);
            unlinger(&inside);
        }
    }
}
