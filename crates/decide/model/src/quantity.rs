//! Quantities that cannot be mixed up.
//!
//! Everything the engine adds or compares has a type of its own, so a count of cards is
//! never taken for an amount of memory. There is no `Sub`: taking more than is there must
//! be answered by the caller, not by a panic or a wrap-around.

use std::fmt;

/// Device memory in MiB, the engine's only unit of memory.
///
/// Never above [`MiB::MAX`], so that the same amount in bytes fits a `u64`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct MiB(u64);

impl MiB {
    /// No memory.
    pub const ZERO: MiB = MiB(0);
    /// The largest amount with a number of bytes that fits a `u64`.
    pub const MAX: MiB = MiB(u64::MAX >> 20);

    /// `value` MiB, or `None` above [`MiB::MAX`].
    #[must_use]
    pub const fn new(value: u64) -> Option<MiB> {
        if value <= MiB::MAX.0 {
            Some(MiB(value))
        } else {
            None
        }
    }

    /// The number of MiB.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }

    /// True for no memory at all.
    #[must_use]
    pub const fn is_zero(self) -> bool {
        self.0 == 0
    }

    /// The sum, never above [`MiB::MAX`]: a sum that large is refused by every card anyway.
    #[must_use]
    pub const fn plus(self, other: MiB) -> MiB {
        let sum = self.0 + other.0; // both are below 2^44
        if sum <= MiB::MAX.0 {
            MiB(sum)
        } else {
            MiB::MAX
        }
    }

    /// So many thousandths of it, rounded down.
    #[must_use]
    pub const fn share_of(self, share: Milli) -> MiB {
        // Below 2^44 times 2^16.
        let share = self.0 * share.get() as u64 / 1000;
        if share <= MiB::MAX.0 {
            MiB(share)
        } else {
            MiB::MAX
        }
    }

    /// The amount left after taking `other`, or `None` if there is less than that.
    #[must_use]
    pub const fn checked_sub(self, other: MiB) -> Option<MiB> {
        match self.0.checked_sub(other.0) {
            Some(rest) => Some(MiB(rest)),
            None => None,
        }
    }

    /// The amount left after taking `other`; nothing if there is less than that.
    #[must_use]
    pub const fn saturating_sub(self, other: MiB) -> MiB {
        MiB(self.0.saturating_sub(other.0))
    }
}

impl From<u32> for MiB {
    fn from(value: u32) -> MiB {
        MiB(u64::from(value))
    }
}

impl std::iter::Sum for MiB {
    fn sum<I: Iterator<Item = MiB>>(amounts: I) -> MiB {
        amounts.fold(MiB::ZERO, MiB::plus)
    }
}

impl fmt::Display for MiB {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} MiB", self.0)
    }
}

/// Device memory in GiB, as a user or a coarse device plugin counts it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct GiB(u64);

impl GiB {
    /// `value` GiB, or `None` where the same amount in bytes would not fit a `u64`.
    #[must_use]
    pub const fn new(value: u64) -> Option<GiB> {
        if value <= MiB::MAX.0 >> 10 {
            Some(GiB(value))
        } else {
            None
        }
    }

    /// The number of GiB.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The whole GiB that fit in `amount`, as a device plugin counting in GiB reports them.
    #[must_use]
    pub const fn whole_in(amount: MiB) -> GiB {
        GiB(amount.0 >> 10)
    }
}

impl From<GiB> for MiB {
    fn from(amount: GiB) -> MiB {
        MiB(amount.0 << 10)
    }
}

/// Bytes of memory, as NVML and CUDA report a device's and Kubernetes a machine's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Bytes(u64);

impl Bytes {
    /// None.
    pub const ZERO: Bytes = Bytes(0);

    /// `value` bytes.
    #[must_use]
    pub const fn new(value: u64) -> Bytes {
        Bytes(value)
    }

    /// The number of bytes.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The sum; one that would overflow stays at the most that 64 bits hold.
    #[must_use]
    pub const fn plus(self, other: Bytes) -> Bytes {
        Bytes(self.0.saturating_add(other.0))
    }

    /// The amount left after taking `other`; nothing if there is less than that.
    #[must_use]
    pub const fn saturating_sub(self, other: Bytes) -> Bytes {
        Bytes(self.0.saturating_sub(other.0))
    }

    /// The whole MiB that fit: a card's last part of a MiB is never granted.
    #[must_use]
    pub const fn whole_mib(self) -> MiB {
        MiB(self.0 >> 20)
    }
}

impl From<MiB> for Bytes {
    fn from(amount: MiB) -> Bytes {
        Bytes(amount.0 << 20)
    }
}

/// Thousandths of a CPU core, as Kubernetes counts them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct MilliCpu(u64);

impl MilliCpu {
    /// No CPU.
    pub const ZERO: MilliCpu = MilliCpu(0);

    /// `value` thousandths of a core.
    #[must_use]
    pub const fn new(value: u64) -> MilliCpu {
        MilliCpu(value)
    }

    /// The number of thousandths.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The sum; one that would overflow stays at the most that 64 bits hold.
    #[must_use]
    pub const fn plus(self, other: MilliCpu) -> MilliCpu {
        MilliCpu(self.0.saturating_add(other.0))
    }

    /// The amount left after taking `other`; nothing if there is less than that.
    #[must_use]
    pub const fn saturating_sub(self, other: MilliCpu) -> MilliCpu {
        MilliCpu(self.0.saturating_sub(other.0))
    }
}

/// As kubectl prints it: in cores, or in thousandths where that is no whole number.
impl fmt::Display for MilliCpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.0 / 1000, self.0 % 1000) {
            (cores, 0) => write!(f, "{cores} CPU"),
            _ => write!(f, "{}m CPU", self.0),
        }
    }
}

/// Thousandths of one GPU: of its compute time, or the larger of its shares of both. One pod asks
/// or has at most [`Milli::WHOLE`]; a sum may be more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Milli(u16);

impl Milli {
    /// Nothing of a GPU.
    pub const ZERO: Milli = Milli(0);
    /// A whole GPU.
    pub const WHOLE: Milli = Milli(1000);

    /// `value` thousandths, or `None` above a whole GPU.
    #[must_use]
    pub const fn new(value: u16) -> Option<Milli> {
        if value <= Milli::WHOLE.0 {
            Some(Milli(value))
        } else {
            None
        }
    }

    /// A sum of so many thousandths; one that would overflow stays at the most that 16 bits hold.
    #[must_use]
    pub fn sum_of(thousandths: u64) -> Milli {
        Milli(u16::try_from(thousandths).unwrap_or(u16::MAX))
    }

    /// The share that `part` is of `whole`, rounded down; a whole of nothing is in full use.
    #[must_use]
    pub const fn share(part: MiB, whole: MiB) -> Milli {
        if part.0 >= whole.0 {
            return Milli::WHOLE;
        }
        // `part < whole < 2^44`, so the product stays below 2^54 and the quotient below 1000.
        Milli((part.0 * 1000 / whole.0) as u16)
    }

    /// The same rounded up: the amount that a request of `part` takes away from others.
    #[must_use]
    pub const fn share_up(part: MiB, whole: MiB) -> Milli {
        if part.0 >= whole.0 {
            return Milli::WHOLE;
        }
        Milli((part.0 * 1000).div_ceil(whole.0) as u16)
    }

    /// The number of thousandths.
    #[must_use]
    pub const fn get(self) -> u16 {
        self.0
    }

    /// The sum; one that would overflow stays at the most that 16 bits hold.
    #[must_use]
    pub const fn plus(self, other: Milli) -> Milli {
        Milli(self.0.saturating_add(other.0))
    }

    /// The amount left after taking `other`; nothing if there is less than that.
    #[must_use]
    pub const fn saturating_sub(self, other: Milli) -> Milli {
        Milli(self.0.saturating_sub(other.0))
    }
}

/// In percent, with one decimal where that is not 0.
impl fmt::Display for Milli {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.0 / 10, self.0 % 10) {
            (percent, 0) => write!(f, "{percent} %"),
            (percent, tenth) => write!(f, "{percent}.{tenth} %"),
        }
    }
}

/// A number of cards.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Count(u32);

impl Count {
    /// None.
    pub const ZERO: Count = Count(0);

    /// `value` cards.
    #[must_use]
    pub const fn new(value: u32) -> Count {
        Count(value)
    }

    /// The number.
    #[must_use]
    pub const fn get(self) -> u32 {
        self.0
    }

    /// The sum; a sum that would overflow stays at the largest count, which no node has.
    #[must_use]
    pub const fn plus(self, other: Count) -> Count {
        Count(self.0.saturating_add(other.0))
    }

    /// The number left after taking `other`; zero if there are fewer.
    #[must_use]
    pub const fn saturating_sub(self, other: Count) -> Count {
        Count(self.0.saturating_sub(other.0))
    }
}

impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} GPU{}", self.0, if self.0 == 1 { "" } else { "s" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gib_is_1024_mib_and_the_rest_of_a_card_is_not_granted() {
        assert_eq!(MiB::from(GiB::new(3).unwrap()), MiB::from(3072));
        assert_eq!(GiB::whole_in(MiB::from(16_276)).get(), 15);
        assert_eq!(Bytes::new((1 << 21) - 1).whole_mib(), MiB::from(1));
        assert_eq!(Bytes::from(MiB::MAX).whole_mib(), MiB::MAX);
    }

    #[test]
    fn limits_answer_instead_of_wrapping() {
        assert_eq!(MiB::new(u64::MAX), None);
        assert_eq!(GiB::new(u64::MAX >> 20), None);
        assert_eq!(MiB::MAX.plus(MiB::MAX), MiB::MAX);
        assert_eq!(MiB::from(1).checked_sub(MiB::from(2)), None);
        assert_eq!(Milli::new(1001), None);
        assert_eq!(Count::new(u32::MAX).plus(Count::new(1)).get(), u32::MAX);
    }

    #[test]
    fn a_share_is_at_most_whole() {
        assert_eq!(Milli::share(MiB::from(1), MiB::from(3)).get(), 333);
        assert_eq!(Milli::share_up(MiB::from(1), MiB::from(3)).get(), 334);
        assert_eq!(Milli::share_up(MiB::from(2), MiB::from(4)).get(), 500);
        assert_eq!(Milli::share(MiB::from(0), MiB::from(0)), Milli::WHOLE);
        assert_eq!(Milli::share(MiB::MAX, MiB::from(3)), Milli::WHOLE);
    }
}
