//! GPU share in use, as steps over time.

/// The share of the cluster in use, from the first arrival to the last departure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Usage {
    /// From when on, in seconds, and how many thousandths of cards. Never empty.
    steps: Vec<(u64, u64)>,
    end: u64,
    capacity: u64,
}

impl Usage {
    /// Nothing is in use from `begin` on, of so many thousandths of cards.
    pub(super) fn new(begin: u64, capacity: u64) -> Usage {
        Usage {
            steps: vec![(begin, 0)],
            end: begin,
            capacity,
        }
    }

    /// From now on so many thousandths of cards are in use.
    pub(super) fn note(&mut self, now: u64, milli: u64) {
        match self.steps.last_mut() {
            Some(last) if last.0 == now => last.1 = milli,
            Some(last) if last.1 == milli => {}
            _ => self.steps.push((now, milli)),
        }
    }

    /// It ends here.
    pub(super) fn close(&mut self, end: u64) {
        self.end = end;
    }

    /// Percent of the cluster's GPUs in use, the mean over the whole time.
    #[must_use]
    pub fn mean_percent(&self) -> f64 {
        self.parts_percent(1)[0]
    }

    /// The same in each of so many equal parts of the time.
    #[must_use]
    pub fn parts_percent(&self, parts: usize) -> Vec<f64> {
        let begin = self.steps[0].0;
        let length = (self.end - begin) as f64 / parts as f64;
        let mut sums = vec![0.0; parts];
        for (at, &(from, milli)) in self.steps.iter().enumerate() {
            let to = self.steps.get(at + 1).map_or(self.end, |next| next.0);
            let (from, to) = ((from - begin) as f64, (to - begin) as f64);
            // The parts that this step touches.
            let mut part = (from / length) as usize;
            while part < parts && part as f64 * length < to {
                let (left, right) = (part as f64 * length, (part + 1) as f64 * length);
                sums[part] += milli as f64 * (to.min(right) - from.max(left)).max(0.0);
                part += 1;
            }
        }
        let all = length * self.capacity as f64;
        let percent = |sum: f64| if all > 0.0 { 100.0 * sum / all } else { 0.0 };
        sums.into_iter().map(percent).collect()
    }
}
