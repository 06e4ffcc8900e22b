//! The messages on the tenant's socket: hello, welcome, refused, knock, bye.
//!
//! The socket is `SOCK_SEQPACKET`, so a message is one datagram and is never cut or joined. All
//! have a fixed size and the machine's own byte order, since both ends are on it. Parsing is total:
//! any bytes give a message or a [`MessageError`], and a parsed message is written as the same
//! bytes again, so nothing in a message goes unread. No message names its sender: the arbiter asks
//! the kernel.
//!
//! | message | from | with it |
//! |---|---|---|
//! | [`Hello`] | process, first on each connection | the ledger's descriptor if it comes back |
//! | [`Welcome`] | arbiter | two descriptors: control page, ledger page |
//! | [`Refused`] | arbiter | nothing; it then closes the connection |
//! | knock | process whose page says that turns are followed | nothing |
//! | bye | process that gives up its slot while it lives | nothing |
//!
//! The first eight bytes (magic, kind, size) are the same in every version. So are the two versions
//! behind them in a `Hello`, and `Refused` never changes: these are read before either side knows
//! the other's version. A later version that serves ours too may only append to `Hello`. The layout
//! of messages is in `wire`.

use core::fmt;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::MAX_DEVICES;
use crate::units::{SlotIndex, Uuid};

mod wire;

/// A buffer of this size takes any message of this version and those planned: read with it.
pub const MESSAGE_BYTES_MAX: usize = 1024;

/// Bytes of text in a [`Refused`].
pub const TEXT_BYTES_MAX: usize = 256;

/// Descriptors that come with a [`Welcome`]: the control page, then the ledger page.
pub const WELCOME_DESCRIPTORS: usize = 2;

/// Behaviour of processes without an arbiter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// They run as if Sublet was not there, and are reported.
    Compat,
    /// They are refused by `cuInit`.
    Strict,
}

impl Mode {
    /// As it stands in pages and messages.
    #[must_use]
    pub const fn number(self) -> u32 {
        match self {
            Mode::Compat => 0,
            Mode::Strict => 1,
        }
    }

    /// The mode with that number.
    #[must_use]
    pub const fn of_number(number: u32) -> Option<Mode> {
        match number {
            0 => Some(Mode::Compat),
            1 => Some(Mode::Strict),
            _ => None,
        }
    }
}

/// Message of a process.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(
    clippy::large_enum_variant,
    reason = "there is no allocator to box with, and one lives for a moment"
)]
pub enum ProcessMessage {
    /// The first message on a connection.
    Hello(Hello),
    /// The process's report on its turns has changed. Sent only while the gate is not free.
    Knock,
    /// The process ends this connection. Its slot and its memory stay its own until it is dead: no
    /// message can have them forgotten.
    Bye,
}

/// The arbiter's answer to a [`Hello`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(
    clippy::large_enum_variant,
    reason = "there is no allocator to box with, and one lives for a moment"
)]
pub enum ArbiterMessage {
    /// A slot, and two descriptors beside the message.
    Welcome(Welcome),
    /// No slot, and why.
    Refused(RefusedHello),
}

/// A process asks for a slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hello {
    /// The oldest version the process speaks.
    pub min_version: u16,
    /// The newest version the process speaks.
    pub max_version: u16,
    /// Its slot before the arbiter was restarted; `None` for a process that is new, or that speaks
    /// no version of ours. The ledger's descriptor comes beside the message then.
    pub held: Option<SlotClaim>,
}

/// A process's claim to its slot from before the arbiter was restarted. It proves nothing: the
/// arbiter compares it with the ledger and with NVML.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlotClaim {
    /// Its slot in the ledger.
    pub slot: SlotIndex,
    /// Generation of that slot.
    pub generation: u32,
    /// Bytes that it holds of each device, in the order of the ledger's accounts. A new arbiter
    /// learns that order from here: it went away with the old control page.
    pub claims: [DeviceClaim; MAX_DEVICES],
    /// Bytes that it has pinned of the host's memory.
    pub host_bytes: u64,
}

/// A process's claim to memory of one device.
#[repr(C)]
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
pub struct DeviceClaim {
    /// The device, or all zero where the tenant has none at that place.
    pub uuid: Uuid,
    /// Bytes it holds there, contexts included.
    pub bytes: u64,
}

/// A process has its slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Welcome {
    /// The version of the pages, and of all further messages.
    pub version: u16,
    /// Behaviour of the process without an arbiter.
    pub mode: Mode,
    /// The slot.
    pub slot: SlotIndex,
    /// Generation of that slot.
    pub generation: u32,
    /// The tenant's number.
    pub tenant: u64,
}

/// A process gets no slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RefusedHello {
    /// The reason, for the program.
    pub code: RefusedCode,
    /// The reason, for people.
    pub text: Text,
}

/// Reason why a process gets no slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RefusedCode {
    /// There is no version that both speak.
    Version,
    /// The process belongs to no job and no container that the arbiter knows.
    Stranger,
    /// All slots of the tenant are taken.
    Full,
    /// Its claims cannot be true, or its ledger is not one of ours.
    Claims,
    /// Its bytes were no message.
    Malformed,
    /// The tenant or the arbiter is about to end.
    Closing,
    /// A reason that only a later version knows.
    Later(u16),
}

impl RefusedCode {
    const fn number(self) -> u16 {
        match self {
            RefusedCode::Version => 1,
            RefusedCode::Stranger => 2,
            RefusedCode::Full => 3,
            RefusedCode::Claims => 4,
            RefusedCode::Malformed => 5,
            RefusedCode::Closing => 6,
            RefusedCode::Later(number) => number,
        }
    }

    const fn of_number(number: u16) -> RefusedCode {
        match number {
            1 => RefusedCode::Version,
            2 => RefusedCode::Stranger,
            3 => RefusedCode::Full,
            4 => RefusedCode::Claims,
            5 => RefusedCode::Malformed,
            6 => RefusedCode::Closing,
            later => RefusedCode::Later(later),
        }
    }
}

/// A short text without an allocator.
#[derive(Clone, PartialEq, Eq)]
pub struct Text {
    len: u16,
    bytes: [u8; TEXT_BYTES_MAX],
}

impl Text {
    /// Returns `text`, cut after [`TEXT_BYTES_MAX`] bytes.
    #[must_use]
    pub fn new(text: &str) -> Text {
        let kept = &text[..text.floor_char_boundary(TEXT_BYTES_MAX)];
        let mut bytes = [0; TEXT_BYTES_MAX];
        bytes[..kept.len()].copy_from_slice(kept.as_bytes());
        Text {
            len: kept.len() as u16, // at most 256
            bytes,
        }
    }

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        // Both ways to make a `Text` see to it that this is UTF-8.
        str::from_utf8(&self.bytes[..usize::from(self.len)]).unwrap_or_default()
    }
}

impl fmt::Debug for Text {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_str().fmt(out)
    }
}

/// Reason why bytes are not a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MessageError {
    /// Fewer bytes than every message has.
    Short {
        /// Number of bytes.
        len: usize,
    },
    /// They do not begin as our messages do.
    Magic,
    /// A kind of message that nobody sends in this direction.
    Kind(u16),
    /// Not the size of such a message.
    Size {
        /// Bytes that came.
        len: usize,
        /// Bytes that the message says it has.
        stated: u16,
        /// Bytes that such a message has.
        needed: usize,
    },
    /// A field that cannot have this value.
    Field {
        /// Its name.
        name: &'static str,
        /// Its value.
        value: u64,
    },
    /// A text that is not UTF-8, or is followed by something.
    Text,
}

impl fmt::Display for MessageError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MessageError::Short { len } => write!(out, "{len} bytes are no message"),
            MessageError::Magic => out.write_str("the message is not one of Sublet's"),
            MessageError::Kind(kind) => write!(out, "a message of kind {kind} was not expected"),
            MessageError::Size {
                len,
                stated,
                needed,
            } => write!(
                out,
                "the message has {len} bytes, says {stated}, and such a message has {needed}"
            ),
            MessageError::Field { name, value } => {
                write!(out, "the message's {name} cannot be {value}")
            }
            MessageError::Text => out.write_str("the message's text is malformed"),
        }
    }
}

impl core::error::Error for MessageError {}
