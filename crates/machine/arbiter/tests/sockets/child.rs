//! A process of a job: this executable started again, with a socket to connect to and
//! commands on its standard input.

use std::ffi::OsString;
use std::io::{BufRead, BufReader, IoSlice, IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use rustix::mm::{MapFlags, ProtFlags};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};
use sublet_abi::message::{DeviceClaim, SlotClaim};
use sublet_abi::{
    ArbiterMessage, ControlPage, DeviceIndex, Hello, LedgerPage, MAX_DEVICES, OLDEST,
    ProcessMessage, Units, VERSION, Welcome,
};

pub(crate) use self::turns::now_us;
use crate::world::PATIENCE;

mod turns;

const SOCKET: &str = "SUBLET_TEST_CHILD";
const MARK: &str = "child: ";

/// A started child.
pub(crate) struct Process {
    child: Child,
    stdin: Option<ChildStdin>,
    lines: Receiver<String>,
}

/// The test that a child runs.
const TEST: &str = "child::a_child_does_what_it_is_told";

fn command(socket: &Path, test: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", test, "--nocapture"])
        .env(SOCKET, socket)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    command
}

impl Process {
    pub(crate) fn start(socket: &Path) -> Process {
        Process::start_as(socket, TEST)
    }

    /// A child that is this test, which serves like the one below.
    pub(crate) fn start_as(socket: &Path, test: &str) -> Process {
        Process::of(command(socket, test))
    }

    /// Starts a child outside any job: its parent has ended.
    pub(crate) fn start_orphan(socket: &Path) -> Process {
        let own = command(socket, TEST);
        let mut shell = Command::new("sh");
        // The shell's background process would read from /dev/null; file 3 keeps ours.
        shell
            .args(["-c", "exec 3<&0; \"$0\" \"$@\" <&3 & exec 3<&-"])
            .arg(own.get_program())
            .args(own.get_args())
            .env(SOCKET, socket)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        let mut process = Process::of(shell);
        process.child.wait().unwrap();
        process
    }

    fn of(mut command: Command) -> Process {
        let mut child = command.spawn().unwrap();
        let stdin = child.stdin.take();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let (sender, lines) = channel();
        thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                // The test harness says things of its own before it, on the same line too.
                if let Some((_, said)) = line.split_once(MARK) {
                    let _ = sender.send(said.to_owned());
                }
            }
        });
        let process = Process {
            child,
            stdin,
            lines,
        };
        assert_eq!(process.line(), "up");
        process
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn line(&self) -> String {
        self.lines.recv_timeout(PATIENCE).unwrap()
    }

    /// Does one thing and returns its result.
    pub(crate) fn tell(&mut self, what: &str) -> String {
        self.say(what);
        self.line()
    }

    pub(crate) fn say(&mut self, what: &str) {
        let stdin = self.stdin.as_mut().unwrap();
        writeln!(stdin, "{what}").unwrap();
    }

    /// Ends it as nothing can be caught.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // An orphan ends when its input does.
        drop(self.stdin.take());
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_child_does_what_it_is_told() {
    match socket() {
        Some(socket) => Guest::default().serve(Path::new(&socket)),
        None => {
            let mut child = Process::start(Path::new("/nowhere/tenant.sock"));
            assert!(child.tell("hello").starts_with("no connection"));
            assert_eq!(child.tell("dance"), "what?");
        }
    }
}

/// The child's possessions.
#[derive(Default)]
struct Guest {
    socket: Option<OwnedFd>,
    pages: Option<(OwnedFd, OwnedFd)>,
    welcome: Option<Welcome>,
    turns: turns::Turns,
}

/// The socket of a child; nothing in a test that runs by itself.
pub(crate) fn socket() -> Option<OsString> {
    std::env::var_os(SOCKET)
}

pub(crate) fn say(text: &str) {
    println!("{MARK}{text}");
}

impl Guest {
    fn serve(&mut self, socket: &Path) {
        say("up");
        // Unbuffered: after exec, the next command must still be there.
        let mut line = Vec::new();
        let mut byte = [0];
        while matches!(rustix::io::read(std::io::stdin(), &mut byte), Ok(1)) {
            if byte[0] != b'\n' {
                line.push(byte[0]);
                continue;
            }
            let text = String::from_utf8(std::mem::take(&mut line)).unwrap();
            let words: Vec<&str> = text.split(' ').collect();
            let number = |at: usize| {
                words
                    .get(at)
                    .and_then(|word| word.parse().ok())
                    .unwrap_or(0)
            };
            match words[0] {
                "hello" => self.connect(socket, None),
                "again" => {
                    let held = self.held();
                    self.connect(socket, Some(held));
                }
                "reserve" => self.reserve(number(1), number(2).into()),
                "release" => self.release(number(1), number(2).into()),
                "read" => self.read_driver(number(1)),
                "pin" => self.pin(number(1).into()),
                "unpin" => self.unpin(number(1).into()),
                "close" => {
                    self.socket = None;
                    say("closed");
                }
                "bye" => self.send(&ProcessMessage::Bye.encode(), &[]),
                "lost" => self.wait_for_end(),
                "thread" => start_thread(),
                "control" => self.write_control(),
                "exec" => {
                    let error = command(socket, TEST)
                        .stdin(Stdio::inherit())
                        .stdout(Stdio::inherit())
                        .exec();
                    say(&error.to_string());
                }
                _ => self.turn(&words),
            }
        }
    }

    fn connect(&mut self, path: &Path, held: Option<SlotClaim>) {
        let kind = SocketType::SEQPACKET;
        let flags = SocketFlags::CLOEXEC;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, kind, flags, None).unwrap();
        let address = SocketAddrUnix::new(path).unwrap();
        if let Err(error) = rustix::net::connect(&socket, &address) {
            return say(&format!("no connection: {error}"));
        }
        let hello = Hello {
            min_version: OLDEST,
            max_version: VERSION,
            held,
        };
        let ledger = self
            .pages
            .as_ref()
            .map(|(_, ledger)| ledger.try_clone().unwrap());
        let ledger = ledger.filter(|_| hello.held.is_some());
        let beside: Vec<_> = ledger.iter().map(AsFd::as_fd).collect();
        self.socket = Some(socket);
        self.send(&ProcessMessage::Hello(hello).encode(), &beside);
        self.take_welcome();
    }

    fn send(&mut self, bytes: &[u8], beside: &[std::os::fd::BorrowedFd<'_>]) {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut descriptors = SendAncillaryBuffer::new(&mut space);
        if !beside.is_empty() {
            assert!(descriptors.push(SendAncillaryMessage::ScmRights(beside)));
        }
        let socket = self.socket.as_ref().unwrap();
        let sent = rustix::net::sendmsg(
            socket,
            &[IoSlice::new(bytes)],
            &mut descriptors,
            SendFlags::NOSIGNAL,
        );
        if bytes[..] == ProcessMessage::Bye.encode()[..] {
            say(&format!("{:?}", sent.is_ok()));
        }
    }

    fn take_welcome(&mut self) {
        let mut bytes = [0; 1024];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
        let mut beside = RecvAncillaryBuffer::new(&mut space);
        let received = rustix::net::recvmsg(
            self.socket.as_ref().unwrap(),
            &mut [IoSliceMut::new(&mut bytes)],
            &mut beside,
            RecvFlags::CMSG_CLOEXEC,
        );
        let n = received.map_or(0, |message| message.bytes);
        let mut descriptors = Vec::new();
        for message in beside.drain() {
            if let RecvAncillaryMessage::ScmRights(fds) = message {
                descriptors.extend(fds);
            }
        }
        match ArbiterMessage::parse(&bytes[..n]) {
            Ok(ArbiterMessage::Welcome(welcome)) => {
                let ledger = descriptors.pop().unwrap();
                let control = descriptors.pop().unwrap();
                self.pages = Some((control, ledger));
                self.map();
                say(&format!(
                    "slot {} generation {} tenant {}",
                    welcome.slot.get(),
                    welcome.generation,
                    welcome.tenant
                ));
                self.welcome = Some(welcome);
            }
            Ok(ArbiterMessage::Refused(refused)) => {
                say(&format!(
                    "refused {:?}: {}",
                    refused.code,
                    refused.text.as_str()
                ));
            }
            Err(_) => say("nothing"),
        }
    }

    /// Both pages, mapped for good: as the interposer has them.
    fn map(&self) -> (&'static ControlPage, &'static LedgerPage) {
        let (control, ledger) = self.pages.as_ref().unwrap();
        let map = |fd: &OwnedFd, prot| {
            let len = rustix::fs::fstat(fd).unwrap().st_size as usize;
            let (place, flags) = (std::ptr::null_mut(), MapFlags::SHARED);
            // SAFETY: a new mapping where the kernel likes, which is never unmapped.
            let page = unsafe { rustix::mm::mmap(place, len, prot, flags, fd, 0) };
            (page.unwrap(), len)
        };
        let both = ProtFlags::READ | ProtFlags::WRITE;
        let (control, control_len) = map(control, ProtFlags::READ);
        let (ledger, ledger_len) = map(ledger, both);
        // SAFETY: mapped for good, of that size, and sealed by the arbiter.
        unsafe {
            (
                ControlPage::from_ptr(control.cast(), control_len).unwrap(),
                LedgerPage::from_ptr(ledger.cast(), ledger_len).unwrap(),
            )
        }
    }

    fn reserve(&self, device: u32, mib: u64) {
        let (control, ledger) = self.map();
        let device = DeviceIndex::new(device).unwrap();
        let amount = Units::taken_by(mib << 20).unwrap();
        let slot = self.welcome.unwrap().slot;
        let done = ledger.reserve(slot, device, amount, || control.device(device).limit());
        match done {
            Ok(()) => say("reserved"),
            Err(error) => {
                ledger.note_refusal(device, mib << 20, control.heartbeat_ms());
                say(&format!("not reserved: {error}"));
            }
        }
    }

    fn release(&self, device: u32, mib: u64) {
        let (_, ledger) = self.map();
        let device = DeviceIndex::new(device).unwrap();
        let amount = Units::taken_by(mib << 20).unwrap();
        let done = ledger.release(self.welcome.unwrap().slot, device, amount);
        say(if done.is_ok() {
            "released"
        } else {
            "not released"
        });
    }

    /// Has the arbiter read the driver, and waits until it has.
    fn read_driver(&mut self, device: u32) {
        let (_, ledger) = self.map();
        let device = DeviceIndex::new(device).unwrap();
        let slot = ledger.slot(self.welcome.unwrap().slot);
        let number = slot.ask_reading(device);
        self.send(&ProcessMessage::Knock.encode(), &[]);
        let began = Instant::now();
        while slot.awaited_reading(device).is_some() && began.elapsed() < PATIENCE {
            thread::sleep(Duration::from_micros(100));
        }
        let finished = slot.finished_reading(device).load(Ordering::Acquire);
        say(if finished == number {
            "read"
        } else {
            "not read"
        });
    }

    fn pin(&self, mib: u64) {
        let (control, ledger) = self.map();
        let (amount, slot) = (
            Units::taken_by(mib << 20).unwrap(),
            self.welcome.unwrap().slot,
        );
        let (host, limit) = (ledger.host(), || control.host().limit());
        match host.reserve(slot, amount, limit) {
            Ok(()) => say("pinned"),
            Err(error) => {
                host.note_refusal(mib << 20, control.heartbeat_ms());
                say(&format!("not pinned: {error}"));
            }
        }
    }

    fn unpin(&self, mib: u64) {
        let (_, ledger) = self.map();
        let amount = Units::taken_by(mib << 20).unwrap();
        let done = ledger.host().release(self.welcome.unwrap().slot, amount);
        say(if done.is_ok() {
            "unpinned"
        } else {
            "not unpinned"
        });
    }

    fn held(&self) -> SlotClaim {
        let (control, ledger) = self.map();
        let welcome = self.welcome.unwrap();
        let mut claims = [DeviceClaim::default(); MAX_DEVICES];
        for ((device, page), claim) in control.devices().zip(&mut claims) {
            claim.uuid = page.uuid();
            claim.bytes = ledger.held(welcome.slot, device).bytes();
        }
        SlotClaim {
            slot: welcome.slot,
            generation: welcome.generation,
            claims,
            host_bytes: ledger.host().held(welcome.slot).bytes(),
        }
    }

    fn wait_for_end(&mut self) {
        let mut bytes = [0; 16];
        let socket = self.socket.as_ref().unwrap();
        let n = rustix::net::recv(socket, &mut bytes, RecvFlags::empty());
        say(&format!("lost {:?}", n.map(|(_, n)| n).unwrap_or(0)));
    }

    /// Tries every way to change the control page, and says the kernel's answer.
    fn write_control(&self) {
        let (control, _) = self.pages.as_ref().unwrap();
        let both = ProtFlags::READ | ProtFlags::WRITE;
        let len = ControlPage::BYTES;
        // SAFETY: a new mapping where the kernel likes, if it were allowed.
        let mapped = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                len,
                both,
                MapFlags::SHARED,
                control,
                0,
            )
        };
        let (page, _) = self.map();
        let address = std::ptr::from_ref(page).cast_mut().cast();
        // SAFETY: a mapping of ours, of that length; nothing is stored to it.
        let raised =
            unsafe { rustix::mm::mprotect(address, len, rustix::mm::MprotectFlags::WRITE) };
        let ways = [
            ("map", mapped.is_ok()),
            ("mprotect", raised.is_ok()),
            ("write", rustix::io::pwrite(control, b"x", 0).is_ok()),
            ("truncate", rustix::fs::ftruncate(control, 0).is_ok()),
            ("reopen", reopen(control)),
        ];
        let open: Vec<&str> = ways
            .iter()
            .filter(|(_, ok)| *ok)
            .map(|(way, _)| *way)
            .collect();
        say(&format!("ways to write: {open:?}"));
    }
}

/// A thread such as the interposer has, until the program ends or calls exec.
fn start_thread() {
    let (tell, told) = channel();
    let thread = thread::Builder::new().name("sublet".to_owned());
    let started = thread.spawn(move || {
        tell.send(()).unwrap();
        loop {
            thread::park();
        }
    });
    started.unwrap();
    told.recv().unwrap();
    say("started");
}

/// A descriptor of its own to the same memory, and a mapping of that.
fn reopen(control: &OwnedFd) -> bool {
    use std::os::fd::AsRawFd;
    let path = format!("/proc/self/fd/{}", control.as_raw_fd());
    let Ok(again) = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open(path)
    else {
        return false;
    };
    let both = ProtFlags::READ | ProtFlags::WRITE;
    let len = ControlPage::BYTES;
    // SAFETY: a new mapping where the kernel likes, if it were allowed.
    unsafe { rustix::mm::mmap(std::ptr::null_mut(), len, both, MapFlags::SHARED, &again, 0) }
        .is_ok()
}
