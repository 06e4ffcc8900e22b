//! A limiter of launches like HAMi-core's: a bucket of tokens, one token for each thread block.
//!
//! It is modelled on the known behaviour of HAMi-core (and of vcuda-controller before it), to
//! compare with. A launch takes as many tokens as it has blocks, and waits while there are none. A
//! thread refills the bucket eight times a second. The amount grows while the process's
//! utilisation, as NVML reports it, is below the limit, and shrinks while it is above. The length
//! of a kernel does not matter, and graphs are not limited.

/// The time between two refills, in milliseconds.
pub(crate) const REFILL_MS: u64 = 120;
/// Time between two looks of a waiting launch, in milliseconds.
pub(crate) const WAIT_MS: u64 = 10;

/// The bucket.
#[derive(Debug)]
pub(crate) struct TokenBucket {
    /// The limit, in percent of the card.
    limit: i64,
    multiprocessors: i64,
    /// The most that the bucket, and one refill, can hold.
    most: i64,
    threads: i64,
    share: i64,
    tokens: i64,
}

impl TokenBucket {
    /// A bucket for a card with so many multiprocessors of so many threads each.
    pub(crate) fn new(limit: i64, multiprocessors: i64, threads: i64) -> Self {
        Self {
            limit,
            multiprocessors,
            most: multiprocessors * threads * 32,
            threads,
            share: 0,
            tokens: 0,
        }
    }

    /// Takes the tokens of a launch; false if it must wait.
    pub(crate) fn take(&mut self, blocks: i64) -> bool {
        let is_open = self.tokens >= 0;
        if is_open {
            self.tokens -= blocks;
        }
        is_open
    }

    /// Refills the bucket after a time in which the process was `busy` percent of the card.
    pub(crate) fn refill(&mut self, busy: i64) {
        let distance = (self.limit - busy).abs().max(5);
        let mut step = self.multiprocessors * self.multiprocessors * self.threads * distance / 2560;
        if distance > self.limit / 2 {
            step = step * distance * 2 / (self.limit + 1);
        }
        let step = if busy <= self.limit { step } else { -step };
        self.share = (self.share + step).clamp(0, self.most);
        self.tokens = (self.tokens + self.share).min(self.most);
    }
}

#[cfg(test)]
mod tests {
    use super::TokenBucket;

    #[test]
    fn a_launch_waits_for_tokens_and_the_share_follows_the_utilisation() {
        let mut bucket = TokenBucket::new(30, 100, 2048);
        assert!(
            bucket.take(1 << 30),
            "an empty bucket lets one go into debt"
        );
        assert!(!bucket.take(1));
        // The utilisation is 30 below the limit: 100² × 2048 × 30 / 2560 = 240,000, times 30 × 2 /
        // 31.
        bucket.refill(0);
        assert_eq!(
            (bucket.share, bucket.tokens),
            (464_516, 464_516 - (1 << 30))
        );
        bucket.refill(90);
        assert_eq!(bucket.share, 0, "far above: nothing");
        for _ in 0..1000 {
            bucket.refill(30);
        }
        assert_eq!((bucket.share, bucket.tokens), (6_553_600, 6_553_600));
        assert!(bucket.take(1));
    }
}
