//! Readers of fetches that go on at once: threads that wait for sources.

use crate::event::Urgency;

/// The most readers of all fetches that somebody waits for. Servers of NFS 4.1 keep some hundred
/// requests of a client at a time.
const READERS: usize = 256;
/// Readers of a fetch that nobody waits for yet: it disturbs nobody.
const AHEAD: usize = 8;

/// Readers of each fetch under way, in their order. Those that somebody waits for share them equally;
/// none is left without.
#[must_use]
pub fn share_readers(urgencies: &[Urgency]) -> Vec<usize> {
    let urgent = urgencies.iter().filter(|urgency| **urgency == Urgency::Now);
    let each = (READERS / urgent.count().max(1)).max(1);
    let of = |urgency: &Urgency| match urgency {
        Urgency::Now => each,
        Urgency::Ahead => AHEAD,
    };
    urgencies.iter().map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_waits_has_an_equal_share_and_nobody_none() {
        use Urgency::{Ahead, Now};
        assert_eq!(share_readers(&[]), [0; 0]);
        assert_eq!(share_readers(&[Now]), [256]);
        assert_eq!(share_readers(&[Now, Ahead, Now]), [128, 8, 128]);
        assert_eq!(share_readers(&[Ahead]), [8]);
        assert_eq!(share_readers(&[Now; 1_000])[999], 1);
    }
}
