//! The cost of a part of a run: CPU time of processes, and writes at the API server by kind.
//!
//! The API server counts the requests itself, whichever client sends them.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use sublet_testbed::{APISERVER, ETCD};

use crate::world::World;

/// Kinds of object that are written without any work: leases, and those that the API server writes
/// for itself.
const NOBODYS: [&str; 8] = [
    "leases",
    "tokenreviews",
    "subjectaccessreviews",
    "endpoints",
    "endpointslices",
    "apiservices",
    "flowschemas",
    "prioritylevelconfigurations",
];

/// A kind of write: `POST jobs`, `PATCH jobs/status`, ...
pub(super) type WriteCounts = BTreeMap<String, u64>;

/// CPU seconds and writes so far.
#[derive(Debug, Clone, Default)]
pub(super) struct Account {
    pub(super) apiserver: f64,
    pub(super) etcd: f64,
    pub(super) controller: f64,
    pub(super) writes: WriteCounts,
}

impl Account {
    /// As it stands now. `controller`: a process's name, if one runs.
    pub(super) fn now(world: &World, controller: Option<&str>) -> Result<Account> {
        let request = http::Request::get("/metrics").body(Vec::new())?;
        let page = world
            .executor
            .block_on(world.client.request_text(request))?;
        let seconds = |name| world.cluster.cpu_seconds(name);
        Ok(Account {
            apiserver: seconds(APISERVER)?,
            etcd: seconds(ETCD)?,
            controller: controller.map_or(Ok(0.0), seconds)?,
            writes: writes(&page).context("the API server's metrics")?,
        })
    }

    /// The cost since then.
    pub(super) fn since(&self, before: &Account) -> Account {
        let writes = self.writes.iter().filter_map(|(kind, count)| {
            let more = count - before.writes.get(kind).copied().unwrap_or(0).min(*count);
            (more > 0).then(|| (kind.clone(), more))
        });
        Account {
            apiserver: self.apiserver - before.apiserver,
            etcd: self.etcd - before.etcd,
            controller: self.controller - before.controller,
            writes: writes.collect(),
        }
    }

    /// Writes whose kind fits.
    pub(super) fn count(&self, fits: impl Fn(&str) -> bool) -> u64 {
        let own = self.writes.iter().filter(|(kind, _)| fits(kind));
        own.map(|(_, count)| count).sum()
    }

    /// Every kind that counts, for each of so many.
    pub(super) fn listed(&self, of: f64) -> String {
        let mut all: Vec<(&String, &u64)> = self.writes.iter().collect();
        all.sort_by_key(|(kind, count)| (std::cmp::Reverse(**count), *kind));
        let shown = all
            .into_iter()
            .map(|(kind, count)| (kind, *count as f64 / of));
        let shown = shown.filter(|(_, each)| *each >= 0.005);
        let shown = shown.map(|(kind, each)| format!("{kind} {each:.2}"));
        shown.collect::<Vec<_>>().join(", ")
    }
}

/// The writes of a page of the API server's metrics.
fn writes(page: &str) -> Result<WriteCounts> {
    let mut counts = WriteCounts::new();
    for line in page.lines() {
        let Some(rest) = line.strip_prefix("apiserver_request_total{") else {
            continue;
        };
        let (labels, count) = rest.rsplit_once("} ").context("a line without a value")?;
        let label = |name: &str| {
            let found = labels
                .split(',')
                .find_map(|pair| pair.strip_prefix(name)?.strip_prefix("=\""));
            found.map_or("", |value| value.trim_end_matches('"'))
        };
        let verb = label("verb");
        if !["POST", "PUT", "PATCH", "APPLY", "DELETE"].contains(&verb) {
            continue;
        }
        let resource = label("resource");
        if resource.is_empty() || NOBODYS.contains(&resource) {
            continue;
        }
        let kind = match label("subresource") {
            "" => format!("{verb} {resource}"),
            sub => format!("{verb} {resource}/{sub}"),
        };
        // Prometheus writes large numbers as 1.2e+06.
        let count: f64 = count.trim().parse().with_context(|| format!("{count:?}"))?;
        *counts.entry(kind).or_default() += count as u64;
    }
    Ok(counts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_are_counted_by_kind_and_reads_are_not() {
        let line = |code: &str, resource: &str, sub: &str, verb: &str, count: &str| {
            format!(
                "apiserver_request_total{{code=\"{code}\",component=\"apiserver\",dry_run=\"\",group=\"g\",\
                 resource=\"{resource}\",scope=\"resource\",subresource=\"{sub}\",verb=\"{verb}\",version=\"v1\"}} {count}\n"
            )
        };
        let page = "# TYPE apiserver_request_total counter\n".to_owned()
            + &line("201", "jobs", "", "POST", "3")
            + &line("409", "jobs", "", "POST", "2")
            + &line("200", "jobs", "status", "PATCH", "1.2e+06")
            + &line("200", "jobs", "", "GET", "9")
            + &line("200", "leases", "", "PUT", "9")
            + &line("200", "", "", "POST", "9")
            + "apiserver_request_total_other{} 5\n";
        let before = Account {
            writes: writes(&page).unwrap(),
            ..Account::default()
        };
        assert_eq!(
            before.writes,
            [
                ("PATCH jobs/status".to_owned(), 1_200_000),
                ("POST jobs".to_owned(), 5)
            ]
            .into()
        );
        let mut after = before.clone();
        after.writes.insert("POST events".to_owned(), 6);
        *after.writes.get_mut("POST jobs").unwrap() += 2;
        let more = after.since(&before);
        assert_eq!(more.count(|kind| kind.ends_with(" jobs")), 2);
        assert_eq!(more.listed(2.0), "POST events 3.00, POST jobs 1.00");
        assert!(writes("apiserver_request_total{verb=\"POST\"}\n").is_err());
    }
}
