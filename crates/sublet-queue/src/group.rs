//! What waits: groups of gangs, whose members start together or not at all.

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

/// What becomes of members with a place when the others find none in time (Koordinator's `mode`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum GangMode {
    /// All give their places back.
    #[default]
    Strict,
    /// They keep them.
    NonStrict,
}

/// Which members count towards a gang's minimum (Koordinator's `match-policy`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum MatchPolicy {
    /// Those that wait.
    OnlyWaiting,
    /// Those that wait, and those that run.
    WaitingAndRunning,
    /// Those that wait; none once the gang has had enough.
    #[default]
    OnceSatisfied,
}

/// The most members that start together: the slots of one start stand in one plan, which is one object
/// of the API server.
pub const MOST_MEMBERS: usize = 2_000;

/// What is admitted together.
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
    /// It may be evicted for others. What may not is held to its quota's minimum.
    pub preemptible: bool,
    /// Since when it waits.
    pub since: Time,
    /// It is not tried before: an earlier try failed.
    pub not_before: Option<Time>,
    /// Its gangs, at least one.
    pub gangs: Vec<Gang>,
    /// What becomes of those that came when others do not.
    pub mode: GangMode,
    /// Who counts towards the minimum.
    pub matching: MatchPolicy,
    /// Enough members have run together before.
    pub satisfied: bool,
    /// When it ends at the latest, where it says how long it runs: if it began now, for who waits.
    pub ends: Option<Time>,
    /// When it began to run.
    pub started: Option<Time>,
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

/// Members of which a number starts together.
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
    /// What each asks.
    pub pod: Arc<MemberShape>,
    /// Those that have a place.
    pub members: Vec<Member>,
}

/// What one member asks.
#[derive(Debug, Clone)]
pub struct MemberShape {
    /// Of the node.
    pub claim: Arc<Claim>,
    /// Which nodes it accepts.
    pub rules: PodRules,
    /// What it requires that nobody but the stock scheduler checks.
    pub unmodelled: Vec<Unmodelled>,
    /// What it takes from quotas.
    pub amounts: Amounts,
}

/// A member that has a place. The ledger has an entry under its UID.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// Which one of its role.
    pub index: u32,
    /// The pod, or the slot where there is no pod yet.
    pub uid: PodUid,
    /// Where.
    pub node: NodeName,
    /// Planned, or bound.
    pub standing: Standing,
}
