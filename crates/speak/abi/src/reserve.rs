//! Takes memory from a limit, without locks, in processes that may die at any moment.
//!
//! # The words
//! The state of a device, or of the host, is in a few 64-bit words. One *head* holds the total of
//! all processes. Each process has an account of one word, *used*, and one word, *op*, in which it
//! announces its next operation:
//!
//! ```text
//! head   total: 34 bits | slot: 11 | number: 19    the last operation: whose, and its number
//! used   units: 34 bits | number: 30               what a slot has, after operation `number`
//! op     units: 34 bits | less: 1 | 0: 29          what the slot's next operation does
//! ```
//!
//! # An operation
//! 1. The process writes *op*.
//! 2. It replaces *head* by one compare-and-swap: the new total, its slot, and the number
//!    after that in *used*. This is the moment at which the operation happens, for the limit
//!    and for everybody.
//! 3. It brings *used* up to date by another compare-and-swap, and *op* is free again.
//!
//! # Why nothing is lost
//! Between 2 and 3 the account is behind the total, and the process may die there. But the head
//! names the slot and the operation, and *op* describes it, so anybody can do step 3 in the
//! process's place: [`help`]. Everybody does so before replacing a head. So at most one operation,
//! the one that the head names, is ever behind. After a death one call of [`help`] makes the
//! account exact; its memory is then given back ([`reclaim`]). Helping twice changes nothing: the
//! number in *used* has moved on, and the swap fails.
//!
//! # When a number comes round again
//! The head has room for 19 bits of an operation's number, and a container can be frozen in the
//! middle of an operation for a day. A sleeper takes an old head for the present one only if
//! meanwhile the same slot did an exact multiple of 524,288 operations on the device *and* the
//! total is the same to the unit. Its swap then succeeds: against an old limit, if that was lowered
//! meanwhile, and without help for that slot. That slot's account is then behind until the slot
//! does step 3 itself (and for good if it dies just then; the arbiter sees this by a total that is
//! not the sum of its accounts). Nothing else relies on 19 bits: *used* has 30, a helper reads the
//! head once more between *used* and *op*, and a process does its own step 3 whatever the head says
//! by then.
//!
//! # Why the limit holds
//! The limit is read after the head. If it was lowered and the head then changed in any way
//! ([`settle`] changes it by an operation of nothing), a reservation that read the old limit
//! has also read an old head, and its swap fails.
//!
//! # A page that somebody scribbles on
//! Every loop has an end, every sum stays in its bounds, and a slot's number is checked.
//! Wrong numbers then give wrong sums on that tenant's page, and no more than that.

use core::sync::atomic::{AtomicU64, Ordering};

use crate::units::{SlotIndex, Units};

mod refusal;
mod word;

use refusal::ATTEMPTS;
pub use refusal::{Contended, NotCharged, NotReleased, NotReserved};
use word::{Change, Head, Number};

/// A word that processes share. An atomic integer; in tests, one of loom's, or one that
/// kills its thread after so many steps.
pub(crate) trait Word {
    /// Reads, and sees everything done before the swap that wrote the value.
    fn load(&self) -> u64;
    /// Writes; others see it with the next swap.
    fn store(&self, value: u64);
    /// Writes `new` if the word is `current`, else returns its value; reads as `load` does.
    fn compare_exchange(&self, current: u64, new: u64) -> Result<u64, u64>;
}

impl Word for AtomicU64 {
    fn load(&self) -> u64 {
        self.load(Ordering::Acquire)
    }

    fn store(&self, value: u64) {
        self.store(value, Ordering::Relaxed);
    }

    fn compare_exchange(&self, current: u64, new: u64) -> Result<u64, u64> {
        self.compare_exchange(current, new, Ordering::AcqRel, Ordering::Acquire)
    }
}

/// The words of one device, or of the host.
pub(crate) trait Accounts {
    /// Type of the words.
    type Word: Word;
    /// The total, and the last operation.
    fn head(&self) -> &Self::Word;
    /// Returns a slot's announced operation.
    fn op(&self, slot: SlotIndex) -> &Self::Word;
    /// Returns a slot's account.
    fn used(&self, slot: SlotIndex) -> &Self::Word;
}

/// Does step 3 of the operation that `head_word` names, if nobody did yet.
///
/// The order of the reads matters. If the head names the account's next number *after* the account
/// was read, that operation has happened, and *op* describes it as long as the account stays as it
/// was read; and if it does not stay, the swap fails.
fn help<A: Accounts>(accounts: &A, head_word: u64) {
    let head = Head::of_word(head_word);
    let Some(slot) = SlotIndex::new(head.slot) else {
        return; // scribbled
    };
    let used = accounts.used(slot);
    let before = used.load();
    let number = Number::of_word(before).next();
    if number.in_head() != head.number {
        return; // done
    }
    if accounts.head().load() != head_word {
        return; // replaced since, by somebody who helped first
    }
    let change = Change::of_word(accounts.op(slot).load());
    // A failure means that somebody else did it.
    let _ = used.compare_exchange(before, change.applied(before, number));
}

/// An operation of one slot, before step 1.
struct Operation<'a, A: Accounts> {
    accounts: &'a A,
    slot: SlotIndex,
    head_word: u64,
    before: u64,
}

impl<'a, A: Accounts> Operation<'a, A> {
    /// Helps first, for the sake of an arbiter that acts for a dead process or for a dead
    /// predecessor: while the head names the slot, its account is behind, and its last announcement
    /// must not be overwritten.
    fn begin(accounts: &'a A, slot: SlotIndex) -> Operation<'a, A> {
        let head_word = accounts.head().load();
        help(accounts, head_word);
        Operation {
            accounts,
            slot,
            head_word,
            before: accounts.used(slot).load(),
        }
    }

    /// Returns the slot's memory.
    fn held(&self) -> Units {
        Units::of_word(self.before)
    }

    /// The three steps. `next_total` is asked anew for each head that is tried, after that
    /// head was read.
    fn commit<E: From<Contended>>(
        self,
        change: Change,
        next_total: impl Fn(Units) -> Result<Units, E>,
    ) -> Result<(), E> {
        let head = self.accounts.head();
        let mut head_word = self.head_word;
        let number = Number::of_word(self.before).next();
        self.accounts.op(self.slot).store(change.word());
        for _ in 0..ATTEMPTS {
            let total = next_total(Head::of_word(head_word).total)?;
            let next_word = Head::word(total, self.slot, number);
            match head.compare_exchange(head_word, next_word) {
                Ok(_) => {
                    let used = self.accounts.used(self.slot);
                    let after = change.applied(self.before, number);
                    // A failure means that somebody helped.
                    let _ = used.compare_exchange(self.before, after);
                    return Ok(());
                }
                Err(now) => {
                    head_word = now;
                    help(self.accounts, head_word);
                }
            }
        }
        Err(E::from(Contended))
    }
}

/// As [`LedgerPage::reserve`](crate::LedgerPage::reserve).
pub(crate) fn reserve<A: Accounts>(
    accounts: &A,
    slot: SlotIndex,
    amount: Units,
    limit: impl Fn() -> Units,
) -> Result<(), NotReserved> {
    Operation::begin(accounts, slot).commit(Change::More(amount), |total| {
        let limit = limit();
        let sum = total.checked_add(amount).filter(|sum| *sum <= limit);
        sum.ok_or(NotReserved::OverLimit { total, limit })
    })
}

/// As [`LedgerPage::charge`](crate::LedgerPage::charge).
pub(crate) fn charge<A: Accounts>(
    accounts: &A,
    slot: SlotIndex,
    amount: Units,
) -> Result<(), NotCharged> {
    Operation::begin(accounts, slot).commit(Change::More(amount), |total| {
        total.checked_add(amount).ok_or(NotCharged::NoRoom)
    })
}

/// As [`LedgerPage::release`](crate::LedgerPage::release).
pub(crate) fn release<A: Accounts>(
    accounts: &A,
    slot: SlotIndex,
    amount: Units,
) -> Result<(), NotReleased> {
    let operation = Operation::begin(accounts, slot);
    let held = operation.held();
    if amount > held {
        return Err(NotReleased::MoreThanHeld { held });
    }
    operation.commit(Change::Less(amount), |total| {
        Ok(total.saturating_sub(amount))
    })
}

/// As [`LedgerPage::settle`](crate::LedgerPage::settle).
pub(crate) fn settle<A: Accounts>(accounts: &A) -> Result<(), Contended> {
    Operation::begin(accounts, SlotIndex::ARBITER).commit(Change::More(Units::ZERO), Ok)
}

/// As [`LedgerPage::reclaim`](crate::LedgerPage::reclaim).
pub(crate) fn reclaim<A: Accounts>(accounts: &A, slot: SlotIndex) -> Result<Units, Contended> {
    let operation = Operation::begin(accounts, slot);
    let held = operation.held();
    if held > Units::ZERO {
        operation.commit(Change::Less(held), |total| {
            Ok::<_, Contended>(total.saturating_sub(held))
        })?;
    }
    Ok(held)
}

/// As [`LedgerPage::total`](crate::LedgerPage::total).
pub(crate) fn total<A: Accounts>(accounts: &A) -> Units {
    Head::of_word(accounts.head().load()).total
}

/// As [`LedgerPage::held`](crate::LedgerPage::held).
pub(crate) fn held<A: Accounts>(accounts: &A, slot: SlotIndex) -> Units {
    Units::of_word(accounts.used(slot).load())
}

/// The number after a slot's last operation.
pub(crate) fn number<A: Accounts>(accounts: &A, slot: SlotIndex) -> u32 {
    Number::of_word(accounts.used(slot).load()).0
}

#[cfg(test)]
mod interleavings;
#[cfg(test)]
mod interruptions;
#[cfg(test)]
mod rig;
#[cfg(test)]
mod scribbles;
