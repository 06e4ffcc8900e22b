//! The attackers' steps, drawn from a seed: pure, so the same seed gives the same steps, whatever
//! their results.

use fastrand::Rng;
use sublet_abi::message::{DeviceClaim, SlotClaim};
use sublet_abi::{Hello, MAX_DEVICES, OLDEST, ProcessMessage, SlotIndex, VERSION};

use super::door::{DESCRIPTORS_MAX, Door};

/// Number of attacking processes.
pub(super) const N_ATTACKERS: u64 = 4;

/// Connections of an attacker at one time. The arbiter lets in four of one process.
pub(super) const N_CONNECTIONS: usize = 8;

/// One thing that an attacker does.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Step {
    /// A new connection in that place, in place of the one that was there.
    Connect { at: usize, door: Door },
    /// A message, and descriptors beside it.
    Say {
        at: usize,
        bytes: Vec<u8>,
        beside: Vec<Thing>,
    },
    /// Send the same message this number of times.
    Flood {
        at: usize,
        bytes: Vec<u8>,
        times: u16,
    },
    /// Half of a connection is closed.
    Shut { at: usize, writing: bool },
    /// Reads the available bytes.
    Read { at: usize },
    /// A connection is closed, read or not.
    Leave { at: usize },
    /// Random words go to a ledger that the arbiter handed out.
    Scribble { seed: u64 },
}

/// A descriptor that is handed over.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Thing {
    /// A TCP socket that waits a minute for its other side when it is closed.
    Lingering,
    /// A file whose server never answers that it was closed.
    Fuse,
    /// The reading end of a full pipe.
    Pipe,
    Eventfd,
    Folder,
    Null,
    /// Memory of that size and with those bytes.
    Memory {
        size: usize,
        is_sealed: bool,
        seed: u64,
    },
    /// A connection to the arbiter itself.
    Own,
    /// A socket in which others wait that linger.
    Nested,
}

/// Source of steps.
pub(super) struct Plan {
    random: Rng,
    doors: [Option<Door>; N_CONNECTIONS],
}

impl Plan {
    pub(super) fn new(seed: u64, number: u64) -> Plan {
        Plan {
            random: Rng::with_seed(seed ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15)),
            doors: [None; N_CONNECTIONS],
        }
    }

    pub(super) fn next_step(&mut self) -> Step {
        let at = self.random.usize(..N_CONNECTIONS);
        let Some(door) = self.doors[at] else {
            let door = Door::ALL[self.random.usize(..Door::ALL.len())];
            self.doors[at] = Some(door);
            return Step::Connect { at, door };
        };
        match self.random.u8(..32) {
            0..20 => {
                let bytes = self.words(door);
                let beside = self.things();
                Step::Say { at, bytes, beside }
            }
            20 => {
                let bytes = self.words(door);
                let times = self.random.u16(..500);
                Step::Flood { at, bytes, times }
            }
            21..23 => {
                let writing = self.random.bool();
                Step::Shut { at, writing }
            }
            23..26 => Step::Read { at },
            26..28 => {
                let seed = self.random.u64(..);
                Step::Scribble { seed }
            }
            _ => {
                self.doors[at] = None;
                Step::Leave { at }
            }
        }
    }

    /// A message for such a door; sometimes one for other doors.
    fn words(&mut self, door: Door) -> Vec<u8> {
        match (door, self.random.u8(..10)) {
            (_, 0) => self.noise(2_000),
            (Door::Admin, _) | (_, 1) => self.line(),
            _ => self.message(),
        }
    }

    fn noise(&mut self, most: usize) -> Vec<u8> {
        let len = self.random.usize(..most);
        std::iter::repeat_with(|| self.random.u8(..))
            .take(len)
            .collect()
    }

    /// A message of a process, whole, or with one byte changed, or cut off.
    fn message(&mut self) -> Vec<u8> {
        let mut bytes = match self.random.u8(..6) {
            0 => ProcessMessage::Knock.encode().to_vec(),
            1 => ProcessMessage::Bye.encode().to_vec(),
            n => {
                let hello = Hello {
                    min_version: OLDEST,
                    max_version: VERSION,
                    held: (n > 3).then(|| self.claim()),
                };
                ProcessMessage::Hello(hello).encode().to_vec()
            }
        };
        match self.random.u8(..6) {
            0 => {
                let at = self.random.usize(..bytes.len());
                bytes[at] = self.random.u8(..);
            }
            1 => bytes.truncate(self.random.usize(..bytes.len())),
            _ => {}
        }
        bytes
    }

    fn claim(&mut self) -> SlotClaim {
        let mut claims = [DeviceClaim::default(); MAX_DEVICES];
        // The card of the tests has this UUID; it is all zero.
        claims[0].bytes = self.random.u64(..) >> self.random.u8(..64);
        claims[1].uuid = [self.random.u8(..2); 16];
        let slot = SlotIndex::of_process(self.random.u32(1..=1024));
        SlotClaim {
            slot: slot.expect("from 1 to 1024"),
            generation: self.random.u32(..3),
            claims,
            host_bytes: self.random.u64(..) >> self.random.u8(..64),
        }
    }

    /// A line on `admin.sock`, or some of one, or one that never ends.
    fn line(&mut self) -> Vec<u8> {
        let number = match self.random.u8(..3) {
            0 => self.random.u64(..8),
            1 => u64::MAX - self.random.u64(..2),
            _ => self.random.u64(..),
        };
        let mib = self.random.u16(..200);
        let mut line = match self.random.u8(..12) {
            0 | 1 => r#"{"kind":"hello"}"#.to_owned(),
            2 => r#"{"kind":"list"}"#.to_owned(),
            3 => format!(r#"{{"kind":"watch","intervalMs":{number}}}"#),
            4 => format!(r#"{{"kind":"history","id":{number}}}"#),
            5 => format!(r#"{{"kind":"limit","id":{number},"memory":"{mib}MiB"}}"#),
            6 => format!(r#"{{"kind":"limitCompute","id":{number},"compute":"{mib}%"}}"#),
            7 => r#"{"kind":"shutdown"}"#.to_owned(),
            8 | 9 => {
                let wait = self.random.bool();
                format!(r#"{{"kind":"submit","name":"x","memory":"{mib}MiB","wait":{wait}}}"#)
            }
            10 => format!(
                r#"{{"kind":"resume","submit":{{"name":"x","wait":true}},"placed":{{"id":{number},"gpus":[{{"index":0,"uuid":"GPU-00000000-0000-0000-0000-000000000000","limitMiB":{mib}}}],"dir":"/"}}}}"#
            ),
            _ => "[".repeat(usize::from(mib) * 400),
        };
        match self.random.u8(..8) {
            0 => line.truncate(self.random.usize(..=line.len())),
            1 => {}
            _ => line.push('\n'),
        }
        line.into_bytes()
    }

    /// Mostly nothing, sometimes one, seldom as many as a message can carry.
    fn things(&mut self) -> Vec<Thing> {
        let n = match self.random.u8(..40) {
            0..28 => 0,
            28..38 => self.random.usize(1..5),
            38 => self.random.usize(5..DESCRIPTORS_MAX),
            _ => DESCRIPTORS_MAX,
        };
        if n > 4 {
            // So many only of one sort that costs little to make.
            let one = [Thing::Null, Thing::Eventfd, Thing::Folder][self.random.usize(..3)];
            return vec![one; n];
        }
        (0..n).map(|_| self.thing()).collect()
    }

    fn thing(&mut self) -> Thing {
        match self.random.u8(..16) {
            0 => Thing::Lingering,
            1 => Thing::Fuse,
            2 => Thing::Nested,
            3 => Thing::Own,
            4 => Thing::Pipe,
            5 => Thing::Eventfd,
            6 => Thing::Folder,
            7 => Thing::Null,
            _ => {
                // The size of a ledger, that of a control page, nothing, and far too much.
                let sizes = [657_472, 1_216, 0, 1 << 40];
                Thing::Memory {
                    size: sizes[self.random.usize(..sizes.len())],
                    is_sealed: self.random.u8(..4) > 0,
                    seed: self.random.u64(..),
                }
            }
        }
    }
}
