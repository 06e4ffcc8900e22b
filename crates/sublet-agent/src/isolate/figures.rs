//! The arbiter's numbers of each container as metrics.

use std::collections::BTreeMap;

use sublet_arbiter::admin::{Snapshot, TenantGpuRow};
use sublet_telemetry::metrics::{AgentMetrics, ContainerLabels};

use super::record::Record;

/// Two looks at one refusal can differ by this much in what they say of its time.
const SAME_REFUSAL_MS: u64 = 100;

/// What was seen before: which containers, and when each was last refused memory.
#[derive(Debug, Default)]
pub(crate) struct Figures {
    refused_at_ms: BTreeMap<ContainerLabels, u64>,
    known: Vec<ContainerLabels>,
}

impl Figures {
    /// Writes what the arbiter says now, `now_ms` on any clock that only rises. Containers
    /// that are gone are shown no longer.
    pub(crate) fn update(
        &mut self,
        metrics: &AgentMetrics,
        (snapshot, records): &(Snapshot, BTreeMap<u64, Record>),
        now_ms: u64,
    ) {
        let mut seen = Vec::new();
        for row in &snapshot.tenants {
            let Some(record) = row.id.and_then(|id| records.get(&id)) else {
                continue;
            };
            for on_card in &row.per_gpu {
                let tenant = ContainerLabels {
                    namespace: record.namespace.clone(),
                    pod: record.pod.clone(),
                    container: record.container.clone(),
                    gpu: on_card.index,
                };
                self.write(metrics, &tenant, on_card, now_ms);
                seen.push(tenant);
            }
        }
        for gone in self.known.iter().filter(|tenant| !seen.contains(tenant)) {
            metrics.tenant_limit.remove(gone);
            metrics.tenant_used.remove(gone);
            metrics.tenant_refusals.remove(gone);
            self.refused_at_ms.remove(gone);
        }
        self.known = seen;
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
            mps: false,
            libraries: Vec::new(),
        };
        let snapshot = Snapshot {
            // One that no container is, and one that is no job.
            tenants: vec![row, TenantRow::default()],
            ..Snapshot::default()
        };
        (snapshot, BTreeMap::from([(4, record)]))
    }

    #[test]
    fn each_container_is_shown_until_it_is_gone() {
        let (metrics, registry) = AgentMetrics::registered();
        let mut figures = Figures::default();
        let lines = |wanted: &str| {
            let page = print(&registry);
            let found = page.lines().filter(|line| line.contains(wanted));
            found
                .map(|l| l.rsplit(' ').next().unwrap_or("").to_owned())
                .collect::<Vec<_>>()
        };
        let labels = "{namespace=\"ns\",pod=\"a\",container=\"main\",gpu=\"1\"}";
        let limit = format!("sublet_agent_tenant_memory_limit_bytes{labels}");
        let used = format!("sublet_agent_tenant_memory_used_bytes{labels}");
        let refusals = format!("sublet_agent_tenant_refusals_total{labels}");
        figures.update(&metrics, &look(7, None), 1_000);
        assert_eq!(lines(&limit), ["314572800"]);
        assert_eq!(lines(&used), ["7340032"]);
        assert_eq!(lines(&refusals), ["0"]);
        // One refusal, seen three times with the clocks a little apart; then another one.
        for (now, ago) in [(2_000, 500), (3_000, 1_480), (4_000, 2_510), (5_000, 10)] {
            figures.update(&metrics, &look(7, Some(ago)), now);
        }
        assert_eq!(lines(&refusals), ["2"]);
        figures.update(&metrics, &(Snapshot::default(), BTreeMap::new()), 6_000);
        for name in [limit, used, refusals] {
            assert_eq!(lines(&name), [""; 0], "{name}");
        }
    }
}
