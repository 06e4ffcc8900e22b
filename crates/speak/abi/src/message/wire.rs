//! Layout of messages in bytes.
//!
//! It is separate from the messages, so that nobody can hold a message that was not checked: the
//! types declared here leave this file only as a [`ProcessMessage`], an [`ArbiterMessage`] or a
//! [`Datagram`].

use core::ops::Deref;

use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

use super::{
    ArbiterMessage, DeviceClaim, Hello, MESSAGE_BYTES_MAX, MessageError, Mode, ProcessMessage,
    RefusedCode, RefusedHello, SlotClaim, TEXT_BYTES_MAX, Text, Welcome,
};
use crate::units::SlotIndex;
use crate::{MAX_DEVICES, OLDEST, VERSION, agree};

const MAGIC: u32 = u32::from_ne_bytes(*b"Subl");
const HELLO: u16 = 1;
const WELCOME: u16 = 2;
const REFUSED: u16 = 3;
const BYE: u16 = 4;
const KNOCK: u16 = 5;

/// The bit of [`HelloBytes::flags`] that says that slot, generation and claims mean something.
const COMES_BACK: u32 = 1;

#[repr(C)]
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
struct Head {
    magic: u32,
    kind: u16,
    /// Size of the whole message in bytes.
    size: u16,
}

/// The part of a hello that is the same in every version.
#[repr(C)]
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
struct HelloStart {
    head: Head,
    min_version: u16,
    max_version: u16,
}

#[repr(C)]
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
struct HelloBytes {
    start: HelloStart,
    flags: u32,
    slot: u32,
    generation: u32,
    claims: [DeviceClaim; MAX_DEVICES],
    host_bytes: u64,
}

#[repr(C)]
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
struct WelcomeBytes {
    head: Head,
    version: u16,
    reserved: u16,
    mode: u32,
    slot: u32,
    generation: u32,
    tenant: u64,
}

#[repr(C)]
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
struct RefusedBytes {
    head: Head,
    code: u16,
    text_len: u16,
    text: [u8; TEXT_BYTES_MAX],
}

const _: () = {
    assert!(size_of::<HelloStart>() == 12);
    assert!(size_of::<HelloBytes>() == 416);
    assert!(size_of::<WelcomeBytes>() == 32);
    assert!(size_of::<RefusedBytes>() == 268);
    assert!(size_of::<HelloBytes>() <= MESSAGE_BYTES_MAX);
};

/// A message as it is sent.
#[derive(Clone)]
pub struct Datagram {
    len: usize,
    bytes: [u8; size_of::<HelloBytes>()], // the longest
}

impl Deref for Datagram {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl Datagram {
    fn of(message: &(impl IntoBytes + Immutable)) -> Datagram {
        let mut bytes = [0; size_of::<HelloBytes>()];
        let written = message.as_bytes();
        bytes[..written.len()].copy_from_slice(written);
        Datagram {
            len: written.len(),
            bytes,
        }
    }
}

fn head(kind: u16, size: usize) -> Head {
    Head {
        magic: MAGIC,
        kind,
        size: size as u16, // at most 416
    }
}

impl ProcessMessage {
    /// As it is sent.
    #[must_use]
    pub fn encode(&self) -> Datagram {
        match self {
            ProcessMessage::Hello(hello) => Datagram::of(&HelloBytes::of(hello)),
            ProcessMessage::Knock => Datagram::of(&head(KNOCK, size_of::<Head>())),
            ProcessMessage::Bye => Datagram::of(&head(BYE, size_of::<Head>())),
        }
    }

    /// The message that a process sent.
    ///
    /// # Errors
    /// If the bytes are none.
    pub fn parse(bytes: &[u8]) -> Result<ProcessMessage, MessageError> {
        let head = read_head(bytes)?;
        match head.kind {
            HELLO => HelloBytes::read(bytes, head).map(ProcessMessage::Hello),
            KNOCK => exactly::<Head>(bytes, head).map(|_| ProcessMessage::Knock),
            BYE => exactly::<Head>(bytes, head).map(|_| ProcessMessage::Bye),
            other => Err(MessageError::Kind(other)),
        }
    }
}

impl ArbiterMessage {
    /// As it is sent.
    #[must_use]
    pub fn encode(&self) -> Datagram {
        match self {
            ArbiterMessage::Welcome(welcome) => Datagram::of(&WelcomeBytes::of(welcome)),
            ArbiterMessage::Refused(refused) => Datagram::of(&RefusedBytes::of(refused)),
        }
    }

    /// The message that the arbiter sent.
    ///
    /// # Errors
    /// If the bytes are none.
    pub fn parse(bytes: &[u8]) -> Result<ArbiterMessage, MessageError> {
        let head = read_head(bytes)?;
        match head.kind {
            WELCOME => exactly::<WelcomeBytes>(bytes, head)?
                .parse()
                .map(ArbiterMessage::Welcome),
            REFUSED => exactly::<RefusedBytes>(bytes, head)?
                .parse()
                .map(ArbiterMessage::Refused),
            other => Err(MessageError::Kind(other)),
        }
    }
}

impl HelloBytes {
    fn of(hello: &Hello) -> HelloBytes {
        let mut bytes = HelloBytes::new_zeroed();
        bytes.start = HelloStart {
            head: head(HELLO, size_of::<HelloBytes>()),
            min_version: hello.min_version,
            max_version: hello.max_version,
        };
        if let Some(held) = &hello.held {
            bytes.flags = COMES_BACK;
            bytes.slot = held.slot.get();
            bytes.generation = held.generation;
            bytes.claims = held.claims;
            bytes.host_bytes = held.host_bytes;
        }
        bytes
    }

    /// Reads no more than the versions of a process that speaks none of ours: it will be refused.
    /// One that speaks a later version too may have set flags and appended fields that are not
    /// known here; they are left alone, and it is served in our version.
    fn read(bytes: &[u8], head: Head) -> Result<Hello, MessageError> {
        let Ok((start, _)) = HelloStart::read_from_prefix(bytes) else {
            return Err(wrong_size::<HelloBytes>(bytes, head));
        };
        let (min_version, max_version) = (start.min_version, start.max_version);
        if min_version > max_version {
            return Err(field("oldest version", min_version));
        }
        let is_later = max_version > VERSION;
        let held = match HelloBytes::read_from_prefix(bytes) {
            _ if agree(min_version, max_version).is_none() => None,
            Ok((hello, tail)) if tail.is_empty() || is_later => hello.held(is_later)?,
            _ => return Err(wrong_size::<HelloBytes>(bytes, head)),
        };
        Ok(Hello {
            min_version,
            max_version,
            held,
        })
    }

    fn held(&self, is_later: bool) -> Result<Option<SlotClaim>, MessageError> {
        if self.flags & !COMES_BACK != 0 && !is_later {
            return Err(field("flags", self.flags));
        }
        if self.flags & COMES_BACK == 0 {
            return self.check_nothing_held().map(|()| None);
        }
        let slot = SlotIndex::of_process(self.slot);
        Ok(Some(SlotClaim {
            slot: slot.ok_or_else(|| field("slot", self.slot))?,
            generation: self.generation,
            claims: self.claims,
            host_bytes: self.host_bytes,
        }))
    }

    fn check_nothing_held(&self) -> Result<(), MessageError> {
        if self.slot != 0 {
            return Err(field("slot", self.slot));
        }
        if self.generation != 0 {
            return Err(field("generation", self.generation));
        }
        match self
            .claims
            .iter()
            .find(|claim| **claim != DeviceClaim::default())
        {
            Some(claim) => Err(field("claim", claim.bytes)),
            None if self.host_bytes != 0 => Err(field("claim", self.host_bytes)),
            None => Ok(()),
        }
    }
}

impl WelcomeBytes {
    fn of(welcome: &Welcome) -> WelcomeBytes {
        WelcomeBytes {
            head: head(WELCOME, size_of::<WelcomeBytes>()),
            version: welcome.version,
            reserved: 0,
            mode: welcome.mode.number(),
            slot: welcome.slot.get(),
            generation: welcome.generation,
            tenant: welcome.tenant,
        }
    }

    fn parse(&self) -> Result<Welcome, MessageError> {
        if !(OLDEST..=VERSION).contains(&self.version) {
            return Err(field("version", self.version));
        }
        if self.reserved != 0 {
            return Err(field("reserved field", self.reserved));
        }
        let mode = Mode::of_number(self.mode).ok_or_else(|| field("mode", self.mode))?;
        let slot = SlotIndex::of_process(self.slot);
        Ok(Welcome {
            version: self.version,
            mode,
            slot: slot.ok_or_else(|| field("slot", self.slot))?,
            generation: self.generation,
            tenant: self.tenant,
        })
    }
}

impl RefusedBytes {
    fn of(refused: &RefusedHello) -> RefusedBytes {
        RefusedBytes {
            head: head(REFUSED, size_of::<RefusedBytes>()),
            code: refused.code.number(),
            text_len: refused.text.len,
            text: refused.text.bytes,
        }
    }

    fn parse(&self) -> Result<RefusedHello, MessageError> {
        let Some((text, rest)) = self.text.split_at_checked(usize::from(self.text_len)) else {
            return Err(field("length of the text", self.text_len));
        };
        if str::from_utf8(text).is_err() || rest.iter().any(|byte| *byte != 0) {
            return Err(MessageError::Text);
        }
        Ok(RefusedHello {
            code: RefusedCode::of_number(self.code),
            text: Text {
                len: self.text_len,
                bytes: self.text,
            },
        })
    }
}

fn read_head(bytes: &[u8]) -> Result<Head, MessageError> {
    let Ok((head, _)) = Head::read_from_prefix(bytes) else {
        return Err(MessageError::Short { len: bytes.len() });
    };
    if head.magic != MAGIC {
        return Err(MessageError::Magic);
    }
    if usize::from(head.size) != bytes.len() {
        return Err(wrong_size::<Head>(bytes, head));
    }
    Ok(head)
}

fn exactly<T: FromBytes>(bytes: &[u8], head: Head) -> Result<T, MessageError> {
    T::read_from_bytes(bytes).map_err(|_| wrong_size::<T>(bytes, head))
}

fn wrong_size<T>(bytes: &[u8], head: Head) -> MessageError {
    MessageError::Size {
        len: bytes.len(),
        stated: head.size,
        needed: size_of::<T>(),
    }
}

fn field(name: &'static str, value: impl Into<u64>) -> MessageError {
    MessageError::Field {
        name,
        value: value.into(),
    }
}

#[cfg(test)]
mod tests;
