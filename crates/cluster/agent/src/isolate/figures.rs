//! The arbiter's numbers of each container as metrics.

use std::collections::BTreeMap;

use sublet_arbiter::admin::{Snapshot, TenantGpuRow};
use sublet_telemetry::metrics::{AgentMetrics, ContainerLabels, Seconds};

use super::record::Record;

/// Two looks at one refusal can differ by this much in what they say of its time.
const SAME_REFUSAL_MS: u64 = 100;

/// State of the last look: the containers and their jobs, and the time when each was last refused
/// memory.
#[derive(Debug, Default)]
pub(crate) struct Figures {
    refused_at_ms: BTreeMap<ContainerLabels, u64>,
    known: BTreeMap<ContainerLabels, u64>,
}

impl Figures {
    /// Writes what the arbiter says now, `now_ms` on any clock that only rises. Containers
    /// that are gone are shown no longer; another pod of the same name begins anew.
    pub(crate) fn update(
        &mut self,
        metrics: &AgentMetrics,
        (snapshot, records): &(Snapshot, BTreeMap<u64, Record>),
        now_ms: u64,
    ) {
        let mut seen = Vec::new();
        for row in &snapshot.tenants {
            let found = row.id.and_then(|id| Some((id, records.get(&id)?)));
            let Some((id, record)) = found else {
                continue;
            };
            for on_card in &row.per_gpu {
                let tenant = ContainerLabels {
                    namespace: record.namespace.clone(),
                    pod: record.pod.clone(),
                    container: record.container.clone(),
                    gpu: on_card.index,
                };
                seen.push((tenant, id, on_card));
            }
        }
        let now = seen.iter().map(|(tenant, id, _)| (tenant.clone(), *id));
        let before = std::mem::replace(&mut self.known, now.collect());
        let is_gone = |(tenant, id): &(&ContainerLabels, &u64)| self.known.get(tenant) != Some(id);
        for (gone, _) in before.iter().filter(is_gone) {
            metrics.tenant_limit.remove(gone);
            metrics.tenant_used.remove(gone);
            metrics.tenant_refusals.remove(gone);
            metrics.tenant_gpu_time.remove(gone);
            metrics.tenant_gate_wait.remove(gone);
            metrics.tenant_throttled.remove(gone);
            self.refused_at_ms.remove(gone);
        }
        for (tenant, _, on_card) in seen {
            self.write(metrics, &tenant, on_card, now_ms);
        }
    }

    /// Shows no container any longer.
    pub(crate) fn forget(&mut self, metrics: &AgentMetrics) {
        self.update(metrics, &<(Snapshot, BTreeMap<u64, Record>)>::default(), 0);
    }

    fn write(
        &mut self,
        metrics: &AgentMetrics,
        tenant: &ContainerLabels,
        row: &TenantGpuRow,
        now_ms: u64,
    ) {
        let bytes = |mib: u64| i64::try_from(mib << 20).unwrap_or(i64::MAX);
        let (limit, used) = (bytes(row.limit_mib), bytes(row.used_mib));
        metrics.tenant_limit.get_or_create(tenant).set(limit);
        metrics.tenant_used.get_or_create(tenant).set(used);
        // There from the beginning: a counter that appears with its first event shows no increase.
        let refusals = metrics.tenant_refusals.get_or_create(tenant);
        for (family, seconds) in [
            (&metrics.tenant_gpu_time, row.compute_used_seconds),
            (&metrics.tenant_gate_wait, row.waited_seconds),
            (&metrics.tenant_throttled, row.throttled_seconds),
        ] {
            rise(&family.get_or_create(tenant), seconds);
        }
        let Some(refusal) = &row.last_refusal else {
            return;
        };
        let at_ms = now_ms.saturating_sub(refusal.ago_ms);
        let last = self.refused_at_ms.insert(tenant.clone(), at_ms);
        if last.is_none_or(|last| at_ms > last + SAME_REFUSAL_MS) {
            refusals.inc();
        } else {
            // The time of the first look is kept: the differences of the clocks would add up.
            self.refused_at_ms
                .extend(last.map(|last| (tenant.clone(), last)));
        }
    }
}

/// Takes a counter to what the arbiter has counted. Both begin with the agent's process, so that
/// a container's counters begin anew when the agent does, as `rate()` expects.
fn rise(counter: &Seconds, seconds: Option<f64>) {
    let more = seconds.unwrap_or(0.0) - counter.get();
    if more > 0.0 {
        counter.inc_by(more);
    }
}

#[cfg(test)]
mod tests {
    use sublet_arbiter::admin::{RefusalRow, TenantRow};
    use sublet_telemetry::metrics::print;

    use super::*;

    fn look(used_mib: u64, refused_ms_ago: Option<u64>) -> (Snapshot, BTreeMap<u64, Record>) {
        let row = TenantRow {
            id: Some(4),
            per_gpu: vec![TenantGpuRow {
                index: 1,
                limit_mib: 300,
                used_mib,
                last_refusal: refused_ms_ago.map(|ago_ms| RefusalRow { bytes: 9, ago_ms }),
                ..TenantGpuRow::default()
            }],
            ..TenantRow::default()
        };
        let record = Record {
            id: Some(4),
            namespace: "ns".to_owned(),
            pod: "a".to_owned(),
            uid: "u".to_owned(),
            container: "main".to_owned(),
            place: "main-0".to_owned(),
            ends_first: false,
            cards: Vec::new(),
            pinned_limit_mib: None,
            compute: None,
            slice: None,
            mps: false,
            libraries: Vec::new(),
            seat: None,
        };
        let snapshot = Snapshot {
            // One that no container is, and one that is no job.
            tenants: vec![row, TenantRow::default()],
            ..Snapshot::default()
        };
        (snapshot, BTreeMap::from([(4, record)]))
    }

    /// The metrics, what wrote them, and the values of one of them.
    fn page() -> (AgentMetrics, Figures, impl Fn(&str) -> Vec<String>) {
        let (metrics, registry) = AgentMetrics::registered();
        let values = move |metric: &str| {
            let labels = "{namespace=\"ns\",pod=\"a\",container=\"main\",gpu=\"1\"} ";
            let wanted = format!("sublet_agent_container_{metric}{labels}");
            let page = print(&registry);
            let found = page.lines().filter_map(|line| line.strip_prefix(&wanted));
            found.map(str::to_owned).collect()
        };
        (metrics, Figures::default(), values)
    }

    #[test]
    fn each_container_is_shown_until_it_is_gone() {
        let (metrics, mut figures, values) = page();
        let (limit, used) = ("gpu_memory_limit_bytes", "gpu_memory_used_bytes");
        let refusals = "refusals_total";
        figures.update(&metrics, &look(7, None), 1_000);
        assert_eq!(values(limit), ["314572800"]);
        assert_eq!(values(used), ["7340032"]);
        assert_eq!(values(refusals), ["0"]);
        // One refusal, seen three times with the clocks a little apart; then another one.
        for (now, ago) in [(2_000, 500), (3_000, 1_480), (4_000, 2_510), (5_000, 10)] {
            figures.update(&metrics, &look(7, Some(ago)), now);
        }
        assert_eq!(values(refusals), ["2"]);
        figures.update(&metrics, &(Snapshot::default(), BTreeMap::new()), 6_000);
        for name in [limit, used, refusals, "compute_used_seconds_total"] {
            assert_eq!(values(name), [""; 0], "{name}");
        }
    }

    /// Figures that the arbiter has counted of a job: used, waited and throttled.
    fn counted(job: u64, seconds: [Option<f64>; 3]) -> (Snapshot, BTreeMap<u64, Record>) {
        let (mut snapshot, mut records) = look(7, None);
        let record = records.remove(&4).unwrap();
        snapshot.tenants[0].id = Some(job);
        let row = &mut snapshot.tenants[0].per_gpu[0];
        [
            row.compute_used_seconds,
            row.waited_seconds,
            row.throttled_seconds,
        ] = seconds;
        (snapshot, BTreeMap::from([(job, record)]))
    }

    #[test]
    fn time_is_counted_and_never_goes_back_while_a_container_lives() {
        let (metrics, mut figures, values) = page();
        let names = ["compute_used", "turn_wait", "throttled"];
        for (job, counts, expected) in [
            (4, [None, None, None], ["0.0", "0.0", "0.0"]),
            (4, [Some(1.5), Some(2.0), Some(0.5)], ["1.5", "2.0", "0.5"]),
            // The driver does not say now.
            (4, [None, Some(3.0), Some(0.5)], ["1.5", "3.0", "0.5"]),
            (4, [Some(1.25), Some(3.5), Some(0.5)], ["1.5", "3.5", "0.5"]),
            // Another pod of that name.
            (5, [Some(0.25), Some(0.0), None], ["0.25", "0.0", "0.0"]),
        ] {
            figures.update(&metrics, &counted(job, counts), 1_000);
            let seen = names.map(|name| values(&format!("{name}_seconds_total")));
            assert_eq!(seen, expected.map(|value| vec![value.to_owned()]));
        }
    }
}
