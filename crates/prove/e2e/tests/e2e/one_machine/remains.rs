//! Memory that the driver gives is never another process's bytes. NVIDIA's driver clears what
//! goes from one process to another, and Sublet relies on that; here it is checked of the fake
//! driver, straight, without a job.

use anyhow::{Result, ensure};
use rustix::process::Signal;
use sublet_e2e::one_machine::{Machine, Running, mib, until};

/// All of it is taken again and again, so it is small.
const SMALL: &str = "1x32MiB,context=0MiB";

/// Way in which the first process's memory comes free.
#[derive(Debug, Clone, Copy)]
enum End {
    Ends,
    IsKilled,
    FreesAndLives,
}

/// A program takes all memory and fills it; another one takes all of it again, and looks.
fn check(machine: &Machine, path: &str, end: End) -> Result<()> {
    let take = format!("alloc --path {path} --until-oom");
    let fill = match end {
        End::Ends => format!("{take} --fill"),
        End::IsKilled => format!("{take} --fill --hold 600"),
        End::FreesAndLives => format!("{take} --fill --free-all --hold stdin"),
    };
    let mut first = Running::start(&mut machine.direct(&fill))?;
    let report = first.report()?;
    assert_eq!(report["bytes"], mib(32), "{path}: {report}");
    assert_eq!(report["patternWritten"], mib(32) / 4, "{path}: {report}");
    let lives = match end {
        End::FreesAndLives => Some(first),
        End::IsKilled => {
            first.signal(Signal::KILL)?;
            assert_eq!(first.end()?.signal, Some(9));
            None
        }
        End::Ends => {
            assert_eq!(first.end()?.code, Some(0));
            None
        }
    };
    until("the card to be empty", || {
        let used = machine.card(0)?.used;
        ensure!(used == 0, "{used} bytes in use");
        Ok(())
    })?;
    for other in [path, "vmm"] {
        let seek = format!("alloc --path {other} --until-oom --seek");
        let report = Running::start(&mut machine.direct(&seek))?
            .end()?
            .report()?;
        assert_eq!(report["bytes"], mib(32), "{other} after {path}: {report}");
        assert_eq!(report["patternFound"], 0, "{other} after {path}: {report}");
    }
    drop(lives);
    Ok(())
}

#[test]
fn memory_has_no_bytes_of_another_process() -> Result<()> {
    let Some(machine) = Machine::new(SMALL)? else {
        return Ok(());
    };
    for path in ["plain", "async", "pool", "vmm"] {
        for end in [End::Ends, End::IsKilled, End::FreesAndLives] {
            check(&machine, path, end)?;
        }
    }
    Ok(())
}
