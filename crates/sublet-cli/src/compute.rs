//! Compute time of cards as tables and programs show it.
//!
//! Most clusters share memory alone. So it is shown only where some pod of what is printed asks
//! for it ([`is_asked`]); otherwise every form is as if there were no compute time.

use std::fmt;

use serde::{Serialize, Serializer};
use sublet_model::{Claim, ContainerName, Demand, Milli, Portion};

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
    /// What it is promised.
    #[serde(rename = "computeMilli", serialize_with = "thousandths")]
    promised: Milli,
    /// The most that it may use.
    #[serde(rename = "computeLimitMilli", serialize_with = "thousandths")]
    limit: Milli,
}

fn thousandths<S: Serializer>(share: &Milli, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u16(share.get())
}

impl ComputeTime {
    /// Of a container that asks this; a whole card comes with all of its time.
    pub(crate) fn of(demand: &Demand) -> ComputeTime {
        ComputeTime {
            promised: match demand.portion {
                Portion::Whole => Milli::WHOLE,
                Portion::Part(part) => part.compute,
            },
            limit: demand.compute_limit,
        }
    }

    /// Of that container of a pod; nothing if the pod does not have it.
    pub(crate) fn of_container(claim: &Claim, name: &ContainerName) -> Option<ComputeTime> {
        let mut containers = claim.containers().iter();
        let container = containers.find(|one| one.name == *name)?;
        Some(ComputeTime::of(&container.demand))
    }
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
            assert_eq!(
                serde_json::to_string(&time).unwrap(),
                format!(r#"{{"computeMilli":{promised},"computeLimitMilli":{limit}}}"#)
            );
        }
        let whole = Demand::of_cards(Count::new(2));
        assert_eq!(ComputeTime::of(&whole).to_string(), "100 %");
    }
}
