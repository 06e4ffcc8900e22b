//! Curves over the share of the cluster that has arrived, averaged as FGD's authors average
//! theirs: at each whole percent the mean over the arrivals that round to it.

/// One percent of arrival.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CurvePoint {
    /// GPU share asked by all that arrived, in percent of the cluster.
    pub arrived_percent: u32,
    /// GPU share in use, in percent of the cluster.
    pub allocated_percent: f64,
    /// GPU share that typical pods cannot use, in percent of the cluster.
    pub fragmented_percent: f64,
}

/// Allocated and fragmented share by arrived share.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Curve {
    /// A point for each percent from 0 on.
    pub points: Vec<CurvePoint>,
}

impl Curve {
    /// The point at that percent.
    #[must_use]
    pub fn at(&self, percent: u32) -> Option<&CurvePoint> {
        let found = self
            .points
            .binary_search_by_key(&percent, |p| p.arrived_percent);
        self.points.get(found.ok()?)
    }
}

/// Sums of the observations at one percent.
#[derive(Debug, Clone, Copy, Default)]
struct Sums {
    count: u32,
    allocated: f64,
    fragmented: f64,
}

/// Notes the state after each arrival.
#[derive(Debug)]
pub(crate) struct Recorder {
    capacity: u64,
    arrived: u64,
    sums: Vec<Sums>,
    /// Share that had arrived before anything was noted, in percent.
    first: u32,
}

impl Recorder {
    pub(crate) fn new(capacity_milli: u64) -> Recorder {
        Recorder {
            capacity: capacity_milli,
            arrived: 0,
            sums: Vec::new(),
            first: 0,
        }
    }

    /// So much runs from the start, and so much is fragmented then. An empty cluster has
    /// nothing to note: averages are over arrivals.
    pub(crate) fn started(&mut self, allocated: u64, fragmented: f64) {
        if allocated > 0 {
            self.arrived(allocated, allocated, fragmented);
            self.first = self.arrived_percent();
        }
    }

    /// A pod came that asked so much; afterwards so much is in use and fragmented. All in
    /// thousandths of a card.
    pub(crate) fn arrived(&mut self, asked: u64, allocated: u64, fragmented: f64) {
        self.arrived += asked;
        let at = self.arrived_percent() as usize;
        if self.sums.len() <= at {
            self.sums.resize(at + 1, Sums::default());
        }
        let of_all = |milli: f64| {
            let percent = 100.0 * milli / self.capacity.max(1) as f64;
            (percent * 100.0).round() / 100.0
        };
        let sums = &mut self.sums[at];
        sums.count += 1;
        sums.allocated += of_all(allocated as f64);
        sums.fragmented += of_all(fragmented);
    }

    /// The share that has arrived, in percent of the cluster, halves to even.
    pub(crate) fn arrived_percent(&self) -> u32 {
        let whole = self.capacity.max(1);
        let (quotient, rest) = (self.arrived * 100 / whole, self.arrived * 100 % whole);
        let up = match (rest * 2).cmp(&whole) {
            std::cmp::Ordering::Less => false,
            std::cmp::Ordering::Equal => quotient % 2 == 1,
            std::cmp::Ordering::Greater => true,
        };
        u32::try_from(quotient + u64::from(up)).unwrap_or(u32::MAX)
    }

    /// The means. A percent that no arrival rounds to has the mean of its neighbours, if they
    /// have any.
    pub(crate) fn curve(&self) -> Curve {
        let mut points = Vec::new();
        for at in self.first as usize..self.sums.len() {
            let mut over = self.sums[at];
            if over.count == 0 {
                let from = at.saturating_sub(1);
                let to = (at + 2).min(self.sums.len());
                for near in &self.sums[from..to] {
                    over.count += near.count;
                    over.allocated += near.allocated;
                    over.fragmented += near.fragmented;
                }
            }
            if over.count > 0 {
                points.push(CurvePoint {
                    arrived_percent: at as u32,
                    allocated_percent: over.allocated / f64::from(over.count),
                    fragmented_percent: over.fragmented / f64::from(over.count),
                });
            }
        }
        Curve { points }
    }
}

#[cfg(test)]
mod tests;
