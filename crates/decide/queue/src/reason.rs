//! Reasons why a group waits: data with numbers, which become text only when printed. Each reason
//! tells which change would start the group.

use std::fmt;
use std::sync::Arc;

use sublet_model::Time;

use crate::{GroupId, MOST_MEMBERS};

/// Reason why a group waits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum QueueReason {
    /// Not all members that must start together are there.
    Incomplete {
        /// The gang.
        gang: Arc<str>,
        /// Number of members that are there.
        have: u32,
        /// Number of members that must be there.
        need: u32,
    },
    /// It failed before, and is not tried again yet.
    BackOff {
        /// End of the pause.
        until: Time,
    },
    /// A rule of the site keeps it.
    Site(Arc<str>),
    /// Nobody has set its quota up.
    NoQuota {
        /// Its name.
        quota: Arc<str>,
    },
    /// The quota has quotas below it, and only those have groups.
    ParentQuota {
        /// Its name.
        quota: Arc<str>,
    },
    /// It asks more than its quota can ever have. It never starts as things are set up.
    Infeasible(Infeasible),
    /// It asks more than its quota is entitled to while others ask for their parts.
    ExceedsEntitlement(Shortage),
    /// Others of its quota, or of one above, use what it asks.
    OverQuota {
        /// The shortage. `free` is the rest of `limit`.
        short: Shortage,
        /// Amount that the quota uses now.
        used: u64,
        /// The limit that is reached.
        limit: QuotaLimit,
    },
    /// No place was found for all that must start together, and no member may be evicted for it.
    NoRoom {
        /// Number of members that have to start together.
        need: u32,
        /// For so many of them there is a place.
        placed: u32,
        /// Role of the first member without a place.
        role: Arc<str>,
    },
    /// Evictions would help, but each would break a disruption budget.
    Guarded,
    /// The room that it needs is kept for a group that has waited long.
    HeldFor {
        /// The group.
        group: GroupId,
        /// When that one starts at the latest, if it is known.
        until: Option<Time>,
    },
    /// It was not tried, because enough others have started. So many of its quota come first.
    Behind {
        /// Number of groups that come first.
        ahead: u32,
    },
}

/// Reason why a group can never start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Infeasible {
    /// Its quota, or one above it, has a limit that is too low.
    Max(Shortage),
    /// All that there is for its tree of quotas is too little.
    Total {
        /// The tree; empty for the cluster's own.
        tree: Arc<str>,
        /// The shortage.
        short: Shortage,
    },
    /// Members that must not be evicted need more than the quota's minimum has.
    Min(Shortage),
    /// Were all nodes empty, there would be no place for all of them.
    Nodes {
        /// Number of members that have to start together.
        need: u32,
        /// For so many of them there would be a place.
        placed: u32,
        /// Role of the first member without a place.
        role: Arc<str>,
    },
    /// A role has a name that no place can have.
    Name(Arc<str>),
    /// More than [`MOST_MEMBERS`] would have to start together.
    Members {
        /// Number of members that would have to start together.
        need: u64,
    },
}

/// An amount of one resource that is too little.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shortage {
    /// The quota; empty for the whole cluster.
    pub quota: Arc<str>,
    /// The resource.
    pub resource: Arc<str>,
    /// Amount that is asked.
    pub asked: u64,
    /// Amount that there is.
    pub there_is: u64,
}

/// Limit of a quota that stands in the way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QuotaLimit {
    /// The most that the quota may have.
    Max,
    /// The amount that the quota is entitled to now.
    Entitlement,
    /// The amount that the quota is promised, for members that must not be evicted.
    Min,
}

impl QueueReason {
    /// The word for it in conditions and metrics.
    #[must_use]
    pub fn word(&self) -> &'static str {
        match self {
            QueueReason::Incomplete { .. } => "Incomplete",
            QueueReason::BackOff { .. } => "BackOff",
            QueueReason::Site(_) => "Site",
            QueueReason::NoQuota { .. } | QueueReason::ParentQuota { .. } => "NoQuota",
            QueueReason::Infeasible(_) => "Infeasible",
            QueueReason::ExceedsEntitlement(_) => "ExceedsEntitlement",
            QueueReason::OverQuota { .. } => "OverQuota",
            QueueReason::NoRoom { .. } => "NoRoom",
            QueueReason::Guarded => "Guarded",
            QueueReason::HeldFor { .. } => "HeldFor",
            QueueReason::Behind { .. } => "Behind",
        }
    }
}

impl QueueReason {
    /// Checks whether only a change of the group's own objects or of its quotas starts the group: time
    /// and the end of others do not.
    #[must_use]
    pub fn is_lasting(&self) -> bool {
        matches!(
            self,
            QueueReason::Infeasible(_)
                | QueueReason::NoQuota { .. }
                | QueueReason::ParentQuota { .. }
        )
    }

    /// Checks whether the requests of such a group count in the division among quotas. A group that
    /// cannot start as things are set up has no part in it.
    #[must_use]
    pub fn has_part(&self) -> bool {
        !matches!(
            self,
            QueueReason::Infeasible(_)
                | QueueReason::ExceedsEntitlement(_)
                | QueueReason::Incomplete { .. }
                | QueueReason::NoQuota { .. }
                | QueueReason::ParentQuota { .. }
        )
    }
}

impl fmt::Display for QueueReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            QueueReason::Incomplete { gang, have, need } => write!(
                f,
                "gang {gang} has {have} members that wait, and starts when there are {need}"
            ),
            QueueReason::BackOff { until } => {
                write!(f, "it failed before, and is tried again at {}", At(*until))
            }
            QueueReason::Site(text) => f.write_str(text),
            QueueReason::NoQuota { quota } => {
                write!(f, "there is no quota {quota}; it starts when there is one")
            }
            QueueReason::ParentQuota { quota } => write!(
                f,
                "quota {quota} has quotas below it; it starts when it names one of those"
            ),
            QueueReason::Infeasible(why) => write!(f, "it can never start: {why}"),
            QueueReason::ExceedsEntitlement(short) => write!(
                f,
                "it asks {short} while others ask for their parts; it starts when they ask less, \
                 or when the quota has a larger min"
            ),
            QueueReason::OverQuota { short, used, limit } => write!(
                f,
                "it asks {} of {}, and {} uses {} of its {limit} of {}; it starts when {} of that is \
                 given back",
                short.amount(short.asked),
                short.resource,
                Named(&short.quota),
                short.amount(*used),
                short.amount(short.there_is),
                short.amount((used + short.asked).saturating_sub(short.there_is)),
            ),
            QueueReason::NoRoom { need, placed, role } => write!(
                f,
                "there is a place for {placed} of the {need} members that start together; the next \
                 one, of role {role}, starts it when there is room"
            ),
            QueueReason::Guarded => write!(
                f,
                "evictions would make room, but disruption budgets or a namespace of the system \
                 forbid them; it starts when those pods end"
            ),
            QueueReason::HeldFor { group, until } => {
                write!(
                    f,
                    "what it needs is kept for {group}, which has waited long"
                )?;
                match until {
                    Some(until) => write!(f, " and starts at {} at the latest", At(*until)),
                    None => Ok(()),
                }
            }
            QueueReason::Behind { ahead } => {
                write!(f, "{ahead} others of its quota come first")
            }
        }
    }
}

impl fmt::Display for Infeasible {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Infeasible::Max(short) => write!(f, "it asks {short} at most (max)"),
            Infeasible::Total { tree, short } => match &**tree {
                "" => write!(f, "it asks {short} in all"),
                tree => {
                    let Shortage { resource, .. } = short;
                    let asked = short.amount(short.asked);
                    let there_is = short.amount(short.there_is);
                    write!(
                        f,
                        "it asks {asked} of {resource}, and tree {tree} has {there_is} in all"
                    )
                }
            },
            Infeasible::Min(short) => write!(
                f,
                "it must not be evicted and asks {short} for such groups (min)"
            ),
            Infeasible::Nodes { need, placed, role } => write!(
                f,
                "were all nodes empty, there would be a place for {placed} of the {need} members \
                 that start together; the next one is of role {role}"
            ),
            Infeasible::Name(role) => write!(f, "a role must not be named {role:?}"),
            Infeasible::Members { need } => write!(
                f,
                "{need} members have to start together, and at most {MOST_MEMBERS} can"
            ),
        }
    }
}

impl Shortage {
    fn amount(&self, amount: u64) -> String {
        quantity(&self.resource, amount)
    }
}

/// An amount as kubectl prints it: CPU in cores, or in thousandths if that is no whole number;
/// memory in the largest unit that gives a whole number. `amount`: as in [`crate::Amounts`].
#[must_use]
pub fn quantity(resource: &str, amount: u64) -> String {
    const UNITS: [&str; 7] = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
    let is_in_bytes = resource.ends_with("memory")
        || resource.ends_with("ephemeral-storage")
        || resource.starts_with("hugepages-");
    match resource {
        "cpu" if !amount.is_multiple_of(1_000) => format!("{amount}m"),
        "cpu" => (amount / 1_000).to_string(),
        _ if is_in_bytes && amount > 0 => {
            let unit = amount.trailing_zeros() / 10;
            format!("{}{}", amount >> (10 * unit), UNITS[unit as usize])
        }
        _ => amount.to_string(),
    }
}

/// `8 of nvidia.com/gpu, and quota a has 4`.
impl fmt::Display for Shortage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Shortage {
            quota,
            resource,
            asked,
            there_is,
        } = self;
        write!(
            f,
            "{} of {resource}, and {} has {}",
            self.amount(*asked),
            Named(quota),
            self.amount(*there_is)
        )
    }
}

impl fmt::Display for QuotaLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            QuotaLimit::Max => "max",
            QuotaLimit::Entitlement => "entitlement",
            QuotaLimit::Min => "min",
        })
    }
}

/// A quota's name for people; the cluster has none.
struct Named<'a>(&'a str);

impl fmt::Display for Named<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            "" => f.write_str("the cluster"),
            name => write!(f, "quota {name}"),
        }
    }
}

/// A moment of a day in UTC: a reason has no clock, and a reader has one.
struct At(Time);

impl fmt::Display for At {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0.ms() / 1000 % 86_400;
        let (hours, minutes) = (seconds / 3600, seconds / 60 % 60);
        write!(f, "{hours:02}:{minutes:02}:{:02} UTC", seconds % 60)
    }
}

#[cfg(test)]
mod tests {
    use super::quantity;

    #[test]
    fn amounts_are_printed_as_kubectl_does() {
        for (resource, amount, text) in [
            ("cpu", 500_000, "500"),
            ("cpu", 1_500, "1500m"),
            ("cpu", 0, "0"),
            ("memory", 64 << 30, "64Gi"),
            ("memory", 1_500 << 20, "1500Mi"),
            ("memory", 1_000_000, "1000000"),
            ("memory", 0, "0"),
            ("sublet.dev/gpu-memory", 16_276 << 20, "16276Mi"),
            ("hugepages-2Mi", 1 << 21, "2Mi"),
            ("memory", 1 << 63, "8Ei"),
            ("nvidia.com/gpu", 1_024, "1024"),
            ("aliyun.com/gpu-mem", 4_096, "4096"),
        ] {
            assert_eq!(quantity(resource, amount), text, "{resource}");
        }
    }
}
