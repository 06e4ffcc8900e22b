//! Figure: how long shares are wrong after a program came or left.

use std::time::Duration;

use anyhow::{Result, ensure};

use super::tenants::{Tenant, Way, percent_of};
use crate::progress::progress;
use crate::report::{Report, Verdict, short};
use crate::stage::{Stages, soon};

/// Seconds (issue 16).
const TARGET: f64 = 2.0;
/// Percentage points within which a share counts as right.
const NEAR: f64 = 3.0;
/// Shares are measured over so many tenths of a second: the second for which they are promised.
/// In a shorter time, one turn more or less would exceed [`NEAR`].
const SPAN: usize = 10;

const MICROSECONDS: u32 = 500;

pub(super) fn measure(stages: &Stages, is_quick: bool, report: &mut Report) -> Result<()> {
    let runs = if is_quick { 1 } else { 3 };
    progress("somebody comes and leaves");
    let (mut coming, mut leaving): (f64, f64) = (0.0, 0.0);
    for _ in 0..runs {
        let (came, left) = once(stages)?;
        coming = coming.max(came);
        leaving = leaving.max(left);
    }
    report.say("## Convergence");
    report.say(&format!(
        "A program that asks 75 % has the card for itself. Another one that asks 25 % comes with \
         work and leaves after four seconds. How long until the first one's share, over any \
         second from then on, is within {NEAR} points of 75 and of 100 %; the longest of {runs} \
         run(s)."
    ));
    report.table(&[
        vec!["somebody".to_owned(), "seconds".to_owned()],
        vec!["came".to_owned(), short(coming)],
        vec!["left".to_owned(), short(leaving)],
    ]);
    report.verdicts(&[
        Verdict::at_most("after somebody came", coming, TARGET, "s"),
        Verdict::at_most("after somebody left", leaving, TARGET, "s"),
    ]);
    Ok(())
}

/// Seconds until the shares are right after the second program came, and after it left.
fn once(stages: &Stages) -> Result<(f64, f64)> {
    let stage = stages.open()?;
    let from = soon(Duration::from_secs(2));
    let first = Tenant {
        percent: 75,
        is_graph: false,
        microseconds: MICROSECONDS,
        from,
        seconds: 12,
    };
    let running = first.start(&stage, Way::Ours)?;
    std::thread::sleep(Duration::from_secs(4));
    // The second program's window is its whole life: it begins and ends with the program.
    let begin = soon(Duration::from_millis(500));
    let second = Tenant {
        percent: 25,
        from: begin,
        seconds: 4,
        ..first
    };
    second.start(&stage, Way::Ours)?.per_tenth()?;
    let left = soon(Duration::ZERO);
    let per_tenth = running.per_tenth()?;
    let tenth = |at: Duration| (at.saturating_sub(from).as_millis() / 100) as usize;
    let (came, left) = (tenth(begin), tenth(left));
    let until = came + 40;
    // Without this check, a run that was too short would count as right at once.
    ensure!(
        came + SPAN <= until.min(left) && left + SPAN <= per_tenth.len(),
        "the programs did not run for long enough"
    );
    Ok((
        settled(&per_tenth[came..until.min(left)], 75.0),
        settled(&per_tenth[left..], 100.0),
    ))
}

/// Seconds from the beginning until the first span from which on all spans have that share.
fn settled(per_tenth: &[f64], share: f64) -> f64 {
    let spans = per_tenth.windows(SPAN);
    let is_near = |span: &[f64]| (percent_of(span, MICROSECONDS) - share).abs() <= NEAR;
    let wrong = spans.map(is_near).rposition(|is_right| !is_right);
    wrong.map_or(0.0, |last| (last + 1) as f64 / 10.0)
}

#[cfg(test)]
mod tests {
    use super::settled;

    #[test]
    fn shares_are_settled_after_the_last_wrong_span() {
        let right = 150.0; // 75 ms of 100
        let mut counts = vec![right; 20];
        assert!(settled(&counts, 75.0).abs() < 1e-9);
        counts[3] = 0.0;
        assert!((settled(&counts, 75.0) - 0.4).abs() < 1e-9);
        counts[19] = 0.0;
        assert!((settled(&counts, 75.0) - 1.1).abs() < 1e-9);
    }
}
