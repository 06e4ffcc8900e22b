//! The GPU time that a tenant's jobs have got until each moment. A run that is lost takes its time
//! back.

/// GPU time over time: a curve of straight pieces, which falls where a run is lost. Thousandths of
/// cards, and seconds.
#[derive(Debug, Clone, Default)]
pub(super) struct Served {
    /// By time; the first is the first start.
    points: Vec<Point>,
}

/// From this moment on.
#[derive(Debug, Clone, Copy, Default)]
struct Point {
    at: u64,
    /// Service that the jobs have got until then.
    got: u128,
    /// Cards in use.
    milli: u64,
}

impl Point {
    fn got_at(self, at: u64) -> u128 {
        self.got + u128::from(self.milli) * u128::from(at - self.at)
    }
}

impl Served {
    /// So much more is in use from then on.
    pub(super) fn start(&mut self, at: u64, milli: u64) {
        self.now(at).milli += milli;
    }

    /// So much less.
    pub(super) fn stop(&mut self, at: u64, milli: u64) {
        self.now(at).milli -= milli;
    }

    /// So much that was got is lost at the moment of the last change.
    pub(super) fn take_back(&mut self, got: u128) {
        if let Some(last) = self.points.last_mut() {
            last.got -= got;
        }
    }

    /// The point of this moment, which is not before the last one.
    fn now(&mut self, at: u64) -> &mut Point {
        let last = self.points.last().copied().unwrap_or_default();
        if self.points.is_empty() || last.at < at {
            let got = last.got_at(at);
            self.points.push(Point { at, got, ..last });
        }
        let last = self.points.len() - 1;
        &mut self.points[last]
    }

    /// The most that this curve ever was below another one.
    pub(super) fn lag(&self, other: &Served) -> u128 {
        // Between two points of either both are straight, so the most is at a point.
        let mut moments: Vec<u64> = self.points.iter().map(|point| point.at).collect();
        moments.extend(other.points.iter().map(|point| point.at));
        moments.sort_unstable();
        let (mut here, mut there) = (self.cursor(), other.cursor());
        let lag = |at: u64| there(at).saturating_sub(here(at));
        moments.into_iter().map(lag).max().unwrap_or(0)
    }

    /// Service until each of several moments, which must be asked in their order. Of two points
    /// of one moment the last counts.
    fn cursor(&self) -> impl FnMut(u64) -> u128 {
        let mut next = 0;
        move |at| {
            while self.points.get(next).is_some_and(|point| point.at <= at) {
                next += 1;
            }
            let point = next.checked_sub(1).map(|last| self.points[last]);
            point.map_or(0, |point| point.got_at(at))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A curve of changes: the moment, and cards that start or stop.
    fn curve(changes: &[(u64, i64)]) -> Served {
        let mut served = Served::default();
        for &(at, milli) in changes {
            match milli {
                0.. => served.start(at, milli.unsigned_abs()),
                _ => served.stop(at, milli.unsigned_abs()),
            }
        }
        served
    }

    #[test]
    fn the_lag_is_the_most_at_any_moment() {
        let early = curve(&[(0, 2000), (10, -2000)]);
        let late = curve(&[(10, 1000), (30, -1000)]);
        // At 10 the one has got all and the other nothing.
        assert_eq!(late.lag(&early), 20_000);
        assert_eq!(early.lag(&late), 0);
        assert_eq!(early.lag(&early), 0);
        assert_eq!(curve(&[]).lag(&early), 20_000);
        assert_eq!(early.lag(&curve(&[])), 0);
        // Behind in the middle only: 10 s of one card, between points of the other curve.
        let middle = curve(&[(0, 1000), (10, -1000), (25, 1000), (35, -1000)]);
        assert_eq!(middle.lag(&curve(&[(0, 1000), (20, -1000)])), 10_000);
    }

    #[test]
    fn a_lost_run_takes_its_time_back() {
        let mut served = curve(&[(0, 1000)]);
        served.stop(8, 1000);
        served.take_back(8000);
        served.start(8, 1000);
        served.stop(18, 1000);
        // 8 s behind at the moment of the loss, and until the end of the other's run.
        assert_eq!(served.lag(&curve(&[(0, 1000), (10, -1000)])), 8000);
    }
}
