//! Figure: the time that a job is charged, beside what its kernels took.

use std::time::Duration;

use anyhow::{Context, Result};

use super::tenants::{Tenant, Way};
use crate::progress::progress;
use crate::report::{Report, short};
use crate::stage::{Stages, number, soon, until};

/// Launches of a request and how long each takes, in microseconds.
const REQUESTS: [(u32, u32); 4] = [(20, 20), (10, 100), (8, 500), (40, 500)];
/// Quiet between two requests, in seconds.
const PAUSE: &str = "0.01";

/// Measures a server of requests, alone with a limit and beside a program that wants all.
///
/// # Errors
/// A program fails.
pub(super) fn measure(stages: &Stages, is_quick: bool, report: &mut Report) -> Result<()> {
    let seconds = if is_quick { 2 } else { 10 };
    report.say("## Charged and used");
    report.say(&format!(
        "A program that serves requests for {seconds} s, waits for the end of each and then 10 ms. \
         `used` is what its kernels took by themselves; `charged` is what the arbiter counted. It \
         has a limit of its own that it does not reach (at most 90 %), or a neighbour that always \
         has work (50 : 50). Beside a neighbour its kernels may also take longer: the neighbour's last \
         ones still run when its turn begins.",
    ));
    let head = [
        "a request",
        "beside",
        "used, s",
        "charged, s",
        "more",
        "more for each request, µs",
    ];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    for (launches, microseconds) in REQUESTS {
        for is_shared in [false, true] {
            progress(&format!(
                "{launches} launches of {microseconds} µs, neighbour: {is_shared}"
            ));
            let served = serve(stages, (launches, microseconds), is_shared, seconds)?;
            rows.push(served.cells(launches, microseconds, is_shared));
        }
    }
    report.table(&rows);
    Ok(())
}

struct Served {
    requests: f64,
    used: f64,
    charged: f64,
}

impl Served {
    fn cells(&self, launches: u32, microseconds: u32, is_shared: bool) -> Vec<String> {
        let more = self.charged - self.used;
        vec![
            format!("{launches} × {microseconds} µs"),
            if is_shared { "a neighbour" } else { "nobody" }.to_owned(),
            short(self.used),
            short(self.charged),
            format!("{:.1} %", more / self.used * 100.0),
            format!("{:.0}", more / self.requests * 1e6),
        ]
    }
}

fn serve(
    stages: &Stages,
    (launches, microseconds): (u32, u32),
    is_shared: bool,
    seconds: u64,
) -> Result<Served> {
    let stage = stages.open()?;
    let share = if is_shared { "50%" } else { "0%..90%" };
    let flags = ["--name", "server", "--memory", "1GiB", "--compute", share];
    let mut shell = stage.shell(Some(&flags))?;
    let neighbour = Tenant {
        percent: 50,
        is_graph: false,
        microseconds: 500,
        from: soon(Duration::from_secs(1)),
        seconds: seconds + 4,
    };
    let neighbour = is_shared.then(|| neighbour.start(&stage, Way::Ours));
    let neighbour = neighbour.transpose()?;
    std::thread::sleep(Duration::from_secs(2));
    let line = shell.ask(&format!(
        "$BENCH_WORKLOAD serve --reach linked --seconds {seconds} --launches {launches} \
         --microseconds {microseconds} --pause {PAUSE}"
    ))?;
    let requests = number(&line, "/requests")?;
    // The arbiter counts a few times a second.
    std::thread::sleep(Duration::from_secs(1));
    let charged = until("the time of the server", Duration::from_millis(100), || {
        let card = stage.tenant("server")?.per_gpu.into_iter().next();
        card.and_then(|card| card.compute_used_seconds)
            .context("not counted")
    })?;
    shell.end()?;
    if let Some(neighbour) = neighbour {
        neighbour.per_tenth()?;
    }
    Ok(Served {
        requests,
        used: requests * f64::from(launches * microseconds) / 1e6,
        charged,
    })
}
