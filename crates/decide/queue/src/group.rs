//! Groups that wait: gangs with members that start together or not at all.

use std::fmt;
use std::sync::Arc;

use sublet_model::{Claim, Class, NameError, NodeName, PodUid, Standing, Time};
use sublet_plan::stock::{PodRules, Unmodelled};

use crate::tree::Amounts;

/// The name of a group: `<kind>/<namespace>/<name>`, such as `podgroup/team-a/g1`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupId(Arc<str>);

impl GroupId {
    /// The group of that name.
    #[must_use]
    pub fn new(name: impl Into<Arc<str>>) -> GroupId {
        GroupId(name.into())
    }

    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The namespace in it; empty where it has none.
    #[must_use]
    pub fn namespace(&self) -> &str {
        self.0.split('/').nth(1).unwrap_or_default()
    }

    /// The object's name in it; empty where it has none.
    #[must_use]
    pub fn object(&self) -> &str {
        self.0.splitn(3, '/').nth(2).unwrap_or_default()
    }
}

impl fmt::Display for GroupId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Treatment of members with a place when the others find none in time (Koordinator's `mode`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum GangMode {
    /// All give their places back.
    #[default]
    Strict,
    /// They keep them.
    NonStrict,
}

/// Members that count towards a gang's minimum (Koordinator's `match-policy`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum MatchPolicy {
    /// The waiting members.
    OnlyWaiting,
    /// The waiting and the running members.
    WaitingAndRunning,
    /// The waiting members; none once the gang has had enough.
    #[default]
    OnceSatisfied,
}

/// The most members that start together: the slots of one start stand in one plan, which is one object
/// of the API server.
pub const MOST_MEMBERS: usize = 2_000;

/// Gangs that are admitted together.
#[derive(Debug, Clone)]
pub struct Group {
    /// Its name.
    pub id: GroupId,
    /// The quota that it counts in: one without quotas below it.
    pub quota: Arc<str>,
    /// Higher goes first in its quota.
    pub priority: i32,
    /// Opportunistic work is never charged to a quota's minimum, and goes first where somebody must.
    pub class: Class,
    /// It may be evicted for others. A group that may not is held to its quota's minimum.
    pub preemptible: bool,
    /// Since when it waits.
    pub since: Time,
    /// It is not tried before: an earlier try failed.
    pub not_before: Option<Time>,
    /// Its gangs, at least one.
    pub gangs: Vec<Gang>,
    /// Treatment of the members that came when others do not.
    pub mode: GangMode,
    /// Members that count towards the minimum.
    pub matching: MatchPolicy,
    /// Enough members have run together before.
    pub satisfied: bool,
    /// Latest time when it ends, if it says how long it runs: for a waiting group, as if it began
    /// now.
    pub ends: Option<Time>,
    /// Milliseconds that it runs, as it says itself. Nobody is ended for running longer: a wrong time
    /// costs a place in the order of its quota.
    pub runs_ms: Option<u64>,
    /// When it began to run.
    pub started: Option<Time>,
    /// Evictions and saved work, on which profiles decide.
    pub past: GroupPast,
}

/// A group's evictions and its saved work.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GroupPast {
    /// So many times it went for another group.
    pub reclaims: u32,
    /// When it went last.
    pub reclaimed: Option<Time>,
    /// Since when its quota's minimum has room for it, as the last decision said.
    pub room_since: Option<Time>,
    /// The part of its work that it keeps if it goes.
    pub saves: Saves,
}

/// The part of a group's work that an eviction does not cost.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Saves {
    /// It does not say. The site may assume a period.
    #[default]
    Unknown,
    /// It writes a checkpoint each time so many milliseconds of its run have passed.
    Every(u64),
    /// Its last checkpoint is of that time.
    At(Time),
}

impl Group {
    /// All its roles, gang by gang.
    pub fn roles(&self) -> impl Iterator<Item = &GangRole> {
        self.gangs.iter().flat_map(|gang| &gang.roles)
    }

    /// Its members that have a place.
    pub fn members(&self) -> impl Iterator<Item = (&GangRole, &Member)> {
        self.roles()
            .flat_map(|role| role.members.iter().map(move |member| (role, member)))
    }

    /// The UID under which the ledger knows a place that no pod has claimed yet.
    ///
    /// # Errors
    /// A group or role of a name that cannot stand in a UID.
    pub fn slot_uid(&self, role: &str, index: u32) -> Result<PodUid, NameError> {
        // A role of a group of gangs has the gang's namespace and name in its own.
        let text = format!("slot:{}|{role}|{index}", self.id);
        PodUid::new(&text.replace('/', "|"))
    }
}

/// A gang: at least its minimum of members starts together.
#[derive(Debug, Clone)]
pub struct Gang {
    /// Its name in the group.
    pub name: Arc<str>,
    /// So many of all its roles at least.
    pub min: u32,
    /// Its roles.
    pub roles: Vec<GangRole>,
}

/// Equal members.
#[derive(Debug, Clone)]
pub struct GangRole {
    /// Its name, which no other role of the group has.
    pub name: Arc<str>,
    /// So many at least.
    pub min: u32,
    /// So many if there is room.
    pub replicas: u32,
    /// Request of each member.
    pub pod: Arc<MemberShape>,
    /// Members that have a place.
    pub members: Vec<Member>,
}

/// Request of one member.
#[derive(Debug, Clone)]
pub struct MemberShape {
    /// Request to the node.
    pub claim: Arc<Claim>,
    /// Rules for the nodes that it accepts.
    pub rules: PodRules,
    /// Requirements that only the stock scheduler checks.
    pub unmodelled: Vec<Unmodelled>,
    /// Amounts that it takes from quotas.
    pub amounts: Amounts,
}

/// A member that has a place. The ledger has an entry under its UID.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// Number of the member in its role.
    pub index: u32,
    /// The pod, or the slot where there is no pod yet.
    pub uid: PodUid,
    /// The node.
    pub node: NodeName,
    /// Planned, or bound.
    pub standing: Standing,
}
