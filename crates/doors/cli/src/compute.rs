//! Compute time of cards as tables and programs show it.
//!
//! Most clusters and machines share memory alone. So it is shown only if a pod ([`is_asked`]) or
//! job ([`is_shared`]) in the output asks for it, limits it or gives way. Otherwise every table
//! looks as if there were no compute time.

use std::fmt;

use serde::{Serialize, Serializer};
use sublet_arbiter::admin::{GpuRow, Snapshot, TenantRow, parse_compute};
use sublet_model::{Claim, Class, ContainerName, Demand, Milli, Portion};

/// Does any container ask for compute time of a part of a card, or limit it?
pub(crate) fn is_asked(claim: &Claim) -> bool {
    let asks = |demand: &Demand| {
        let promised = matches!(demand.portion, Portion::Part(part) if part.compute > Milli::ZERO);
        promised || demand.compute_limit < Milli::WHOLE
    };
    claim.containers().iter().any(|one| asks(&one.demand))
}

/// The compute time that a container has of each of its cards.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(crate) struct ComputeTime {
    /// Promised compute time (the request).
    #[serde(rename = "computeRequestPercent", serialize_with = "as_percent")]
    promised: Milli,
    /// The most that it may use.
    #[serde(rename = "computeLimitPercent", serialize_with = "as_percent")]
    limit: Milli,
}

fn as_percent<S: Serializer>(share: &Milli, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(percent_of(*share))
}

/// A share in percent, as JSON has it.
pub(crate) fn percent_of(share: Milli) -> f64 {
    f64::from(share.get()) / 10.0
}

impl ComputeTime {
    /// Compute time of a container with this demand. A whole card comes with all of its time.
    pub(crate) fn of(demand: &Demand) -> ComputeTime {
        ComputeTime {
            promised: match demand.portion {
                Portion::Whole => Milli::WHOLE,
                Portion::Part(part) => part.compute,
            },
            limit: demand.compute_limit,
        }
    }

    /// Compute time of the named container of a pod; `None` if the pod has no such container.
    pub(crate) fn of_container(claim: &Claim, name: &ContainerName) -> Option<ComputeTime> {
        let mut containers = claim.containers().iter();
        let container = containers.find(|one| one.name == *name)?;
        Some(ComputeTime::of(&container.demand))
    }
}

/// Compute time of this machine's jobs.
impl ComputeTime {
    /// No promise: the job gets the time that other jobs leave, up to all of it.
    const ANY: ComputeTime = ComputeTime {
        promised: Milli::ZERO,
        limit: Milli::WHOLE,
    };

    /// Compute time of a job; `None` for a process that is no job.
    fn of_job(job: &TenantRow) -> Option<ComputeTime> {
        let milli = |percent: f64| Milli::new((percent * 10.0).round() as u16);
        Some(ComputeTime {
            promised: milli(job.compute_request_percent?)?,
            limit: milli(job.compute_limit_percent?)?,
        })
    }

    /// Compute time in the arbiter's form, from an answer; `None` if it shares no compute time.
    pub(crate) fn told(text: Option<&str>) -> Option<ComputeTime> {
        let compute = parse_compute(text?).ok()?;
        Some(ComputeTime {
            promised: compute.request(),
            limit: compute.limit(),
        })
    }

    /// Does it promise nothing and limit nothing?
    pub(crate) fn is_any(self) -> bool {
        self == ComputeTime::ANY
    }
}

/// Does any job ask for compute time, limit it, or give way?
pub(crate) fn is_shared(snapshot: &Snapshot) -> bool {
    snapshot.tenants.iter().any(|job| {
        let gives_way = job.class.as_deref() == Some(Class::Opportunistic.word());
        gives_way || ComputeTime::of_job(job).is_some_and(|time| !time.is_any())
    })
}

/// The columns of a job: its class, its request, its usage within the last second, and the time
/// that it waited for its turn.
pub(crate) const JOB_KEYS: [&str; 4] = [
    "class",
    "computeRequestPercent",
    "computeUsedPercent",
    "turnWaitPercent",
];

/// A job's cells in them.
pub(crate) fn job_cells(job: &TenantRow) -> [String; 4] {
    let is_throttled = job.per_gpu.iter().any(|gpu| gpu.is_throttled == Some(true));
    let waited = percent(job.waiting_percent);
    [
        job.class.clone().unwrap_or_else(nothing),
        ComputeTime::of_job(job).map_or_else(nothing, |time| time.to_string()),
        percent(job.compute_used_percent),
        if is_throttled {
            format!("{waited}, throttled")
        } else {
            waited
        },
    ]
}

/// The columns of a card: the time promised to jobs, and their usage within the last second.
pub(crate) const GPU_KEYS: [&str; 2] = ["computeGrantedPercent", "computeUsedPercent"];

/// A card's cells in them.
pub(crate) fn gpu_cells(gpu: &GpuRow) -> [String; 2] {
    [
        percent(Some(gpu.compute_promised_percent)),
        percent(gpu.compute_used_percent),
    ]
}

/// Whole percent: measurements are not more exact.
pub(crate) fn percent(value: Option<f64>) -> String {
    value.map_or_else(nothing, |value| format!("{value:.0} %"))
}

fn nothing() -> String {
    "-".to_owned()
}

/// `30 %`, `30 %, at most 60 %`, or `-` for neither a promise nor a limit.
impl fmt::Display for ComputeTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.promised, self.limit) {
            (Milli::ZERO, Milli::WHOLE) => f.write_str("-"),
            (Milli::ZERO, limit) => write!(f, "at most {limit}"),
            (promised, Milli::WHOLE) => promised.fmt(f),
            (promised, limit) => write!(f, "{promised}, at most {limit}"),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use sublet_model::{ContainerClaim, Count, MiB, Part, Role};

    use super::*;

    /// A claim of one container, `main`: that memory, and thousandths of the compute time that
    /// are promised and that are the limit.
    pub(crate) fn claim(memory: u32, promised: u16, limit: u16) -> Claim {
        let milli = |share| Milli::new(share).unwrap();
        let part = Part {
            memory: MiB::from(memory),
            compute: milli(promised),
            ..Part::ZERO
        };
        let container = ContainerClaim {
            name: ContainerName::new("main").unwrap(),
            position: 0,
            role: Role::Main,
            demand: Demand {
                gpus: Count::new(1),
                portion: Portion::Part(part),
                compute_limit: milli(limit),
            },
        };
        Claim::new(None, vec![container], true).unwrap()
    }

    #[test]
    fn jobs_show_it_only_where_some_job_differs() {
        let plain = TenantRow {
            class: Some("guaranteed".to_owned()),
            compute_request_percent: Some(0.0),
            compute_limit_percent: Some(100.0),
            ..TenantRow::default()
        };
        let shared = |job: &TenantRow| {
            is_shared(&Snapshot {
                tenants: vec![TenantRow::default(), job.clone()],
                ..Snapshot::default()
            })
        };
        assert!(!shared(&plain) && !is_shared(&Snapshot::default()));
        assert_eq!(job_cells(&plain), ["guaranteed", "-", "-", "-"]);
        assert_eq!(job_cells(&TenantRow::default()), ["-"; 4]);
        let mut gives_way = plain.clone();
        gives_way.class = Some("opportunistic".to_owned());
        let mut limited = plain.clone();
        limited.compute_limit_percent = Some(50.5);
        (limited.compute_used_percent, limited.waiting_percent) = (Some(50.4), Some(12.0));
        limited.per_gpu = vec![sublet_arbiter::admin::TenantGpuRow {
            is_throttled: Some(true),
            ..Default::default()
        }];
        assert!(shared(&gives_way) && shared(&limited));
        assert_eq!(
            job_cells(&limited),
            ["guaranteed", "at most 50.5 %", "50 %", "12 %, throttled"]
        );
        let gpu = GpuRow {
            compute_promised_percent: 80.0,
            ..GpuRow::default()
        };
        assert_eq!(gpu_cells(&gpu), ["80 %", "-"]);
    }

    #[test]
    fn it_is_shown_as_far_as_it_says_something() {
        for (promised, limit, asked, text) in [
            (0, 1000, false, "-"),
            (300, 1000, true, "30 %"),
            (300, 600, true, "30 %, at most 60 %"),
            (0, 505, true, "at most 50.5 %"),
        ] {
            let claim = claim(8, promised, limit);
            assert_eq!(is_asked(&claim), asked, "{text}");
            let container = &claim.containers()[0];
            let time = ComputeTime::of_container(&claim, &container.name).unwrap();
            assert_eq!(time.to_string(), text);
            let percent = |milli: u16| f64::from(milli) / 10.0;
            let json = serde_json::json!({
                "computeRequestPercent": percent(promised), "computeLimitPercent": percent(limit),
            });
            assert_eq!(serde_json::to_value(time).unwrap(), json);
        }
        let whole = Demand::of_cards(Count::new(2));
        assert_eq!(ComputeTime::of(&whole).to_string(), "100 %");
    }
}
