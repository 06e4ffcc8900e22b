//! A window of time that several processes have in common, in tenths of a second. Nothing here
//! knows what is counted in it.

use std::time::Duration;

use clap::Args;

use crate::arguments::seconds;

const TENTH: Duration = Duration::from_millis(100);

/// Arguments of a program that counts within a window.
#[derive(Debug, Clone, Args)]
pub(crate) struct WindowArguments {
    /// Start of the window, on CLOCK_MONOTONIC; by default now
    #[arg(long, value_name = "NANOSECONDS")]
    from: Option<u64>,
    /// Seconds of the window; work begins at once and ends with it
    #[arg(long, default_value = "10", value_parser = seconds)]
    seconds: Duration,
}

impl WindowArguments {
    /// The window; it begins now if nothing else was said.
    pub(crate) fn window(&self) -> Window {
        let begin = self.from.map_or_else(now, Duration::from_nanos);
        Window {
            begin,
            end: begin + self.seconds,
        }
    }
}

/// From when to when, on CLOCK_MONOTONIC.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Window {
    pub(crate) begin: Duration,
    pub(crate) end: Duration,
}

impl Window {
    pub(crate) fn is_over(self) -> bool {
        now() >= self.end
    }

    pub(crate) fn length(self) -> Duration {
        self.end - self.begin
    }

    /// Number of its tenths of a second.
    pub(crate) fn n_tenths(self) -> usize {
        self.length().div_duration_f64(TENTH).ceil() as usize
    }

    /// The tenth of a second in which this moment lies.
    pub(crate) fn tenth(self, at: Duration) -> Option<usize> {
        let since = at.checked_sub(self.begin).filter(|_| at < self.end)?;
        Some(since.div_duration_f64(TENTH) as usize)
    }

    /// The end of its tenth with this number.
    pub(crate) fn end_of_tenth(self, tenth: usize) -> Duration {
        self.begin + TENTH.mul_f64((tenth + 1) as f64)
    }
}

/// Time of CLOCK_MONOTONIC, the same for all processes.
pub(crate) fn now() -> Duration {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: writes the struct it is given; this clock always exists.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    Duration::new(now.tv_sec.unsigned_abs(), now.tv_nsec.unsigned_abs() as u32)
}

#[cfg(test)]
mod tests {
    use super::Window;
    use std::time::Duration;

    #[test]
    fn moments_lie_in_a_tenth_or_outside() {
        let ms = Duration::from_millis;
        let window = Window {
            begin: ms(5000),
            end: ms(5250),
        };
        assert_eq!(window.n_tenths(), 3);
        for (at, tenth) in [
            (4999, None),
            (5000, Some(0)),
            (5099, Some(0)),
            (5100, Some(1)),
            (5249, Some(2)),
            (5250, None),
        ] {
            assert_eq!(window.tenth(ms(at)), tenth, "{at}");
        }
        assert_eq!(window.end_of_tenth(0), ms(5100));
    }
}
