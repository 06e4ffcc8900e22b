//! Computes the mean use of each card over a minute, from the arbiter's numbers of each second: one
//! second says little of a job that computes in bursts.

use std::collections::{BTreeMap, BTreeSet};

use sublet_api::NodeUse;
use sublet_arbiter::admin::{GpuRow, Snapshot};
use sublet_model::{GpuIndex, MeasuredUse, Milli};

use super::record::Record;

/// Time over which the mean is taken.
const MINUTE_MS: u64 = 60_000;

/// Looks since the last minute was over.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    since_ms: Option<u64>,
    cards: BTreeMap<GpuIndex, Sum>,
}

#[derive(Debug)]
struct Sum {
    percent: f64,
    looks: u32,
    /// The fewest that were there.
    pods: u32,
}

impl Tally {
    /// Takes a look, `now_ms` on any clock that only rises. Returns the measured use once a minute
    /// is over, without cards that were not measured.
    pub(crate) fn add(
        &mut self,
        (snapshot, records): &(Snapshot, BTreeMap<u64, Record>),
        now_ms: u64,
    ) -> Option<NodeUse> {
        for gpu in &snapshot.gpus {
            let (is_idle, pods) = tenants_of(gpu, snapshot, records);
            // Of a card without jobs the arbiter says nothing.
            let idle = is_idle.then_some(0.0);
            let Some(percent) = gpu.compute_used_percent.or(idle) else {
                continue;
            };
            let sum = self.cards.entry(GpuIndex(gpu.index)).or_insert(Sum {
                percent: 0.0,
                looks: 0,
                pods,
            });
            sum.percent += percent;
            sum.looks += 1;
            sum.pods = sum.pods.min(pods);
        }
        let since_ms = *self.since_ms.get_or_insert(now_ms);
        if now_ms < since_ms + MINUTE_MS {
            return None;
        }
        self.since_ms = Some(now_ms);
        let cards = std::mem::take(&mut self.cards).into_iter();
        Some(cards.map(|(gpu, sum)| (gpu, sum.mean())).collect())
    }
}

impl Sum {
    /// In whole percent, as it is written.
    fn mean(&self) -> MeasuredUse {
        let percent = (self.percent / f64::from(self.looks)).round();
        let milli = percent.clamp(0.0, 100.0) as u16 * 10;
        MeasuredUse {
            busy: Milli::new(milli).unwrap_or(Milli::WHOLE),
            pods: self.pods,
        }
    }
}

/// Is there no job on that card, and how many pods are?
fn tenants_of(gpu: &GpuRow, snapshot: &Snapshot, records: &BTreeMap<u64, Record>) -> (bool, u32) {
    let on_card = snapshot.tenants.iter().filter(|row| {
        let mut cards = row.per_gpu.iter();
        cards.any(|on_card| on_card.index == gpu.index)
    });
    let jobs: Vec<u64> = on_card.filter_map(|row| row.id).collect();
    let records = jobs.iter().filter_map(|id| records.get(id));
    let pods: BTreeSet<&str> = records.map(|record| record.uid.as_str()).collect();
    let pods = u32::try_from(pods.len()).unwrap_or(u32::MAX);
    (jobs.is_empty(), pods)
}

#[cfg(test)]
mod tests {
    use sublet_api::use_to_json;
    use sublet_arbiter::admin::{TenantGpuRow, TenantRow};

    use super::*;

    /// A container of that pod.
    fn record(uid: &str) -> Record {
        Record {
            id: None,
            namespace: "ns".to_owned(),
            pod: uid.to_owned(),
            uid: uid.to_owned(),
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
        }
    }

    /// `0:40:a,b 1:?:a 2:-:` is what the arbiter says of each card, and the pods of its jobs, one
    /// for each letter; `?` and `-` are no figure, `!` a job of no pod.
    fn look(picture: &str) -> (Snapshot, BTreeMap<u64, Record>) {
        let mut snapshot = Snapshot::default();
        let mut records = BTreeMap::new();
        for (index, card) in (0..).zip(picture.split_whitespace()) {
            let (percent, jobs) = card.split_once(':').unwrap();
            snapshot.gpus.push(GpuRow {
                index,
                compute_used_percent: percent.parse().ok(),
                ..GpuRow::default()
            });
            for job in jobs.chars() {
                let id = snapshot.tenants.len() as u64;
                snapshot.tenants.push(TenantRow {
                    id: Some(id),
                    per_gpu: vec![TenantGpuRow {
                        index,
                        ..TenantGpuRow::default()
                    }],
                    ..TenantRow::default()
                });
                if job != '!' {
                    records.insert(id, record(&job.to_string()));
                }
            }
        }
        // A process that is no job.
        snapshot.tenants.push(TenantRow::default());
        (snapshot, records)
    }

    /// The measured use if each look is so many seconds after the one before.
    fn measured(every_s: u64, looks: &[&str]) -> Vec<String> {
        let mut tally = Tally::default();
        let at = |number: usize| 7 + 1000 * every_s * number as u64;
        let looks = looks.iter().enumerate();
        looks
            .filter_map(|(number, picture)| tally.add(&look(picture), at(number)))
            .map(|measured| use_to_json(&measured))
            .collect()
    }

    #[test]
    fn the_mean_of_each_minute_is_told_when_it_is_over() {
        assert_eq!(measured(30, &["50:a", "10:a"]), [""; 0]);
        assert_eq!(
            measured(30, &["90:a", "10:a", "20.4:a", "10:a", "11:a", "99:a"]),
            [
                r#"{"0":{"percent":40,"pods":1}}"#,
                r#"{"0":{"percent":11,"pods":1}}"#
            ]
        );
    }

    #[test]
    fn a_pod_counts_once_and_only_if_it_was_there_all_the_while() {
        // Two containers of one pod, a job of none, and a pod that came late.
        assert_eq!(
            measured(30, &["10:aa!", "10:aa!b", "10:aab"]),
            [r#"{"0":{"percent":10,"pods":1}}"#]
        );
    }

    #[test]
    fn a_card_without_jobs_is_idle_and_one_without_figures_is_left_out() {
        assert_eq!(
            measured(60, &["-: ?:a 30:a", "-: ?:a ?:a"]),
            [r#"{"0":{"percent":0,"pods":0},"2":{"percent":30,"pods":1}}"#]
        );
        assert_eq!(measured(60, &["?:a", "?:a"]), ["{}"]);
    }
}
