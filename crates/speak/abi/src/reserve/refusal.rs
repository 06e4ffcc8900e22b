//! Reasons why an operation on a ledger was not done. Each kind of operation has its own type, with
//! no case that cannot happen to it.

use core::fmt;

use crate::units::Units;

/// Number of attempts of an operation against faster ones. Each failure means that another process
/// succeeded: with a processor of 512 threads that all do nothing else, the odds of so many are
/// below 10⁻⁵⁰. The bound ends the loop on a page that somebody scribbles on, after some
/// milliseconds.
pub(super) const ATTEMPTS: u32 = 1 << 16;

/// An operation was outrun 65,536 times and gave up, with nothing changed. Processes
/// that keep to the protocol do not bring that about; somebody scribbles on the page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Contended;

/// Reason why a reservation was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotReserved {
    /// The limit does not allow it.
    OverLimit {
        /// Total at that moment.
        total: Units,
        /// The limit at that moment.
        limit: Units,
    },
    /// As [`Contended`].
    Contended,
}

/// Reason why memory was not given back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotReleased {
    /// The slot does not have so much: somebody counts wrong.
    MoreThanHeld {
        /// Its memory.
        held: Units,
    },
    /// As [`Contended`].
    Contended,
}

/// Reason why memory that exists was not charged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotCharged {
    /// The sum is beyond [`Units::MAX`].
    NoRoom,
    /// As [`Contended`].
    Contended,
}

impl fmt::Display for Contended {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            out,
            "the ledger changed {ATTEMPTS} times during one operation"
        )
    }
}

impl fmt::Display for NotReserved {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NotReserved::OverLimit { total, limit } => {
                let (total, limit) = (total.bytes(), limit.bytes());
                write!(out, "{total} bytes are taken of a limit of {limit}")
            }
            NotReserved::Contended => Contended.fmt(out),
        }
    }
}

impl fmt::Display for NotReleased {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NotReleased::MoreThanHeld { held } => {
                write!(out, "the slot has no more than {} bytes", held.bytes())
            }
            NotReleased::Contended => Contended.fmt(out),
        }
    }
}

impl fmt::Display for NotCharged {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NotCharged::NoRoom => out.write_str("the sum is beyond what a ledger can hold"),
            NotCharged::Contended => Contended.fmt(out),
        }
    }
}

impl core::error::Error for Contended {}
impl core::error::Error for NotReserved {}
impl core::error::Error for NotReleased {}
impl core::error::Error for NotCharged {}

impl From<Contended> for NotReserved {
    fn from(_: Contended) -> NotReserved {
        NotReserved::Contended
    }
}

impl From<Contended> for NotReleased {
    fn from(_: Contended) -> NotReleased {
        NotReleased::Contended
    }
}

impl From<Contended> for NotCharged {
    fn from(_: Contended) -> NotCharged {
        NotCharged::Contended
    }
}
